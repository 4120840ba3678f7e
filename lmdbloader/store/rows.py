"""Rows of an index that a view reads, a range without memory or an array; and the extremes of a column there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.text import counted
from lmdbloader.format.codecs import checksum

I64 = npt.NDArray[np.int64]
# In order; the numbers of a range are not negative.
Rows = range | I64
# Columns are examined in parts, so that this takes little memory whatever their length.
_ROWS_AT_ONCE = 2**16


def rows_at(rows: Rows, places: I64) -> I64:
    """Return the rows (n,) at some places.

    >>> rows_at(range(10, 0, -2), np.array([0, 3]))
    array([10,  4])
    """
    if not isinstance(rows, range):
        return rows[places]
    return places if rows.start == 0 and rows.step == 1 else rows.start + rows.step * places


def as_array(rows: Rows) -> I64:
    """Return rows as an array (n,)."""
    return np.arange(rows.start, rows.stop, rows.step, dtype=np.int64) if isinstance(rows, range) else rows


def take(column: npt.NDArray[Any], rows: Rows) -> npt.NDArray[Any]:
    """Return the values (n,) of a column; a view of it for a range.

    >>> take(np.arange(10), range(8, -1, -4)).tolist()
    [8, 4, 0]
    """
    return column[_slice_of(rows) if isinstance(rows, range) else rows]


def choose(rows: Rows, places: range) -> Rows:
    """Return the rows at a range of places, without an array where `rows` is a range.

    >>> choose(range(100, 200, 10), range(9, 3, -2))
    range(190, 130, -20)
    """
    if not isinstance(rows, range):
        return rows[_slice_of(places)]
    if len(places) < 2:  # their step may be too large for an array
        return range(rows[places[0]], rows[places[0]] + 1) if places else range(0)
    return range(rows.start + rows.step * places.start, rows.start + rows.step * places.stop, rows.step * places.step)


def places_in(places: range, length: int) -> range | None:
    """Return places of which negative ones count from the end; None if only some are negative.

    Raises:
        IndexError: One is out of range.

    >>> places_in(range(-3, 0), 10), places_in(range(-1, 2), 10)
    (range(7, 10), None)
    """
    if not places:
        return range(0)
    low, high = min(places[0], places[-1]), max(places[0], places[-1])
    if low < -length or high >= length:
        raise IndexError(f"sample {low if low < -length else high} of a dataset of {counted(length, 'sample')}")
    if low >= 0:
        return places
    return range(places.start + length, places.stop + length, places.step) if high < 0 else None


def compact(rows: I64) -> Rows:
    """Return the range that has these rows in their order, or else the rows.

    >>> compact(np.array([7, 5, 3])), compact(np.array([7, 5, 4]))
    (range(7, 2, -2), array([7, 5, 4]))
    """
    if len(rows) < 2:
        return range(int(rows[0]), int(rows[0]) + 1) if len(rows) else range(0)
    step = int(rows[1]) - int(rows[0])
    parts = (rows[first : first + _ROWS_AT_ONCE + 1] for first in range(0, len(rows) - 1, _ROWS_AT_ONCE))
    if step == 0 or not all((np.diff(part) == step).all() for part in parts):
        return rows
    return range(int(rows[0]), int(rows[-1]) + (1 if step > 0 else -1), step)


def shifted(rows: Rows, by: int) -> Rows:
    """Return rows with a number added to each.

    >>> shifted(range(2, -1, -1), 10)
    range(12, 9, -1)
    """
    return range(rows.start + by, rows.stop + by, rows.step) if isinstance(rows, range) else rows + by


def join(many: list[Rows]) -> Rows:
    """Return all rows of several, one after another.

    >>> join([range(0, 4, 2), range(4, 8, 2)]), join([range(3), range(5, 6)])
    (range(0, 7, 2), array([0, 1, 2, 5]))
    """
    joined: range | None = range(0)
    for rows in many:
        joined = _joined(joined, rows) if joined is not None and isinstance(rows, range) else None
    return compact(np.concatenate([as_array(rows) for rows in many])) if joined is None else joined


def _joined(first: range, second: range) -> range | None:
    if not first or not second:
        return first or second
    step = second[0] - first[-1]
    if step == 0 or any(len(rows) > 1 and rows.step != step for rows in (first, second)):
        return None
    return range(first[0], second[-1] + (1 if step > 0 else -1), step)


def text_of(rows: Rows) -> str:
    """Return a short text of rows; equal rows have the same, whether they are a range or an array.

    >>> text_of(range(0, 10, 3)), text_of(np.array([0, 3, 6, 9]))
    ('0:10:3', '0:10:3')
    """
    rows = rows if isinstance(rows, range) else compact(rows)
    if not isinstance(rows, range):
        return digest_of(rows)
    if len(rows) < 2:
        return f"{rows[0]}:{rows[0] + 1}:1" if rows else "0:0:1"
    return f"{rows[0]}:{rows[-1] + (1 if rows.step > 0 else -1)}:{rows.step}"


def digest_of(column: I64) -> str:
    """Return the digest of the numbers of a column."""
    return f"xxh3:{checksum(np.ascontiguousarray(column, '<i8')):016x}"


def parts_of(rows: Rows, size: int = _ROWS_AT_ONCE) -> Iterator[Rows]:
    """Yield rows in parts of at most `size`."""
    return (rows[first : first + size] for first in range(0, len(rows), size))


def extremes(column: npt.NDArray[Any], rows: Rows) -> tuple[int, int]:
    """Return the least and the greatest whole number of a column in some rows; (0, 0) of none.

    >>> extremes(np.array([3, 9, 4]), range(0, 3, 2))
    (3, 4)
    """
    if not len(rows):
        return 0, 0
    found = [(part.min(), part.max()) for part in (take(column, part) for part in parts_of(rows))]
    return int(min(low for low, _ in found)), int(max(high for _, high in found))


def _slice_of(places: range) -> slice:
    """Return the slice that takes places, none of them negative."""
    if not places:
        return slice(0, 0)
    return slice(places.start, places.stop if places.stop >= 0 else None, places.step)
