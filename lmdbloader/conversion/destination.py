"""Where a dataset may be made."""

from __future__ import annotations

import os
from pathlib import Path

from lmdbloader.base.arguments import path_text
from lmdbloader.errors import DestinationError
from lmdbloader.format.layout import PARTIAL_SUFFIX
from lmdbloader.store.writing.ownership import ASIDE_SUFFIX


def named_folder(path: str | os.PathLike[str]) -> Path:
    """Return a path whose last part is a name, so that one beside it can be made: "." has none.

    Raises:
        OptionError: It is not a path, or no file can have it.
    """
    found = Path(path_text("path", path))
    return found if found.name not in ("", "..") else Path(os.path.abspath(found))


def new_folder(path: str | os.PathLike[str]) -> Path:
    """Return the path of a dataset to be, as `named_folder` does.

    Raises:
        OptionError: It is not a path, or no file can have it.
        DestinationError: The name is one of those that unfinished and replaced datasets have.
    """
    found = named_folder(path)
    for suffix in (PARTIAL_SUFFIX, ASIDE_SUFFIX):
        if found.name.endswith(suffix):
            raise DestinationError(
                f"{found}: names that end in {suffix} are those of datasets in the making: it could not be opened. "
                "Choose another name."
            )
    return found


def refuse_inside(out: Path, source: Path) -> None:
    """Raise DestinationError where one of two folders lies in the other."""
    a, b = Path(os.path.realpath(out)), Path(os.path.realpath(source))
    if a == b or b in a.parents or a in b.parents:
        raise DestinationError(
            f"{out}: lies inside {source} or the other way round. Choose a destination outside of the source."
        )
