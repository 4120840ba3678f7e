"""The memory of batches: used again when it is free, or pinned for a device."""

from __future__ import annotations

import math
import os
import sys
import threading
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_MOST_SIZES = 8
# Vector instructions write whole cache lines.
_ALIGNMENT = 64
_FEW = 8


def _count_references(arrays: list[npt.NDArray[Any]], number: int) -> int:
    return sys.getrefcount(arrays[number])


# The count of an array that only the list refers to; it depends on the version of Python.
_FREE = _count_references([np.empty(0, np.uint8)], 0)


class _Kept:
    """The arrays of one process and their addresses, by the number of images; `next` follows the one taken last."""

    __slots__ = ("by_count", "lock", "next", "process")

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.by_count: dict[int, tuple[list[npt.NDArray[Any]], list[int]]] = {}
        self.next = 0


class BatchMemory:
    """Memory for the batches of one image field, used again; safe from several threads and across forks.

    A tensor that was given out refers to its array, and so does every view of it. An array that only this object
    refers to is therefore free. No copy to an accelerator reads it then: by the time that a copy from memory that is
    not pinned has been started, also with `non_blocking=True`, CUDA has read it or put it aside.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, keep: int) -> None:
        """Start with no memory.

        Args:
            shape: Of one image in memory.
            dtype: Of its values.
            keep: The most arrays of one size to keep.
        """
        self._shape, self._dtype, self._keep = shape, dtype, keep
        self._nbytes = math.prod(shape) * dtype.itemsize
        self._torch_dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        self._kept = _Kept()

    def take(self, count: int) -> tuple[torch.Tensor, int]:
        """Return a tensor (count, *shape) with arbitrary values, and its address."""
        kept = self._kept
        if kept.process != os.getpid():  # a thread of the parent may have held the lock during the fork
            kept = self._kept = _Kept()
        with kept.lock:
            arrays, addresses = kept.by_count.pop(count, ([], []))
            if len(kept.by_count) >= _MOST_SIZES:  # the one that was not used for the longest time is the first
                del kept.by_count[next(iter(kept.by_count))]
            kept.by_count[count] = arrays, addresses
            total = len(arrays)
            # A few large arrays: start at the first, so that few are in use and stay in the processor's caches.
            # Many small ones: the next is most likely free.
            first = kept.next if total > _FEW else 0
            for number in chain(range(first, total), range(min(first, total))):
                if _count_references(arrays, number) == _FREE:
                    kept.next = number + 1
                    return torch.from_numpy(arrays[number]), addresses[number]
            fresh = self._allocate(count)
            address: int = fresh.__array_interface__["data"][0]
            if total >= self._keep:  # the oldest is in use, perhaps for long
                del arrays[0], addresses[0]
            arrays.append(fresh)
            addresses.append(address)
            return torch.from_numpy(fresh), address

    def _allocate(self, count: int) -> npt.NDArray[Any]:
        nbytes = count * self._nbytes
        room = np.empty(nbytes + _ALIGNMENT, np.uint8)
        start = -room.__array_interface__["data"][0] % _ALIGNMENT
        return room[start : start + nbytes].view(self._dtype).reshape(count, *self._shape)


class PinnedMemory(BatchMemory):
    """Page-locked memory for a Loader's batches; safe from several threads and across forks.

    Each tensor comes from torch's caching host allocator and goes back to it. A copy with `non_blocking=True` still
    reads its source when nothing refers to it any more. Python cannot see that, but the allocator can: torch marks the
    memory that a copy reads, also through a view, and the allocator waits for the copies of all streams. So the
    tensors are the allocator's own, not tensors around its memory, and none is kept here.

    CUDA does not work in a forked child, which gets memory that is not pinned.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, keep: int) -> None:
        """Start with no memory; the arguments are those of BatchMemory, `keep` is for a forked child."""
        super().__init__(shape, dtype, keep=keep)
        self._process = os.getpid()

    def take(self, count: int) -> tuple[torch.Tensor, int]:
        """Return a tensor (count, *shape) with arbitrary values, and its address."""
        if self._process != os.getpid():
            return super().take(count)
        tensor = torch.empty((count, *self._shape), dtype=self._torch_dtype, device="cpu", pin_memory=True)
        return tensor, tensor.data_ptr()
