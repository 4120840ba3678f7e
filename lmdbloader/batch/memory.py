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


def _count_references(rooms: list[npt.NDArray[Any]], number: int) -> int:
    return sys.getrefcount(rooms[number])


def _free_count() -> int:
    """Return the count of memory that only a list and its own view refer to; it depends on the version of Python."""
    rooms = [np.empty(1, np.uint8)]
    _view = rooms[0][:]
    return _count_references(rooms, 0)


_FREE = _free_count()


class _Kept:
    """The memory of one process and its views, by (batches, images of a batch); `next` follows the one taken last."""

    __slots__ = ("by_size", "lock", "next", "process")

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        # Of each size the rooms, and for each room its array (batches, images, *shape) and the batches' addresses.
        self.by_size: dict[tuple[int, int], tuple[list[npt.NDArray[Any]], list[tuple[npt.NDArray[Any], list[int]]]]]
        self.by_size = {}
        self.next = 0


class BatchMemory:
    """Memory for the batches of one image field, used again; safe from several threads and across forks.

    A tensor that was given out refers to the memory of the batches that were taken with it, and so does every view of
    it. Memory that only this object refers to is therefore free. No copy to an accelerator reads it then: by the time
    that a copy from memory that is not pinned has been started, also with `non_blocking=True`, CUDA has read it or put
    it aside.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, keep: int) -> None:
        """Start with no memory.

        Args:
            shape: Of one image in memory.
            dtype: Of its values.
            keep: How often memory of one size can be in use and is still kept.
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
        num_batches = max(-(-count // batch_size), 1)
        if num_batches == 1:
            batch_size = count
        with kept.lock:
            array, addresses = self._free(kept, num_batches, batch_size)
            batches = list(array)
        if num_batches * batch_size != count:  # torch saves a part of a tensor with the rest of it
            batches[-1] = batches[-1][: count - num_batches * batch_size]
        return list(map(torch.from_numpy, batches)), addresses

    def _free(self, kept: _Kept, num_batches: int, batch_size: int) -> tuple[npt.NDArray[Any], list[int]]:
        """Return an array (num_batches, batch_size, *shape) that nobody uses, and the addresses of the batches."""
        size = num_batches, batch_size
        rooms, arrays = kept.by_size.pop(size, ([], []))
        if len(kept.by_size) >= _MOST_SIZES:  # the one that was not used for the longest time is the first
            del kept.by_size[next(iter(kept.by_size))]
        kept.by_size[size] = rooms, arrays
        total = len(rooms)
        # A few large ones: start at the first, so that few are in use and stay in the processor's caches.
        # Many small ones: the next is most likely free.
        first = kept.next if total > _FEW else 0
        for number in chain(range(first, total), range(min(first, total))):
            if _count_references(rooms, number) == _FREE:
                kept.next = number + 1
                return arrays[number]
        room = self._allocate(num_batches * self._step(batch_size))
        if total >= self._keep:  # the oldest is in use, perhaps for long
            del rooms[0], arrays[0]
        rooms.append(room)
        arrays.append(self._arranged(room, num_batches, batch_size))
        return arrays[-1]

    def _step(self, batch_size: int) -> int:
        return -(-batch_size * self._nbytes // _ALIGNMENT) * _ALIGNMENT

    def _allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        return np.empty(nbytes + _ALIGNMENT, np.uint8)

    def _arranged(
        self, room: npt.NDArray[np.uint8], num_batches: int, batch_size: int
    ) -> tuple[npt.NDArray[Any], list[int]]:
        address: int = room.__array_interface__["data"][0]
        start, step = -address % _ALIGNMENT, self._step(batch_size)
        rows = room[start : start + num_batches * step].reshape(num_batches, step)[:, : batch_size * self._nbytes]
        array = rows.view(self._dtype).reshape(num_batches, batch_size, *self._shape)
        return array, [address + start + step * number for number in range(num_batches)]


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
