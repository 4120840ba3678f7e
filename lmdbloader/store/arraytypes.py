"""How many bytes the arrays of a column of types have, for all of them at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmdbloader.format import ARRAY_DTYPES, parse_array_type

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_LONGEST_NAME = max(map(len, ARRAY_DTYPES))
_MOST_DIGITS, _MOST_SIZES = 12, 32
# NumPy makes no array whose sizes, zeros left out, have a larger product.
_MOST_NBYTES = 2.0**62
# What is worked on stays in the processor's caches.
_AT_ONCE = 4096


def array_nbytes(types: pa.StringArray) -> F64:
    """Return the bytes (n,) of arrays of types (n,), exact below 2**53; infinity where no array can be so large.

    Raises:
        FormatError: A text is none that `lmdbloader.format.array_type` makes.
    """
    nbytes = np.empty(len(types))
    for first in range(0, len(types), _AT_ONCE):
        part = types[first : first + _AT_ONCE]
        found = _regular(part)
        # At least one is odd: this says which, or takes its time.
        nbytes[first : first + _AT_ONCE] = [_nbytes(t) for t in part.to_pylist()] if found is None else found
    return nbytes


def _nbytes(text: str) -> float:
    dtype, shape = parse_array_type(text)
    nbytes = spread = float(np.dtype(dtype).itemsize)
    for size in shape:
        nbytes *= size
        spread *= max(size, 1)
    return nbytes if spread <= _MOST_NBYTES else np.inf


def _regular(types: pa.StringArray) -> F64 | None:
    """Return what `array_nbytes` does, None where a text is not as expected; Python takes too long for very many."""
    _, offsets, data = types.buffers()
    if data is None:
        return None
    ends = np.frombuffer(offsets, np.int32)[types.offset : types.offset + len(types) + 1].astype(np.int64)
    start, stop = ends[:-1], ends[1:]
    text = np.frombuffer(data, np.uint8)[start[0] : stop[-1]]
    start, stop = start - ends[0], stop - ends[0]
    row = np.repeat(np.arange(len(types)), stop - start)
    bracket = np.flatnonzero(text == ord("["))
    if len(bracket) != len(types) or (start > bracket).any() or (bracket >= stop - 1).any():
        return None
    itemsize = _itemsizes(text, start, bracket)
    other = np.flatnonzero(text - np.uint8(ord("0")) > 9)
    separator = other[other > bracket[row[other]]]
    of = row[separator]
    is_last = np.append(of[1:] != of[:-1], True)
    kind = np.where(is_last, ord("]"), ord(","))
    if itemsize is None or len(separator) < len(types) or is_last.sum() != len(types):
        return None
    if (text[separator] != kind).any() or (separator[is_last] != stop - 1).any():
        return None
    is_first = np.append(True, is_last[:-1])
    digits = separator - np.where(is_first, bracket[of], np.append(0, separator[:-1])) - 1
    sizes = _sizes(text, separator, digits)
    is_scalar = is_first & is_last & (digits == 0)
    if ((digits == 0) & ~is_scalar).any() or digits.max() > _MOST_DIGITS or np.bincount(of).max() > _MOST_SIZES:
        return None
    sizes[is_scalar] = 1
    first = np.flatnonzero(is_first)
    nbytes = itemsize * np.multiply.reduceat(sizes, first)
    spread = itemsize * np.multiply.reduceat(np.maximum(sizes, 1), first)
    return np.where(spread <= _MOST_NBYTES, nbytes, np.inf)


def _sizes(text: npt.NDArray[np.uint8], separator: I64, digits: I64) -> F64:
    """Return the numbers (m,) of some digits (m,) that end before the separators (m,)."""
    sizes = np.zeros(len(separator))
    for k in range(min(int(digits.max()), _MOST_DIGITS)):
        there = digits > k
        sizes[there] += (text[separator[there] - k - 1] - np.float64(ord("0"))) * 10.0**k
    return sizes


def _itemsizes(text: npt.NDArray[np.uint8], start: I64, stop: I64) -> F64 | None:
    """Return the bytes (n,) of values whose types' names stand in text[start : stop], None where one is none."""
    length = stop - start
    longest = int(length.max())
    if longest > _LONGEST_NAME:
        return None
    name = text[np.minimum(start[:, None] + np.arange(longest), len(text) - 1)]
    if (length != longest).any():
        name[np.arange(longest) >= length[:, None]] = 0
    # Most often all are alike, so only where one differs from the one before it is it looked at.
    differs = np.append(True, (name[1:] != name[:-1]).any(1))
    rows = np.flatnonzero(differs).tolist()
    names = [name[row, : length[row]].tobytes().decode("latin1") for row in rows]
    if not ARRAY_DTYPES.issuperset(names):
        return None
    itemsizes: F64 = np.array([np.dtype(dtype).itemsize for dtype in names], np.float64)[np.cumsum(differs) - 1]
    return itemsizes
