"""The progress bar of commands and conversions; the only module here that loads tqdm."""

from __future__ import annotations

from tqdm import tqdm


class ProgressBar(tqdm):  # type: ignore[misc]
    """tqdm's bar, safe against Ctrl-C during its construction."""

    # An instance sets this late in its construction. After an earlier Ctrl-C, `__del__` of tqdm before 4.70 misses it
    # and prints a traceback.
    disable = True
