"""Whether two images are a pair: sizes, channels, and that neither is moved, on real photographs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lmdbloader.conversion.options import ConvertOptions
from lmdbloader.conversion.pairs import SCALES, check_alignment, find_scales, fit_pair, show_same_picture
from lmdbloader.errors import ImageError
from lmdbloader.images.downscale import downscale

GIVEN = ConvertOptions(hr="high", lr="my low")


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 100), st.integers(1, 100))
def test_the_scale_of_a_pair_is_the_same_whole_number_both_ways(h: int, w: int, high: int, wide: int) -> None:
    lr, hr = np.zeros((h, w, 1), np.uint8), np.zeros((high, wide, 1), np.uint8)
    found = [s for s in SCALES if (high, wide) == (s * h, s * w)]
    if found:
        same, scale = fit_pair(hr, lr, GIVEN, "a")
        assert same is hr and scale == found[0]
        with pytest.raises(ImageError, match=f"that is scale {found[0]}, expected 9"):
            fit_pair(hr, lr, replace(GIVEN, scale=9), "a")
    else:
        with pytest.raises(ImageError, match=f"a: HR is {wide}x{high}, LR is {w}x{h}: "):
            fit_pair(hr, lr, GIVEN, "a")


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(SCALES[1:]), st.data())
def test_an_image_is_cropped_to_a_multiple_only_if_asked(h: int, w: int, scale: int, data: st.DataObject) -> None:
    down, right = (data.draw(st.integers(0, scale - 1)) for _ in "yx")
    hr = np.arange((scale * h + down) * (scale * w + right)).reshape(scale * h + down, -1, 1)
    lr = np.zeros((h, w, 1), hr.dtype)
    cropped, found = fit_pair(hr, lr, replace(GIVEN, scale=scale, crop_to_scale=True), "a")
    assert found == scale
    np.testing.assert_array_equal(cropped, hr[: scale * h, : scale * w])
    if down or right:
        with pytest.raises(ImageError, match=rf"crop_to_scale=True crops it to {scale * w}x{scale * h} at the right"):
            fit_pair(hr, lr, replace(GIVEN, scale=scale), "a")


def test_pairs_of_other_channels_or_bits() -> None:
    hr = np.zeros((4, 4, 3), np.uint8)
    with pytest.raises(ImageError, match="HR has 3 channels of uint8, LR 1 of uint8"):
        fit_pair(hr, np.zeros((2, 2, 1), np.uint8), GIVEN, "a")
    with pytest.raises(ImageError, match="HR has 3 channels of uint8, LR 3 of uint16"):
        fit_pair(hr, np.zeros((2, 2, 3), np.uint16), GIVEN, "a")


@pytest.fixture(scope="module")
def photographs(photos: Path) -> dict[str, Any]:
    return {path.stem: np.asarray(Image.open(path)) for path in sorted(photos.iterdir())}


@pytest.mark.parametrize("scale", [2, 3, 4])
@pytest.mark.parametrize("kernel", ["NEAREST", "BOX", "BILINEAR", "HAMMING", "BICUBIC", "LANCZOS"])
def test_other_kernels_make_pairs_too(photographs: dict[str, Any], scale: int, kernel: str) -> None:
    for name, hr in photographs.items():
        size = (hr.shape[1] // scale, hr.shape[0] // scale)
        lr = np.asarray(Image.fromarray(hr).resize(size, Image.Resampling[kernel]))
        check_alignment(hr, lr, scale, 20, name)
    check_alignment(hr, np.ascontiguousarray(hr[::scale, ::scale]), scale, 20, "top left pixels")


@pytest.mark.parametrize("scale", [2, 4])
@pytest.mark.parametrize("by", [(0, 1), (1, 0), (-1, 1), (0, -2), (3, 2)])
def test_photographs_that_are_moved_are_refused(photographs: dict[str, Any], scale: int, by: tuple[int, int]) -> None:
    for name, hr in photographs.items():
        lr = np.roll(downscale(hr, scale), by, (0, 1))
        with pytest.raises(ImageError, match=rf"^{name}: .*not aligned"):
            check_alignment(hr, lr, scale, 20, name)
        with pytest.raises(ImageError, match=rf"^{name}: .*not aligned.*min_pair_psnr=0 accepts every pair"):
            check_alignment(hr, lr, scale, 1, name)
        check_alignment(hr, lr, scale, 0, name)


def test_noise_on_purpose_is_not_taken_for_a_shift(photographs: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    for name, hr in photographs.items():
        lr = downscale(hr, 2) + rng.normal(0, 12, (96, 144, 3))
        check_alignment(hr, np.clip(lr.round(), 0, 255).astype(np.uint8), 2, 20, name)


def test_another_picture_is_refused(photographs: dict[str, Any]) -> None:
    with pytest.raises(
        ImageError, match=r"^a: the HR image downscaled by 2 .* agree to only \d+\.\d dB, expected at least 20"
    ):
        check_alignment(photographs["astronaut"], downscale(photographs["cat"], 2), 2, 20, "a")


def test_flat_and_tiny_images_are_aligned() -> None:
    flat = np.full((8, 8, 3), 9, np.uint8)
    check_alignment(flat, downscale(flat, 2), 2, 60, "a")
    check_alignment(flat[:4, :4], downscale(flat[:4, :4], 2) + np.uint8(3), 2, 20, "a")
    check_alignment(flat, downscale(flat, 2) + np.uint8(3), 2, 20, "a")


def _moved_along(image: Any, by: int) -> Any:
    return np.mean([np.roll(image, (k // 2, k), (0, 1)) for k in range(by)], 0)


def _rain(image: Any) -> Any:
    drops = np.where(np.random.default_rng(1).random(image.shape[:2]) < 0.02, 255, 0)
    return image + _moved_along(drops, 20)[:, :, None] * 3


DEGRADATIONS = {
    "noise": lambda image: image + np.random.default_rng(0).normal(0, 50, image.shape),
    "motion": lambda image: _moved_along(image, 15),
    "rain": _rain,
    "low light": lambda image: (image / 255.0) ** 2 * 20,
    "haze": lambda image: 0.3 * image + 150,
}


@pytest.mark.parametrize("name", DEGRADATIONS)
def test_images_of_one_size_are_pairs_however_degraded(photographs: dict[str, Any], name: str) -> None:
    seen = []
    for hr in photographs.values():
        lr = np.clip(DEGRADATIONS[name](hr), 0, 255).astype(np.uint8)
        assert fit_pair(hr, lr, GIVEN, name)[1] == 1
        check_alignment(hr, lr, 1, None, name)
        seen.append(show_same_picture(hr, lr))
    assert sum(seen) >= len(seen) - 1  # a conversion is content with one of eight
    with pytest.raises(ImageError, match=r"^a: the HR image and the LR image agree to only .*, expected at least 60"):
        check_alignment(hr, lr, 1, 60, "a")


def test_photographs_of_one_size_that_show_different_pictures(photographs: dict[str, Any]) -> None:
    found = [show_same_picture(a, b) for a in photographs.values() for b in photographs.values() if a is not b]
    assert sum(found) < len(found) / 5
    flat = np.zeros((8, 9, 3), np.uint8)
    assert show_same_picture(flat, flat + np.uint8(9)) and show_same_picture(flat[:1, :1], flat[:1, :1])


def test_equal_images_are_no_pair(photographs: dict[str, Any]) -> None:
    hr = photographs["cat"]
    with pytest.raises(ImageError, match=r"its HR and LR images are the same.*min_pair_psnr=0 accepts it"):
        check_alignment(hr, hr.copy(), 1, None, "a")
    check_alignment(hr, hr.copy(), 1, 0, "a")
    check_alignment(hr * 0, hr * 0, 1, None, "a black frame")


def test_one_size_is_not_one_of_several_scales() -> None:
    hr = np.zeros((12, 12, 3), np.uint8)
    with pytest.raises(ImageError, match="the scales 1, 2; expected different scales of 2 to 8"):
        find_scales(hr, [hr, hr[:6, :6]], GIVEN, "a")
