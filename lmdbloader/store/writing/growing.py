"""Makes a dataset the first part of a set, so that it can grow, and removes files that interrupted calls have left."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from lmdbloader.base.disk_errors import DISK_FULL
from lmdbloader.errors import DestinationError
from lmdbloader.format.layout import (
    DATA_FILE,
    INDEX_FILE,
    LEFT_OUT_FILE,
    MANIFEST_FILE,
    PARTIAL_SUFFIX,
    SKIPPED_FILE,
    SOURCES_FILE,
    part_name,
)
from lmdbloader.format.manifest import Manifest
from lmdbloader.store.writing.ownership import is_own_file
from lmdbloader.store.writing.publish import COLUMNS_FOLDER, flush

# Files that move to the first part when the dataset becomes a set.
_OF_PART = (DATA_FILE, INDEX_FILE, SOURCES_FILE)
# Notes for people, which stay in the set's folder too, where people look.
_NOTES = (SKIPPED_FILE, LEFT_OUT_FILE)
_INDEX_OF_SET = re.compile(r"index-[0-9]{5,}\.arrow(\.new)?|manifest\.json\.new")


def link_first_part(folder: Path, advice: str) -> None:
    """Make a dataset its own first part, by hard links in the part's folder; no data is copied.

    The dataset stays as it is. `clear_remains` undoes this until the manifest is replaced by that of a set.

    Args:
        folder: The dataset.
        advice: What to do instead, for the error.

    Raises:
        DestinationError: Its file system has no hard links, or a file is a symbolic link.
        DiskFullError: No room left for the links.
    """
    part = folder / part_name(0)
    fresh = part.with_name(part.name + PARTIAL_SUFFIX)
    fresh.mkdir()
    shutil.copymode(folder, fresh)
    for name in (DATA_FILE, INDEX_FILE, MANIFEST_FILE, SOURCES_FILE):
        if name == SOURCES_FILE and not is_own_file(folder / name):
            continue
        _link(folder / name, fresh / name, advice)
    for name in _NOTES:
        if is_own_file(folder / name):
            shutil.copyfile(folder / name, fresh / name)
            flush(fresh / name)
    flush(fresh)
    os.rename(fresh, part)
    flush(folder)


def _link(file: Path, name: Path, advice: str) -> None:
    """Make a hard link; `advice` is for the error."""
    reason = "it is a symbolic link" if file.is_symlink() else ""
    try:
        if not reason:
            os.link(file, name)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        reason = str(error.strerror)
    if reason:
        raise DestinationError(
            f"{file}: cannot be hard-linked into {name.parent} ({reason}), which makes it the first part of a set "
            f"without a copy. {advice}"
        )


def clear_remains(folder: Path, manifest: Manifest) -> None:
    """Remove files that do not belong to a dataset any more, or not yet, as a completed or killed call leaves them.

    A file that the system does not let go of, because a process has it open, stays for the next call.

    Args:
        folder: The dataset, which no other process writes to.
        manifest: Its present manifest.

    Raises:
        DestinationError: Another dataset is in the place of its first part.
    """
    first = folder / part_name(0)
    if manifest.parts:
        for name in _OF_PART:
            if _is_same_file(folder / name, first / name):
                _remove(folder / name)
    elif first.exists():
        if not _is_same_file(folder / DATA_FILE, first / DATA_FILE):
            raise DestinationError(f"{first}: is not a part of the dataset in {folder}. Move it away.")
        _remove(first)
    _remove(first.with_name(first.name + PARTIAL_SUFFIX))
    _remove(folder / COLUMNS_FOLDER)
    for entry in list(folder.iterdir()):
        if _INDEX_OF_SET.fullmatch(entry.name) and entry.name != manifest.index_file:
            _remove(entry)
    flush(folder)


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
