"""Whose OUT.partial is: one's own folder, opened once, with nothing in it that others could have put there."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lmdbloader.errors import DestinationError, FormatError
from lmdbloader.format.layout import PARTIAL_SUFFIX

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
# Where the folder that is replaced stands for a moment, on systems that cannot exchange two of them.
ASIDE_SUFFIX = PARTIAL_SUFFIX + ".replaced"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_KINDS = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


def open_folder(folder: Path, *, make: bool = False) -> int:
    """Return a descriptor of a folder that is no link.

    Raises:
        OSError: There is none, or it cannot be opened.
    """
    if make:
        folder.mkdir(exist_ok=True)
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)


def take_possession(descriptor: int, folder: Path) -> int:
    """Make sure that a folder is the user's own, and that nobody else can put anything into it from now on.

    Where the file system knows no owners or no permissions, there is a warning instead.

    Args:
        descriptor: Of the folder.
        folder: Its name, for messages.

    Returns:
        The permissions that it had, or would have if it were made now.

    Raises:
        DestinationError: It belongs to another user, or holds what is another user's, a link, or no regular file.
    """
    found = os.fstat(descriptor)
    knows_owners = found.st_uid == os.geteuid() or _knows_owners(folder, found)
    if found.st_uid != os.geteuid():
        if knows_owners:
            raise DestinationError(
                f"{folder}: belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}: what is "
                "written into another user's folder may be led elsewhere. Remove it, or name another destination."
            )
        _warn(folder, "its file system does not tell whose a folder is")
    if found.st_mode & _WRITABLE_BY_OTHERS:
        with suppress(OSError):  # a file system without permissions
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_WRITABLE_BY_OTHERS)
        if os.fstat(descriptor).st_mode & _WRITABLE_BY_OTHERS:
            _warn(folder, "its file system does not take away others' permission to write")
    _refuse_strange(descriptor, folder, check_owner=knows_owners)
    return stat.S_IMODE(found.st_mode) | (_WRITABLE_BY_OTHERS & ~_umask())


def _warn(folder: Path, why: str) -> None:
    warnings.warn(
        f"{folder}: {why}, so another user of this machine may be able to change what is written there.", stacklevel=5
    )


def _knows_owners(folder: Path, found: os.stat_result) -> bool:
    """Return whether the file system gives what this process makes to the user that it runs as."""
    try:
        probe = tempfile.mkdtemp(prefix=f".{folder.name[:100]}.", dir=folder.parent)
    except OSError:
        return True
    try:
        made = os.lstat(probe)
    finally:
        os.rmdir(probe)
    # Another file system mounted at the folder itself would not be the one that was asked.
    return made.st_uid != found.st_uid or made.st_dev != found.st_dev


def _umask() -> int:
    """Return which permissions new files do not get; os.umask would take them from other threads for a moment."""
    try:
        with open("/proc/self/status", "rb") as status:
            return next(int(line.split()[1], 8) for line in status if line.startswith(b"Umask:"))
    except (OSError, StopIteration, ValueError):
        return 0o777


def _refuse_strange(descriptor: int, folder: Path, *, check_owner: bool) -> None:
    with os.scandir(descriptor) as entries:
        for entry in entries:
            found = entry.stat(follow_symlinks=False)
            what = ""
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                what = f"is {_KINDS.get(stat.S_IFMT(found.st_mode), 'a device')}"
            elif check_owner and found.st_uid != os.geteuid():
                what = f"belongs to user {found.st_uid}"
            elif stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                what = "has another name elsewhere (a hard link)"
            if what:
                raise DestinationError(
                    f"{folder}: {entry.name!r} in it {what}, which no conversion leaves, and a dataset is written "
                    "there until it is complete. Find out who put it there, and remove it or the whole folder."
                )


def inside(descriptor: int, folder: Path) -> Path:
    """Return a path that leads to an open folder, whatever has its name by now; its name where there is no /proc.

    Only this process understands it: `named` puts the name into the errors that tell of it.
    """
    path = Path(f"/proc/self/fd/{descriptor}")
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return path
    return folder


@contextmanager
def named(path: Path, folder: Path) -> Iterator[None]:
    """Have errors call a folder by its name where they tell of a path that `inside` returned."""
    try:
        yield
    except BaseException as error:
        if path != folder:
            _rename(error, re.compile(re.escape(str(path)) + r"(?!\d)"), str(folder))
        raise


def _rename(error: BaseException, path: re.Pattern[str], name: str) -> None:
    def replaced(value: object) -> object:
        if isinstance(value, bytes):
            return os.fsencode(path.sub(lambda _: name, os.fsdecode(value)))
        return path.sub(lambda _: name, value) if isinstance(value, str) else value

    error.args = tuple(map(replaced, error.args))
    if isinstance(error, OSError):
        for attribute in ("filename", "filename2"):
            # One that was never set must stay so: an error with a name of None shows it.
            if (value := getattr(error, attribute)) is not None:
                setattr(error, attribute, replaced(value))


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open folder has a name, itself and not by a link."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def open_own_file(path: Path) -> int:
    """Return a descriptor, to be read, of a regular file that stands under its own name in a folder.

    Raises:
        FormatError: It is a link, or no regular file.
        FileNotFoundError: There is nothing.
    """
    try:
        # A FIFO must not hold up who opens it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise FormatError(
            f"{path}: is a link, and none is followed in a dataset that is copied. Put the file itself there."
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FormatError(f"{path}: is no regular file; expected one of a dataset made by lmdbloader.")
    return descriptor


def is_own_file(path: Path) -> bool:
    """Return whether there is a regular file that has no other name, so that it is nobody else's."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def exchange(a: Path, b: Path) -> None:
    """Give two folders each other's name, in one step where the system can."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 and renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return
    # Without an exchange there is a moment in which nothing stands at `b`; both folders are whole all the time.
    aside = b.with_name(b.name + ASIDE_SUFFIX)
    os.rename(b, aside)
    os.rename(a, b)
    with suppress(FileNotFoundError):  # whoever found the new one has cleared the old one away
        os.rename(aside, a)
