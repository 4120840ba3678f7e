"""LMDBs of image files as sources: names, order, pairs, counting entries, and LMDBs without images."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tars import png

import lmdbloader
from lmdbloader.conversion.sources.layouts import list_sources
from lmdbloader.conversion.sources.reading import read
from lmdbloader.errors import SourceError


def save_lmdb(path: Path, entries: dict[bytes, bytes], *, subdir: bool = True) -> Path:
    """Write entries as BasicSR, mmsr and other scripts do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(path), map_size=2**26, subdir=subdir, lock=subdir) as env, env.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)
    return path


def pixels(number: int) -> np.ndarray:
    """Return the pixels of png(number) as (3, H, W)."""
    return np.asarray(Image.open(io.BytesIO(png(number)))).transpose(2, 0, 1)


def names(src: Path, **options: Any) -> list[str]:
    return [s.name for s in list_sources(src, **options).sources]


@pytest.mark.parametrize("subdir", [True, False])
@pytest.mark.parametrize("nbytes", [10, 3000, 100_000])
def test_values_are_read_in_place(tmp_path: Path, subdir: bool, nbytes: int) -> None:
    entries = {f"key {i}".encode(): png(i) + bytes([i]) * nbytes for i in range(20)}
    path = save_lmdb(tmp_path / "a.lmdb", entries, subdir=subdir)
    listing = list_sources(path)
    assert listing.layout == "lmdb"
    assert {s.name.encode(): read(s.file) for s in listing.sources} == entries
    assert [s.nbytes for s in listing.sources] == [len(entries[s.name.encode()]) for s in listing.sources]


def test_values_that_were_replaced_and_deleted_are_gone(tmp_path: Path) -> None:
    path = save_lmdb(tmp_path / "a.lmdb", {b"%02d" % i: png(i) * 40 for i in range(40)})
    with lmdb.open(str(path), map_size=2**26) as env:
        for i in range(0, 40, 2):
            with env.begin(write=True) as transaction:
                transaction.delete(b"%02d" % i)
                transaction.put(b"%02d" % (i + 1), png(100 + i) * 30)
    found = {s.name: read(s.file) for s in list_sources(path).sources}
    assert found == {f"{i + 1:02}": png(100 + i) * 30 for i in range(0, 40, 2)}


@given(st.sets(st.integers(0, 10**20), min_size=1, max_size=12))
def test_decimal_keys_are_in_the_order_of_their_numbers(
    tmp_path_factory: pytest.TempPathFactory, numbers: set[int]
) -> None:
    path = save_lmdb(tmp_path_factory.mktemp("any") / "a.lmdb", {str(n).encode(): png(0) for n in numbers})
    assert names(path) == [str(n) for n in sorted(numbers)]


def test_other_keys_are_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    entries = {key: png(len(key)) for key in (b"b", b"10", b"9", b"\xff\x00", b"a/b.png")}
    path = save_lmdb(tmp_path / "a.lmdb", entries)
    assert names(path) == ["10", "9", "a/b.png", "b", "\\xff\x00"]


def test_two_lmdbs_make_pairs_by_key(tmp_path: Path) -> None:
    high = save_lmdb(tmp_path / "hr.lmdb", {b"%d" % i: png(i, 12) for i in (1, 2, 10)})
    low = save_lmdb(tmp_path / "lr.lmdb", {b"%dx2" % i: png(i + 100) for i in (10, 2, 1)})
    listing = list_sources(None, hr=high, lr=low, layout="lmdb")
    assert listing.layout == "pairs"
    found = [(s.name, read(s.file), read(s.lr_files[0]), s.nbytes) for s in listing.sources]
    assert found == [(str(i), png(i, 12), png(i + 100), len(png(i, 12)) + len(png(i + 100))) for i in (1, 2, 10)]
    # One half may be a folder.
    (tmp_path / "lr").mkdir()
    for i in (1, 2, 10):
        (tmp_path / "lr" / f"{i}.png").write_bytes(png(i))
    mixed = list_sources(None, hr=high, lr=tmp_path / "lr")
    assert [read(s.lr_files[0]) for s in mixed.sources] == [png(i) for i in (1, 2, 10)]
    with pytest.raises(SourceError, match=r"lr: is not an LMDB"):
        list_sources(None, hr=high, lr=tmp_path / "lr", layout="lmdb")
    with pytest.raises(SourceError, match=r"no partner in .* for 10, 1, 2|no partner"):
        list_sources(None, hr=high, lr=save_lmdb(tmp_path / "other.lmdb", {b"x": png(0)}))


