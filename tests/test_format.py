"""The manifest, field names, array types and record keys: what is written reads back, anything else is refused."""

from __future__ import annotations

import hashlib
import json
import keyword
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader.codecs import checksum
from lmdbloader.errors import FormatError, LmdbloaderError, OptionError
from lmdbloader.format import (
    ARRAY_DTYPES,
    KINDS,
    MAX_MANIFEST_NBYTES,
    Array,
    Image,
    Json,
    Manifest,
    _digest_of,
    array_type,
    index_schema,
    make_field,
    parse_array_type,
    parse_manifest,
    parse_record_key,
    record_key,
    record_schema,
)

MANIFEST = Manifest(
    num_samples=3,
    fields=(make_field("lr", "image", "lz4"), make_field("hr", "image"), make_field("label", "int")),
    with_source=True,
    classes={"label": ("cat", "dog", "Füchse")},
    sizes={"data_nbytes": 4096, "index_nbytes": 10, "payload_nbytes": 5, "raw_nbytes": 6},
    made_by={"lmdbloader": "0.1.0", "options": {"scale": 2}, "inputs": None},
    content_digest="blake2b:00",
    index_digest="xxh64:00",
)


def signed(body: dict[str, Any]) -> bytes:
    """Return a manifest's bytes with the digest that its other keys have."""
    body = {key: value for key, value in body.items() if key != "manifest_digest"}
    return json.dumps({**body, "manifest_digest": _digest_of(body)}).encode()


def body() -> dict[str, Any]:
    """Return the keys of a sound manifest."""
    return dict(json.loads(MANIFEST.to_json()))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
texts = st.text(st.characters(exclude_categories=()), max_size=8)


@given(
    num_samples=st.integers(0, 2**62 - 1),
    names=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5, unique=True),
    kinds=st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    with_source=st.booleans(),
    classes=st.dictionaries(texts, st.lists(texts, max_size=3).map(tuple), max_size=3),
    made_by=st.dictionaries(texts, texts | st.integers() | st.none() | st.lists(texts), max_size=3),
)
def test_a_manifest_reads_back_as_it_was_written(
    num_samples: int, names: list[str], kinds: list[Any], with_source: bool, classes: Any, made_by: Any
) -> None:
    # Half a surrogate pair is what a byte of a file name becomes that is no text: it has to survive too.
    manifest = Manifest(
        num_samples,
        tuple(make_field(name, kind, "lz4") for name, kind in zip(names, kinds, strict=False)),
        with_source,
        classes,
        {"data_nbytes": num_samples},
        made_by,
        "blake2b:1",
        "xxh64:2",
    )
    data = manifest.to_json()
    back = parse_manifest(data, "d")
    assert back == manifest
    assert back.to_json() == data
    assert back.manifest_digest == json.loads(data)["manifest_digest"]


def test_a_manifest_is_readable_text() -> None:
    assert "Füchse" in MANIFEST.to_json().decode("utf-8")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "is not JSON"),
        (b"\xff{}", "is not JSON"),
        (MANIFEST.to_json()[:-3], "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (
            b'{"format": "lmdbloader", "format_version": 1, "x": ' + b"[" * 900 + b"]" * 900 + b"}",
            "digest|not JSON|deep",
        ),
        (b"[]", "does not describe an lmdbloader dataset"),
        (b"null", "does not describe an lmdbloader dataset"),
        (b"{}", "does not describe an lmdbloader dataset"),
        (b'{"format": "webdataset"}', "does not describe an lmdbloader dataset"),
        (signed({**body(), "format_version": 2}), "format version 2; this release reads 1. Upgrade lmdbloader"),
        (signed({**body(), "format_version": 0}), "format version 0; this release reads 1. Convert again"),
        (signed({**body(), "format_version": "1"}), "format version '1'"),
        (signed({**body(), "format_version": True}), "format version True"),
        (signed({**body(), "format_version": 1.0}), "format version 1.0"),
        (MANIFEST.to_json().replace(b'"scale": 2', b'"scale": 3'), "was changed after it was written"),
        (json.dumps({k: v for k, v in body().items() if k != "manifest_digest"}).encode(), "its digest is None"),
        (b" " * (MAX_MANIFEST_NBYTES + 1), "expected at most"),
    ],
)
def test_what_is_no_manifest_is_refused_in_words(data: bytes, expected: str) -> None:
    with pytest.raises(FormatError, match=expected) as caught:
        parse_manifest(data, "photos.lmdb")
    assert str(caught.value).startswith("photos.lmdb/manifest.json: ")


