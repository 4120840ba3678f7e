"""The arms of a study: the Loader, and torch's DataLoader over the same dataset or over image files, taking turns."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader

from lmdbloader.base import system
from lmdbloader.base.stopwatch import BatchTimes, time_batches
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.lab.study.image_files import ImageFiles
from lmdbloader.loader import Loader
from lmdbloader.loader.torch_loader import dataloader
from lmdbloader.transforms import RandomCrop

T = TypeVar("T")
LoaderKind = Literal["lmdbloader", "dataloader", "folder"]
LOADER_NAMES: dict[LoaderKind, str] = {
    "lmdbloader": "Loader",
    "dataloader": "DataLoader (LMDB)",
    "folder": "DataLoader (files)",
}
# An epoch has at least so many batches and samples, so that the start of one is never timed: smaller datasets
# are read several times in one random order.
_EPOCH_BATCHES, _EPOCH_SAMPLES = 1000, 20_000
# A turn has at least this many batches, unless they take this many times as long as it should last.
_LEAST_BATCHES, _PATIENCE = 4, 4.0


@dataclass(frozen=True, slots=True)
class Material:
    """What is read; it pickles as paths.

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
class Arm:
    """One way to load.

    Attributes:
        source: Who makes the batches.
        batch_size: Samples in a batch.
        crop: Side of a random window in pixels of the largest image; None: whole images.
        num_workers: Threads of the Loader, worker processes of torch's DataLoader.
        is_pinned: Whether batches are put into page-locked memory.
        device: Where the Loader copies batches to, if they are pinned; None: they stay.
        order: Of the samples; the Loader also knows "quasi_random", for cold storage.
    """

    source: LoaderKind
    batch_size: int
    crop: int | None
    num_workers: int
    is_pinned: bool = False
    device: str | None = None
    order: Literal["random", "quasi_random"] = "random"


@dataclass(frozen=True, slots=True)
class Feed:
    """The batches of an open arm.

    Attributes:
        arm: The arm.
        loader: The Loader, or torch's DataLoader.
    """

    arm: Arm
    loader: DataLoader[Any]

    @property
    def num_first(self) -> int:
        """How many batches come together at first: one of each worker, or those that threads read at once."""
        if isinstance(self.loader, Loader):
            return self.loader.num_threads * -(-64 // self.arm.batch_size)
        return max(self.arm.num_workers, 1)

    @contextmanager
    def stream(self) -> Iterator[Iterator[Any]]:
        """Give an iterator over batches, epoch after epoch; worker processes end with the context."""
        with closing(self._batches()) as batches:
            yield batches

    def _batches(self) -> Generator[Any, None, None]:
        while True:
            with _more_than_cores_on_purpose():
                epoch = iter(self.loader)
            try:
                for batch in epoch:
                    yield batch
                    del batch  # its memory is the Loader's again
            finally:
                # A DataLoader's iterator ends its processes when it is deleted, which a traceback could put off.
                end = getattr(epoch, "close", None) or getattr(epoch, "_shutdown_workers", None)
                if end is not None:
                    end()
                del epoch


@contextmanager
def open_arm(material: Material, arm: Arm, *, is_long: bool = True) -> Iterator[Feed]:
    """Give a feed; its threads end with the context.

    Args:
        material: What is read.
        arm: How.
        is_long: Whether an epoch has the samples so often that its start does not count, and only whole batches.
    """
    with _more_than_cores_on_purpose():
        loader = _open(material, arm, is_long)
    try:
        yield Feed(arm, loader)
    finally:
        if isinstance(loader, Loader):
            loader.close()


def random_crop(crop: int | None) -> tuple[RandomCrop, ...]:
    """Return the transforms that cut a window."""
    return () if crop is None else (RandomCrop(crop),)


def take_turn(feed: Feed, seconds: float, *, after_seconds: float = 0.0) -> BatchTimes:
    """Load for some seconds, and do nothing with the batches.

    Workers start again with every turn, so that those of other arms are not running. Timing begins when each worker
    has given a batch: neither starting nor batches that were ready before count.

    Args:
        feed: Gives batches.
        seconds: How long.
        after_seconds: How long to go on after that, for other processes that still measure.
    """
    size = feed.arm.batch_size
    with feed.stream() as batches:
        for _ in range(feed.num_first):
            next(batches)
        cpu = cpu_seconds()
        found = time_batches(batches, seconds, lambda _: size, least=_LEAST_BATCHES, patience=_PATIENCE)
        found = replace(found, cpu_seconds=cpu_seconds() - cpu)
        until = time.perf_counter() + after_seconds
        while time.perf_counter() < until:
            next(batches)
    return found


def take_turns(arms: Sequence[Arm], repeats: int, measure: Callable[[Arm], T]) -> list[list[T]]:
    """Return each arm's measurements: one turn of every arm, then the next turn of every arm.

    Turns of one number are neighbours in time, so their ratio is what arms are compared by.
    """
    rounds = [[measure(arm) for arm in arms] for _ in range(repeats)]
    return [list(turns) for turns in zip(*rounds, strict=True)]


def cpu_seconds() -> float:
    """Return the processor time that this process and its worker processes have taken so far."""
    return time.process_time() + sum(
        system.process_seconds(child.pid) for child in multiprocessing.active_children() if child.pid is not None
    )


@contextmanager
def _more_than_cores_on_purpose() -> Iterator[None]:
    """Silence the warnings of the Loader and torch about it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "num_threads=", UserWarning)
        warnings.filterwarnings("ignore", ".*worker processes", UserWarning)
        yield


def _open(material: Material, arm: Arm, is_long: bool) -> DataLoader[Any]:
    least = max(_EPOCH_BATCHES * arm.batch_size, _EPOCH_SAMPLES) if is_long else 1
    crop = random_crop(arm.crop)
    # The same order whenever the arm is opened.
    options: dict[str, Any] = {
        "shuffle": True, "drop_last": is_long, "num_workers": arm.num_workers, "pin_memory": arm.is_pinned,
        "generator": torch.Generator().manual_seed(0),
    }  # fmt: skip
    if arm.source == "folder":
        assert material.files is not None
        files = replace(material.files, crop=arm.crop, repeats=_repeats(len(material.files), least))
        return DataLoader(files, arm.batch_size, **options)  # type: ignore[arg-type]
    dataset = material.dataset
    if (repeats := _repeats(len(dataset), least)) > 1:
        dataset = dataset.select(np.tile(np.arange(len(dataset)), repeats))
    if arm.source == "dataloader":
        return dataloader(dataset.transformed(crop) if crop else dataset, arm.batch_size, **options)
    return Loader(
        dataset, arm.batch_size, order=arm.order, seed=0, drop_last=is_long, transforms=crop,
        num_threads=arm.num_workers, pin_memory=arm.is_pinned,
        # From paged memory the training loop copies, as it does for the other sources.
        device=arm.device if arm.is_pinned else None,
    )  # fmt: skip


def _repeats(num_samples: int, least: int) -> int:
    return max(1, -(-least // num_samples))
