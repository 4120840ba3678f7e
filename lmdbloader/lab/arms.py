"""The ways of loading that are measured: the Loader, and torch's DataLoader over a dataset or over image files."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import DataLoader, RandomSampler

from lmdbloader.base import system
from lmdbloader.base.stopwatch import BatchTimes, time_batches
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.lab.image_files import ImageFiles
from lmdbloader.loader import Loader
from lmdbloader.loader.device import apply
from lmdbloader.loader.options import compiled_and_functions
from lmdbloader.loader.torch_loader import dataloader, unmoved
from lmdbloader.transforms import RandomCrop

T = TypeVar("T")
LoaderKind = Literal["lmdbloader", "dataloader", "folder"]
LOADER_NAMES: dict[LoaderKind, str] = {
    "lmdbloader": "Loader",
    "dataloader": "DataLoader (LMDB)",
    "folder": "DataLoader (files)",
}
# A Loader's epoch has at least so many batches and samples, so that the start of one is never timed.
_EPOCH_BATCHES, _EPOCH_SAMPLES = 1000, 20_000
# The draws of a DataLoader never end.
_DRAWS = 2**40
# Of torch's DataLoader: batches that each worker is asked for ahead.
_PREFETCH_FACTOR = 2
# A turn has at least this many batches, unless they take this many times as long as it should last.
_LEAST_BATCHES, _PATIENCE = 4, 4.0


@dataclass(frozen=True, slots=True)
class Material:
    """What is read; without transforms it pickles as paths.

    Attributes:
        dataset: The fields and samples that are read.
        files: The same as files; None if there are none.
        transforms: Of the Loader; the compiled ones are the dataset's own for the DataLoader.
        device: Where batches are copied to; None if they stay.
    """

    dataset: LMDBDataset
    files: ImageFiles | None = None
    transforms: Sequence[Any] = ()
    device: torch.device | None = None

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
        num_workers: Threads of the Loader, worker processes of torch's DataLoader; with none the training loop reads.
        crop: Side of a random window in pixels of the largest image; None: whole images.
        is_pinned: Whether batches are put into page-locked memory.
        order: Of the samples; the Loader also knows "quasi_random", for cold storage.
    """

    source: LoaderKind
    batch_size: int
    num_workers: int
    crop: int | None = None
    is_pinned: bool = False
    order: Literal["random", "quasi_random"] = "random"

    def __str__(self) -> str:
        who, noun = ("Loader", "thread") if self.source == "lmdbloader" else ("DataLoader", "worker")
        plural, pinned = "s" * (self.num_workers != 1), ", pinned" * self.is_pinned
        return f"{who}, {self.num_workers} {noun}{plural}{pinned}"


@dataclass(frozen=True, slots=True)
class Feed:
    """An open arm.

    Attributes:
        batches: Epoch after epoch.
        batch_size: Samples in each.
        per_round: Batches that arrive together: those of all threads or workers.
        ahead: Batches that may be ready before anybody asks.
        loader: Who gives them.
    """

    batches: Iterator[Any]
    batch_size: int
    per_round: int
    ahead: int
    loader: Any = None


@contextmanager
def open_arm(material: Material, arm: Arm, *, is_long: bool = True, seed: int = 0) -> Iterator[Feed]:
    """Give a feed; its threads and processes start with the first batch, and end with the context.

    Args:
        material: What is read.
        arm: How.
        is_long: Whether samples are read again so often that the start of an epoch does not count, in whole batches;
            else an epoch has each of them once.
        seed: Of the order: the same whenever the arm is opened. The user's random state stays.
    """
    with unmoved(material.dataset), _more_than_cores_on_purpose():
        loader = _loader(material, arm, is_long, seed)
        per_round, ahead = max(arm.num_workers, 1), _PREFETCH_FACTOR * arm.num_workers + 1
        if isinstance(loader, Loader):
            per_round, ahead = per_round * loader.batches_at_once, loader.groups_ahead * loader.batches_at_once
        try:
            with closing(_batches(loader, material.device)) as batches:
                yield Feed(batches, arm.batch_size, per_round, ahead, loader)
        finally:
            if isinstance(loader, Loader):
                loader.close()


