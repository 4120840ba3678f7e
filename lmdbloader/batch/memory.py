"""The memory of batches: reused as soon as nothing refers to it and no copy reads it, and not before."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

# Vector instructions write whole cache lines.
_ALIGNMENT = 64
_FEW = 8


def _count_references(arrays: list[npt.NDArray[Any]], number: int) -> int:
    return sys.getrefcount(arrays[number])


# What the list and the looking itself count for; it differs between versions of Python.
_FREE = _count_references([np.empty(0, np.uint8)], 0)


class _Kept:
    """What one process keeps."""

    __slots__ = ("addresses", "arrays", "lock", "next", "process")

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.arrays: list[npt.NDArray[Any]] = []
        self.addresses: list[int] = []
        self.next = 0


class BatchMemory:
    """Arrays of one shape for the batches of one field, safe from several threads and across forks.

    A tensor that is given out refers to its array, as does every view of it; so an array that only this object refers
    to belongs to no batch any more. No copy to an accelerator reads it then: CUDA has read memory that is not pinned,
    or put it aside, by the time a copy from it has been started, also with `non_blocking=True`.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, keep: int) -> None:
        """Start with nothing.

        Args:
            shape, dtype: Of every array.
            keep: How many arrays to keep for later at most.
        """
        self._shape, self._dtype, self._keep = shape, dtype, keep
        self._kept = _Kept()

    def take(self) -> tuple[torch.Tensor, int]:
        """Return a tensor with anything in it, and its address."""
        kept = self._kept
        if kept.process != os.getpid():  # a thread of the parent's may have been in the middle of this
            kept = self._kept = _Kept()
        arrays = kept.arrays
        with kept.lock:
            count = len(arrays)
            # From the first where there are few: the fewer go round, the more of them the processor still has in its
            # caches. Of many small ones the next is most likely free.
            first = kept.next if count > _FEW else 0
            for number in (*range(first, count), *range(min(first, count))):
                if _count_references(arrays, number) == _FREE:
                    kept.next = number + 1
                    return torch.from_numpy(arrays[number]), kept.addresses[number]
            fresh = self._allocate()
            address: int = fresh.__array_interface__["data"][0]
            if count >= self._keep:  # the oldest is somebody's, perhaps for long
                del arrays[0], kept.addresses[0]
            arrays.append(fresh)
            kept.addresses.append(address)
            return torch.from_numpy(fresh), address

    def _allocate(self) -> npt.NDArray[Any]:
        nbytes = int(np.prod(self._shape)) * self._dtype.itemsize
        room = np.empty(nbytes + _ALIGNMENT, np.uint8)
        start = -room.__array_interface__["data"][0] % _ALIGNMENT
        return room[start : start + nbytes].view(self._dtype).reshape(self._shape)


class PinnedMemory:
    """Page-locked tensors of one shape for the batches of one field, safe from several threads and across forks.

    Every one is fresh from torch's caching host allocator and goes back to it by itself. A copy with
    `non_blocking=True` reads on when nobody refers to its source any more. Python cannot see it; that allocator can: a
    copy that torch starts marks the memory of its source, also of a view of it, and the allocator gives that out again
    when the copies are done, on whatever streams they are. So tensors are its own, not ones around its memory, and
    none is kept here. It keeps the memory, which makes the next tensor of the size cheap, and begins each on a page.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, keep: int) -> None:
        """Start with nothing.

        Args:
            shape, dtype: Of every tensor.
            keep: How many arrays a forked child keeps, which has memory that is not pinned: CUDA does not work in it.
        """
        self._shape, self._dtype = shape, torch.from_numpy(np.empty(0, dtype)).dtype
        self._process = os.getpid()
        self._of_child = BatchMemory(shape, dtype, keep=keep)

    def take(self) -> tuple[torch.Tensor, int]:
        """Return a tensor with anything in it, and its address."""
        if self._process != os.getpid():
            return self._of_child.take()
        tensor = torch.empty(self._shape, dtype=self._dtype, device="cpu", pin_memory=True)
        return tensor, tensor.data_ptr()


def never_free(value: Any) -> None:
    """Keep something as long as the process is there.

    To free pinned memory takes the allocator's locks. In a forked child one of them may be taken for ever: by a thread
    of the parent's, at the moment of the fork.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
