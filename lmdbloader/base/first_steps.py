"""The line about how far work is: what is done, how many items, and how much time is left.

On a terminal it is one line, which is cleared at the end. In a log it is a line now and then; there it also stands for
the bars of `base/progress.py`.

Code that works through items wraps them in `watched`; a command or function that begins such work shows it with
`shown_steps`. Without that, nothing is shown.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

from lmdbloader.base.text import rough_time

T = TypeVar("T")
# Seconds between two states of the line on a terminal; elsewhere between two lines.
_EVERY, _EVERY_LINE = 0.1, 30.0
# Seconds until a log gets its first line: of steps before a result, and of work that may take hours.
_STEPS_SECONDS, WORK_SECONDS = 2.0, 15.0


class Line:
    """The line of a terminal, which is written again and again; in a log, a line now and then."""

    def __init__(self, log_after: float = WORK_SECONDS) -> None:
        """Show nothing yet; a log gets its first line after so many seconds."""
        self._is_terminal = sys.stderr.isatty()
        self._due = time.monotonic() + (0.0 if self._is_terminal else log_after)
        self._is_drawn = False
        self._title, self._done, self._first, self._began = "", 0, 0, 0.0
        self._total: int | None = None
        self._show: Callable[[int], str] = "{:,}".format
        self._unit = ""

    def begin(
        self, title: str, total: int | None, *, first: int = 0, show: Callable[[int], str] = "{:,}".format,
        unit: str = "",
    ) -> None:  # fmt: skip
        """Begin with work.

        Args:
            title: What is done.
            total: The number of items; None if it is not known.
            first: How many were done before.
            show: Returns a number as text.
            unit: What follows the numbers.
        """
        self._title, self._total, self._began = title, total, time.monotonic()
        self._done, self._first, self._show, self._unit = first, first, show, unit
        self._draw(time.monotonic())

    def advance(self, number: int) -> None:
        """Count items as done."""
        self._done += number
        now = time.monotonic()
        if now >= self._due:
            self._draw(now)

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._is_drawn:
            self._write("\r\x1b[K")
            self._is_drawn = False

    def _draw(self, now: float) -> None:
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{self._text(now)[:width]}")
            self._is_drawn, self._due = True, now + _EVERY
        elif now >= self._due:
            self._write(f"{self._text(now)}\n")
            self._due = now + _EVERY_LINE

    def _text(self, now: float) -> str:
        done = self._done - self._first
        if self._total is None:
            return f"{self._title}: {self._show(self._done)}{self._unit} so far"
        text = f"{self._title}: {self._show(self._done)} of {self._show(self._total)}{self._unit}"
        if done > 0 and self._done < self._total:
            text += f", about {rough_time((self._total - self._done) * (now - self._began) / done)} left"
        return text

    def _write(self, text: str) -> None:
        # A line that cannot be written must not end the work.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


_line: ContextVar[Line | None] = ContextVar("line", default=None)


@contextlib.contextmanager
def shown_steps(*, shown: bool = True, log_after: float = _STEPS_SECONDS) -> Iterator[None]:
    """Show on the standard error how far `watched` work is; the line of a terminal is cleared at the end.

    Of several processes of one training run, only the first shows it.

    Args:
        shown: Whether to show anything.
        log_after: Seconds until a log gets its first line; later ones follow every 30 seconds.
    """
    is_first = os.environ.get("RANK", "0") == "0"
    if not shown or not is_first or sys.stderr is None or _line.get() is not None:
        yield
        return
    line = Line(log_after)
    token = _line.set(line)
    try:
        yield
    finally:
        _line.reset(token)
        line.clear()


def watched(
    title: str, items: Iterable[T], total: int | None = None, count: Callable[[T], int] = lambda item: 1
) -> Iterable[T]:
    """Return items; if steps are shown, each counts as done when the next one is asked for.

    Args:
        title: What is done with them.
        items: The items.
        total: Their number, from which the time that is left is estimated; None if it is not known.
        count: Returns how many an item counts for; all of them together are `total`.
    """
    line = _line.get()
    return items if line is None else _counted(line, title, items, total, count)


def _counted(line: Line, title: str, items: Iterable[T], total: int | None, count: Callable[[T], int]) -> Iterator[T]:
    line.begin(title, total)
    for item in items:
        number = count(item)
        yield item
        line.advance(number)
