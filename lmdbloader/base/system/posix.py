"""What Linux and macOS share: descriptors of files and folders, flock, owners and permissions, worker processes."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import resource
import signal
import stat
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess
    from multiprocessing.connection import Connection

assert sys.platform != "win32"  # for mypy

__all__ = [
    "CAN_CACHE_URLS", "FOLDERS_MOVE_WITH_OPEN_FILES", "address_limit", "after_fork", "clock_ns", "close", "connect",
    "entries", "flush", "flush_path", "how_ended", "load_average", "lock", "map_in_a_row", "map_shared",
    "means", "move_folder", "open_folder", "open_in", "open_itself", "open_to_read", "permissions", "process_limit",
    "read_at", "read_into", "receive_file", "remove_in", "replace_file", "send_file", "set_permissions", "sizes_of",
    "start_python", "status_in", "touch_in", "user", "wait_for_end_of", "write_at",
]  # fmt: skip

# Whether a folder can get another name while a file in it is open.
FOLDERS_MOVE_WITH_OPEN_FILES = CAN_CACHE_URLS = True
# Opening a FIFO must not wait for its writer, and a terminal must not become this process's.
_TO_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_LOOK_SECONDS = 0.5
# Of mman.h: a map replaces what is at its address.
_MAP_FIXED = 0x10
# Of the pages by which large parts of a file can be mapped.
_LARGE_PAGE_NBYTES = 2 * 2**20
_MAP_FAILED = ctypes.c_void_p(-1).value

# -- Files


def open_to_read(path: str | bytes | os.PathLike[str]) -> int:
    """Return a descriptor that reads a file; this never waits, and child processes do not get it."""
    return os.open(path, _TO_READ)


def open_itself(path: str | os.PathLike[str]) -> int:
    """Return a descriptor as `open_to_read`, but a link is the error ELOOP."""
    return os.open(path, _TO_READ | os.O_NOFOLLOW)


# read_at(descriptor, nbytes, at) returns a part of a file, fewer bytes at its end. Not a function of its own, because
# samples are read with it.
read_at = os.pread


def read_into(descriptor: int, buffer: Any, at: int) -> int:
    """Read a part of a file into a writable buffer; return the number of bytes, 0 at the end of the file."""
    return os.preadv(descriptor, [buffer], at)


def write_at(descriptor: int, data: bytes, at: int) -> int:
    """Write a part of a file; return the number of bytes."""
    return os.pwrite(descriptor, data, at)


def after_fork(function: Callable[[], None]) -> None:
    """Register the function."""
    os.register_at_fork(after_in_child=function)


def flush(descriptor: int) -> None:
    """Wait until everything written to a file is on its device."""
    os.fsync(descriptor)


def flush_path(path: Path) -> None:
    """Wait until a file's bytes, or the names in a folder, are on their device."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(source: str | Path, target: str | Path) -> None:
    """Give a file another name in one step; a file of that name is replaced, and stays for those who have it open."""
    os.replace(source, target)


def move_folder(source: Path, target: Path) -> None:
    """Give a folder another name in one step; an empty folder of that name is replaced."""
    os.rename(source, target)


def map_shared(descriptor: int, nbytes: int) -> mmap.mmap:
    """Return a map that reads a file, with all its pages at once if the system can."""
    populate = getattr(mmap, "MAP_POPULATE", 0)
    return mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED | populate, prot=mmap.PROT_READ)


def map_in_a_row(files: Sequence[tuple[int, int, int]], nbytes: int) -> Any:
    """The addresses are reserved first, and each file is mapped over its part of them."""
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


def sizes_of(folder: str | Path) -> tuple[int, int] | None:
    """Return the file system's blocks."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def means(code: int, text: str) -> bool:
    """Return whether a library's message is about a system error, given its number."""
    return os.strerror(code) in text


# -- Folders that are held open


