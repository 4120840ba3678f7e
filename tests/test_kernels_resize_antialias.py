"""Resizing: Pillow's BILINEAR and BICUBIC of any box, rounded after each direction, inside the given memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from forbidden_pages import run_apart
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transform_reference import resize as defined

from lmdbloader.kernels.entries import resize_scratch, resize_window

GUARD = 32
MARK = 0x5B
# The kernel's weights have so many bits that a sum is off by less, where no weight is negative.
OFF = 1 / 32
SIDE = st.integers(1, 70) | st.sampled_from([1, 2, 15, 16, 17, 33, 64, 65, 127])


def resized(
    image: np.ndarray, height: int, width: int, cubic: bool, *, window: Any = None, box: Any = None
) -> np.ndarray:
    """Resize planes (C, H, W), a window of them or a box of that; everything that is written to between guards."""
    channels, full_height, full_width = image.shape
    top, left, h, w = window or (0, 0, full_height, full_width)
    box = [float(value) for value in box or (0, 0, h, w)]
    lengths = resize_scratch(h, w, height, width, channels, cubic, h * max(w, width))
    kinds = (np.int32, np.float32, np.float32)
    scratch = [np.full(n + GUARD, MARK, kind) for n, kind in zip(lengths, kinds, strict=True)]
    out = np.full(channels * height * width + 2 * GUARD, MARK, image.dtype)
    resize_window(
        np.ascontiguousarray(image).ravel(), top * full_width + left, full_width, full_height * full_width, channels,
        h, w, *box, out[GUARD:-GUARD], height, width, cubic, *(a[:n] for a, n in zip(scratch, lengths, strict=True)),
    )  # fmt: skip
    assert (out[:GUARD] == MARK).all()
    assert (out[-GUARD:] == MARK).all()
    for a, n in zip(scratch, lengths, strict=True):
        assert (a[n:] == MARK).all()
    return out[GUARD:-GUARD].reshape(channels, height, width)


def boxes(height: int, width: int) -> st.SearchStrategy[tuple[float, float, float, float]]:
    """Boxes in a window: all of it, cut between pixels in any way, in eighths as of a smaller decoding."""

    def of(size: int) -> st.SearchStrategy[tuple[float, float]]:
        any_edges = st.tuples(st.floats(0, size, width=32), st.floats(0, size, width=32)).map(sorted)
        eighths = st.tuples(st.integers(0, 8 * size), st.integers(0, 8 * size)).map(
            lambda e: [v / 8 for v in sorted(e)]
        )
        edges = (any_edges | eighths).filter(lambda e: e[1] - e[0] > 0.01)
        return st.just((0.0, float(size))) | edges.map(lambda e: (e[0], e[1] - e[0]))

    return st.tuples(of(height), of(width)).map(lambda b: (b[0][0], b[1][0], b[0][1], b[1][1]))


def noise(seed: int, shape: tuple[int, int, int], dtype: Any) -> np.ndarray:
    """Random pixels, every other time only the darkest and brightest ones, for which bicubic overshoots most."""
    rng, most = np.random.default_rng(seed), np.iinfo(dtype).max
    return (rng.integers(0, most + 1, shape) if seed % 2 else rng.integers(0, 2, shape) * most).astype(dtype)


@settings(max_examples=200)
@given(st.data())
def test_a_box_of_a_window_resizes_as_defined_in_float64(data: st.DataObject) -> None:
    channels, dtype = data.draw(st.sampled_from([1, 3])), data.draw(st.sampled_from([np.uint8, np.uint16]))
    full_height, full_width, height, width = (data.draw(SIDE) for _ in range(4))
    h, w = data.draw(st.integers(1, full_height)), data.draw(st.integers(1, full_width))
    top, left = data.draw(st.integers(0, full_height - h)), data.draw(st.integers(0, full_width - w))
    box = data.draw(boxes(h, w))
    cubic, most = data.draw(st.booleans()), np.iinfo(dtype).max
    image = noise(data.draw(st.integers(0, 99)), (channels, full_height, full_width), dtype)
    found = resized(image, height, width, cubic, window=(top, left, h, w), box=box).astype(np.float64)
    cut = image[:, top : top + h, left : left + w].astype(np.float64)
    # A value about halfway may be rounded either way, and so may its results.
    if cubic:
        assert np.abs(found - defined(cut, height, width, cubic, most, box=box)).max() <= 2
        return
    least, largest = (defined(cut, height, width, cubic, most, box=box, half=half) for half in (0.5 + OFF, 0.5 - OFF))
    assert ((least <= found) & (found <= largest)).all()


def pillows(image: np.ndarray, height: int, width: int, cubic: bool, box: Any = None) -> np.ndarray:
    """Return Pillow's resize of uint8 planes, columns first: by itself Pillow 13 now and then begins with the rows."""
    how = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
    found = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
    top, left, h, w = box or (0, 0, *image.shape[1:])
    found = found.resize((width, found.height), how, (left, 0, left + w, found.height))
    planes = np.asarray(found.resize((width, height), how, (0, top, width, top + h)))
    return (planes[None] if len(image) == 1 else planes.transpose(2, 0, 1)).astype(int)


