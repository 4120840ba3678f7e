"""An Arrow file read without Arrow's library: the same values, and nothing is accepted that the library refuses."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.store.arrow import read_file
from lmdbloader.store.arrow_file import ArrowFileError, Columns, Texts, read_columns

KINDS = {
    "source": "names",
    "top": "uint32",
    "image.offset": "int64",
    "image.codec": "uint8",
    "mask.type": "large_names",
    "half": "float16",
    "score": "float64",
    "caption": "text",
    "label": "int64",
}
_ARROW = {
    "names": pa.dictionary(pa.int32(), pa.string()),
    "large_names": pa.dictionary(pa.int32(), pa.large_string()),
    "text": pa.large_string(),
}
SCHEMA = pa.schema([(name, _ARROW.get(kind) or getattr(pa, kind)()) for name, kind in KINDS.items()])


def batch_of(count: int) -> pa.RecordBatch:
    """Return rows with short and long, empty and not only ASCII texts."""
    values: dict[str, Any] = {
        "source": [f"ü/{i // 2}.png" for i in range(count)],
        "image.codec": [i % 6 for i in range(count)],
        "mask.type": [f"float32[{i % 3}]" for i in range(count)],
        "half": [np.float16(i / 2) for i in range(count)],
        "score": [i / 3 for i in range(count)],
        "caption": ["é\N{SNOWMAN}\N{GRINNING FACE}"[: i % 4] + "x" * (i % 5) for i in range(count)],
    }
    return pa.RecordBatch.from_arrays([_array(f, values.get(f.name, range(count))) for f in SCHEMA], schema=SCHEMA)


def _array(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    if pa.types.is_dictionary(field.type):
        return pa.array(values, field.type.value_type).dictionary_encode()
    return pa.array(values, field.type)


def file_of(*batches: pa.RecordBatch, schema: pa.Schema = SCHEMA, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def with_array(name: str, array: pa.Array) -> pa.RecordBatch:
    """Return six rows with another column, which nothing has checked."""
    place = SCHEMA.names.index(name)
    arrays = batch_of(6).columns
    return pa.RecordBatch.from_arrays([*arrays[:place], array, *arrays[place + 1 :]], schema=SCHEMA)


def values_of(columns: Columns) -> dict[str, Any]:
    """Return every column as a list; bytes of numbers, as NaN is not equal to itself."""
    named = {name: [column[i] for i in range(len(column))] for name, column in columns.names.items()}
    numbers = {name: column.tobytes() for name, column in columns.arrays.items()}
    return {**named, **numbers, **{name: column.to_list() for name, column in columns.texts.items()}}


def values_of_batch(batch: pa.RecordBatch) -> dict[str, Any]:
    return {
        name: batch.column(name).to_pylist() if KINDS[name] in _ARROW else batch.column(name).to_numpy().tobytes()
        for name in KINDS
    }


texts = st.text(max_size=5)
rows = st.lists(
    st.tuples(texts, st.integers(-(2**63), 2**63 - 1), st.integers(0, 255), st.floats(), texts, texts), max_size=6
)


@given(rows)
def test_the_values_are_those_that_were_written(found: list[tuple[str, int, int, float, str, str]]) -> None:
    source, label, codec, score, kind, caption = zip(*found, strict=True) if found else [()] * 6
    values: dict[str, Any] = {
        "source": source, "label": label, "image.codec": codec, "score": score, "mask.type": kind, "caption": caption,
        "half": [np.float16(value) for value in codec],
    }  # fmt: skip
    batch = pa.RecordBatch.from_arrays([_array(f, values.get(f.name, [0] * len(found))) for f in SCHEMA], schema=SCHEMA)
    columns = read_columns(file_of(batch), KINDS)
    assert columns.num_rows == len(found)
    assert values_of(columns) == values_of_batch(batch)
    assert columns.texts["caption"].num_characters().tolist() == [len(text) for text in caption]
    assert [columns.texts["caption"][i] for i in range(len(found))] == list(caption)
    assert [columns.names["source"].texts[code] for code in columns.names["source"].codes] == list(source)


def test_columns_are_read_only_views_of_the_file() -> None:
    content = np.frombuffer(file_of(batch_of(6)), np.uint8)
    columns = read_columns(content, KINDS)
    parts = [*columns.arrays.values(), columns.texts["caption"].data, columns.names["source"].codes]
    assert all(np.shares_memory(part, content) and not part.flags.writeable for part in parts)


@pytest.mark.parametrize("version", [pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5])
def test_both_versions_of_the_format_are_read(version: Any) -> None:
    assert read_columns(file_of(batch_of(3), metadata_version=version), KINDS).num_rows == 3


def test_texts_may_begin_anywhere_in_their_buffer() -> None:
    content = file_of(with_array("caption", pa.array(list("abcdef"), pa.large_string())))
    ends = np.arange(7, dtype=np.int64)
    assert content.count(ends.tobytes()) == 1
    content = content.replace(ends.tobytes(), np.array([1, 2, 3, 3, 4, 5, 5]).tobytes())
    found = read_columns(content, KINDS).texts["caption"]
    assert found.to_list() == ["b", "c", "", "d", "e", ""] == read_file(content, SCHEMA).column("caption").to_pylist()
    assert found.num_characters().tolist() == [1, 1, 0, 1, 1, 0]


def strange_files() -> dict[str, tuple[bytes, str]]:
    """Return files with one column that is not valid, and the error that this causes."""
    batch = batch_of(6)
    sound, caption, name = file_of(batch), batch.column("caption"), batch.column("source")
    ends = np.frombuffer(caption.buffers()[1], np.int64).copy()
    split = ends.copy()
    split[2] += 1  # within a character
    outside = "column 'caption': a text lies outside of its buffer"

    def named(codes: list[int], names: pa.Array = name.dictionary) -> bytes:
        array = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), names, safe=False)
        return file_of(with_array("source", array))

    def with_ends(other: np.ndarray) -> bytes:
        assert sound.count(ends.tobytes()) == 1
        return sound.replace(ends.tobytes(), other.astype(np.int64).tobytes())

    def with_text(old: str, new: bytes) -> bytes:
        assert old.encode() in sound
        return sound.replace(old.encode(), new)

    with_null = pa.array(["a", None, "a", "a", "a", "a"])
    codes_with_null = with_null.dictionary_encode().cast(name.type)
    return {
        "nulls": (file_of(with_array("label", pa.array([1, None, 3, 4, 5, 6]))), "column 'label' holds nulls"),
        "null texts": (file_of(with_array("caption", with_null.cast(pa.large_string()))), "'caption' holds nulls"),
        "null codes": (file_of(with_array("source", codes_with_null)), "column 'source' holds nulls"),
        "a null name": (named([0] * 6, pa.array([None, "b"])), "dictionary 0 holds nulls"),
        "a byte that no text has": (with_text("é\N{SNOWMAN}", b"\xffxxxx"), "column 'caption' is not UTF-8"),
        "half a character": (with_ends(split), "column 'caption' is not UTF-8"),
        "a name that is not UTF-8": (with_text("ü/0", b"\xc3//0"), "dictionary 0 is not UTF-8"),
        "texts in reverse": (with_ends(ends[::-1]), outside),
        "a text that goes back": (with_ends(ends[[0, 1, 3, 2, 4, 5, 6]]), outside),
        "texts behind the end": (with_ends(ends + 1000), outside),
        "texts before the beginning": (with_ends(ends - 1), outside),
        "a number above all names": (named([0, 0, 1, 1, 2, 3]), "a row has number 3 of 3 texts"),
        "a number below all names": (named([0, 0, 1, 1, 2, -1]), "a row has number -1 of 3 texts"),
    }


@pytest.mark.parametrize("what", strange_files())
def test_an_invalid_column_is_refused_by_name(what: str) -> None:
    content, expected = strange_files()[what]
    with pytest.raises(ArrowFileError, match=expected):
        read_columns(content, KINDS)
    with pytest.raises((pa.ArrowInvalid, pa.ArrowIndexError)):
        read_file(content, SCHEMA)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_buffers_that_would_grow_are_refused(codec: str) -> None:
    with pytest.raises(ArrowFileError, match="its buffers are compressed"):
        read_columns(file_of(batch_of(4000), compression=codec), KINDS)


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([], "it ends, expected a record batch"),
        ([batch_of(2)] * 2, "is a record batch, expected the end of the only batch"),
    ],
)
def test_a_file_has_one_batch(batches: list[pa.RecordBatch], expected: str) -> None:
    # Without columns of names: a file without batches has no dictionaries either.
    kinds = {name: kind for name, kind in KINDS.items() if not kind.endswith("names")}
    schema = pa.schema([SCHEMA.field(name) for name in kinds])
    content = file_of(*(batch.select(list(kinds)) for batch in batches), schema=schema)
    with pytest.raises(ArrowFileError, match=expected):
        read_columns(content, kinds)


def another_type(name: str, kind: pa.DataType, **options: Any) -> Callable[[], bytes]:
    """Return a function that makes an empty file with another type of one column."""
    schema = SCHEMA.set(SCHEMA.names.index(name), pa.field(name, kind, **options))
    return lambda: empty_file(schema)


def empty_file(schema: pa.Schema) -> bytes:
    """Return a file of no rows."""
    return file_of(pa.RecordBatch.from_arrays([_empty(f.type) for f in schema], schema=schema), schema=schema)


def _empty(kind: pa.DataType) -> pa.Array:
    if not pa.types.is_dictionary(kind):
        return pa.array([], kind)
    parts = pa.array([], kind.index_type), pa.array([], kind.value_type)
    return pa.DictionaryArray.from_arrays(*parts, ordered=kind.ordered)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (another_type("label", pa.float64()), "other types: 'label' is float64, expected int64"),
        (another_type("label", pa.int32()), "'label' is int32, expected int64"),
        (another_type("top", pa.int32()), "'top' is int32, expected uint32"),
        (another_type("half", pa.float32()), "'half' is float32, expected float16"),
        (another_type("caption", pa.string()), "'caption' is text of 32 bits, expected text"),
        (another_type("source", pa.large_string()), "'source' is text, expected names"),
        (another_type("source", pa.dictionary(pa.int8(), pa.string())), "'source' is a dictionary of text of 32 bits"),
        (another_type("source", pa.dictionary(pa.int8(), pa.large_string())), "'source' is a dictionary of text with"),
        (another_type("source", pa.dictionary(pa.int32(), pa.large_string())), "is large_names, expected names"),
        (another_type("mask.type", pa.dictionary(pa.int32(), pa.string())), "is names, expected large_names"),
        (another_type("source", pa.dictionary(pa.int32(), pa.binary())), "'source' is a dictionary of type 4"),
        (another_type("source", pa.dictionary(pa.int32(), pa.string(), True)), "'source' is a dictionary"),
        (another_type("label", pa.list_(pa.int64())), "'label' is nested"),
        (another_type("label", pa.timestamp("s")), "'label' is of type 10, expected int64"),
        (another_type("label", pa.int64(), nullable=False), "'label' is not nullable"),
        (another_type("label", pa.int64(), metadata={"a": "b"}), "'label' is a column with metadata"),
        (lambda: empty_file(SCHEMA.with_metadata({"a": "b"})),
         "its schema has metadata"),
        (lambda: empty_file(pa.schema([*SCHEMA, SCHEMA.field(1)])),
         r"its columns are \['source', .*'label', 'top'\], expected \['source', .*'label'\]"),
        (lambda: empty_file(pa.schema(list(SCHEMA)[1:])),
         r"its columns are \['top', .*\], expected \['source',"),
        (lambda: file_of(batch_of(2)).replace(b"label", b"lab\xff\xff"), "names of its columns are not UTF-8"),
        (lambda: b"PAR1" + file_of(batch_of(2))[4:], "does not start like an Arrow file"),
        (lambda: b"", "does not start like an Arrow file"),
        (lambda: b"ARROW1\0\0", "it is cut short: it has no end mark"),
        (lambda: b"ARROW1\0\0" + bytes(100), "byte 8: expected the mark of a message"),
        (lambda: b"ARROW1\0\0" + b"\xff" * 8, "the message at byte 8 is cut short"),
        (lambda: b"ARROW1\0\0" + b"\xff" * 4 + bytes(4), "it ends, expected a schema"),
    ],
)  # fmt: skip
def test_other_columns_and_other_files_are_refused(content: Callable[[], bytes], expected: str) -> None:
    with pytest.raises(ArrowFileError, match=expected):
        read_columns(content(), KINDS)


def test_a_file_that_ends_too_early_is_refused_wherever_it_is_cut() -> None:
    content = file_of(batch_of(6))
    end = content.rindex(struct.pack("<Ii", 0xFFFFFFFF, 0), 0, content.rindex(b"ARROW1"))
    assert read_columns(content[: end + 8], KINDS).num_rows == 6  # the table of contents is not needed
    for nbytes in range(end + 8):
        with pytest.raises(ArrowFileError):
            read_columns(content[:nbytes], KINDS)


def messages_of(content: bytes) -> list[tuple[int, int]]:
    """Return the first byte and the one behind the last of each message."""
    found, at = [], 8
    while (nbytes := struct.unpack_from("<I", content, at + 4)[0]) != 0:
        message = pa.ipc.read_message(pa.py_buffer(content[at:]))
        end = at + 8 + nbytes + (message.body.size if message.body else 0)
        found.append((at, end))
        at = end
    return found


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ([0, 3], "is a record batch, expected a dictionary"),
        ([0, 1, 3], "is a record batch, expected a dictionary"),
        ([0, 1, 1, 3], "column 'mask.type': there is no dictionary 1"),
        ([0, 1, 2, 2, 3], "is a dictionary, expected a record batch"),
        ([0, 1, 2, 3, 2], "is a dictionary, expected the end"),
        ([1, 0, 2, 3], "is a dictionary, expected a schema"),
        ([0, 0, 1, 2, 3], "is a schema, expected a dictionary"),
    ],
)
def test_messages_in_another_order_are_refused(order: list[int], expected: str) -> None:
    content = file_of(batch_of(6))
    places = messages_of(content)
    parts = [content[first:end] for first, end in places]
    assert read_columns(content[:8] + b"".join(parts) + content[places[-1][1] :], KINDS).num_rows == 6
    changed = content[:8] + b"".join(parts[number] for number in order) + content[places[-1][1] :]
    with pytest.raises(ArrowFileError, match=expected):
        read_columns(changed, KINDS)


_NUMBERS = (0, 1, 2, 3, 4, 5, 7, 8, 16, 32, 40, 41, 64, 200, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, -1)


def mutate(rng: random.Random, content: bytes) -> bytes:
    """Return the file with one to three places changed."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        nbytes = rng.choice((1, 1, 2, 4, 4, 8))
        at = rng.randrange(8, len(changed)) // nbytes * nbytes
        kind = rng.random()
        if kind < 0.3:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind < 0.85:
            number = rng.choice((*_NUMBERS, rng.randrange(2**32), rng.randrange(-100, 1000)))
            changed[at : at + nbytes] = (number % 2 ** (8 * nbytes)).to_bytes(nbytes, "little")
        elif kind < 0.92:
            other, length = rng.randrange(8, len(changed)), rng.randrange(1, 40)
            changed[at : at + length] = changed[other : other + length]
        elif kind < 0.96:
            del changed[at : at + rng.randrange(1, 16)]
        else:
            changed[at:at] = bytes(rng.randrange(1, 16))
    return bytes(changed)


