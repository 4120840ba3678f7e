"""The destination folder: locked and named OUT.partial while it is written, put in place in one step."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lmdbloader.base import system
from lmdbloader.base.disk_errors import naming
from lmdbloader.base.files import occupy_standard_descriptors, read_regular
from lmdbloader.base.option_names import option
from lmdbloader.errors import DestinationError
from lmdbloader.format.layout import (
    DATA_FILE,
    FORMAT_NAME,
    INDEX_FILE,
    LEFT_OUT_FILE,
    MANIFEST_FILE,
    PARTIAL_SUFFIX,
    PLAN_FILE,
    SHARES_FOLDER,
    SKIPPED_FILE,
    SOURCES_FILE,
)
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, load_json
from lmdbloader.store.writing.claim import OWNER_FILE, claim, is_mine
from lmdbloader.store.writing.ownership import ASIDE_SUFFIX, exchange, inside, is_at, named

COLUMNS_FOLDER = "columns"
# The journal of the sources that are done.
JOURNAL_FILE = "journal"
# The parts are folders with such names; in OUT.partial, a part that is being written has the name of the part with a
# suffix.
_PARTS, _PARTS_BEGUN = "part-*", f"part-*{PARTIAL_SUFFIX}*"
# Needed to resume a run that was killed, so they are removed once the dataset is in place. The owner's note is removed
# last: without it, the other files count as the user's.
_WORKING_FILES = (JOURNAL_FILE, PLAN_FILE, OWNER_FILE)
# The folder in which a repair makes new files, and the lock file that LMDB's own tools leave in a dataset.
REPAIR_FOLDER, _LOCK_FILE = ".repair", "lock.mdb"
# The files of a dataset and of an interrupted conversion; a folder with any other file belongs to the user.
_OURS = frozenset({
    DATA_FILE, INDEX_FILE, MANIFEST_FILE, COLUMNS_FOLDER, SKIPPED_FILE, LEFT_OUT_FILE, SOURCES_FILE, REPAIR_FOLDER,
    _LOCK_FILE, SHARES_FOLDER, *_WORKING_FILES,
})  # fmt: skip

# The parts of a set, also while they are written, and its indices.
_A_PART = re.compile(r"part-[0-9]{5,}(\.partial(\..+)?)?")
_IN_A_SET = re.compile(r"index-[0-9]{5,}\.arrow(\.new)?|manifest\.json\.new")


def check_destination(out: Path, *, overwrite: bool) -> None:
    """Refuse a destination that is taken.

    Raises:
        DestinationError: `out` exists, is not an empty folder, and may not be replaced; or it is a part of a set.
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
            f"{out}: a dataset is there already. Choose another destination, or overwrite it "
            f"({option('overwrite', True)})."
        )
    if _is_listed(out):
        raise DestinationError(
            f"{out}: is a part of the set {out.absolute().parent}, which lists its samples and would not open without "
            "it. Choose another destination, or make the whole set again."
        )
    if others := _others(out):
        raise DestinationError(
            f"{out}: lmdbloader did not write {others[0]!r} in it, which would be lost with the dataset that is "
            "replaced. Move it away."
        )


