"""Makes a process on Linux behave like one on macOS, as far as Python code can tell; used in a process of its own."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib
import mmap
import os
import struct
import sys
from typing import Any

LACKING: dict[Any, str] = {
    os: (
        "RWF_NOWAIT POSIX_FADV_DONTNEED POSIX_FADV_NORMAL POSIX_FADV_RANDOM POSIX_FADV_WILLNEED memfd_create preadv "
        "pwritev posix_fadvise posix_fallocate sched_getaffinity sched_setaffinity"
    ),
    mmap: "MAP_POPULATE",
}
FULL_FLUSH, PREALLOCATE = 51, 42
_fcntl, _fsync, _fallocate = fcntl.fcntl, os.fsync, ctypes.CDLL(None).fallocate


def control(descriptor: int, command: int, *arguments: Any) -> Any:
    """Flush a file to its device; refuse other things that Linux does not know."""
    if command == FULL_FLUSH:
        if os.fstat(descriptor).st_size % 2:  # as on a file system that knows fsync only
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        return _fsync(descriptor)
    if command == PREALLOCATE:  # the space, behind the end of the file, which stays where it is
        how, origin, offset, nbytes, _ = struct.unpack("=Iiqqq", *arguments)
        assert (how, origin, offset) == (4, 3, 0), "all of it, counted from the file's end"
        _fallocate(descriptor, 1, ctypes.c_int64(os.fstat(descriptor).st_size), ctypes.c_int64(nbytes))
        return arguments[0]
    return _fcntl(descriptor, command, *arguments)


def become() -> None:
    """Change this process. Other libraries are imported first: they may use what this system has."""
    for name in ("lmdb.verify", "PIL.Image", "pyarrow.compute", "torch.multiprocessing", "torch.utils.data", "tqdm"):
        importlib.import_module(name)
    importlib.import_module("lmdbloader.kernels.calls.libraries").load()
    assert "lmdbloader.base.system" not in sys.modules, "it was imported as on this system"
    fcntl.fcntl = control
    for module, names in LACKING.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    here = sys.platform
    sys.platform = "darwin"
    try:
        importlib.import_module("lmdbloader.base.system")
    finally:
        sys.platform = here
