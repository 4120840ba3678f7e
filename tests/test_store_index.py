"""index.arrow: it has the offset of every payload, and is refused if it was changed or contradicts itself."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damage import with_column
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader.errors import CorruptError, FormatError, LmdbloaderError, OptionError
from lmdbloader.format.codecs import checksum
from lmdbloader.format.layout import MANIFEST_FILE, make_field
from lmdbloader.store import Chunk, Reader, read_manifest
from lmdbloader.store.opening import map_file
from lmdbloader.store.spool import Spool, content_digest


def samples(count: int = 40) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for i in range(count):
        yield {
            "image": rng.integers(0, 256, (9 + i % 3, 12, 3), np.uint8),
            "mask": np.full((i % 4, 2), i, np.float32),
            "label": i - 7,
            "score": i / 3,
            "caption": "ünï" * (i % 3),
        }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    lmdbloader.write(samples(), tmp_path / "d", codec="lz4")
    return tmp_path / "d"


def replace_index(path: Path, batch: pa.RecordBatch) -> None:
    """Write another index.arrow and give the manifest its digest, as an attacker or a bug would."""
    with pa.OSFile(str(path / "index.arrow"), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    sign_index(path, (path / "index.arrow").read_bytes())


def sign_index(path: Path, data: bytes) -> None:
    """Make `data` the index, with a manifest that agrees."""
    (path / "index.arrow").write_bytes(data)
    manifest = read_manifest(path)
    sizes = {**manifest.sizes, "index_nbytes": len(data)}
    manifest = dataclasses.replace(manifest, index_digest=f"xxh64:{checksum(data):016x}", sizes=sizes)
    (path / MANIFEST_FILE).write_bytes(manifest.to_json())


def index_batch(path: Path) -> pa.RecordBatch:
    """Return the index without mapping it, so it can be overwritten."""
    return pa.ipc.open_file((path / "index.arrow").read_bytes()).get_batch(0)


def with_value(batch: pa.RecordBatch, name: str, row: int, value: Any) -> pa.RecordBatch:
    values = batch.column(name).to_pylist()
    values[row] = value
    return with_column(batch, name, values)


def test_every_payload_is_at_its_offset_in_the_index(path: Path) -> None:
    batch, data = index_batch(path), (path / "data.mdb").read_bytes()
    assert batch.num_rows == 40
    for name in ("image", "mask"):
        columns = [batch.column(f"{name}.{part}").to_pylist() for part in ("offset", "stored_nbytes", "checksum")]
        for at, nbytes, expected in zip(*columns, strict=True):
            assert checksum(data[at : at + nbytes]) == expected
    expected_samples = list(samples())
    for name in ("label", "score", "caption"):
        assert batch.column(name).to_pylist() == [s[name] for s in expected_samples]
    assert batch.column("mask.type").to_pylist() == [f"float32[{i % 4},2]" for i in range(40)]
    assert batch.column("image.height").to_pylist() == [9 + i % 3 for i in range(40)]


def test_numeric_columns_are_read_only_views(path: Path) -> None:
    arrays = Reader(path).index.arrays
    assert arrays["label"].tolist() == list(range(-7, 33))
    with pytest.raises(ValueError, match="read-only"):
        arrays["label"][0] = 1


@pytest.mark.parametrize("change", ["cut", "extend", "flip"])
def test_an_index_that_is_not_the_one_written_is_refused(path: Path, change: str) -> None:
    sound = (path / "index.arrow").read_bytes()
    places = np.unique(np.linspace(0, len(sound) - 1, 60).astype(int)).tolist()
    for place in places:
        damaged = bytearray(sound)
        damaged[place] ^= 4
        data = {"cut": sound[:place], "extend": sound + bytes(place + 1), "flip": bytes(damaged)}[change]
        (path / "index.arrow").write_bytes(data)
        expected = "its digest is" if change == "flip" else rf"\d+ bytes, expected {len(sound)}: it is cut short"
        with pytest.raises(CorruptError, match=rf"index\.arrow: {expected}") as caught:
            Reader(path)
        assert caught.value.path == str(path)
    (path / "index.arrow").write_bytes(sound)
    assert len(Reader(path)) == 40


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("image.offset", -1),
        ("mask.raw_nbytes", 2**31),
        ("mask.type", "float32[3,3]"),
        ("mask.type", "float64[3,2]"),
        ("mask.type", "float32[0,999999999999,999999999999]"),
        ("image.offset", 2**40),
        ("image.offset", 2**63 - 1),
        ("image.stored_nbytes", 2**32 - 1),
        ("image.raw_nbytes", 5),
        ("image.codec", 6),
        ("image.height", 2**32 - 1),
        ("image.width", 0),
        ("image.channels", 2),
        ("image.channels", 0),
        ("image.bits", 32),
        ("image.bits", 0),
        ("mask.codec", 2),
    ],
)
def test_a_contradictory_index_with_a_matching_digest_is_refused(path: Path, name: str, value: Any) -> None:
    replace_index(path, with_value(index_batch(path), name, 7, value))
    field = name.partition(".")[0]
    with pytest.raises(CorruptError, match=rf"row 7, field '{field}': .* does not fit") as caught:
        Reader(path)
    assert (caught.value.sample, caught.value.field, caught.value.path) == (7, field, str(path))
    assert caught.value.source is None


def test_other_columns_rows_or_nulls_are_refused(path: Path) -> None:
    sound = index_batch(path)
    null = with_value(sound, "label", 3, None)
    for batch, expected in (
        (sound.slice(1), "39 rows, the manifest says 40"),
        (sound.select(sound.schema.names[:-1]), "its columns are"),
        (with_column(sound, "label", [0.0] * 40, pa.float64()), "its columns are"),
        (null, "holds nulls"),
    ):
        replace_index(path, batch)
        with pytest.raises(FormatError, match=expected):
            Reader(path)


def test_an_index_that_is_not_an_arrow_file_is_refused_despite_its_digest(path: Path) -> None:
    for data in (b"", b"ARROW1\0\0", b"x" * 1000, b"ARROW1\0\0" + b"\0" * 100 + b"ARROW1"):
        sign_index(path, data)
        with pytest.raises(LmdbloaderError, match=r"index\.arrow"):
            Reader(path)


def test_the_content_digest_does_not_depend_on_offsets(tmp_path: Path) -> None:
    def digest(name: str, items: list[dict[str, Any]], codec: str = "lz4") -> str:
        return lmdbloader.write(items, tmp_path / name, codec=codec).content_digest

    items = list(samples())
    first = digest("a", items)
    assert first.startswith("sha256:")
    assert digest("b", items) == first
    assert digest("reversed", items[::-1]) != first
    assert digest("fewer", items[:-1]) != first
    for name, value in (("label", 99), ("score", 0.25), ("caption", "other"), ("image", items[5]["image"] ^ 1)):
        changed = [*items[:4], {**items[4], name: value}, *items[5:]]
        assert digest(f"changed-{name}", changed) != first
    renamed = [{("subtitle" if k == "caption" else k): v for k, v in item.items()} for item in items]
    assert digest("renamed", renamed) != first


@given(st.lists(st.text(max_size=4), max_size=5), st.lists(st.text(max_size=4), max_size=5))
def test_different_texts_have_different_digests(a: list[str], b: list[str]) -> None:
    columns = [pa.array(texts, pa.large_string()) for texts in (a, b)]
    digests = [content_digest(pa.record_batch({"caption": column})) for column in columns]
    assert (digests[0] == digests[1]) == (a == b)
    # Names have the digest of texts, also in the middle of a longer column.
    longer = pa.array(["ab", *a, "c"], pa.large_string()).dictionary_encode().slice(1, len(a))
    assert content_digest(pa.record_batch({"caption": longer})) == digests[0]


def add_sources(spool: Spool, names: Sequence[str]) -> None:
    numbers = np.arange(len(names))
    spool.add(Chunk(len(names), {}, {"source": list(names), "top": numbers, "left": numbers, "label": numbers}), [])


@given(st.lists(st.lists(st.sampled_from(["a", "b", "ü/c", ""]), max_size=5), max_size=5))
def test_sources_are_numbered_in_order(tmp_path_factory: pytest.TempPathFactory, parts: list[list[str]]) -> None:
    folder = tmp_path_factory.mktemp("spool")
    spool = Spool(folder / "columns", [make_field("label", "int")], with_source=True)
    for part in parts:
        add_sources(spool, part)
    spool.write(folder / "index", np.empty(0, np.int64))
    spool.close()
    with pa.OSFile(str(folder / "index")) as file:
        column = pa.ipc.open_file(file).get_batch(0).column("source")
    column.validate(full=True)
    rows = [name for part in parts for name in part]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(rows))}
    assert column.to_pylist() == rows
    # Each name is stored once, also of a source whose samples are apart: a split keeps samples of one number together.
    assert column.dictionary.to_pylist() == list(numbers)
    assert column.indices.to_pylist() == [numbers[name] for name in rows]


def test_names_of_sources_are_not_held_in_memory(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "columns", [make_field("label", "int")], with_source=True)
    add_sources(spool, ["first"])
    tracemalloc.start()
    try:
        for first in range(0, 5000, 500):
            add_sources(spool, [f"a/{i:040}.png" for i in range(first, first + 500)])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        spool.close()
    assert spool.num_samples == 5001
    assert held < 50_000


def test_more_names_than_an_index_can_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.store.spool.MAX_NAMES", 2)
    spool = Spool(tmp_path / "columns", [make_field("label", "int")], with_source=True)
    add_sources(spool, ["abc", "abc", "def"])
    with pytest.raises(OptionError, match=r"more than 2 sources, the most that one dataset can hold"):
        add_sources(spool, ["g"])
    spool.close()


def test_names_are_stored_with_offsets_of_64_bits(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "columns", [make_field("label", "int")], with_source=True)
    add_sources(spool, ["abc", "abc", "ü"])
    spool.write(tmp_path / "index", np.zeros(1, np.int64))
    column = pa.ipc.open_file(tmp_path / "index").get_batch(0)["source"]
    assert column.to_pylist() == ["abc", "abc", "ü"]
    assert column.type.value_type == pa.large_string()
    spool.close()


def test_an_empty_file_maps_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert len(map_file(tmp_path / "empty")) == 0


def test_columns_that_begin_at_odd_addresses_are_refused(path: Path) -> None:
    data = (path / "index.arrow").read_bytes()
    at = 8  # behind the file's magic; each message: a mark, its length, itself, its body
    while True:
        nbytes = int.from_bytes(data[at + 4 : at + 8], "little")
        message = pa.ipc.read_message(data[at:])
        if message.type == "record batch":
            break
        at += 8 + nbytes + message.body.size
    longer = (nbytes + 1).to_bytes(4, "little")
    sign_index(path, data[: at + 4] + longer + data[at + 8 : at + 8 + nbytes] + b"\0" + data[at + 8 + nbytes :])
    with pytest.raises(FormatError, match="a column is not aligned to the size of its numbers"):
        Reader(path)


_MANY_FIELDS = """
import resource, sys
import numpy as np
import lmdbloader

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
numbers = [f"n{j}" for j in range(2900)]
arrays = [f"a{j}" for j in range(100)]

def sample(i):
    values = {name: i * j for j, name in enumerate(numbers)}
    return {**values, **{name: np.full(3, i + j) for j, name in enumerate(arrays)}}

lmdbloader.write((sample(i) for i in range(3)), sys.argv[1])
reader = lmdbloader.store.Reader(sys.argv[1])
assert [reader.index.arrays["n2899"][i] for i in range(3)] == [0, 2899, 5798]
assert reader.read_array("a99", 2).tolist() == [101] * 3
"""


def test_three_thousand_fields_are_written_with_256_descriptors(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", _MANY_FIELDS, tmp_path / "d"], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr


def test_a_spool_keeps_no_file_open_whether_it_is_filled_mapped_or_closed(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    names = [f"n{j}" for j in range(50)]
    before = descriptors()
    spool = Spool(tmp_path / "columns", [make_field(name, "int") for name in names], with_source=False)
    rows = np.arange(5000)
    for _ in range(3):
        spool.add_columns({name: rows + j for j, name in enumerate(names)}, len(rows), [len(rows)])
    columns = [spool.column(name) for name in names]
    assert descriptors() == before
    spool.close()  # the maps outlive their files
    for j, column in enumerate(columns):
        assert (column == np.tile(rows + j, 3)).all()
