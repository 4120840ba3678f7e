"""Brightness, contrast, saturation and hue: torchvision v2's definition for integers, step by step."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transform_reference import jitter as defined
from transform_reference import turn_hue

from lmdbloader.kernels.transform.color import jitter, solarize

GUARD = 7
FACTOR = st.sampled_from([0.0, 0.5, 1.0, 1.7, 3.0]) | st.floats(0, 4)
HUE = st.sampled_from([0.0, -0.5, 0.5, 1 / 3, -1e-9]) | st.floats(-0.5, 0.5)


def picture(channels: int, height: int, width: int, dtype: Any, seed: int = 0) -> np.ndarray:
    top = np.iinfo(dtype).max
    return np.random.default_rng(seed).integers(0, top + 1, (channels, height, width)).astype(dtype)


def changed(image: np.ndarray, factors: Any, order: int, hue: float = 0.0) -> np.ndarray:
    """Return a changed copy, checking that nothing after the image was written to."""
    guarded = np.append(image.ravel(), np.full(GUARD, 77, image.dtype))
    jitter(guarded, len(image), image[0].size, *map(float, factors), hue, order)
    assert (guarded[image.size :] == 77).all()
    return guarded[: image.size].reshape(image.shape)


def torchvisions(image: torch.Tensor, factors: Any, step: int) -> torch.Tensor:
    """Return one step as torchvision.transforms.v2.functional computes it (0.25), for an integer image (C, H, W)."""
    bound, factor = torch.iinfo(image.dtype).max, float(factors[step])

    def grey() -> torch.Tensor:
        r, g, b = image.to(torch.float32).unbind(dim=-3)
        return r.mul(0.2989).add_(g, alpha=0.587).add_(b, alpha=0.114).unsqueeze(-3).floor_()

    if step == 0:
        return image.to(torch.float32).mul(factor).clamp_(0, bound).to(image.dtype)
    if step == 1:
        of = grey() if image.shape[0] == 3 else image.to(torch.float32)
        other = torch.mean(of, dim=(-3, -2, -1), keepdim=True)
    elif image.shape[0] == 1:
        return image
    else:
        other = grey()
    return image.to(torch.float32).mul(factor).add_(other, alpha=1.0 - factor).clamp_(0, bound).to(image.dtype)


@given(
    st.sampled_from([1, 3]), st.sampled_from([np.uint8, np.uint16]), st.integers(1, 9), st.integers(1, 40),
    st.tuples(FACTOR, FACTOR, FACTOR), HUE, st.integers(0, 23), st.integers(0, 99),
)  # fmt: skip
def test_every_order_of_every_factor_equals_the_definition(
    channels: int, dtype: Any, height: int, width: int, factors: Any, hue: float, order: int, seed: int
) -> None:
    image = picture(channels, height, width, dtype, seed)
    expected = defined(image, factors, hue, order, np.iinfo(dtype).max)
    np.testing.assert_array_equal(changed(image, factors, order, hue), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_the_hue_of_every_kind_of_pixel_equals_the_definition(dtype: Any) -> None:
    top = np.iinfo(dtype).max
    levels = [0, 1, 2, top // 3, top // 2, top - 1, top]
    image = np.stack(np.meshgrid(levels, levels, levels)).astype(dtype).reshape(3, 7, 49)
    for hue in (-0.5, -1 / 3, -1e-9, 1e-9, 1 / 6, 0.3, 0.5):
        np.testing.assert_array_equal(changed(image, (1, 1, 1), 0, hue), turn_hue(image, hue, top))
    grey = image[:, image[0] == image[1]]
    grey = np.ascontiguousarray(grey[:, grey[0] == grey[2]]).reshape(3, 1, -1)
    assert grey.shape[2] == len(levels)
    # Greys, black and white have no hue; a float32 that was rounded up may be the next of the 65536 levels.
    off = changed(grey, (1, 1, 1), 0, 0.3).astype(int) - grey
    assert set(off.ravel()) <= ({0} if dtype == np.uint8 else {0, 1})


@settings(max_examples=60)
@given(st.sampled_from([1, 3]), st.sampled_from([np.uint8, np.uint16]), FACTOR, st.integers(0, 2))
def test_each_step_is_torchvisions(channels: int, dtype: Any, factor: float, step: int) -> None:
    image = picture(channels, 24, 31, dtype)
    factors = [factor if k == step else 1.0 for k in range(3)]
    found = changed(image, factors, 0).astype(np.int64)
    expected = torchvisions(torch.from_numpy(image), factors, step).numpy().astype(np.int64)
    # torch adds a multiple in one rounding (FMA): a value that falls on a whole number may be cut off to the one below.
    off = np.abs(found - expected)
    assert off.max() <= 1
    # Halves, thirds and the like fall on whole numbers often; others hardly ever do.
    is_simple = any(abs(factor * k - round(factor * k)) < 1e-3 for k in range(1, 33))
    assert (off > 0).mean() < 0.02 or is_simple


def test_the_order_numbers_are_all_permutations_of_the_four() -> None:
    image, factors, hue = picture(3, 20, 20, np.uint8), (1.6, 0.4, 2.5), 0.2
    expected = set()
    for steps in itertools.permutations(range(4)):
        one_by_one = image
        for step in steps:
            one = [f if k == step else 1.0 for k, f in enumerate(factors)]
            one_by_one = changed(one_by_one, one, 0, hue if step == 3 else 0.0)
        expected.add(one_by_one.tobytes())
    assert len(expected) == 24
    assert {changed(image, factors, order, hue).tobytes() for order in range(24)} == expected


@given(st.sampled_from([np.uint8, np.uint16]), st.integers(0, 300) | st.floats(0.25, 70000), st.integers(1, 90))
def test_solarising_inverts_values_of_at_least_the_threshold(dtype: Any, threshold: float, count: int) -> None:
    image = picture(1, 1, count, dtype, count)[0, 0]
    guarded = np.append(image, np.full(GUARD, 77, dtype))
    solarize(guarded, count, float(threshold))
    expected = torch.from_numpy(image.astype(np.int64))
    inverted = np.iinfo(dtype).max - expected  # as torchvision's: where(image >= threshold, invert(image), image)
    expected = torch.where(expected >= threshold, inverted, expected)
    np.testing.assert_array_equal(guarded[:count], expected.numpy())
    assert (guarded[count:] == 77).all()
    solarize(guarded, count, -1.0)
    np.testing.assert_array_equal(guarded[:count], expected.numpy())
