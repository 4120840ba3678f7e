"""The line about how far work is: on a terminal drawn again and again and cleared at the end, in a log now and then."""

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
from lmdbloader.base.units import show_nbytes

T = TypeVar("T")
# Seconds between two states of the line on a terminal; elsewhere between two lines.
_EVERY, _EVERY_LINE = 0.1, 30.0
# Seconds until a log gets its first line: of steps before a result, and of work that may take hours.
_STEPS_SECONDS, WORK_SECONDS = 2.0, 15.0


class ProgressLine:
    """How far one piece of work is, shown until the end of the `with` statement."""

    def __init__(
        self,
        title: str,
        total: float | None,
        unit: str = "samples",
        *,
        shown: bool,
        first: int = 0,
        log_after: float = WORK_SECONDS,
    ) -> None:
        """Show the beginning, on a terminal.

        Args:
            title: What is done.
            total: The number of items, in the end; None if it is not known.
            unit: What they are; "B" for bytes, "" for what the title names.
            shown: Whether to show anything.
            first: How many are done.
            log_after: Seconds until a log gets its first line; later ones follow every 30 seconds.
        """
        self._title, self._total, self._first, self._done = title, total, first, float(first)
        self._show: Callable[[float], str] = show_nbytes if unit == "B" else "{:,.0f}".format
        self._unit = f" {unit}" if unit not in ("", "B") else ""
        self._is_shown = shown and sys.stderr is not None
        self._is_terminal = self._is_shown and sys.stderr.isatty()
        self._began = time.monotonic()
        self._due = self._began + (0.0 if self._is_terminal else log_after)
        self.update(0)

    def update(self, number: float = 1) -> None:
        """Count items as done."""
        self._done += number
        now = time.monotonic()
        if not self._is_shown or now < self._due:
            return
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{self._text(now)[:width]}")
            self._due = now + _EVERY
        else:
            self._write(f"{self._text(now)}\n")
            self._due = now + _EVERY_LINE

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            self._write("\r\x1b[K")

    def _text(self, now: float) -> str:
        if self._total is None:
            return f"{self._title}: {self._show(self._done)}{self._unit} so far"
        text = f"{self._title}: {self._show(self._done)} of {self._show(self._total)}{self._unit}"
        done = self._done - self._first
        if done > 0 and self._done < self._total:
            text += f", about {rough_time((self._total - self._done) * (now - self._began) / done)} left"
        return text

    def _write(self, text: str) -> None:
        # A line that cannot be written must not end the work.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


# Seconds until a log gets the first line about `watched` work; None if nothing is shown.
_log_after: ContextVar[float | None] = ContextVar("log_after", default=None)


@contextlib.contextmanager
def shown_steps(*, shown: bool = True, log_after: float = _STEPS_SECONDS) -> Iterator[None]:
    """Show how far `watched` work is, if this is the only process of a training run, or the first of them.

    Args:
        shown: Whether to show anything.
        log_after: As for `ProgressLine`.
    """
    is_first = os.environ.get("RANK", "0") == "0"
    token = _log_after.set(log_after if shown and is_first else None)
    try:
        yield
    finally:
        _log_after.reset(token)


def watched(
    title: str, items: Iterable[T], total: int | None = None, count: Callable[[T], int] = lambda item: 1
) -> Iterable[T]:
    """Return items; within `shown_steps`, each counts as done when the next one is asked for.

    Args:
        title: What is done with them.
        items: The items.
        total: Their number, from which the time that is left is estimated; None if it is not known.
        count: Returns how many an item counts for; all of them together are `total`.
    """
    log_after = _log_after.get()
    return items if log_after is None else _counted(title, items, total, count, log_after)


def _counted(
    title: str, items: Iterable[T], total: int | None, count: Callable[[T], int], log_after: float
) -> Iterator[T]:
    with ProgressLine(title, total, "", shown=True, log_after=log_after) as line:
        for item in items:
            number = count(item)
            yield item
            line.update(number)
