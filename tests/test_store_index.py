"""index.arrow: it has the offset of every payload, and what was changed in it is never a wrong value."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damage import index_batch
from faults.forging import manifest_of, pieces_of, value_at, with_value
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader import Loader
from lmdbloader.errors import CorruptError
from lmdbloader.format.codecs import checksum
from lmdbloader.format.layout import make_field
from lmdbloader.store import Chunk, Reader
from lmdbloader.store.spool import Spool


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


def everything(path: Path, io: Any = "mmap") -> list[Any]:
    """Return all values of a dataset, and the columns of its table."""
    dataset = lmdbloader.LMDBDataset(path, io=io)
    rows = [[v.tolist() if hasattr(v, "tolist") else v for v in dataset[row]] for row in range(len(dataset))]
    return [rows, dataset.table.to_pylist()]


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


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_the_manifest_says_where_the_columns_are(path: Path, io: Any) -> None:
    batch, index = index_batch(path), Reader(path, io=io).index
    assert list(index.column_names) == batch.schema.names
    for name in batch.schema.names:
        expected = batch.column(name).to_pylist()
        if name in index.columns:
            assert index.take(name, np.arange(40)[::-1]).tolist() == expected[::-1]
            assert index.take(name, range(3, 30, 7)).tolist() == expected[3:30:7]
            assert index.arrays[name].tolist() == expected
        else:
            assert [index.text(name, row) for row in range(40)] == expected
    assert index.batch.equals(batch)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of three blocks, with texts and texts that repeat."""
    path = tmp_path_factory.mktemp("index") / "many"
    rows = ({"label": i, "caption": f"text {i}", "array": np.zeros(i % 3, np.uint8)} for i in range(20_000))
    lmdbloader.write(rows, path)
    return path


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", ["label", "caption", "array.checksum", "array.type"])
def test_a_block_is_verified_when_a_row_of_it_is_used(many: Path, tmp_path: Path, name: str, io: Any) -> None:
    path = Path(shutil.copytree(many, tmp_path / "d"))
    column = next(c for c in manifest_of(path)["index"]["columns"] if c["name"] == name)
    index = (path / "index.arrow").read_bytes()
    (path / "index.arrow").write_bytes(with_value(index, column, 9000, value_at(index, column, 9000) ^ 2))
    dataset = lmdbloader.LMDBDataset(path, io=io)
    assert (dataset[8191].label, dataset[16384].label) == (8191, 16384)
    reads: list[Callable[[], Any]] = [
        lambda: dataset[8192],
        lambda: dataset._many([5, 10_000]),
        lambda: dataset.targets[0] if "label" in dataset.fields else None,
        lambda: dataset.table,
        lambda: dataset.where("label == 3"),
        lambda: list(Loader(dataset, 8, order="sequential", num_threads=2)),
        lambda: list(Loader(dataset.select([9999]), 8, shuffle=False, num_threads=1, on_corrupt="skip")),
        lambda: lmdbloader.subset(dataset.select([9999]), tmp_path / "subset"),
    ]
    for read in reads:
        with pytest.raises(CorruptError, match=r"index\.arrow: rows 8192 to 16383: ") as caught:
            read()
        assert caught.value.path == str(path) and caught.value.sample is None
    (problem,) = lmdbloader.verify(path).problems
    assert problem.startswith("index.arrow: ")
    assert "index.arrow" in lmdbloader.repair(path).replaced
    assert (path / "index.arrow").read_bytes() == index


def test_many_threads_use_an_index_that_nobody_has_verified(many: Path) -> None:
    for io in ("mmap", "pread"):
        reader = Reader(many, io=io)  # type: ignore[arg-type]
        with ThreadPoolExecutor(8) as pool:
            rows = np.random.default_rng(0).integers(0, 20_000, (400, 16))
            found = list(pool.map(partial(reader.index.take, "label"), rows))
        assert np.array_equal(found, rows)


def test_whatever_byte_is_flipped_values_are_right_or_an_error_names_the_rows(path: Path) -> None:
    sound, expected = (path / "index.arrow").read_bytes(), everything(path)
    layout = manifest_of(path)["index"]["columns"]
    outcomes = Counter[str]()
    for place in np.unique(np.linspace(0, len(sound) - 1, 150).astype(int)).tolist():
        damaged = bytearray(sound)
        damaged[place] ^= 1 << place % 8
        (path / "index.arrow").write_bytes(damaged)
        try:
            assert everything(path, "pread" if place % 2 else "mmap") == expected
            outcomes["same"] += 1
            assert not any(pieces_of(c, sound, 0, 40) != pieces_of(c, bytes(damaged), 0, 40) for c in layout)
        except CorruptError as error:
            assert str(error).startswith(f"{path}/index.arrow: ") and error.path == str(path)
            outcomes["error"] += 1
        assert lmdbloader.verify(path).files == ("index.arrow",)
    assert outcomes["error"] > outcomes["same"] > 3


def test_an_index_that_is_cut_after_it_was_opened(path: Path) -> None:
    for io in ("mmap", "pread"):
        reader = Reader(path, io=io)  # type: ignore[arg-type]
        content = (path / "index.arrow").read_bytes()
        with open(path / "index.arrow", "r+b") as file:
            file.truncate(1000)
        with pytest.raises(CorruptError, match="rows 0 to 39"):
            reader.read_image("image", 3)
        (path / "index.arrow").write_bytes(content)


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
