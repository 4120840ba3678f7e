"""The decorator of kernels: compiled without the GIL, once for this processor, and cached on disk."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.runtime import rtsys

# The newest Numba that is known to run a cached kernel without the imports that `_KernelCache` leaves out.
_NEWEST_KNOWN = (0, 68)
_LONGEST_WAIT_SECONDS = 2.0
_PACKAGE = Path(__file__).parents[2]
_IMPORT = re.compile(rf"^\s*(?:from|import)\s+({_PACKAGE.name}[\w.]*)(?:\s+import\s+(\([^)]*\)|.*))?", re.MULTILINE)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function for each new combination of argument types, or load it from the cache.

    The cache is next to the function's module; if that folder is not writable, in the user's cache folder; else in a
    folder under the temporary one that only this user can write to. Without any of them every process compiles again.
    NUMBA_CACHE_DIR, Numba's own setting, names another folder.

    With NUMBA_DISABLE_JIT=1 the function stays Python's, for a debugger.
    """
    if numba.config.DISABLE_JIT:
        return function
    dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
    try:
        dispatcher.enable_caching()
    except RuntimeError:  # no folder of Numba's choice can be written to
        _keep_in_private_folder(dispatcher)
    inner = getattr(dispatcher, "_cache", None)
    if inner is not None:
        dispatcher._cache = _KernelCache(inner)
        # Numba checks only a kernel's own file; its callees and constants may be in others.
        with contextlib.suppress(AttributeError):
            inner._cache_file._source_stamp = (inner._cache_file._source_stamp, _sources_digest(function.__module__))
    return dispatcher


@cache
def _sources_digest(module: str) -> str:
    """Return a digest of the sources of a module and of everything that it imports from this package."""
    sources: dict[str, bytes] = {}
    waiting = {module}
    while waiting:
        name = waiting.pop()
        source, imports = _source(name)
        if source:
            sources[name] = source
            waiting |= imports - sources.keys()
    digest = hashlib.sha256()
    for name, source in sorted(sources.items()):
        digest.update(f"{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()


@cache
def _source(module: str) -> tuple[bytes, frozenset[str]]:
    """Return a module's source and the names it may import; nothing for a package or a name in a module."""
    try:
        source = _PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py").read_bytes()
    except OSError:
        return b"", frozenset()
    found = _IMPORT.findall(source.decode("utf-8", "replace"))
    inside = {f"{name}.{word}" for name, words in found for word in re.findall(r"\w+", words)}
    return source, frozenset({name for name, _ in found} | inside)


class _KernelCache:
    """Numba's cache of one kernel, loaded with less work; a kernel that does not load is compiled."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the cached kernel for these argument types, None if there is none."""
        try:
            with _locked(self._inner.cache_path, fcntl.LOCK_SH):
                found = self._load(signature, target)
        # A file that was cut short may fail with any error of unpickling or linking. Data can be read nevertheless.
        except Exception:
            found = None
            with contextlib.suppress(OSError):
                self._inner.flush()
        if found is None:
            _announce(self._inner.cache_path)
        return found

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Cache a kernel, if possible."""
        try:
            # Numba replaces its files one by one: two processes would give two kernels the same number.
            with _locked(self._inner.cache_path, fcntl.LOCK_EX):
                self._inner.save_overload(signature, compiled)
        except OSError as error:
            _complain(self._inner.cache_path, str(error))

    def _load(self, signature: Any, target: Any) -> Any:
        found = None
        if numba.version_info.short <= _NEWEST_KNOWN:
            # Numba first imports everything that it can compile, scipy's linear algebra included, which takes ten times
            # as long as the rest. A compiled kernel needs only Numba's runtime.
            with contextlib.suppress(AttributeError, TypeError):
                rtsys.initialize(target)
                found = self._inner._load_overload(signature, target)
        if found is None:
            found = self._inner.load_overload(signature, target)
        # Without locks, processes may overwrite each other's files: this could be the code for other types.
        if found is not None and tuple(found.signature.args) != tuple(getattr(signature, "args", signature)):
            raise ValueError(f"kept for {found.signature.args}, expected {signature}")
        return found


@contextlib.contextmanager
def _locked(folder: str | None, how: int) -> Iterator[None]:
    """Hold a lock on the cache's folder; after a while, or if locks do not work, continue without."""
    try:
        handle = os.open(folder, os.O_RDONLY) if folder is not None else None
    except OSError:
        handle = None
    if handle is None:
        yield
        return
    try:
        give_up = time.monotonic() + _LONGEST_WAIT_SECONDS
        while not _try_lock(handle, how) and time.monotonic() < give_up:
            time.sleep(0.005)
        yield
    finally:
        # Closing is not enough: a process forked in between holds the same lock.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _try_lock(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _keep_in_private_folder(dispatcher: Any) -> None:
    folder = _private_folder()
    if folder is None:
        return
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = folder  # read once, by the next line
    try:
        with contextlib.suppress(RuntimeError):
            dispatcher.enable_caching()
    finally:
        numba.config.CACHE_DIR = before


@cache
def _private_folder() -> str | None:
    """Return a folder under the temporary one that only this user can write code to, None if there is none."""
    user = os.geteuid()
    try:
        parent = os.path.realpath(tempfile.gettempdir())
        around = os.lstat(parent)
        # A user who may rename our folder could put another one in its place.
        shared = around.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not around.st_mode & stat.S_ISVTX
        if shared or around.st_uid not in (0, user):
            return None
        folder = os.path.join(parent, f"lmdbloader-{user}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)  # of a symbolic link: the link
    except OSError:
        return None
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == user and not stat.S_IMODE(found.st_mode) & 0o077
    return folder if private else None


@cache
def _announce(folder: str | None) -> None:
    kept = (
        f"this is done once; they are kept in {folder}"
        if folder is not None
        else "in every process, as no folder to keep them in can be written to; name one in NUMBA_CACHE_DIR"
    )
    logging.getLogger("lmdbloader").warning(
        "lmdbloader: compiling the kernels for this processor, which may take a minute or two: %s", kept
    )


@cache
def _complain(folder: str, reason: str) -> None:
    logging.getLogger("lmdbloader").warning(
        "lmdbloader: compiled kernels could not be kept in %s (%s); name another folder in NUMBA_CACHE_DIR",
        folder,
        reason,
    )
