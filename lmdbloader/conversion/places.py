"""Where a dataset may be made."""

from __future__ import annotations

import os
from pathlib import Path

from lmdbloader.errors import DestinationError


def named_folder(path: str | os.PathLike[str]) -> Path:
    """Return a path whose last part is a name, so that one beside it can be made: "." has none."""
    return Path(path) if Path(path).name not in ("", "..") else Path(os.path.abspath(path))


def refuse_inside(out: Path, source: Path) -> None:
    """Raise DestinationError where one of two folders lies in the other."""
    a, b = Path(os.path.realpath(out)), Path(os.path.realpath(source))
    if a == b or b in a.parents or a in b.parents:
        raise DestinationError(
            f"{out}: lies inside {source} or the other way round. Choose a destination outside of the source."
        )
