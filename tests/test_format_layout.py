"""Field names, array types and record keys: written values read back, others are refused."""

from __future__ import annotations

import hashlib
import json
import keyword
import re
import struct
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader.errors import FormatError, OptionError
from lmdbloader.format.layout import (
    ARRAY_DTYPES,
    array_type,
    index_schema,
    make_field,
    parse_array_type,
    parse_record_key,
    record_key,
    record_schema,
)


@given(st.text(max_size=10) | st.sampled_from([*keyword.kwlist, "lr", "hr", "Bild", "größe", "ﬁ", "count", "source"]))
def test_a_field_name_is_one_that_a_sample_can_be_asked_for(name: str) -> None:
    try:
        made = make_field(name, "int")
    except OptionError as error:
        assert "Rename the field" in str(error)
        return
    scope: dict[str, Any] = {}
    exec(f"from collections import namedtuple\nvalue = namedtuple('Sample', [{name!r}])(7).{name}", scope)
    assert (made.name, scope["value"]) == (name, 7)


@pytest.mark.parametrize(
    "name", ["", "a b", "a.b", "1a", "class", "_a", "__a__", "source", "top", "left", "ﬁ", "a" * 51]
)
def test_other_field_names_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="expected a Python identifier"):
        make_field(name, "image")


@given(st.sampled_from(sorted(ARRAY_DTYPES)), st.lists(st.integers(0, 10**12 - 1), max_size=32))
def test_an_array_type_reads_back(dtype: str, shape: list[int]) -> None:
    assert parse_array_type(array_type(dtype, shape)) == (dtype, tuple(shape))
    assert np.dtype(dtype).name == dtype


@given(
    st.text(max_size=20)
    | st.tuples(
        st.sampled_from([*sorted(ARRAY_DTYPES), "object", "int", ""]),
        st.text("[]0123456789,- ²\n", max_size=12),
    ).map("".join)
)
def test_any_other_text_is_no_array_type(text: str) -> None:
    try:
        dtype, shape = parse_array_type(text)
    except FormatError as error:
        assert "expected something like 'float32[3,4]'" in str(error)
        return
    assert dtype in ARRAY_DTYPES
    assert all(type(size) is int and size >= 0 for size in shape)


def test_an_array_type_of_another_form_is_refused() -> None:
    shapes = ["", "[", "]", "[3]x", "[-1]", "[3,]", "[,3]", "[ 3]", "[³]", "[1234567890123]", "[" + "1," * 32 + "1]"]
    for text in ("", "[3]", "object[3]", *(f"float32{shape}" for shape in shapes)):
        with pytest.raises(FormatError, match="array type"):
            parse_array_type(text)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_record_keys_read_back_and_sort_as_their_samples(first: int, checksum: int) -> None:
    key = record_key(first, checksum)
    assert parse_record_key(key) == (first, checksum)
    assert (record_key(first, 0) > record_key(7, 2**64 - 1)) == (first > 7)
    assert key == struct.pack(">Q", first) + struct.pack(">Q", checksum)


def test_the_columns_on_disk_are_those_of_format_version_1() -> None:
    fields = [make_field("lr", "image"), make_field("mask", "array"), make_field("n", "int"), make_field("t", "text")]
    index = index_schema(fields, with_source=True)
    assert index.names[:3] == ["source", "top", "left"]
    assert index.field("source").type == index.field("mask.type").type == pa.dictionary(pa.int32(), pa.large_string())
    assert index.names[3:12] == [
        f"lr.{part}"
        for part in "offset stored_nbytes raw_nbytes checksum codec height width channels bits".split()  # noqa: SIM905
    ]
    assert index.names[12:] == [
        *(f"mask.{part}" for part in ("offset", "stored_nbytes", "raw_nbytes", "checksum", "codec", "type")),
        "n",
        "t",
    ]
    record = record_schema(fields, with_source=False)
    assert record.names[:7] == [
        "lr", "lr.raw_nbytes", "lr.codec", "lr.height", "lr.width", "lr.channels", "lr.bits"
    ]  # fmt: skip
    assert record.field("lr").type == pa.binary()
    assert record.field("lr.height").type == pa.run_end_encoded(pa.int32(), pa.uint32())


