"""Windows: handles, named mutexes in place of flock, and renames that wait for other programs to close files.

There is no fork, no permissions for "others", no link to an open folder, and no flush of a folder. A file
that any process keeps open or mapped can be neither replaced nor removed.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import msvcrt
import os
import platform
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from lmdbloader.base.system.defaults import ROOT, Clock

if TYPE_CHECKING:
    import subprocess
    from multiprocessing.connection import Connection

assert sys.platform == "win32"  # for mypy, which checks this file with --platform win32

__all__ = [
    "FOLDERS_MOVE_WITH_OPEN_FILES", "MAPPED_FILES_SHRINK", "MAPS_LENGTHEN_FILES", "allowed_cores", "clock_ns", "close",
    "connect", "descriptor_of", "distribution", "entries", "flush", "flush_path", "folded", "handle_of", "how_ended",
    "lock", "map_shared", "means", "memory_sizes", "move_folder", "open_folder", "open_in", "open_itself",
    "open_to_read", "permissions", "process_seconds", "processor_clock", "processor_name", "read_at", "read_into",
    "receive_file", "remove_in", "replace_file", "reserve", "send_file", "set_permissions", "start_of", "start_python",
    "status_in", "touch_in", "usable_name", "user", "wait_for_end_of", "write_at",
]  # fmt: skip

FOLDERS_MOVE_WITH_OPEN_FILES = False
# The system refuses to cut a file that is mapped.
MAPPED_FILES_SHRINK = False
MAPS_LENGTHEN_FILES = True

_FLAGS = os.O_BINARY | os.O_NOINHERIT
_GENERIC_READ, _SHARE_ALL, _OPEN_EXISTING = 0x80000000, 7, 3
# To open a folder; and to open a link itself, which is then refused.
_FOLDER, _LINK_ITSELF = 0x02000000, 0x00200000
_ALREADY_EXISTS, _ACCESS_DENIED, _SHARING_VIOLATION, _END_OF_FILE = 183, 5, 32, 38
_NOTHING = ctypes.c_void_p(-1).value
_QUERY, _WAIT, _STILL_RUNS = 0x1000, 0x00100000, 259
_TICKS_PER_SECOND = 10**7
# As much as one call reads on Linux.
_MOST_NBYTES = 0x7FFFF000
# Python reports most failures of a device as "permission denied".
_DEVICE_FAILED = frozenset({21, 23, 25, 27, 29, 30, 31, 55, 483, 1117, 1393})
# How the system's own messages name a full disk, besides the C library's.
_MESSAGES = {errno.ENOSPC: (39, 112), errno.EDQUOT: (1295,), errno.EIO: (23, 29, 30, 31, 1117), errno.ENOMEM: (8, 1455)}
_NO_MEMORY = (0xC0000017, 0xC000012D)
# Virus scanners and indexers open new files for a moment.
_PATIENCE_SECONDS, _PAUSE_SECONDS = 2.0, 0.02
_RESERVED = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3]) *(\..*)?", re.IGNORECASE)
_REFUSED = re.compile(r'[<>:"|?*\\\x00-\x1f]')

# Mutexes by the descriptor that they lock, until it is closed.
_locks: dict[int, int] = {}


class _Overlapped(ctypes.Structure):
    """OVERLAPPED: the place of a read or a write."""

    _fields_ = (
        ("Internal", ctypes.c_void_p),
        ("InternalHigh", ctypes.c_void_p),
        ("Offset", ctypes.c_uint32),
        ("OffsetHigh", ctypes.c_uint32),
        ("hEvent", ctypes.c_void_p),
    )


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = (
        ("dwLength", ctypes.c_uint32),
        ("dwMemoryLoad", ctypes.c_uint32),
        *((f"number{i}", ctypes.c_uint64) for i in range(7)),
    )


def _bound(name: str, *arguments: Any, result: Any = ctypes.c_int) -> Callable[..., Any]:
    """Return a function of kernel32; `_failed` has its error."""
    function = getattr(ctypes.WinDLL("kernel32", use_last_error=True), name)
    function.argtypes, function.restype = arguments, result
    return function  # type: ignore[no-any-return]


_HANDLE, _NUMBER, _POINTER = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p
_create_file = _bound(
    "CreateFileW", ctypes.c_wchar_p, _NUMBER, _NUMBER, _POINTER, _NUMBER, _NUMBER, _HANDLE, result=_HANDLE
)
_create_mutex = _bound("CreateMutexW", _POINTER, ctypes.c_int, ctypes.c_wchar_p, result=_HANDLE)
_close_handle = _bound("CloseHandle", _HANDLE)
_read_file = _bound("ReadFile", _HANDLE, _POINTER, _NUMBER, _POINTER, _POINTER)
_write_file = _bound("WriteFile", _HANDLE, _POINTER, _NUMBER, _POINTER, _POINTER)
_path_of_handle = _bound("GetFinalPathNameByHandleW", _HANDLE, _POINTER, _NUMBER, _NUMBER, result=_NUMBER)
_open_process = _bound("OpenProcess", _NUMBER, ctypes.c_int, _NUMBER, result=_HANDLE)
_process_times = _bound("GetProcessTimes", _HANDLE, _POINTER, _POINTER, _POINTER, _POINTER)
_exit_code = _bound("GetExitCodeProcess", _HANDLE, _POINTER)
_affinity = _bound("GetProcessAffinityMask", _HANDLE, _POINTER, _POINTER)
_memory_status = _bound("GlobalMemoryStatusEx", _POINTER)
_wait_for = _bound("WaitForSingleObject", _HANDLE, _NUMBER, result=_NUMBER)


def _failed(code: int, path: str | os.PathLike[str] | None = None) -> OSError:
    """Return the error of the system's code, with the number EIO if a device failed."""
    error = OSError(errno.EIO, ctypes.FormatError(code)) if code in _DEVICE_FAILED else ctypes.WinError(code)
    if path is not None:
        error.filename = os.fspath(path)
    return error


