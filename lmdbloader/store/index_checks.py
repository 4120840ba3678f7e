"""Checks that an index is plausible: payloads inside data.mdb, not overlapping, not larger than a codec can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.format.codecs import TABLE, limits_of, tile_table_nbytes
from lmdbloader.format.layout import (
    ARRAY_DTYPES,
    CODEC_RAW,
    CODEC_TILES,
    DATA_FILE,
    MANIFEST_FILE,
    MAX_PAYLOAD_NBYTES,
    Field,
    parse_array_type,
)
from lmdbloader.format.manifest import Manifest, part_begins
from lmdbloader.store.arrow_file import Columns, Names, Texts
from lmdbloader.store.facts import Facts, FactsSoFar

Arrays = Mapping[str, npt.NDArray[Any]]
Bools = npt.NDArray[np.bool_]

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
# Offsets and stored bytes of a field; and of some payloads their offsets, stored bytes, numbers of the field, and rows.
_Column = tuple[I64, npt.NDArray[Any]]
_Part = tuple[I64, I64, I64, I64]

# Columns of every payload field, and those that images have in addition.
_PARTS = ("offset", "stored_nbytes", "raw_nbytes", "codec")
_SHAPE = ("height", "width", "channels", "bits")
# Rows and types are checked in parts that stay in the processor's caches.
_ROWS_AT_ONCE, _TYPES_AT_ONCE = 8192, 4096
# Runs of payloads in order that are merged.
_MOST_RUNS = 64
_LONGEST_NAME = max(map(len, ARRAY_DTYPES))
_LONGEST_TEXT = 64
_MOST_DIGITS, _MOST_SIZES = 12, 32
# NumPy refuses arrays whose sizes, zeros left out, have a larger product.
_MOST_NBYTES = 2.0**62


def check_index(columns: Columns, manifest: Manifest, data_nbytes: int, path: Path) -> dict[str, Facts]:
    """Check the columns of an index against each other, data.mdb's length and the manifest.

    Args:
        columns: Of the index.
        manifest: The dataset's.
        data_nbytes: Bytes of data.mdb.
        path: The dataset's, for messages.

    Returns:
        Facts about each payload field.

    Raises:
        CorruptError: They contradict each other; names the first such sample.
        FormatError: The type of an array does not parse.
    """
    arrays = columns.arrays
    spans = _spans(manifest, data_nbytes)
    index = path / manifest.index_file
    where = _Where(index, columns.names["source"] if manifest.with_source else None)
    fields = [f for f in manifest.fields if f.is_payload]
    facts = {}
    for f in fields:
        so_far = FactsSoFar(f)
        of_types = _type_nbytes(f, columns, index) if f.kind == "array" else None
        for first in range(0, columns.num_rows, _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            part = {name: arrays[f"{f.name}.{name}"][rows] for name in _PARTS + (_SHAPE if f.has_pixels else ())}
            lengths = None if of_types is None else of_types[columns.names[f"{f.name}.type"].codes[rows]]
            for wrong, reason in _rules(f, part, lengths, spans):
                if wrong.any():
                    raise where.error(f, arrays, first + int(np.flatnonzero(wrong)[0]), reason)
            so_far.add(part)
        facts[f.name] = so_far.facts()
    _check_overlaps(fields, arrays, where)
    for name, key in (("stored_nbytes", "payload_nbytes"), ("raw_nbytes", "raw_nbytes")):
        total = sum(found.totals[name] for found in facts.values())
        if total != manifest.sizes[key]:
            raise CorruptError(
                f"{index}: its {name} add up to {total}, but {MANIFEST_FILE} states {key} "
                f"{manifest.sizes[key]}. Restore the dataset from a copy.",
                path=str(path),
            )
    return facts


def _spans(manifest: Manifest, data_nbytes: int) -> tuple[I64, I64]:
    """Return where the data files begin and end, in the offsets of the index: one, or those of a set's parts."""
    lengths = [part.data_nbytes for part in manifest.parts] or [data_nbytes]
    begins = np.array(part_begins(lengths)[:-1], np.int64)
    return begins, begins + np.array(lengths, np.int64)


class _Where:
    """Makes errors that name a row and its source."""

    def __init__(self, index: Path, sources: Names | None) -> None:
        self._index, self._sources = index, sources

    def error(self, f: Field, arrays: Arrays, row: int, reason: str) -> CorruptError:
        """Return the error for a row."""
        values = {name: int(arrays[f"{f.name}.{name}"][row]) for name in _PARTS}
        source = None if self._sources is None else self._sources[row]
        named = f" (from {source})" if source else ""
        return CorruptError(
            f"{self._index}: row {row}{named}, field {f.name!r}: {values} does not fit {reason}. Restore "
            "the dataset from a copy, or convert again.",
            sample=row,
            field=f.name,
            source=source,
            path=str(self._index.parent),
        )


