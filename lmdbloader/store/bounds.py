"""Whether an index can be true: every payload inside data.mdb, none over another, none more than its codec can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.format.codecs import by_number
from lmdbloader.format.layout import (
    CODEC_RAW,
    CODEC_TILES,
    DATA_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    MAX_PAYLOAD_NBYTES,
    Field,
)
from lmdbloader.format.manifest import Manifest
from lmdbloader.kernels.codec_numbers import TILE_ENTRY_NBYTES
from lmdbloader.store.arraytypes import array_nbytes

Columns = Mapping[str, npt.NDArray[Any]]
Bools = npt.NDArray[np.bool_]

# Of every payload field, and of images besides.
_PARTS = ("offset", "stored_nbytes", "raw_nbytes", "codec")
_SHAPE = ("height", "width", "channels", "bits")
# What is worked on stays in the processor's caches.
_ROWS_AT_ONCE = 8192


def check_index(arrays: Columns, batch: pa.RecordBatch, manifest: Manifest, data_nbytes: int, path: Path) -> None:
    """Check the columns of an index against each other, data.mdb's length and the manifest.

    Args:
        arrays: The index's columns of numbers by name, (n,) each.
        batch: All of its columns.
        manifest: Of the dataset.
        data_nbytes: Bytes of data.mdb.
        path: Of the dataset, for messages.

    Raises:
        CorruptError: It cannot be true; names the first sample that shows it.
        FormatError: A type of arrays does not read.
    """
    where = _Where(path, batch if manifest.with_source else None)
    fields = [f for f in manifest.fields if f.is_payload]
    totals = {"stored_nbytes": 0, "raw_nbytes": 0}
    for f in fields:
        lengths = _array_lengths(f, batch, path) if f.kind == "array" else None
        for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            columns = {
                name: arrays[f"{f.name}.{name}"][rows] for name in _PARTS + (_SHAPE if f.kind == "image" else ())
            }
            for wrong, reason in _rules(f, columns, None if lengths is None else lengths[rows], data_nbytes):
                if wrong.any():
                    raise where.error(f, arrays, first + int(np.flatnonzero(wrong)[0]), reason)
            for name in totals:
                totals[name] += int(columns[name].sum(dtype=np.int64))
    _check_overlaps(fields, arrays, where)
    for name, key in (("stored_nbytes", "payload_nbytes"), ("raw_nbytes", "raw_nbytes")):
        if totals[name] != manifest.sizes[key]:
            raise CorruptError(
                f"{path / INDEX_FILE}: its {name} add up to {totals[name]}, and {MANIFEST_FILE} says {key} "
                f"{manifest.sizes[key]}. Restore the dataset from a copy.",
                path=str(path),
            )


class _Where:
    """Names what is wrong."""

    def __init__(self, path: Path, sourced: pa.RecordBatch | None) -> None:
        self._path, self._sourced = path, sourced

    def error(self, f: Field, arrays: Columns, row: int, reason: str) -> CorruptError:
        """Return the error for a row."""
        values = {name: int(arrays[f"{f.name}.{name}"][row]) for name in _PARTS}
        source = None if self._sourced is None else str(self._sourced.column("source")[row].as_py())
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
    f: Field, columns: Columns, lengths: npt.NDArray[np.float64] | None, data_nbytes: int
) -> Iterator[tuple[Bools, str]]:
    """Yield for each rule which of some rows (n,) break it, and what they do not fit."""
    at, codec = columns["offset"], columns["codec"]
    stored, raw = (columns[name].astype(np.int64) for name in ("stored_nbytes", "raw_nbytes"))
    yield (at < 0) | (at > data_nbytes - stored), f"{DATA_FILE}'s {data_nbytes} bytes"
    fits_kind = by_number(lambda entry: entry.only_kind in (None, f.kind), False)
    yield ~fits_kind[codec], f"the codecs of {f.kind}s"
    yield np.maximum(stored, raw) > MAX_PAYLOAD_NBYTES, f"the {MAX_PAYLOAD_NBYTES} bytes that one payload may have"
    yield (codec == CODEC_RAW) & (raw != stored), "what is stored raw, which has one length"
    body = stored
    if f.kind == "image":
        height, width, channels, bits = (columns[name] for name in _SHAPE)
        sound = ((bits == 8) | (bits == 16)) & ((channels == 1) | (channels == 3)) & (height > 0) & (width > 0)
        yield ~sound, f"an image of {', '.join(_SHAPE)} as they are there"
        yield bits > by_number(lambda entry: entry.max_bits, 16)[codec], "its codec, which has fewer bits"
        # Doubles are exact up to 2**53, and no product of these wraps around.
        yield height.astype(np.float64) * width * (channels * (bits // 8)) != raw, f"its {', '.join(_SHAPE)}"
        is_tiled = codec == CODEC_TILES
        if is_tiled.any():
            side = f.tile_size or 1
            tables = np.ceil(height / side) * np.ceil(width / side) * TILE_ENTRY_NBYTES
            body = np.where(is_tiled, stored - tables.astype(np.int64), stored)
    elif lengths is not None:
        yield lengths != raw, "its array's type"
    most = by_number(lambda entry: entry.max_ratio, MAX_PAYLOAD_NBYTES)[codec] * body
    yield raw > most, "its codec, which cannot hold so much in so few bytes"


def _array_lengths(f: Field, batch: pa.RecordBatch, path: Path) -> npt.NDArray[np.float64]:
    column = batch.column(f"{f.name}.type")
    try:
        nbytes = array_nbytes(column.dictionary)
    except FormatError as error:
        raise FormatError(f"{path / INDEX_FILE}: field {f.name!r}: {error}") from error
    return nbytes[column.indices.to_numpy()] if len(nbytes) else np.empty(0)


def _check_overlaps(fields: Sequence[Field], arrays: Columns, where: _Where) -> None:
    """Refuse payloads of which one begins before another ends; empty ones lie nowhere."""
    if not fields:
        return
    starts = np.concatenate([arrays[f"{f.name}.offset"] for f in fields])
    nbytes = np.concatenate([arrays[f"{f.name}.stored_nbytes"] for f in fields])
    numbers = None
    if not nbytes.all():
        numbers = np.flatnonzero(nbytes)
        starts, nbytes = starts[numbers], nbytes[numbers]
    if (starts[1:] < starts[:-1]).any():
        # Each field's lie in order, block by block: this sort finds such runs and merges them.
        order = np.argsort(starts, kind="stable")
        numbers = order if numbers is None else numbers[order]
        starts, nbytes = starts[order], nbytes[order]
    over = starts[:-1] + nbytes[:-1] > starts[1:]
    if not over.any():
        return
    second = int(np.flatnonzero(over)[0]) + 1
    f, row = divmod(second if numbers is None else int(numbers[second]), len(arrays[f"{fields[0].name}.offset"]))
    raise where.error(fields[f], arrays, row, "what lies there too: another payload")
