"""Errors of failing and full disks: they name the file, the room that is missing, and the remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lmdbloader.base import system
from lmdbloader.base.text import command
from lmdbloader.errors import CorruptError, DiskError, DiskFullError

# Errors of a disk, or of the connection to it, that no program causes.
DISK_FAILED = frozenset({
    errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.ENOTCONN, errno.EBADMSG,
    *(getattr(errno, name) for name in ("EREMOTEIO", "EUCLEAN", "EHWPOISON") if hasattr(errno, name)),
})  # fmt: skip
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def unreadable_is_corrupt(file: Path, *, dataset: Path) -> Iterator[None]:
    """Turn the error of a disk that cannot read a dataset's file into CorruptError."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FAILED:
            raise
        raise CorruptError(
            f"{file}: the disk cannot read it ({error.strerror}). Restore the dataset from a copy, or copy the files "
            f"that can still be read to another disk; {command('verify', dataset)} lists the samples that are lost.",
            path=str(dataset),
        ) from error


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the file's name to system errors that lack one, such as those of an open descriptor."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise


def disk_failed(path: str | bytes | os.PathLike[str], error: Exception) -> DiskError:
    """Return the error to raise when the disk fails on a file; `error` is the system's."""
    reason = getattr(error, "strerror", None) or str(error)
    return DiskError(
        f"{os.fsdecode(path)}: the disk failed ({reason}). Data that was not flushed yet is not trusted. Check "
        "the system log (dmesg), then run it again; use another disk if this one fails again."
    )


@contextmanager
def explain_full_disk(path: Path, needed_nbytes: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Turn "no space left" into DiskFullError, and other failures of a disk into DiskError.

    Args:
        path: The file or folder that is written to.
        needed_nbytes: Returns about how many bytes are still to be written; 0 if unknown.
    """
    try:
        yield
    except DiskFullError:
        raise
    except OSError as error:
        if error.errno in DISK_FAILED:
            raise disk_failed(error.filename or path, error) from error
        if error.errno not in DISK_FULL:
            raise
        raise disk_full(path, error, needed_nbytes()) from error


def disk_full(path: Path, error: Exception, needed_nbytes: int = 0) -> DiskFullError:
    """Return the error for a full disk at `path`; the arguments are as in `explain_full_disk`."""
    from lmdbloader.base.free_space import free_nbytes

    free = free_nbytes(path if path.exists() else path.absolute().parent)
    facts = [f"about {-(-needed_nbytes // 2**20)} MiB are still to be written"] * bool(needed_nbytes)
    facts += [f"{free // 2**20} MiB are free there"] if free is not None else ["its free space is unknown"]
    return DiskFullError(f"{path}: disk full ({error}): {', '.join(facts)}. Free some space and run it again.")


def has_no_room(file: Path, nbytes: int) -> bool:
    """Return whether a file cannot grow by `nbytes`, by reserving them for a moment."""
    try:
        with open(file, "ab") as handle:
            size = handle.tell()
            try:
                system.reserve(handle.fileno(), size, max(nbytes, 1))
            finally:
                os.ftruncate(handle.fileno(), size)
    except OSError as error:
        return error.errno in DISK_FULL
    return False
