"""Memory for batches, used again as soon as nobody refers to it."""

from __future__ import annotations

import sys
import threading

import numpy as np
import numpy.typing as npt

# Fresh memory costs a page fault for every 4 KiB, about as much as filling it; smaller buffers are not worth keeping.
_SMALLEST_NBYTES = 64 * 1024
_KEPT = 4


def _count_references(buffers: list[npt.NDArray[np.uint8]], number: int) -> int:
    return sys.getrefcount(buffers[number])


# What the list and the looking itself count for; it differs between versions of Python.
_FREE = _count_references([np.empty(0, np.uint8)], 0)


class Buffers(threading.local):
    """A few buffers for each thread; it pickles and copies as an empty one.

    A buffer is given out again only when no array, tensor or view of it is left, so a batch that somebody still holds
    never changes.

    >>> buffers = Buffers()
    >>> first = buffers.take(100_000)
    >>> buffers.take(100_000) is first  # still held
    False
    """

    def __init__(self) -> None:
        self._kept: list[npt.NDArray[np.uint8]] = []

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return Buffers, ()

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return a buffer (nbytes,) uint8 with anything in it."""
        if nbytes < _SMALLEST_NBYTES:
            return np.empty(nbytes, np.uint8)
        for number in range(len(self._kept)):
            # Not much larger either: a small batch held for long must not hold the memory of a large one.
            if _count_references(self._kept, number) == _FREE and nbytes <= self._kept[number].size <= 2 * nbytes:
                return self._kept[number][:nbytes]
        fresh = np.empty(nbytes, np.uint8)
        self._kept.append(fresh)
        if len(self._kept) > _KEPT:
            del self._kept[0]
        return fresh[:]
