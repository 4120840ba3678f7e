"""torch's DataLoader of datasets: the settings that `tune` found, epochs of views, and the start of its workers."""

from __future__ import annotations

import copy
import multiprocessing
import multiprocessing.queues
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset, Subset

from lmdbloader.batch.collate import collate
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.draws import Draws
from lmdbloader.batch.many import ReadMany, many_of, overridden
from lmdbloader.batch.shared_memory import free_nbytes, is_plain, means_no_space, no_space
from lmdbloader.errors import OptionError
from lmdbloader.loader.tuning_cache import Workers, case_of, recall_workers

# Options of DataLoader that need worker processes.
_OF_WORKERS = frozenset({"multiprocessing_context", "persistent_workers", "prefetch_factor", "timeout"})
# A semaphore takes a page, and a worker has about five.
_QUEUE_NBYTES = 5 * 4096


def dataloader(
    dataset: Dataset[Any] | str | os.PathLike[str], batch_size: int | None = 1, **options: Any
) -> DataLoader[Any]:
    """Return a torch DataLoader, with the settings that `lmdbloader.lab.tune` found for the options that are not given.

    Args:
        dataset: An LMDBDataset or its path, a view of one, or any map-style dataset over them.
        batch_size: Samples in a batch; None gives them one by one.
        **options: Those of `torch.utils.data.DataLoader`. Defaults: `num_workers` and `pin_memory` are those that
            `lmdbloader.lab.tune` found for this dataset, batch size and machine; else there are no workers, as with
            torch. If `num_workers` is not given, other options of workers may have no effect. `pin_memory` is on only
            if there is an accelerator; `collate_fn` is `collate`. `persistent_workers=True` saves the start of the
            workers in each epoch, but they keep the transform that the dataset had in the first one.
            `worker_init_fn` is called after our own, which makes a batch that cannot be sent an error.

    Returns:
        The DataLoader; batches of an LMDBDataset are named tuples of stacked tensors. For transformed views that have a
        seed each iteration is the next epoch; other views make new random choices at every read. Their form is that of
        the dataset: `LMDBDataset(..., as_=...)`.

    Raises:
        DiskFullError: /dev/shm has no room for the queues of worker processes.
        OptionError: The dataset is a Subset of a view with a seed.
    """
    dataset = LMDBDataset(dataset) if isinstance(dataset, str | bytes | os.PathLike) else dataset
    inner = dataset.dataset if type(dataset) is Subset else None
    if isinstance(inner, LMDBDataset) and inner._draws is not None and not overridden(inner):
        raise OptionError(
            "dataloader(Subset): parts of a view with a seed, as of random_split, would share its epoch. Write "
            "view.select(subset.indices), or view.split([0.9, 0.1])."
        )
    settings = dict(options)
    if batch_size is not None:
        settings.setdefault("collate_fn", collate)
    pins = accelerator() is not None
    if settings.get("num_workers") is None:
        # DataLoader takes no batch size with a batch sampler, which has one of its own.
        size = getattr(settings.get("batch_sampler"), "batch_size", batch_size)
        functions = () if settings.get("collate_fn") in (collate, None) else (settings["collate_fn"],)
        found = recall_workers(case_of(dataset, size, (), functions)) or Workers(0)
        settings["num_workers"] = found.num_workers
        if found.num_workers == 0:  # torch refuses options of workers without any
            settings = {name: value for name, value in settings.items() if name not in _OF_WORKERS}
        pins = pins and found.pin_memory is not False
    settings.setdefault("pin_memory", pins)
    if settings["num_workers"] > 0:
        if free_nbytes() == 0:
            raise no_space(_QUEUE_NBYTES * settings["num_workers"])
        settings["worker_init_fn"] = WorkerStart(settings.get("worker_init_fn"))
    return EpochDataLoader(dataset, batch_size, **settings)


