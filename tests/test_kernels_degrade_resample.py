"""Resizing float planes: the results of torch, Pillow, OpenCV, MATLAB and traiNNer-redux, inside the given memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from lmdbloader.kernels.degrade import modes
from lmdbloader.kernels.entries import resample, resample_room

GUARD, MARK = 64, 77
SIDE = st.integers(2, 70) | st.sampled_from([8, 15, 16, 17, 64, 127, 128])
ANY_SIDE = st.just(1) | SIDE
SCALE = st.floats(0.1, 4) | st.sampled_from([0.25, 0.5, 2, 3, 4])
# A sum of float32 weights and values is so exact; torch's own coordinates are float32, too, so its results are less so.
EXACT, CLOSE = 3e-6, 4e-5
TORCH = {
    "area": (modes.AREA, False), "bilinear": (modes.BILINEAR, False), "bicubic": (modes.BICUBIC, False),
    "bilinear antialiased": (modes.BILINEAR, True), "bicubic antialiased": (modes.BICUBIC, True),
    "nearest-exact": (modes.NEAREST_EXACT, False),
}  # fmt: skip


def resized(
    image: np.ndarray, size: tuple[int, int], mode: int, *, antialias: bool = False, factors: Any = (0, 0)
) -> np.ndarray:
    """Resize planes (C, H, W); everything that is written to between guards."""
    lengths = resample_room(*image.shape[1:], *size)
    kinds = (np.int32, np.float32, np.float32)
    scratch = [np.full(n + GUARD, MARK, kind) for n, kind in zip(lengths, kinds, strict=True)]
    out = np.full(image.shape[0] * size[0] * size[1] + 2 * GUARD, MARK, np.float32)
    source = np.ascontiguousarray(image, np.float32).ravel()
    resample(
        source, *image.shape, out[GUARD:-GUARD], *size, mode, antialias, *map(float, factors),
        *(a[:n] for a, n in zip(scratch, lengths, strict=True)),
    )  # fmt: skip
    assert (out[:GUARD] == MARK).all()
    assert (out[-GUARD:] == MARK).all()
    for a, n in zip(scratch, lengths, strict=True):
        assert (a[n:] == MARK).all()
    return out[GUARD:-GUARD].reshape(-1, *size)


def planes(seed: int, channels: int, height: int, width: int) -> np.ndarray:
    """Noise, every other time of black and white only, for which bicubic overshoots most."""
    found = np.random.default_rng(seed).random((channels, height, width), np.float32)
    return found if seed % 2 else np.round(found)


def cubic(a: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return Keys' cubic."""

    def value(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        near, far = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * (x**3 - 5 * x**2 + 8 * x - 4)
        return np.where(x < 1, near, np.where(x < 2, far, 0))

    return value


def lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def filtered(size: int, out_size: int, ratio: float, stretch: float, kernel: Any, border: Any) -> np.ndarray:
    """Return a filter as a matrix (out_size, size); `border` as NumPy's pad names it; None: nothing is beyond."""
    pad = math.ceil(4 * stretch + ratio) + 2 if border else 0
    places = np.arange(-pad, size + pad) + 0.5
    weights = kernel((places - (np.arange(out_size)[:, None] + 0.5) * ratio) / stretch)
    beyond: np.ndarray = np.pad(np.eye(size), ((pad, pad), (0, 0)), mode=border) if border else np.eye(size)
    return weights / weights.sum(1, keepdims=True) @ beyond


def redux(size: int, out_size: int) -> np.ndarray:
    """Return traiNNer-redux's "lanczos" as a matrix: a filter that is normalized by itself, before bicubic."""
    found = filtered(size, out_size, size / out_size, 1, cubic(-0.75), "edge")
    if out_size < size:
        ratio = size / out_size
        side = math.ceil(3 * ratio + 1) - 2
        weights = lanczos(np.arange(-side, side + 1) / ratio)
        windows = np.lib.stride_tricks.sliding_window_view(
            np.pad(np.eye(size), ((side, side), (0, 0)), mode="reflect"), 2 * side + 1, axis=0
        )
        found = found @ (windows @ (weights / weights.sum()))
    return found


def of_parts(size: int, out_size: int, shrinks: bool) -> np.ndarray:
    """Return OpenCV's INTER_AREA as a matrix: means of parts of pixels; bilinear if a side of the image grows."""
    ratio, i = 1 / (out_size / size), np.arange(out_size)
    found = np.zeros((out_size, size))
    if shrinks:
        begin, end = i[:, None] * ratio, (i[:, None] + 1) * ratio
        parts = np.minimum(end, np.arange(size) + 1) - np.maximum(begin, np.arange(size))
        # Smaller parts are left out.
        return np.where(parts > 1e-3, parts, 0) / np.minimum(ratio, size - begin)
    first = np.floor(i * ratio).astype(int)
    share = ((i + 1) - (first + 1) * (out_size / size)).astype(np.float32)
    share = np.where((share <= 0) | (first >= size - 1), 0, share - np.floor(share))
    found[i, np.minimum(first, size - 1)] = 1 - share
    found[i, np.minimum(first + 1, size - 1)] += share
    return found


def difference(found: np.ndarray, image: np.ndarray, down: np.ndarray, across: np.ndarray) -> float:
    """Return how much a result differs from two matrices at most."""
    return float(np.abs(found - down @ image.astype(np.float64) @ across.T).max())


@pytest.mark.parametrize("name", TORCH)
@settings(max_examples=60)
@given(data=st.data())
def test_sizes_and_scales_are_those_of_torch(name: str, data: st.DataObject) -> None:
    # With sides of 1 pixel torch mistakes rows for channels.
    height, width, seed = data.draw(SIDE), data.draw(SIDE), data.draw(st.integers(0, 99))
    mode, antialias = TORCH[name]
    given_size = data.draw(st.booleans())
    factors = (0.0, 0.0) if given_size else (data.draw(SCALE), data.draw(SCALE))
    size = (data.draw(SIDE), data.draw(SIDE))
    if not given_size:
        size = (math.floor(height * factors[0]), math.floor(width * factors[1]))
        assume(min(size) > 1)
    image = planes(seed, 3, height, width)
    options: dict[str, Any] = {"size": size} if given_size else {"scale_factor": factors}
    found = resized(image, size, mode, antialias=antialias, factors=factors)
    batch = torch.from_numpy(image)[None]

    def defined(values: torch.Tensor) -> np.ndarray:
        word = name.split()[0]
        result = torch.nn.functional.interpolate(
            values, mode=word, **options, **({"antialias": True} if antialias else {})
        )
        return result[0].numpy()

    if name == "nearest-exact":
        # Halfway between two pixels, torch takes one or the other, as its path for the shape computes.
        expected = defined(batch)
        for axis, (n, out_n, factor) in enumerate(zip(image.shape[1:], size, factors, strict=True), 1):
            places = (np.arange(out_n) + 0.5) * (1 / factor if factor else n / out_n)
            clear = np.abs(places - np.round(places)) > 1e-4
            found, expected = found.compress(clear, axis), expected.compress(clear, axis)
        assert np.array_equal(found, expected)
        return
    assert np.abs(found - defined(batch)).max() < CLOSE
    assert np.abs(found - defined(batch.double())).max() < EXACT


@settings(max_examples=150)
@given(ANY_SIDE, ANY_SIDE, ANY_SIDE, ANY_SIDE, st.integers(0, 99))
def test_lanczos_is_that_of_pillow(height: int, width: int, out_height: int, out_width: int, seed: int) -> None:
    image = planes(seed, 2, height, width)
    found = resized(image, (out_height, out_width), modes.LANCZOS)
    for plane, result in zip(image, found, strict=True):
        defined = Image.fromarray(plane).resize((out_width, out_height), Image.Resampling.LANCZOS)
        assert np.abs(result - np.array(defined)).max() < EXACT


@settings(max_examples=200)
@given(data=st.data())
def test_every_mode_is_what_its_definition_says(data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from([modes.BILINEAR, modes.BICUBIC, modes.MATLAB, modes.LANCZOS, modes.REDUX]))
    antialias = data.draw(st.booleans())
    image = planes(
        data.draw(st.integers(0, 99)), data.draw(st.integers(1, 3)), data.draw(ANY_SIDE), data.draw(ANY_SIDE)
    )
    sides = image.shape[1:]
    size, factors = (data.draw(ANY_SIDE), data.draw(ANY_SIDE)), (0.0, 0.0)
    if mode == modes.MATLAB and data.draw(st.booleans()):
        factors = (data.draw(SCALE), data.draw(SCALE))
        size = (math.ceil(sides[0] * factors[0]), math.ceil(sides[1] * factors[1]))
    matrices = []
    for n, out_n, factor in zip(sides, size, factors, strict=True):
        ratio = 1 / factor if factor else n / out_n
        stretch = max(ratio, 1)
        plain = {
            modes.BILINEAR: lambda x: np.maximum(1 - np.abs(x), 0), modes.BICUBIC: cubic(-0.5 if antialias else -0.75),
            modes.MATLAB: cubic(-0.5), modes.LANCZOS: lanczos,
        }  # fmt: skip
        border = "symmetric" if mode == modes.MATLAB else None if antialias or mode == modes.LANCZOS else "edge"
        if mode == modes.REDUX:
            matrices.append(redux(n, out_n))
        else:
            stretch = 1.0 if border == "edge" else stretch
            matrices.append(filtered(n, out_n, ratio, stretch, plain[mode], border))
    assert difference(resized(image, size, mode, antialias=antialias, factors=factors), image, *matrices) < EXACT


@settings(max_examples=150)
@given(data=st.data())
def test_means_of_parts_are_those_of_opencv(data: st.DataObject) -> None:
    image = planes(data.draw(st.integers(0, 99)), 3, data.draw(ANY_SIDE), data.draw(ANY_SIDE))
    (height, width), size = image.shape[1:], (data.draw(ANY_SIDE), data.draw(ANY_SIDE))
    shrinks = height >= size[0] and width >= size[1]
    found = resized(image, size, modes.AREA_OF_PARTS)
    assert difference(found, image, of_parts(height, size[0], shrinks), of_parts(width, size[1], shrinks)) < EXACT


@pytest.mark.parametrize("mode", range(8))
def test_a_size_that_stays_copies(mode: int) -> None:
    image = planes(1, 3, 40, 33)
    assert np.array_equal(resized(image, (40, 33), mode), image)
