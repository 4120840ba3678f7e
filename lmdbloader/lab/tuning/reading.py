"""Reads a dataset with some setting of a Loader or a DataLoader, as fast as batches come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Sampler

from lmdbloader.base.stopwatch import BatchTimes, time_batches
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.loader import Loader
from lmdbloader.loader.device import apply
from lmdbloader.loader.options import compiled_and_functions
from lmdbloader.loader.torch_loader import dataloader, unmoved

_DRAWN_AT_ONCE = 4096
# Of torch's DataLoader: batches that each worker is asked for ahead.
_PREFETCH_FACTOR = 2


@dataclass(frozen=True, slots=True, order=True)
class ReadSetting:
    """One way of reading; those that cost less come first.

    Attributes:
        kind: "threads" of a Loader, or "workers" of torch's DataLoader.
        count: How many; 0 workers means that the training loop reads itself.
        pinned: Whether the DataLoader's batches go through pinned memory.
    """

    kind: Literal["threads", "workers"]
    count: int
    pinned: bool = False

    def __str__(self) -> str:
        noun = self.kind[:-1] if self.count == 1 else self.kind
        who = "Loader" if self.kind == "threads" else "DataLoader"
        return f"{who}, {self.count} {noun}{', pinned' if self.pinned else ''}"


@dataclass(frozen=True, slots=True)
class OpenLoader:
    """A loader that is being read.

    Attributes:
        batches: Without end.
        per_round: Batches that arrive together: those of all threads or workers.
        ahead: Batches that may be ready before anybody asks.
    """

    batches: Iterator[Any]
    per_round: int
    ahead: int


@dataclass(frozen=True, slots=True)
class DatasetReading:
    """A dataset that is read with any setting.

    Attributes:
        dataset: The dataset, with at least one batch.
        batch_size: Samples in a batch.
        transforms: Of the Loader; its compiled ones are the dataset's own for the DataLoader.
        device: Where batches are copied to; None without an accelerator.
    """

    dataset: LMDBDataset
    batch_size: int
    transforms: Sequence[Any] = ()
    device: torch.device | None = None

    def take_turn(self, setting: ReadSetting, seconds: float, seed: int = 0) -> BatchTimes:
        """Read for some seconds, in whole rounds of batches, after those that were ready have been used up."""
        with self.open(setting, seed) as opened:
            for _ in range(opened.ahead):
                next(opened.batches)
            self._synchronize()
            return time_batches(
                opened.batches, seconds, lambda _: self.batch_size, per_round=opened.per_round,
                synchronize=self._synchronize,
            )  # fmt: skip

    @contextmanager
    def open(self, setting: ReadSetting, seed: int = 0) -> Iterator[OpenLoader]:
        """Start reading with a setting; its threads or workers end when this is left."""
        opening = self._open_loader if setting.kind == "threads" else self._open_dataloader
        with unmoved(self.dataset):
            opened, close = opening(setting, seed)
            try:
                yield opened
            finally:
                close()

    def _open_loader(self, setting: ReadSetting, seed: int) -> tuple[OpenLoader, Callable[[], None]]:
        device = self.device if self.device is not None and self.device.type == "cuda" else None
        loader = Loader(
            self.dataset, self.batch_size, order="random", transforms=self.transforms, num_threads=setting.count,
            device=device, drop_last=True,
        )  # fmt: skip
        loader.set_epoch(seed)
        batches = chain.from_iterable(iter(loader) for _ in count())
        at_once = loader.batches_at_once
        taken = batches if device is not None else self._copied(batches)
        return OpenLoader(taken, setting.count * at_once, loader.groups_ahead * at_once), loader.close

    def _open_dataloader(self, setting: ReadSetting, seed: int) -> tuple[OpenLoader, Callable[[], None]]:
        dataset = self.dataset
        compiled, _ = compiled_and_functions(self.transforms)
        if compiled:
            dataset = dataset.transformed(compiled)
        loader = dataloader(
            dataset,
            self.batch_size,
            sampler=_Draws(len(dataset), seed),
            num_workers=setting.count,
            pin_memory=setting.pinned,
            persistent_workers=False,
            # Of its own: measuring must not move the user's random state.
            generator=torch.Generator().manual_seed(seed),
        )
        held = [iter(loader)]

        def batches() -> Iterator[Any]:
            while held:
                yield next(held[0])

        # Workers end when their iterator is deleted.
        opened = OpenLoader(self._copied(batches()), max(setting.count, 1), _PREFETCH_FACTOR * setting.count + 1)
        return opened, held.clear

    def _copied(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return batches as a training loop gets them: on the accelerator if there is one."""
        device = self.device
        if device is None:
            return batches
        return (apply(batch, lambda tensor: tensor.to(device, non_blocking=True)) for batch in batches)

    def _synchronize(self) -> None:
        if self.device is not None and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class _Draws(Sampler[int]):
    """Sample numbers at random, without end: the start of an epoch is never timed."""

    def __init__(self, length: int, seed: int) -> None:
        self._length, self._seed = length, seed

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng(self._seed)
        while True:
            yield from rng.integers(self._length, size=_DRAWN_AT_ONCE).tolist()
