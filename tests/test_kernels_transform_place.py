"""Placing pixels: every turn of every window, converted and erased, and no byte outside of its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.kernels.transform.geometry import begin, crop, flip_horizontally, flip_vertically, transpose
from lmdbloader.kernels.transform.place import erase, finish, place, place_nearest, transpose_plane

GUARD = 32
MARK = 0x6D
FILL = (11, 222, 33)
SIDE = st.integers(1, 40) | st.sampled_from([1, 15, 16, 17, 31, 32, 33])


def picture(channels: int, height: int, width: int, dtype: Any) -> np.ndarray:
    rng = np.random.default_rng([channels, height, width])
    return rng.integers(0, np.iinfo(dtype).max + 1, (channels, height, width)).astype(dtype)


def turned(image: np.ndarray, which: int) -> np.ndarray:
    """Return one of the eight flips and quarter turns of (C, H, W)."""
    image = image.transpose(0, 2, 1) if which & 4 else image
    image = image[:, ::-1] if which & 2 else image
    return image[:, :, ::-1] if which & 1 else image


def turn(g: np.ndarray, which: int) -> None:
    """Do the same to a geometry."""
    if which & 4:
        transpose(g)
    if which & 2:
        flip_vertically(g)
    if which & 1:
        flip_horizontally(g)


def geometry(height: int, width: int) -> np.ndarray:
    g = np.zeros(op.NUM_GEOMETRY, np.int64)
    begin(g, height, width)
    g[op.FILL :] = FILL
    return g


def guarded(nbytes: int) -> np.ndarray:
    return np.full(nbytes + 2 * GUARD, MARK, np.uint8)


def inner(memory: np.ndarray, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return the values between the guards, which must be intact."""
    assert (memory[:GUARD] == MARK).all()
    assert (memory[-GUARD:] == MARK).all()
    return memory[GUARD:-GUARD].view(dtype).reshape(shape)


@st.composite
def windows(draw: Any) -> tuple[int, int, int, int, int, int, int, int]:
    """Draw (first turn, top, left, height, width, second turn) of a window of an image, (its height, its width)."""
    height, width, first, second = draw(SIDE), draw(SIDE), draw(st.integers(0, 7)), draw(st.integers(0, 7))
    full_h, full_w = (width, height) if first & 4 else (height, width)
    reach = draw(st.sampled_from([0, 0, 3, 50]))
    top, left = draw(st.integers(-reach, full_h - 1 + reach)), draw(st.integers(-reach, full_w - 1 + reach))
    h, w = draw(st.integers(1, full_h - top + reach)), draw(st.integers(1, full_w - left + reach))
    return height, width, first, top, left, h, w, second


def expected_window(image: np.ndarray, first: int, top: int, left: int, h: int, w: int, second: int) -> np.ndarray:
    channels = len(image)
    far = 100
    around = np.pad(turned(image, first), ((0, 0), (far, far), (far, far)))
    inside = np.pad(np.ones(turned(image, first).shape, bool), ((0, 0), (far, far), (far, far)))
    filled = np.where(inside, around, np.array(FILL[:channels], image.dtype)[:, None, None])
    return turned(filled[:, far + top : far + top + h, far + left : far + left + w], second)


@settings(max_examples=200)
@given(windows(), st.sampled_from([1, 3]), st.sampled_from([np.uint8, np.uint16]), st.integers(0, 5))
def test_any_window_turned_before_and_after_equals_numpys(window: Any, channels: int, dtype: Any, gap: int) -> None:
    height, width, first, top, left, h, w, second = window
    image = picture(channels, height, width, dtype)
    # Rows and planes may be further apart than their pixels.
    source = np.full((channels, height + gap, width + gap), 99, dtype)
    source[:, :height, :width] = image
    g = geometry(height, width)
    turn(g, first)
    crop(g, top, left, h, w)
    turn(g, second)
    expected = expected_window(image, first, top, left, h, w, second)
    memory = guarded(expected.nbytes)
    out = memory[GUARD:-GUARD].view(dtype)
    place(source.ravel(), width + gap, (height + gap) * (width + gap), channels, g, out)
    np.testing.assert_array_equal(inner(memory, dtype, expected.shape), expected)


