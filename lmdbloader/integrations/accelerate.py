"""A Loader among the processes of Hugging Face Accelerate."""

from __future__ import annotations

from typing import Any

from accelerate.data_loader import prepare_data_loader

from lmdbloader.errors import OptionError
from lmdbloader.loader.loader import Loader

__all__ = ["prepare"]


def prepare(accelerator: Any, loader: Loader) -> Any:
    """Return a Loader prepared as by `accelerator.prepare`, which divides the batches of others a second time.

    Batches go to the accelerator's device, gradients accumulate, `gather_for_metrics` leaves out repeated samples, and
    `accelerator.skip_first_batches` reads none of those it skips. In one process `accelerator.prepare` does the same.

    Args:
        accelerator: The Accelerator.
        loader: With `shard="auto"`, and `pad=True` or `drop_last=True`, if there are several processes.

    Returns:
        A DataLoader of Accelerate. `accelerator.prepare` gives it back as it is.

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
            "prepare: the processes may get different numbers of batches, and would wait for each other for ever. "
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
