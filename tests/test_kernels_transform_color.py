"""Brightness, contrast, saturation and hue: torchvision v2's definition for integers, step by step."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transform_reference import jitter, turn_hue

import lmdbloader
from lmdbloader import transforms as T
from lmdbloader.kernels.transform import color

FACTOR = st.sampled_from([0.0, 0.5, 1.0, 1.7, 3.0]) | st.floats(0, 4)


def picture(channels: int, height: int, width: int, dtype: Any, seed: int = 0) -> np.ndarray:
    top = np.iinfo(dtype).max
    return np.random.default_rng(seed).integers(0, top + 1, (channels, height, width)).astype(dtype)


def changed(image: np.ndarray, factors: Any, order: int, hue: float = 0.0) -> np.ndarray:
    """Return a changed copy by the definition, which compiled code equals bit for bit (test_batch_pipeline.py)."""
    return jitter(image, factors, hue, order, np.iinfo(image.dtype).max).astype(image.dtype)


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


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_the_hue_of_every_kind_of_pixel_equals_the_definition(dtype: Any, tmp_path: Path) -> None:
    top = np.iinfo(dtype).max
    levels = [0, 1, 2, top // 3, top // 2, top - 1, top]
    image = np.stack(np.meshgrid(levels, levels, levels)).astype(dtype).reshape(3, 7, 49)
    lmdbloader.write([{"image": image.transpose(1, 2, 0)}], tmp_path / "levels")
    dataset = lmdbloader.LMDBDataset(tmp_path / "levels")
    grey = (image[0] == image[1]) & (image[0] == image[2])
    for hue in (-0.5, -1 / 3, -1e-9, 1e-9, 1 / 6, 0.3, 0.5):
        found = dataset.transformed([T.ColorJitter(hue=(hue, hue))])[0].image.numpy()
        np.testing.assert_array_equal(found, turn_hue(image, hue, top))
        # Grays, black and white have no hue; a float32 that was rounded up may be the next of the 65536 levels.
        assert set((found.astype(int) - image)[:, grey].ravel()) <= ({0} if dtype == np.uint8 else {0, 1})


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


def test_the_saturation_of_policies_is_rounded_once() -> None:
    rng = np.random.default_rng(0)
    for saturation in (0.1, 0.37, 1.27, 1.9):
        image = rng.integers(0, 256, (3, 20_000)).astype(np.uint8)
        image[:, ::2] = image[0, ::2]  # grays, where the last bit decides
        f, rest = np.float32, np.float64(np.float32(1 - saturation))
        grey = np.trunc(f(0.2989) * image[0] + f(0.587) * image[1] + f(0.114) * image[2])
        exact = (image * f(saturation)).astype(np.float64) + rest * grey
        found = image.copy().ravel()
        color.saturate_as_torch(found, image.shape[1], saturation)
        np.testing.assert_array_equal(found.reshape(image.shape), np.clip(exact.astype(f), 0, 255).astype(np.uint8))
