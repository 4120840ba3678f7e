"""Orders of batches that a user gives: lists of sample numbers, or an object with the protocol of torch's samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from lmdbloader.base.arguments import shown
from lmdbloader.base.text import counted
from lmdbloader.batch.many import Ticket, rebuilt
from lmdbloader.errors import OptionError
from lmdbloader.loader.choices import numbers_of, with_occurrences
from lmdbloader.loader.orders import BatchOrders, EpochOrder, Layout, Orders, in_batches
from lmdbloader.store.rows import digest_of

I64 = npt.NDArray[np.int64]
# Epochs whose batches are kept: the current one and the next.
_KEPT_EPOCHS = 2
# More samples in an epoch, and times those of the dataset, come from an iteration without an end.
_MOST_SAMPLES, _MOST_TIMES = 10**7, 1000


def batch_orders_of(num_samples: int, given: Any, classes: Callable[[str], Any] | None) -> BatchOrders:
    """Return the orders of a Loader's `batch_sampler`; `classes` returns the samples of each class of the dataset.

    Raises:
        OptionError: It is not a batch sampler, or does not suit the dataset.
    """
    if isinstance(given, BatchOrders):  # of another Loader, of which a copy is made
        return given
    from lmdbloader.loader.classes import ClassBatches, ClassOrders

    if isinstance(given, ClassBatches):
        assert classes is not None
        return ClassOrders(classes(f"batch_sampler={given}"), given)
    return GivenBatches(num_samples, given)


def check_alone(others: Mapping[str, Any]) -> None:
    """Raise OptionError if another argument of a Loader, that is not None, makes the batches too, as torch does."""
    given = [f"{name}={shown(value)}" for name, value in others.items() if value is not None]
    if given:
        raise OptionError(f"batch_sampler, {', '.join(given)}: a batch sampler makes the batches. Leave the rest out.")


class GivenBatches(BatchOrders):
    """The batches of a list, or of an object that is iterated once for each epoch."""

    follow_the_seed = False

    def __init__(self, num_samples: int, given: Any) -> None:
        """Check a list, which is copied; an object is iterated when its batches are needed. Errors as `_read`."""
        self._count, self.shown = num_samples, given
        self.options = {"batch_sampler": self}  # a copy of a Loader in the middle of an epoch has the same batches
        self._kept: dict[int, tuple[I64, I64]] = {}
        self._parts: list[Any] = [given, getattr(given, "sampler", None)]
        self.shards = any(hasattr(part, "num_replicas") for part in self._parts)
        self.changes = not isinstance(given, list | tuple | range | np.ndarray | torch.Tensor)
        is_iterable = isinstance(given, Iterable) and not isinstance(given, type | str | bytes)
        if self.changes and (not is_iterable or isinstance(given, Iterator)):
            raise OptionError(
                f"batch_sampler={shown(given)}: expected a list of lists of sample numbers, an object that gives such "
                "lists whenever it is iterated, or ClassBatches(...). Of what is iterated once, write list(...)."
            )
        size = getattr(given, "batch_size", None)
        if not self.changes:
            counts = self.counts(0)
            size, self.shown = int(counts.max(initial=1)), f"a list of {counted(len(counts), 'batch', 'batches')}"
        self.batch_size = max(size if isinstance(size, int) else 1, 1)

    def among(self, world_size: int) -> Orders:
        if world_size > 1 and self.shards:
            raise OptionError(
                f"batch_sampler={shown(self.shown)} gives each process its own share, of which `shard` would take a "
                "share again. Leave shard out."
            )
        random = RandomSampler, SubsetRandomSampler, WeightedRandomSampler
        if world_size > 1 and any(isinstance(part, random) and part.generator is None for part in self._parts):
            raise OptionError(
                f"batch_sampler={shown(self.shown)} would draw another order in each process. Give its sampler "
                "generator=torch.Generator().manual_seed(0), or write Loader(..., shuffle=True, shard=...)."
            )
        return self

    def length(self, epoch: int) -> int:
        # As torch: it is iterated only if there is no other way.
        is_short = self.changes and epoch not in self._kept and hasattr(self.shown, "__len__")
        return len(self.shown if is_short else self.counts(epoch))

    def counts(self, epoch: int) -> I64:
        return np.diff(self._batches(epoch)[1])

    def of(self, epoch: int, layout: Layout, seed: int) -> EpochOrder:
        return in_batches(*self._batches(epoch))

    def text(self, epoch: int, layout: Layout) -> str:
        draws, bounds = self._batches(epoch)
        return f"batches {digest_of(bounds)} of {digest_of(draws)}"

    def _batches(self, epoch: int) -> tuple[I64, I64]:
        """Return the draws (n,) of an epoch, and the bounds (b + 1,) of its batches."""
        key = epoch if self.changes else 0
        if key not in self._kept:
            for part in [part for part in self._parts if hasattr(part, "set_epoch")][:1]:
                part.set_epoch(epoch)
            while len(self._kept) >= _KEPT_EPOCHS:
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = _read(self._parts[0], self._count)
        return self._kept[key]


def _read(given: Iterable[Any], num_samples: int) -> tuple[I64, I64]:
    """Return the draws and the bounds of batches.

    Raises:
        OptionError: They are no lists of sample numbers, one is empty, or they have no end.
    """
    numbers: list[Any] = []
    bounds = [0]
    for batch in given:
        if isinstance(batch, Ticket):
            raise rebuilt("chooses among its batches")
        values: Any = batch.tolist() if isinstance(batch, np.ndarray | torch.Tensor) else batch
        if not isinstance(values, Sequence) or isinstance(values, str | bytes) or not len(values):
            raise OptionError(
                f"batch_sampler: batch {len(bounds) - 1} is {shown(batch)}; expected a list of at least one sample "
                "number. A flat list is an order: Loader(dataset, batch_size, order=[...])."
            )
        numbers.extend(values)
        bounds.append(len(numbers))
        if len(numbers) > max(_MOST_TIMES * num_samples, _MOST_SAMPLES):
            raise OptionError(
                f"batch_sampler: more than {bounds[-2]:,} samples in an epoch, and no end. Write "
                "batch_sampler=list(itertools.islice(sampler, num_batches))."
            )
    draws = with_occurrences(numbers_of(numbers, num_samples, "batch_sampler"), num_samples)
    return draws, np.array(bounds, np.int64)