def _is_listed(out: Path) -> bool:
    """Return whether a folder is a part of the set in the folder above."""
    if not _A_PART.fullmatch(out.name):
        return False
    try:
        above = load_json(read_regular(out.absolute().parent / MANIFEST_FILE, MAX_MANIFEST_NBYTES))
        return any(part["name"] == out.name for part in above["parts"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False


def is_dataset(path: Path) -> bool:
    """Return whether a folder holds a finished dataset of lmdbloader, of any format version."""
    try:
        return bool(load_json(read_regular(path / MANIFEST_FILE, MAX_MANIFEST_NBYTES)).get("format") == FORMAT_NAME)
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


@contextmanager
def partial_folder(
    out: Path,
    *,
    resumable: bool = False,
    take_over: bool | None = False,
    log: Callable[[str], None] = lambda line: None,
) -> Iterator[Path]:
    """Yield a path to the locked folder OUT.partial; it is removed unless `put_in_place` has moved it.

    The path leads to the folder that was locked, even if another one gets its name. The folder belongs to the user,
    nobody else can write to it until it is in place, and it does not hold links.

    Args:
        out: The future dataset.
        resumable: Keep the files of an earlier conversion in it, and leave an unfinished one in it after an error.
            Otherwise its content is removed first.
        take_over: Continue the conversion of a process on another host at once; None if the caller has no such option.
        log: Called with each message, a line of text.

    Raises:
        LockedError: Another process is writing to it.
        DestinationError: It holds other files, or an unfinished conversion and `resumable` is False, or cannot be made;
            or it belongs to another user, holds links, or was taken over by another process meanwhile.
    """
    partial = partial_of(out)
    if not out.absolute().parent.is_dir():
        raise DestinationError(f"{out}: the folder {out.absolute().parent} does not exist. Create it first.")

    def check(folder: Path) -> None:
        _refuse_others(folder, partial)
        if not resumable and is_begun(folder):
            raise DestinationError(
                f"{partial}: an unfinished conversion is there. Finish it with the command that began it, or remove it."
            )

    advice = _take_over_advice() if resumable and take_over is not None else ""
    occupy_standard_descriptors()
    lock = claim(partial, check, keep=_worth_keeping, advice=advice, take_over=bool(take_over), log=log)
    folder = inside(lock.folder, partial)
    is_removed = False
    try:
        with named(folder, partial), contextlib.ExitStack() as signs:
            try:
                with _explain_loss(lock.folder, partial, out):
                    signs.enter_context(lock.beating())
                    if not resumable:
                        empty(folder)
                    yield folder
            finally:
                if is_at(lock.folder, out):
                    system.set_permissions(lock.folder, lock.permissions)
                elif is_at(lock.folder, partial) and lock.is_mine() and not (resumable and is_begun(folder)):
                    _remove(folder, partial)
                    is_removed = True
                else:
                    lock.release()
    finally:
        lock.close()
        if is_removed:
            _remove_empty(partial)


@contextmanager
def _explain_loss(folder: int, partial: Path, out: Path) -> Iterator[None]:
    """Turn an error into one that says that another process took the folder, if it is in neither place any more."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DestinationError) or any(is_at(folder, path) for path in (partial, out)):
            raise
        raise _lost(partial) from error


def _take_over_advice() -> str:
    return (
        f"; if you are certain that it has ended, {option('take_over', True)} continues from its committed data. "
        "The rest is lost, and if the process is still running, it ends with an error"
    )


def _worth_keeping(folder: Path) -> tuple[str, ...]:
    """Return the names of the files and folders that an unfinished conversion needs to continue."""
    if is_begun(folder) and (folder / SHARES_FOLDER).is_dir():
        return (PLAN_FILE, SHARES_FOLDER, *(path.name for path in folder.glob(_PARTS)))
    # The data comes before the journal: if a process is still writing, the journal then covers all copied data.
    return tuple(n for n in (DATA_FILE, JOURNAL_FILE, PLAN_FILE) if (folder / n).is_file()) if is_begun(folder) else ()


def partial_of(out: Path) -> Path:
    """Return the folder in which a dataset is until it is complete."""
    return out.with_name(out.name + PARTIAL_SUFFIX)


def _remove(folder: Path, partial: Path) -> None:
    """Remove a folder's content as far as possible, and the folder at `partial` if it is empty."""
    with contextlib.suppress(OSError):
        # The owner's note goes last: it keeps others out.
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == OWNER_FILE):
            with contextlib.suppress(OSError):
                _delete(entry)
    _remove_empty(partial)


def _remove_empty(partial: Path) -> None:
    # Called again once the note is closed: NFS keeps an open file under another name.
    with contextlib.suppress(OSError):
        partial.rmdir()


def _delete(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def is_begun(partial: Path) -> bool:
    """Return whether a folder holds an unfinished conversion with some sources done, or the plan of a set."""
    try:
        if not (partial / PLAN_FILE).is_file():
            return False
        return (partial / SHARES_FOLDER).is_dir() or (partial / JOURNAL_FILE).stat().st_size > 0
    except OSError:
        return False


def empty(folder: Path) -> None:
    """Remove everything from a folder except its owner's note."""
    for entry in folder.iterdir():
        if entry.name != OWNER_FILE:
            _delete(entry)


def discard(partial: Path) -> None:
    """Remove everything from a locked folder, with the parts of a set, except its owner's note.

    Raises:
        LockedError: Another process is writing a part.
    """
    remove_begun_parts(partial)
    empty(partial)


def remove_begun_parts(partial: Path) -> None:
    """Remove the unfinished parts of a set.

    Raises:
        LockedError: Another process is writing one.
    """
    for entry in sorted(partial.glob(_PARTS_BEGUN)):
        lock = claim(entry, lambda folder: None, keep=lambda folder: ())
        try:
            _remove(inside(lock.folder, entry), entry)
        finally:
            lock.close()
            _remove_empty(entry)


def put_in_place(partial: Path, out: Path) -> None:
    """Rename a complete dataset to its name, replacing an older one in one step, durably.

    Args:
        partial: The path that `partial_folder` has yielded for `out`.
        out: The future dataset.

    Raises:
        DestinationError: `out` is not a dataset of lmdbloader any more, or the folder that was written to has lost its
            name to another one.
    """
    name = partial_of(out)
    check_destination(out, overwrite=True)  # again: callers checked before they began to write
    for file in partial.iterdir():
        flush(file)
    flush(partial)
    folder = system.open_folder(partial, follow=True)
    try:
        _rename_into_place(folder, name, out)
    finally:
        system.close(folder)
    _remove_leftovers(out)


def _rename_into_place(folder: int, name: Path, out: Path) -> None:
    _refuse_lost(folder, name, name)
    replaces = out.exists() and any(out.iterdir())
    if replaces:
        _remove_leftovers(out)  # in OUT.partial they would look like an unfinished conversion
        exchange(name, out)
    else:
        system.move_folder(name, out)
    if not is_at(folder, out):
        # Another process took the name between the check and the rename: move its folder back.
        with contextlib.suppress(OSError):
            exchange(name, out) if replaces else system.move_folder(out, name)
        _refuse_lost(folder, out, name)
    flush(out.absolute().parent)
    if replaces:
        shutil.rmtree(name, ignore_errors=True)


def _refuse_lost(folder: int, path: Path, name: Path) -> None:
    """Raise DestinationError unless an open folder is at `path`, and this process still owns it."""
    if not (is_at(folder, path) and is_mine(folder, path)):
        raise _lost(name)


def _lost(partial: Path) -> DestinationError:
    return DestinationError(
        f"{partial}: is no longer the folder that was written to: another process took it over, or it was renamed or "
        "replaced. Nothing was put in place. Find out who writes there, and run it again."
    )


def clear_leftovers(out: Path) -> None:
    """Remove the leftovers, in and next to `out`, of a conversion that was killed after its dataset was in place.

    A folder that another process is writing to, an unfinished conversion, and other files stay.
    """
    partial = partial_of(out)
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
        shutil.rmtree(out / SHARES_FOLDER, ignore_errors=True)
        for name in _WORKING_FILES:
            (out / name).unlink(missing_ok=True)
        flush(out)


def is_just_published(out: Path) -> bool:
    """Return whether a dataset still has its owner's note: the process was killed after putting it in place."""
    try:
        owner = load_json(read_regular(out / OWNER_FILE, MAX_MANIFEST_NBYTES))
        return isinstance(owner, dict) and {"pid", "host"} <= owner.keys()
    except (OSError, ValueError, RecursionError):
        return False


def flush(path: Path) -> None:
    """Flush a file or a folder to its device, as far as the system can."""
    with naming(path):
        system.flush_path(path)


def _others(folder: Path) -> list[str]:
    """Return the names of what no conversion leaves in a folder, also of what is in the parts of a set."""
    found = []
    for entry in folder.iterdir():
        # NFS gives a removed file such a name while another process has it open.
        if entry.name in _OURS or entry.name.startswith(".nfs") or _IN_A_SET.fullmatch(entry.name):
            continue
        if not (_A_PART.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink()):
            found.append(entry.name)
            continue
        with contextlib.suppress(FileNotFoundError):  # it was completed just now
            found += [f"{entry.name}/{name}" for name in _others(entry)]
    return sorted(found)


def _refuse_others(folder: Path, name: Path) -> None:
    """Raise DestinationError if a folder holds files that no conversion leaves."""
    if others := _others(folder):
        raise DestinationError(
            f"{name}: lmdbloader did not write {others[0]!r} in it, and a dataset is written there until it is "
            "complete. Move it away."
        )