# -- Files


def open_to_read(path: str | bytes | os.PathLike[str]) -> int:
    """Return a descriptor of bytes, without translation of line ends."""
    return os.open(path, os.O_RDONLY | _FLAGS)


def open_itself(path: str | os.PathLike[str]) -> int:
    """Check for a link before opening the file: Python cannot do both in one step on this system."""
    if os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
    return open_to_read(path)


def _transfer(function: Callable[..., Any], descriptor: int, address: Any, nbytes: int, at: int) -> int:
    place = _Overlapped(Offset=at & 0xFFFFFFFF, OffsetHigh=at >> 32)
    done = _NUMBER()
    handle = msvcrt.get_osfhandle(descriptor)
    if function(handle, address, min(nbytes, _MOST_NBYTES), ctypes.byref(done), ctypes.byref(place)):
        return int(done.value)
    if (code := ctypes.get_last_error()) == _END_OF_FILE:
        return 0
    raise _failed(code)


def read_at(descriptor: int, nbytes: int, at: int) -> bytes:
    """Use ReadFile with a place; it also moves the descriptor's position."""
    room = bytearray(nbytes)
    return bytes(memoryview(room)[: read_into(descriptor, room, at)])


def read_into(descriptor: int, buffer: Any, at: int) -> int:
    """Use ReadFile with a place; it also moves the descriptor's position."""
    view = memoryview(buffer).cast("B")
    room = (ctypes.c_char * len(view)).from_buffer(view)
    return _transfer(_read_file, descriptor, ctypes.addressof(room), len(view), at) if len(view) else 0


def write_at(descriptor: int, data: bytes, at: int) -> int:
    """Use WriteFile with a place; it also moves the descriptor's position."""
    return _transfer(_write_file, descriptor, data, len(data), at)


def flush(descriptor: int) -> None:
    """Use FlushFileBuffers; the file must be open for writing."""
    os.fsync(descriptor)


def flush_path(path: Path) -> None:
    """Flush a file; the names in a folder cannot be flushed, NTFS has a journal of them."""
    if os.path.isdir(path):
        return
    descriptor = os.open(path, os.O_RDWR | _FLAGS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reserve(descriptor: int, at: int, nbytes: int) -> None:
    """Make the file longer: NTFS takes the space at once."""
    os.ftruncate(descriptor, at + nbytes)


def replace_file(source: str | Path, target: str | Path) -> None:
    """Wait some seconds for other programs to close either file; a file that stays open cannot be replaced."""
    _patiently(os.replace, source, target)


def move_folder(source: Path, target: Path) -> None:
    """Wait some seconds for other programs to close its files; a folder with an open file cannot be renamed.

    An empty folder of that name is removed first, so this takes two steps.
    """
    with suppress(OSError):
        os.rmdir(target)
    _patiently(os.rename, source, target)


def _patiently(move: Callable[[Any, Any], None], source: str | Path, target: str | Path) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return move(source, target)
        except PermissionError as error:
            if error.winerror not in (_ACCESS_DENIED, _SHARING_VIOLATION):
                raise
            if time.monotonic() > until:
                raise PermissionError(
                    error.errno,
                    "cannot be renamed or replaced: Windows refuses it while any program has it, or a file in it, "
                    "open or mapped. Close what reads it, this process's own readers and Loaders included, and try "
                    "again",
                    os.fspath(source),
                    error.winerror,
                    os.fspath(target),
                ) from error
        time.sleep(_PAUSE_SECONDS)


def handle_of(descriptor: int) -> int:
    """Return the system's handle."""
    return msvcrt.get_osfhandle(descriptor)


def descriptor_of(handle: int) -> int:
    """Return a descriptor that owns the handle."""
    return msvcrt.open_osfhandle(handle, os.O_RDWR | _FLAGS)


def map_shared(descriptor: int, nbytes: int) -> mmap.mmap:
    """Return a map whose pages come when they are touched."""
    return mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ)


