"""Other kinds of memory for batches: pinned for a device, or shared by batches of several shapes."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.batch.memory import ALIGNMENT, FREE, BatchMemory, Images, Kept, Taken, batch_sizes

# Behind the images of a batch that is copied to a device: bytes of a sample, and of a batch.
_OTHER_NBYTES, _LEAST_OTHER_NBYTES = 64, 1024


class PinnedMemory:
    """Page-locked memory for a Loader's batches, all image fields of one in a single allocation; safe across forks.

    It comes from torch's caching host allocator and goes back to it. A copy with `non_blocking=True` still reads its
    source when nothing refers to it any more. Python cannot see that, but the allocator can: torch marks the memory
    that a copy reads, also through a view, and the allocator waits for the copies of all streams. So the tensors are in
    the allocator's own memory, not around it, and none is kept here.

    Behind the images there is room for other values, so that one copy takes all of a batch to a device.
    """

    def __init__(self, images: Sequence[Images], *, keep: int) -> None:
        """Start with no memory; `keep` has no effect."""
        dtypes = [torch.from_numpy(np.empty(0, dtype)).dtype for _, dtype in images]
        self._images = [(shape, dtype) for (shape, _), dtype in zip(images, dtypes, strict=True)]
        self._nbytes = [math.prod(shape) * dtype.itemsize for shape, dtype in self._images]
        self._process = os.getpid()

    def take(self, count: int, batch_size: int) -> Taken:
        """Return memory as `FieldMemories` does."""
        sizes = batch_sizes(count, batch_size)
        tensors: list[list[torch.Tensor]] = [[] for _ in self._images]
        addresses, blocks = np.empty((len(sizes), len(self._images)), np.int64), []
        pinned = self._process == os.getpid()  # CUDA does not work in a forked child
        for number, size in enumerate(sizes):
            rooms = [size * nbytes + -size * nbytes % ALIGNMENT for nbytes in self._nbytes]
            nbytes, start = sum(rooms) + size * _OTHER_NBYTES + _LEAST_OTHER_NBYTES, 0
            block = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=pinned)
            for f, (shape, dtype) in enumerate(self._images):
                images = block[start : start + size * self._nbytes[f]]
                tensors[f].append(images.view(dtype).view(size, *shape))
                addresses[number, f], start = block.data_ptr() + start, start + rooms[f]
            blocks.append((block, start))
        return tensors, addresses, blocks


class Rooms:
    """Memory that batches of several shapes use in turns; safe from several threads and across forks.

    A room that only this object refers to is free, as the arrays of `BatchMemory`.
    """

    def __init__(self, keep: int) -> None:
        """Start with no memory; at most `keep` rooms are kept."""
        self._keep, self._kept, self._nbytes = keep, Kept(), 0
        self._rooms: list[npt.NDArray[Any]] = []

    def take(self, nbytes: int) -> npt.NDArray[Any]:
        """Return a room of at least so many bytes that nobody uses."""
        if self._kept.process != os.getpid():  # see `BatchMemory.take`
            self._kept, self._rooms = Kept(), []
        with self._kept.lock:
            free = [number for number, count in enumerate(map(sys.getrefcount, self._rooms)) if count <= FREE]
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
