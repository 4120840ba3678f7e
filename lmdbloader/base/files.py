"""Opens what must be a regular file: a FIFO would hold up whoever opens it, and a device may do anything then."""

from __future__ import annotations

import errno
import os
import stat

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegularError(OSError):
    """A FIFO, a socket or a device stands where a file is expected."""


def open_regular(path: str | bytes | os.PathLike[str]) -> int:
    """Return a descriptor of a regular file, to read it; links are followed, and nothing else is ever opened.

    Raises:
        IsADirectoryError: It is a folder.
        NotRegularError: It is a FIFO, a socket or a device.
        OSError: It cannot be opened.
    """
    _check(os.stat(path).st_mode, path)
    # It may be another one by now.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _check(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | bytes | os.PathLike[str], most: int) -> bytes:
    """Return the content of a regular file, of a longer one its first `most` bytes.

    Raises:
        OSError: As `open_regular`, or it cannot be read.
    """
    with open(open_regular(path), "rb") as file:
        # A reader of so many bytes makes room for all of them first.
        return file.read(min(os.fstat(file.fileno()).st_size, most))


def _check(mode: int, path: str | bytes | os.PathLike[str]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise NotRegularError(errno.EINVAL, f"is no regular file but {kind}", os.fspath(path))
