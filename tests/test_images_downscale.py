"""Downscaling against references computed here in float64, straight from the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lmdbloader.errors import OptionError
from lmdbloader.images.downscale import crop_to_multiple, downscale, psnr_between


def matlab_matrix(size: int, scale: int) -> np.ndarray:
    """The dense (size // scale, size) matrix of MATLAB's imresize, step by step, indices from 1."""
    matrix = np.zeros((size // scale, size))
    mirror = [*range(size), *reversed(range(size))]
    for x in range(1, size // scale + 1):
        u = x * scale + 0.5 * (1 - scale)
        left = math.floor(u - 2 * scale)
        taps = np.arange(left, left + 4 * scale + 2)
        distance = np.abs(u - taps) / scale
        near = 1.5 * distance**3 - 2.5 * distance**2 + 1
        far = -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
        weights = np.where(distance <= 1, near, np.where(distance <= 2, far, 0.0))
        weights /= weights.sum()
        for tap, weight in zip(taps, weights, strict=True):
            matrix[x - 1, mirror[(tap - 1) % (2 * size)]] += weight
    return matrix


def rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round to the nearest, and up if float64 falls just short of a half, and clip."""
    return np.clip(np.floor(values + 0.5 + 1e-7), 0, np.iinfo(dtype).max)


def check_against_definition(image: np.ndarray, scale: int) -> None:
    rows, columns = (matlab_matrix(side, scale) for side in image.shape[:2])
    small = downscale(image, scale)
    assert small.dtype == image.dtype and small.flags.c_contiguous
    assert small.shape == (image.shape[0] // scale, image.shape[1] // scale, image.shape[2])
    first = rounded(np.einsum("yh,hwc->ywc", rows, image.astype(np.float64)), image.dtype)
    assert np.array_equal(small, rounded(np.einsum("xw,ywc->yxc", columns, first), image.dtype))


@settings(max_examples=60, deadline=None)
@given(
    scale=st.sampled_from([2, 3, 4, 5, 8]),
    sides=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    channels=st.sampled_from([1, 3]),
    dtype=st.sampled_from([np.uint8, np.uint16]),
    extreme=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_matlab_equals_its_definition(scale, sides, channels, dtype, extreme, seed):
    rng = np.random.default_rng(seed)
    top = np.iinfo(dtype).max
    shape = (sides[0] * scale, sides[1] * scale, channels)
    image = rng.integers(0, top + 1, shape, dtype) if not extreme else rng.integers(0, 2, shape).astype(dtype) * top
    check_against_definition(image, scale)


def test_a_step_by_hand():
    # Weights of scale 2, over 256: -3 -9 29 111 111 29 -9 -3. A step from 0 to 200 between the columns 7 and 8:
    # column 2 (taps 1..8) sees 200 * -3 / 256 = -2.3, column 3 (taps 3..10) 200 * (29 - 9 - 3) / 256 = 13.3,
    # column 4 mirrors it to 186.7, column 5 to 202.3.
    image = np.zeros((4, 16, 1), np.uint8)
    image[:, 8:] = 200
    assert downscale(image, 2)[:, :, 0].tolist() == [[0, 0, 0, 13, 187, 202, 200, 200]] * 2


def test_both_directions_are_rounded_like_matlab():
    # One pass in exact arithmetic gives 0.25, which would round to 0; the first pass rounds 0.5 up to 1.
    assert downscale(np.array([[[0], [0]], [[0], [1]]], np.uint8), 2).tolist() == [[[1]]]


@pytest.mark.parametrize("channels", [1, 3])
def test_pillow_method_is_pillow(channels):
    image = np.random.default_rng(1).integers(0, 256, (18, 30, channels), np.uint8)
    picture = Image.fromarray(image.squeeze())
    expected = np.asarray(picture.resize((10, 6), Image.Resampling.BICUBIC)).reshape(6, 10, channels)
    assert np.array_equal(downscale(image, 3, method="pillow"), expected)


@pytest.mark.parametrize(
    ("image", "scale", "method", "message"),
    [
        (np.zeros((5, 4, 3), np.uint8), 2, "matlab", "4x5 pixels are not a multiple .* 2"),
        (np.zeros((4, 4, 3), np.uint8), 1, "matlab", "scale is 1; expected an integer from 2 to 128"),
        (np.zeros((4, 4, 3), np.uint8), 2, "lanczos", "'lanczos'; expected one of matlab, pillow"),
        (np.zeros((4, 4, 3), np.float64), 2, "matlab", "cannot downscale float64"),
        (np.zeros((4, 4), np.uint8), 2, "matlab", r"shape \(4, 4\)"),
    ],
)
def test_invalid_arguments_of_downscale_are_refused(image, scale, method, message):
    with pytest.raises(OptionError, match=message):
        downscale(image, scale, method=method)


@settings(max_examples=30, deadline=None)
@given(height=st.integers(4, 40), width=st.integers(4, 40), scale=st.integers(1, 4))
def test_cropping_keeps_the_top_left(height, width, scale):
    image = np.arange(height * width, dtype=np.uint16).reshape(height, width, 1)
    cropped = crop_to_multiple(image, scale)
    assert cropped.shape[0] % scale == cropped.shape[1] % scale == 0
    assert height - cropped.shape[0] < scale and width - cropped.shape[1] < scale
    assert np.array_equal(cropped, image[: cropped.shape[0], : cropped.shape[1]])


@settings(max_examples=30, deadline=None)
@given(dtype=st.sampled_from([np.uint8, np.uint16]), seed=st.integers(0, 2**32 - 1))
def test_psnr_is_its_formula(dtype, seed):
    rng = np.random.default_rng(seed)
    top = int(np.iinfo(dtype).max)
    a, b = (rng.integers(0, top + 1, (5, 7, 3), dtype) for _ in range(2))
    expected = 10 * np.log10(top**2 / np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2))
    assert psnr_between(a, b) == pytest.approx(expected, rel=1e-12)
    assert psnr_between(a[::-1], a[::-1].copy()) == math.inf
