"""Image files as samples: found or extracted, paired, cut alike; files that do not fit are named."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lmdbloader
from lmdbloader.errors import OptionError
from lmdbloader.lab.study.image_files import ImageFiles, extract_files, find_files


def ramp(height: int, width: int, offset: int = 0) -> np.ndarray:
    """Return an image whose pixels encode their place: (row, column, offset)."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows, columns, np.full_like(rows, offset)], axis=2).astype(np.uint8)


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def pairs(tmp_path: Path) -> lmdbloader.LMDBDataset:
    """Six pairs, the larger image of each twice as large."""
    samples = ({"lr": ramp(16, 16, i), "hr": np.repeat(np.repeat(ramp(16, 16, i), 2, 0), 2, 1)} for i in range(6))
    lmdbloader.write(samples, tmp_path / "pairs")
    return lmdbloader.LMDBDataset(tmp_path / "pairs")


def test_extracted_files_are_the_samples(pairs: lmdbloader.LMDBDataset, tmp_path: Path) -> None:
    files, chosen = extract_files(pairs, ["lr", "hr"], tmp_path / "files")
    assert chosen.tolist() == list(range(6))
    for number in range(6):
        for found, stored in zip(files[number], pairs[number], strict=True):
            assert found.dtype == torch.uint8 and found.is_contiguous()
            assert torch.equal(found, stored)
    facts = files.facts("auto")
    assert (facts.num_samples, facts.num_files, facts.formats) == (6, 12, ("png",))
    assert facts.nbytes == sum(path.stat().st_size for path in (tmp_path / "files").rglob("*.png"))


