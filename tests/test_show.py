"""Summaries agree with the stored data, and contact sheets show the stored pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import lmdbloader
from lmdbloader.errors import DestinationError
from lmdbloader.show import contact_sheet, info, spread
from lmdbloader.store import Reader


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with every kind of field; the last image is large enough for tiles, the first does not compress."""
    noise = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("mixed") / "mixed"
    samples = [
        {
            "image": noise.integers(0, 256, (20, 30, 3), np.uint8) if i == 0 else np.zeros((20 + i, 30, 1), np.uint16),
            "label": 10 - i,
            "score": float("nan") if i == 2 else i / 4,
            "text": "ä" * i,
            "array": np.zeros((i, 2), np.float32),
            "note": {"i": i},
            "blob": b"x" * i,
        }
        for i in range(4)
    ]
    samples[3]["image"] = np.zeros((400, 500, 3), np.uint8)
    lmdbloader.write(samples, path, codec="lz4")
    return path


def test_a_summary_states_every_kind_of_field_as_it_is_stored(mixed: Path) -> None:
    summary = info(mixed)
    fields = {f.name: f for f in summary.fields}
    assert list(fields) == ["image", "label", "score", "text", "array", "note", "blob"]
    image = fields["image"]
    assert (image.height, image.width) == ((20, 400), (30, 500))
    assert (image.channels, image.bits) == ({1: 2, 3: 2}, {8: 2, 16: 2})
    assert image.codecs == {"raw": 1, "lz4": 2, "tiles": 1}
    assert image.raw_nbytes == 20 * 30 * 3 + 2 * 30 * (21 + 22) + 400 * 500 * 3
    assert fields["label"].values == (7, 10)
    assert (fields["score"].values, fields["score"].num_not_finite) == ((0.0, 0.75), 1)
    assert fields["text"].length == (0, 3)
    assert fields["array"].types == {f"float32[{i},2]": 1 for i in range(4)}
    assert fields["blob"].length == (0, 3)
    assert (summary.num_samples, summary.num_sources, summary.samples_per_source) == (4, None, None)


def test_the_sizes_of_a_summary_are_those_of_the_files(mixed: Path) -> None:
    summary = info(mixed)
    assert summary.sizes["data_nbytes"] == (mixed / "data.mdb").stat().st_size
    assert summary.sizes["index_nbytes"] == (mixed / "index.arrow").stat().st_size
    assert summary.sizes["payload_nbytes"] == sum(f.stored_nbytes or 0 for f in summary.fields)
    assert summary.compression_ratio == round(summary.sizes["raw_nbytes"] / summary.sizes["payload_nbytes"], 4)
    assert summary.waste_ratio == round(summary.sizes["data_nbytes"] / summary.sizes["payload_nbytes"], 4)


def test_a_summary_counts_sources_classes_and_skipped_files(photos: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("b/1.png", "a/2.png", "b/3.png", "b/4.png")):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        data = sorted(photos.iterdir())[number].read_bytes()
        (tmp_path / "src" / name).write_bytes(data if name != "b/4.png" else data[:1000])
    lmdbloader.convert(
        tmp_path / "src", tmp_path / "db", layout="classes", patch_size=96, stride=96, on_error="skip", workers=1
    )
    summary = info(tmp_path / "db")
    assert summary.classes == {"label": (("a", 6), ("b", 12))}
    assert (summary.num_samples, summary.num_sources, summary.samples_per_source) == (18, 3, (6, 6))
    assert summary.num_skipped == 1
    assert summary.made_by["options"]["patch_size"] == 96


@given(st.integers(1, 5000), st.integers(1, 1000), st.none() | st.integers(0, 9))
def test_spread_numbers_are_distinct_ascending_and_inside(length: int, count: int, seed: int | None) -> None:
    found = spread(length, count, seed)
    assert len(found) == min(length, count)
    assert found == sorted(set(found))
    assert found[0] >= 0 and found[-1] < length
    assert found == spread(length, count, seed)
    if seed is None:
        steps = np.diff(found)
        assert not len(steps) or steps.max() - steps.min() <= 1
        assert abs(found[0] - (length - 1 - found[-1])) <= 1


def pixels_of(sheet: Image.Image) -> np.ndarray:
    return np.asarray(sheet)


def holds(sheet: np.ndarray, part: np.ndarray) -> bool:
    """Return whether a picture (h, w, 3) occurs in the sheet pixel by pixel."""
    height, width = part.shape[:2]
    tops, lefts = np.nonzero((sheet[: -height + 1, : -width + 1] == part[0, 0]).all(axis=2))
    return any((sheet[t : t + height, x : x + width] == part).all() for t, x in zip(tops, lefts, strict=True))


def test_pairs_are_side_by_side_at_one_size_with_their_pixels_repeated(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    low, high = noise.integers(0, 256, (5, 7, 3), np.uint8), noise.integers(0, 256, (10, 14, 3), np.uint8)
    lmdbloader.write([{"lr": low, "hr": high}], tmp_path / "db")
    sheet = pixels_of(contact_sheet(Reader(tmp_path / "db"), [0]).image)
    factor = 240 // 14
    gap = np.full((10 * factor, 4, 3), 255, np.uint8)
    large = [np.kron(image, np.ones((f, f, 1), np.uint8)) for image, f in ((low, 2 * factor), (high, factor))]
    assert holds(sheet, np.hstack([large[0], gap, large[1]]))


def test_16_bit_images_are_shown_up_to_the_brightest_pixel_of_the_sheet_and_the_sheet_says_so(tmp_path: Path) -> None:
    dark, bright = np.full((120, 120, 1), 1000, np.uint16), np.full((120, 120, 1), 4000, np.uint16)
    lmdbloader.write([{"image": dark}, {"image": bright}], tmp_path / "db")
    sheet = contact_sheet(Reader(tmp_path / "db"), [0, 1], columns=1)
    assert "16-bit" in sheet.note and "4,000" in sheet.note
    assert holds(pixels_of(sheet.image), np.full((240, 240, 3), 64, np.uint8))
    assert holds(pixels_of(sheet.image), np.full((240, 240, 3), 255, np.uint8))
    lmdbloader.write([{"image": np.zeros((9, 9), np.uint8)}], tmp_path / "plain")
    assert contact_sheet(Reader(tmp_path / "plain"), [0]).note == ""


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 600), st.integers(1, 600)), min_size=1, max_size=4))
def test_images_of_any_shape_make_a_sheet(tmp_path_factory: pytest.TempPathFactory, shapes: list) -> None:
    path = tmp_path_factory.mktemp("shapes") / "db"
    images = [{"a": np.zeros(shape, np.uint8), "b": np.zeros(shape[::-1], np.uint16)} for shape in shapes]
    lmdbloader.write(images, path)
    sheet = contact_sheet(Reader(path), range(len(shapes)))
    assert sheet.image.mode == "RGB" and sheet.image.width <= 4200


def test_a_sheet_replaces_a_file_but_not_a_folder_and_leaves_no_partial_file(mixed: Path, tmp_path: Path) -> None:
    (tmp_path / "old.png").write_bytes(b"old")
    sheet = lmdbloader.preview(mixed, tmp_path / "old.png", count=1)
    with Image.open(tmp_path / "old.png") as image:
        assert (np.asarray(image) == np.asarray(sheet.image)).all()
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(DestinationError, match="is a folder"):
        lmdbloader.preview(mixed, tmp_path / "folder.png")
    with pytest.raises(DestinationError, match="does not exist"):
        lmdbloader.preview(mixed, tmp_path / "absent" / "sheet.png")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.png", "old.png"]
