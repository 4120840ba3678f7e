"""Error messages for failing disks: which file failed, and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from lmdbloader.errors import CorruptError, DiskError

# What a system says of a disk, or of the way to it, that does not do what it should; of nothing that a program did.
DISK_FAILED = frozenset({
    errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.ENOTCONN, errno.EBADMSG,
    *(getattr(errno, name) for name in ("EREMOTEIO", "EUCLEAN", "EHWPOISON") if hasattr(errno, name)),
})  # fmt: skip


@contextmanager
def unreadable_is_corrupt(file: Path, *, dataset: Path) -> Iterator[None]:
    """Turn what a disk says that does not read a file of a dataset into CorruptError."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FAILED:
            raise
        raise CorruptError(
            f"{file}: the disk does not read it ({error.strerror}). Copy the dataset from elsewhere, or what still "
            f"reads to another disk; `lmdbloader verify {dataset}` says what is lost.",
            path=str(dataset),
        ) from error


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Give errors of the system that name no file, as those of an open one do not, the name of the one it is."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise


@contextmanager
def explain_lmdb(data: Path) -> Iterator[None]:
    """Turn LMDB's way of saying that a disk fails into DiskError."""
    try:
        yield
    except lmdb.Error as error:
        if os.strerror(errno.EIO) not in str(error):
            raise
        raise disk_failed(data, error) from error


def disk_failed(path: str | bytes | os.PathLike[str], error: Exception) -> DiskError:
    """Return the error to raise where a disk failed.

    Args:
        path: Of the file.
        error: What the system said.
    """
    reason = getattr(error, "strerror", None) or str(error)
    return DiskError(
        f"{os.fsdecode(path)}: the disk failed ({reason}). Data that was not flushed before is not trusted. Check "
        "the system log (dmesg), then run it again; use another disk if this one fails again."
    )
