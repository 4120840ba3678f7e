"""The progress bar that commands and conversions show."""

from __future__ import annotations

from tqdm import tqdm


class ProgressBar(tqdm):  # type: ignore[misc]
    """tqdm's bar, which may be interrupted while it is made."""

    # An instance sets it late in its construction. If Ctrl-C comes before that, releases of tqdm before 4.70 look for
    # it in `__del__` and print a traceback.
    disable = True
