"""Record batches: many encoded samples packed into one LMDB value, and the index rows that point into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lmdbloader.codecs import Payloads, checksum
from lmdbloader.errors import CorruptError
from lmdbloader.format import BLOCK_NBYTES, CODEC_TILES, Field, record_schema


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive encoded samples, column by column.

    Attributes:
        num_samples: How many.
        payloads: For each payload field, its encoded values.
        columns: For each other column of a record, its values: arrays of numbers, or lists of str for text,
            sources ("source") and array types ("<field>.type").
    """

    num_samples: int
    payloads: Mapping[str, Payloads]
    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Block:
    """One LMDB value.

    Attributes:
        value: An Arrow IPC record-batch message.
        num_samples: Samples in it.
        checksum: XXH64 of the value; goes into its key.
        payload_at: For each payload field, where the field's first payload starts in the value.
    """

    value: pa.Buffer
    num_samples: int
    checksum: int
    payload_at: Mapping[str, int]


def split_into_blocks(chunk: Chunk, limit: int = BLOCK_NBYTES) -> list[slice]:
    """Return the samples of each block: as many as fit into `limit` bytes of payload, at least one."""
    # Bytes that a sample costs beside its payloads: an end offset a field and the plain columns.
    each = np.full(chunk.num_samples, 4 * len(chunk.payloads) + 8 * len(chunk.columns), np.int64)
    for payloads in chunk.payloads.values():
        each += payloads.stored_nbytes
    ends = np.cumsum(each)
    slices, first = [], 0
    while first < chunk.num_samples:
        used = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, used + limit, side="right")), first + 1)
        slices.append(slice(first, last))
        first = last
    return slices


def encode_blocks(chunk: Chunk, fields: Sequence[Field], *, with_source: bool) -> list[Block]:
    """Pack a chunk into LMDB values."""
    schema = record_schema(fields, with_source=with_source)
    starts = {name: np.append(0, np.cumsum(p.stored_nbytes)) for name, p in chunk.payloads.items()}
    return [_encode_block(chunk, schema, starts, s) for s in split_into_blocks(chunk)]


def _encode_block(chunk: Chunk, schema: pa.Schema, starts: Mapping[str, npt.NDArray[np.int64]], samples: slice) -> Block:
    count = samples.stop - samples.start
    arrays = []
    for column in schema:
        name = column.name
        if name in chunk.payloads:
            first, last = int(starts[name][samples.start]), int(starts[name][samples.stop])
            offsets = (starts[name][samples.start : samples.stop + 1] - first).astype(np.int32)
            data = pa.py_buffer(chunk.payloads[name].data[first:last])
            arrays.append(pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data]))
            continue
        values = _column(chunk, name)[samples]
        if pa.types.is_run_end_encoded(column.type):
            arrays.append(_run_end_encode(values, column.type))
        else:
            arrays.append(pa.array(values, column.type))
    value = pa.RecordBatch.from_arrays(arrays, schema=schema).serialize()
    back = pa.ipc.read_record_batch(value, schema)
    at = {}
    for name in chunk.payloads:
        # An empty buffer comes back with an address of nowhere; nothing is read there.
        empty = starts[name][samples.start] == starts[name][samples.stop]
        at[name] = 0 if empty else back.column(name).buffers()[2].address - value.address
    return Block(value, count, checksum(value), at)


def _column(chunk: Chunk, name: str) -> Any:
    if name in chunk.columns:
        return chunk.columns[name]
    field_name, _, part = name.partition(".")
    return getattr(chunk.payloads[field_name], part)


def _run_end_encode(values: Any, kind: pa.DataType) -> pa.Array:
    array = np.asarray(values, dtype=object) if isinstance(values, list) else values
    last_of_run = np.flatnonzero(np.append(array[1:] != array[:-1], True))
    run_values = pa.array(array[last_of_run].tolist(), kind.value_type)
    return pa.RunEndEncodedArray.from_arrays(pa.array((last_of_run + 1).astype(np.int32)), run_values)


def decode_block(value: Any, schema: pa.Schema, fields: Sequence[Field], expected: int, where: str) -> dict[str, Any]:
    """Return a record batch's columns as the index has them, offsets counted from the value's first byte.

    The value's checksum is verified before anything is parsed.

    Args:
        value: Bytes-like LMDB value.
        expected: Its XXH64 as its key says.
        where: For messages.

    Raises:
        CorruptError: The checksum does not hold, or the batch has other columns than the schema says.
    """
    if (found := checksum(value)) != expected:
        raise CorruptError(f"{where}: checksum {found:016x}, expected {expected:016x}; the stored bytes were damaged")
    buffer = pa.py_buffer(value)
    try:
        batch = pa.ipc.read_record_batch(buffer, schema)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(f"{where}: is no Arrow record batch of this dataset's schema ({error})") from error
    raw = np.frombuffer(value, np.uint8)
    columns: dict[str, Any] = {"num_samples": batch.num_rows}
    payload_names = {f.name for f in fields if f.is_payload}
    for column in schema:
        array = batch.column(column.name)
        if column.name not in payload_names:
            ree = pa.types.is_run_end_encoded(column.type)
            columns[column.name] = pc.run_end_decode(array) if ree else array
            continue
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, np.int32, batch.num_rows + 1).astype(np.int64)
        at = data.address - buffer.address if data is not None and ends[-1] else 0
        stored = np.diff(ends)
        columns[f"{column.name}.offset"] = at + ends[:-1]
        columns[f"{column.name}.stored_nbytes"] = stored
    for f in fields:
        if f.is_payload:
            columns[f"{f.name}.checksum"] = _payload_checksums(raw, f, columns)
    return columns


def _payload_checksums(raw: npt.NDArray[np.uint8], f: Field, columns: Mapping[str, Any]) -> npt.NDArray[np.uint64]:
    from lmdbloader.kernels.gather import TILE_ENTRY_NBYTES, hash_many

    hashed = columns[f"{f.name}.stored_nbytes"]
    tiled = np.asarray(columns[f"{f.name}.codec"]) == CODEC_TILES
    if f.tile_size and tiled.any():
        down = -(-np.asarray(columns[f"{f.name}.height"]).astype(np.int64) // f.tile_size)
        across = -(-np.asarray(columns[f"{f.name}.width"]).astype(np.int64) // f.tile_size)
        hashed = np.where(tiled, np.minimum(down * across * TILE_ENTRY_NBYTES, hashed), hashed)
    sums = np.empty(len(hashed), np.uint64)
    hash_many(raw, columns[f"{f.name}.offset"], hashed, sums)
    return sums
