"""The destination folder: locked and hidden as OUT.partial while it is written, put in place in one step."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lmdbloader.descriptors import occupy_standard_descriptors
from lmdbloader.errors import DestinationError, DiskFullError, LockedError
from lmdbloader.format import (
    DATA_FILE,
    FORMAT_NAME,
    INDEX_FILE,
    LEFT_OUT_FILE,
    MANIFEST_FILE,
    PARTIAL_SUFFIX,
    SKIPPED_FILE,
)

OWNER_FILE = "owner.json"
COLUMNS_FOLDER = "columns"
# Of a conversion that can be resumed: what it is to do, and what of it is done.
PLAN_FILE, JOURNAL_FILE = "plan.json", "journal"
# Not of the dataset itself. They go once it is in place: until then a run that was killed could not be resumed without.
# The owner goes last: without it the others are somebody's own.
_WORKING_FILES = (JOURNAL_FILE, PLAN_FILE, OWNER_FILE)
# Where a repair makes files anew, and what LMDB's own tools leave where they open a dataset.
REPAIR_FOLDER, _LOCK_FILE = ".repair", "lock.mdb"
# What a dataset and an interrupted conversion consist of; a folder with anything else in it is somebody's own.
_OURS = frozenset({
    DATA_FILE, INDEX_FILE, MANIFEST_FILE, COLUMNS_FOLDER, SKIPPED_FILE, LEFT_OUT_FILE, REPAIR_FOLDER, _LOCK_FILE,
    *_WORKING_FILES,
})  # fmt: skip
# Where the dataset that is replaced stands for a moment, on systems that cannot exchange two folders.
_ASIDE_SUFFIX = PARTIAL_SUFFIX + ".replaced"
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_destination(out: Path, *, overwrite: bool) -> None:
    """Refuse a destination that is taken.

    Raises:
        DestinationError: `out` exists, is not an empty folder, and may not be replaced.
    """
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise DestinationError(f"{out}: exists and is not a folder. Choose another destination.")
    if not out.exists() or not any(out.iterdir()):
        return
    if not is_dataset(out):
        raise DestinationError(
            f"{out}: is a folder with other things in it, which is never replaced. Choose another destination."
        )
    if not overwrite:
        raise DestinationError(
            f"{out}: a dataset is there already, made from other inputs or with other options. "
            "Choose another destination, or overwrite it (--overwrite)."
        )
    if others := _others(out):
        raise DestinationError(
            f"{out}: {others[0]!r} in it is not of our making, and would be lost with the dataset that is replaced. "
            "Move it away."
        )


def is_dataset(path: Path) -> bool:
    """Return whether a folder holds a finished dataset of ours, of any format version."""
    try:
        data = (path / MANIFEST_FILE).read_bytes()
        return bool(json.loads(data).get("format") == FORMAT_NAME)
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


@contextmanager
def partial_folder(out: Path, *, resumable: bool = False) -> Iterator[Path]:
    """Yield the locked folder OUT.partial; it is removed unless `put_in_place` has moved it.

    Args:
        out: The dataset to be.
        resumable: Leave what an earlier conversion left in it, and leave in it what was begun when an error ends this
            one. Otherwise what was left there is removed first.

    Raises:
        LockedError: Another process is writing to it.
        DestinationError: It holds other things, or an unfinished conversion that is not to be resumed, or cannot be
            made.
    """
    partial = out.with_name(out.name + PARTIAL_SUFFIX)
    if not out.absolute().parent.is_dir():
        raise DestinationError(f"{out}: the folder {out.absolute().parent} does not exist. Create it first.")
    occupy_standard_descriptors()
    lock = _lock(partial)
    try:
        _refuse_others(partial)
        if not resumable:
            if is_begun(partial):
                raise DestinationError(
                    f"{partial}: an unfinished conversion is there. Finish it with the command that began it, or "
                    "remove it."
                )
            empty(partial)
        try:
            owner = {"pid": os.getpid(), "host": socket.gethostname()}
            (partial / OWNER_FILE).write_text(json.dumps(owner))
            yield partial
        finally:
            if _is_same(lock, partial) and not (resumable and is_begun(partial)):
                shutil.rmtree(partial, ignore_errors=True)
    finally:
        os.close(lock)


def is_begun(partial: Path) -> bool:
    """Return whether a folder holds an unfinished conversion of which something is done."""
    try:
        return (partial / PLAN_FILE).is_file() and (partial / JOURNAL_FILE).stat().st_size > 0
    except OSError:
        return False


def empty(folder: Path) -> None:
    """Remove everything from a folder but the note of whose it is."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != OWNER_FILE:
            entry.unlink()


def put_in_place(partial: Path, out: Path) -> None:
    """Rename a complete dataset to its name, replacing an older one in one step, durably.

    Raises:
        DestinationError: `out` has become something else than a dataset of ours.
    """
    check_destination(out, overwrite=True)  # last look: callers asked before they began to write
    for file in partial.iterdir():
        fsync(file)
    fsync(partial)
    if out.exists() and any(out.iterdir()):
        _remove_leftovers(out)  # in OUT.partial they would look like an unfinished conversion
        _exchange(partial, out)
        fsync(out.absolute().parent)
        shutil.rmtree(partial, ignore_errors=True)
    else:
        os.rename(partial, out)
        fsync(out.absolute().parent)
    _remove_leftovers(out)


