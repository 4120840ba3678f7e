"""Loaders in Hugging Face Accelerate, in one process or several."""

from __future__ import annotations

from typing import Any

from accelerate.data_loader import prepare_data_loader

from lmdbloader.errors import OptionError
from lmdbloader.loader.loader import Loader

__all__ = ["prepare"]


def prepare(accelerator: Any, loader: Loader) -> Any:
    """Return a Loader prepared for Accelerate. Each process reads the Loader's share.

    `accelerator.prepare` would divide the share among the processes a second time; in one process it does the same as
    this function. Batches are moved to the accelerator's device, gradients accumulate, `gather_for_metrics` drops
    repeated samples, and `accelerator.skip_first_batches` does not read the batches that it skips.

    Args:
        accelerator: The Accelerator.
        loader: With `shard="auto"`, and `pad=True` or `drop_last=True`, if there are several processes.

    Returns:
        A DataLoader of Accelerate. `accelerator.prepare` returns it unchanged.

    Raises:
        OptionError: The processes would read the same samples, or different numbers of batches.

    >>> loader = Loader(dataset, 16, shuffle=True, shard="auto", pad=True)  # doctest: +SKIP
    >>> model, optimizer = accelerator.prepare(model, optimizer)  # doctest: +SKIP
    >>> loader = lmdbloader.integrations.accelerate.prepare(accelerator, loader)  # doctest: +SKIP
    """
    rank, world_size = accelerator.process_index, accelerator.num_processes
    if (loader.rank, loader.world_size) != (rank, world_size):
        raise OptionError(
            f"prepare: this is process {rank} of {world_size}, and the loader reads share {loader.rank} of "
            f'{loader.world_size}. Write Loader(..., shard="auto", pad=True).'
        )
    if world_size > 1 and not loader._pad and not loader.drop_last:
        raise OptionError(
            "prepare: the processes may get different numbers of batches, and would wait for each other forever. "
            'Write Loader(..., shard="auto", pad=True), or drop_last=True.'
        )
    prepared = prepare_data_loader(
        loader,
        accelerator.device,
        num_processes=1,  # the Loader reads its own share
        process_index=0,
        put_on_device=accelerator.device_placement,
        rng_types=list(accelerator.rng_types or ()),
        non_blocking=accelerator.non_blocking,
    )
    prepared._is_accelerate_prepared = True  # Accelerate's own mark
    return accelerator.prepare_data_loader(prepared)
