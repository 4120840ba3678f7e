"""The progress bar of commands and conversions; the only module here that loads tqdm."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


class ProgressBar(tqdm):  # type: ignore[misc]
    """tqdm's bar without its thread, safe against Ctrl-C during its construction."""

    # An instance sets this late in its construction. After an earlier Ctrl-C, `__del__` of tqdm before 4.70 misses it
    # and prints a traceback.
    disable = True
    # tqdm starts a thread, even for a bar that is not shown, and warns where the system refuses it. The thread only
    # corrects a guess: how many items to wait for before the bar looks at the clock. With miniters=0 it always looks.
    monitor_interval = 0

    def __init__(self, *args: Any, **keywords: Any) -> None:
        """Take the arguments of tqdm."""
        super().__init__(*args, miniters=0, **keywords)