def take_turn(feed: Feed, seconds: float, *, after_seconds: float = 0.0) -> BatchTimes:
    """Load for some seconds, in whole rounds, and do nothing with the batches.

    Timing begins when the batches that may have been ready are used up: starting does not count either.

    Args:
        feed: Gives batches.
        seconds: How long.
        after_seconds: How long to go on after that, for other processes that still measure.
    """
    for _ in range(feed.ahead):
        next(feed.batches)
    _synchronize()
    cpu = cpu_seconds()
    found = time_batches(
        feed.batches, seconds, lambda _: feed.batch_size, least=_LEAST_BATCHES, patience=_PATIENCE,
        per_round=feed.per_round, synchronize=_synchronize,
    )  # fmt: skip
    found = replace(found, cpu_seconds=cpu_seconds() - cpu)
    until = time.perf_counter() + after_seconds
    while time.perf_counter() < until:
        next(feed.batches)
    return found


def take_turns(arms: Sequence[Arm], repeats: int, measure: Callable[[Arm], T]) -> list[list[T]]:
    """Return each arm's measurements: one turn of every arm, then the next turn of every arm.

    Turns of one number are neighbors in time, so their ratio is what arms are compared by.
    """
    rounds = [[measure(arm) for arm in arms] for _ in range(repeats)]
    return [list(turns) for turns in zip(*rounds, strict=True)]


def random_crop(crop: int | None) -> tuple[RandomCrop, ...]:
    """Return the transforms that cut a window."""
    return () if crop is None else (RandomCrop(crop),)


def cpu_seconds() -> float:
    """Return the processor time that this process and its worker processes have taken so far."""
    return time.process_time() + sum(
        system.process_seconds(child.pid) for child in multiprocessing.active_children() if child.pid is not None
    )


def _loader(material: Material, arm: Arm, is_long: bool, seed: int) -> DataLoader[Any]:
    dataset, transforms = material.dataset, [*material.transforms, *random_crop(arm.crop)]
    if arm.source == "lmdbloader":
        least = max(_EPOCH_BATCHES * arm.batch_size, _EPOCH_SAMPLES) if is_long else 1
        device = material.device if material.device is not None and material.device.type == "cuda" else None
        return Loader(
            dataset, arm.batch_size, order=arm.order, seed=seed, repeat=max(1, -(-least // len(dataset))),
            drop_last=is_long, transforms=transforms, num_threads=arm.num_workers, pin_memory=arm.is_pinned,
            device=device,
        )  # fmt: skip
    source: Any = None if material.files is None else replace(material.files, crop=arm.crop)
    if arm.source == "dataloader":
        compiled, _ = compiled_and_functions(transforms)
        source = dataset.transformed(compiled) if compiled else dataset
    generator = torch.Generator().manual_seed(seed)
    sampler = RandomSampler(source, replacement=is_long, num_samples=_DRAWS if is_long else None, generator=generator)
    make: Callable[..., DataLoader[Any]] = dataloader if arm.source == "dataloader" else DataLoader
    return make(
        source, arm.batch_size, sampler=sampler, num_workers=arm.num_workers, pin_memory=arm.is_pinned,
        persistent_workers=False, generator=generator,
    )  # fmt: skip


def _batches(loader: DataLoader[Any], device: torch.device | None) -> Generator[Any, None, None]:
    """Yield the batches of one epoch after the other, as a training loop gets them: on the device if there is one."""
    is_copied = isinstance(loader, Loader) and device is not None and device.type == "cuda"
    while True:
        epoch = iter(loader)
        try:
            for batch in epoch:
                yield batch if device is None or is_copied else apply(batch, lambda t: t.to(device, non_blocking=True))
                del batch  # its memory is the Loader's again
        finally:
            # A DataLoader's iterator ends its processes when it is deleted, which a traceback could put off.
            end = getattr(epoch, "close", None) or getattr(epoch, "_shutdown_workers", None)
            if end is not None:
                end()
            del epoch


def _synchronize() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


@contextmanager
def _more_than_cores_on_purpose() -> Iterator[None]:
    """Silence the warnings of the Loader and torch about it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "num_threads=", UserWarning)
        warnings.filterwarnings("ignore", ".*worker processes", UserWarning)
        yield