def outcome(read: Callable[[bytes, Any], Any], content: bytes, columns: Mapping[str, str] | pa.Schema) -> Any:
    try:
        return read(content, columns)
    except (ArrowFileError, pa.ArrowException, OSError):
        return None


def test_whatever_is_accepted_is_valid_for_arrow_too_and_has_the_same_values() -> None:
    contents = [file_of(batch_of(count)) for count in (0, 1, 7, 40)]
    accepted = refused = 0
    for number in range(4000):
        rng = random.Random(number)
        content = mutate(rng, rng.choice(contents))
        ours = outcome(read_columns, content, KINDS)
        if ours is None:
            refused += 1
            continue
        theirs = outcome(read_file, content, SCHEMA)
        assert theirs is not None, f"case {number}"
        assert values_of(ours) == values_of_batch(theirs), f"case {number}"
        lengths = pc.utf8_length(theirs.column("caption")).to_pylist()
        assert ours.texts["caption"].num_characters().tolist() == lengths, f"case {number}"
        accepted += 1
    assert min(accepted, refused) > 500


@pytest.mark.parametrize("piece", [1, 2, 3, 5])
@given(values=st.lists(st.text(max_size=3), max_size=5), cut=st.binary(max_size=3), bound=st.integers(0, 30))
def test_texts_are_utf8_if_each_decodes(piece: int, values: list[str], cut: bytes, bound: int) -> None:
    data = [value.encode() for value in values] + [cut]
    ends = np.cumsum([0, *map(len, data)])
    ends[len(ends) // 2] = min(max(bound, ends[len(ends) // 2 - 1]), ends[min(len(ends) // 2 + 1, len(ends) - 1)])
    ends = np.maximum.accumulate(ends)
    whole = b"".join(data)
    parts = [whole[a:b] for a, b in pairwise(ends.tolist())]
    try:
        expected = [part.decode() for part in parts]
    except UnicodeDecodeError:
        expected = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmdbloader.store.arrow_file._PIECE_NBYTES", piece)
        texts = Texts(ends, np.frombuffer(whole, np.uint8))
        assert texts.are_utf8() == (expected is not None)
    if expected is not None:
        assert texts.to_list() == expected
        assert texts.num_characters().tolist() == [len(text) for text in expected]
