"""Cutting patches and tiles against plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.kernels.entries import cut, cut_many, cut_tiles

images = st.tuples(
    st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 2, 3]), st.sampled_from([np.uint8, np.uint16])
)


def picture(height: int, width: int, channels: int, dtype: Any) -> np.ndarray:
    """Return an image (H, W, C) no two pixels of which are equal, as far as its dtype goes."""
    return (np.arange(height * width * channels) * 31).astype(dtype).reshape(height, width, channels)


@given(images, st.data())
def test_cut_is_a_slice_with_its_channels_in_front(image: Any, data: st.DataObject) -> None:
    pixels = picture(*image)
    top, left = data.draw(st.integers(0, image[0] - 1)), data.draw(st.integers(0, image[1] - 1))
    height, width = data.draw(st.integers(1, image[0] - top)), data.draw(st.integers(1, image[1] - left))
    expected = pixels[top : top + height, left : left + width].transpose(2, 0, 1).ravel()
    out = np.full(expected.size + 8, 99, pixels.dtype)
    cut(pixels, top, left, height, width, out)
    np.testing.assert_array_equal(out[:-8], expected)
    assert (out[-8:] == 99).all()


@given(images, st.data())
def test_cut_many_cuts_each_of_its_patches(image: Any, data: st.DataObject) -> None:
    pixels = picture(*image)
    height, width = (data.draw(st.integers(1, side)) for side in image[:2])
    places = data.draw(
        st.lists(st.tuples(st.integers(0, image[0] - height), st.integers(0, image[1] - width)), min_size=1, max_size=5)
    )
    tops, lefts = (np.array(values, np.int64) for values in zip(*places, strict=True))
    out = np.empty((len(places), image[2] * height * width), pixels.dtype)
    cut_many(pixels, tops, lefts, height, width, out)
    for patch, (top, left) in zip(out, places, strict=True):
        window = pixels[top : top + height, left : left + width].transpose(2, 0, 1)
        np.testing.assert_array_equal(patch.reshape(window.shape), window)


@given(images, st.integers(1, 50))
def test_tiles_follow_each_other_row_by_row(image: Any, tile: int) -> None:
    pixels = picture(*image)
    out = np.empty(pixels.size, pixels.dtype)
    cut_tiles(pixels, tile, out)
    tiles = [
        pixels[y : y + tile, x : x + tile].transpose(2, 0, 1).ravel()
        for y in range(0, image[0], tile)
        for x in range(0, image[1], tile)
    ]
    np.testing.assert_array_equal(out, np.concatenate(tiles))
