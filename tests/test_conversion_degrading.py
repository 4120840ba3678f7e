"""Conversions whose LR images are made by a degradation, once for each image by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lmdbloader
from lmdbloader import LMDBDataset
from lmdbloader.cli import main
from lmdbloader.conversion.parts import convert_part, join, plan_parts
from lmdbloader.errors import DestinationError, ImageError, OptionError
from lmdbloader.format.codecs import checksum
from lmdbloader.superres import degradations

YAML = "name: x\nscale: 4\nresize_prob: [0.2, 0.7, 0.1]\njpeg_range: [{}, 95]\ngt_usm: true\n"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for k, name in enumerate(("a.png", "b.png", "more/a.png", "more/c.png")):
        small = rng.integers(0, 256, (9, 11, 3)).astype(np.uint8)
        pixels = np.asarray(Image.fromarray(small).resize((49 + k % 3, 41), Image.Resampling.BICUBIC))
        Image.fromarray(pixels[..., 0] if k == 3 else pixels).save(folder / name)
    return folder


def number_of(name: str) -> int:
    return int(np.uint64(checksum(name.encode())).astype(np.int64))


def pair(photos: Path, name: str, degradation: Any, seed: int = 0) -> Any:
    """Return both images (H, W, C) by the definition: cropped to a multiple of 4, and degraded as a whole."""
    image = np.atleast_3d(np.asarray(Image.open(photos / name)))[:40, :48]
    return degradation.degraded(image, number_of(name), seed=seed)


def digest(path: Path) -> str:
    return LMDBDataset(path).reader.manifest.content_digest


def planes(image: np.ndarray) -> np.ndarray:
    return image.transpose(2, 0, 1)


@pytest.mark.parametrize(
    ("text", "degradation"),
    [
        ("real_esrgan", degradations.real_esrgan()),
        ("bsrgan(jpeg_range=[50, 95])", degradations.bsrgan(jpeg_range=[50, 95])),
        (degradations.real_esrgan(gt_usm=False), degradations.real_esrgan(gt_usm=False)),
    ],
)
def test_images_are_degraded_as_a_whole_and_then_cut(photos: Path, text: Any, degradation: Any) -> None:
    lmdbloader.convert(photos, photos.parent / "whole", scale=4, degradation=text, seed=3)
    lmdbloader.convert(photos, photos.parent / "cut", scale=4, degradation=text, seed=3, patch_size=16)
    whole, cut = LMDBDataset(photos.parent / "whole"), LMDBDataset(photos.parent / "cut")
    first = 0
    for k, name in enumerate(("a.png", "b.png", "more/a.png", "more/c.png")):
        lr, hr = pair(photos, name, degradation, 3)
        np.testing.assert_array_equal(whole[k].lr, planes(lr))
        np.testing.assert_array_equal(whole[k].hr, planes(hr))
        original = np.atleast_3d(np.asarray(Image.open(photos / name)))[:40, :48]
        assert (hr != original).any() == (degradation.sharpens == "both")
        np.testing.assert_array_equal(cut[first + 4].lr, planes(lr)[:, 4:8, 4:8])
        np.testing.assert_array_equal(cut[first + 4].hr, planes(hr)[:, 16:32, 16:32])
        first += 6


def test_the_result_depends_on_seed_and_names_alone(photos: Path, tmp_path: Path) -> None:
    def made(name: str, **options: Any) -> str:
        lmdbloader.convert(photos, tmp_path / name, scale=4, degradation="first_order", **options)
        return digest(tmp_path / name)

    usual = made("one", workers=1, parts=1)
    assert made("two", workers=2, parts=3) == made("three", workers=0, seed=0) == usual
    assert made("four", seed=1) != usual
    lmdbloader.convert(photos, tmp_path / "some", scale=4, degradation="first_order", subset=2)
    some = LMDBDataset(tmp_path / "some")
    for sample, name in zip(some, some.table["source"].to_pylist(), strict=True):
        np.testing.assert_array_equal(sample.lr, planes(pair(photos, name, degradations.first_order())[0]))


def test_it_is_recorded_and_made_once(photos: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "train.yml", tmp_path / "out"
    file.write_text(YAML.format(50))
    options: dict[str, Any] = {"scale": 4, "degradation": file}
    assert not lmdbloader.convert(photos, out, **options).was_finished
    recorded = LMDBDataset(out).reader.manifest.made_by["options"]
    assert recorded["degradation"] == "real_esrgan(scale=4, jpeg_range=(50, 95))"
    assert recorded["degradation_seed"] == 0
    assert lmdbloader.convert(photos, out, **options).was_finished
    same = lmdbloader.convert(photos, out, scale=4, degradation="real_esrgan(jpeg_range=(50, 95), scale=4)", seed=0)
    assert same.was_finished
    file.write_text(YAML.format(60))
    for others in (options, {**options, "degradation": recorded["degradation"], "seed": 1}):
        with pytest.raises(DestinationError, match="with other options"):
            lmdbloader.convert(photos, out, **others)


def test_parts_need_no_option_file(photos: Path, tmp_path: Path) -> None:
    file = tmp_path / "train.yml"
    file.write_text(YAML.format(50))
    options: dict[str, Any] = {"scale": 4, "degradation": file, "patch_size": 16}
    lmdbloader.convert(photos, tmp_path / "at once", **options)
    plan_parts(photos, tmp_path / "out", parts=2, **options)
    file.unlink()
    for number in range(2):
        convert_part(tmp_path / "out", number)
    join(tmp_path / "out")
    assert digest(tmp_path / "out") == digest(tmp_path / "at once")


def test_16_bits_stay_16_bits(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 65536, (24, 32)).astype(np.uint16)
    (tmp_path / "photos").mkdir()
    Image.fromarray(pixels).save(tmp_path / "photos" / "a.png")
    lmdbloader.convert(tmp_path / "photos", tmp_path / "out", scale=2, degradation="bsrgan")
    sample = LMDBDataset(tmp_path / "out")[0]
    lr, hr = degradations.bsrgan(2).degraded(pixels[..., None], number_of("a.png"))
    assert lr.dtype == np.uint16
    np.testing.assert_array_equal(sample.lr, planes(lr))
    np.testing.assert_array_equal(sample.hr, planes(hr))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"degradation": "bsrgan"}, r"degradation='bsrgan' needs one scale: scale=4 between hr and lr"),
        ({"degradation": "bsrgan", "scale": [2, 4]}, r"degradation='bsrgan' needs one scale: scale=4"),
        ({"degradation": "bsrgan", "scale": 5}, r"bsrgan\(5\): expected a scale of 1, 2, 3, 4, 8"),
        ({"degradation": "bsrgun", "scale": 4}, "'bsrgun': expected real_esrgan, bsrgan,"),
        ({"degradation": "bsrgan(5)", "scale": 4}, r"'bsrgan\(5\)': expected real_esrgan"),
        ({"degradation": "bsrgan(jpeg=5)", "scale": 4}, r"bsrgan\(jpeg=...\): no such argument"),
        ({"degradation": "bsrgan(scale=2)", "scale": 4}, "its scale is not 4"),
        ({"degradation": "nothing.yml", "scale": 4}, "nothing.yml"),
        ({"degradation": "bsrgan", "scale": 4, "bicubic": "pillow"}, "bicubic='pillow' has no effect with degradation"),
        ({"seed": 3, "scale": 4}, "seed has no effect"),
    ],
)
def test_what_it_cannot_be_is_refused(photos: Path, tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        lmdbloader.convert(photos, tmp_path / "out", **options)
    with pytest.raises(OptionError, match=message):
        lmdbloader.estimate(photos, **options)


def test_given_pairs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pairs").mkdir()
    for name, size in (("x_HR", (40, 48)), ("x_LR", (10, 12))):
        (tmp_path / "pairs" / name).mkdir()
        Image.new("RGB", size).save(tmp_path / "pairs" / name / "a.png")
    options: dict[str, Any] = {"scale": 4, "degradation": "bsrgan"}
    with pytest.raises(OptionError, match=r"with given pairs: it makes lr\. Give the folder of HR images"):
        lmdbloader.convert(tmp_path / "pairs", tmp_path / "out", **options)
    with pytest.raises(OptionError, match="with given pairs: it makes lr"):
        lmdbloader.convert(
            None, tmp_path / "out", hr=tmp_path / "pairs" / "x_HR", lr=tmp_path / "pairs" / "x_LR", **options
        )


def test_too_little_memory_names_the_image(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def degraded(*arguments: Any, **options: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(degradations.Degradation, "degraded", degraded)
    with pytest.raises(ImageError, match=r"a\.png: not enough memory to degrade 48x40 pixels; use fewer workers"):
        lmdbloader.convert(photos, tmp_path / "out", scale=4, degradation="bsrgan", workers=0)


def test_the_command(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["convert", str(photos), str(tmp_path / "out"), "--scale", "4", "--degradation", "neosr", "--seed", "2"]
    assert main(arguments) == 0
    lmdbloader.convert(photos, tmp_path / "python", scale=4, degradation="neosr", seed=2)
    assert digest(tmp_path / "out") == digest(tmp_path / "python")
    assert main([*arguments[:3], "--degradation", "neosr"]) == 2
    assert "--degradation neosr needs one scale: --scale 4 between hr and lr" in capsys.readouterr().err
