"""`lmdbloader preview` writes one PNG file."""

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


def test_captions_name_the_path_and_keep_the_end_of_a_long_one() -> None:
    from PIL import Image, ImageDraw

    from lmdbloader.show.drawing import font_of
    from lmdbloader.show.sheet import _fit_path

    draw, font = ImageDraw.Draw(Image.new("RGB", (8, 8))), font_of(13)
    assert _fit_path(draw, "7  cats/0001.png", font, 240) == "7  cats/0001.png"
    long = _fit_path(draw, f"7  {'folder/' * 40}cats/0001.png", font, 240)
    assert long.startswith("7  .../folder/") and long.endswith("/cats/0001.png")
    assert draw.textlength(long, font=font) <= 240
    assert _fit_path(draw, "7", font, 1) == "7"
