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
from lmdbloader.conversion.pairs import SCALES, check_alignment, fit_pair
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


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(SCALES), st.data())
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
