"""The destination folder: locked and hidden as OUT.partial while it is written, put in place in one step."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lmdbloader.base.descriptors import occupy_standard_descriptors
from lmdbloader.base.files import read_regular
from lmdbloader.base.option_names import option
from lmdbloader.errors import DestinationError, DiskFullError
from lmdbloader.format.layout import (
    DATA_FILE,
    FORMAT_NAME,
    INDEX_FILE,
    LEFT_OUT_FILE,
    MANIFEST_FILE,
    PARTIAL_SUFFIX,
    SKIPPED_FILE,
    SOURCES_FILE,
)
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, load_json
from lmdbloader.store.diskerrors import DISK_FAILED, disk_failed, naming
from lmdbloader.store.writing.claim import OWNER_FILE, claim, is_mine
from lmdbloader.store.writing.ownership import ASIDE_SUFFIX, exchange, inside, is_at, named

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
    DATA_FILE, INDEX_FILE, MANIFEST_FILE, COLUMNS_FOLDER, SKIPPED_FILE, LEFT_OUT_FILE, SOURCES_FILE, REPAIR_FOLDER,
    _LOCK_FILE, *_WORKING_FILES,
})  # fmt: skip
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
            f"Choose another destination, or overwrite it ({option('overwrite', True)})."
        )
    if others := _others(out):
        raise DestinationError(
            f"{out}: {others[0]!r} in it is not of our making, and would be lost with the dataset that is replaced. "
            "Move it away."
        )


def is_dataset(path: Path) -> bool:
    """Return whether a folder holds a finished dataset of ours, of any format version."""
    try:
        return bool(load_json(read_regular(path / MANIFEST_FILE, MAX_MANIFEST_NBYTES)).get("format") == FORMAT_NAME)
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


@contextmanager
def partial_folder(
    out: Path, *, resumable: bool = False, take_over: bool = False, log: Callable[[str], None] = lambda line: None
) -> Iterator[Path]:
    """Yield a path to the locked folder OUT.partial; it is removed unless `put_in_place` has moved it.

    The path leads to the folder that was locked, whatever has its name later. The folder is the user's own, nobody else
    can write to it until it is in place, and there is no link in it.

    Args:
        out: The dataset to be.
        resumable: Leave what an earlier conversion left in it, and leave in it what was begun when an error ends this
            one. Otherwise what was left there is removed first.
        take_over: Go on with it without a look for signs of life, where a process of another host has begun it.
        log: Called with lines of text for people.

    Raises:
        LockedError: Another process is writing to it.
        DestinationError: It holds other things, or an unfinished conversion that is not to be resumed, or cannot be
            made; or it is another user's, or somebody may have led it elsewhere, or took it over meanwhile.
    """
    partial = _partial_of(out)
    if not out.absolute().parent.is_dir():
        raise DestinationError(f"{out}: the folder {out.absolute().parent} does not exist. Create it first.")

    def check(folder: Path) -> None:
        _refuse_others(folder, partial)
        if not resumable and is_begun(folder):
            raise DestinationError(
                f"{partial}: an unfinished conversion is there. Finish it with the command that began it, or remove it."
            )

    advice = ""
    if resumable:
        advice = (
            f"; if you are certain that it has ended, {option('take_over', True)} continues from its committed data. "
            "The rest is lost then, and if it is still running, it ends with an error"
        )
    occupy_standard_descriptors()
    lock = claim(partial, check, keep=_worth_keeping, advice=advice, take_over=take_over, log=log)
    folder = inside(lock.folder, partial)
    is_removed = False
    try:
        with named(folder, partial), lock.beating():
            try:
                if not resumable:
                    empty(folder)
                yield folder
            except OSError as error:
                if isinstance(error, DestinationError) or any(is_at(lock.folder, path) for path in (partial, out)):
                    raise
                raise _lost(partial) from error
            finally:
                if is_at(lock.folder, out):
                    os.fchmod(lock.folder, lock.permissions)
                elif is_at(lock.folder, partial) and lock.is_mine() and not (resumable and is_begun(folder)):
                    _remove(folder, partial)
                    is_removed = True
                else:
                    lock.release()
    finally:
        lock.close()
        if is_removed:
            _remove_empty(partial)


def _worth_keeping(folder: Path) -> tuple[str, ...]:
    """Return the names of the files that an unfinished conversion goes on with."""
    # The data before what tells of it: of a process that still writes, the journal then knows all that was copied.
    return tuple(n for n in (DATA_FILE, JOURNAL_FILE, PLAN_FILE) if (folder / n).is_file()) if is_begun(folder) else ()


def _partial_of(out: Path) -> Path:
    return out.with_name(out.name + PARTIAL_SUFFIX)


def _remove(folder: Path, partial: Path) -> None:
    """Remove what is in a folder as far as possible, and what has its name if that is empty."""
    with contextlib.suppress(OSError):
        # The note of its owner goes last: until then it is nobody else's.
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == OWNER_FILE):
            with contextlib.suppress(OSError):
                _delete(entry)
    _remove_empty(partial)


def _remove_empty(partial: Path) -> None:
    # Once more when the note is closed: NFS keeps a file that is open under another name.
    with contextlib.suppress(OSError):
        partial.rmdir()


def _delete(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def is_begun(partial: Path) -> bool:
    """Return whether a folder holds an unfinished conversion of which something is done."""
    try:
        return (partial / PLAN_FILE).is_file() and (partial / JOURNAL_FILE).stat().st_size > 0
    except OSError:
        return False


def begun_partial(out: Path) -> Path | None:
    """Return the folder that holds what is done of an unfinished conversion to `out`; None where there is none."""
    partial = out.with_name(out.name + PARTIAL_SUFFIX)
    return partial if is_begun(partial) else None


def empty(folder: Path) -> None:
    """Remove everything from a folder but the note of whose it is."""
    for entry in folder.iterdir():
        if entry.name != OWNER_FILE:
            _delete(entry)


def put_in_place(partial: Path, out: Path) -> None:
    """Rename a complete dataset to its name, replacing an older one in one step, durably.

    Args:
        partial: The path that `partial_folder` has yielded for `out`.
        out: The dataset to be.

    Raises:
        DestinationError: `out` has become something else than a dataset of ours, or something else has the name of the
            folder that was written to.
    """
    name = _partial_of(out)
    check_destination(out, overwrite=True)  # last look: callers asked before they began to write
    for file in partial.iterdir():
        fsync(file)
    fsync(partial)
    folder = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _rename_into_place(folder, name, out)
    finally:
        os.close(folder)
    _remove_leftovers(out)


def _rename_into_place(folder: int, name: Path, out: Path) -> None:
    _refuse_lost(folder, name, name)
    replaces = out.exists() and any(out.iterdir())
    if replaces:
        _remove_leftovers(out)  # in OUT.partial they would look like an unfinished conversion
        exchange(name, out)
    else:
        os.rename(name, out)
    if not is_at(folder, out):
        # Between the look and the renaming somebody else took the name: what came here is theirs, and goes back.
        with contextlib.suppress(OSError):
            exchange(name, out) if replaces else os.rename(out, name)
        _refuse_lost(folder, out, name)
    fsync(out.absolute().parent)
    if replaces:
        shutil.rmtree(name, ignore_errors=True)


def _refuse_lost(folder: int, path: Path, name: Path) -> None:
    """Raise DestinationError unless an open folder has a name, and is still this process's."""
    if not (is_at(folder, path) and is_mine(folder, path)):
        raise _lost(name)


