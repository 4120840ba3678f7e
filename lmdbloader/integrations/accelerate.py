"""Loaders in Hugging Face Accelerate, in one process or several."""

from __future__ import annotations

from typing import Any

from accelerate.data_loader import prepare_data_loader

from lmdbloader.errors import OptionError
from lmdbloader.integrations.shares import check_share
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
        OptionError: The processes would read the same samples, or different numbers of batches; or there are several,
            and Accelerate should save the place (`use_stateful_dataloader`), or divide the batches of one process
            (`dispatch_batches`).

    >>> loader = Loader(dataset, 16, shuffle=True, shard="auto", pad=True)  # doctest: +SKIP
    >>> model, optimizer = accelerator.prepare(model, optimizer)  # doctest: +SKIP
    >>> loader = lmdbloader.integrations.accelerate.prepare(accelerator, loader)  # doctest: +SKIP
    """
    rank, world_size = accelerator.process_index, accelerator.num_processes
    check_share("prepare", loader, rank, world_size)
    if world_size > 1 and accelerator.use_stateful_dataloader:
        # It subtracts the batches of the other processes, which this process has not counted.
        raise OptionError(
            "prepare: with DataLoaderConfiguration(use_stateful_dataloader=True) several processes would repeat "
            "batches when they resume. Leave it out, and continue with "
            "accelerator.skip_first_batches(prepared, num_batches)."
        )
    if world_size > 1 and accelerator.dispatch_batches:
        raise OptionError(
            "prepare: with DataLoaderConfiguration(dispatch_batches=True) the main process reads all samples, and this "
            "loader reads a share in each process. Leave dispatch_batches out."
        )
    prepared = prepare_data_loader(
        loader,
        accelerator.device,
        num_processes=1,  # the Loader reads its own share
        process_index=0,
        put_on_device=accelerator.device_placement,
        rng_types=list(accelerator.rng_types or ()),
        non_blocking=accelerator.non_blocking,
        use_stateful_dataloader=accelerator.use_stateful_dataloader,
    )
    prepared._is_accelerate_prepared = True  # Accelerate's own mark
    return accelerator.prepare_data_loader(prepared)
