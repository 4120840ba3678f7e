"""The library that is preloaded into processes whose calls are written down or made to fail."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

CALLS = ("read", "write", "fsync", "fdatasync", "rename", "truncate")
_HEAD = struct.Struct("<8sIIQQ")
NO_COMPILER = "no C compiler, or not Linux: no calls can be intercepted"


def build(folder: Path) -> Path | None:
    """Build the library in a folder; return its path, None where that cannot be done."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        return None
    library = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    words = [*compiler.split(), "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl", "-lpthread"]
    try:
        built = subprocess.run(words, capture_output=True)
    except FileNotFoundError:
        return None
    return None if built.returncode else library


@contextmanager
def preloaded(library: Path | None) -> Iterator[None]:
    """Have the processes that are started meanwhile, by exec, load a library first."""
    before = os.environ.get("LD_PRELOAD")
    if library is not None:
        os.environ["LD_PRELOAD"] = str(library) if before is None else f"{library}:{before}"
    try:
        yield
    finally:
        if before is not None:
            os.environ["LD_PRELOAD"] = before
        else:
            os.environ.pop("LD_PRELOAD", None)


def record(folder: Path, log: Path) -> None:
    """Write down, from now on, every change that this process makes below a folder; it has the library preloaded."""
    if _shim().shim_record(os.fsencode(os.path.realpath(folder)), os.fsencode(log)) < 0:
        raise RuntimeError(f"{log}: cannot be written")


def stop(number: int) -> None:
    """Have this process, whose changes are written down, stop (SIGSTOP) after the change of this number, from 1 on."""
    ctypes.CDLL(None).shim_stop(ctypes.c_long(number))


def fail(folder: Path, call: str, number: int, error: int) -> None:
    """Make one call of this process for a file below a folder fail.

    Args:
        folder: The folder.
        call: One of CALLS.
        number: Which of them, counted from 1; 0 only counts.
        error: The errno.
    """
    _shim().shim_fail(os.fsencode(os.path.realpath(folder)), call.encode(), number, error)


def counted() -> dict[str, int]:
    """Return how many calls of each kind there were since `fail`."""
    return {call: int(_shim().shim_counted(call.encode())) for call in CALLS}


def failed_path() -> str:
    """Return the path of the file whose call failed, empty where none did."""
    return os.fsdecode(_shim().shim_failed_path())


def _shim() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.shim_fail.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
    library.shim_counted.argtypes, library.shim_counted.restype = [ctypes.c_char_p], ctypes.c_long
    library.shim_failed_path.restype = ctypes.c_char_p
    return library


@dataclass(frozen=True, slots=True)
class Call:
    """One change.

    Attributes:
        kind: "C"reated, made folder "M", "W"ritten, written and flushed "D", cut or made longer "T", flu"S"hed,
            "U"nlinked, "L"inked, re"N"amed, e"X"changed.
        path: Of the file or folder, relative to the one that is recorded, "." itself.
        other: The new name.
        at: Where it was written, or the new length.
        data: The bytes written.
    """

    kind: str
    path: str
    other: str = ""
    at: int = 0
    data: bytes = b""

    def below(self, folder: str) -> Call:
        """Return it with paths relative to a folder that holds all of them."""
        names = (os.path.relpath(name, folder) if name else "" for name in (self.path, self.other))
        return replace(self, **dict(zip(("path", "other"), names, strict=True)))


def read_log(log: Path, folder: Path) -> list[Call]:
    """Return the calls that `record` wrote down."""
    content, at, calls = log.read_bytes(), 0, []
    root = os.path.realpath(folder)
    while at < len(content):
        kind, path_nbytes, other_nbytes, offset, nbytes = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        texts = []
        for length in (path_nbytes, other_nbytes):
            text = os.fsdecode(content[at : at + length])
            texts.append(os.path.relpath(text, root) if text else "")
            at += length
        kind = kind.rstrip(b"\0").decode()
        data = content[at : at + nbytes] if kind in "WD" else b""
        at += len(data)
        if not texts[0].endswith(" (deleted)"):
            calls.append(Call(kind, texts[0], texts[1], offset, data))
    return calls
