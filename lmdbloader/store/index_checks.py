"""Checks that an index is plausible: payloads inside data.mdb, not overlapping, not larger than a codec can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.format.codecs import are_tiles, limits_of, tile_table_nbytes
from lmdbloader.format.layout import (
    ARRAY_DTYPES,
    CODEC_RAW,
    DATA_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    MAX_PAYLOAD_NBYTES,
    Field,
    parse_array_type,
)
from lmdbloader.format.manifest import Manifest
from lmdbloader.store.arrow_file import Columns, Names, Texts

Arrays = Mapping[str, npt.NDArray[Any]]
Bools = npt.NDArray[np.bool_]

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

# Columns of every payload field, and those that images have in addition.
_PARTS = ("offset", "stored_nbytes", "raw_nbytes", "codec")
_SHAPE = ("height", "width", "channels", "bits")
# Rows and types are checked in parts that stay in the processor's caches.
_ROWS_AT_ONCE, _TYPES_AT_ONCE = 8192, 4096
_LONGEST_NAME = max(map(len, ARRAY_DTYPES))
_LONGEST_TEXT = 64
_MOST_DIGITS, _MOST_SIZES = 12, 32
# NumPy refuses arrays whose sizes, zeros left out, have a larger product.
_MOST_NBYTES = 2.0**62


def check_index(columns: Columns, manifest: Manifest, data_nbytes: int, path: Path) -> None:
    """Check the columns of an index against each other, data.mdb's length and the manifest.

    Args:
        columns: Of the index.
        manifest: The dataset's.
        data_nbytes: Bytes of data.mdb.
        path: The dataset's, for messages.

    Raises:
        CorruptError: They contradict each other; names the first such sample.
        FormatError: The type of an array does not parse.
    """
    arrays = columns.arrays
    where = _Where(path, columns.names["source"] if manifest.with_source else None)
    fields = [f for f in manifest.fields if f.is_payload]
    totals = {"stored_nbytes": 0, "raw_nbytes": 0}
    for f in fields:
        lengths = _array_lengths(f, columns, path) if f.kind == "array" else None
        for first in range(0, columns.num_rows, _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            part = {name: arrays[f"{f.name}.{name}"][rows] for name in _PARTS + (_SHAPE if f.has_pixels else ())}
            for wrong, reason in _rules(f, part, None if lengths is None else lengths[rows], data_nbytes):
                if wrong.any():
                    raise where.error(f, arrays, first + int(np.flatnonzero(wrong)[0]), reason)
            for name in totals:
                totals[name] += int(part[name].sum(dtype=np.int64))
    _check_overlaps(fields, arrays, where)
    for name, key in (("stored_nbytes", "payload_nbytes"), ("raw_nbytes", "raw_nbytes")):
        if totals[name] != manifest.sizes[key]:
            raise CorruptError(
                f"{path / INDEX_FILE}: its {name} add up to {totals[name]}, but {MANIFEST_FILE} states {key} "
                f"{manifest.sizes[key]}. Restore the dataset from a copy.",
                path=str(path),
            )


class _Where:
    """Makes errors that name a row and its source."""

    def __init__(self, path: Path, sources: Names | None) -> None:
        self._path, self._sources = path, sources

    def error(self, f: Field, arrays: Arrays, row: int, reason: str) -> CorruptError:
        """Return the error for a row."""
        values = {name: int(arrays[f"{f.name}.{name}"][row]) for name in _PARTS}
        source = None if self._sources is None else self._sources[row]
        named = f" (from {source})" if source else ""
        return CorruptError(
            f"{self._path / INDEX_FILE}: row {row}{named}, field {f.name!r}: {values} does not fit {reason}. Restore "
            "the dataset from a copy, or convert again.",
            sample=row,
            field=f.name,
            source=source,
            path=str(self._path),
        )


def _rules(
    f: Field, columns: Arrays, lengths: npt.NDArray[np.float64] | None, data_nbytes: int
) -> Iterator[tuple[Bools, str]]:
    """Yield each rule as the rows (n,) that break it, and the end of the sentence "does not fit ..."."""
    at, codec = columns["offset"], columns["codec"]
    stored, raw = (columns[name].astype(np.int64) for name in ("stored_nbytes", "raw_nbytes"))
    yield (at < 0) | (at > data_nbytes - stored), f"{DATA_FILE}'s {data_nbytes} bytes"
    fits_kind = limits_of(codec, lambda entry: not entry.only_kinds or f.kind in entry.only_kinds, False)
    yield np.broadcast_to(np.logical_not(fits_kind), codec.shape), f"the codecs of {f.kind}s"
    yield np.maximum(stored, raw) > MAX_PAYLOAD_NBYTES, f"the {MAX_PAYLOAD_NBYTES} bytes that one payload may have"
    yield (codec == CODEC_RAW) & (raw != stored), "the raw codec, which does not change a length"
    body = stored
    if f.has_pixels:
        height, width, channels, bits = (columns[name] for name in _SHAPE)
        planes = (channels == 1) | ((channels == 3) & (f.kind == "image"))
        sound = ((bits == 8) | (bits == 16)) & planes & (height > 0) & (width > 0)
        yield ~sound, f"{'an image' if f.kind == 'image' else 'a mask'}: one of {', '.join(_SHAPE)} is not valid"
        yield bits > limits_of(codec, lambda entry: entry.max_bits, 16), "its codec, which has fewer bits"
        # Doubles are exact up to 2**53, and their products do not wrap around.
        yield height.astype(np.float64) * width * (channels * (bits // 8)) != raw, f"its {', '.join(_SHAPE)}"
        is_tiled = are_tiles(codec)
        if is_tiled.any():
            side = f.tile_size or 1
            tables, _ = tile_table_nbytes(codec, np.ceil(height / side) * np.ceil(width / side))
            body = np.where(is_tiled, stored - tables.astype(np.int64), stored)
    elif lengths is not None:
        yield lengths != raw, "its array's type"
    max_ratio = limits_of(codec, lambda entry: entry.max_ratio, MAX_PAYLOAD_NBYTES)
    yield raw > max_ratio * body, "its codec, which cannot compress that much"


def _array_lengths(f: Field, columns: Columns, path: Path) -> npt.NDArray[np.float64]:
    types = columns.names[f"{f.name}.type"]
    try:
        nbytes = array_nbytes(types.texts)
    except FormatError as error:
        raise FormatError(f"{path / INDEX_FILE}: field {f.name!r}: {error}") from error
    return nbytes[types.codes] if len(nbytes) else np.empty(0)


def _check_overlaps(fields: Sequence[Field], arrays: Arrays, where: _Where) -> None:
    """Refuse payloads that overlap; empty ones have no place."""
    if not fields:
        return
    starts = np.concatenate([arrays[f"{f.name}.offset"] for f in fields])
    nbytes = np.concatenate([arrays[f"{f.name}.stored_nbytes"] for f in fields])
    numbers = None
    if not nbytes.all():
        numbers = np.flatnonzero(nbytes)
        starts, nbytes = starts[numbers], nbytes[numbers]
    if (starts[1:] < starts[:-1]).any():
        # A field's payloads are in order, block by block: a stable sort finds these runs and merges them.
        order = np.argsort(starts, kind="stable")
        numbers = order if numbers is None else numbers[order]
        starts, nbytes = starts[order], nbytes[order]
    over = starts[:-1] + nbytes[:-1] > starts[1:]
    if not over.any():
        return
    second = int(np.flatnonzero(over)[0]) + 1
    f, row = divmod(second if numbers is None else int(numbers[second]), len(arrays[f"{fields[0].name}.offset"]))
    raise where.error(fields[f], arrays, row, "its place, which overlaps another payload")


def array_nbytes(types: Texts) -> F64:
    """Return the bytes (n,) of arrays of types (n,), exact below 2**53; infinity if NumPy has no arrays that large.

    Raises:
        FormatError: A text is not one that `lmdbloader.format.layout.array_type` makes.
    """
    nbytes = np.empty(len(types))
    for first in range(0, len(types), _TYPES_AT_ONCE):
        part = types.part(first, min(first + _TYPES_AT_ONCE, len(types)))
        found = _regular(part)
        # If at least one is unusual, parse them one by one: slower, and the error names it.
        nbytes[first : first + _TYPES_AT_ONCE] = [_nbytes(t) for t in part.to_list()] if found is None else found
    return nbytes


def _nbytes(text: str) -> float:
    dtype, shape = parse_array_type(text)
    nbytes = spread = float(np.dtype(dtype).itemsize)
    for size in shape:
        nbytes *= size
        spread *= max(size, 1)
    return nbytes if spread <= _MOST_NBYTES else np.inf


def _regular(types: Texts) -> F64 | None:
    """Return the same as `array_nbytes`, but vectorised, or None if a text is unusual."""
    ends = types.ends.astype(np.int64)
    length = np.diff(ends)
    longest = int(length.max())
    if not 0 < longest <= _LONGEST_TEXT:
        return None
    # One text a column, padded with zeros.
    column = np.arange(longest)[:, None]
    text = types.data.take(ends[:-1] + column, mode="clip")
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
    """Return the bytes (n,) of one value of types whose names are text[:bracket], None if one is unknown."""
    longest = int(bracket.max())
    if longest > _LONGEST_NAME:
        return None
    name = text[:longest] * (np.arange(longest)[:, None] < bracket)
    # Usually all are equal, so a name is looked up only if it differs from the one before it.
    differs = np.append(True, (name[:, 1:] != name[:, :-1]).any(0))
    columns = np.flatnonzero(differs).tolist()
    names = [name[: bracket[column], column].tobytes().decode("latin1") for column in columns]
    if not ARRAY_DTYPES.issuperset(names):
        return None
    itemsizes: F64 = np.array([np.dtype(dtype).itemsize for dtype in names], np.float64)[np.cumsum(differs) - 1]
    return itemsizes
