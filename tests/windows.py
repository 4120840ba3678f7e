"""Makes a process on Linux behave like one on Windows, as far as Python code can tell; used in a process of its own.

What Windows lacks is deleted, and what it refuses is refused: renaming and removing what is open or mapped, folders as
files, flushing what is open for reading only, and bytes of files that were not opened as binary. A few functions of
kernel32 are simulated with descriptors, which stand for handles.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib
import mmap
import multiprocessing.connection
import multiprocessing.reduction
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

# The folder of the mutexes, which processes share.
MUTEXES = "STAND_IN_MUTEXES"
MODULES = ("fcntl", "resource", "termios", "pwd", "grp", "posix")
LACKING = {
    os: (
        "O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK RWF_NOWAIT POSIX_FADV_DONTNEED POSIX_FADV_NORMAL "
        "POSIX_FADV_RANDOM POSIX_FADV_WILLNEED chown fchmod fchown fork forkpty fstatvfs getegid geteuid getgid "
        "getloadavg getpgid getuid killpg lchown memfd_create mkfifo nice posix_fadvise posix_fallocate pread preadv "
        "pwrite pwritev register_at_fork sched_getaffinity sched_setaffinity sendfile setsid statvfs sysconf sync "
        "uname wait wait3 wait4 waitid"
    ),
    signal: "SIGALRM SIGCHLD SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 setitimer alarm pthread_sigmask",
    time: "CLOCK_MONOTONIC clock_gettime clock_gettime_ns",
    socket: "send_fds recv_fds",
    mmap: (
        "MADV_NORMAL MADV_RANDOM MADV_WILLNEED MADV_DONTNEED MAP_POPULATE MAP_PRIVATE MAP_SHARED PROT_READ PROT_WRITE"
    ),
}
BINARY, NO_INHERIT = 1 << 28, 1 << 29
NOT_FOUND, PATH_NOT_FOUND, ACCESS_DENIED, SHARING_VIOLATION, ALREADY_EXISTS = 2, 3, 5, 32, 183
NUMBERS = {NOT_FOUND: errno.ENOENT, PATH_NOT_FOUND: errno.ENOENT, ACCESS_DENIED: errno.EACCES}
TICKS = 10**7
GENERIC_READ = 0x80000000
_real = SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))})
_flock, _get_flags = fcntl.flock, lambda descriptor: fcntl.fcntl(descriptor, fcntl.F_GETFL)
_code = SimpleNamespace(last=0)


def windows_error(code: int, path: Any = None, other: Any = None) -> OSError:
    error = OSError(NUMBERS.get(code, errno.EACCES), f"Windows says {code}", path, None, other)
    error.winerror = code
    return error


# -- What is open


def in_use(path: Any) -> list[str]:
    """Return the files at or below a path that this process has open or mapped; folders do not count.

    A file counts by each of its names: Windows shares one list of who has it open between them.
    """
    at = os.path.realpath(os.fsdecode(path))
    names, others = [], []
    for entry in os.listdir("/proc/self/fd"):
        try:
            name = _real.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if not os.path.isdir(name):
            names.append(name)
            others.append(f"/proc/self/fd/{entry}")
    with open("/proc/self/maps", encoding="utf-8") as maps:
        names += [line.rstrip("\n").split(None, 5)[5] for line in maps if line.count("/")]
    if os.path.isfile(at) and os.stat(at).st_nlink > 1:
        here = os.stat(at)
        names += [at for other in others if os.path.exists(other) and os.path.samestat(os.stat(other), here)]
    return sorted({name for name in names if name == at or name.startswith(at + "/")})


def refuse_use(*paths: Any) -> None:
    for path in paths:
        if used := in_use(path):
            raise windows_error(SHARING_VIOLATION, os.fsdecode(path), used[0])


def rename(source: Any, target: Any) -> None:
    refuse_use(source)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "Windows says 183", os.fspath(source), None, os.fspath(target))
    _real.rename(source, target)


def replace(source: Any, target: Any) -> None:
    refuse_use(source, target)
    if os.path.isdir(target):
        raise windows_error(ACCESS_DENIED, os.fspath(source), os.fspath(target))
    _real.replace(source, target)


def unlink(path: Any) -> None:
    refuse_use(path)
    _real.unlink(path)


def open_(path: Any, flags: int, mode: int = 0o777) -> int:
    caller = sys._getframe(1).f_globals.get("__name__", "")
    if caller.startswith("lmdbloader") and path != os.devnull:
        assert flags & BINARY, f"{caller} opens {path!r} as text"
    if os.path.isdir(path):
        raise windows_error(ACCESS_DENIED, os.fsdecode(path))
    return _real.open(path, (flags & ~(BINARY | NO_INHERIT)) | 0o2000000, mode)


def fsync(descriptor: int) -> None:
    if _get_flags(descriptor) & 3 == 0:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    _real.fsync(descriptor)


def disk_usage(path: Any) -> Any:
    found = _real.statvfs(path)
    return SimpleNamespace(total=found.f_blocks * found.f_frsize, free=found.f_bavail * found.f_frsize)


def lengthened(open_environment: Callable[..., Any]) -> Callable[..., Any]:
    """Return LMDB's function that opens an environment, whose file gets as long as its map."""

    def call(path: bytes, **options: Any) -> Any:
        environment = open_environment(path, **options)
        if not options.get("readonly"):
            os.truncate(path, max(options["map_size"], os.path.getsize(path)))
        return environment

    return call


