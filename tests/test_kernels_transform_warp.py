"""Warps compared with NumPy: every place of every image, with guard values behind each array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warp_reference import affine_grid, affine_matrix, elastic_grid, perspective_grid, sample

from lmdbloader.kernels.transform import displacement, warp
from lmdbloader.kernels.transform import opcodes as op

GUARD = 7
DTYPES = (np.uint8, np.uint16, np.float32)
sides = st.integers(1, 40) | st.integers(1, 3)


def tables(image: np.ndarray, fill: Any = (0, 0, 0), mask: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the geometry and the drawn numbers of one image at one stage."""
    geometry, color = np.zeros((1, 1, op.NUM_GEOMETRY), np.int64), np.full((1, 1, op.NUM_COLOR), 9.0)
    g = geometry[0, 0]
    g[op.HEIGHT], g[op.WIDTH], g[op.MASK] = *image.shape[1:], mask
    g[op.FILL :] = np.array(fill, np.float32).view(np.uint32) if image.dtype == np.float32 else fill
    return geometry, color


def warped(image: np.ndarray, geometry: np.ndarray, color: np.ndarray, side: int = 0) -> np.ndarray:
    """Return what `warp` makes of an image (C, H, W)."""
    channels, height, width = image.shape
    g, drawn = geometry[0, 0], color[0, 0]
    assert g[op.CLOSING] == op.THEN_WARP
    new_height, new_width = int(g[op.NEW_HEIGHT]), int(g[op.NEW_WIDTH])
    room = warp.warp_room(max(height, new_height), max(width, new_width), image.itemsize, side)
    line = np.full(room + 8, GUARD, np.float32)
    out = np.full(channels * new_height * new_width + 8, GUARD, image.dtype)
    source = np.ascontiguousarray(image).reshape(-1)
    assert warp.warp(source, channels, height, width, g, drawn, out, new_height, new_width, line[:-8])
    assert (out[-8:] == GUARD).all() and (line[-8:] == GUARD).all()
    assert not warp.warp(source, channels, height, width, g, drawn, out, new_height, new_width, line[:10])
    return out[:-8].reshape(channels, new_height, new_width)


def image_of(data: Any, channels: int) -> tuple[np.ndarray, Any]:
    """Return an image and a fill."""
    dtype, height, width = data.draw(st.sampled_from(DTYPES)), data.draw(sides), data.draw(sides)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    image = rng.integers(0, 256, (channels, height, width)).astype(dtype)
    return image, [data.draw(st.integers(0, 255))] * 3 if channels != 3 else rng.integers(0, 256, 3).tolist()


def compare(found: np.ndarray, image: np.ndarray, grid: np.ndarray, bilinear: bool, fill: Any) -> None:
    expected = sample(image, grid, bilinear, fill[: len(image)] if len(image) <= 3 else fill[:1])
    off = np.abs(found.astype(np.float64) - (expected if image.dtype == np.float32 else np.rint(expected)))
    # Where the places are differs by some of the last bits of a float32, for bilinear ones.
    assert off.max() <= (0 if not bilinear else 1 if image.dtype != np.float32 else 0.02)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_affine_is_that_of_torchvision(data: Any) -> None:
    image, fill = image_of(data, data.draw(st.sampled_from([1, 3, 4])))
    height, width = image.shape[1:]
    angle = data.draw(st.sampled_from([0.0, 30.0, 45.0, 90.0, 180.0, -270.0]) | st.floats(-360, 360))
    shift = [float(data.draw(st.integers(-9, 9))) for _ in range(2)]
    scale, shear = data.draw(st.sampled_from([1.0, 0.5, 1.7])), [data.draw(st.sampled_from([0.0, 20.0, -50.0]))] * 2
    center = data.draw(st.none() | st.tuples(st.integers(0, width), st.integers(0, height)))
    bilinear, mask = data.draw(st.booleans()), data.draw(st.booleans())
    geometry, color = tables(image, fill, mask)
    numbers = *(center or (np.nan, np.nan)), bilinear
    warp.set_affine(geometry, color, 1, 0, angle, *shift, scale, *shear, *map(float, numbers[:2]), bilinear)
    matrix = affine_matrix(angle, shift, scale, shear, center, height, width)
    np.testing.assert_allclose(color[0, 0, op.WARP_MATRIX : op.WARP_MATRIX + 6], matrix.reshape(-1), atol=1e-9)
    exact = color[0, 0, op.WARP_MATRIX : op.WARP_MATRIX + 6].reshape(2, 3)
    grid = affine_grid(exact, height, width, height, width)
    compare(
        warped(image, geometry, color), image, grid, bilinear and not mask and color[0, 0, op.WARP_BILINEAR] != 0, fill
    )


