"""Makes sure that a folder belongs to the user, is opened once, and holds nothing that others could have put there."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lmdbloader.base import system
from lmdbloader.errors import DestinationError, FormatError
from lmdbloader.format.layout import PARTIAL_SUFFIX

# The folder that is replaced has this name for a moment, on systems that cannot exchange two folders.
ASIDE_SUFFIX = PARTIAL_SUFFIX + ".replaced"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_KINDS = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


def open_folder(folder: Path, *, make: bool = False) -> int:
    """Return a descriptor of a folder, not of a link to one.

    Raises:
        OSError: There is none, or it cannot be opened.
    """
    if make:
        folder.mkdir(exist_ok=True)
    return system.open_folder(folder)


def take_possession(descriptor: int, folder: Path) -> int:
    """Make sure that a folder belongs to the user, and that nobody else can write to it from now on.

    A file system without owners or permissions causes a warning instead.

    Args:
        descriptor: The folder's.
        folder: Its name, for messages.

    Returns:
        The permissions that it had, or would have if it were made now.

    Raises:
        DestinationError: It belongs to another user, or holds another user's file, a link, or a device or the like.
    """
    found = os.fstat(descriptor)
    user = system.user()
    knows_owners = found.st_uid == user or _knows_owners(folder, found)
    if found.st_uid != user:
        if knows_owners:
            raise DestinationError(
                f"{folder}: belongs to user {found.st_uid}, and this process runs as user {user}: that user "
                "could redirect files that are written there. Remove it, or choose another destination."
            )
        _warn(folder, "its file system does not have owners")
    permissions = system.permissions(found)
    if permissions & _WRITABLE_BY_OTHERS:
        with suppress(OSError):  # a file system without permissions
            system.set_permissions(descriptor, permissions & ~_WRITABLE_BY_OTHERS)
        if system.permissions(os.fstat(descriptor)) & _WRITABLE_BY_OTHERS:
            _warn(folder, "its file system does not let others' permission to write be removed")
    _refuse_strange(descriptor, folder, check_owner=knows_owners)
    return permissions | (_WRITABLE_BY_OTHERS & ~system.umask())


def _warn(folder: Path, why: str) -> None:
    warnings.warn(
        f"{folder}: {why}, so another user of this machine may be able to change what is written there.", stacklevel=5
    )


def _knows_owners(folder: Path, found: os.stat_result) -> bool:
    """Return whether the file system gives new files to the user that this process runs as."""
    try:
        probe = tempfile.mkdtemp(prefix=f".{folder.name[:100]}.", dir=folder.parent)
    except OSError:
        return True
    try:
        made = os.lstat(probe)
    finally:
        os.rmdir(probe)
    # If another file system is mounted at the folder, the probe says nothing about it.
    return made.st_uid != found.st_uid or made.st_dev != found.st_dev


def _refuse_strange(descriptor: int, folder: Path, *, check_owner: bool) -> None:
    with system.entries(descriptor) as entries:
        for entry in entries:
            found = entry.stat(follow_symlinks=False)
            fault = ""
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                fault = f"is {_KINDS.get(stat.S_IFMT(found.st_mode), 'a device')}"
            elif check_owner and found.st_uid != system.user():
                fault = f"belongs to user {found.st_uid}"
            elif stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                fault = "has another name elsewhere (a hard link)"
            if fault:
                raise DestinationError(
                    f"{folder}: {entry.name!r} in it {fault}, which no conversion leaves, and a dataset is written "
                    "there until it is complete. Find out who put it there, and remove it or the whole folder."
                )


def inside(descriptor: int, folder: Path) -> Path:
    """Return a path to an open folder that works even if another folder has its name; its name on other systems.

    The path means something to this process only: `named` replaces it by the name in errors.
    """
    return system.path_of(descriptor) or folder


@contextmanager
def named(path: Path, folder: Path) -> Iterator[None]:
    """Replace a path that `inside` returned by the folder's name in errors."""
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
            # Leave an unset name unset: an error that was given None would print it.
            if (value := getattr(error, attribute)) is not None:
                setattr(error, attribute, replaced(value))


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open folder is at `path`, not through a link."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def open_own_file(path: Path) -> int:
    """Return a descriptor that reads a regular file; links are not followed.

    Raises:
        FormatError: It is a link, or not a regular file.
        FileNotFoundError: There is nothing.
    """
    try:
        descriptor = system.open_itself(path)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise FormatError(
            f"{path}: is a link, and links are not followed in a dataset that is copied. Put the file itself there."
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FormatError(f"{path}: is not a regular file; expected one of a dataset made by lmdbloader.")
    return descriptor


def is_own_file(path: Path) -> bool:
    """Return whether there is a regular file without another name, which therefore belongs to this folder alone."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def exchange(a: Path, b: Path) -> None:
    """Exchange the names of two folders, in one step if the system can."""
    if system.exchange(a, b):
        return
    # Without an exchange there is a moment without a folder at `b`; both folders stay complete.
    aside = b.with_name(b.name + ASIDE_SUFFIX)
    os.rename(b, aside)
    os.rename(a, b)
    with suppress(FileNotFoundError):  # another process found the new one and removed the old one
        os.rename(aside, a)
