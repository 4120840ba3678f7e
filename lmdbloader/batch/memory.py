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


def batch_sizes(count: int, batch_size: int) -> list[int]:
    """Return how many of `count` images each batch has; there is at least one batch.

    >>> batch_sizes(10, 4), batch_sizes(0, 4)
    ([4, 4, 2], [0])
    """
    return [min(batch_size, count - first) for first in range(0, max(count, 1), batch_size)]


def _are_free(group: list[npt.NDArray[Any]]) -> bool:
    """Return whether nothing but the group refers to its arrays."""
    return all(map(_FREE.__ge__, map(sys.getrefcount, group)))


def _free_count() -> int:
    """Return the count of an array that only a list refers to, as `_are_free` sees it; it depends on the Python."""
    return next(map(sys.getrefcount, [np.empty(0, np.uint8)]))


_FREE = _free_count()


class _Kept:
    """The groups of arrays of one process, by (images, images of a batch); `next` follows the one taken last."""

    __slots__ = ("by_size", "lock", "next", "process")

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        # Of each size the groups, and the addresses of their arrays.
        self.by_size: dict[tuple[int, int], tuple[list[list[npt.NDArray[Any]]], list[list[int]]]] = {}
        self.next = 0


class BatchMemory:
    """Memory for the batches of one image field, used again; safe from several threads and across forks.

    A tensor that was given out refers to its array, and so does every view of it. An array that only this object
    refers to is therefore free. No copy to an accelerator reads it then: by the time that a copy from memory that is
    not pinned has been started, also with `non_blocking=True`, CUDA has read it or put it aside.

    Batches that are read together take a group of arrays, which is used again when all of them are free.

    Attributes:
        rooms: Memory that is shared with batches of other shapes, or None: nothing is kept here if it is.
    """

    rooms: Rooms | None = None

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, keep: int) -> None:
        """Start with no memory.

        Args:
            shape: Of one image in memory.
            dtype: Of its values.
            keep: The most groups of one size to keep.
        """
        self._shape, self._dtype, self._keep = shape, dtype, keep
        self._nbytes = math.prod(shape) * dtype.itemsize
        self._torch_dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        self._kept = _Kept()

    def take(self, count: int, batch_size: int) -> tuple[list[torch.Tensor], list[int]]:
        """Return tensors (batch_size, *shape) with arbitrary values for `count` images, and their addresses.

        The last tensor may be shorter; there is at least one.
        """
        kept = self._kept
        if kept.process != os.getpid():  # a thread of the parent may have held the lock during the fork
            kept = self._kept = _Kept()
        with kept.lock:
            group, addresses = self._free(kept, count, batch_size)
            return list(map(torch.from_numpy, group)), addresses

    def _free(self, kept: _Kept, count: int, batch_size: int) -> tuple[list[npt.NDArray[Any]], list[int]]:
        """Return a group of arrays that nobody uses, and their addresses."""
        if self.rooms is not None:
            return self._new(count, batch_size)
        groups, addresses = kept.by_size.pop((count, batch_size), ([], []))
        if len(kept.by_size) >= _MOST_SIZES:  # the one that was not used for the longest time is the first
            del kept.by_size[next(iter(kept.by_size))]
        kept.by_size[count, batch_size] = groups, addresses
        total = len(groups)
        # A few large ones: start at the first, so that few are in use and stay in the processor's caches.
        # Many small ones: the next is most likely free.
        first = kept.next if total > _FEW else 0
        for number in chain(range(first, total), range(min(first, total))):
            if _are_free(groups[number]):
                kept.next = number + 1
                return groups[number], addresses[number]
        if total >= self._keep:  # the oldest is in use, perhaps for long
            del groups[0], addresses[0]
        group, places = self._new(count, batch_size)
        groups.append(group)
        addresses.append(places)
        return group, places

    def _new(self, count: int, batch_size: int) -> tuple[list[npt.NDArray[Any]], list[int]]:
        group = [self._allocate(size) for size in batch_sizes(count, batch_size)]
        return group, [array.__array_interface__["data"][0] for array in group]

    def _allocate(self, count: int) -> npt.NDArray[Any]:
        nbytes = count * self._nbytes
        room = np.empty(nbytes + _ALIGNMENT, np.uint8) if self.rooms is None else self.rooms.take(nbytes + _ALIGNMENT)
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

    def take(self, count: int, batch_size: int) -> tuple[list[torch.Tensor], list[int]]:
        """Return tensors as those of BatchMemory, and their addresses; each has memory of its own."""
        if self._process != os.getpid():
            return super().take(count, batch_size)
        tensors = [
            torch.empty((size, *self._shape), dtype=self._torch_dtype, device="cpu", pin_memory=True)
            for size in batch_sizes(count, batch_size)
        ]
        return tensors, [tensor.data_ptr() for tensor in tensors]


class Rooms:
    """Memory that batches of several shapes use in turns; safe from several threads and across forks.

    A room that only this object refers to is free, as the arrays of `BatchMemory`.
    """

    def __init__(self, keep: int) -> None:
        """Start with no memory; at most `keep` rooms are kept."""
        self._keep, self._kept, self._nbytes = keep, _Kept(), 0
        self._rooms: list[npt.NDArray[Any]] = []

    def take(self, nbytes: int) -> npt.NDArray[Any]:
        """Return a room of at least so many bytes that nobody uses."""
        if self._kept.process != os.getpid():  # see `BatchMemory.take`
            self._kept, self._rooms = _Kept(), []
        with self._kept.lock:
            free = [number for number, count in enumerate(map(sys.getrefcount, self._rooms)) if count <= _FREE]
            if nbytes > self._nbytes:
                self._nbytes, self._rooms = nbytes, []
            elif free:
                return self._rooms[free[0]]
            # As large as any before: what is not written takes no memory. The oldest is in use for long.
            self._rooms = [*self._rooms, np.empty(self._nbytes, np.uint8)][-self._keep :]
            return self._rooms[-1]

    def memory(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, keep: int) -> BatchMemory:
        """Return the memory of batches of one shape."""
        memory = BatchMemory(shape, dtype, keep=keep)
        memory.rooms = self
        return memory