class EpochDataLoader(DataLoader[Any]):
    """torch's DataLoader, in which each iteration is the next epoch of the transformed views in the dataset.

    Without workers it reads a batch in one call, as workers do.
    """

    def __iter__(self) -> Any:
        """Return an iterator over the batches of the next epoch."""
        begun: dict[Draws, tuple[int, int]] = self.__dict__.setdefault("_begun", {})
        for draws in _draws_in(self.dataset, set()):
            begun[draws] = draws.begin(begun.get(draws))
        return super().__iter__()

    def _get_iterator(self) -> Any:
        read = None if self.num_workers else many_of(self.dataset)
        if read is None:
            return super()._get_iterator()
        loader = copy.copy(self)
        loader.__dict__["dataset"] = _InOneCall(self.dataset, read)  # for torch's iterator alone
        return super(EpochDataLoader, loader)._get_iterator()


class _InOneCall(Dataset[Any]):
    """A dataset for torch's iterator in the process itself, which reads batches with a function."""

    def __init__(self, dataset: Dataset[Any], read: ReadMany) -> None:
        self.__getitems__, self._dataset = read, dataset

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]


@contextmanager
def unmoved(dataset: Dataset[Any]) -> Iterator[None]:
    """Keep torch's random state and the epochs of a dataset's views as they are, while a measurement reads."""
    with ExitStack() as stack:
        stack.enter_context(torch.device("cpu"))  # DataLoader makes numbers on the default device
        stack.enter_context(torch.random.fork_rng(devices=()))
        for draws in _draws_in(dataset, set()):
            stack.enter_context(draws.untouched())
        yield


def _draws_in(dataset: object, seen: set[int]) -> set[Draws]:
    """Return the draws of all views inside a dataset, which may be a Subset, a ConcatDataset or a user's class.

    Args:
        dataset: The dataset.
        seen: Identities of the datasets that were looked at.
    """
    if isinstance(dataset, LMDBDataset):
        return set() if dataset._draws is None else {dataset._draws}
    if not _may_be_dataset(dataset) or id(dataset) in seen:
        return set()
    seen.add(id(dataset))
    found: set[Draws] = set()
    for value in getattr(dataset, "__dict__", {}).values():
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        # There may be millions of numbers or names: the first item says whether they are datasets.
        if _may_be_dataset(next(iter(parts), None)):
            for part in parts:
                found |= _draws_in(part, seen)
    return found


def _may_be_dataset(value: object) -> bool:
    return hasattr(type(value), "__getitem__") and hasattr(value, "__dict__")


def accelerator() -> torch.device | None:
    """Return the device that this process can copy batches to; None if there is only the processor."""
    if not hasattr(torch, "accelerator"):
        return torch.device("cuda") if torch.cuda.is_available() else None
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


class WorkerStart:
    """A `worker_init_fn` of a DataLoader that prepares the process, then calls another such function."""

    def __init__(self, then: Callable[[int], Any] | None = None) -> None:
        self.then = then

    def __call__(self, worker_id: int) -> None:
        if multiprocessing.parent_process() is not None:  # torch has workers that are threads, too
            _send_errors(worker_id)
        if self.then is not None:
            self.then(worker_id)


def _send_errors(worker_id: int) -> None:
    """Make queues send an error in place of a batch that cannot be sent; otherwise the training loop waits forever."""

    def send_error(queue: Any, error: Exception, item: Any) -> None:
        number, batch = item
        try:
            if means_no_space(error):
                raise no_space(_unshared_nbytes(batch)) from error
            raise error
        except Exception:
            queue.put((number, ExceptionWrapper(where=f"in DataLoader worker process {worker_id}")))  # type: ignore[no-untyped-call]

    # The standard library's hook for subclasses; all queues of this process are those of its DataLoader.
    multiprocessing.queues.Queue._on_queue_feeder_error = send_error  # type: ignore[attr-defined]


def _unshared_nbytes(value: Any) -> int:
    """Return the bytes of shared memory that the tensors of a batch still need."""
    if isinstance(value, torch.Tensor):
        return 0 if not is_plain(value) or value.is_shared() else value.nbytes  # type: ignore[no-untyped-call]
    if isinstance(value, dict):
        return sum(map(_unshared_nbytes, value.values()))
    return sum(map(_unshared_nbytes, value)) if isinstance(value, (list, tuple)) else 0
