"""Kernels that resize with antialiasing, by the BILINEAR and BICUBIC filters of Pillow."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.resize.antialias_bytes import bytes_scratch, resize_bytes
from lmdbloader.kernels.resize.weights import weigh
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import array_at, f32_at, part, u8_at, u16_at
from lmdbloader.kernels.transform.place import transpose_plane

_MOST_TAPS_AT_ONCE = 4
_MOST_PLANES_AT_ONCE = 3


@kernel
def resize_scratch(height, width, out_height, out_width, channels, cubic, between):
    """Return the lengths of the scratch of `resize_window` for windows and results up to these sizes.

    Args:
        height, width: Of the highest and the widest window.
        out_height, out_width: Of the highest and the widest result.
        channels: Number of planes.
        cubic: Whether the filter is BICUBIC.
        between: The largest product of a window's height and its own or its result's width: the values of an image that
            is resized in one direction; at most height * max(width, out_width), and less if the highest window is not
            the widest.

    Returns:
        Lengths of bounds (int32), weights (float32) and line (float32).
    """
    weights, nbytes = bytes_scratch(height, width, out_height, out_width, channels, cubic, between)
    # Of uint16 and float32 images: a line of sums, and two planes.
    line = max(height, out_width) + 2 * between
    return out_height + out_width, weights, max(line, -(-nbytes // 4))


@kernel
def has_scratch(height, width, out_height, out_width, cubic, scratch):
    """Return whether `resize_window` has scratch for a window, turned or not."""
    bounds, weights, line = scratch
    longest, out_longest = max(height, width), max(out_height, out_width)
    if longest + out_longest > bounds.shape[0]:
        return False
    between = max(height * max(width, out_width), width * max(height, out_height))
    _, num_weights, num_line = resize_scratch(
        longest, longest, out_longest, out_longest, _MOST_PLANES_AT_ONCE, cubic, between
    )
    return num_weights <= weights.shape[0] and num_line <= line.shape[0]


@kernel
def _add_four(line, a, b, c, d, p, q, r, s):
    for x in range(line.shape[0]):
        line[x] += p * np.float32(a[x]) + q * np.float32(b[x]) + r * np.float32(c[x]) + s * np.float32(d[x])


@kernel
def _add_one(line, a, weight):
    for x in range(line.shape[0]):
        line[x] += weight * np.float32(a[x])


@kernel
def _round_into(line, out):
    if out.itemsize == 4:
        for x in range(line.shape[0]):
            out[x] = line[x]
        return
    for x in range(line.shape[0]):
        out[x] = np.int32(min(max(line[x], np.float32(0)), np.float32(65535.25)))


@kernel
def _resize_rows(source, row, width, count, starts, weights, line, out, out_height):
    """Resize a plane's height: each row of the result is a weighted sum of rows, which vector instructions add.

    Args:
        source, row, width: The plane, the step to its next row, values of a row.
        count, starts, weights: As `weigh` returns and fills them.
        line: (width,) float32, scratch.
        out: uint16 or float32 (out_height * width,), filled; floats are neither rounded nor limited.
        out_height: Rows of the result.
    """
    for y in range(out_height):
        for x in range(width):
            line[x] = np.float32(0 if out.itemsize == 4 else 0.5)  # so that cutting the fraction off rounds half up
        first, mine = np.int64(starts[y]), part(weights, y, weights.shape[0] - y)
        k = np.int64(0)
        while count - k >= _MOST_TAPS_AT_ONCE:
            start = (first + k) * row
            _add_four(
                line, part(source, start, width), part(source, start + row, width),
                part(source, start + 2 * row, width), part(source, start + 3 * row, width),
                mine[k * out_height], mine[(k + 1) * out_height], mine[(k + 2) * out_height],
                mine[(k + 3) * out_height],
            )  # fmt: skip
            k += _MOST_TAPS_AT_ONCE
        while k < count:
            _add_one(line, part(source, (first + k) * row, width), mine[k * out_height])
            k += 1
        _round_into(line, part(out, y * width, width))


@kernel
def _resize_words(
    source, at, row, plane, channels, height, width, box_top, box_left, box_height, box_width, out, out_height,
    out_width, cubic, bounds, weights, line,
):  # fmt: skip
    """Resize a part of a window of a uint16 or float32 image; see `resize_window`."""
    one = np.int64(1)
    top, bottom, count = weigh(height, box_top, box_height, out_height, cubic, one, bounds, weights)
    across = part(bounds, out_height, out_width)
    used = out_height * (count + 2)
    weights_across = part(weights, used, weights.shape[0] - used)
    left, right, count_across = weigh(width, box_left, box_width, out_width, cubic, one, across, weights_across)
    # Only the rows and columns that the result is made of.
    height, width = bottom - top, right - left
    at += top * row + left
    values = height * max(width, out_width)
    room = line.ctypes.data + np.uint64(4 * max(height, out_width))
    first = array_at(room, values, source)
    second = array_at(room + np.uint64(values * source.itemsize), values, source)
    for c in range(channels):
        # Columns as the rows of the transposed plane.
        pixels = part(source, at + c * plane, (height - 1) * row + width)
        transpose_plane(pixels, row, first, height, width, height)
        sums = part(line, 0, height)
        _resize_rows(first, height, height, count_across, across, weights_across, sums, second, out_width)
        transpose_plane(second, height, first, out_width, height, out_width)
        result, sums = part(out, c * out_height * out_width, out_height * out_width), part(line, 0, out_width)
        _resize_rows(first, out_width, out_width, count, bounds, weights, sums, result, out_height)


@kernel
def resize_window(
    source, at, row, plane, channels, height, width, box_top, box_left, box_height, box_width, out, out_height,
    out_width, cubic, bounds, weights, line,
):  # fmt: skip
    """Resize a part of a window of an image: columns, then rows, each rounded by itself, as Pillow does.

    Args:
        source: uint8, uint16 or float32 (n,); at: where the window begins; row, plane: steps to the next row and plane.
        channels, height, width: Of the window.
        box_top, box_left, box_height, box_width: float64, the part that is resized, inside the window. It may begin
            and end between pixels; the pixels around it in the window count for those at its edges.
        out: Of source's type, filled with contiguous planes (channels, out_height, out_width).
        out_height, out_width: Of the result.
        cubic: The bicubic filter instead of the triangle.
        bounds, weights, line: Scratch, as long as `resize_scratch` says.
    """
    if source.itemsize == 1:
        for c in range(0, channels, _MOST_PLANES_AT_ONCE):
            begin = c * out_height * out_width
            resize_bytes(
                u8_at(source.ctypes.data, source.shape[0]), at + c * plane, row, plane,
                min(np.int64(_MOST_PLANES_AT_ONCE), channels - c), height, width, box_top, box_left, box_height,
                box_width, u8_at(out.ctypes.data + np.uint64(begin), out.shape[0] - begin), out_height, out_width,
                cubic, bounds, weights, line,
            )  # fmt: skip
    elif source.itemsize == 4:
        _resize_words(
            f32_at(source.ctypes.data, source.shape[0]), at, row, plane, channels, height, width, box_top, box_left,
            box_height, box_width, f32_at(out.ctypes.data, out.shape[0]), out_height, out_width, cubic, bounds, weights,
            line,
        )  # fmt: skip
    else:
        _resize_words(
            u16_at(source.ctypes.data, source.shape[0]), at, row, plane, channels, height, width, box_top, box_left,
            box_height, box_width, u16_at(out.ctypes.data, out.shape[0]), out_height, out_width, cubic, bounds, weights,
            line,
        )  # fmt: skip
