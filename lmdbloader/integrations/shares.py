"""What a framework needs of the Loaders of several processes."""

from __future__ import annotations

from lmdbloader.errors import OptionError
from lmdbloader.loader.loader import Loader


def check_share(caller: str, loader: Loader, rank: int, world_size: int) -> None:
    """Check that a Loader reads the share of its process, and that all processes make the same number of steps.

    Args:
        caller: The function that needs it, for the message.
        loader: The Loader of this process.
        rank: The number of this process.
        world_size: The number of processes.

    Raises:
        OptionError: It reads another share, or the processes may get different numbers of batches.
    """
    if (loader.rank, loader.world_size) != (rank, world_size):
        raise OptionError(
            f"{caller}: this is process {rank} of {world_size}, and the loader reads share {loader.rank} of "
            f'{loader.world_size}. Write Loader(..., shard="auto", pad=True).'
        )
    if world_size > 1 and not loader._pad and not loader.drop_last:
        raise OptionError(
            f"{caller}: the processes may get different numbers of batches, and would wait for each other forever. "
            'Write Loader(..., shard="auto", pad=True), or drop_last=True.'
        )
