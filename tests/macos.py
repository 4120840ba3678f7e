"""Makes a process on Linux behave like one on macOS, as far as Python code can tell; used in a process of its own."""

from __future__ import annotations

import errno
import fcntl
import importlib
import mmap
import os
import sys
from typing import Any

LACKING: dict[Any, str] = {
    os: (
        "RWF_NOWAIT POSIX_FADV_DONTNEED POSIX_FADV_NORMAL POSIX_FADV_RANDOM POSIX_FADV_WILLNEED memfd_create preadv "
        "pwritev posix_fadvise posix_fallocate sched_getaffinity sched_setaffinity"
    ),
    mmap: "MAP_POPULATE",
}
FULL_FLUSH = 51
_fcntl, _fsync = fcntl.fcntl, os.fsync


def control(descriptor: int, command: int, *arguments: Any) -> Any:
    """Flush a file to its device; refuse other things that Linux does not know."""
    if command == FULL_FLUSH:
        if os.fstat(descriptor).st_size % 2:  # as on a file system that knows fsync only
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        return _fsync(descriptor)
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
