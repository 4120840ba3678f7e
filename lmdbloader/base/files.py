"""Opens regular files only, replaces files in one step, guards descriptors 0 to 2."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmdbloader.base import system
from lmdbloader.base.disk_errors import explain_full_disk

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegularError(OSError):
    """There is a FIFO, a socket or a device instead of a file."""


def open_regular(path: str | bytes | os.PathLike[str]) -> int:
    """Return a descriptor that reads a regular file.

    Links are followed. Nothing else is ever opened: opening a FIFO would block, and opening a device may have effects.

    Raises:
        IsADirectoryError: It is a folder.
        NotRegularError: It is a FIFO, a socket or a device.
        OSError: It cannot be opened.
    """
    _check(os.stat(path).st_mode, path)
    # The file may have been replaced since.
    descriptor = system.open_to_read(path)
    try:
        _check(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | bytes | os.PathLike[str], most: int) -> bytes:
    """Return up to the first `most` bytes of a regular file.

    Raises:
        OSError: As `open_regular`, or it cannot be read.
    """
    with open(open_regular(path), "rb") as file:
        # `read` allocates as many bytes as it is asked for.
        return file.read(min(os.fstat(file.fileno()).st_size, most))


def _check(mode: int, path: str | bytes | os.PathLike[str]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise NotRegularError(errno.EINVAL, f"is {kind}, not a regular file", os.fspath(path))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a hidden path in the same folder; the file written to it replaces `path` in one step when the block ends.

    An error in the block leaves `path` as it was, and removes the hidden file.

    Raises:
        DiskFullError: No room left.
        DiskError: The disk failed.
    """
    hidden = path.with_name(f".{path.name}.partial")
    try:
        with explain_full_disk(path):
            yield hidden
            os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)


def occupy_standard_descriptors() -> None:
    """Open /dev/null for each of standard input, output and error that is closed.

    The next file to be opened gets the lowest free descriptor. If data.mdb became number 2, text that a library writes
    to standard error would end up in it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:  # another thread has just taken it
                os.close(opened)
            else:
                os.set_inheritable(number, True)
