"""How report.py writes figures and tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from report_results import Results, Row

NOTHING = "-"
# A cell of figures, which is aligned to the right.
_FIGURE = re.compile(r"[\d.,()\[\]/ %+±*-]*(GB/s( \*)?)?")


def number(value: float | None) -> str:
    """Return a number with three digits, or all of those before the point.

    >>> number(85509.3), number(12.345), number(0.5), number(0), number(None)
    ('85,509', '12.3', '0.5', '0', '-')
    """
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def share(value: float | None) -> str:
    """Return a share in per cent.

    >>> share(0.614), share(0.0042), share(1.0), share(None)
    ('61 %', '0.4 %', '100 %', '-')
    """
    if value is None:
        return NOTHING
    return f"{100 * value:.1f} %" if abs(value) < 0.0995 and value else f"{100 * value:.0f} %"


def ratio(value: float | None) -> str:
    """Return how many times as much.

    >>> ratio(5.14), ratio(28.31), ratio(0.824), ratio(140.2), ratio(None)
    ('5.1', '28', '0.82', '140', '-')
    """
    if value is None:
        return NOTHING
    if value < 0.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"


def pair(value: float | None, part: float | None, write: Any = share) -> str:
    """Return a figure and, in brackets, the value that it is compared with; "-" if there is no figure.

    >>> pair(1234.0, 0.5), pair(1234.0, None), pair(None, None)
    ('1,234 (50 %)', '1,234', '-')
    """
    return f"{number(value)} ({write(part)})" if value is not None and part is not None else number(value)


def interval(value: float | None, half: float | None, digits: int) -> str:
    """Return a mean and half the width of its interval.

    >>> interval(0.91234, 0.0123, 3), interval(0.9, None, 3), interval(None, None, 3)
    ('0.912 ± 0.012', '0.900', '-')
    """
    if value is None:
        return NOTHING
    return f"{value:.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None else "")


def cell_text(value: Any) -> str:
    """Return text that can stand in a cell: one line, no bars.

    >>> cell_text("a | b\\nc")
    'a \\\\| b c'
    """
    return " ".join(str(value).split()).replace("|", "\\|")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; columns of figures are aligned to the right, and columns without any value are left out.

    >>> print(table(["what", "samples/s", "watts"], [["Loader", "1,234", "-"], ["folder", "17", "-"]]))
    | what   | samples/s |
    |--------|----------:|
    | Loader |     1,234 |
    | folder |        17 |
    """
    if not rows:
        return ""
    kept = [k for k in range(len(header)) if k == 0 or any(row[k] not in ("", NOTHING) for row in rows)]
    columns = [[header[k], *(row[k] for row in rows)] for k in kept]
    widths = [max(map(len, column)) for column in columns]
    right = [k > 0 and all(_FIGURE.fullmatch(cell) for cell in column[1:]) for k, column in enumerate(columns)]

    def line(number: int) -> str:
        cells = (column[number] for column in columns)
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = "|".join("-" * (w + 1) + (":" if r else "-") for w, r in zip(widths, right, strict=True))
    return "\n".join([line(0), f"|{rule}|", *map(line, range(1, len(rows) + 1))])


def paragraphs(*parts: str | None) -> str:
    """Return parts of a page, without those that are empty."""
    return "\n\n".join(part for part in parts if part)


def pivot(
    rows: Iterable[Row], by: Callable[[Row], tuple[str, ...]], across: Callable[[Row], Any], cell: Callable[[Row], str]
) -> tuple[list[Any], list[list[str]]]:
    """Return the values that stand across, sorted as they come, and the rows of the table below them."""
    columns: dict[Any, None] = {}
    found: dict[tuple[str, ...], dict[Any, str]] = {}
    for row in rows:
        columns.setdefault(across(row))
        found.setdefault(by(row), {})[across(row)] = cell(row)
    names = sorted(columns) if all(isinstance(name, int | float) for name in columns) else list(columns)
    return names, [[*key, *(cells.get(name, NOTHING) for name in names)] for key, cells in found.items()]


def source(results: Results, stage: str) -> str:
    """Return the line that says which run the figures below are from."""
    run = results.run_of(stage)
    return f"<!-- benchmarks/results/gpu/{run.name}/{stage}.json -->" if run else ""
