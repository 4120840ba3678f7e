"""Memory for batches, used again as soon as nobody refers to it."""

from __future__ import annotations

import sys
import threading

import numpy as np
import numpy.typing as npt
import torch

# Fresh memory costs a page fault for every 4 KiB, about as much as filling it; smaller buffers are not worth keeping.
_SMALLEST_NBYTES = 64 * 1024
_KEPT_SIZES = 8
_KEPT_EACH = 3


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
        # Batches repeat: buffers of the very size that is asked for, by size.
        self._kept: dict[int, list[npt.NDArray[np.uint8]]] = {}

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return Buffers, ()

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return a buffer (nbytes,) uint8 with anything in it."""
        if nbytes < _SMALLEST_NBYTES:
            return np.empty(nbytes, np.uint8)
        same = self._kept.get(nbytes)
        if same is None:
            if len(self._kept) >= _KEPT_SIZES:
                del self._kept[next(iter(self._kept))]
            same = self._kept[nbytes] = []
        for number in range(len(same)):
            if _count_references(same, number) == _FREE:
                return same[number][:]
        fresh = np.empty(nbytes, np.uint8)
        same.append(fresh)
        if len(same) > _KEPT_EACH:
            del same[0]
        return fresh[:]

    def take_tensor(self, nbytes: int) -> torch.Tensor:
        """Return a buffer as a tensor (nbytes,) uint8."""
        return torch.from_numpy(self.take(nbytes))
