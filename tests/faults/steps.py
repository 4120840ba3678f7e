"""The steps of a conversion that can be seen from outside: each call that changes files, before and after it."""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import io
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb


@dataclass(frozen=True, slots=True)
class Step:
    """One moment.

    Attributes:
        call: The function: fsync, rename, commit ...
        path: Of the file or folder, below the folder that is watched; * for the tags of processes, which differ.
        is_done: Whether the call has returned.
        real: The path itself.
    """

    call: str
    path: str
    is_done: bool
    real: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{'after' if self.is_done else 'before'} {self.call} {self.path}"


# What a process alone knows: parts in work, files that are written, and what is replaced.
_TAGS = re.compile(r"(part-[0-9]{5,}\.|\.new-|\.replaced-)[^/]+")
# Calls with a path, with a path after another, and with a handle.
_PATHS = ("mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink", "truncate")
_HANDLES = ("fsync", "fdatasync", "ftruncate", "write", "pwrite", "posix_fallocate")


def watch(folder: Path, see: Callable[[Step], None]) -> None:
    """Have `see` called before and after every call of this process that changes something below a folder.

    This cannot be undone: use it in a process that ends soon.
    """
    root = os.path.realpath(folder)

    def name(path: Any, dir_fd: int | None = None) -> str | None:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        path = os.fsdecode(path)
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        # The last part may be a link, which then is changed itself.
        path = os.path.join(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))
        return os.path.relpath(path, root) if path == root or path.startswith(root + os.sep) else None

    @contextmanager
    def around(call: str, path: str | None) -> Iterator[None]:
        if path is None:
            yield
            return
        shown = _TAGS.sub(r"\1*", path)
        see(Step(call, shown, False, path))
        yield
        see(Step(call, shown, True, path))

    def wrap(module: Any, call: str) -> None:
        real = getattr(module, call)

        def wrapped(path: Any, *more: Any, dir_fd: int | None = None, **options: Any) -> Any:
            with around(call, name(path, dir_fd)):
                if dir_fd is not None:
                    options["dir_fd"] = dir_fd
                return real(path, *more, **options)

        _replace(module, call, wrapped)

    for call in (*_PATHS, *_HANDLES):
        wrap(os, call)
    wrap(fcntl, "flock")

    real_handle = os.open

    def open_handle(path: Any, flags: int, *more: Any, dir_fd: int | None = None) -> int:
        changes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        with around("open", name(path, dir_fd) if changes else None):
            return real_handle(path, flags, *more, dir_fd=dir_fd)

    _replace(os, "open", open_handle)
    real_open = io.open

    def wrapped_open(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        changes = set(mode) & set("wax+")
        with around("open", name(file) if changes and not isinstance(file, int) else None):
            return real_open(file, mode, *more, **options)

    for module in (io, builtins):
        _replace(module, "open", wrapped_open)
    real_environment = lmdb.open

    def open_environment(path: Any, *more: Any, **options: Any) -> Any:
        found = name(path)
        with around("open", found):
            return _Environment(real_environment(path, *more, **options), lambda: around("commit", found))

    lmdb.open = open_environment


def watch_function(module: Any, function: str, call: str, see: Callable[[Step], None]) -> None:
    """Have `see` called before and after a function or method, whatever it is called with."""
    real = getattr(module, function)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        see(Step(call, "", False))
        result = real(*arguments, **options)
        see(Step(call, "", True))
        return result

    setattr(module, function, wrapped)


def _replace(module: Any, call: str, function: Any) -> None:
    setattr(module, call, function)
    # Python 3.10's pathlib holds the functions that it found at its import.
    accessor = getattr(pathlib, "_NormalAccessor", None)
    if accessor is not None and module in (os, io) and hasattr(accessor, call):
        setattr(accessor, call, staticmethod(function))


class _Environment:
    """An LMDB environment whose commits are seen."""

    def __init__(self, real: Any, around: Callable[[], Any]) -> None:
        self._real, self._around = real, around

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __enter__(self) -> _Environment:
        return self

    def __exit__(self, *error: Any) -> None:
        self._real.close()

    def begin(self, *more: Any, **options: Any) -> Any:
        transaction = self._real.begin(*more, **options)
        return _Transaction(transaction, self._around) if options.get("write") else transaction


class _Transaction:
    def __init__(self, real: Any, around: Callable[[], Any]) -> None:
        self._real, self._around = real, around

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def commit(self) -> None:
        with self._around():
            self._real.commit()

    def __enter__(self) -> _Transaction:
        self._real.__enter__()
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        with self._around() if kind is None else contextlib.nullcontext():
            self._real.__exit__(kind, *error)
