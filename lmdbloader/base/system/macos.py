"""macOS: renames that exchange, flushes that reach the device, and sizes of the memory by sysctl."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
import sys
import unicodedata
from pathlib import Path
from typing import Any

from lmdbloader.base.system.defaults import ROOT, Clock, Layout

assert sys.platform == "darwin"  # for mypy

__all__ = [
    "distribution", "exchange", "flush", "flush_path", "folded", "memory_sizes", "processor_clock", "processor_layout",
    "processor_name", "read_into", "reserve",
]  # fmt: skip

_RENAME_SWAP = 2
# Of fcntl.h.
_FULL_FLUSH, _PREALLOCATE = 51, 42
_ALLOCATE_ALL, _FROM_END = 4, 3


def folded(name: str) -> str:
    """Return the name in lower case and with composed characters: most file systems preserve case but ignore it."""
    return unicodedata.normalize("NFC", name).casefold()


def read_into(descriptor: int, buffer: Any, at: int) -> int:
    """Copy the bytes once: not every version has preadv."""
    view = memoryview(buffer).cast("B")
    data = os.pread(descriptor, view.nbytes, at)
    view[: len(data)] = data
    return len(data)


def flush(descriptor: int) -> None:
    """Have the drive write its own cache, too, which fsync does not; some file systems support fsync only."""
    try:
        fcntl.fcntl(descriptor, _FULL_FLUSH)
    except OSError:
        os.fsync(descriptor)


def flush_path(path: Path) -> None:
    """Flush it as `flush` does."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def reserve(descriptor: int, at: int, nbytes: int) -> None:
    """Take the space after the file's last byte, wherever the part begins; the file stays as long as it is."""
    request = struct.pack("=Iiqqq", _ALLOCATE_ALL, _FROM_END, 0, nbytes, 0)
    fcntl.fcntl(descriptor, _PREALLOCATE, request)


def exchange(a: Path, b: Path) -> bool:
    """Use renamex_np, which some file systems lack."""
    renamex = getattr(ctypes.CDLL(None), "renamex_np", None)
    return renamex is not None and bool(renamex(os.fsencode(a), os.fsencode(b), ctypes.c_uint(_RENAME_SWAP)) == 0)


def memory_sizes(root: Path = ROOT) -> tuple[int, int]:
    """Return the sizes from sysctl: pages that are free or hold files are available."""
    total, page_nbytes, free, files = (
        int.from_bytes(_sysctl(name), "little")
        for name in ("hw.memsize", "hw.pagesize", "vm.page_free_count", "vm.page_pageable_external_count")
    )
    available = (free + files) * page_nbytes
    return (total, available) if available else (0, 0)


def processor_name(root: Path = ROOT) -> str:
    """Return it from sysctl."""
    return _sysctl("machdep.cpu.brand_string").rstrip(b"\0").decode("utf-8", "replace")


def processor_layout(root: Path = ROOT) -> Layout:
    """Return it from sysctl."""
    sockets, cores, logical = (
        int.from_bytes(_sysctl(name), "little") for name in ("hw.packages", "hw.physicalcpu", "hw.logicalcpu")
    )
    return Layout(sockets or None, cores or None, logical > cores if cores and logical else None)


def processor_clock(root: Path = ROOT) -> Clock:
    """Return what sysctl states on Intel's processors; Apple's state nothing."""
    base, most = (int.from_bytes(_sysctl(name), "little") for name in ("hw.cpufrequency", "hw.cpufrequency_max"))
    return Clock(base_mhz=base / 1e6 or None, most_mhz=most / 1e6 or None)


def distribution(root: Path = ROOT) -> str | None:
    """Return the version that macOS has for its users."""
    release = platform.mac_ver()[0]
    return f"macOS {release}" if release else None


def _sysctl(name: str) -> bytes:
    """Return a value of the system; empty if it has none."""
    function = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    if function is None:
        return b""
    room, nbytes = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    if function(name.encode(), room, ctypes.byref(nbytes), None, ctypes.c_size_t(0)) != 0:
        return b""
    return room.raw[: nbytes.value]
