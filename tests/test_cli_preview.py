"""`lmdbloader preview` writes one PNG file, or says why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lmdbloader
from lmdbloader.cli import main


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    path = tmp_path / "db"
    lmdbloader.write([{"image": np.full((60, 60), i, np.uint16)} for i in range(50)], path)
    return str(path)


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        return image.size


def test_the_sheet_is_written_and_described(dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = tmp_path / "sheet.png"
    assert main(["preview", dataset, "-o", str(sheet)]) == 0
    width, height = size_of(sheet)
    said = capsys.readouterr().out
    assert f"{sheet}: 24 of 50 samples, {width} x {height} pixels" in said
    assert "16-bit pixels are shown in 8 bits" in said


def test_count_columns_and_seed_are_heeded(dataset: str, tmp_path: Path) -> None:
    pictures = {}
    for name, options in {
        "plain": [],
        "again": [],
        "seed 0": ["--seed", "0"],
        "seed 1": ["--seed", "1"],
        "seed 1 again": ["--seed", "1"],
    }.items():
        path = tmp_path / f"{name}.png"
        assert main(["preview", dataset, "-o", str(path), "--count", "3", "--columns", "1", *options]) == 0
        assert size_of(path)[1] > 3 * 240
        pictures[name] = path.read_bytes()
    assert pictures["plain"] == pictures["again"]
    assert pictures["seed 1"] == pictures["seed 1 again"]
    assert len({pictures[name] for name in ("plain", "seed 0", "seed 1")}) == 3


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["-o", "sheet.jpg"], 2, "ends in .png"),
        (["-o", "absent/sheet.png"], 1, "does not exist"),
        (["-o", "s.png", "--count", "0"], 2, "count 0"),
        (["-o", "s.png", "--columns", "0"], 2, "columns 0"),
        (["-o", "s.png", "--seed", "-1"], 2, "seed -1"),
    ],
)
def test_what_cannot_be_is_refused_and_writes_nothing(
    dataset: str,
    tmp_path: Path,
    options: list[str],
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["preview", dataset, *options]) == status
    assert message in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["db"]


def test_a_dataset_without_images_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lmdbloader.write([{"label": 1}], tmp_path / "db")
    assert main(["preview", str(tmp_path / "db"), "-o", str(tmp_path / "sheet.png")]) == 2
    assert "no image field to show; it has label (int)" in capsys.readouterr().err
