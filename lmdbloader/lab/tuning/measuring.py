"""One short turn of a Loader or a DataLoader with some setting: batches taken as fast as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.lab.tuning.race import Setting, Turn
from lmdbloader.loader import Loader
from lmdbloader.loader.device import apply
from lmdbloader.loader.options import compiled_and_functions
from lmdbloader.loader.torch_loader import dataloader

_DRAWN_AT_ONCE = 4096
# Of torch's DataLoader: batches that each worker is asked for ahead.
_PREFETCH_FACTOR = 2


@dataclass(frozen=True, slots=True)
class Opened:
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
class Measurer:
    """Reads a dataset with any setting.

    Attributes:
        dataset: What is read, a batch at least.
        batch_size: Samples in a batch.
        transforms: Of the Loader; its compiled ones are the dataset's own for the DataLoader.
        device: Where batches are copied to; None where there is no accelerator.
        turn_seconds: How long a turn is, in whole rounds of batches.
    """

    dataset: Dataset[Any]
    batch_size: int
    transforms: Sequence[Any] = ()
    device: torch.device | None = None
    turn_seconds: float = 0.25

    def __call__(self, setting: Setting, number: int) -> Turn:
        """Measure one turn, with an order of its own."""
        with self.open(setting, number) as opened:
            for _ in range(opened.ahead):
                next(opened.batches)  # starting is over, and nothing that was ready is counted
            self._synchronize()
            latencies: list[float] = []
            began = before = time.perf_counter()
            # Whole rounds: the batches of all threads arrive at once, and a part of them would count for too much.
            while before - began < self.turn_seconds:
                for last in range(opened.per_round - 1, -1, -1):
                    next(opened.batches)
                    if not last:
                        self._synchronize()
                    now = time.perf_counter()
                    latencies.append(now - before)
                    before = now
            return Turn(len(latencies) * self.batch_size, before - began, tuple(latencies))

    @contextmanager
    def open(self, setting: Setting, number: int) -> Iterator[Opened]:
        """Start reading with a setting; its threads or workers end when this is left."""
        opening = self._open_loader if setting.kind == "threads" else self._open_dataloader
        opened, close = opening(setting, number)
        try:
            yield opened
        finally:
            close()

    def _open_loader(self, setting: Setting, number: int) -> tuple[Opened, Callable[[], None]]:
        assert isinstance(self.dataset, LMDBDataset)
        device = self.device if self.device is not None and self.device.type == "cuda" else None
        loader = Loader(
            self.dataset,
            self.batch_size,
            transforms=self.transforms,
            num_threads=setting.count,
            device=device,
            drop_last=True,
        )
        loader.set_epoch(number)
        batches = chain.from_iterable(iter(loader) for _ in count())
        at_once = loader.batches_at_once
        ahead = (setting.count + loader.prefetch) * at_once
        taken = batches if device is not None else self._copied(batches)
        return Opened(taken, setting.count * at_once, ahead), loader.close

    def _open_dataloader(self, setting: Setting, number: int) -> tuple[Opened, Callable[[], None]]:
        dataset = self.dataset
        compiled, _ = compiled_and_functions(self.transforms)
        if compiled:
            assert isinstance(dataset, LMDBDataset)
            dataset = dataset.transformed(compiled)
        loader = dataloader(
            dataset,
            self.batch_size,
            sampler=_Draws(len(dataset), number),  # type: ignore[arg-type]
            num_workers=setting.count,
            pin_memory=setting.pinned,
            persistent_workers=False,
            # Of its own: measuring must not move the user's random state.
            generator=torch.Generator().manual_seed(number),
        )
        held = [iter(loader)]

        def batches() -> Iterator[Any]:
            while held:
                yield next(held[0])

        # Workers end when their iterator is deleted.
        opened = Opened(self._copied(batches()), max(setting.count, 1), _PREFETCH_FACTOR * setting.count + 1)
        return opened, held.clear

    def _copied(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return batches as a training loop has them: on the accelerator where there is one."""
        device = self.device
        if device is None:
            return batches
        return (apply(batch, lambda tensor: tensor.to(device, non_blocking=True)) for batch in batches)

    def _synchronize(self) -> None:
        if self.device is not None and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class _Draws(Sampler[int]):
    """Sample numbers at random, without end: what is timed is never the start of an epoch."""

    def __init__(self, length: int, seed: int) -> None:
        self._length, self._seed = length, seed

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng(self._seed)
        while True:
            yield from rng.integers(self._length, size=_DRAWN_AT_ONCE).tolist()
