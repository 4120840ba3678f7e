"""Memory that a DataLoader's worker processes share with the training loop."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing import get_sharing_strategy

from lmdbloader.errors import DiskFullError

# Where the C library keeps shared memory that has a name, and semaphores.
NAMED_FOLDER = "/dev/shm"
# What a system says that has no memory without a name, or forbids it.
_REFUSALS = (errno.ENOSYS, errno.EPERM, errno.EACCES)


def shared_tensor(nbytes: int) -> torch.Tensor:
    """Return memory (nbytes,) uint8 that another process gets to see without a copy when it is sent there.

    Raises:
        DiskFullError: The system has such memory in /dev/shm only, and that is full.
    """
    size = max(nbytes, 1)
    storage = _without_name(size)
    return torch.empty(0, dtype=torch.uint8).set_(_with_name(size) if storage is None else storage)[:nbytes]


def _without_name(nbytes: int) -> torch.UntypedStorage | None:
    """Return shared memory of no file system, None where there is none or torch is told to share by names.

    Torch's own lies in /dev/shm, of which containers have little, and takes twice as long to make.
    """
    if not hasattr(os, "memfd_create") or get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]
        return None
    try:
        descriptor = os.memfd_create("lmdbloader")
    except OSError as error:
        if error.errno in _REFUSALS:
            return None
        raise
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
        if not tells_no_space(error):
            raise
        raise no_space(nbytes) from error


def shared_like(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor of a shape and of another's type, with anything in it, in shared memory.

    Raises:
        DiskFullError: As for `shared_tensor`.
    """
    return shared_tensor(math.prod(shape) * tensor.element_size()).view(tensor.dtype).view(tuple(shape))


def in_shared_memory(value: Any) -> Any:
    """Return a batch whose tensors are in shared memory, copied there where they were not.

    Args:
        value: Tensors in tuples, named tuples, lists and dicts of any depth; what else there is stays as it is.

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
    """Return whether a tensor is nothing but numbers in main memory, at least one."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and tensor.numel() > 0
    )


def tells_no_space(error: BaseException) -> bool:
    """Return whether an error of the system's or of torch's says that a file system is full."""
    # torch's is a RuntimeError with the system's words in it.
    return getattr(error, "errno", None) == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error)


def free_nbytes() -> int | None:
    """Return how much of /dev/shm is free, None where the system has none or does not tell."""
    try:
        room = os.statvfs(NAMED_FOLDER)
    except (OSError, AttributeError):
        return None
    # One without a limit has no blocks at all.
    return room.f_bavail * room.f_frsize if room.f_blocks else None


def no_space(nbytes: int) -> DiskFullError:
    """Return the error for a /dev/shm that has no room for so much more."""
    free = free_nbytes()
    found = "" if free is None else f", of which {free:,} are free"
    return DiskFullError(
        f"{NAMED_FOLDER} is full: worker processes need {nbytes:,} bytes of shared memory{found}. Enlarge it "
        "(docker run --shm-size=8g or --ipc=host), remove what ended programs left there, lower num_workers, "
        "prefetch_factor or the batch size, or use lmdbloader.Loader, whose threads need none."
    )