@settings(max_examples=100)
@given(st.data())
def test_equals_pillow_but_for_halves(data: st.DataObject) -> None:
    h, w, height, width = (data.draw(SIDE) for _ in range(4))
    cubic, box = data.draw(st.booleans()), data.draw(boxes(h, w))
    image = noise(data.draw(st.integers(0, 99)), (data.draw(st.sampled_from([1, 3])), h, w), np.uint8)
    off = np.abs(resized(image, height, width, cubic, box=box) - pillows(image, height, width, cubic, box))
    assert off.max() <= (2 if cubic else 1)


@pytest.mark.parametrize("size", [(1, 400, 1, 3), (400, 1, 3, 1), (1, 1, 300, 300), (300, 2, 2, 300), (500, 500, 1, 1)])
@pytest.mark.parametrize("cubic", [False, True])
def test_extreme_sizes_stay_inside_their_scratch(size: tuple[int, int, int, int], cubic: bool) -> None:
    h, w, height, width = size
    image = np.random.default_rng(1).integers(0, 65536, (1, h, w)).astype(np.uint16)
    found = resized(image, height, width, cubic).astype(float)
    assert np.abs(found - defined(image.astype(float), height, width, cubic, 65535)).max() <= 1


# In a fork of this process, as reading one byte too many ends it.
BETWEEN_FORBIDDEN_PAGES = """
import numpy as np
from forbidden_pages import between_forbidden_pages
from lmdbloader.kernels.entries import resize_scratch, resize_window

WINDOWS = [(1, 1, 0, 0), (3, 50, 1, 2), (16, 16, 0, 0), (17, 33, 1, 30), (70, 90, 3, 7), (100, 15, 9, 1)]
for dtype in (np.uint8, np.uint16):
    pixels = between_forbidden_pages(16).view(dtype)
    for h, w, top, left in WINDOWS:
        for size in ((9, 9), (80, 120)):
            count = 3 * h * w
            lengths = resize_scratch(h, w, *size, 3, True, h * max(w, size[1]))
            scratch = [np.zeros(n, kind) for n, kind in zip(lengths, (np.int32, np.float32, np.float32))]
            for source in (pixels[:count], pixels[-count:]):
                resize_window(
                    source, top * w + left, w, h * w, 3, h - top, w - left, 0.0, 0.0, float(h - top), float(w - left),
                    np.zeros(3 * size[0] * size[1], dtype), *size, True, *scratch,
                )
print("read no more than there is")
"""


def test_nothing_outside_of_the_image_is_read() -> None:
    assert run_apart(BETWEEN_FORBIDDEN_PAGES) == (0, "read no more than there is\n")
