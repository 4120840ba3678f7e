"""Makes datasets from folders of images and from samples made in Python, and extracts them to files again."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmdbloader.conversion.estimation import Estimate as Estimate
    from lmdbloader.conversion.estimation import estimate as estimate
    from lmdbloader.conversion.from_files import Report as Report
    from lmdbloader.conversion.from_files import convert as convert
    from lmdbloader.conversion.from_python import write as write
    from lmdbloader.conversion.selection import Split as Split
    from lmdbloader.conversion.selection import find_splits as find_splits

# The command line reads the table of options in here, and must not load NumPy or pyarrow for its help.
_HOMES = {
    "Estimate": "estimation",
    "Report": "from_files",
    "Split": "selection",
    "convert": "from_files",
    "estimate": "estimation",
    "find_splits": "selection",
    "write": "from_python",
}
__all__ = ["Estimate", "Report", "Split", "convert", "estimate", "find_splits", "write"]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"lmdbloader.conversion.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'lmdbloader.conversion' has no attribute {name!r}")
