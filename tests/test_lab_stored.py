"""What is said about storing a dataset in another way is true of its payloads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import skimage.data
import torch
from PIL import Image

import lmdbloader
from lmdbloader import transforms as T
from lmdbloader.lab import tune
from lmdbloader.lab.profiling.loader_facts import facts_of
from lmdbloader.lab.stored import recode_line
from lmdbloader.transforms import RandomResizedCrop
from tests.faults.late_cuda import late_cuda


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG files of a photograph, stored as they are."""
    place = tmp_path_factory.mktemp("stored")
    (place / "photos").mkdir()
    for number in range(8):
        piece = np.roll(skimage.data.astronaut(), 40 * number, axis=1)
        Image.fromarray(piece).save(place / "photos" / f"{number}.jpg", quality=92)
    lmdbloader.convert(place / "photos", place / "files.lmdb", jpeg_code="file", workers=1)
    return place / "files.lmdb"


def are_slow(path: Path, rows: slice = slice(None)) -> bool:
    loader = lmdbloader.Loader(lmdbloader.LMDBDataset(path)[rows], 4, shuffle=True, transforms=[RandomResizedCrop(64)])
    images = facts_of(loader).images
    assert images is not None and images.fits_raw
    return images.are_slow_jpegs


def test_jpeg_files_are_slow_until_they_are_recoded(files: Path, tmp_path: Path) -> None:
    assert are_slow(files) and are_slow(files, slice(6, 8))
    lmdbloader.recode(files, tmp_path / "fast", jpeg_code="fast")
    assert not are_slow(tmp_path / "fast")


def test_jpeg_files_that_recoding_would_make_longer_are_not_slow(tmp_path: Path) -> None:
    (tmp_path / "noise").mkdir()
    for number, noise in enumerate(np.random.default_rng(0).integers(0, 256, (8, 32, 32), np.uint8)):
        Image.fromarray(noise).save(tmp_path / "noise" / f"{number}.jpg")
    lmdbloader.convert(tmp_path / "noise", tmp_path / "noise.lmdb", jpeg_code="file", workers=1)
    lmdbloader.recode(tmp_path / "noise.lmdb", tmp_path / "again", jpeg_code="fast")
    assert not are_slow(tmp_path / "noise.lmdb")
    stored = [
        lmdbloader.LMDBDataset(tmp_path / name).reader.stored_bytes("image", 0) for name in ("noise.lmdb", "again")
    ]
    assert stored[0] == stored[1]


def test_facts_say_what_a_loader_keeps_and_could_leave_to_the_device(files: Path) -> None:
    dataset, jitter = lmdbloader.LMDBDataset(files), [T.CenterCrop(16), T.ColorJitter(0.2)]
    assert not facts_of(lmdbloader.Loader(dataset, 4, shuffle=True, transforms=jitter)).moves_there  # no GPU
    with late_cuda():
        crop = [T.CenterCrop(16)]
        for transforms, device, moves in ((jitter, None, True), (jitter, "cuda", True), (crop, "cuda", False)):
            loader = lmdbloader.Loader(dataset, 4, shuffle=True, transforms=transforms, device=device)
            before = torch.get_rng_state()
            assert (facts_of(loader).moves_there, facts_of(loader).keep) == (moves, None)
            assert torch.equal(torch.get_rng_state(), before)  # a Loader that is tried draws no seed
    there = facts_of(lmdbloader.Loader(dataset, 4, shuffle=True, device="cpu", on="device", keep="memory"))
    assert (there.moves_there, there.keep) == (False, "memory")
    assert there.images is not None and there.images.fits_decoded and not there.images.fits_device


def test_tune_says_which_code_is_faster(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    line = recode_line(str(files), "--jpeg-code fast")
    assert line in str(tune(files, 4, crop=64, seconds=0.2))
    lmdbloader.recode(files, tmp_path / "fast", jpeg_code="fast")
    assert "recode" not in str(tune(tmp_path / "fast", 4, crop=64, seconds=0.2))


def test_a_line_can_be_pasted() -> None:
    assert recode_line("/my data/a.lmdb", "--codec raw") == "`lmdbloader recode '/my data/a.lmdb' OUT --codec raw`"