def open_folder(folder: Path, *, follow: bool = False) -> int:
    """Return a descriptor of a folder, for `close`.

    Args:
        folder: Its path.
        follow: Whether it may be a link to one.

    Raises:
        OSError: There is none, or it cannot be opened.
    """
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))


def close(descriptor: int) -> None:
    """Close a folder or a file, which releases its `lock`."""
    os.close(descriptor)


def lock(descriptor: int) -> None:
    """Lock a folder or a file, until it is closed or the process ends.

    Raises:
        BlockingIOError: It is locked already.
        OSError: The file system has no locks.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def open_in(folder: int, name: str, *, write: bool = False, make: bool = False) -> int:
    """Return a descriptor of a file in an open folder, not of a link to one.

    Args:
        folder: The folder's descriptor.
        name: The file's name.
        write: Open it for writing, too.
        make: Make it; it must not exist yet.
    """
    flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT | os.O_EXCL if make else 0)
    return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=folder)


def remove_in(folder: int, name: str) -> None:
    """Remove a file from an open folder."""
    os.unlink(name, dir_fd=folder)


def touch_in(folder: int, name: str) -> None:
    """Set the time of a file in an open folder to now, by the file system's clock."""
    os.utime(name, dir_fd=folder, follow_symlinks=False)


def status_in(folder: int, name: str) -> os.stat_result:
    """Return the status of a file in an open folder; of a link, its own."""
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def entries(folder: int) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
    """Return the entries of an open folder, as `os.scandir` does."""
    return os.scandir(folder)


# -- Owners and permissions


def user() -> int:
    """Return the number of the user that this process runs as, who owns the files that it makes."""
    return os.geteuid()


def permissions(found: os.stat_result) -> int:
    """Return the permissions in a file's status."""
    return stat.S_IMODE(found.st_mode)


def set_permissions(descriptor: int, mode: int) -> None:
    """Set the permissions of an open file or folder."""
    os.fchmod(descriptor, mode)


# -- The machine


def clock_ns() -> int:
    """Return the nanoseconds of the clock that kernels read, too; it never goes back."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def address_limit() -> int | None:
    """Return the soft limit, as `ulimit -v` sets it."""
    return _limit(resource.RLIMIT_AS)


def process_limit() -> int | None:
    """Return the soft limit, as `ulimit -u` sets it."""
    return _limit(resource.RLIMIT_NPROC)


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def load_average() -> float | None:
    """Return the first of the system's three averages."""
    return os.getloadavg()[0]


# -- Processes


def wait_for_end_of(parent: int) -> None:
    """Wait until the process that started this one has ended."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)


def how_ended(status: int) -> tuple[str, bool]:
    """Return how a process ended, in words, and whether it may have had too little memory.

    Args:
        status: Its exit status, negative for a signal, as of `subprocess.Popen`.
    """
    if status >= 0:
        return f"ended with exit status {status}", False
    # The system kills a process that takes too much; C++ ends one that gets no memory by SIGABRT.
    return f"was killed by {signal.Signals(-status).name}", status in (-signal.SIGKILL, -signal.SIGABRT)


def start_python(
    arguments: Sequence[str],
    handles: Sequence[int],
    *,
    env: Mapping[str, str],
    stdout: int | None = None,
    stderr: IO[bytes] | None = None,
    apart: bool = False,
) -> subprocess.Popen[bytes]:
    """Start another process of this Python, without standard input.

    Args:
        arguments: Of the interpreter.
        handles: Of the connections and files (`handle_of`) that it gets, with the same numbers.
        env: Its environment variables.
        stdout, stderr: As for `subprocess.Popen`.
        apart: Shield it from a terminal's Ctrl-C.
    """
    import subprocess

    return subprocess.Popen(
        [sys.executable, *arguments],
        pass_fds=handles,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=env,
        start_new_session=apart,
    )


def connect(handle: int) -> Connection[Any, Any]:
    """Return the connection with a handle that this process was started with."""
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
