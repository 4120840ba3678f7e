"""The random numbers of a transformed view: new at every read, or those of an epoch if it has a seed."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.batch.pipeline import check_epoch, check_seed
from lmdbloader.batch.shared_memory import in_shared_memory, shared_tensor

I64 = npt.NDArray[np.int64]
# Items of a view: the epoch of the last `set_epoch` and the number of that call, 0 before any; the epoch that a
# DataLoader has begun, and the number of the last call then; samples read in one epoch before any call. Those of
# the first view of a family also count the calls of all its views.
_SET, _CALL, _BEGUN, _SINCE, _READS, _CALLS = range(6)
_NEW_ITEMS = (0, 0, 0, -1, 0, 0)
# A count so low that no warning follows.
_NEVER = np.iinfo(np.int64).min
# Passes over a dataset with the same choices, without `set_epoch`, before there is a warning.
_PASSES = 4


class _Word(threading.local):
    """A tensor for each thread, into which torch draws: a new tensor for every draw would take three times as long.

    Attributes:
        draw: Draws a whole number of 63 bits from torch's random numbers.
        item: The number, a NumPy array ().
    """

    def __init__(self) -> None:
        tensor = torch.zeros((), dtype=torch.int64, device="cpu")
        self.draw, self.item = tensor.random_, tensor.numpy()


_word = _Word()


def drawn(numbers: I64) -> tuple[I64, int]:
    """Return what the random choices of a read of samples (n,) depend on: their places, and a number that torch draws.

    A sample that comes twice in one read has two places there.
    """
    word = _word
    word.draw()
    places = numbers if len(numbers) == 1 else np.arange(len(numbers), dtype=np.int64)
    return places, int(word.item)


class Draws:
    """The seed and the epoch of a view's random choices, in memory that worker processes share.

    A choice depends only on the seed, the epoch and the sample's number.

    Attributes:
        seed: Of the view.
    """

    def __init__(self, seed: int, length: int, *, view_of: Draws | None = None) -> None:
        """Start without an epoch.

        Args:
            seed: Of the view.
            length: Its number of samples.
            view_of: The draws of the view that this one was made from, whose `set_epoch` holds here too.

        Raises:
            OptionError: The seed is not a whole number of 64 bits.
        """
        self.seed, self._length = check_seed(seed), length
        # The views that this one was made from, the first of the family first.
        self._above: tuple[Draws, ...] = () if view_of is None else (*view_of._above, view_of)
        self._share(shared_tensor(len(_NEW_ITEMS) * 8).view(torch.int64))
        self._items[:] = _NEW_ITEMS

    def _share(self, memory: torch.Tensor) -> None:
        # An item of an array takes a tenth of the time of a tensor's.
        self._memory, self._items = memory, memory.numpy()

    def of_view(self, length: int) -> Draws:
        """Return the draws of a view with the same random choices, of so many samples, whose epoch is its own."""
        return Draws(self.seed, length, view_of=self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_items"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share(in_shared_memory(self._memory))  # a pickle has a copy, but another process may share it

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch here and for the views of this view, also in worker processes that are running."""
        calls = (self._above[0] if self._above else self)._items
        calls[_CALLS] += 1
        self._items[_SET] = epoch
        self._items[_CALL] = calls[_CALLS]

    def _last_call(self) -> tuple[int, int]:
        """Return the epoch of the last `set_epoch` that holds here, and the number of the call, 0 if there was none."""
        last = self._items
        for view in self._above:
            if view._items[_CALL] > last[_CALL]:
                last = view._items
        return int(last[_SET]), int(last[_CALL])

    def _now(self) -> tuple[int, int]:
        """Return the epoch of the next read, and the number of the last call."""
        epoch, call = self._last_call()
        return (int(self._items[_BEGUN]) if self._items[_SINCE] == call else epoch), call

    def begin(self, last: tuple[int, int] | None) -> tuple[int, int]:
        """Set the epoch for a new iteration of a DataLoader.

        It is the epoch after that of the previous iteration, or the one that `set_epoch` has set since.

        Args:
            last: The result of `begin` for the previous iteration.

        Returns:
            The epoch, and the number of the last call of `set_epoch`.
        """
        epoch, call = self._now()
        if last is not None and last[1] == call:
            epoch = last[0] + 1
            self._items[_READS] = 0
        elif call == 0:
            epoch = 0
        self._items[_BEGUN] = check_epoch(epoch)
        self._items[_SINCE] = call
        return epoch, call

    @property
    def last_set(self) -> tuple[int, int] | None:
        """The epoch that `set_epoch` has set, and the number of the call; None before any call."""
        epoch, call = self._last_call()
        return (epoch, call) if call else None

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Do not count reads, not even those of worker processes."""
        before = self._items.copy()
        self._items[_READS] = _NEVER
        try:
            yield
        finally:
            self._items[:] = before

    def of(self, numbers: I64) -> tuple[I64, int]:
        """Return the sample numbers (n,) and the epoch on which the random choices of a read of samples (n,) depend."""
        epoch, call = self._now()
        if call == 0:
            self._count(len(numbers))
        return numbers, epoch

    def _count(self, num_reads: int) -> None:
        """Count reads of samples without an epoch, and warn when there were many."""
        items = self._items
        items[_READS] += num_reads
        if items[_READS] > _PASSES * self._length:
            items[_READS] = _NEVER  # a second warning, in any process
            warnings.warn(
                f"transformed(..., seed={self.seed}): {_PASSES} passes had the same random choices. Call "
                "view.set_epoch(epoch) before each epoch, or leave out the seed for new choices at every read. If "
                "the same choices are intended, call view.set_epoch(0) once.",
                stacklevel=5,
            )