def clear_leftovers(out: Path) -> None:
    """Remove what a conversion that was killed after `put_in_place` had renamed its dataset left beside and in it.

    What another process is writing to, an unfinished conversion and what is not of our making stay.
    """
    partial = out.with_name(out.name + PARTIAL_SUFFIX)
    if partial.is_dir() and not partial.is_symlink():
        try:
            lock = _lock(partial)
        except DestinationError:
            return
        try:
            if not is_begun(partial) and not _others(partial):
                shutil.rmtree(partial)
        finally:
            os.close(lock)
    _remove_leftovers(out)


def _remove_leftovers(out: Path) -> None:
    # Another process may do the same at the same time.
    aside = out.with_name(out.name + _ASIDE_SUFFIX)
    if is_dataset(aside):
        shutil.rmtree(aside, ignore_errors=True)
    if is_just_published(out):
        for name in _WORKING_FILES:
            (out / name).unlink(missing_ok=True)
        fsync(out)


def is_just_published(out: Path) -> bool:
    """Return whether a dataset still holds what it was made with: whoever put it in place was killed then."""
    try:
        owner = json.loads((out / OWNER_FILE).read_bytes())
        return isinstance(owner, dict) and {"pid", "host"} <= owner.keys()
    except (OSError, ValueError, RecursionError):
        return False


def fsync(path: Path) -> None:
    """Flush a file or a folder to its device."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def explain_full_disk(path: Path, needed_nbytes: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Turn "no space left" of any kind into DiskFullError with the place, what is free and what is missing.

    Args:
        path: What is written to.
        needed_nbytes: Returns about how much is still to be written, 0 where that is not known.
    """
    try:
        yield
    except DiskFullError:
        raise
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise disk_full(path, error, needed_nbytes()) from error


def disk_full(path: Path, error: Exception, needed_nbytes: int = 0) -> DiskFullError:
    """Return the error to raise when writing below `path` found no room.

    Args:
        path: What was written to.
        error: What the system said.
        needed_nbytes: About how much was still to be written, where that is known.
    """
    free = shutil.disk_usage(path if path.exists() else path.absolute().parent).free
    there = f"{free // 2**20} MiB are free there"
    if needed_nbytes > free:
        there = f"about {_mebibytes(needed_nbytes - free)} MiB are missing, {there}"
    elif needed_nbytes:
        there = (
            f"about {_mebibytes(needed_nbytes)} MiB are still to be written, {there}, and a quota or a limit of files' "
            "sizes (ulimit -f) may allow less"
        )
    return DiskFullError(f"{path}: disk full ({error}): {there}. Free some room and run it again.")


def _mebibytes(nbytes: int) -> int:
    return -(-nbytes // 2**20)


def is_full_disk(message: str) -> bool:
    """Return whether an LMDB error's text means that the disk is full."""
    return any(os.strerror(code) in message for code in _FULL)


def has_no_room(file: Path, nbytes: int) -> bool:
    """Return whether `nbytes` more do not fit behind a file, by reserving them for a moment."""
    try:
        with open(file, "ab") as handle:
            size = handle.tell()
            try:
                os.posix_fallocate(handle.fileno(), size, max(nbytes, 1))
            finally:
                os.ftruncate(handle.fileno(), size)
    except OSError as error:
        return error.errno in _FULL
    return False


def _lock(partial: Path) -> int:
    while True:
        try:
            partial.mkdir(exist_ok=True)
            lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno == errno.ENOENT and partial.absolute().parent.is_dir():
                continue  # its owner finished between the two calls
            if error.errno in _FULL:
                raise
            raise DestinationError(
                f"{partial}: cannot be made ({error.strerror}); a dataset is written there until it is complete. "
                "Make room at that name, or choose another destination."
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise DestinationError(
                    f"{partial}: cannot be locked ({error.strerror}); its file system has no flock"
                ) from error
            raise LockedError(f"{partial}: {_owner(partial)} is writing there. Wait for it, or stop it.") from error
        # The folder may have been renamed or removed between the opening and the locking.
        if _is_same(lock, partial):
            return lock
        os.close(lock)


def _owner(partial: Path) -> str:
    try:
        owner = json.loads((partial / OWNER_FILE).read_bytes())
        return f"process {int(owner['pid'])} on host {owner['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _is_same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _others(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name not in _OURS)


def _refuse_others(folder: Path) -> None:
    """Raise DestinationError where there is something that no conversion leaves."""
    if others := _others(folder):
        raise DestinationError(
            f"{folder}: {others[0]!r} in it is not of our making, and a dataset is written there until it is complete. "
            "Move it away."
        )


def _exchange(a: Path, b: Path) -> None:
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 and renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return
    # Without an exchange there is a moment in which nothing stands at `b`; both datasets are whole all the time.
    aside = b.with_name(b.name + _ASIDE_SUFFIX)
    os.rename(b, aside)
    os.rename(a, b)
    with contextlib.suppress(FileNotFoundError):  # whoever found the new dataset has cleared the old one away
        os.rename(aside, a)