def _without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda b: b.pop(key)


def _with(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda b: b.update(values)


def _field(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda b: b["fields"][0].update(values)


@pytest.mark.parametrize(
    "change",
    [
        *(_without(key) for key in body() if key not in ("format", "format_version", "manifest_digest")),
        *(_with(num_samples=value) for value in (-1, 2**62, 1.0, "3", None, True, [3])),
        *(_with(fields=value) for value in (None, {}, [], "lr", [None], [[]], [{}], [{"name": "a"}], 3)),
        _with(fields=[{"name": "a", "kind": "int"}] * 2),
        *(_with(with_source=value) for value in (None, 1, "no")),
        *(_with(classes=value) for value in (None, [], {"label": "cat"}, {"label": [1]}, {"label": None})),
        *(_with(sizes=value) for value in (None, [], {"data_nbytes": "4"}, {"data_nbytes": -1})),
        *(_with(**{key: value}) for key in ("made_by", "content_digest", "index_digest") for value in (None, [], 3)),
        *(_field(name=value) for value in ("", "a b", "class", "_a", "source", None, 3, [], "a" * 51)),
        *(_field(kind=value) for value in ("video", None, [], 3)),
        *(_field(codec=value) for value in ("tiles", "zstd", 3, [], {})),
        *(_field(layout=value) for value in ("HWC", None, 3)),
        *(_field(tile_size=value) for value in (0, 7, 513, -64, "64", None, True, 64.0)),
    ],
)
def test_a_manifest_with_a_right_digest_and_wrong_content_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    changed = body()
    change(changed)
    with pytest.raises(FormatError, match=r"^d/manifest\.json: .*expected the keys of format version 1"):
        parse_manifest(signed(changed), "d")


@given(st.data())
def test_whatever_a_manifest_says_only_our_errors_come_out(data: st.DataObject) -> None:
    changed = body()
    at: Any = changed
    for _ in range(data.draw(st.integers(1, 3))):
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            at[key] = data.draw(anything)
            break
        at = at[key]
    try:
        manifest = parse_manifest(signed(changed), "d")
    except LmdbloaderError:
        return
    assert parse_manifest(manifest.to_json(), "d") == manifest


@given(st.integers(0), st.integers(1, 255), st.booleans())
def test_no_changed_or_missing_byte_of_a_manifest_goes_unnoticed(position: int, change: int, cut: bool) -> None:
    sound = MANIFEST.to_json()
    at = position % (len(sound) - 1)  # the last byte ends the line
    damaged = bytearray(sound)
    damaged[at] ^= change
    try:
        manifest = parse_manifest(sound[:at] if cut else bytes(damaged), "d")
    except FormatError:
        return
    assert manifest == MANIFEST  # white space between the keys says nothing


@given(st.binary(max_size=60))
def test_bytes_that_are_no_manifest_are_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_manifest(data, "d")


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


def test_a_field_has_the_codec_and_layout_of_its_kind() -> None:
    image = make_field("hr", "image", "lz4")
    assert (image.codec, image.layout, image.tile_size, image.is_payload) == ("lz4", "CHW", 64, True)
    label = make_field("label", "int", "lz4")
    assert (label.codec, label.layout, label.tile_size, label.is_payload) == (None, None, None, False)
    assert [kind.kind for kind in (Image(), Array(), Json())] == ["image", "array", "json"]


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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "float32",
        "float32[",
        "float32]",
        "[3]",
        "object[3]",
        "float32[3]x",
        "float32[-1]",
        "float32[3,]",
        "float32[,3]",
        "float32[ 3]",
        "float32[³]",
        "float32[1234567890123]",
        "float32[" + ",".join("1" * 33) + "]",
    ],
)
def test_an_array_type_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="array type"):
        parse_array_type(text)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_record_keys_read_back_and_sort_as_their_samples(first: int, checksum: int) -> None:
    key = record_key(first, checksum)
    assert parse_record_key(key) == (first, checksum)
    assert (record_key(first, 0) > record_key(7, 2**64 - 1)) == (first > 7)
    assert key == struct.pack(">Q", first) + struct.pack(">Q", checksum)


