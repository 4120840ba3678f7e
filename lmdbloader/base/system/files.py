"""Files, locks, what is in memory, and processes."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import sys
import threading
import time
import unicodedata
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    import subprocess
    from multiprocessing.connection import Connection

__all__ = [
    "CAN_DROP_CACHE", "CAN_FLUSH_FOLDERS", "NORMAL", "POPULATE_READ", "RANDOM", "WILL_NEED",
    "advise_order", "after_fork", "clock_ns", "connect", "drop_cache", "exchange", "flush", "flush_path",
    "folded", "how_ended", "is_cached", "lock", "map_in_a_row", "map_nothing", "map_shared", "means",
    "memory_file", "open_to_read",
    "read_at", "read_into", "receive_file", "reserve", "resident_pages", "send_file",
    "start_python", "tells_residency",
    "will_read", "write_at",
]  # fmt: skip

_IS_LINUX = sys.platform == "linux"
# Whether `drop_cache` drops anything.
CAN_DROP_CACHE = _IS_LINUX
# Whether `flush_path` takes a folder.
CAN_FLUSH_FOLDERS = sys.platform != "win32"
# The advice for madvise about the order of reads, and about pages that are needed soon.
NORMAL, RANDOM, WILL_NEED = 0, 1, 3
# The advice that maps pages for reading, and fails if one cannot be read: MADV_POPULATE_READ of Linux 5.14, which
# Python lacks; negative on other systems.
POPULATE_READ = 22 if _IS_LINUX else -1
_RENAME_EXCHANGE, _AT_FDCWD = 2, -100
# Errors of a kernel without files in memory, or of a container that forbids them.
_NO_MEMORY_FILE = (errno.ENOSYS, errno.EPERM, errno.EACCES)
# Of mman.h: a map replaces what is at its address.
_MAP_FIXED = 0x10
# Of the pages by which large parts of a file can be mapped.
_LARGE_PAGE_NBYTES = 2 * 2**20
_MAP_FAILED = ctypes.c_void_p(-1).value


def _flags(*names: str) -> int:
    """Return the flags of os.open that this system has."""
    return sum(getattr(os, name, 0) for name in names)


# Opening a FIFO must not wait for its writer, a terminal must not become this process's, and Windows must not
# translate line ends.
_TO_READ = os.O_RDONLY | _flags("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")

# -- Files


def open_to_read(path: str | bytes | os.PathLike[str]) -> int:
    """Return a descriptor that reads a file; this never waits, and child processes do not get it."""
    return os.open(path, _TO_READ)


if sys.platform == "win32":
    _position = threading.Lock()

    def read_at(descriptor: int, nbytes: int, at: int) -> bytes:
        """Return a part of a file, fewer bytes at its end; it moves the descriptor's position."""
        with _position:
            os.lseek(descriptor, at, os.SEEK_SET)
            return os.read(descriptor, nbytes)

    def write_at(descriptor: int, data: bytes, at: int) -> int:
        """Write a part of a file; return the number of bytes."""
        with _position:
            os.lseek(descriptor, at, os.SEEK_SET)
            return os.write(descriptor, data)

else:
    # Not functions of their own, because samples are read with them.
    read_at, write_at = os.pread, os.pwrite


def read_into(descriptor: int, buffer: Any, at: int) -> int:
    """Read a part of a file into a writable buffer; return the number of bytes, 0 at the end of the file."""
    if sys.platform != "win32":
        return os.preadv(descriptor, [buffer], at)
    view = memoryview(buffer).cast("B")
    data = read_at(descriptor, view.nbytes, at)
    view[: len(data)] = data
    return len(data)


def reserve(descriptor: int, at: int, nbytes: int) -> None:
    """Take space on the device for a part of a file, which gets that long; an error says that there is none."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, at, nbytes)
    else:
        os.ftruncate(descriptor, at + nbytes)


def flush(descriptor: int) -> None:
    """Wait until everything written to a file, or the names in a folder, are on the device."""
    if sys.platform == "darwin":
        with suppress(OSError):  # some file systems support fsync only
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def flush_path(path: Path) -> None:
    """Flush a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flush(descriptor)
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(descriptor)