def _rules(
    f: Field,
    columns: Arrays,
    lengths: npt.NDArray[np.float64] | None,
    spans: tuple[I64, I64],
) -> Iterator[tuple[Bools, str]]:
    """Yield each rule as the rows (n,) that break it, and the end of the sentence "does not fit ..."."""
    at, codec = columns["offset"], columns["codec"]
    stored, raw = (columns[name].astype(np.int64) for name in ("stored_nbytes", "raw_nbytes"))
    begins, ends = spans
    if len(begins) == 1:
        yield (at < 0) | (at > ends[0] - stored), f"{DATA_FILE}'s {ends[0]} bytes"
    else:
        part = np.maximum(np.searchsorted(begins, at, side="right") - 1, 0)
        yield (at < begins[part]) | (at > ends[part] - stored), f"one of the {len(begins)} parts' {DATA_FILE}"
    is_unknown = np.logical_not(limits_of(codec, lambda entry: True, False))
    yield np.broadcast_to(is_unknown, codec.shape), f"the codecs, {min(TABLE)} to {max(TABLE)}"
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
        is_tiled = codec == CODEC_TILES
        if is_tiled.any():
            side = f.tile_size or 1
            tables, _ = tile_table_nbytes(np.ceil(height / side) * np.ceil(width / side))
            body = np.where(is_tiled, stored - tables.astype(np.int64), stored)
    elif lengths is not None:
        yield lengths != raw, "its array's type"
    max_ratio = limits_of(codec, lambda entry: entry.max_ratio, MAX_PAYLOAD_NBYTES)
    yield raw > max_ratio * body, "its codec, which cannot compress that much"


def _type_nbytes(f: Field, columns: Columns, index: Path) -> npt.NDArray[np.float64]:
    """Return the bytes of the arrays of each type, by the type's number."""
    try:
        return array_nbytes(columns.names[f"{f.name}.type"].texts)
    except FormatError as error:
        raise FormatError(f"{index}: field {f.name!r}: {error}") from error


def _check_overlaps(fields: Sequence[Field], arrays: Arrays, where: _Where) -> None:
    """Refuse payloads that overlap; empty ones have no place."""
    columns = [(arrays[f"{f.name}.offset"], arrays[f"{f.name}.stored_nbytes"]) for f in fields]
    end = 0
    for starts, nbytes, numbers, rows in _in_storage_order(columns):
        ends = starts + nbytes
        over = np.append(end, ends[:-1]) > starts
        if over.any():
            place = int(np.flatnonzero(over)[0])
            f, row = fields[int(numbers[place])], int(rows[place])
            raise where.error(f, arrays, row, "its place, which overlaps another payload")
        end = int(ends[-1])


def _in_storage_order(columns: Sequence[_Column]) -> Iterator[_Part]:
    """Yield all payloads that are not empty, by their offsets, in parts.

    Each field's payloads are in order, but for a few places: its runs are merged, which takes little memory. Columns
    in any other order are sorted as a whole.

    Args:
        columns: Offset (n,) and stored bytes (n,) of each field.
    """
    runs = ((number, *run) for number, column in enumerate(columns) for run in _runs(*column))
    found = list(islice(runs, _MOST_RUNS + 1))
    if len(found) <= _MOST_RUNS:
        yield from _merged([_parts_of_run(columns[number], number, first, stop) for number, first, stop in found])
        return
    starts, nbytes = (np.concatenate([column[k] for column in columns]) for k in (0, 1))
    chosen = np.flatnonzero(nbytes)
    chosen = chosen[np.argsort(starts[chosen], kind="stable")]
    for first in range(0, len(chosen), _ROWS_AT_ONCE):
        part = chosen[first : first + _ROWS_AT_ONCE]
        yield starts[part], nbytes[part].astype(np.int64), *np.divmod(part, len(columns[0][0]))


def _merged(runs: Sequence[Iterator[_Part]]) -> Iterator[_Part]:
    """Yield the payloads of runs, each in order and not empty, in the order of all."""
    heads = [(next(run), run) for run in runs]
    while heads:
        # What the runs have not given yet comes behind this offset.
        until = min(int(head[0][-1]) for head, _ in heads)
        taken: list[_Part] = []
        left: list[tuple[_Part, Iterator[_Part]]] = []
        for (starts, nbytes, numbers, rows), run in heads:
            count = int(np.searchsorted(starts, until, side="right"))
            taken.append((starts[:count], nbytes[:count], numbers[:count], rows[:count]))
            rest: _Part | None = starts[count:], nbytes[count:], numbers[count:], rows[count:]
            if count == len(starts):
                rest = next(run, None)
            if rest is not None:
                left.append((rest, run))
        heads = left
        if len(taken) == 1:
            yield taken[0]
            continue
        starts, nbytes, numbers, rows = (np.concatenate([part[k] for part in taken]) for k in range(4))
        order = np.argsort(starts, kind="stable")
        yield starts[order], nbytes[order], numbers[order], rows[order]


def _runs(starts: I64, nbytes: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield the first row, and the one behind the last, of each run of ascending offsets, without empty payloads."""
    first, last = 0, -1
    for at in range(0, len(starts), _ROWS_AT_ONCE):
        rows = np.flatnonzero(nbytes[at : at + _ROWS_AT_ONCE])
        part = np.append(last, starts[at : at + _ROWS_AT_ONCE][rows])
        for place in np.flatnonzero(part[1:] < part[:-1]).tolist():
            stop = at + int(rows[place])
            yield first, stop
            first = stop
        last = int(part[-1])
    if last >= 0:
        yield first, len(starts)


def _parts_of_run(column: _Column, number: int, first: int, stop: int) -> Iterator[_Part]:
    """Yield the payloads of one run of a field that are not empty."""
    starts, nbytes = column
    for at in range(first, stop, _ROWS_AT_ONCE):
        rows = np.flatnonzero(nbytes[at : min(at + _ROWS_AT_ONCE, stop)]) + at
        if len(rows):
            yield starts[rows], nbytes[rows].astype(np.int64), np.full(len(rows), number), rows


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