def only_paths(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        if isinstance(path, int) or "dir_fd" in options:
            raise TypeError(f"{function.__name__}: Windows has it for paths only")
        return function(path, *arguments, **options)

    return call


# -- kernel32


def played(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes the attributes of ctypes, and forgets the last error."""

    def call(*arguments: Any) -> Any:
        _code.last = 0
        return function(*arguments)

    return call


def fail(code: int, answer: int = 0) -> int:
    _code.last = code
    return answer


def create_file(path: str, access: int, share: int, *rest: Any) -> int:
    assert share == 7, "others must be able to rename the folder"
    try:
        return _real.open(path, os.O_RDONLY | 0o2000000)
    except FileNotFoundError:
        return fail(NOT_FOUND, ctypes.c_void_p(-1).value or 0)
    except OSError:
        return fail(ACCESS_DENIED, ctypes.c_void_p(-1).value or 0)


def create_mutex(security: None, is_owner: int, name: str) -> int:
    space, _, rest = name.partition("\\")
    assert space == "Global" and "\\" not in rest and len(name) < 260
    file = _real.open(os.path.join(os.environ[MUTEXES], rest), os.O_RDWR | os.O_CREAT | 0o2000000, 0o666)
    try:
        _flock(file, 6)  # exclusive, without waiting
    except BlockingIOError:
        _code.last = ALREADY_EXISTS
    return file


def close_handle(handle: int) -> int:
    _real.close(handle)
    return 1


def place_of(overlapped: Any) -> int:
    where = overlapped._obj
    return int(where.Offset | where.OffsetHigh << 32)


def read_file(handle: int, address: int, nbytes: int, done: Any, overlapped: Any) -> int:
    data = _real.pread(handle, nbytes, place_of(overlapped))
    if nbytes and not data:
        return fail(38)
    ctypes.memmove(address, data, len(data))
    done._obj.value = len(data)
    return 1


def write_file(handle: int, data: bytes, nbytes: int, done: Any, overlapped: Any) -> int:
    done._obj.value = _real.pwrite(handle, data[:nbytes], place_of(overlapped))
    return 1


def final_path(handle: int, room: Any, length: int, flags: int) -> int:
    room.value = _real.readlink(f"/proc/self/fd/{handle}")
    return len(room.value)


def open_process(access: int, inherit: int, pid: int) -> int:
    try:
        return _real.open(f"/proc/{pid}", os.O_RDONLY | 0o2000000)
    except FileNotFoundError:
        return fail(87)


def process_times(handle: int, made: Any, ended: Any, system: Any, user: Any) -> int:
    folder = Path(_real.readlink(f"/proc/self/fd/{handle}"))
    words = (folder / "stat").read_text().rpartition(")")[2].split()
    made._obj.value, user._obj.value, system._obj.value = (int(words[at]) * TICKS // 100 for at in (19, 11, 12))
    return 1


def exit_code(handle: int, code: Any) -> int:
    code._obj.value = 259
    return 1


def affinity(process: int, mine: Any, there: Any) -> int:
    assert process == -1
    mine._obj.value, there._obj.value = 0b101, 0b111
    return 1


def memory_status(found: Any) -> int:
    assert found._obj.dwLength == 64
    found._obj.number0, found._obj.number1 = 64 * 2**30, 24 * 2**30
    return 1


KERNEL32: dict[str, Callable[..., Any]] = {
    "CreateFileW": create_file, "CreateMutexW": create_mutex, "CloseHandle": close_handle, "ReadFile": read_file,
    "WriteFile": write_file, "GetFinalPathNameByHandleW": final_path, "OpenProcess": open_process,
    "GetProcessTimes": process_times, "GetExitCodeProcess": exit_code, "GetProcessAffinityMask": affinity,
    "GlobalMemoryStatusEx": memory_status, "WaitForSingleObject": lambda handle, milliseconds: 0,
}  # fmt: skip


class Kernel32:
    """The library."""

    def __init__(self, name: str, use_last_error: bool = False) -> None:
        assert (name, use_last_error) == ("kernel32", True)

    def __getattr__(self, name: str) -> Any:
        return played(KERNEL32[name])


# -- Processes


class DupHandle:
    """An open file on its way to another process."""

    def __init__(self, handle: int, access: int) -> None:
        assert access == GENERIC_READ, "the copy could not be mapped"
        self.pid, self.handle = os.getpid(), _real.dup(handle)

    def detach(self) -> int:
        return _real.open(f"/proc/{self.pid}/fd/{self.handle}", os.O_RDONLY | 0o2000000)


class Popen(subprocess.Popen):
    """A process that gets handles by a list, and behaves like Windows, too."""

    def __init__(
        self, arguments: Any, *rest: Any, startupinfo: Any = None, creationflags: int = 0, **options: Any
    ) -> None:
        if startupinfo is not None:
            assert options.get("close_fds", True), "Python would warn that the list of handles overrides it"
            assert "pass_fds" not in options and arguments[1] == "-c"
            handles = startupinfo.lpAttributeList["handle_list"]
            assert all(map(_real.get_inheritable, handles))
            arguments = [arguments[0], "-c", f"import windows; windows.become()\n{arguments[2]}"]
            options.update(pass_fds=handles, start_new_session=bool(creationflags))
        super().__init__(arguments, *rest, **options)

    def kill(self) -> None:
        _real.kill(self.pid, 9)


def make_msvcrt() -> ModuleType:
    module = ModuleType("msvcrt")
    module.get_osfhandle = lambda descriptor: _real.fstat(descriptor) and descriptor
    module.open_osfhandle = lambda handle, flags: handle
    return module


def become() -> None:
    """Change this process. Other libraries are imported first: they may use what this system has."""
    for name in ("lmdb.verify", "PIL.Image", "pyarrow.compute", "torch.multiprocessing", "torch.utils.data", "tqdm"):
        importlib.import_module(name)
    importlib.import_module("PIL.Image").init()
    lmdb = importlib.import_module("lmdb")
    lmdb.open = lengthened(lmdb.open)
    importlib.import_module("lmdbloader.kernels.calls.libraries").load()
    assert "lmdbloader.base.system" not in sys.modules, "it was imported as on this system"
    sys.modules["msvcrt"] = make_msvcrt()
    ctypes.WinDLL = Kernel32
    ctypes.get_last_error = lambda: _code.last
    ctypes.set_last_error = lambda code: setattr(_code, "last", code)
    ctypes.FormatError = lambda code: f"Windows says {code}"
    ctypes.WinError = windows_error
    multiprocessing.connection.PipeConnection = multiprocessing.connection.Connection
    multiprocessing.reduction.DupHandle = DupHandle
    subprocess.Popen = Popen
    subprocess.STARTUPINFO = SimpleNamespace
    subprocess.CREATE_NEW_PROCESS_GROUP = 512
    shutil._use_fd_functions = shutil._USE_CP_SENDFILE = False
    shutil.disk_usage = disk_usage
    os.O_BINARY, os.O_NOINHERIT = BINARY, NO_INHERIT
    os.set_handle_inheritable = os.set_inheritable
    os.open, os.rename, os.replace = open_, rename, replace
    os.unlink = os.remove = unlink
    os.fsync = fsync
    for name in ("scandir", "listdir", "utime", "chmod"):
        setattr(os, name, only_paths(getattr(os, name)))
    for module, names in LACKING.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in MODULES:
        sys.modules[name] = None
    here = sys.platform
    sys.platform = "win32"
    try:
        importlib.import_module("lmdbloader.base.system")
    finally:
        sys.platform = here
