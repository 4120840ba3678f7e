"""A window of a JPEG, decoded and resized: luminance and color are resized each at its own resolution, then converted.

Color samples are not interpolated to the full size first, and if the window shrinks to half or less its blocks are
decoded to half their size or less (libjpeg's smaller transforms). The result differs by about one level from
decoding, converting and then resizing all of it.
"""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.jpeg.color import convert_line, stored_window, turn
from lmdbloader.kernels.jpeg.decode import planes_at, want
from lmdbloader.kernels.resize.antialias import resize_window
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import u8_at
from lmdbloader.kernels.runtime.symbols import memcpy

_TINY = 24  # pixels of a side


@kernel
def _shrinking(height, width, new_height, new_width):
    """Return the exponent (0 to 3) of the largest factor by which a window may shrink without being too small.

    In a tiny result every pixel is an edge, and smaller blocks tell most: it is made from twice its size.
    """
    least = 2 if new_height < _TINY and new_width < _TINY else 1
    exponent, least = np.int64(0), 2 * least
    while exponent < 3 and height >= least * new_height << exponent and width >= least * new_width << exponent:
        exponent += 1
    return exponent


@kernel
def _resize_plane(plane, row, origin, window, down, across, new_height, new_width, out, cubic, scratch):
    """Resize a plane's part of a window.

    Args:
        plane, row: Address of the decoded part, bytes to the next row.
        origin: (row, column) of the whole plane at which the decoded part begins.
        window: (top, bottom, left, right) in pixels of the image.
        down, across: Pixels of the image for one of the plane, in each direction.
        new_height, new_width, out, cubic, scratch: See `resize_window`; out is an address.
    """
    bounds, weights, line = scratch
    top, bottom, left, right = window
    first_row, end_row = top // down, (bottom + down - 1) // down
    first, end = left // across, (right + across - 1) // across
    at = (first_row - origin[0]) * row + first - origin[1]
    resize_window(
        u8_at(plane, at + (end_row - first_row) * row), at, row, np.int64(0), 1, end_row - first_row, end - first,
        top / down - first_row, left / across - first, (bottom - top) / down, (right - left) / across,
        u8_at(out, new_height * new_width), new_height, new_width, cubic, bounds, weights, line,
    )  # fmt: skip


@kernel
def _in_file(image, orientation, window, new_height, new_width):
    """Return the window in the file, the size of its result there, and the exponent of the scale that it needs."""
    inner = stored_window(window, image[0], image[1], orientation)
    h, w = new_height, new_width
    if orientation >= 5:
        h, w = w, h
    return inner, h, w, _shrinking(inner[1] - inner[0], inner[3] - inner[2], h, w)


@kernel
def want_resized(work, image, orientation, window, new_height, new_width):
    """Want what `write_resized` needs; see there."""
    (top, bottom, left, right), _, _, exponent = _in_file(image, orientation, window, new_height, new_width)
    want(work, exponent, (top, bottom), (left, right))


@kernel
def write_resized(work, image, orientation, window, new_height, new_width, cubic, out, other, scratch):
    """Write a window of a payload's upright image, whose planes are decoded, resized, as (C, new_height, new_width).

    Args:
        work: Address of `jpeg_room` bytes, which `decode_planes` has filled.
        image: (height, width, channels) of the upright image.
        orientation: 1 to 8, as in EXIF.
        window: (top, bottom, left, right), inside it.
        new_height, new_width: Of the result.
        cubic: Which filter, as in `resize_window`.
        out, other: Addresses of the result, and of as much room.
        scratch: (bounds, weights, line), see `resize_scratch`.
    """
    channels = image[2]
    inner, h, w, exponent = _in_file(image, orientation, window, new_height, new_width)
    shrink = np.int64(1) << exponent
    planes = planes_at(work, exponent)
    plane, row, color, color_row, color_plane, y0, x0, color_y0, color_x0, half_rows, half_columns = planes
    size = np.uint64(h * w)
    target = out if channels == 1 else other
    _resize_plane(plane, row, (y0, x0), inner, shrink, shrink, h, w, target, cubic, scratch)
    if channels == 3:
        down, across = (2 * shrink if half_rows else shrink), (2 * shrink if half_columns else shrink)
        for c in range(2):
            _resize_plane(
                color + np.uint64(c * color_plane), color_row, (color_y0, color_x0), inner, down, across, h, w,
                other + np.uint64(c + 1) * size, cubic, scratch,
            )  # fmt: skip
        convert_line(other, other + size, other + size + size, out, out + size, out + size + size, np.int64(size))
    if orientation != 1:
        turn(out, channels, new_height, new_width, orientation, other)
        memcpy(out, other, np.uint64(channels) * size)
