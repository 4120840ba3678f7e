"""The loaders that a study times: the Loader, and torch's DataLoader over the dataset or over image files."""

from __future__ import annotations

import math
import multiprocessing
import re
import statistics
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from lmdbloader.base import system
from lmdbloader.base.stage_times import StageTimes
from lmdbloader.base.stopwatch import BatchTimes, time_batches
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import WorkerError
from lmdbloader.lab.study.image_files import ImageFiles
from lmdbloader.lab.study.interrupts import check
from lmdbloader.lab.study.rows import Latency, LoaderKind
from lmdbloader.loader import Loader
from lmdbloader.loader.torch_loader import dataloader
from lmdbloader.transforms import RandomCrop

# An epoch has at least so many batches and samples, so that the start of one is never timed: smaller datasets
# are read several times in one random order.
_EPOCH_BATCHES, _EPOCH_SAMPLES = 1000, 20_000
# The message of torch's error, which may be raised anywhere in the program.
_WORKER_KILLED = re.compile(r"^DataLoader worker \(pid")


@dataclass(frozen=True, slots=True)
class BenchData:
    """The data that is read; it pickles as paths.

    Attributes:
        dataset: The fields and samples that are read, without transforms.
        files: The same as files; None if there are none.
    """

    dataset: LMDBDataset
    files: ImageFiles | None

    @property
    def sources(self) -> tuple[LoaderKind, ...]:
        """Who can make batches of it."""
        return ("lmdbloader", "dataloader") if self.files is None else ("lmdbloader", "dataloader", "folder")


@dataclass(frozen=True, slots=True)
class LoaderSetting:
    """One way to load.

    Attributes:
        source: Who makes the batches.
        batch_size: Samples in a batch.
        crop: Side of a random window in pixels of the largest image; None: whole images.
        num_workers: Threads of the Loader, worker processes of torch's DataLoader.
        is_pinned: Whether batches are put into page-locked memory.
        device: Where the Loader copies batches to, if they are pinned; None: they stay.
    """

    source: LoaderKind
    batch_size: int
    crop: int | None
    num_workers: int
    is_pinned: bool = False
    device: str | None = None


