"""A damaged payload is found and named before it is decoded, however it is stored and read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import flip
from payloads import EACH, TILE, one_of_each, write_payloads
from tile_tables import covered_nbytes, table_nbytes

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader import transforms as T
from lmdbloader.errors import CorruptError
from lmdbloader.format.layout import CODEC_NAMES, TILED
from lmdbloader.images import decode as decoding

COUNT = 3
DAMAGED = 1
IMAGES = [name for name, kind in EACH.items() if kind == "image"]
IO = pytest.mark.parametrize("io", ["mmap", "pread"])

READS: dict[str, Callable[[LMDBDataset, str], Any]] = {
    "ds[i]": lambda ds, name: ds[DAMAGED],
    "ds[i] of a view": lambda ds, name: ds.select([2, DAMAGED])[1],
    "__getitems__": lambda ds, name: ds._many([2, 1, 0]),
    "a list of them": lambda ds, name: list(ds[[2, 1, 0]]),
    "Loader": lambda ds, name: list(Loader(ds, 2, order="sequential", num_threads=1)),
    "DataLoader": lambda ds, name: list(torch.utils.data.DataLoader(ds, 2)),
}
OF_IMAGES: dict[str, Callable[[LMDBDataset, str], Any]] = {
    "crop": lambda ds, name: (
        ds.crop(DAMAGED, top=0, left=0, height=TILE, width=TILE // 2)
        if min(ds.reader.image_shape(name, DAMAGED)[1:]) >= TILE
        else ds.crop(DAMAGED, top=0, left=0, height=9, width=9)
    ),
    "transformed": lambda ds, name: ds.transformed([T.CenterCrop(32)])[DAMAGED],
    "Loader that crops": lambda ds, name: list(
        Loader(ds, 2, order="random", transforms=[T.RandomCrop(32)], num_threads=1)
    ),
    "Loader that resizes": lambda ds, name: list(
        Loader(ds, 2, order="random", transforms=[T.Resize((20, 24))], num_threads=1)
    ),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_payloads(tmp_path_factory.mktemp("damage") / "d", EACH, [one_of_each(i) for i in range(COUNT)])


def test_every_codec_is_there(written: Path) -> None:
    ds = LMDBDataset(written)
    arrays = ds.reader.index.arrays
    found = {name: CODEC_NAMES[arrays[f"{name}.codec"][DAMAGED]] for name in EACH}
    assert found == {
        "raw": "raw", "lz4": "lz4", "tiles": "tiles", "delta": "delta", "delta_tiles": "delta tiles",
        "jpeg": "jpeg", "recoded": "jpeg", "made": "jpeg", "png": "file",
        "array": "raw", "packed": "lz4", "bytes": "raw", "json": "raw",
    }  # fmt: skip
    assert lmdbloader.verify(written).damaged == ()


@IO
@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("read", READS)
def test_a_flipped_bit_is_found_and_named_however_it_is_read(written: Path, io: Any, name: str, read: str) -> None:
    check(written, io, name, READS[read], whole=True)


@IO
@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("read", OF_IMAGES)
def test_a_flipped_bit_is_found_and_named_however_an_image_is_read(
    written: Path, io: Any, name: str, read: str
) -> None:
    check(written, io, name, OF_IMAGES[read], whole=False)


def check(path: Path, io: Any, name: str, read: Callable[[LMDBDataset, str], Any], *, whole: bool) -> None:
    read(LMDBDataset(path, [name], io=io), name)
    arrays = LMDBDataset(path).reader.index.arrays
    nbytes = int(arrays[f"{name}.stored_nbytes"][DAMAGED])
    tiles = -(-330 // TILE) * -(-300 // TILE)
    if arrays[f"{name}.codec"][DAMAGED] in TILED:
        sums, table = covered_nbytes(tiles), table_nbytes(tiles)
        # The sums of the groups, an entry, and the first tile.
        places = [0, sums + 1, *([table - 1, table + 5] if whole else [])]
    else:  # also bytes that no window needs: the checksum is of all
        places = [0, nbytes // 2, nbytes - 1]
    for place in places:
        ds = LMDBDataset(path, [name], io=io)
        with flipped(path, name, place), pytest.raises(CorruptError, match="its checksum does not match") as caught:
            read(ds, name)
        error = caught.value
        assert (error.sample, error.field, error.source, error.path) == (DAMAGED, name, f"{DAMAGED}.png", str(path))
        assert str(error).startswith(f"{path}: field {name!r} of sample {DAMAGED} (from {DAMAGED}.png): ")


@contextmanager
def flipped(path: Path, name: str, place: int) -> Iterator[None]:
    """Flip a bit of the damaged sample's payload."""
    at = int(LMDBDataset(path).reader.index.arrays[f"{name}.offset"][DAMAGED]) + place
    flip(path, at)
    try:
        yield
    finally:
        flip(path, at)


@IO
@pytest.mark.parametrize(("name", "parser"), [("png", (decoding, "decode_image")), ("json", (json, "loads"))])
def test_a_damaged_payload_reaches_no_parser(
    written: Path, io: Any, name: str, parser: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = LMDBDataset(written, [name], io=io)

    def parse(*_: Any, **__: Any) -> Any:
        raise AssertionError("parsed")

    with flipped(written, name, 3), monkeypatch.context() as patch:
        patch.setattr(*parser, parse)
        with pytest.raises(CorruptError, match="its checksum does not match"):
            ds[DAMAGED]
    monkeypatch.setattr(*parser, parse)
    with pytest.raises(AssertionError, match="parsed"):
        ds[DAMAGED]


def test_a_tile_that_a_window_does_not_touch_may_be_damaged(written: Path) -> None:
    ds = LMDBDataset(written, ["tiles"])
    last = int(ds.reader.index.arrays["tiles.stored_nbytes"][DAMAGED]) - 1
    with flipped(written, "tiles", last):
        assert ds.crop(DAMAGED, top=0, left=0, height=TILE, width=TILE).shape == (3, TILE, TILE)
        with pytest.raises(CorruptError, match="its checksum does not match"):
            ds[DAMAGED]


def test_unverified_bytes_are_read_only_where_that_was_asked_for(written: Path) -> None:
    ds = LMDBDataset(written, ["raw"])
    whole = ds[DAMAGED].raw
    with flipped(written, "raw", 5):
        batch = next(iter(Loader(ds, COUNT, order="sequential", verify=False)))
    assert (batch.raw[DAMAGED] != whole).sum() == 1