def map_shared(descriptor: int, nbytes: int) -> mmap.mmap:
    """Return a map that reads a file, with all its pages at once if the system can."""
    if sys.platform == "win32":
        return mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ)
    populate = getattr(mmap, "MAP_POPULATE", 0)
    return mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED | populate, prot=mmap.PROT_READ)


def map_nothing(nbytes: int) -> mmap.mmap:
    """Return a map of zeros, whose pages take memory when they are written, and lose it by `madvise(MADV_DONTNEED)`.

    Raises:
        OSError: The system cannot do this (ENOTSUP), or refuses it (ENOMEM).
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOTSUP, "only Linux frees single pages of a map")
    # Python 3.13 names the flag; without it, Linux refuses more than it has memory.
    reserve_none = getattr(mmap, "MAP_NORESERVE", 0x4000)
    made = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | reserve_none)
    made.madvise(mmap.MADV_NOHUGEPAGE)
    return made


def map_in_a_row(files: Iterable[tuple[int, int, int]], nbytes: int) -> Any:
    """Return a read-only map of several files in one range of addresses; its memory is freed with the last view of it.

    The addresses are reserved first, and each file is mapped over its part of them.

    Args:
        files: (descriptor, bytes, where it begins in the map), in order; no file is empty, and each begins at a
            multiple of the system's pages. Bytes between the files must not be touched.
        nbytes: Of the map.

    Returns:
        A buffer of that many bytes, aligned to a page.

    Raises:
        OSError: The system cannot do this (ENOTSUP), or refuses it (ENOMEM).
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, "this system maps one file at a time")
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
    ]  # fmt: skip
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    whole = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE + _LARGE_PAGE_NBYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANON | getattr(mmap, "MAP_NORESERVE", 0)
    reserved = library.mmap(None, whole, 0, flags, -1, 0)
    if reserved == _MAP_FAILED:
        raise _last_error()
    base = -(-reserved // _LARGE_PAGE_NBYTES) * _LARGE_PAGE_NBYTES
    mapped = (ctypes.c_uint8 * nbytes).from_address(base)
    weakref.finalize(mapped, library.munmap, reserved, whole).atexit = False
    for descriptor, length, begin in files:
        flags = mmap.MAP_SHARED | _MAP_FIXED
        if library.mmap(base + begin, length, mmap.PROT_READ, flags, descriptor, 0) == _MAP_FAILED:
            raise _last_error()
    return mapped


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def memory_file() -> int | None:
    """Return a descriptor of an empty, unnamed file in memory; None if the system does not have or allow this."""
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):
        return None
    try:
        return os.memfd_create("lmdbloader")
    except OSError as error:
        if error.errno in _NO_MEMORY_FILE:
            return None
        raise


def means(code: int, text: str) -> bool:
    """Return whether a library's message is about a system error, given its number."""
    return os.strerror(code) in text


def folded(name: str) -> str:
    """Return a key that is equal for all names that may lead to the same file; on Linux that is the name itself."""
    return name if _IS_LINUX else unicodedata.normalize("NFC", name).casefold()


# -- Locks and renames


