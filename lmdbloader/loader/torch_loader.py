"""torch's own DataLoader with settings that suit a dataset of ours, as remembered or measured once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import collate as collate_with
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from lmdbloader.base.cores import count_cores
from lmdbloader.batch.sample import Batch, sample_type
from lmdbloader.batch.shared import free_nbytes, in_shared_memory, is_plain, no_space, shared_like
from lmdbloader.errors import OptionError
from lmdbloader.loader.remembered import Workers, case_of, recall_workers, remember_workers
from lmdbloader.loader.workers import WorkerStart

# One more process must bring at least this much, or it is not worth its memory.
_WORTH_A_WORKER = 1.10
_TRIAL_SECONDS = 0.4
_TRIAL_BATCHES = 64
# A semaphore takes a page, and a worker has about five.
_QUEUE_NBYTES = 5 * 4096


def collate(samples: Sequence[Any]) -> Any:
    """Return a batch as a named tuple of stacked values, taking one that was read whole as it is.

    Images and arrays become tensors (B, ...), ints int64 and floats float64 tensors (B,); text, bytes and JSON values
    stay lists. Other samples (of a transform, or of another dataset) go through torch's own collate function.

    Raises:
        OptionError: Images of one batch differ in shape, or a sample is None.
    """
    in_worker = get_worker_info() is not None
    if isinstance(samples, Batch):
        columns = [stacked(name, column) for name, column in samples.columns.items()]
        batch = sample_type(tuple(samples.columns))(*columns)
    elif any(sample is None for sample in samples):
        raise OptionError(
            "a sample is None: the dataset's transform returned nothing for it. End it with `return sample`. To leave "
            "samples out, choose the others before: dataset.select(numbers)."
        )
    elif in_worker:
        batch = collate_with(list(samples), collate_fn_map={**default_collate_fn_map, torch.Tensor: _stacked_shared})
    else:
        batch = default_collate(list(samples))
    # What is not shared yet would be when it is sent: in /dev/shm, which may be full.
    return in_shared_memory(batch) if in_worker else batch


def _stacked_shared(tensors: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """Return a batch (B, ...) of tensors in shared memory, as torch does; but not in /dev/shm if that can be helped."""
    first = tensors[0]
    if not all(type(t) is torch.Tensor and is_plain(t) and t.dtype == first.dtype for t in tensors):
        return collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)  # type: ignore[no-any-return]
    return torch.stack(list(tensors), out=shared_like(first, (len(tensors), *first.shape)))


def stacked(name: str, column: Any) -> Any:
    """Return a batch's column of one field as a tensor (B, ...), or as a list where its values are no numbers.

    Raises:
        OptionError: Images or arrays differ in shape.
    """
    if isinstance(column, torch.Tensor) or not column:
        return column
    first = column[0]
    if isinstance(first, torch.Tensor):
        shapes = sorted({tuple(value.shape) for value in column})
        raise OptionError(
            f"field {name!r}: the values of one batch have different shapes ({shapes[0]} and {shapes[-1]} among them). "
            "Convert with --patch-size, crop them in a transform, or use batch_size=1."
        )
    if isinstance(first, int) and not isinstance(first, bool):
        return torch.tensor(column, dtype=torch.int64)
    return torch.tensor(column, dtype=torch.float64) if isinstance(first, float) else column


def dataloader(dataset: Dataset[Any], batch_size: int | None = 1, **options: Any) -> DataLoader[Any]:
    """Return a plain DataLoader, tuned where nothing was said.

    Args:
        dataset: An LMDBDataset, a view of one, or any map-style dataset over them.
        batch_size: Samples in a batch; None gives them one by one.
        **options: `torch.utils.data.DataLoader`'s own. Where they are not given: `num_workers` is measured once for
            this dataset, batch size and machine and remembered in the user's cache folder (`lmdbloader.lab.tune`
            measures it longer, and `pin_memory` with it); `pin_memory` is on only where there is an accelerator;
            `persistent_workers` is on with workers; `collate_fn` is `collate`.
            `worker_init_fn` is called after what we do at a worker's start: see that it ends with its parent.

    Returns:
        The DataLoader; batches of an LMDBDataset are named tuples of stacked tensors.

    Raises:
        DiskFullError: There are to be worker processes, and no room at all in /dev/shm for their queues.
    """
    settings = dict(options)
    if batch_size is not None:
        settings.setdefault("collate_fn", collate)
    pins = accelerator() is not None
    if settings.get("num_workers") is None:
        # A batch sampler of torch's own knows the size that DataLoader does not want to be told beside it.
        size = getattr(settings.get("batch_sampler"), "batch_size", batch_size)
        found = tuned_workers(dataset, size, settings.get("collate_fn"))
        settings["num_workers"] = found.num_workers
        pins = pins and found.pin_memory is not False
    settings.setdefault("pin_memory", pins)
    settings.setdefault("persistent_workers", settings["num_workers"] > 0)
    if settings["num_workers"] > 0:
        if free_nbytes() == 0:
            raise no_space(_QUEUE_NBYTES * settings["num_workers"])
        settings["worker_init_fn"] = WorkerStart(settings.get("worker_init_fn"))
    return DataLoader(dataset, batch_size, **settings)


def accelerator() -> torch.device | None:
    """Return the device that this process can copy batches to, None where there is only the processor."""
    if not hasattr(torch, "accelerator"):
        return torch.device("cuda") if torch.cuda.is_available() else None
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def tuned_workers(dataset: Dataset[Any], batch_size: int | None, collate_fn: Any = collate) -> Workers:
    """Return the settings with which a dataset reads fastest here: remembered, or else the workers measured now.

    Measuring takes about a second for every number tried; 0 is kept unless processes bring 10 %.
    """
    case = case_of(dataset, batch_size, (), () if collate_fn in (collate, None) else (collate_fn,))
    remembered = recall_workers(case)
    if remembered is not None:
        return remembered
    if free_nbytes() == 0:  # not remembered: there may be room for workers' queues the next time
        return Workers(0)
    best, best_speed = 0, _speed(dataset, batch_size, collate_fn, 0)
    for num_workers in _candidates():
        speed = _speed(dataset, batch_size, collate_fn, num_workers)
        if speed <= best_speed * _WORTH_A_WORKER:
            break
        best, best_speed = num_workers, speed
    remember_workers(case, Workers(best), best_speed)
    return Workers(best)


def _candidates() -> list[int]:
    cores = count_cores()
    return [n for n in (1, 2, 4, 8, 16, 32) if n <= cores]


def _speed(dataset: Dataset[Any], batch_size: int | None, collate_fn: Any, num_workers: int) -> float:
    """Return samples per second over a short while, the first batch not counted; 0 where there is only one."""
    # A generator of its own: measuring must not move the user's random state.
    generator = torch.Generator().manual_seed(0)
    length = len(dataset)  # type: ignore[arg-type]
    count = min(length, (batch_size or 1) * _TRIAL_BATCHES)
    order = torch.randperm(length, generator=generator)[:count].tolist()
    loader = DataLoader(
        dataset,
        batch_size,
        sampler=order,
        num_workers=num_workers,
        collate_fn=collate_fn,
        generator=generator,
        worker_init_fn=WorkerStart() if num_workers else None,
    )
    iterator = iter(loader)
    next(iterator, None)
    samples, began = 0, time.perf_counter()
    for _ in iterator:
        samples += batch_size or 1
        if time.perf_counter() - began > _TRIAL_SECONDS:
            break
    return samples / (time.perf_counter() - began)
