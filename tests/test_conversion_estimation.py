"""Estimates: intervals that hold the result of the conversion, from samples that depend only on a seed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from skimage import data as photographs

import lmdbloader
from lmdbloader.cli import main
from lmdbloader.errors import SourceError

Capture = pytest.CaptureFixture[str]
NAMES = ("astronaut", "cat", "coffee", "rocket", "retina", "immunohistochemistry")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 JPEG files of very different sizes, cut from real photographs, in class folders."""
    folder = tmp_path_factory.mktemp("pieces")
    rng = np.random.default_rng(1)
    sources = [Image.fromarray(getattr(photographs, name)()).convert("RGB") for name in NAMES]
    for number in range(120):
        source = sources[number % len(sources)]
        side = int(rng.integers(24, 200))
        left, top = (int(rng.integers(0, edge - side)) for edge in source.size)
        path = folder / NAMES[number % len(sources)] / f"{number:03d}.jpg"
        path.parent.mkdir(exist_ok=True)
        source.crop((left, top, left + side, top + side)).save(path, quality=int(rng.integers(70, 96)))
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"write_mode": "jpg", "jpeg_quality": 50, "max_resolution": 96},
        {"write_mode": "smart", "smart_threshold": 40_000},
        {"patch_size": 24, "codec": "raw", "layout": "images"},
    ],
    ids=str,
)
def test_the_interval_holds_the_result_of_the_conversion(pieces: Path, tmp_path: Path, options: Any) -> None:
    made = lmdbloader.convert(pieces, tmp_path / "made", workers=1, **options)
    size = sum((tmp_path / "made" / name).stat().st_size for name in ("data.mdb", "index.arrow", "manifest.json"))
    held = []
    for seed in range(3):
        found = lmdbloader.estimate(pieces, sample=40, sample_seed=seed, workers=1, **options)
        held.append(found.dataset_nbytes.low <= size <= found.dataset_nbytes.high)
        assert abs(found.dataset_nbytes.value / size - 1) < 0.3
        assert found.dataset_nbytes.high - found.dataset_nbytes.low < 0.95 * size, "it is narrow enough to be of use"
        assert found.num_samples.low <= made.num_samples <= found.num_samples.high
        assert (found.num_sources, found.num_tried, found.layout) == (120, 40, made.layout)
        assert dict(found.codecs) == dict(made.codecs)
    assert sum(held) >= len(held) - 1


def test_all_inputs_give_the_size_itself(pieces: Path, tmp_path: Path) -> None:
    made = lmdbloader.convert(pieces, tmp_path / "made", workers=1)
    found = lmdbloader.estimate(pieces, sample=500, workers=1)
    assert found.num_tried == found.num_samples.low == found.num_samples.high == 120
    assert found.payload_nbytes.value == pytest.approx(made.sizes["payload_nbytes"])
    assert found.payload_nbytes.low == found.payload_nbytes.high
    assert found.data_nbytes.low <= made.sizes["data_nbytes"] <= found.data_nbytes.high
    assert found.index_nbytes.value == pytest.approx(made.sizes["index_nbytes"], rel=0.05)
    assert found.stored_as == made.stored_as
    assert found.seconds.value > 0


def test_a_seed_draws_the_same_sample_and_another_one_does_not(pieces: Path) -> None:
    sizes = [lmdbloader.estimate(pieces, sample=20, sample_seed=s, workers=1).payload_nbytes for s in (5, 5, 6)]
    assert sizes[0] == sizes[1] != sizes[2]


def test_nothing_is_left_and_workers_do_the_same(pieces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    alone, together = (lmdbloader.estimate(pieces, sample=12, workers=n) for n in (1, 2))
    assert list(tmp_path.iterdir()) == []
    assert together.payload_nbytes == alone.payload_nbytes
    assert together.num_workers == 2 and together.seconds.low <= together.seconds.value <= together.seconds.high


def test_inputs_that_cannot_be_used_are_counted(pieces: Path, tmp_path: Path) -> None:
    shutil.copytree(pieces / "cat", tmp_path / "src")
    for number in range(0, 20, 2):
        (tmp_path / "src" / f"bad{number}.jpg").write_bytes(b"\xff\xd8 no image" * 50)
    found = lmdbloader.estimate(tmp_path / "src", sample=30, workers=1)
    assert len(found.unusable) == 10 and found.num_samples.value == 20
    for path in (tmp_path / "src").glob("[0-9]*.jpg"):
        path.unlink()
    with pytest.raises(SourceError, match="none of the 10 inputs tried can be used; the first: bad0"):
        lmdbloader.estimate(tmp_path / "src", workers=1)


def test_the_command_says_it_in_words_and_in_json(pieces: Path, capsys: Capture) -> None:
    words = ["estimate", str(pieces), "--sample", "24", "--workers", "1"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{pieces}: 120 images (")
    for part in ("layout classes; 24 tried", "  samples  120\n", " x the files (24 jpeg)", "with 1 worker, "):
        assert part in text
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {f.name for f in dataclasses.fields(lmdbloader.conversion.Estimate)}
    assert found["dataset_nbytes"]["low"] < found["dataset_nbytes"]["value"] < found["dataset_nbytes"]["high"]


def test_what_delta_would_save_is_said_where_pixels_are_stored(
    photos: Path, pieces: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert lmdbloader.estimate(pieces, sample=8, workers=1).delta_saves is None  # JPEG files
    assert lmdbloader.estimate(photos, prefer="size", workers=1).delta_saves is None
    found = lmdbloader.estimate(photos, workers=1)
    made = lmdbloader.convert(photos, tmp_path / "small", prefer="size", workers=1)
    assert found.delta_saves == pytest.approx(1 - made.sizes["payload_nbytes"] / made.sizes["raw_nbytes"], abs=0.1)
    assert main(["estimate", str(photos), "--workers", "1"]) == 0
    assert "--prefer size: pixels in about" in capsys.readouterr().out


def test_the_command_estimates_every_split(pieces: Path, tmp_path: Path, capsys: Capture) -> None:
    for name in ("train", "val"):
        shutil.copytree(pieces / "cat", tmp_path / name / "cat")
        shutil.copytree(pieces / "coffee", tmp_path / name / "dog")
    assert main(["estimate", str(tmp_path), "--split", "--json", "--workers", "1", "--sample", "8"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: one["num_sources"] for name, one in found.items()} == {"train": 40, "val": 40}