def draw(code: int, real: Any, geometry: np.ndarray, color: np.ndarray, bilinear: bool = True, sample: int = 0) -> None:
    whole, numbers = np.zeros(op.NUM_WHOLE, np.int64), np.zeros(op.NUM_REAL)
    whole[op.OP_CODE], whole[op.OP_FIELDS], whole[op.OP_CUBIC] = code, 1, bilinear
    numbers[: len(real)] = real
    words = [np.uint64(n) for n in (5, 0, sample, 2)]
    warp.draw_warp(whole, numbers, *words, geometry, color, 0, 0, 1)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_perspective_carries_the_corners_and_is_that_of_torchvision(data: Any) -> None:
    image, fill = image_of(data, data.draw(st.sampled_from([1, 3])))
    height, width = image.shape[1:]
    geometry, color = tables(image, fill)
    bilinear, share = data.draw(st.booleans()), data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    draw(op.PERSPECTIVE, (share, 1.0), geometry, color, bilinear, data.draw(st.integers(0, 99)))
    if geometry[0, 0, op.CLOSING] != op.THEN_WARP:
        assert min(height, width) == 1 or share == 1.0
        return
    c = color[0, 0, op.WARP_MATRIX : op.WARP_MATRIX + 8]
    compare(warped(image, geometry, color), image, perspective_grid(c, height, width), bilinear, fill)
    inverse = np.linalg.inv(np.array([*c, 1.0]).reshape(3, 3))
    for x, y in ((0, 0), (width - 1, 0), (0, height - 1), (width - 1, height - 1)):
        moved = inverse @ (x, y, 1)
        moved = moved[:2] / moved[2]
        np.testing.assert_allclose(moved, np.rint(moved), atol=1e-6)  # the corners are whole pixels, near the old ones
        assert abs(moved[0] - x) <= int(share * (width // 2)) + 1e-6
        assert abs(moved[1] - y) <= int(share * (height // 2)) + 1e-6


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_elastic_displaces_by_smoothed_noise(data: Any) -> None:
    image, fill = image_of(data, data.draw(st.sampled_from([1, 3])))
    height, width = image.shape[1:]
    geometry, color = tables(image, fill)
    sigmas = data.draw(st.sampled_from([(0.0, 0.0), (1.0, 2.0), (3.0, 3.0)]))
    bilinear = data.draw(st.booleans())
    draw(op.ELASTIC, (50.0, 20.0, *sigmas), geometry, color, bilinear)
    side = displacement.kernel_side(max(sigmas))
    field = np.full(displacement.displacement_room(height, width, side) + 4, GUARD, np.float32)
    assert displacement.fill_displacements(color[0, 0], field[:-4]) and (field[-4:] == GUARD).all()
    found = field[: 2 * height * width].reshape(2, height, width).copy()
    compare(warped(image, geometry, color, side), image, elastic_grid(np.moveaxis(found, 0, -1)), bilinear, fill)
    plain = color[0, 0].copy()
    plain[op.WARP_ELASTIC : op.WARP_ELASTIC + 4] = width, height, 0, 0
    assert displacement.fill_displacements(plain, field[:-4])
    noise = field[: 2 * height * width].reshape(2, height, width).astype(np.float64)
    assert noise.min() >= -1 and noise.max() <= 1
    for axis, alpha in enumerate((50.0 / width, 20.0 / height)):
        expected = noise[axis]
        for along, sigma in ((1, sigmas[0]), (0, sigmas[1])):
            half = displacement.kernel_side(sigmas[axis]) // 2
            if half:
                weights = np.exp(-0.5 * (np.arange(-half, half + 1) / sigma) ** 2)
                pads = [(half, half) if k == along else (0, 0) for k in range(2)]
                padded = np.pad(expected, pads, "reflect")
                windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1, along)
                expected = windows @ (weights / weights.sum())
        np.testing.assert_allclose(found[axis], expected * alpha, atol=2e-6 * alpha)


@pytest.mark.parametrize("side", [1, 2, 5])
def test_places_that_are_not_numbers_are_outside(side: int) -> None:
    image = np.full((1, side, side), 200, np.uint8)
    for bilinear in (0.0, 1.0):
        geometry, color = tables(image, (3, 3, 3))
        warp._close(geometry[0, 0], color[0, 0], op.PERSPECTIVE, bilinear)
        color[0, 0, op.WARP_MATRIX : op.WARP_MATRIX + 8] = 0, 0, 0, 0, 0, 0, 0, -2 / side  # 0 / 0 in the middle
        found, c = warped(image, geometry, color), color[0, 0, op.WARP_MATRIX : op.WARP_MATRIX + 8]
        compare(found, image, perspective_grid(c, side, side), bool(bilinear), (3, 3, 3))
        assert side % 2 == 0 or (found[0, side // 2] == 3).all()