def test_a_part_is_extracted_where_there_is_much(
    pairs: lmdbloader.LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmdbloader.lab.study.image_files._AUTO_SAMPLES", 3)
    view = pairs.select([5, 4, 3, 1])
    files, chosen = extract_files(view, ["hr"], tmp_path / "files")
    assert len(files) == len(chosen) == len(set(chosen.tolist())) == 3
    stored = {view[number].hr.numpy().tobytes() for number in chosen.tolist()}
    assert {files[number][0].numpy().tobytes() for number in range(3)} == stored


@pytest.mark.parametrize("crop", [2, 8, 32])
def test_windows_of_a_pair_show_the_same(pairs: lmdbloader.LMDBDataset, tmp_path: Path, crop: int) -> None:
    files, _ = extract_files(pairs, ["lr", "hr"], tmp_path / "files")
    places = set()
    for _ in range(20):
        low, high = files.cropped(crop, 6)[0]
        assert low.shape == (3, crop // 2, crop // 2) and high.shape == (3, crop, crop)
        assert torch.equal(high, low.repeat_interleave(2, 1).repeat_interleave(2, 2))
        places.add((int(low[0, 0, 0]), int(low[1, 0, 0])))
    assert len(places) == 1 if crop == 32 else len(places) > 1


def test_numbers_beyond_the_end_begin_again(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / f"{number}.png", ramp(4, 4, number))
    files = find_files(tmp_path, ["image"]).cropped(None, 7)
    assert len(files) == 7
    assert [int(files[i][0][2, 0, 0]) for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_fields_are_folders_whose_files_pair_up_by_name(tmp_path: Path) -> None:
    for name, factor in (("lr", 1), ("hr", 2)):
        for number in (10, 2, 1):
            save(tmp_path / name / "deep" / f"{number:03d}.png", ramp(4 * factor, 4 * factor, number))
    files = find_files(tmp_path, ["lr", "hr"])
    assert [[int(image[2, 0, 0]) for image in files[i]] for i in range(3)] == [[1, 1], [2, 2], [10, 10]]
    (tmp_path / "hr" / "deep" / "010.png").unlink()
    with pytest.raises(OptionError, match="found 3 in lr, 2 in hr; expected as many of each"):
        find_files(tmp_path, ["lr", "hr"])


@pytest.mark.parametrize(
    ("mode", "dtype", "channels"),
    [
        ("RGB", torch.uint8, 3),
        ("L", torch.uint8, 1),
        ("P", torch.uint8, 3),
        ("RGBA", torch.uint8, 3),
        ("I;16", torch.uint16, 1),
    ],
)
def test_files_of_every_mode_are_read(tmp_path: Path, mode: str, dtype: torch.dtype, channels: int) -> None:
    image = Image.new("I;16", (5, 4), 40000) if mode == "I;16" else Image.new("RGB", (5, 4), (51, 51, 51)).convert(mode)
    image.save(tmp_path / "a.png")
    (pixels,) = find_files(tmp_path, ["image"])[0]
    assert pixels.dtype == dtype and pixels.shape == (channels, 4, 5)
    assert int(pixels[0, 0, 0]) == (40000 if mode == "I;16" else 51)


def test_a_folder_that_does_not_serve_is_refused(pairs: lmdbloader.LMDBDataset, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no such folder"):
        find_files(tmp_path / "none", ["image"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match=r"found no images; looked for \.bmp"):
        find_files(tmp_path / "empty", ["image"])
    with pytest.raises(OptionError, match=re.escape("found no folder 'lr' in it; expected one for each image field")):
        find_files(tmp_path / "empty", ["lr", "hr"])
    extract_files(pairs, ["lr"], tmp_path / "files")
    with pytest.raises(OptionError, match=r"samples\.jsonl, line 1: no file of field 'hr'"):
        find_files(tmp_path / "files", ["lr", "hr"])


@pytest.mark.parametrize(("sizes", "crop"), [([(8, 8)], 16), ([(8, 8), (16, 16)], 3)])
def test_a_window_that_does_not_suit_is_refused(tmp_path: Path, sizes: list[tuple[int, int]], crop: int) -> None:
    names = []
    for number, size in enumerate(sizes):
        save(tmp_path / f"{number}.png", ramp(*size))
        names.append(str(tmp_path / f"{number}.png"))
    with pytest.raises(OptionError, match=f"a window of {crop} does not suit them"):
        ImageFiles([tuple(names)], crop=crop)[0]


def test_files_get_the_channels_of_the_dataset(pairs: lmdbloader.LMDBDataset, tmp_path: Path) -> None:
    save(tmp_path / "files" / "a.png", ramp(8, 8))
    save(tmp_path / "files" / "b.png", ramp(8, 8)[:, :, 0])
    files = find_files(tmp_path / "files", ["hr"])
    lmdbloader.write([{"hr": ramp(8, 8)[:, :, 0]}], tmp_path / "grey")
    for dataset, channels in (
        (lmdbloader.LMDBDataset(pairs.path, fields=["hr"]), 3),
        (lmdbloader.LMDBDataset(tmp_path / "grey"), 1),
    ):
        found = files.like(dataset).cropped(4, 2)
        assert [found[i][0].shape for i in range(2)] == [(channels, 4, 4)] * 2


def test_files_that_make_no_batch_are_named_before_anything_is_measured(
    pairs: lmdbloader.LMDBDataset, tmp_path: Path
) -> None:
    save(tmp_path / "a.png", ramp(32, 32))
    save(tmp_path / "b.png", ramp(32, 16))
    files = find_files(tmp_path, ["hr"])
    files.check([8, 16])
    with pytest.raises(OptionError, match=r"b\.png: is 16 x 32 pixels, .*a\.png is 32 x 32; whole images"):
        files.check([None])
    lines: list[str] = []
    with pytest.raises(OptionError, match=r"b\.png: a window of 24 does not suit .*16 x 32 pixels"):
        lmdbloader.lab.bench(
            lmdbloader.LMDBDataset(pairs.path, fields=["hr"]),
            baseline=tmp_path, batch_sizes=[2], crops=[24], progress=lines.append,
        )  # fmt: skip
    assert lines == ["baseline: reading the files"]
    (tmp_path / "c.png").write_bytes(b"no image")
    with pytest.raises(OptionError, match=r"c\.png: Pillow cannot open it"):
        find_files(tmp_path, ["hr"]).check([8])
    Image.new("I;16", (32, 32)).save(tmp_path / "c.png")
    with pytest.raises(OptionError, match=r"c\.png: has 16 bits for each value, others of the baseline have 8"):
        find_files(tmp_path, ["hr"]).check([8])
