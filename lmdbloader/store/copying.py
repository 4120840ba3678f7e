"""Copies samples in stored form, checked, from an open dataset: for repairs, merged datasets and subsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmdbloader.errors import LmdbloaderError
from lmdbloader.format.codecs import Payloads
from lmdbloader.format.layout import TILED, Field, index_columns, undecided
from lmdbloader.kernels.codec_numbers import BAD_CHECKSUM, OUT_OF_BOUNDS
from lmdbloader.store.reader import Reader
from lmdbloader.store.records import Chunk, payload_checksums
from lmdbloader.store.rows import as_array

I64 = npt.NDArray[np.int64]
_CHUNK_NBYTES = 16 * 2**20
# Samples of a few bytes: as many as fill a record of 256 KiB, several times.
_CHUNK_ROWS = 8192
# Rows that are divided into chunks at once, which bounds memory.
_ROWS_AT_ONCE = 1 << 20
_PARTS = ("stored_nbytes", "raw_nbytes", "checksum", "codec")


def copied_samples(
    reader: Reader,
    rows: I64 | range,
    fields: Sequence[Field] | None = None,
    *,
    with_source: bool | None = None,
    counts_pixels: bool = False,
) -> Iterator[Chunk]:
    """Yield samples in stored form; every checksum is verified. Only tiles are decoded, to verify theirs.

    Args:
        reader: Of the dataset; its data file may be damaged or cut short elsewhere.
        rows: (n,) of its index, in the order of the copy.
        fields: The fields to copy, in order; all of them by default.
        with_source: Whether to copy the names of the sources; by default if there are some.
        counts_pixels: Whether a chunk is bounded by the bytes of decoded payloads, for a caller that decodes them.

    Raises:
        CorruptError: A payload cannot be read, or is damaged.
    """
    fields = reader.manifest.fields if fields is None else fields
    with_source = reader.manifest.with_source if with_source is None else with_source
    names = [f.name for f in fields if f.is_payload and not f.holds_text]
    # The writer decides again where texts are stored.
    fields = undecided(fields)
    payload_parts = {f"{name}.{part}" for name in names for part in ("offset", *_PARTS)}
    others = [name for name in index_columns(fields, with_source=with_source) if name not in payload_parts]
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        some = some_rows(rows, first, min(first + _ROWS_AT_ONCE, len(rows)))
        _, nbytes = reader.extents(names, some)
        if counts_pixels:
            nbytes = sum((reader.raw_nbytes(name, some) for name in names), np.zeros(len(some), np.int64))
        group = np.maximum(np.cumsum(nbytes) // _CHUNK_NBYTES, np.arange(len(some)) // _CHUNK_ROWS)
        for part in np.split(some, np.flatnonzero(np.diff(group)) + 1):
            payloads = {name: _copy(reader, name, part) for name in names}
            yield Chunk(len(part), payloads, {name: _column(reader, name, part) for name in others})


def some_rows(rows: I64 | range, first: int, stop: int) -> I64:
    """Return the rows from one position to before another."""
    return as_array(rows[first:stop]).astype(np.int64, copy=False)


def _column(reader: Reader, name: str, rows: I64) -> Any:
    """Return the values of a column that is not of a payload's place: an array of numbers, or a list of texts."""
    if name in reader.long_texts:
        return reader.read_texts(name, rows)
    if name in reader.index.columns:
        return reader.index.take(name, rows)
    return reader.index.batch.column(name).take(pa.array(rows)).to_pylist()


def _copy(reader: Reader, name: str, rows: I64) -> Payloads:
    """Return the stored payloads of one field, verified."""
    index = reader.index
    known = [part for part in ("offset", *_PARTS, "height", "width") if f"{name}.{part}" in index.columns]
    parts: dict[str, npt.NDArray[Any]] = {part: index.take(f"{name}.{part}", rows) for part in known}
    nbytes = reader.lengths(name, "stored_nbytes", rows)
    starts = np.cumsum(nbytes) - nbytes
    data = np.empty(int(nbytes.sum()), np.uint8)
    _read(reader, name, rows, (parts["offset"], nbytes, starts), data)
    columns = {f"{name}.{part}": values for part, values in parts.items()}
    columns |= {f"{name}.offset": starts, f"{name}.stored_nbytes": nbytes}
    wrong = payload_checksums(data, reader.fields[name], columns) != parts["checksum"]
    if wrong.any():
        raise reader.damaged(name, int(rows[int(np.flatnonzero(wrong)[0])]), BAD_CHECKSUM)
    for row in rows[np.isin(parts["codec"], TILED)].tolist():
        reader.read_bytes(name, row)  # each tile has a checksum of its own
    raw_nbytes = parts["raw_nbytes"].astype(np.int64)
    return Payloads(data, nbytes, raw_nbytes, parts["checksum"].astype(np.uint64), parts["codec"].astype(np.uint8))


def _read(reader: Reader, name: str, rows: I64, places: tuple[I64, I64, I64], out: npt.NDArray[np.uint8]) -> None:
    """Read payloads into a buffer: those that are next to each other in data.mdb at once."""
    offsets, nbytes, starts = places
    if not len(out):
        return
    breaks = np.flatnonzero(offsets[1:] != offsets[:-1] + nbytes[:-1]) + 1
    view = memoryview(out.data)
    for first, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True):
        at, here, end = int(offsets[first]), int(starts[first]), int(starts[stop - 1] + nbytes[stop - 1])
        error: OSError | None = None
        try:
            # Not through the map: a page that cannot be read would end the process.
            while here < end and (count := reader.data_file.read_into(view[here:end], at)):
                at, here = at + count, here + count
        except LmdbloaderError:  # it cannot be fetched
            raise
        except OSError as failed:
            error = failed
        if here < end:
            row = int(rows[first + int(np.searchsorted(starts[first:stop], here, side="right")) - 1])
            raise reader.damaged(name, row, OUT_OF_BOUNDS, error) from error
