"""Blur kernels against the published formulas, and the filter against torch, inside the given memory."""

from __future__ import annotations

import math

import degradation_reference as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdbloader.kernels import entries
from lmdbloader.kernels.degrade import blur, steps

GUARD, MARK = 64, 77
SIZES = st.integers(0, 25).map(lambda half: 2 * half + 1)
SIGMAS = st.floats(0, 30) | st.sampled_from([0.0, 0.2, 3.0, 1e6])
BETAS = st.floats(0.01, 8) | st.sampled_from([0.5, 1.0, 1e4])


def kernel_of(shape: int, size: int, *numbers: float) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return a kernel, and what `blur` gets."""
    weights = np.full(steps.KERNEL_ROOM + GUARD, MARK, np.float32)
    separable = entries.make_blur_kernel(shape, size, *map(float, numbers), weights[: steps.KERNEL_ROOM])
    assert (weights[steps.KERNEL_ROOM :] == MARK).all()
    step = -(-size // steps.TAPS) * steps.TAPS
    rows = weights[: step if separable else size * step].reshape(-1, step)
    assert not rows[:, size:].any()
    row = rows[0, :size].astype(float)
    return (np.outer(row, row) if separable else rows[:, :size].astype(float)), weights[: steps.KERNEL_ROOM], separable


@settings(max_examples=150)
@given(
    shape=st.sampled_from([blur.GAUSSIAN, blur.GENERALIZED, blur.PLATEAU]), size=SIZES, first=SIGMAS, second=SIGMAS,
    angle=st.floats(-math.pi, math.pi), beta=BETAS,
)  # fmt: skip
def test_kernels_are_those_of_the_formulas(
    shape: int, size: int, first: float, second: float, angle: float, beta: float
) -> None:
    if shape == blur.GAUSSIAN:
        beta = 1.0
    found, _, _ = kernel_of(shape, size, first, second, angle, beta)
    np.testing.assert_allclose(found, reference.make_kernel(shape, size, first, second, angle, beta), atol=1e-6)
    same, _, _ = kernel_of(shape, size, first, first, 0, beta)
    np.testing.assert_allclose(same, reference.make_kernel(shape, size, first, first, 0, beta), atol=1e-6)


@given(size=SIZES, omega=st.floats(0.1, math.pi))
def test_low_pass_filters_are_those_of_the_formula(size: int, omega: float) -> None:
    found, _, _ = kernel_of(blur.SINC, size, omega, omega, 0, 1)
    np.testing.assert_allclose(found, reference.make_kernel(blur.SINC, size, omega, omega, 0, 1), atol=1e-6)


@settings(max_examples=60)
@given(
    size=SIZES, height=st.integers(1, 40), width=st.integers(1, 40) | st.sampled_from([64, 300]),
    channels=st.sampled_from([1, 3]), is_round=st.booleans(), in_place=st.booleans(), seed=st.integers(0, 9),
)  # fmt: skip
def test_the_filter_is_that_of_torch(
    size: int, height: int, width: int, channels: int, is_round: bool, in_place: bool, seed: int
) -> None:
    kernel, weights, separable = kernel_of(blur.GAUSSIAN, size, 2.5, 2.5 if is_round else 0.7, 0.4, 1)
    assert separable == is_round
    image = np.random.default_rng(seed).random((channels, height, width), np.float32)
    source, count = image.flatten(), image.size
    # As `padded_room` says.
    room = 2 * (height + size + steps.TAPS) * (width + -(-size // steps.TAPS) * steps.TAPS + steps.TAPS)
    out, padded = np.full(count + GUARD, MARK, np.float32), np.full(room + GUARD, MARK, np.float32)
    target = source if in_place else out[:count]
    entries.blur(source, channels, height, width, size, separable, weights, target, padded[:room])
    assert (out[count:] == MARK).all()
    assert (padded[room:] == MARK).all()
    expected = reference.filtered(image.astype(float), kernel)
    np.testing.assert_allclose(target.reshape(image.shape), expected, atol=2e-6)


def test_a_wide_image_keeps_inside_its_memory() -> None:
    kernel, weights, separable = kernel_of(blur.GAUSSIAN, 7, 1.0, 1.0, 0, 1)
    image = np.random.default_rng(0).random((1, 1, 50_000), np.float32)
    room = 2 * (1 + 7 + steps.TAPS) * (50_000 + 8 + steps.TAPS)
    padded = np.full(room + GUARD, MARK, np.float32)
    out = np.empty(image.size, np.float32)
    entries.blur(image.ravel(), 1, 1, image.size, 7, separable, weights, out, padded[:room])
    assert (padded[room:] == MARK).all()
    np.testing.assert_allclose(out.reshape(image.shape), reference.filtered(image.astype(float), kernel), atol=2e-6)


@pytest.mark.parametrize("sigma", [0.0, 1e-9])
def test_without_a_deviation_nothing_is_blurred(sigma: float) -> None:
    for shape in (blur.GAUSSIAN, blur.GENERALIZED, blur.PLATEAU):
        found, _, _ = kernel_of(shape, 7, sigma, sigma, 0, 1)
        assert found[3, 3] == pytest.approx(1, abs=1e-4)