def test_entries_that_describe_the_others_are_left_out_and_named(tmp_path: Path) -> None:
    entries = {
        b"__len__": b"\x80\x04K\x02.",
        b"__keys__": b"x" * 9000,
        b"num-samples": b"2",
        b"0": png(0),
        b"1": png(1),
    }
    # An image may be called so too.
    path = save_lmdb(tmp_path / "a.lmdb", {**entries, b"length": png(2)})
    listing = list_sources(path)
    assert [s.name for s in listing.sources] == ["0", "1", "length"]
    assert dict(listing.ignored) == {
        "__len__": "an entry of 5 bytes that counts or describes the others",
        "__keys__": "an entry of 9000 bytes that counts or describes the others",
        "num-samples": "an entry of 1 bytes that counts or describes the others",
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *[(pickle.dumps(np.zeros(3), protocol), "a pickle, which is never loaded") for protocol in (2, 3, 4, 5)],
        (np.zeros(100, np.uint8).tobytes(), "it starts with"),
        (b"", "it starts with b''"),
    ],
)
def test_values_that_are_no_images_are_refused_by_their_key(tmp_path: Path, value: bytes, message: str) -> None:
    path = save_lmdb(tmp_path / "a.lmdb", {b"key %d" % i: value for i in range(3)})
    with pytest.raises(SourceError, match=rf"a\.lmdb: .*That of key 'key 0': .*{message}.*lmdbloader\.write"):
        list_sources(path)


@pytest.mark.parametrize("num_pages", range(1, 9))
def test_an_lmdb_that_was_copied_in_part_is_refused(tmp_path: Path, num_pages: int) -> None:
    path = save_lmdb(tmp_path / "a.lmdb", {b"%d" % i: png(i) + b"\0" * 32_000 for i in range(4)})
    os.truncate(path / "data.mdb", (path / "data.mdb").stat().st_size - num_pages * 4096)
    with pytest.raises(SourceError, match=r"a\.lmdb/data\.mdb: its pages are damaged \(.* Copy it again"):
        lmdbloader.convert(path, tmp_path / "out", workers=0)


def test_values_that_were_replaced_by_smaller_ones_are_read_unless_the_file_was_cut(tmp_path: Path) -> None:
    """They keep all their pages, which lmdb.verify reports; reading behind a file's end would end the process."""
    path = tmp_path / "a.lmdb"
    with lmdb.open(str(path), map_size=2**26) as env, env.begin(write=True) as transaction:
        for nbytes in (50_000, 5_000):
            for i in range(20):
                transaction.put(b"%03d" % i, png(i) + bytes(nbytes))
    lmdbloader.convert(path, tmp_path / "out", workers=0)
    images = [np.asarray(sample.image) for sample in lmdbloader.LMDBDataset(tmp_path / "out")]
    assert [image.tobytes() for image in images] == [pixels(i).tobytes() for i in range(20)]
    # The last value has 13 pages and needs two: one of these is kept.
    os.truncate(path / "data.mdb", (path / "data.mdb").stat().st_size - 12 * 4096)
    with pytest.raises(SourceError, match="it was cut or copied in part"):
        lmdbloader.convert(path, tmp_path / "again", workers=0)


def test_a_dataset_of_ours_is_not_converted_again(tmp_path: Path) -> None:
    lmdbloader.write([{"image": np.zeros((4, 4, 3), np.uint8)}], tmp_path / "ours.lmdb")
    with pytest.raises(SourceError, match=r"ours\.lmdb: is a dataset of lmdbloader already\. Read it with"):
        list_sources(tmp_path / "ours.lmdb")


def test_one_bad_value_does_not_refuse_the_others(tmp_path: Path) -> None:
    path = save_lmdb(tmp_path / "a.lmdb", {b"0": pickle.dumps(1), b"1": png(1)})
    assert names(path) == ["0", "1"]
