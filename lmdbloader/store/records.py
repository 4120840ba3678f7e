"""Record batches: many encoded samples packed into one LMDB value, and the index rows that refer to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.format.codecs import Payloads, checksum, tile_table_nbytes
from lmdbloader.format.layout import CODEC_RAW, MAX_PAYLOAD_NBYTES, TILED, Field, record_schema
from lmdbloader.format.sizes import BLOCK_NBYTES
from lmdbloader.kernels import entries

# The most bytes of text that run-length encoding may expand to.
_MAX_REPEATED_NBYTES = 2**28


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

    def without_bytes(self) -> Chunk:
        """Return what the index needs of a chunk that is packed into blocks: lengths and checksums of its payloads."""
        nothing = np.empty(0, np.uint8)
        return replace(self, payloads={name: replace(p, data=nothing) for name, p in self.payloads.items()})


@dataclass(frozen=True, slots=True)
class Block:
    """One LMDB value.

    Attributes:
        value: An Arrow IPC record-batch message.
        num_samples: Samples in it.
        checksum: XXH3 of the value, a part of its key.
        payload_at: For each field of payloads or texts, the offset of the first in the value.
    """

    value: pa.Buffer
    num_samples: int
    checksum: int
    payload_at: Mapping[str, int]


def split_into_blocks(chunk: Chunk, limit: int = BLOCK_NBYTES) -> list[slice]:
    """Return the samples of each block: as many as fit into `limit` bytes of payload, at least one."""
    # A sample's bytes in addition to its payloads: an end offset for each field, and the plain columns.
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
    batch = pa.RecordBatch.from_arrays([_array(chunk, column) for column in schema], schema=schema)
    return [_encode_block(batch.slice(s.start, s.stop - s.start), chunk) for s in split_into_blocks(chunk)]


def _encode_block(batch: pa.RecordBatch, chunk: Chunk) -> Block:
    value = batch.serialize()
    back = pa.ipc.read_record_batch(value, batch.schema)
    at = {}
    for name in (*chunk.payloads, *(column.name for column in batch.schema if pa.types.is_string(column.type))):
        _, _, data = back.column(name).buffers()
        # The address of an empty buffer is arbitrary; nothing is read there.
        at[name] = data.address - value.address if data is not None and data.size else 0
    return Block(value, batch.num_rows, checksum(value), at)


def _array(chunk: Chunk, column: pa.Field) -> pa.Array:
    """Return one column of a chunk's record batch."""
    name = column.name
    if name in chunk.payloads:
        payloads = chunk.payloads[name]
        ends = np.append(0, np.cumsum(payloads.stored_nbytes))
        if ends[-1] > MAX_PAYLOAD_NBYTES:
            raise OptionError(f"field {name!r}: {ends[-1]} bytes in one chunk, expected less than {MAX_PAYLOAD_NBYTES}")
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(payloads.data)]
        return pa.Array.from_buffers(pa.binary(), chunk.num_samples, buffers)
    if name in chunk.columns:
        values = chunk.columns[name]
    else:
        field_name, _, part = name.partition(".")
        values = getattr(chunk.payloads[field_name], part)
    if not pa.types.is_run_end_encoded(column.type):
        return pa.array(values, column.type)
    import pyarrow.compute as pc  # readers do not need it, and the import takes a tenth of a second

    return pc.run_end_encode(pa.array(values, column.type.value_type), run_end_type=column.type.run_end_type)


