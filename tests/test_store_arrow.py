"""Untrusted Arrow data: valid data is read without a copy, everything else is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lmdbloader.store.arrow import decode_runs, read_file, read_record

SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("text", pa.large_string()),
        ("name", pa.dictionary(pa.int32(), pa.string())),
        ("run", pa.run_end_encoded(pa.int32(), pa.string())),
    ]
)


def columns(count: int = 6) -> list[pa.Array]:
    names = ["é", "b"] * (count // 2)
    runs = pc.run_end_encode(pa.array(["x"] * (count - 1) + ["y"]), run_end_type=pa.int32())
    return [
        pa.array(range(count)),
        pa.array(names, pa.large_string()),
        pa.array(names).dictionary_encode().cast(SCHEMA.field("name").type),
        runs,
    ]


def file_of(arrays: list[pa.Array], options: pa.ipc.IpcWriteOptions | None = None, batches: int = 1) -> bytes:
    batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA, options=options) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def record_schema() -> pa.Schema:
    return pa.schema([SCHEMA.field("number"), SCHEMA.field("text"), SCHEMA.field("run")])


def record_of(arrays: list[pa.Array], options: pa.ipc.IpcWriteOptions | None = None) -> pa.Buffer:
    batch = pa.RecordBatch.from_arrays([arrays[0], arrays[1], arrays[3]], schema=record_schema())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    return messages[-1].serialize()


def put(array: pa.Array, number: int, values: np.ndarray) -> pa.Array:
    """Return an array with another buffer."""
    buffers = array.buffers()
    buffers[number] = pa.py_buffer(values)
    return pa.Array.from_buffers(array.type, len(array), buffers)


def test_a_written_batch_is_read_without_a_copy() -> None:
    content = pa.py_buffer(file_of(columns()))
    batch = read_file(content, SCHEMA)
    assert batch.equals(pa.RecordBatch.from_arrays(columns(), schema=SCHEMA))
    at = batch.column("number").buffers()[1].address
    assert content.address < at < content.address + content.size
    back = read_record(record_of(columns()), record_schema())
    assert decode_runs(back.column("run")).to_pylist() == ["x"] * 5 + ["y"]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_buffers_that_would_grow_are_refused(codec: str) -> None:
    options = pa.ipc.IpcWriteOptions(compression=codec)
    arrays = columns(4000)
    assert len(file_of(arrays, options)) < len(file_of(arrays))
    with pytest.raises(pa.ArrowInvalid, match="compressed"):
        read_file(file_of(arrays, options), SCHEMA)
    with pytest.raises(pa.ArrowInvalid, match="compressed"):
        read_record(record_of(arrays, options), record_schema())


def not_utf8(array: pa.Array) -> pa.Array:
    data = np.frombuffer(array.buffers()[2], np.uint8).copy()
    data[0] = 0xFF
    return put(array, 2, data)


def named(numbers: pa.Array, names: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(numbers, names, safe=False)


def runs(ends: pa.Array, values: pa.Array) -> pa.Array:
    """Return runs that nothing has checked."""
    return pa.Array.from_buffers(SCHEMA.field("run").type, 6, [None], children=[ends, values])


def strange_columns() -> dict[str, tuple[int, Any, str]]:
    """Return a column's name, its replacement, and the error that this causes."""
    _, text, name, _ = columns()
    ends = pa.array([5, 6], pa.int32())
    ascending = np.array([0, 2, 3, 9999, 6, 8, 9], np.int64)
    with_null = pa.array([None, "b"])
    return {
        "nulls": (0, pa.array([1, None, 3, 4, 5, 6]), "'number' holds nulls"),
        "text that is not UTF-8": (1, not_utf8(text), "UTF8"),
        "text outside of its buffer": (1, put(text, 1, ascending), "offset|bounds|Offset"),
        "a name that is not UTF-8": (2, named(name.indices, not_utf8(name.dictionary)), "UTF8"),
        "a null name": (2, named(name.indices, with_null), "'name' holds nulls"),
        "a number without a name": (2, named(pa.array([0, 1, 0, 1, 0, 7], pa.int32()), name.dictionary), "7"),
        "a run that is not UTF-8": (3, runs(ends, not_utf8(pa.array(["x", "y"]))), "UTF8"),
        "a run of nulls": (3, runs(ends, with_null), "'run' holds nulls"),
        "runs that go back": (3, runs(pa.array([3, 3, 6], pa.int32()), pa.array(["x", "y", "z"])), "run"),
    }


@pytest.mark.parametrize("what", strange_columns())
def test_invalid_data_is_refused(what: str) -> None:
    place, strange, expected = strange_columns()[what]
    arrays = columns()
    arrays[place] = strange
    with pytest.raises(pa.ArrowInvalid, match=expected):
        read_file(file_of(arrays), SCHEMA)
    if place != 2:  # records have no dictionaries
        with pytest.raises(pa.ArrowInvalid, match=expected):
            read_record(record_of(arrays), record_schema())


@pytest.mark.parametrize("batches", [0, 2])
def test_a_file_has_one_batch(batches: int) -> None:
    with pytest.raises(pa.ArrowInvalid, match=f"it has {batches} batches, expected 1"):
        read_file(file_of(columns(), batches=batches), SCHEMA)


def test_other_columns_and_other_messages_are_refused() -> None:
    content = file_of(columns())
    with pytest.raises(pa.ArrowInvalid, match=r"its columns are \['number', 'text', 'name', 'run'\], expected"):
        read_file(content, record_schema())
    bad_name = content.replace(b"number", b"numb\xff\xff")
    for strange in (bad_name, b"", content[:7], content[1:], content[:9], b"PAR1" + content[4:]):
        with pytest.raises((pa.ArrowInvalid, OSError)):
            read_file(strange, SCHEMA)
    with pytest.raises(pa.ArrowInvalid, match="it is a schema message"):
        read_record(SCHEMA.serialize(), SCHEMA)


def test_a_text_that_would_be_written_out_a_million_times_is_refused() -> None:
    def repeated(text: str) -> pa.RunEndEncodedArray:
        kind, parts = pa.run_end_encoded(pa.int32(), pa.string()), [pa.array([10**6], pa.int32()), pa.array([text])]
        return pa.RunEndEncodedArray.from_buffers(kind, 10**6, [None], -1, 0, parts)

    with pytest.raises(pa.ArrowInvalid, match="expected at most"):
        decode_runs(repeated("x" * 1000))
    assert len(decode_runs(repeated("x"))) == 10**6