def _lost(partial: Path) -> DestinationError:
    return DestinationError(
        f"{partial}: is no longer the folder that was written to: another process took it over, or somebody renamed or "
        "replaced it, and nothing is put in place. Find out who writes there, and run it again."
    )


def clear_leftovers(out: Path) -> None:
    """Remove what a conversion that was killed after `put_in_place` had renamed its dataset left beside and in it.

    What another process is writing to, an unfinished conversion and what is not of our making stay.
    """
    partial = _partial_of(out)
    if partial.is_dir() and not partial.is_symlink():
        try:
            lock = claim(partial, lambda folder: _refuse_others(folder, partial), keep=_worth_keeping, wait=False)
        except DestinationError:
            return
        try:
            folder = inside(lock.folder, partial)
            if is_begun(folder):
                lock.release()
            else:
                _remove(folder, partial)
        finally:
            lock.close()
            _remove_empty(partial)
    _remove_leftovers(out)


def _remove_leftovers(out: Path) -> None:
    # Another process may do the same at the same time.
    aside = out.with_name(out.name + ASIDE_SUFFIX)
    if is_dataset(aside):
        shutil.rmtree(aside, ignore_errors=True)
    if is_just_published(out):
        for name in _WORKING_FILES:
            (out / name).unlink(missing_ok=True)
        fsync(out)


def is_just_published(out: Path) -> bool:
    """Return whether a dataset still holds what it was made with: whoever put it in place was killed then."""
    try:
        owner = load_json(read_regular(out / OWNER_FILE, MAX_MANIFEST_NBYTES))
        return isinstance(owner, dict) and {"pid", "host"} <= owner.keys()
    except (OSError, ValueError, RecursionError):
        return False


def fsync(path: Path) -> None:
    """Flush a file or a folder to its device."""
    with naming(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def explain_full_disk(path: Path, needed_nbytes: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Turn "no space left" of any kind into DiskFullError with the place, what is free and what is missing.

    What a disk says that fails otherwise becomes a DiskError with the file.

    Args:
        path: What is written to.
        needed_nbytes: Returns about how much is still to be written, 0 where that is not known.
    """
    try:
        yield
    except DiskFullError:
        raise
    except OSError as error:
        if error.errno in DISK_FAILED:
            raise disk_failed(error.filename or path, error) from error
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


def _others(folder: Path) -> list[str]:
    # NFS keeps a removed file under such a name while another process has it open.
    names = (entry.name for entry in folder.iterdir() if not entry.name.startswith(".nfs"))
    return sorted(name for name in names if name not in _OURS)


def _refuse_others(folder: Path, name: Path) -> None:
    """Raise DestinationError where there is something that no conversion leaves."""
    if others := _others(folder):
        raise DestinationError(
            f"{name}: {others[0]!r} in it is not of our making, and a dataset is written there until it is complete. "
            "Move it away."
        )
