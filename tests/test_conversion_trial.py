"""Guesses from headers, and the size that a conversion says it will have before it writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from skimage import data as photographs

import lmdbloader
from lmdbloader.conversion.options import ConvertOptions
from lmdbloader.conversion.plan import make_plan, settle_scale
from lmdbloader.conversion.trial import make_guess

MIB = 2**20


def save(path: Path, image: Any, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, **options)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """190 thumbnails and 10 photographs as PNG and JPEG, so that most bytes are in few files."""
    folder = tmp_path_factory.mktemp("mixed")
    rng = np.random.default_rng(0)
    photo, cat = photographs.astronaut(), photographs.cat()
    for number in range(200):
        source = photo if number % 2 else cat
        suffix = "png" if number % 3 else "jpg"
        if number % 20 == 13:
            save(folder / f"{number:03d}.{suffix}", source)
            continue
        top, left = rng.integers(0, 200, 2)
        save(folder / f"{number:03d}.{suffix}", source[top : top + 24, left : left + 32])
    return folder


def guesses(folder: Path, **options: Any) -> Any:
    plan = make_plan(folder, ConvertOptions(**options))
    guess = make_guess(settle_scale(plan), plan.listing.sources)
    return None if guess is None else guess(np.arange(len(plan.listing.sources)))


@pytest.mark.parametrize(
    "options",
    [
        {"codec": "raw", "max_resolution": 300},
        {"patch_size": 24, "stride": 48, "codec": "raw"},
        {"write_mode": "smart", "smart_threshold": 10**9},
    ],
    ids=str,
)
def test_guesses_of_pixels_are_the_pixels(mixed: Path, tmp_path: Path, options: Any) -> None:
    made = lmdbloader.convert(mixed, tmp_path / "made", workers=1, **options)
    assert guesses(mixed, **options).sum() == pytest.approx(made.sizes["payload_nbytes"], rel=0.01)


def test_guesses_know_which_images_become_jpegs(mixed: Path) -> None:
    raw = guesses(mixed, write_mode="raw")
    some = guesses(mixed, write_mode="proportion", compress_probability=0.5)
    assert 0.3 < (some < raw).mean() < 0.7
    large = guesses(mixed, write_mode="smart", smart_threshold=100_000)
    assert ((large < raw) == (raw > 100_000)).all()
    kept = guesses(mixed)
    is_jpeg = np.array([path.suffix == ".jpg" for path in sorted(mixed.iterdir())])
    assert (kept[is_jpeg] == [path.stat().st_size for path in sorted(mixed.glob("*.jpg"))]).all()
    assert guesses(mixed, write_mode="original") is None, "the size of the file is the answer"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"write_mode": "jpg", "jpeg_quality": 60},
        {"patch_size": 24, "stride": 48, "codec": "raw"},
    ],
    ids=str,
)
def test_a_conversion_says_about_how_large_data_mdb_will_be(mixed: Path, tmp_path: Path, options: Any) -> None:
    lines: list[str] = []
    made = lmdbloader.convert(mixed, tmp_path / "made", workers=1, log=lines.append, **options)
    (line,) = (line for line in lines if "map size" in line)
    size = r"([\d.]+) (bytes|KiB|MiB|GiB)"
    found = re.match(rf"data: about {size} \({size} to {size}\), estimated from 24 of 200 inputs; map size: ", line)
    assert found is not None, line
    units = {"bytes": 1, "KiB": 1024, "MiB": MIB, "GiB": 1024 * MIB}
    value, low, high = (float(found[i]) * units[found[i + 1]] for i in (1, 3, 5))
    assert low * 0.99 <= made.sizes["data_nbytes"] <= high * 1.01
    assert 0.75 < value / made.sizes["data_nbytes"] < 1.25
    assert made.map_nbytes >= high
