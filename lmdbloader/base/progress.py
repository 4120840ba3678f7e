"""The progress bar of commands and conversions, in a log a line now and then; the only module here that loads tqdm."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from lmdbloader.base.first_steps import Line
from lmdbloader.base.text import mebibytes


class ProgressBar(tqdm):  # type: ignore[misc]
    """tqdm's bar without its thread, safe against Ctrl-C during its construction."""

    # An instance sets this late in its construction. After an earlier Ctrl-C, `__del__` of tqdm before 4.70 misses it
    # and prints a traceback.
    disable = True
    # tqdm starts a thread, even for a bar that is not shown, and warns where the system refuses it. The thread only
    # corrects a guess: how many items to wait for before the bar looks at the clock. With miniters=0 it always looks.
    monitor_interval = 0
    _line: Line | None = None

    def __init__(self, *args: Any, **keywords: Any) -> None:
        """Take the arguments of tqdm."""
        super().__init__(*args, miniters=0, **keywords)

    def update(self, n: float | None = 1) -> bool | None:
        """Count items as done."""
        if self._line is not None:
            self._line.advance(int(n or 0))
        shown: bool | None = super().update(n)
        return shown


def progress_bar(
    title: str, total: int | None, unit: str = "samples", *, shown: bool, first: int = 0, **options: Any
) -> ProgressBar:
    """Return a bar, which appears on a terminal; a log gets a line after 15 seconds, and one every 30 seconds.

    Args:
        title: What is done, for the lines in a log.
        total: The number of items, in the end; None if it is not known.
        unit: What they are; "B" for bytes.
        shown: Whether to show anything.
        first: How many are done.
        options: Of tqdm.
    """
    is_shown = shown and sys.stderr is not None
    is_terminal = is_shown and sys.stderr.isatty()
    are_bytes = unit == "B"
    scaled: dict[str, Any] = {"unit_scale": True, "unit_divisor": 1024} if are_bytes else {}
    bar = ProgressBar(
        total=total, initial=first, unit=unit if are_bytes else f" {unit}", disable=not is_terminal,
        dynamic_ncols=True, **scaled, **options,
    )  # fmt: skip
    if is_shown and not is_terminal:
        show: Callable[[int], str] = mebibytes if are_bytes else "{:,}".format
        bar._line = Line()
        bar._line.begin(title, total, first=first, show=show, unit="" if are_bytes else f" {unit}")
    return bar