@pytest.mark.parametrize("key", [b"", b"schema", b"0" * 15, b"0" * 17])
def test_a_key_of_another_length_is_no_record_key(key: bytes) -> None:
    with pytest.raises(FormatError, match="expected 16 bytes"):
        parse_record_key(key)


def test_the_columns_on_disk_are_those_of_format_version_1() -> None:
    fields = [make_field("lr", "image"), make_field("mask", "array"), make_field("n", "int"), make_field("t", "text")]
    index = index_schema(fields, with_source=True)
    assert index.names[:3] == ["source", "top", "left"]
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
    document = Path(__file__).resolve().parent.parent / "docs" / "format.md"
    blocks = re.findall(r"^```python\n(.*?)^```$", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    assert sum(len(block.strip().splitlines()) for block in blocks) < 35
    rng = np.random.default_rng(0)
    images = [
        rng.integers(0, 40, shape).astype(dtype)
        for shape in ((20, 30, 3), (9, 9, 1), (300, 310, 3), (200, 200, 3))
        for dtype in (np.uint8, np.uint16)
    ]
    lr = [image[::2, ::2] for image in images]
    monkeypatch.chdir(tmp_path)
    for codec in ("raw", "lz4"):
        # The same ones several times over: more than one record, whose first sample has to be found.
        samples = [{"lr": small, "hr": large} for small, large in zip(lr, images, strict=True)] * 2
        lmdbloader.write(samples, "train.lmdb", codec=codec, overwrite=True)
        scope: dict[str, Any] = {}
        for block in blocks:
            exec(compile(block, str(document), "exec"), scope)
        modules = {name.partition(".")[0] for name in re.findall(r"import (.*)", blocks[0])[0].split(", ")}
        assert {name.split()[0] for name in modules} == {"struct", "lmdb", "lz4", "numpy", "pyarrow"}
        np.testing.assert_array_equal(scope["image"], images[0].transpose(2, 0, 1))
        for number, sample in enumerate(samples):
            for field in ("lr", "hr"):
                image = scope["read_image"]("train.lmdb", number, field)
                assert image.dtype == sample[field].dtype
                np.testing.assert_array_equal(image, sample[field].transpose(2, 0, 1))


def test_the_digests_are_what_the_document_says(tmp_path: Path) -> None:
    samples = [{"image": np.full((4, 4), i, np.uint8), "caption": "ü" * i, "n": i} for i in range(5)]
    lmdbloader.write(samples, tmp_path / "d")
    manifest = json.loads((tmp_path / "d" / "manifest.json").read_bytes())
    claimed = manifest.pop("manifest_digest")
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    assert claimed == "blake2b:" + hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()
    data = (tmp_path / "d" / "index.arrow").read_bytes()
    assert manifest["index_digest"] == f"xxh64:{checksum(data):016x}"
    batch = pa.ipc.open_file(data).get_batch(0)
    digest = hashlib.blake2b(digest_size=16)
    for name in batch.schema.names:
        if name.endswith(".offset"):
            continue
        digest.update(name.encode() + b"\0")
        for value in batch[name].to_pylist():
            if isinstance(value, str):
                digest.update(struct.pack("<Q", len(value.encode())) + value.encode())
            else:
                dtype = np.dtype(batch[name].type.to_pandas_dtype()).newbyteorder("<")
                digest.update(np.array(value, dtype).tobytes())
    assert manifest["content_digest"] == "blake2b:" + digest.hexdigest()
