"""The package's folder in the user's cache, and files in it that are replaced as a whole."""

from __future__ import annotations

import contextlib
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


def replace_text(path: Path, text: str) -> None:
    """Replace a file as a whole, in a folder that exists: a concurrent reader gets the old one.

    Raises:
        OSError: It cannot be written.
    """
    import tempfile  # which most processes do not need

    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        try:
            file.write(text)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise
