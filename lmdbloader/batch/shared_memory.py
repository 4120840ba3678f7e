"""Memory that worker processes share with the process that trains, and what to say when there is no room for it."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.multiprocessing import get_sharing_strategy
from torch.utils.data import get_worker_info

from lmdbloader.base import system
from lmdbloader.batch.memory import BatchMemory, batch_sizes
from lmdbloader.errors import DiskFullError

# The C library's folder for shared memory with a name, and for semaphores.
NAMED_FOLDER = "/dev/shm"
# Fresh memory costs a page fault for every 4 KiB, about as much as filling it. Less than this is not worth keeping.
_SMALLEST_NBYTES = 64 * 1024


class SharedMemory(BatchMemory):
    """Memory for a dataset's samples; in a DataLoader's worker shared with the training loop.

    A worker's batch then needs no copy on its way to the training loop. Small batches, such as one sample, get memory
    of their own.
    """

    def take(self, count: int, batch_size: int) -> tuple[list[torch.Tensor], list[int]]:
        """Return tensors as those of BatchMemory, and their addresses.

        Raises:
            DiskFullError: As for `shared_tensor`.
        """
        if get_worker_info() is not None:
            tensors = [
                shared_tensor(size * self._nbytes).view(self._torch_dtype).view(size, *self._shape)
                for size in batch_sizes(count, batch_size)
            ]
        elif count * self._nbytes < _SMALLEST_NBYTES:
            tensors = [
                torch.from_numpy(np.empty((size, *self._shape), self._dtype)) for size in batch_sizes(count, batch_size)
            ]
        else:
            return super().take(count, batch_size)
        return tensors, [memory.data_ptr() for memory in tensors]


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
        "(docker run --shm-size=8g), lower num_workers, or use lmdbloader.Loader, whose threads need none."
    )