def means(code: int, text: str) -> bool:
    """Look for the system's own messages, too."""
    named = (os.strerror(code), *(ctypes.FormatError(number).strip() for number in _MESSAGES.get(code, ())))
    return any(name in text for name in named)


def usable_name(part: str) -> str:
    r"""Replace characters that Windows refuses, final dots and spaces, and names of devices (with any suffix).

    >>> usable_name("a:b?.png"), usable_name("nul.png"), usable_name("etc. ")
    ('a_b_.png', '_nul.png', 'etc__')
    """
    name = _REFUSED.sub("_", part)
    kept = name.rstrip(". ")
    name = kept + "_" * (len(name) - len(kept))
    return f"_{name}" if _RESERVED.fullmatch(name) else name


def folded(name: str) -> str:
    """Return the name in lower case: file systems preserve case but ignore it."""
    return name.casefold()


# -- Folders that are held open


def open_folder(folder: Path, *, follow: bool = False) -> int:
    """Return a descriptor that lets others rename the folder, as long as no file in it is open."""
    flags = _FOLDER | (0 if follow else _LINK_ITSELF)
    handle = _create_file(os.fspath(folder), _GENERIC_READ, _SHARE_ALL, None, _OPEN_EXISTING, flags, None)
    if handle == _NOTHING:
        raise _failed(ctypes.get_last_error(), folder)
    descriptor = msvcrt.open_osfhandle(handle, os.O_RDONLY | os.O_NOINHERIT)
    if (not follow and os.path.islink(folder)) or not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(folder))
    return descriptor


def close(descriptor: int) -> None:
    """Close it, then let go of its mutex."""
    mutex = _locks.pop(descriptor, None)
    os.close(descriptor)
    if mutex is not None:
        _close_handle(mutex)


def lock(descriptor: int) -> None:
    """Make a mutex with the name of the file's volume and number; it exists as long as its process has it.

    Windows cannot lock folders, and its locks of files keep others from reading. A mutex is known to the processes of
    this machine only: signs of life keep other machines out.
    """
    found = os.fstat(descriptor)
    ctypes.set_last_error(0)
    mutex = _create_mutex(None, 0, f"Global\\lmdbloader-{found.st_dev:x}-{found.st_ino:x}")
    code = ctypes.get_last_error()
    if mutex and code != _ALREADY_EXISTS:
        _locks[descriptor] = mutex
        return
    if mutex:
        _close_handle(mutex)
    elif code != _ACCESS_DENIED:  # which is another user's mutex
        raise _failed(code)
    raise BlockingIOError(errno.EWOULDBLOCK, "is locked by another process")


def _named_in(folder: int, name: str) -> str:
    """Return the path of a file in an open folder, by the name that the folder has now."""
    room = ctypes.create_unicode_buffer(32768)
    if not _path_of_handle(msvcrt.get_osfhandle(folder), room, len(room), 0):
        raise _failed(ctypes.get_last_error())
    return os.path.join(room.value, name)


def open_in(folder: int, name: str, *, write: bool = False, make: bool = False) -> int:
    """Open it by the name that the folder has now, after a check that it is not a link."""
    path = _named_in(folder, name)
    if os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT | os.O_EXCL if make else 0)
    return os.open(path, flags | _FLAGS, 0o666)


def remove_in(folder: int, name: str) -> None:
    """Remove it by the name that the folder has now; this fails while any process has the file open."""
    os.unlink(_named_in(folder, name))


def touch_in(folder: int, name: str) -> None:
    """Set it by the name that the folder has now."""
    os.utime(_named_in(folder, name))


def status_in(folder: int, name: str) -> os.stat_result:
    """Ask by the name that the folder has now."""
    return os.lstat(_named_in(folder, name))


def entries(folder: int) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
    """List it by the name that it has now; statuses of entries have no file number and no number of links."""
    return os.scandir(_named_in(folder, ""))


# -- Owners and permissions


def user() -> int:
    """Return 0, as the status of every file does: access control lists keep others out, and are not checked."""
    return 0


def permissions(found: os.stat_result) -> int:
    """Return the owner's only: a file's status has no others."""
    return found.st_mode & stat.S_IRWXU


def set_permissions(descriptor: int, mode: int) -> None:
    """Do nothing: a new folder has the access control list of its parent."""


# -- The machine

# QueryPerformanceCounter.
clock_ns = time.perf_counter_ns


