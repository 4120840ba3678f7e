"""The destination of a new dataset: its name, and the folders that it must not be in."""

from __future__ import annotations

import os
from pathlib import Path

from lmdbloader.base import system
from lmdbloader.base.arguments import is_url, local_path, new_path, path_text
from lmdbloader.base.text import command
from lmdbloader.errors import DestinationError, OptionError
from lmdbloader.format.layout import PARTIAL_SUFFIX


def named_folder(path: str | os.PathLike[str]) -> Path:
    """Return a path whose last part is a name, which "." is not, so that a name next to it can be made.

    Raises:
        OptionError: It is not a path, is a URL, or no file can have it; or datasets cannot be made on this system.
    """
    found = local_path("path", path)
    if not system.CAN_FLUSH_FOLDERS:
        raise OptionError(f"{found}: datasets cannot be made on Windows, only read. Make it on Linux or macOS.")
    return found if found.name not in ("", "..") else Path(os.path.abspath(found))


def new_folder(path: str | os.PathLike[str]) -> Path:
    """Return the path of a new dataset, as `named_folder` does.

    Raises:
        OptionError: As `named_folder`; of a URL, with what uploads a dataset to it.
        DestinationError: Unfinished or replaced datasets have such names.
    """
    if is_url(text := path_text("path", path)):
        name = text.rstrip("/").rpartition("/")[2] or "train.lmdb"
        raise OptionError(
            f"{text}: is a URL, and datasets are made on a disk. Make {name} on a disk, and upload it: "
            f"{command('stage', name, text)}, or lmdbloader.stage({name!r}, {text!r})"
        )
    found = named_folder(new_path("path", path))
    if found.name.endswith(PARTIAL_SUFFIX) and found.is_dir():
        raise DestinationError(
            f"{found}: an unfinished dataset is there until it is complete. Name the dataset itself: "
            f"{found.with_name(found.name.removesuffix(PARTIAL_SUFFIX))}"
        )
    if found.name.endswith(PARTIAL_SUFFIX):
        raise DestinationError(
            f"{found}: unfinished datasets have names that end in {PARTIAL_SUFFIX}, so it could not be opened. Choose "
            "another name."
        )
    return found


def refuse_inside(out: Path, source: Path) -> None:
    """Raise DestinationError if one of two folders is in the other."""
    a, b = Path(os.path.realpath(out)), Path(os.path.realpath(source))
    if a == b or b in a.parents or a in b.parents:
        where = "is the source itself" if a == b else f"is inside {source}" if b in a.parents else f"contains {source}"
        raise DestinationError(f"{out}: {where}. Choose a destination outside of the source.")
