"""The memory of batches, used again when it is free."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_MOST_SIZES = 8
# Vector instructions write whole cache lines.
ALIGNMENT = 64
_FEW = 8
# The shape of one image in memory, and the type of its values.
Images = tuple[tuple[int, ...], np.dtype[Any]]
# What `FieldMemories.take` returns.
Taken = tuple[list[list[torch.Tensor]], npt.NDArray[np.int64], Sequence[tuple[torch.Tensor, int]]]


def batch_sizes(count: int, batch_size: int) -> list[int]:
    """Return how many of `count` images each batch has; there is at least one batch.

    >>> batch_sizes(10, 4), batch_sizes(0, 4)
    ([4, 4, 2], [0])
    """
    return [min(batch_size, count - first) for first in range(0, max(count, 1), batch_size)]


def _are_free(group: list[npt.NDArray[Any]]) -> bool:
    """Return whether nothing but the group refers to its arrays."""
    return all(map(FREE.__ge__, map(sys.getrefcount, group)))


def _free_count() -> int:
    """Return the count of an array that only a list refers to, as `_are_free` sees it; it depends on the Python."""
    return next(map(sys.getrefcount, [np.empty(0, np.uint8)]))


FREE = _free_count()


class Kept:
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

    rooms: Any = None

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
        self._kept = Kept()

    def take(self, count: int, batch_size: int) -> tuple[list[torch.Tensor], list[int]]:
        """Return tensors (batch_size, *shape) with arbitrary values for `count` images, and their addresses.

        The last tensor may be shorter; there is at least one.
        """
        kept = self._kept
        if kept.process != os.getpid():  # a thread of the parent may have held the lock during the fork
            kept = self._kept = Kept()
        with kept.lock:
            group, addresses = self._free(kept, count, batch_size)
            return list(map(torch.from_numpy, group)), addresses

    def _free(self, kept: Kept, count: int, batch_size: int) -> tuple[list[npt.NDArray[Any]], list[int]]:
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
        room = np.empty(nbytes + ALIGNMENT, np.uint8) if self.rooms is None else self.rooms.take(nbytes + ALIGNMENT)
        start = -room.__array_interface__["data"][0] % ALIGNMENT
        return room[start : start + nbytes].view(self._dtype).reshape(count, *self._shape)


class FieldMemories:
    """Memory for the batches of several image fields, a kind of `BatchMemory` for each."""

    def __init__(self, kind: Callable[..., BatchMemory], images: Sequence[Images], *, keep: int) -> None:
        """Start with no memory; `keep` is the most groups of one size to keep."""
        self._memories = [kind(shape, dtype, keep=keep) for shape, dtype in images]

    def take(self, count: int, batch_size: int) -> Taken:
        """Return memory with arbitrary values for `count` images of each field.

        Returns:
            For each field the tensors of the batches, (batch_size, *shape), the last may be shorter; their addresses,
            (batches, fields) int64; and the one allocation of each batch with the bytes of its images, or none.
        """
        found = [memory.take(count, batch_size) for memory in self._memories]
        num_batches = len(found[0][1]) if found else len(batch_sizes(count, batch_size))
        addresses = np.empty((num_batches, len(found)), np.int64)
        for f, (_, places) in enumerate(found):
            addresses[:, f] = places
        return [tensors for tensors, _ in found], addresses, ()
