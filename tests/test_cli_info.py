"""`lmdbloader info`: a screen that fits a terminal, and the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import lmdbloader
from lmdbloader.base.units import show_nbytes
from lmdbloader.cli import main


@pytest.fixture(scope="module")
def pairs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("info") / "pairs.lmdb"
    lmdbloader.convert(photos, path, patch_size=96, stride=96, scale=2, workers=1)
    return path


def test_the_screen_shows_the_content_and_how_it_was_made(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(pairs)]) == 0
    screen = capsys.readouterr().out
    words = " ".join(screen.split())
    assert "48 samples from 8 sources, 6 of each" in words
    assert "lr image 48 x 48, RGB, 8-bit" in words
    assert "hr image 96 x 96, RGB, 8-bit" in words
    assert "patch_size 96, stride 96, scale 2, bicubic matlab" in words
    assert f"lmdbloader {lmdbloader.__version__}" in words
    data_nbytes, manifest = (pairs / "data.mdb").stat().st_size, json.loads((pairs / "manifest.json").read_bytes())
    assert f"data.mdb {show_nbytes(data_nbytes)}" in words
    payload_nbytes = sum(facts["totals"]["stored_nbytes"] for facts in manifest["index"]["facts"].values())
    assert f"{data_nbytes / payload_nbytes:.3f} x what is stored" in words
    for digest in ("content_digest", "index_digest", "manifest_digest"):
        assert manifest[digest] in words
    fixed = [line for line in screen.splitlines() if str(pairs.parent) not in line and "sha256:" not in line]
    assert max(map(len, fixed)) <= 80


def test_shares_of_codecs_ranges_and_classes_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    noise = np.random.default_rng(0)
    for number in range(30):
        folder = tmp_path / "src" / f"class {number % 12:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        shape = (10 + number, 20, 3) if number % 3 else (10 + number, 20)
        pixels = noise.integers(0, 256, shape, np.uint8) if number % 2 else np.zeros(shape, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    lmdbloader.convert(tmp_path / "src", tmp_path / "db", codec="lz4", workers=1)
    assert main(["info", str(tmp_path / "db")]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "image image 20 wide, 10 to 39 high, gray, RGB, 8-bit" in words
    assert "raw 15 (50%), lz4 15 (50%)" in words
    assert "label int 0 to 11" in words
    assert "Classes (label): 12 class 00 3 class 01 3" in words
    assert "and 2 more with 2 to 2 samples each" in words


def test_json_is_one_object_with_all_of_it(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(pairs), "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    manifest = json.loads((pairs / "manifest.json").read_bytes())
    assert captured.err == ""
    assert found["num_samples"] == 48 and found["num_sources"] == 8
    assert found["made_by"] == manifest["made_by"]
    assert found["digests"]["content"] == manifest["content_digest"]
    assert [(f["name"], f["height"], f["channels"]) for f in found["fields"]] == [
        ("lr", [48, 48], {"3": 48}),
        ("hr", [96, 96], {"3": 48}),
    ]
    assert found["sizes"] == lmdbloader.LMDBDataset(pairs).reader.manifest.sizes


def test_json_stays_json_if_numbers_are_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lmdbloader.write([{"x": float("inf")}, {"x": float("nan")}], tmp_path / "db")
    assert main(["info", str(tmp_path / "db"), "--json"]) == 0

    def refuse(name: str) -> None:
        pytest.fail(f"{name} is not JSON")

    (field,) = json.loads(capsys.readouterr().out, parse_constant=refuse)["fields"]
    assert field == {"name": "x", "kind": "float", "num_not_finite": 2}
