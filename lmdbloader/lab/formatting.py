"""Figures, tables and paragraphs of reports, as text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 100
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def seconds(value: float) -> str:
    """Return a time with three digits and its unit.

    >>> seconds(12.345), seconds(0.0042), seconds(1e-5), seconds(754.2), seconds(0)
    ('12.3 s', '4.2 ms', '10 µs', '754 s', '0 s')
    """
    if value <= 0:
        return "0 s"
    size, unit = next(((size, unit) for size, unit in _UNITS if value >= size * 0.9995), _UNITS[-1])
    return f"{value / size:.0f} {unit}" if value / size >= 100 else f"{value / size:.3g} {unit}"


def number(value: float) -> str:
    """Return a number with three digits, or all of those before the point.

    >>> number(85509.3), number(12.345), number(0.5), number(0)
    ('85,509', '12.3', '0.5', '0')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(share: float) -> str:
    """Return a share.

    >>> percent(0.61), percent(0.004), percent(0), percent(0.9997)
    ('61 %', '0.4 %', '0 %', '100 %')
    """
    value = 100 * share
    return f"{value:.1f} %" if 0.05 <= value < 0.95 or 99.05 <= value < 99.95 else f"{value:.0f} %"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its heading.
        show: Formats a value.
        is_text: Whether it holds words rather than numbers.
    """

    name: str
    show: Callable[[Any], str] = str
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table of values, which HTML shows as it is and text may rearrange.

    Attributes:
        caption: Its contents, in words.
        columns: Its columns.
        rows: A value for each column.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]

    @property
    def header(self) -> list[str]:
        """The headings."""
        return [column.name for column in self.columns]

    def cells(self) -> list[list[str]]:
        """Return the rows as text."""
        return [[column.show(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def lines(self) -> list[str]:
        """Return the table as lines of text, the caption first."""
        texts = [place for place, column in enumerate(self.columns) if column.is_text]
        return [self.caption, *align([self.header, *self.cells()], texts, indent="  ")]


def align(rows: Sequence[Sequence[str]], left: Iterable[int] = (0,), *, indent: str = "") -> list[str]:
    """Return rows as lines with aligned columns.

    Args:
        rows: As many cells in each.
        left: Numbers of the columns that are aligned to the left.
        indent: Put before each line.

    >>> align([["", "samples/s"], ["Loader", "1,200"]])
    ['        samples/s', 'Loader      1,200']
    """
    lefts = set(left)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        (indent + "  ".join(f"{cell:{'<' if i in lefts else '>'}{widths[i]}}" for i, cell in enumerate(row))).rstrip()
        for row in rows
    ]


def wrap(text: str, first: str = "", other: str = "", *, width: int = WIDTH) -> list[str]:
    """Return a paragraph as lines: `first` begins the first line, `other` the rest. No word is broken."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=other, break_on_hyphens=False, break_long_words=False
    )


def define(rows: Sequence[tuple[str, str]], *, indent: str = "", width: int | None = None) -> list[str]:
    """Return names and their values as lines, the values aligned, and wrapped to `width`.

    >>> define([("cores", "2"), ("memory", "8 GiB")])
    ['cores   2', 'memory  8 GiB']
    """
    first = len(indent) + max(len(name) for name, _ in rows)
    lines = []
    for name, value in rows:
        start = f"{indent + name:<{first}}  "
        lines += (
            [start + value]
            if width is None
            else textwrap.wrap(value, width, initial_indent=start, subsequent_indent=" " * len(start))
        )
    return lines
