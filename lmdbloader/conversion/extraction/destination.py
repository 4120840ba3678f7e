"""The folder to extract into: checked, hidden as DIR.partial while it is filled, put in place when it is complete."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmdbloader.base.disk_errors import naming
from lmdbloader.base.files import read_regular
from lmdbloader.errors import DestinationError
from lmdbloader.format.layout import PARTIAL_SUFFIX

MARKER_FILE = "extracted.json"
MADE_BY = "lmdbloader extract"
_MOST_MARKER_NBYTES = 2**16
_REPLACED_SUFFIX = ".replaced"


def check_destination(target: Path, dataset: Path, *, overwrite: bool) -> None:
    """Refuse a destination that is taken.

    Raises:
        DestinationError: `target` is inside the dataset or the other way round; or it exists, is not an empty folder,
            and is no earlier extraction or may not be replaced.
    """
    ours, theirs = Path(os.path.realpath(target)), Path(os.path.realpath(dataset))
    if ours == theirs or ours in theirs.parents or theirs in ours.parents:
        raise DestinationError(f"{target}: lies inside {dataset} or the other way round. Choose another destination.")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise DestinationError(f"{target}: exists and is not a folder. Choose another destination.")
    if not target.exists():
        return
    if os.path.samefile(target, os.curdir):
        raise DestinationError(
            f"{target}: is the folder that you are in, and a complete one is put in its place. Name another one."
        )
    if not any(target.iterdir()):
        return
    if not is_extracted(target):
        raise DestinationError(
            f"{target}: is a folder with other things in it, which is never replaced. Choose another destination."
        )
    if not overwrite:
        raise DestinationError(
            f"{target}: holds the files of an earlier extraction. Choose another destination, "
            "or replace it as a whole (--overwrite)."
        )


def is_extracted(folder: Path) -> bool:
    """Return whether a folder was made by an extraction."""
    try:
        return bool(json.loads(read_regular(folder / MARKER_FILE, _MOST_MARKER_NBYTES)).get("made_by") == MADE_BY)
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """Yield the new folder DIR.partial; it is removed unless `put_in_place` has moved it.

    Raises:
        DestinationError: It exists already, or its parent does not.
    """
    partial = target.with_name(target.name + PARTIAL_SUFFIX)
    try:
        partial.mkdir()
    except FileNotFoundError as error:
        raise DestinationError(f"{target}: the folder {target.parent} does not exist. Create it first.") from error
    except FileExistsError as error:
        raise DestinationError(
            f"{partial}: exists. Another extraction is writing there, or one was killed: remove it if none is running."
        ) from error
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_marker(partial: Path, about: Mapping[str, Any]) -> None:
    """Say in a folder that it is an extraction, and of what."""
    with naming(partial / MARKER_FILE):
        (partial / MARKER_FILE).write_text(json.dumps({"made_by": MADE_BY, **about}, indent=1) + "\n", "utf-8")


def put_in_place(partial: Path, target: Path) -> None:
    """Rename a complete folder to its name; an older one there is removed once the new one stands."""
    if not target.exists() or not any(target.iterdir()):
        os.rename(partial, target)
        return
    aside = target.with_name(target.name + _REPLACED_SUFFIX)
    if aside.exists():
        raise DestinationError(f"{aside}: exists, and the folder to replace goes there for a moment. Move it away.")
    os.rename(target, aside)
    try:
        os.rename(partial, target)
    except OSError:
        os.rename(aside, target)
        raise
    shutil.rmtree(aside)
