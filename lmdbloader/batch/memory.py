"""The memory of batches: used again when free, pinned for a device, or shared with the process that trains."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing import get_sharing_strategy
from torch.utils.data import get_worker_info

from lmdbloader.base import system
from lmdbloader.errors import DiskFullError

# The C library's folder for shared memory with a name, and for semaphores.
NAMED_FOLDER = "/dev/shm"
# Fresh memory costs a page fault for every 4 KiB, about as much as filling it. Less than this is not worth keeping.
_SMALLEST_NBYTES = 64 * 1024
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
            for number in (*range(first, total), *range(min(first, total))):
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


class SharedMemory(BatchMemory):
    """Memory for a dataset's samples; in a DataLoader's worker shared with the training loop.

    A worker's batch then needs no copy on its way to the training loop. Small batches, such as one sample, get memory
    of their own.
    """

    def take(self, count: int) -> tuple[torch.Tensor, int]:
        """Return a tensor (count, *shape) with arbitrary values, and its address.

        Raises:
            DiskFullError: As for `shared_tensor`.
        """
        if get_worker_info() is not None:
            memory = shared_tensor(count * self._nbytes).view(self._torch_dtype).view(count, *self._shape)
        elif count * self._nbytes < _SMALLEST_NBYTES:
            memory = torch.from_numpy(np.empty((count, *self._shape), self._dtype))
        else:
            return super().take(count)
        return memory, memory.data_ptr()


def never_free(value: Any) -> None:
    """Keep something until the process ends.

    Freeing pinned memory takes locks of the allocator. In a forked child one of them may be locked forever, by a
    thread of the parent that held it during the fork.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def shared_tensor(nbytes: int) -> torch.Tensor:
    """Return memory (nbytes,) uint8 that another process can use without a copy when it is sent there.

    Raises:
        DiskFullError: The system has such memory in /dev/shm only, and that is full.
    """
    size = max(nbytes, 1)
    storage = _without_name(size)
    memory = torch.empty(0, dtype=torch.uint8, device="cpu")
    return memory.set_(_with_name(size) if storage is None else storage)[:nbytes]


def _without_name(nbytes: int) -> torch.UntypedStorage | None:
    """Return shared memory outside any file system; None if the system has none, or torch is set to share by names.

    torch's own is in /dev/shm, which is small in containers, and takes twice as long to make.
    """
    if get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]
        return None
    descriptor = system.memory_file()
    if descriptor is None:
        return None
    try:
        os.ftruncate(descriptor, nbytes)
        storage: torch.UntypedStorage = torch.UntypedStorage._new_shared_fd_cpu(descriptor, nbytes)  # type: ignore[attr-defined]
    finally:
        os.close(descriptor)  # the storage has one of its own
    return storage


def _with_name(nbytes: int) -> torch.UntypedStorage:
    """Return shared memory as torch's own collate function makes it."""
    try:
        return torch.UntypedStorage._new_shared(nbytes)  # type: ignore[no-any-return, no-untyped-call]
    except (OSError, RuntimeError) as error:
        if not means_no_space(error):
            raise
        raise no_space(nbytes) from error


def shared_like(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor in shared memory, with a shape, another tensor's dtype and arbitrary values.

    Raises:
        DiskFullError: As for `shared_tensor`.
    """
    return shared_tensor(math.prod(shape) * tensor.element_size()).view(tensor.dtype).view(tuple(shape))


def in_shared_memory(value: Any) -> Any:
    """Return a batch whose tensors are in shared memory; those that are not are copied there.

    Args:
        value: Tensors in tuples, named tuples, lists and dicts of any depth; other values stay as they are.

    Raises:
        DiskFullError: As for `shared_tensor`.
    """
    if type(value) is torch.Tensor:
        if not is_plain(value) or value.is_shared():  # type: ignore[no-untyped-call]
            return value
        return shared_like(value, value.shape).copy_(value)
    if type(value) is dict:
        return {key: in_shared_memory(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(in_shared_memory, value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(in_shared_memory, value))
    return value


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is only numbers in main memory, at least one."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and tensor.numel() > 0
    )


def means_no_space(error: BaseException) -> bool:
    """Return whether an error of the system or of torch means that a file system is full."""
    # torch's is a RuntimeError with the system's words in it.
    return getattr(error, "errno", None) == errno.ENOSPC or system.means(errno.ENOSPC, str(error))


def free_nbytes() -> int | None:
    """Return how many bytes of /dev/shm are free; None if the system has none or does not report it."""
    size, free = system.sizes_of(NAMED_FOLDER) or (0, 0)
    return free if size else None  # without a limit it has no size


def no_space(nbytes: int) -> DiskFullError:
    """Return the error for a /dev/shm that has not enough room for more shared memory."""
    free = free_nbytes()
    found = "" if free is None else f" and {free:,} are free"
    return DiskFullError(
        f"{NAMED_FOLDER} is full: worker processes need {nbytes:,} bytes of shared memory{found}. Enlarge it "
        "(docker run --shm-size=8g or --ipc=host), remove files that programs left there when they ended, lower "
        "num_workers, prefetch_factor or the batch size, or use lmdbloader.Loader, whose threads need none."
    )
