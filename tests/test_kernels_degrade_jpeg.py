"""JPEG as a degradation: libjpeg's pixels bit for bit, and DiffJPEG's, inside the given memory."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from degradation_reference import COLOR, LUMA, TO_RGB, TO_YCC
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from skimage import data as photographs

from lmdbloader.kernels.entries import compress_diffjpeg, compress_libjpeg, degrade_jpeg_room

GUARD, MARK = 256, 0x5B
PHOTOGRAPH = photographs.astronaut().transpose(2, 0, 1)
SIDE = st.integers(1, 70) | st.sampled_from([8, 16, 32, 64])
KINDS = st.sampled_from(["photograph", "noise", "black and white", "grey levels"])


def compressed(kernel: Any, image: np.ndarray, *options: Any, in_place: bool = False) -> np.ndarray:
    """Compress planes (C, H, W); everything that is written to between guards."""
    room = int(degrade_jpeg_room(*image.shape[1:]))
    work = np.full(room + GUARD, MARK, np.uint8)
    out = np.full(image.size + 2 * GUARD, MARK, np.float32)
    source = np.ascontiguousarray(image, np.float32).ravel()
    if in_place:
        out[GUARD:-GUARD] = source
        source = out[GUARD:-GUARD]
    kernel(source, *image.shape, *options, out[GUARD:-GUARD], work[:room])
    assert (out[:GUARD] == MARK).all()
    assert (out[-GUARD:] == MARK).all()
    assert (work[room:] == MARK).all()
    return out[GUARD:-GUARD].reshape(image.shape)


def planes(kind: str, seed: int, channels: int, height: int, width: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape = (channels, height, width)
    if kind == "photograph":
        top, left = rng.integers(0, 512 - height), rng.integers(0, 512 - width)
        return (PHOTOGRAPH[:channels, top : top + height, left : left + width] / 255).astype(np.float32)
    if kind == "grey levels":  # some a little beyond 0 and 1, some halfway between two of 8 bits
        return (rng.integers(-3, 515, shape) / 510).astype(np.float32)
    return rng.random(shape, np.float32) if kind == "noise" else rng.integers(0, 2, shape).astype(np.float32)


def of_pillow(image: np.ndarray, quality: int, halves: bool) -> np.ndarray:
    """Return an image (C, H, W) as Pillow saves and opens it."""
    pixels = np.round(image.clip(0, 1) * np.float32(255)).astype(np.uint8)
    file = io.BytesIO()
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    picture.save(file, "JPEG", quality=quality, subsampling=2 if halves else 0)
    found = np.atleast_3d(np.array(Image.open(file))).transpose(2, 0, 1)
    return (found / 255.0).astype(np.float32)


@settings(max_examples=400)
@given(
    KINDS, st.integers(0, 99), st.sampled_from([1, 3]), SIDE, SIDE, st.integers(1, 100), st.booleans(), st.booleans()
)
def test_pixels_are_those_of_pillow(
    kind: str, seed: int, channels: int, height: int, width: int, quality: int, halves: bool, in_place: bool
) -> None:
    image = planes(kind, seed, channels, height, width)
    found = compressed(compress_libjpeg, image, quality, halves, in_place=in_place)
    assert np.array_equal(found, of_pillow(image, quality, halves))


@pytest.mark.parametrize("halves", [True, False])
def test_every_quality_has_the_pixels_of_pillow(halves: bool) -> None:
    image = planes("photograph", 3, 3, 61, 67)
    for quality in range(1, 101):
        assert np.array_equal(compressed(compress_libjpeg, image, quality, halves), of_pillow(image, quality, halves))


def cosines() -> np.ndarray:
    """Return the orthonormal transform of eight values."""
    found = np.cos((2 * np.arange(8) + 1) * np.arange(8)[:, None] * np.pi / 16) / 2
    found[0] /= np.sqrt(2)
    return found


def quantized(plane: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a plane of whole blocks quantized, and of each block whether a coefficient is about halfway."""
    height, width = plane.shape
    blocks = plane.reshape(height // 8, 8, width // 8, 8).swapaxes(1, 2)
    coefficients = cosines() @ blocks @ cosines().T / table
    # float32 sums of so large values may be so far off.
    halfway = (np.abs(coefficients % 1 - 0.5) * table < 1e-3).any((2, 3))
    back = cosines().T @ (np.round(coefficients) * table) @ cosines()
    return back.swapaxes(1, 2).reshape(height, width), halfway


def diffjpeg(image: np.ndarray, quality: float) -> tuple[np.ndarray, np.ndarray]:
    """Return an RGB image after DiffJPEG in float64, and which pixels depend on a coefficient about halfway."""
    height, width = image.shape[1:]
    padded = np.pad(image.astype(np.float64) * 255, ((0, 0), (0, -height % 16), (0, -width % 16)))
    factor = 50 / quality if quality < 50 else 2 - quality / 50
    y, *colors = np.tensordot(TO_YCC, padded, 1)
    # Its table of luminance is transposed.
    found, halfway = quantized(y - 128, LUMA.T * factor)
    ycc, changing = [found + 128], halfway.repeat(8, 0).repeat(8, 1)
    for plane in colors:
        means = plane.reshape(plane.shape[0] // 2, 2, plane.shape[1] // 2, 2).mean((1, 3))
        found, halfway = quantized(means, COLOR * factor)
        ycc.append(found.repeat(2, 0).repeat(2, 1))
        changing = changing | halfway.repeat(16, 0).repeat(16, 1)
    rgb = np.tensordot(TO_RGB, np.stack(ycc), 1).clip(0, 255) / 255
    return rgb[:, :height, :width], changing[:height, :width]


@settings(max_examples=200)
@given(KINDS, st.integers(0, 99), SIDE, SIDE, st.floats(1, 99.5), st.booleans())
def test_pixels_are_those_of_diffjpeg(
    kind: str, seed: int, height: int, width: int, quality: float, in_place: bool
) -> None:
    image = planes(kind, seed, 3, height, width).clip(0, 1)
    found = compressed(compress_diffjpeg, image, quality, in_place=in_place)
    expected, changing = diffjpeg(image, quality)
    off = np.abs(found - expected) * 255
    assert off[:, ~changing].max(initial=0) < 0.02


def test_photographs_are_those_of_diffjpeg_nearly_everywhere() -> None:
    for quality in (30.0, 50.0, 71.3, 95.0):
        expected, changing = diffjpeg(image := planes("photograph", 5, 3, 400, 333), quality)
        off = np.abs(compressed(compress_diffjpeg, image, quality) - expected) * 255
        assert changing.mean() < 0.5
        assert off.mean() < 0.01
        assert off.max() < 1


@given(KINDS, st.integers(0, 99), SIDE, SIDE, st.floats(1, 99.5), st.booleans())
def test_grey_becomes_what_grey_rgb_becomes(
    kind: str, seed: int, height: int, width: int, quality: float, in_place: bool
) -> None:
    image = planes(kind, seed, 1, height, width).clip(0, 1)
    found = compressed(compress_diffjpeg, image, quality, in_place=in_place)
    assert np.array_equal(found[0], compressed(compress_diffjpeg, np.repeat(image, 3, 0), quality)[0])
