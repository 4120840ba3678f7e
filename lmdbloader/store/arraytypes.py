"""How many bytes the arrays of a column of types have, for all of them at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmdbloader.format.layout import ARRAY_DTYPES, parse_array_type

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_LONGEST_NAME = max(map(len, ARRAY_DTYPES))
_LONGEST_TEXT = 64
_MOST_DIGITS, _MOST_SIZES = 12, 32
# NumPy makes no array whose sizes, zeros left out, have a larger product.
_MOST_NBYTES = 2.0**62
# What is worked on stays in the processor's caches.
_AT_ONCE = 4096


def array_nbytes(types: pa.StringArray) -> F64:
    """Return the bytes (n,) of arrays of types (n,), exact below 2**53; infinity where no array can be so large.

    Raises:
        FormatError: A text is none that `lmdbloader.format.layout.array_type` makes.
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
    ends = np.frombuffer(offsets, np.int32)[types.offset : types.offset + len(types) + 1].astype(np.int64)
    length = np.diff(ends)
    longest = int(length.max())
    if data is None or not 0 < longest <= _LONGEST_TEXT:
        return None
    # One text a column, zeros behind its end.
    column = np.arange(longest)[:, None]
    text = np.frombuffer(data, np.uint8).take(ends[:-1] + column, mode="clip")
    behind = column >= length
    if not (text.astype(bool) | behind).all():
        return None
    text[behind] = 0
    opens, closes = text == ord("["), text == ord("]")
    bracket = opens.argmax(0)
    itemsize = _itemsizes(text, bracket)
    inside = column > bracket
    is_digit = (text - np.uint8(ord("0")) <= 9) & inside
    ends_size = ((text == ord(",")) & inside) | closes
    empty = (opens | ends_size)[:-1] & ends_size[1:]
    is_scalar = closes[np.minimum(bracket + 1, longest - 1), np.arange(len(types))] & (length == bracket + 2)
    fits = is_digit | ends_size | ~inside | behind
    if itemsize is None or not fits.all() or (opens.sum(0) != 1).any() or (ends_size.sum(0) > _MOST_SIZES).any():
        return None
    if (closes != (column == length - 1)).any() or (empty.any(0) & ~is_scalar).any():
        return None
    size, digits = np.zeros(len(types)), np.zeros(len(types), np.int8)
    nbytes, spread = itemsize, itemsize
    for k in range(int(bracket.min()) + 1, longest):
        size = np.where(is_digit[k], 10 * size + text[k] - ord("0"), size)
        digits = np.where(is_digit[k], digits + 1, 0)
        if digits.max() > _MOST_DIGITS:
            return None
        if ends_size[k].any():
            factor = np.where(ends_size[k] & ~is_scalar, size, 1)
            nbytes, spread = nbytes * factor, spread * np.maximum(factor, 1)
            size[ends_size[k]] = 0
    return np.where(spread <= _MOST_NBYTES, nbytes, np.inf)


def _itemsizes(text: npt.NDArray[np.uint8], bracket: I64) -> F64 | None:
    """Return the bytes (n,) of a value of types whose names stand in text[:bracket], None where one is none."""
    longest = int(bracket.max())
    if longest > _LONGEST_NAME:
        return None
    name = text[:longest] * (np.arange(longest)[:, None] < bracket)
    # Most often all are alike, so only where one differs from the one before it is it looked at.
    differs = np.append(True, (name[:, 1:] != name[:, :-1]).any(0))
    columns = np.flatnonzero(differs).tolist()
    names = [name[: bracket[column], column].tobytes().decode("latin1") for column in columns]
    if not ARRAY_DTYPES.issuperset(names):
        return None
    itemsizes: F64 = np.array([np.dtype(dtype).itemsize for dtype in names], np.float64)[np.cumsum(differs) - 1]
    return itemsizes
