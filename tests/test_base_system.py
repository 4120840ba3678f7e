"""Only base/system depends on the operating system; it can be imported on others than Linux."""

from __future__ import annotations

import ast
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from imports import PACKAGE, modules_of

from lmdbloader.base import system
from lmdbloader.lab.machine import residency

# What only some systems have, or what differs between them.
NAMES = {
    "os": (
        "O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK RWF_NOWAIT chown fchmod fchown fdatasync fork forkpty "
        "fstatvfs fsync getegid geteuid getgid getloadavg getuid killpg memfd_create mkfifo posix_fadvise "
        "posix_fallocate posix_spawn pread preadv pwrite pwritev register_at_fork sched_getaffinity sendfile setsid "
        "startfile statvfs sysconf umask uname"
    ),
    "sys": "platform getwindowsversion",
    "platform": "win32_ver mac_ver libc_ver",
    "ctypes": "WinDLL windll FormatError WinError",
    "signal": "SIGALRM SIGCHLD SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 setitimer alarm pthread_sigmask",
    "time": "CLOCK_MONOTONIC clock_gettime clock_gettime_ns",
    "socket": "send_fds recv_fds",
    "mmap": "MADV_NORMAL MADV_RANDOM MADV_WILLNEED MADV_DONTNEED MAP_POPULATE MAP_PRIVATE MAP_SHARED PROT_READ",
}
OPTIONS = {"dir_fd", "pass_fds", "preexec_fn", "start_new_session", "startupinfo", "creationflags"}
IMPORTS = {"fcntl", "resource", "termios", "pwd", "grp", "posix", "msvcrt", "winreg", "_winapi"}
# The files that build and load the kernels name the system of a library.
ELSEWHERE = ("lmdbloader.base.system", "lmdbloader.kernels")


def uses(source: str) -> Iterator[str]:
    """Yield the names in a module that only some systems have, or that differ between them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in IMPORTS)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module in IMPORTS:
                yield node.module
            yield from (f"{node.module}.{a.name}" for a in node.names if a.name in NAMES.get(node.module, "").split())
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in NAMES.get(node.value.id, "").split():
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call):
            yield from (f"{keyword.arg}=" for keyword in node.keywords if keyword.arg in OPTIONS)
            if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr") and len(node.args) > 1:
                module, name = (getattr(node.args[0], "id", ""), getattr(node.args[1], "value", ""))
                if name in NAMES.get(module, "").split():
                    yield f"{module}.{name}"


def test_nothing_else_depends_on_the_system() -> None:
    found = {
        name: sorted(set(uses(path.read_text("utf-8"))))
        for name, path in modules_of(PACKAGE).items()
        if not name.startswith(ELSEWHERE)
    }
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import fcntl", "fcntl"),
        ("def f():\n    import msvcrt", "msvcrt"),
        ("from resource import getrlimit", "resource"),
        ("import os\nos.pread(1, 2, 3)", "os.pread"),
        ("from os import fork", "os.fork"),
        ("import os\nif hasattr(os, 'geteuid'): pass", "os.geteuid"),
        ("import os\nos.fsync(3)", "os.fsync"),
        ("import signal\nx = signal.SIGKILL", "signal.SIGKILL"),
        ("import sys\nif sys.platform == 'linux': pass", "sys.platform"),
        ("import mmap\nmmap.mmap(1, 2, prot=mmap.PROT_READ)", "mmap.PROT_READ"),
        ("import os\nos.open('a', 0, dir_fd=3)", "dir_fd="),
        ("import subprocess\nsubprocess.Popen('a', pass_fds=[3])", "pass_fds="),
    ],
)
def test_a_planted_use_is_found(source: str, expected: str) -> None:
    assert list(uses(source)) == [expected]


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_a_file_is_read_on_other_systems(platform: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(range(100)))
    code = f"""
import ctypes, mmap, os, shutil, signal, statistics, sys, threading, unicodedata
lacking = {NAMES["os"].split()}
if {platform == "win32"}:
    for name in set(lacking) - {{"fsync", "statvfs"}}:
        if hasattr(os, name):
            delattr(os, name)
    sys.modules["fcntl"] = sys.modules["resource"] = None
sys.platform = {platform!r}
from lmdbloader.base import system
descriptor = system.open_to_read({str(tmp_path / "f")!r})
room = bytearray(5)
assert system.read_at(descriptor, 3, 10) == bytes([10, 11, 12]) and system.read_into(descriptor, room, 98) == 2
system.advise_order(descriptor, random=True)
system.will_read(descriptor, 0, 9)
system.drop_cache(descriptor)
assert not system.tells_residency(descriptor) and not system.resident_pages(0, 9, None)
assert system.is_cached(descriptor, 0) is None
assert system.allowed_cores() >= 1 and system.sizes_of(".") and system.clock_ns()
assert system.folded("A") == system.folded("a")
if {platform == "win32"}:
    try:
        system.lock(descriptor)
    except OSError as error:
        assert "no locks" in str(error)
        print("refused")
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == ("refused\n" if platform == "win32" else "")


@pytest.mark.skipif(not system.CAN_DROP_CACHE, reason="this platform cannot drop a file from memory")
def test_to_ask_whether_a_page_is_in_memory_does_not_read_it(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(64 * mmap.PAGESIZE))
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        system.drop_cache(file.fileno())
        if residency(path) != 0:
            pytest.skip("dropping a file from memory does nothing on this file system")
        assert [system.is_cached(file.fileno(), at * mmap.PAGESIZE) for at in (0, 5, 63)] == [False] * 3
        time.sleep(0.1)
        assert residency(path) == 0
        os.pread(file.fileno(), 1, 5 * mmap.PAGESIZE)
        assert system.is_cached(file.fileno(), 5 * mmap.PAGESIZE + 7)
        assert system.is_cached(file.fileno(), 100 * mmap.PAGESIZE)  # there is no such byte to read
