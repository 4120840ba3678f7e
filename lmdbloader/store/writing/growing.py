"""A dataset that gets further parts: it becomes the first part of a set, and remains of older states are removed."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from lmdbloader.base import system
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

# Files that a set does not have itself, as its first part has them.
_OF_PART = (DATA_FILE, INDEX_FILE, SOURCES_FILE)
# Notes for people, which stay where people look, with the record of how the dataset was made.
_NOTES = (SKIPPED_FILE, LEFT_OUT_FILE)
_INDEX_OF_SET = re.compile(r"index-[0-9]{5,}\.arrow(\.new)?|manifest\.json\.new")


def link_first_part(folder: Path, advice: str) -> None:
    """Make a dataset its own first part: the files get further names in the part's folder, and nothing is copied.

    The dataset stays as it is. `clear_remains` undoes this until the manifest is replaced by that of a set.

    Args:
        folder: Of the dataset.
        advice: What to do instead if files cannot have several names, for the error.

    Raises:
        DestinationError: They cannot.
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
    system.move_folder(fresh, part)
    flush(folder)


def _link(file: Path, name: Path, advice: str) -> None:
    """Give a file another name."""
    reason = "it is a link itself" if file.is_symlink() else ""
    try:
        if not reason:
            system.link_file(file, name)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        reason = str(error.strerror)
    if reason:
        raise DestinationError(
            f"{file}: cannot get a second name in {name.parent} ({reason}), by which it would become the first part of "
            f"a set without being copied. {advice}"
        )


def clear_remains(folder: Path, manifest: Manifest) -> None:
    """Remove what is no longer, or not yet, a part of a dataset: of a call that was killed, or just completed.

    What cannot be removed, because a process has it open on a system that forbids this, stays for the next call.

    Args:
        folder: Of the dataset, which no other process writes to.
        manifest: Its present one.

    Raises:
        DestinationError: There is another dataset where its first part would be.
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
