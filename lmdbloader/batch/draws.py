"""Draws: the random numbers of a transformed view, either new at every read or those of an epoch."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.batch.memory import in_shared_memory, shared_tensor
from lmdbloader.batch.pipeline import check_epoch, check_seed

I64 = npt.NDArray[np.int64]
# Items of the shared memory: the epoch, or NOT_SET; calls of `set_epoch`; samples read in one epoch before any call.
_EPOCH, _CALLS, _READS = range(3)
_NOT_SET = -1
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


class Draws:
    """The seed and the epoch of a view's random choices, shared with the views of that view and with worker processes.

    Without a seed, every read of a sample draws new numbers from torch's generator until an epoch is set. Otherwise a
    choice depends only on the seed, the epoch and the sample's number.

    Attributes:
        seed: Of the view; None if it has none.
    """

    def __init__(self, seed: int | None, length: int) -> None:
        """Start without an epoch.

        Args:
            seed: Of the view.
            length: Its number of samples.

        Raises:
            OptionError: The seed is not a whole number of 64 bits.
        """
        self.seed, self._length = None if seed is None else check_seed(seed), length
        self._share(shared_tensor(3 * 8).view(torch.int64).zero_())
        self._items[_EPOCH] = _NOT_SET

    def _share(self, memory: torch.Tensor) -> None:
        # An item of an array takes a tenth of the time of a tensor's.
        self._memory, self._items = memory, memory.numpy()

    def __getstate__(self) -> dict[str, Any]:
        return {"seed": self.seed, "length": self._length, "memory": self._memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.seed, self._length = state["seed"], state["length"]
        self._share(in_shared_memory(state["memory"]))  # a pickle has a copy, but another process may share it

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, also in worker processes that are running."""
        self._items[_EPOCH] = epoch
        self._items[_CALLS] += 1

    def begin(self, last: tuple[int, int] | None) -> tuple[int, int] | None:
        """Set the epoch for a new iteration of a DataLoader, unless every read draws new numbers.

        It is the epoch after that of the previous iteration, or the one that `set_epoch` has set since.

        Args:
            last: The result of `begin` for the previous iteration.

        Returns:
            The epoch, and the number of calls of `set_epoch` so far; None if every read draws new numbers.
        """
        epoch, calls = int(self._items[_EPOCH]), int(self._items[_CALLS])
        if epoch == _NOT_SET and self.seed is None:
            return None
        if last is not None and last[1] == calls:
            epoch = last[0] + 1
            self._items[_READS] = 0
        elif calls == 0:
            epoch = 0
        self._items[_EPOCH] = check_epoch(epoch)
        return epoch, calls

    @property
    def last_set(self) -> tuple[int, int] | None:
        """The epoch that `set_epoch` has set, and the number of its calls; None before any call."""
        epoch, calls = int(self._items[_EPOCH]), int(self._items[_CALLS])
        return (epoch, calls) if calls else None

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
        items = self._items
        epoch = int(items[_EPOCH])
        if epoch == _NOT_SET and self.seed is None:
            # A sample that comes twice in one read has two places there.
            places = numbers if len(numbers) == 1 else np.arange(len(numbers), dtype=np.int64)
            word = _word
            word.draw()
            return places, int(word.item)
        if items[_CALLS] == 0:
            items[_READS] += len(numbers)
            if items[_READS] > _PASSES * self._length:
                items[_READS] = _NEVER  # a second warning, in any process
                warnings.warn(
                    f"transformed(..., seed={self.seed}): {_PASSES} passes had the same random choices. Call "
                    "view.set_epoch(epoch) before each epoch, or leave out the seed for new choices at every read. If "
                    "the same choices are intended, call view.set_epoch(0) once.",
                    stacklevel=4,
                )
        return numbers, max(epoch, 0)