def allowed_cores() -> int:
    """Return the size of the process's affinity; of a machine with several groups of processors, all that it has."""
    mine, all_there = ctypes.c_size_t(), ctypes.c_size_t()
    if not _affinity(-1, ctypes.byref(mine), ctypes.byref(all_there)) or not mine.value:
        return os.cpu_count() or 1
    return mine.value.bit_count()


def memory_sizes(root: Path = ROOT) -> tuple[int, int]:
    """Return the sizes from GlobalMemoryStatusEx."""
    found = _MemoryStatus(dwLength=ctypes.sizeof(_MemoryStatus))
    return (found.number0, found.number1) if _memory_status(ctypes.byref(found)) else (0, 0)


def processor_name(root: Path = ROOT) -> str:
    """Return it from the registry."""
    return " ".join(str(_registered("ProcessorNameString") or "").split())


def processor_clock(root: Path = ROOT) -> Clock:
    """Return what the registry states, which Windows measures when it starts."""
    found = _registered("~MHz")
    return Clock(base_mhz=float(found) if isinstance(found, int) else None)


def distribution(root: Path = ROOT) -> str | None:
    """Return the build, such as "Windows 10.0.22631"."""
    build = platform.win32_ver()[1]
    return f"Windows {build}" if build else None


def _registered(name: str) -> Any:
    """Return a fact about the first core; None if the registry lacks it."""
    try:
        import winreg

        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0") as key:
            return winreg.QueryValueEx(key, name)[0]
    except (ImportError, OSError):
        return None


# -- Processes


def _times(pid: int) -> tuple[int, int, int] | None:
    """Return start, and time in system and user mode, of a process that has not ended, in ticks; None without it."""
    handle = _open_process(_QUERY, 0, pid)
    if not handle:
        return None
    try:
        made, ended, system, user_mode = (ctypes.c_uint64() for _ in range(4))
        code = _NUMBER()
        is_there = _process_times(handle, *map(ctypes.byref, (made, ended, system, user_mode)))
        if not is_there or not _exit_code(handle, ctypes.byref(code)) or code.value != _STILL_RUNS:
            return None
        return made.value, system.value, user_mode.value
    finally:
        _close_handle(handle)


def start_of(pid: int) -> int:
    """Return it in units of 100 ns."""
    found = _times(pid)
    return 0 if found is None else found[0]


def process_seconds(pid: int) -> float:
    """Return it from GetProcessTimes."""
    found = _times(pid)
    return 0.0 if found is None else (found[1] + found[2]) / _TICKS_PER_SECOND


def wait_for_end_of(parent: int) -> None:
    """Wait for its handle: a process keeps the number of a parent that has ended."""
    handle = _open_process(_WAIT, 0, parent)
    if handle:
        _wait_for(handle, 0xFFFFFFFF)
        _close_handle(handle)


def how_ended(status: int) -> tuple[str, bool]:
    """Return the exit status, which for a crash is a number of the system."""
    code = status & 0xFFFFFFFF
    if code < 0xC0000000:
        return f"ended with exit status {status}", False
    return f"crashed with status {code:#010x}", code in _NO_MEMORY


def start_python(
    arguments: Sequence[str],
    handles: Sequence[int],
    *,
    env: Mapping[str, str],
    stdout: int | None = None,
    stderr: IO[bytes] | None = None,
    apart: bool = False,
) -> subprocess.Popen[bytes]:
    """Start the interpreter itself: in a virtual environment sys.executable would start it as a second process."""
    import subprocess

    program, more = sys.executable, {}
    base = getattr(sys, "_base_executable", program)
    if os.path.normcase(base) != os.path.normcase(program):
        program, more = base, {"__PYVENV_LAUNCHER__": sys.executable}
    # The process inherits these handles only, because close_fds is true by default; if it were false, subprocess would
    # warn that the list overrides it.
    startup = subprocess.STARTUPINFO(lpAttributeList={"handle_list": list(handles)})
    for handle in handles:
        os.set_handle_inheritable(handle, True)
    return subprocess.Popen(
        [program, *arguments],
        startupinfo=startup,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env={**env, **more},
        creationflags=subprocess.CREATE_NEW_PROCESS_GROUP if apart else 0,
    )


def connect(handle: int) -> Connection[Any, Any]:
    """Return the end of a named pipe."""
    from multiprocessing.connection import PipeConnection

    return cast("Connection[Any, Any]", PipeConnection(handle))


def send_file(connection: Connection[Any, Any], descriptor: int) -> None:
    """Send the number of a copy of the handle, for reading only, which the reader takes out of this process."""
    from multiprocessing.reduction import DupHandle

    connection.send(DupHandle(msvcrt.get_osfhandle(descriptor), _GENERIC_READ))


def receive_file(connection: Connection[Any, Any]) -> int:
    """Take the handle out of the other process, and close it there."""
    try:
        return descriptor_of(connection.recv().detach())
    except PermissionError as error:
        raise EOFError from error