def lock(descriptor: int) -> None:
    """Lock a folder or a file, until it is closed or the process ends.

    Raises:
        BlockingIOError: It is locked already.
        OSError: The file system has no locks.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, "no locks of folders")
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def exchange(a: Path, b: Path) -> bool:
    """Exchange the names of two folders in one step; return False, and do nothing, if the system cannot."""
    function = _of_linux("renameat2")
    if function is None:
        return False
    return bool(function(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0)


# -- What is in memory


def drop_cache(descriptor: int) -> None:
    """Drop a file's pages from the system's memory, so that later reads see only data that reached the device.

    After a failed write, Linux keeps pages in memory that are on no device, and reports them as written. Other systems
    drop nothing.

    Raises:
        OSError: Data that is still to be written cannot be.
    """
    if sys.platform == "linux":
        os.fsync(descriptor)  # unwritten pages would stay
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def advise_order(descriptor: int, *, random: bool) -> None:
    """Say whether a file will be read in random order, which needs no readahead."""
    if sys.platform == "linux":
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM if random else os.POSIX_FADV_NORMAL)


def will_read(descriptor: int, at: int, nbytes: int) -> None:
    """Say that a part of a file will be read soon."""
    if sys.platform == "linux":
        os.posix_fadvise(descriptor, at, nbytes, os.POSIX_FADV_WILLNEED)


def tells_residency(descriptor: int) -> bool:
    """Return whether the system says truthfully which pages of a map of this file are in memory.

    For files of other users, Linux reports that all pages are.
    """
    if sys.platform != "linux":
        return False
    try:
        return os.geteuid() == os.fstat(descriptor).st_uid or os.access(f"/proc/self/fd/{descriptor}", os.W_OK)
    except OSError:
        return False


def resident_pages(address: int, nbytes: int, found: Any) -> bool:
    """Ask which pages of a map are in memory; return False if the system does not report it.

    Args:
        address: Of the first page.
        nbytes: Length of the part.
        found: (pages,) uint8, gets an odd number for each page that is in memory.
    """
    function = _of_linux("mincore")
    if function is None:
        return False
    places = ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_void_p(found.ctypes.data)
    return bool(function(*places) == 0)


def is_cached(descriptor: int, at: int) -> bool | None:
    """Return whether a byte of a file, if there is one, is in memory; None if the system does not report it."""
    if tells_residency(descriptor) and (found := _is_mapped_page_resident(descriptor, at)) is not None:
        return found
    if sys.platform != "linux" or not hasattr(os, "RWF_NOWAIT"):
        return None
    # This starts to read the page: if the storage is quick enough, the answer is that it is in memory.
    try:
        os.preadv(descriptor, [bytearray(1)], at, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:  # some file systems always wait
        return None
    return True


def _is_mapped_page_resident(descriptor: int, at: int) -> bool | None:
    import numpy as np

    found = np.zeros(1, np.uint8)
    try:
        with mmap.mmap(descriptor, 1, access=mmap.ACCESS_READ, offset=at & -mmap.PAGESIZE) as page:
            address = np.frombuffer(page, np.uint8).ctypes.data
            return bool(found[0] & 1) if resident_pages(address, 1, found) else None
    except (OSError, ValueError):  # a file that cannot be mapped, or ends before
        return None


@cache
def _of_linux(name: str) -> Any:
    """Return a function of Linux's C library; None on another system, or if the library lacks it."""
    return getattr(ctypes.CDLL(None, use_errno=True), name, None) if _IS_LINUX else None


# -- Processes


def clock_ns() -> int:
    """Return the nanoseconds of the clock that kernels read, too; it never goes back."""
    return time.perf_counter_ns() if sys.platform == "win32" else time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def after_fork(function: Callable[[], None]) -> None:
    """Call a function in every forked child, from now on; on Windows no process forks."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=function)


def how_ended(status: int) -> tuple[str, bool]:
    """Return how a process ended, in words, and whether it may have had too little memory.

    Args:
        status: Its exit status, negative for a signal, as of `subprocess.Popen`.
    """
    if status >= 0:
        return f"ended with exit status {status}", False
    # The system kills a process that takes too much; C++ ends one that gets no memory by SIGABRT.
    name = signal.Signals(-status).name
    return f"was killed by {name}", name in ("SIGKILL", "SIGABRT")


def start_python(
    arguments: Sequence[str],
    handles: Sequence[int],
    *,
    env: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """Start another process of this Python, without standard input; a terminal's Ctrl-C does not reach it.

    Args:
        arguments: Of the interpreter.
        handles: Descriptors of the connections and files that it gets, with the same numbers.
        env: Its environment variables.
    """
    import subprocess

    return subprocess.Popen(
        [sys.executable, *arguments],
        pass_fds=handles,
        stdin=subprocess.DEVNULL,
        env=env,
        start_new_session=True,
    )


def connect(handle: int) -> Connection[Any, Any]:
    """Return the connection with a descriptor that this process was started with."""
    from multiprocessing.connection import Connection

    return Connection(handle)


def send_file(connection: Connection[Any, Any], descriptor: int) -> None:
    """Send an open file to another process, by a few bytes."""
    import socket

    with socket.socket(fileno=os.dup(connection.fileno())) as channel:
        socket.send_fds(channel, [b"m"], [descriptor])


def receive_file(connection: Connection[Any, Any]) -> int:
    """Return a descriptor of the file that another process has sent.

    Raises:
        EOFError: The other process has closed the connection.
    """
    import socket

    with socket.socket(fileno=os.dup(connection.fileno())) as channel:
        _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if len(descriptors) != 1:
        raise EOFError
    return descriptors[0]
