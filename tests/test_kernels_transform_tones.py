"""Changes of tones, and the blur of pixels: NumPy's results and torchvision's, inside the given memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transform_reference import PERMUTATIONS, blur, with_tones

from lmdbloader import transforms as T
from lmdbloader.kernels.degrade.blur import blur_pixels, blur_pixels_room
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.kernels.transform.tones import change_tones, draw_tone, tone_room

GUARD, MARK = 64, 77
LOW, HIGH = np.uint64(0), np.uint64(2**64 - 1)
TONES = st.one_of(
    st.integers(0, 8).map(T.RandomPosterize),
    (st.sampled_from([0.0, 0.5, 1.0, 2.0, 1e9]) | st.floats(0, 20)).map(T.RandomAdjustSharpness),
    st.sampled_from([T.RandomEqualize(), T.RandomAutocontrast()]),
)


@st.composite
def pictures(draw: Any) -> np.ndarray:
    """Draw an image (C, H, W): noise of all or of a few levels, smooth, or of one color."""
    shape = draw(st.sampled_from([1, 3])), draw(st.integers(1, 70)), draw(st.integers(1, 70) | st.just(300))
    dtype = draw(st.sampled_from([np.uint8, np.uint16]))
    low, high = sorted(draw(st.tuples(*[st.integers(0, np.iinfo(dtype).max)] * 2)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    image = rng.integers(low, high + 1, shape)
    if draw(st.booleans()):
        image = np.sort(image, axis=2)
    return image.astype(dtype)


def changed(image: np.ndarray, room: int, change: Any) -> np.ndarray:
    """Return what a kernel makes of a copy, between guards, with scratch of so many float32."""
    flat, scratch = np.append(image, [MARK] * GUARD).astype(image.dtype), np.full(room + GUARD, MARK, np.float32)
    change(flat, *image.shape, scratch[:room])
    assert (flat[image.size :] == MARK).all() and (scratch[room:] == MARK).all()
    return flat[: image.size].reshape(image.shape)


def with_kernel(image: np.ndarray, t: Any, words: Any = (LOW,) * 4) -> np.ndarray:
    """Return what the kernels make of an image for a transform."""
    numbers, drawn = np.zeros(op.NUM_REAL), np.zeros(op.NUM_COLOR)
    numbers[: len(t.real_numbers)] = t.real_numbers
    drawn[op.COLOR_CODE] = t.code
    assert draw_tone(t.code, numbers, words, (LOW,) * 4, drawn)
    return changed(image, tone_room(image.shape[2]), lambda f, c, h, w, line: change_tones(f, c, h, w, drawn, line))


@settings(max_examples=100, deadline=None)
@given(pictures(), TONES)
def test_tones_are_those_of_numpy(image: np.ndarray, t: Any) -> None:
    expected = with_tones(image.astype(np.float64), t, np.iinfo(image.dtype).max)
    np.testing.assert_array_equal(with_kernel(image, t), expected)


def test_all_six_orders_of_the_channels_are_drawn() -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, 9, 11)).astype(np.uint8)
    for k, order in enumerate(PERMUTATIONS):
        word = np.uint64(2**64 // 6 * k + 9)
        np.testing.assert_array_equal(with_kernel(image, T.RandomChannelPermutation(), (word,) * 4), image[list(order)])
    np.testing.assert_array_equal(with_kernel(image[:1], T.RandomChannelPermutation(), (HIGH,) * 4), image[:1])


@settings(max_examples=40, deadline=None)
@given(
    pictures(), st.sampled_from([1, 3, 9, 23, 33, 35, 101]), st.sampled_from([1, 5, 23, 255]),
    st.sampled_from([0.1, 0.7, 2.0, 60.0]) | st.floats(0.1, 20),
)  # fmt: skip
def test_a_blur_is_at_most_one_level_off(image: np.ndarray, across: int, down: int, sigma: float) -> None:
    room = blur_pixels_room(*image.shape[1:], down, across)
    found = changed(image, room, lambda f, c, h, w, work: blur_pixels(f, c, h, w, down, across, sigma, work))
    assert np.abs(found - blur(image.astype(np.float64), across, down, sigma)).max() <= 1
    if (image == image[0, 0, 0]).all():
        np.testing.assert_array_equal(found, image)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_thousand_draws_are_torchvisions(dtype: Any) -> None:
    try:
        from torchvision.transforms.v2 import functional
    except Exception as error:  # not installed, or made for another torch
        pytest.skip(f"torchvision cannot be imported ({type(error).__name__}); its stored results are compared anyway")
    rng = np.random.default_rng(3)
    for k in range(1000 if dtype == np.uint8 else 100):
        shape = [1, 3][k % 2], *map(int, np.exp(rng.uniform(0, np.log(513), 2)))
        low, high = sorted(rng.integers(0, np.iinfo(dtype).max + 1, 2))
        image = rng.integers(low, high + 1, shape).astype(dtype)
        if k % 3:
            image = np.sort(image, axis=k % 3)
        bits, factor = int(rng.integers(0, 9)), float(rng.uniform(0, 4))
        for t, theirs in (
            (T.RandomPosterize(bits), partial(functional.posterize, bits=bits)),
            (T.RandomEqualize(), functional.equalize),
            (T.RandomAutocontrast(), functional.autocontrast),
            (T.RandomAdjustSharpness(factor), partial(functional.adjust_sharpness, sharpness_factor=factor)),
        ):
            expected = theirs(torch.from_numpy(image)).numpy()
            np.testing.assert_array_equal(with_kernel(image, t), expected, err_msg=repr((t, shape)))
