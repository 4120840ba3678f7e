"""PSNR and SSIM against scikit-image and against the formulas written out, and luma against MATLAB's matrix."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from lmdbloader.errors import OptionError
from lmdbloader.superres import luma, psnr, ssim


@pytest.fixture(scope="module")
def pair(photos: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A photograph, and the same one reduced and enlarged: (3, 192, 288) both."""
    photograph = Image.open(photos / "astronaut.png")
    small = photograph.resize((144, 96), Image.Resampling.BICUBIC)
    blurred = small.resize(photograph.size, Image.Resampling.BICUBIC)
    return np.asarray(photograph).transpose(2, 0, 1), np.asarray(blurred).transpose(2, 0, 1)


def formula_luma(rgb: NDArray[np.uint8]) -> NDArray[np.float64]:
    """MATLAB's published matrix for R, G, B in 0..1."""
    weights = np.array([65.481, 128.553, 24.966])
    return 16 + np.tensordot(weights, rgb.astype(np.float64) / 255, axes=1)


@pytest.mark.parametrize(
    ("rgb", "expected"),
    [
        ((0, 0, 0), 16.0),
        ((255, 255, 255), 235.0),
        ((255, 0, 0), 81.481),
        ((0, 255, 0), 144.553),
        ((0, 0, 255), 40.966),
    ],
)
def test_luma_of_pure_colors_is_matlabs(rgb: tuple[int, int, int], expected: float) -> None:
    image = np.array(rgb, np.uint8).reshape(3, 1, 1)

    assert luma(image).item() == pytest.approx(expected, abs=1e-9)


def test_luma_brings_16_bits_to_the_scale_of_8(pair: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> None:
    photograph, _ = pair

    np.testing.assert_allclose(luma(photograph.astype(np.uint16) * 257), luma(photograph), rtol=1e-12)


@pytest.mark.parametrize("scale", [0, 2, 3, 4])
def test_psnr_is_the_formula_on_the_shaved_luma(pair: tuple[NDArray[np.uint8], NDArray[np.uint8]], scale: int) -> None:
    photograph, blurred = pair
    inside = np.s_[scale : 192 - scale, scale : 288 - scale]
    difference = formula_luma(blurred)[inside] - formula_luma(photograph)[inside]

    assert psnr(blurred, photograph, scale=scale) == pytest.approx(
        20 * math.log10(255) - 10 * math.log10(np.mean(difference**2)), abs=1e-9
    )


def test_on_rgb_the_error_is_that_of_all_channels_and_ssim_their_mean(
    pair: tuple[NDArray[np.uint8], NDArray[np.uint8]],
) -> None:
    photograph, blurred = pair
    difference = (blurred.astype(float) - photograph)[:, 3:-3, 3:-3]
    assert psnr(blurred, photograph, scale=3, rgb=True) == pytest.approx(
        10 * math.log10(255**2 / np.mean(difference**2)), abs=1e-9
    )
    # A single channel is taken as it is.
    channels = [ssim(a[None], b[None], scale=3) for a, b in zip(blurred, photograph, strict=True)]
    assert ssim(blurred, photograph, scale=3, rgb=True) == pytest.approx(np.mean(channels), abs=1e-12)
    floats = torch.tensor(blurred) / 255, torch.tensor(photograph) / 255
    assert psnr(*floats, scale=3, rgb=True, data_range=1.0) == pytest.approx(
        psnr(blurred, photograph, scale=3, rgb=True), abs=1e-4
    )
    for metric in (psnr, ssim):
        with pytest.raises(OptionError, match="merge_luma"):
            metric(blurred[:1], photograph, scale=3, rgb=True)


@pytest.mark.parametrize("scale", [0, 2, 3, 4])
def test_ssim_is_that_of_scikit_image(pair: tuple[NDArray[np.uint8], NDArray[np.uint8]], scale: int) -> None:
    metrics = pytest.importorskip("skimage.metrics")
    photograph, blurred = pair
    inside = np.s_[scale : 192 - scale, scale : 288 - scale]
    # Its mean, too, is over the windows wholly inside the image.
    expected = metrics.structural_similarity(
        formula_luma(blurred)[inside],
        formula_luma(photograph)[inside],
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=255,
    )

    assert ssim(blurred, photograph, scale=scale) == pytest.approx(expected, abs=1e-10)


def test_ssim_is_wangs_formula_window_by_window() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 256, (2, 1, 14, 17))
    x = np.arange(11) - 5
    window = np.exp(-(x[:, None] ** 2 + x[None, :] ** 2) / (2 * 1.5**2))
    window /= window.sum()
    values = []
    for top in range(4):
        for left in range(7):
            a, b = (image[0, top : top + 11, left : left + 11].astype(np.float64) for image in (first, second))
            mean_a, mean_b = (window * a).sum(), (window * b).sum()
            variance_a, variance_b = (window * (a - mean_a) ** 2).sum(), (window * (b - mean_b) ** 2).sum()
            covariance = (window * (a - mean_a) * (b - mean_b)).sum()
            c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
            values.append(
                (2 * mean_a * mean_b + c1)
                * (2 * covariance + c2)
                / ((mean_a**2 + mean_b**2 + c1) * (variance_a + variance_b + c2))
            )

    assert ssim(first, second, scale=0, data_range=255) == pytest.approx(np.mean(values), abs=1e-12)


