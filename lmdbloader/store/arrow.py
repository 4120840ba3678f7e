"""Reads Arrow data from untrusted files with Arrow's library: everything is checked before it is used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from lmdbloader.store.flatbuffers import FlatbufferError, Table

# The file format is a stream after this magic number; the table of contents at its end is not needed.
_FILE_MAGIC = b"ARROW1\0\0"
# The most bytes of text that run-length encoding may expand to.
_MAX_REPEATED_NBYTES = 2**28
# Slots of flatbuffers' tables, in Arrow's Message.fbs.
_MESSAGE_HEADER, _BATCH_IN_DICTIONARY, _BATCH_COMPRESSION = 2, 1, 3
_RECORD_BATCH, _DICTIONARY_BATCH = "record batch", "dictionary"


def read_record(value: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch of one message.

    Raises:
        pa.ArrowInvalid, OSError: It is not valid, or has another schema.
    """
    with pa.BufferReader(value) as source:
        message = pa.ipc.read_message(source)
    if message.type != _RECORD_BATCH:
        raise pa.ArrowInvalid(f"it is a {message.type} message")
    _refuse_compression(message)
    batch = pa.ipc.read_record_batch(message, schema)
    check_batch(batch)
    return batch


def read_file(content: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Return the only record batch of an Arrow file, without a copy.

    Raises:
        pa.ArrowInvalid, OSError: It is not valid, or has other columns or several batches.
    """
    buffer = pa.py_buffer(content)
    if buffer.size < len(_FILE_MAGIC) or buffer[: len(_FILE_MAGIC)].to_pybytes() != _FILE_MAGIC:
        raise pa.ArrowInvalid("it does not start like an Arrow file")
    stream = buffer[len(_FILE_MAGIC) :]
    for message in pa.ipc.MessageReader.open_stream(stream):
        if message.type in (_RECORD_BATCH, _DICTIONARY_BATCH):
            _refuse_compression(message)
    with pa.ipc.open_stream(stream) as reader:
        if not reader.schema.equals(schema):
            raise pa.ArrowInvalid(f"its columns are {_names(reader.schema)}, expected {schema.names}")
        batches = list(reader)
    if len(batches) != 1:
        raise pa.ArrowInvalid(f"it has {len(batches)} batches, expected 1")
    check_batch(batches[0])
    return batches[0]


def check_batch(batch: pa.RecordBatch) -> None:
    """Check all of a batch: offsets within their buffers, no nulls, text in UTF-8.

    Raises:
        pa.ArrowInvalid: It is not valid.
    """
    batch.validate(full=True)
    for column, array in zip(batch.schema, batch.columns, strict=True):
        parts = [array]
        if pa.types.is_dictionary(column.type):
            parts.append(array.dictionary)
        elif pa.types.is_run_end_encoded(column.type):
            parts += [array.run_ends, array.values]
        for part in parts:
            part.validate(full=True)  # a batch's own check skips dictionaries and runs
            if part.null_count:
                raise pa.ArrowInvalid(f"column {column.name!r} holds nulls")


def decode_runs(array: pa.Array) -> pa.Array:
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


def _names(schema: pa.Schema) -> list[str]:
    try:
        return list(schema.names)
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"the names of its columns are not UTF-8 ({error})") from error


def _refuse_compression(message: pa.Message) -> None:
    """Refuse compressed buffers: datasets have none, and a hostile one may expand without limit."""
    try:
        batch = Table.root(message.metadata.to_pybytes()).table(_MESSAGE_HEADER)
        if message.type == _DICTIONARY_BATCH:
            batch = batch.table(_BATCH_IN_DICTIONARY)
    except FlatbufferError as error:
        raise pa.ArrowInvalid(f"its message is damaged: {error}") from error
    if batch.has(_BATCH_COMPRESSION):
        raise pa.ArrowInvalid("its buffers are compressed")
