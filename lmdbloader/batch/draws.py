"""Draws: the random numbers of a transformed view, new at every read, or those of an epoch if it has a seed."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.batch.pipeline import check_epoch, check_seed
from lmdbloader.batch.shared_memory import in_shared_memory, shared_tensor

I64 = npt.NDArray[np.int64]
# Items of a row: the epoch of the last `set_epoch` and the number of that call, 0 before any; the epoch that a
# DataLoader has begun, and the number of the last call then; samples read in one epoch before any call. The row of the
# first view of a family also counts the calls of all its views.
_SET, _CALL, _BEGUN, _SINCE, _READS, _CALLS = range(6)
_NEW_ROW = (0, 0, 0, -1, 0, 0)
_ROWS = 64
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


class _Rows:
    """Rows of numbers in shared memory, one for each view; a file for each of many views would be too many open files.

    Attributes:
        items: (rows, items of a row) int64. An item of an array takes a tenth of the time of a tensor's.
    """

    def __init__(self) -> None:
        self._share(shared_tensor(_ROWS * len(_NEW_ROW) * 8).view(torch.int64).view(_ROWS, -1))
        # Another process that has this memory must not give out the same rows.
        self._free, self._process = list(range(_ROWS)), os.getpid()

    def _share(self, memory: torch.Tensor) -> None:
        self._memory, self.items = memory, memory.numpy()
        self._more: _Rows | None = None

    def __getstate__(self) -> torch.Tensor:
        return self._memory

    def __setstate__(self, memory: torch.Tensor) -> None:
        self._share(in_shared_memory(memory))  # a pickle has a copy, but another process may share it
        self._free, self._process = [], -1

    def take(self, view: Draws) -> tuple[_Rows, int]:
        """Return a row for as long as a view exists, of these or of additional ones, and its number."""
        if self._process == os.getpid():
            with suppress(IndexError):  # none is free
                number = self._free.pop()
                weakref.finalize(view, self._free.append, number).atexit = False
                self.items[number] = _NEW_ROW
                return self, number
        if self._more is None:
            self._more = _Rows()
        return self._more.take(view)


class Draws:
    """The seed and the epoch of a view's random choices, shared with worker processes.

    Without a seed, every read of a sample draws new numbers from torch's generator, whatever epoch is set. Otherwise a
    choice depends only on the seed, the epoch and the sample's number.

    Attributes:
        seed: Of the view; None if it has none.
    """

    def __init__(self, seed: int | None, length: int, *, view_of: Draws | None = None) -> None:
        """Start without an epoch.

        Args:
            seed: Of the view.
            length: Its number of samples.
            view_of: The draws of the view that this one was made from, whose `set_epoch` holds here too.

        Raises:
            OptionError: The seed is not a whole number of 64 bits.
        """
        self.seed, self._length = None if seed is None else check_seed(seed), length
        # The views that this one was made from, the first of the family first.
        self._above: tuple[Draws, ...] = () if view_of is None else (*view_of._above, view_of)
        self._row: tuple[_Rows, int] = (_Rows() if view_of is None else view_of._row[0]).take(self)
        self._find_items()

    def _find_items(self) -> None:
        rows, number = self._row
        self._items: I64 = rows.items[number]

    def of_view(self, length: int) -> Draws:
        """Return the draws of a view with the same random choices, of so many samples, whose epoch is its own."""
        return Draws(self.seed, length, view_of=self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_items"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._find_items()

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

    def begin(self, last: tuple[int, int] | None) -> tuple[int, int] | None:
        """Set the epoch for a new iteration of a DataLoader, unless every read draws new numbers.

        It is the epoch after that of the previous iteration, or the one that `set_epoch` has set since.

        Args:
            last: The result of `begin` for the previous iteration.

        Returns:
            The epoch, and the number of the last call of `set_epoch`; None if every read draws new numbers.
        """
        epoch, call = self._now()
        if self.seed is None:
            return None
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
        if self.seed is None:
            # A sample that comes twice in one read has two places there.
            places = numbers if len(numbers) == 1 else np.arange(len(numbers), dtype=np.int64)
            word = _word
            word.draw()
            return places, int(word.item)
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