@given(seed=st.integers(0, 2**32 - 1), height=st.integers(15, 24), width=st.integers(15, 24), scale=st.integers(0, 2))
def test_the_metrics_do_not_care_about_order_type_or_the_border(seed: int, height: int, width: int, scale: int) -> None:
    first, second = np.random.default_rng(seed).integers(0, 256, (2, 3, height, width), dtype=np.uint8)
    framed = first.copy()
    framed[:, :scale], framed[:, height - scale :] = 0, 255
    framed[:, :, :scale], framed[:, :, width - scale :] = 0, 255
    for metric in (psnr, ssim):
        value = metric(first, second, scale=scale)

        assert value == pytest.approx(metric(second, first, scale=scale), rel=1e-12)
        floats = torch.from_numpy(second).float()
        assert value == metric(torch.from_numpy(first), floats, scale=scale, data_range=255)
        assert value == metric(framed, second, scale=scale)
        assert value < metric(first, first, scale=scale)


def test_equal_images_score_infinity_and_one(pair: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> None:
    photograph, _ = pair

    assert psnr(photograph, photograph.copy(), scale=2) == math.inf
    assert ssim(photograph, photograph.copy(), scale=2) == pytest.approx(1)


@pytest.mark.parametrize("metric", [psnr, ssim])
def test_sizes_that_differ_are_named(metric: object) -> None:
    assert callable(metric)
    with pytest.raises(OptionError, match=r"\(20, 20\) and \(20, 22\)"):
        metric(np.zeros((1, 20, 20), np.uint8), np.zeros((1, 20, 22), np.uint8), scale=2)


@pytest.mark.parametrize("metric", [psnr, ssim])
def test_floats_say_what_white_is(metric: Any, pair: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> None:
    photograph, blurred = pair
    expected = metric(blurred, photograph, scale=2)
    floats, others = photograph / 255, torch.from_numpy(blurred / 255)
    assert metric(others, floats, scale=2, data_range=1.0) == pytest.approx(expected, rel=1e-9)
    assert metric(blurred, floats, scale=2, data_range=1) == pytest.approx(expected, rel=1e-9)
    assert metric(blurred, photograph.astype(np.uint16) * 257, scale=2) == pytest.approx(expected, rel=1e-9)
    assert metric(blurred, photograph.astype(np.float32), scale=2, data_range=255) == pytest.approx(expected)
    assert metric(blurred, photograph.astype(np.int32), scale=2, data_range=255) == pytest.approx(expected)
    close = metric(torch.from_numpy(blurred.copy()), others.bfloat16(), scale=2, data_range=1.0)
    assert close > metric(torch.from_numpy(blurred.copy()), torch.zeros_like(others), scale=2, data_range=1.0)
    for wrong in (lambda: metric(others, floats, scale=2), lambda: metric(blurred, others, scale=2)):
        with pytest.raises(OptionError, match=r"pixels of float64.*Write data_range=1\.0"):
            wrong()
    with pytest.raises(OptionError, match=r"data_range=1\.0 with pixels of uint8, in which white is 255"):
        metric(blurred, photograph, scale=2, data_range=1.0)
    for value in (0, -1, float("nan"), float("inf"), "1", None):
        with pytest.raises(OptionError, match="data_range"):
            metric(floats, floats, scale=2, data_range=value)