def test_the_documents_own_lines_read_every_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = Path(__file__).resolve().parent.parent / "docs" / "reference" / "format.md"
    blocks = re.findall(r"^```python\n(.*?)^```$", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    delta = blocks.pop(0)  # the lengths of its codes
    del blocks[4:], blocks[1]  # those of the index; the first finds the part, too
    assert sum(len(block.strip().splitlines()) for block in blocks[:2]) < 40
    assert len(blocks[2].strip().splitlines()) < 60
    rng = np.random.default_rng(0)
    images = [
        rng.integers(0, 40, shape).astype(dtype)
        for shape in ((20, 30, 3), (9, 9, 1), (300, 310, 3), (200, 200, 3))
        for dtype in (np.uint8, np.uint16)
    ]
    floats = [rng.normal(0, 9, shape).astype(t) for shape in ((200, 200, 3), (20, 20, 1)) for t in ("f2", "f4")]
    lr = [image[::2, ::2] for image in images]
    monkeypatch.chdir(tmp_path)
    for codec in ("raw", "lz4", "delta"):
        # The same ones several times over: more than one record, whose first sample has to be found.
        samples = [{"lr": small, "hr": large} for small, large in zip(lr, images, strict=True)]
        samples *= 1 if codec == "delta" else 2  # which is read bit by bit
        lmdbloader.write(samples, "train.lmdb", codec=codec, overwrite=True)
        scope: dict[str, Any] = {}
        for block in (delta, *blocks[::-1]):  # the first one reads an image
            exec(compile(block, str(document), "exec"), scope)
        modules = {name.partition(".")[0] for name in re.findall(r"import (.*)", blocks[0])[0].split(", ")}
        assert {name.split()[0] for name in modules} == {"json", "struct", "lmdb", "lz4", "numpy", "pyarrow"}
        np.testing.assert_array_equal(scope["image"], images[0].transpose(2, 0, 1))
        for number, sample in enumerate(samples):
            for field in ("lr", "hr"):
                image = scope["read_image"]("train.lmdb", number, field)
                assert image.dtype == sample[field].dtype
                np.testing.assert_array_equal(image, sample[field].transpose(2, 0, 1))
        for found in (*floats, images[2].repeat(7, 2), images[4].repeat(7, 2)):
            if codec != "delta" or found.dtype.kind == "u":
                types = {"hr": lmdbloader.fields.Image()}
                lmdbloader.write([{"hr": found}], "one.lmdb", fields=types, codec=codec, overwrite=True)
                image = scope["read_image"]("one.lmdb", 0, "hr")
                assert image.dtype == found.dtype
                np.testing.assert_array_equal(image, found.transpose(2, 0, 1))


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_digests_follow_the_specification(tmp_path: Path) -> None:
    samples = [
        {"image": np.full((4, 4), i, np.uint8), "caption": "ü" * i, "n": i, "a": np.zeros(i % 2)} for i in range(5)
    ]
    lmdbloader.write(samples, tmp_path / "d")
    text = (tmp_path / "d" / "manifest.json").read_bytes()
    manifest = json.loads(text)
    assert manifest["format_version"] == 1
    assert manifest["manifest_digest"] == sha256(text[: text.index(b',\n "manifest_digest"')])
    with lmdb.open(str(tmp_path / "d"), readonly=True, lock=False) as env, env.begin() as transaction:
        text = transaction.get(b"description")
    assert json.loads(text)["description_digest"] == sha256(text[: text.index(b',\n "description_digest"')])
    data = (tmp_path / "d" / "index.arrow").read_bytes()
    assert manifest["index_digest"] == sha256(data)
    assert manifest["parts"][0]["data_digest"] == sha256((tmp_path / "d" / "data.mdb").read_bytes())
    batch = pa.ipc.open_file(data).get_batch(0)
    framed = b""
    for column in batch.schema.names:
        if column.endswith(".offset"):
            continue
        framed += column.encode() + b"\0"
        for value in batch[column].to_pylist():
            if isinstance(value, str):
                framed += struct.pack("<Q", len(value.encode())) + value.encode()
            else:
                dtype = batch[column].to_numpy().dtype.newbyteorder("<")
                framed += np.array(value, dtype).tobytes()
    assert manifest["content_digest"] == sha256(framed)
