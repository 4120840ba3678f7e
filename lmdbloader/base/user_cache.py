"""The package's folder in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """Return the folder of what can be found again, such as measurements; None if the user has no home.

    It may not exist. Nothing depends on it but speed: who cannot read or write there does without.
    """
    for base in (os.environ.get("XDG_CACHE_HOME", ""), os.path.join(os.path.expanduser("~"), ".cache")):
        if os.path.isabs(base):
            return Path(base) / "lmdbloader"
    return None