def decode_block(
    value: Any, schema: pa.Schema, fields: Sequence[Field], expected: int, where: str
) -> tuple[int, dict[str, Any]]:
    """Return a record batch's number of samples, and its columns as in the index.

    A field of text has its column of texts, and those of payloads too. Offsets count from the value's first byte. The
    value's checksum is verified before anything is parsed.

    Args:
        value: Bytes-like LMDB value.
        schema: Of the record batch.
        fields: The dataset's.
        expected: Its XXH3, from its key.
        where: The record, for messages.

    Raises:
        CorruptError: The checksum does not match, or the batch does not have the schema's columns.
    """
    if (found := checksum(value)) != expected:
        raise CorruptError(f"{where}: checksum {found:016x}, expected {expected:016x}; the stored bytes were damaged")
    buffer = pa.py_buffer(value)
    columns: dict[str, Any] = {}
    texts = {f.name for f in fields if f.holds_text}
    payload_names = {f.name for f in fields if f.is_payload} | texts
    try:
        batch = _read(buffer, schema)
        if not batch.num_rows:
            raise pa.ArrowInvalid("it holds no sample")
        for column in schema:
            array = batch.column(column.name)
            if column.name not in payload_names:
                columns[column.name] = _expand(array) if pa.types.is_run_end_encoded(column.type) else array
                continue
            if column.name in texts:
                columns[column.name] = array
            _, offsets, data = array.buffers()
            ends = np.frombuffer(offsets, np.int32, batch.num_rows + 1).astype(np.int64)
            at = data.address - buffer.address if data is not None and ends[-1] else 0
            if not 0 <= at <= buffer.size - ends[-1]:  # decompressed to another place: a writer never compresses
                raise pa.ArrowInvalid(f"column {column.name!r} is compressed")
            columns[f"{column.name}.offset"] = at + ends[:-1]
            columns[f"{column.name}.stored_nbytes"] = np.diff(ends)
            if column.name in texts:
                columns[f"{column.name}.raw_nbytes"] = np.diff(ends)
                columns[f"{column.name}.codec"] = np.full(batch.num_rows, CODEC_RAW, np.uint8)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise CorruptError(f"{where}: is not an Arrow record batch of this dataset's schema ({error})") from error
    raw = np.frombuffer(value, np.uint8)
    for f in fields:
        if f.name in payload_names:
            columns[f"{f.name}.checksum"] = payload_checksums(raw, f, columns)
    return batch.num_rows, columns


def _read(value: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch of one message, checked: offsets within their buffers, no nulls, text in UTF-8.

    Raises:
        pa.ArrowInvalid, OSError: It is not valid, or has another schema.
    """
    with pa.BufferReader(value) as source:
        message = pa.ipc.read_message(source)
    if message.type != "record batch":
        raise pa.ArrowInvalid(f"it is a {message.type} message")
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    for column, array in zip(batch.schema, batch.columns, strict=True):
        # A batch's own check skips runs.
        for part in (array, *((array.run_ends, array.values) if pa.types.is_run_end_encoded(column.type) else ())):
            part.validate(full=True)
            if part.null_count:
                raise pa.ArrowInvalid(f"column {column.name!r} holds nulls")
    return batch


def _expand(array: pa.Array) -> pa.Array:
    """Expand a run-end encoded array to one value a row.

    Raises:
        pa.ArrowInvalid: Its texts would take more memory than any dataset's.
    """
    import pyarrow.compute as pc

    if pa.types.is_string(array.type.value_type):
        runs = np.diff(array.run_ends.to_numpy(), prepend=0).astype(np.float64)
        nbytes = float((runs * pc.binary_length(array.values).to_numpy()).sum())
        if nbytes > _MAX_REPEATED_NBYTES:
            raise pa.ArrowInvalid(f"its texts take {nbytes:.0f} bytes, expected at most {_MAX_REPEATED_NBYTES}")
    return pc.run_end_decode(array)


def payload_checksums(raw: npt.NDArray[np.uint8], f: Field, columns: Mapping[str, Any]) -> npt.NDArray[np.uint64]:
    """Return the checksum (n,) of each payload of a field, as the index has it.

    Args:
        raw: The bytes that hold the payloads.
        f: The field.
        columns: Its columns of the index, with offsets that count from the first byte of `raw`.
    """
    hashed = columns[f"{f.name}.stored_nbytes"]
    tiled = np.isin(columns[f"{f.name}.codec"], TILED)
    if f.tile_size and tiled.any():
        down = -(-np.asarray(columns[f"{f.name}.height"]).astype(np.int64) // f.tile_size)
        across = -(-np.asarray(columns[f"{f.name}.width"]).astype(np.int64) // f.tile_size)
        _, covered = tile_table_nbytes(down * across)
        hashed = np.where(tiled, np.clip(covered, 0, hashed), hashed)
    sums = np.empty(len(hashed), np.uint64)
    start, nbytes = (np.ascontiguousarray(values, np.int64) for values in (columns[f"{f.name}.offset"], hashed))
    entries.hash_many(raw, start, nbytes, sums)
    return sums