class EndlessLoader:
    """Batches of one setting, epoch after epoch."""

    def __init__(self, material: BenchData, setting: LoaderSetting) -> None:
        """Prepare; threads and processes start when batches are asked for."""
        self.setting = setting
        self._loader = _open_loader(material, setting) if setting.source == "lmdbloader" else None
        self._batches: Any = self._loader
        if self._loader is None:
            with _more_than_cores_on_purpose():
                self._batches = _open_dataloader(material, setting)

    @property
    def num_first(self) -> int:
        """How many batches come together at first: one of each worker, or those that threads read at once."""
        if self._loader is not None:
            return self._loader.num_threads * -(-64 // self.setting.batch_size)
        return max(self.setting.num_workers, 1)

    @contextmanager
    def stream(self) -> Iterator[Iterator[Any]]:
        """Give an endless iterator over batches; processes end with the context.

        Raises:
            WorkerError: A worker process of torch's DataLoader was killed.
            KeyboardInterrupt: It was asked for, but lost, see `interruptible`.
        """
        check()
        try:
            with closing(self._endless()) as batches:
                yield batches
        except (RuntimeError, ConnectionError, EOFError) as error:
            if isinstance(error, RuntimeError) and not _WORKER_KILLED.search(str(error)):
                raise
            raise WorkerError(
                f"a worker process of torch's DataLoader has ended ({error}). Was it killed for its memory? Ask for "
                "fewer (--num-workers)."
            ) from error

    def _endless(self) -> Generator[Any, None, None]:
        while True:
            with _more_than_cores_on_purpose():
                epoch = iter(self._batches)
            try:
                for batch in epoch:
                    check()
                    yield batch
                    del batch  # its memory is the Loader's again
            finally:
                # A DataLoader's iterator ends its processes when it is deleted, which a traceback could put off.
                end = getattr(epoch, "close", None) or getattr(epoch, "_shutdown_workers", None)
                if end is not None:
                    end()
                del epoch

    @contextmanager
    def timed_stages(self) -> Iterator[list[StageTimes]]:
        """Time the stages of the Loader's threads; the list holds them afterwards, and is empty for other loaders."""
        found: list[StageTimes] = []
        if self._loader is None:
            yield found
            return
        self._loader.time_stages(True)
        try:
            yield found
            found.append(self._loader.stage_times())
        finally:
            self._loader.time_stages(False)

    def close(self) -> None:
        """End the threads."""
        if self._loader is not None:
            self._loader.close()


@contextmanager
def open_endless(material: BenchData, setting: LoaderSetting) -> Iterator[EndlessLoader]:
    """Give a feed; its threads end with the context."""
    feed = EndlessLoader(material, setting)
    try:
        yield feed
    finally:
        feed.close()


@contextmanager
def _more_than_cores_on_purpose() -> Iterator[None]:
    """Silence the warnings of the Loader and torch about it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "num_threads=", UserWarning)
        warnings.filterwarnings("ignore", ".*worker processes", UserWarning)
        yield


def random_crop(crop: int | None) -> tuple[RandomCrop, ...]:
    """Return the transforms that cut a window."""
    return () if crop is None else (RandomCrop(crop),)


def _length(num_samples: int, batch_size: int) -> int:
    """Return how long an epoch is: a multiple of the samples."""
    wanted = max(_EPOCH_BATCHES * batch_size, _EPOCH_SAMPLES)
    return num_samples * max(1, -(-wanted // num_samples))


def _repeated(dataset: LMDBDataset, batch_size: int) -> LMDBDataset:
    length = _length(len(dataset), batch_size)
    return dataset if length == len(dataset) else dataset.select(np.resize(np.arange(len(dataset)), length))


def _open_loader(material: BenchData, setting: LoaderSetting) -> Loader:
    with _more_than_cores_on_purpose():
        return Loader(
            _repeated(material.dataset, setting.batch_size),
            setting.batch_size,
            order="random",
            drop_last=True,
            transforms=random_crop(setting.crop),
            num_threads=setting.num_workers,
            # From paged memory the training loop copies, as it does for the other sources.
            device=setting.device if setting.is_pinned else None,
            pin_memory=setting.is_pinned,
        )


def _open_dataloader(material: BenchData, setting: LoaderSetting) -> DataLoader[Any]:
    options: dict[str, Any] = {
        "shuffle": True,
        "drop_last": True,
        "num_workers": setting.num_workers,
        "pin_memory": setting.is_pinned,
        "persistent_workers": False,
    }
    if setting.source == "dataloader":
        view = _repeated(material.dataset, setting.batch_size)
        crop = random_crop(setting.crop)
        return dataloader(view.transformed(crop) if crop else view, setting.batch_size, **options)
    assert material.files is not None
    length = _length(len(material.files.samples), setting.batch_size)
    return DataLoader(material.files.cropped(setting.crop, length), setting.batch_size, **options)


# A turn has at least this many batches, unless they take this many times as long as it should last.
_LEAST_BATCHES, _PATIENCE = 4, 4.0
_BINS_A_DECADE = 8
_SHORTEST_SECONDS = 1e-6


def take_turn(loader: EndlessLoader, seconds: float, *, after_seconds: float = 0.0) -> BatchTimes:
    """Load for some seconds, and do nothing with the batches.

    Workers start again with every turn, so that those of other settings are not running. Timing begins when each worker
    has given a batch: neither starting nor batches that were ready before count.

    Args:
        loader: Gives batches.
        seconds: How long.
        after_seconds: How long to go on after that, for other processes that still measure.
    """
    size = loader.setting.batch_size
    with loader.stream() as batches:
        for _ in range(loader.num_first):
            next(batches)
        cpu = cpu_seconds()
        found = time_batches(batches, seconds, lambda _: size, least=_LEAST_BATCHES, patience=_PATIENCE)
        found = replace(found, cpu_seconds=cpu_seconds() - cpu)
        until = time.perf_counter() + after_seconds
        while time.perf_counter() < until:
            next(batches)
    return found


def median_speed(turns: Sequence[BatchTimes]) -> float:
    """Return the median of the turns' samples a second."""
    return statistics.median(turn.samples_per_s for turn in turns)


def latency_of(waits: Sequence[float]) -> Latency:
    """Return the distribution of times in seconds.

    >>> found = latency_of([0.001, 0.001, 0.002])
    >>> found.p50_seconds, found.counts
    (0.001, (2, 0, 1))
    """
    values = np.maximum(np.asarray(waits, np.float64), _SHORTEST_SECONDS)
    # A value on the limit of two bins, such as a whole power of ten, is in the upper one, however it was rounded.
    bins = np.floor(_BINS_A_DECADE * np.log10(values) + 1e-9).astype(np.int64)
    first, last = int(bins.min()), int(bins.max())
    p50, p99 = np.percentile(waits, [50, 99])
    return Latency(
        p50_seconds=float(p50),
        p99_seconds=float(p99),
        max_seconds=float(max(waits)),
        mean_seconds=math.fsum(waits) / len(waits),
        edges=tuple(10 ** (k / _BINS_A_DECADE) for k in range(first, last + 2)),
        counts=tuple(np.bincount(bins - first).tolist()),
    )


def cpu_seconds() -> float:
    """Return the processor time that this process and its worker processes have taken so far."""
    return time.process_time() + sum(
        system.process_seconds(child.pid) for child in multiprocessing.active_children() if child.pid is not None
    )