@settings(max_examples=150)
@given(
    windows(), st.sampled_from([1, 3]), st.sampled_from([np.uint8, np.uint16]), st.booleans(),
    st.sampled_from([op.COPY, op.FLOAT, op.TABLE_8, op.TABLE_16, op.TABLE_32]),
)  # fmt: skip
def test_any_window_is_finished_in_either_layout(
    window: Any, channels: int, dtype: Any, channels_last: bool, kind: int
) -> None:
    height, width, first, top, left, h, w, second = window
    image = picture(channels, height, width, dtype)
    g = geometry(height, width)
    turn(g, first)
    crop(g, top, left, h, w)
    turn(g, second)
    result = expected_window(image, first, top, left, h, w, second)
    out_dtype = {op.COPY: dtype, op.TABLE_8: np.uint8, op.TABLE_16: np.uint16}.get(kind, np.float32)
    rng = np.random.default_rng(0)
    affine = rng.normal(size=(3, 2)).astype(np.float32)
    table = rng.integers(0, 256, (3, 65536)).astype(out_dtype)
    if kind == op.COPY:
        expected = result
    elif kind == op.FLOAT:
        expected = result.astype(np.float32) * affine[:channels, 0, None, None] + affine[:channels, 1, None, None]
    else:
        expected = np.stack([table[c][plane] for c, plane in enumerate(result)])
    expected = expected.transpose(1, 2, 0) if channels_last else expected
    memory, spare = guarded(expected.nbytes), guarded(result.nbytes)
    finish(
        image.ravel(), width, height * width, channels, g, np.uint64(memory.ctypes.data + GUARD),
        expected.itemsize, channels_last, kind, affine, np.uint64(table.ctypes.data), table.strides[0],
        spare[GUARD:-GUARD].view(dtype),
    )  # fmt: skip
    np.testing.assert_array_equal(inner(memory, out_dtype, expected.shape), expected)
    inner(spare, dtype, (-1,))


@given(SIDE, SIDE, st.sampled_from([np.uint8, np.uint16]), st.integers(0, 3))
def test_a_plane_is_transposed(height: int, width: int, dtype: Any, gap: int) -> None:
    source = picture(1, width, height + gap, dtype)[0]
    memory = guarded(source.itemsize * height * width)
    transpose_plane(source.ravel(), height + gap, memory[GUARD:-GUARD].view(dtype), width, height, width)
    np.testing.assert_array_equal(inner(memory, dtype, (height, width)), source[:, :height].T)


@given(
    st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3]), st.booleans(),
    st.sampled_from([np.uint8, np.uint16, np.uint32]), st.data(),
)  # fmt: skip
def test_a_rectangle_is_erased(
    height: int, width: int, channels: int, channels_last: bool, dtype: Any, data: st.DataObject
) -> None:
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    h, w = data.draw(st.integers(0, height - top)), data.draw(st.integers(1, width - left))  # the whole image, too
    shape = (height, width, channels) if channels_last else (channels, height, width)
    expected = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    memory = guarded(expected.nbytes)
    memory[GUARD:-GUARD] = expected.ravel().view(np.uint8)
    values = np.array([201, 202, 203], np.uint32)
    planes = expected.transpose(2, 0, 1) if channels_last else expected
    planes[:, top : top + h, left : left + w] = values[:channels, None, None]
    erase(
        np.uint64(memory.ctypes.data + GUARD), expected.itemsize, channels_last, channels, height, width,
        np.array([top, left, h, w]), values,
    )  # fmt: skip
    np.testing.assert_array_equal(inner(memory, dtype, shape), expected)


@pytest.mark.parametrize("size", [(16, 16), (17, 40), (15, 64), (48, 16), (5, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_eight_ways_compose_to_a_group(size: tuple[int, int], dtype: Any) -> None:
    image = picture(3, *size, dtype)
    for first in range(8):
        for second in range(8):
            g = geometry(*size)
            turn(g, first)
            turn(g, second)
            expected = turned(turned(image, first), second)
            out = np.empty(image.size, dtype)
            place(image.ravel(), size[1], size[0] * size[1], 3, g, out)
            np.testing.assert_array_equal(out.reshape(expected.shape), expected)


@settings(max_examples=60)
@given(st.data())
def test_any_size_takes_the_labels_that_torch_takes(data: st.DataObject) -> None:
    height, width, new_height, new_width = (data.draw(SIDE) for _ in range(4))
    dtype, which = data.draw(st.sampled_from([np.uint8, np.uint16])), data.draw(st.integers(0, 7))
    image = picture(1, height, width, dtype)
    g, result = geometry(height, width), image.astype(np.int64)
    turn(g, which)
    result = turned(result, which)
    pad = data.draw(st.integers(0, 3))  # a window that the image does not fill
    top, left = (
        data.draw(st.integers(0, result.shape[1] - 1)) - pad,
        data.draw(st.integers(0, result.shape[2] - 1)) - pad,
    )
    h, w = data.draw(SIDE), data.draw(SIDE)
    around = np.full((1, *(side + 120 for side in result.shape[1:])), FILL[0] % (np.iinfo(dtype).max + 1))
    around[:, 60:-60, 60:-60] = result
    crop(g, top, left, h, w)
    window = around[:, 60 + top : 60 + top + h, 60 + left : 60 + left + w]
    memory = guarded(new_height * new_width * image.itemsize)
    out = memory[GUARD:-GUARD].view(dtype)
    columns = np.zeros(new_width, np.int32)
    place_nearest(image.reshape(-1), width, g, out, new_height, new_width, columns)
    expected = torch.nn.functional.interpolate(torch.from_numpy(window.copy())[None].float(), (new_height, new_width))
    np.testing.assert_array_equal(inner(memory, dtype, (new_height, new_width)), expected[0, 0].numpy())
