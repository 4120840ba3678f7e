"""Reading: written samples come back, whole or in part; damage is one of lmdbloader's errors, never a crash."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip
from hypothesis import given, settings
from hypothesis import strategies as st
from tile_tables import read_table, table_nbytes

import lmdbloader
from lmdbloader.errors import CorruptError, FormatError, LmdbloaderError, OptionError
from lmdbloader.format.layout import CODEC_TILES, MANIFEST_FILE
from lmdbloader.format.manifest import signed
from lmdbloader.store import Reader, check_rows, read_manifest

HEIGHT, WIDTH, TILE = 330, 300, 64


def picture(height: int, width: int, channels: int = 3, dtype: Any = np.uint8) -> np.ndarray:
    rng = np.random.default_rng(height * width)
    image = rng.integers(0, np.iinfo(dtype).max + 1, (height, width, channels)).astype(dtype)
    image[: height // 2] //= 200  # the upper half compresses, the lower does not
    return image


IMAGES = [picture(HEIGHT, WIDTH), picture(40, 50), picture(270, 500, 1, np.uint16), picture(30, 20, 1, np.uint16)]


def samples() -> Iterator[dict[str, Any]]:
    for i, image in enumerate(IMAGES):
        yield {"raw": image, "lz4": image, "mask": np.full((2, i), i, np.int16), "label": i}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reader") / "d"
    lmdbloader.write(samples(), path, codec={"raw": "raw", "lz4": "lz4", "mask": "raw"})
    return path


@pytest.fixture
def path(written: Path, tmp_path: Path) -> Path:
    """Return a copy of the dataset to damage."""
    return Path(shutil.copytree(written, tmp_path / "d"))


def write_manifest(path: Path, **changes: Any) -> None:
    (path / MANIFEST_FILE).write_bytes(dataclasses.replace(read_manifest(path), **changes).to_json())


@pytest.mark.parametrize("name", ["raw", "lz4"])
def test_images_and_arrays_come_back(written: Path, name: str) -> None:
    reader = Reader(written)
    assert len(reader) == 4
    for row, image in enumerate(IMAGES):
        back = reader.read_image(name, row)
        assert back.dtype == image.dtype
        np.testing.assert_array_equal(back, image.transpose(2, 0, 1))
        assert (reader.index.arrays[f"{name}.codec"][row] == CODEC_TILES) == (image.nbytes > 2**18)
        mask = reader.read_array("mask", row)
        assert (mask.dtype, mask.shape) == (np.int16, (2, row))
        assert (mask == row).all()


@settings(max_examples=100)
@given(st.sampled_from(["raw", "lz4"]), st.integers(0, 3), st.data())
def test_a_crop_is_the_slice(written: Path, name: str, row: int, data: st.DataObject) -> None:
    height, width, _ = IMAGES[row].shape
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    size = data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    crop = Reader(written).read_crop(name, row, top=top, left=left, height=size[0], width=size[1])
    expected = IMAGES[row][top : top + size[0], left : left + size[1]].transpose(2, 0, 1)
    assert crop.dtype == expected.dtype
    np.testing.assert_array_equal(crop, expected)


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize(
    "window",
    [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 0, 5), (0, 0, 5, -1), (0, 0, 331, 5), (39, 0, 300, 5), (0, 299, 5, 2)],
)
def test_a_crop_outside_of_the_image_is_refused(written: Path, row: int, window: tuple[int, ...]) -> None:
    top, left, height, width = window
    with pytest.raises(OptionError, match=r"field 'raw' of sample \d: a crop of .* is not inside the image of"):
        Reader(written).read_crop("raw", row, top=top, left=left, height=height, width=width)


def tile_places(reader: Reader, name: str) -> tuple[int, np.ndarray, np.ndarray]:
    """Return the offset of the first image's tile table, and the offsets of its tiles' starts and ends in data.mdb."""
    at = int(reader.index.arrays[f"{name}.offset"][0])
    count = -(-HEIGHT // TILE) * -(-WIDTH // TILE)
    body = at + table_nbytes(count)
    table, _ = read_table(reader.data_file.data[at:body].tobytes(), count)
    ends = np.array(table.ends)
    return at, body + np.append(0, ends[:-1]), body + ends


@pytest.mark.parametrize("name", ["raw", "lz4"])
def test_a_crop_reads_and_verifies_only_the_tiles_that_it_touches(path: Path, name: str) -> None:
    across = -(-WIDTH // TILE)
    _, starts, ends = tile_places(Reader(path), name)
    row, column = 2, 3
    inside = {"top": row * TILE, "left": column * TILE, "height": TILE, "width": TILE}
    touched = row * across + column
    expected = IMAGES[0][row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE].transpose(2, 0, 1)
    for number in range(len(starts)):
        if number != touched:
            flip(path, int(starts[number]))
            flip(path, int(ends[number]) - 1)
    np.testing.assert_array_equal(Reader(path).read_crop(name, 0, **inside), expected)
    # One pixel further to any side, and a damaged tile is part of the window.
    for change in ({"top": row * TILE - 1}, {"left": column * TILE - 1}, {"height": TILE + 1}, {"width": TILE + 1}):
        with pytest.raises(CorruptError, match=rf"field '{name}' of sample 0: its checksum does not match"):
            Reader(path).read_crop(name, 0, **{**inside, **change})
    flip(path, (int(starts[touched]) + int(ends[touched])) // 2)
    with pytest.raises(CorruptError, match=rf"field '{name}' of sample 0: its checksum .*repair"):
        Reader(path).read_crop(name, 0, **inside)


@pytest.mark.parametrize("name", ["raw", "lz4"])
def test_every_byte_of_the_tile_table_is_covered(path: Path, name: str) -> None:
    at, starts, _ = tile_places(Reader(path), name)
    for place in range(at, int(starts[0]), 17):
        flip(path, place)
        with pytest.raises(CorruptError, match="of sample 0"):
            Reader(path).read_crop(name, 0, top=0, left=0, height=1, width=1)
        flip(path, place)
    assert Reader(path).read_crop(name, 0, top=0, left=0, height=1, width=1).shape == (3, 1, 1)


@pytest.mark.parametrize("file", ["data.mdb", "index.arrow", "manifest.json"])
def test_a_file_cut_short_anywhere_or_extended_is_refused(path: Path, file: str) -> None:
    sound = (path / file).read_bytes()
    # The last byte of the manifest ends its line.
    for length in [0, *np.unique(np.geomspace(1, len(sound) - 2, 40).astype(int)).tolist()]:
        (path / file).write_bytes(sound[:length])
        with pytest.raises(LmdbloaderError, match=file):
            Reader(path)
    for extra in (b"x", bytes(4096)):
        (path / file).write_bytes(sound + extra)
        with pytest.raises(LmdbloaderError, match=file):
            Reader(path)


@pytest.mark.parametrize("version", [2, 0])
def test_the_error_for_another_format_version_names_the_remedy(path: Path, version: int) -> None:
    body = json.loads((path / MANIFEST_FILE).read_bytes())
    body["format_version"] = version
    del body["manifest_digest"]
    (path / MANIFEST_FILE).write_bytes(signed(body, "manifest_digest"))
    with pytest.raises(FormatError, match=rf"format version {version}, expected 1\. Convert again"):
        Reader(path)


def test_a_manifest_that_does_not_fit_the_files_is_refused(path: Path) -> None:
    manifest = read_manifest(path)
    longer = dataclasses.replace(manifest.index, nbytes=10**9)
    for changes, expected in (
        ({"num_samples": 10**5}, "parts"),
        ({"parts": (dataclasses.replace(manifest.parts[0], data_nbytes=10**9),)}, "bytes"),
        ({"index": longer}, "bytes, expected 1"),
        ({"fields": manifest.fields[:-1]}, "columns"),
        ({"with_source": True}, "columns"),
    ):
        write_manifest(path, **changes)
        with pytest.raises(LmdbloaderError, match=expected):
            Reader(path)
        (path / MANIFEST_FILE).write_bytes(manifest.to_json())
    assert len(Reader(path)) == 4


def test_damage_is_named_with_dataset_field_sample_and_source(photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "d"
    lmdbloader.convert(photos, path, patch_size=96, codec="raw", workers=1)
    source = Reader(path).source(12)
    flip(path, int(Reader(path).index.arrays["image.offset"][12]))
    expected = rf"^{path}: field 'image' of sample 12 \(from {source}\): its checksum"
    with pytest.raises(CorruptError, match=expected) as caught:
        Reader(path).read_image("image", 12)
    named = caught.value.sample, caught.value.field, caught.value.source, caught.value.path
    assert named == (12, "image", source, str(path))


def test_a_reader_pickles_as_its_path_and_notices_a_replaced_dataset(path: Path) -> None:
    pickled = pickle.dumps(Reader(path))
    assert len(pickled) < 2000
    back = pickle.loads(pickled)
    np.testing.assert_array_equal(back.read_image("lz4", 1), IMAGES[1].transpose(2, 0, 1))
    lmdbloader.write([{"n": 1}], path, overwrite=True)
    with pytest.raises(CorruptError, match="was replaced by another dataset"):
        pickle.loads(pickled)
    np.testing.assert_array_equal(back.read_image("lz4", 1), IMAGES[1].transpose(2, 0, 1))


@given(st.lists(st.integers(-12, 12), max_size=6))
def test_sample_numbers_count_from_the_end_when_negative(rows: list[int]) -> None:
    if all(-9 <= row < 9 for row in rows):
        assert check_rows(rows, 9).tolist() == [range(9)[row] for row in rows]
        return
    with pytest.raises(IndexError, match="of a dataset of 9 samples"):
        check_rows(rows, 9)
