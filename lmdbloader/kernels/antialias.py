"""Resizing with antialiasing, as Pillow defines its BILINEAR and BICUBIC filters."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels._compile import kernel
from lmdbloader.kernels._memory import array_at, part
from lmdbloader.kernels.place import transpose_plane

_MOST_TAPS_AT_ONCE = 4


def resize_scratch(
    height: int, width: int, out_height: int, out_width: int, channels: int, cubic: bool
) -> tuple[int, int, int]:
    """Return how long the scratch of `resize_window` must be for windows and results that are not larger.

    Returns:
        Lengths of bounds (int32), weights (float32) and line (float32).
    """
    longest = max(height, width, out_height, out_width)
    most = max(out_height, out_width)
    reach = 4 if cubic else 2
    # Shrinking: every value counts for `reach` results; enlarging: every result is made of `reach` values, and some
    # more by rounding.
    weights = 2 * (reach * longest + (reach + 2) * most)
    values = max(out_height, height) * max(out_width, width)
    return 4 * most, weights, longest + 2 * (values // 2 + 64)


@kernel
def _filter(x, cubic):
    """Return the triangle's height at x, or that of Keys' cubic with a = -0.5."""
    x = abs(x)
    if not cubic:
        return max(1.0 - x, 0.0)
    if x < 1.0:
        return (1.5 * x - 2.5) * x * x + 1.0
    if x < 2.0:
        return ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return 0.0


@kernel
def _weigh(size, begin, length, out_size, cubic, bounds, weights):
    """Fill in which values every result is made of.

    Args:
        size, out_size: Number of values and of results.
        begin, length: Where the part to be resized begins and how long it is, in float64 values.
        cubic: Which filter.
        bounds: (2 * out_size,) int32, set to the first value of each result and to how many there are.
        weights: float32, set to their weights, result after result.

    Returns:
        How many weights there are.
    """
    scale = length / out_size
    stretch = max(scale, 1.0)
    support = (2.0 if cubic else 1.0) * stretch
    at = 0
    for i in range(out_size):
        center = begin + (i + 0.5) * scale
        first = max(np.int64(center - support + 0.5), 0)
        count = min(np.int64(center + support + 0.5), size) - first
        total = 0.0
        for k in range(count):
            weight = _filter((k + first - center + 0.5) / stretch, cubic)
            weights[at + k] = weight
            total += weight
        for k in range(count):
            weights[at + k] = np.float32(weights[at + k] / total)
        bounds[2 * i], bounds[2 * i + 1] = first, count
        at += count
    return at


@kernel
def _add_four(line, a, b, c, d, w):
    for x in range(line.shape[0]):
        line[x] += w[0] * np.float32(a[x]) + w[1] * np.float32(b[x]) + w[2] * np.float32(c[x]) + w[3] * np.float32(d[x])


@kernel
def _add_one(line, a, weight):
    for x in range(line.shape[0]):
        line[x] += weight * np.float32(a[x])


@kernel
def _round_into(line, top, out):
    for x in range(line.shape[0]):
        out[x] = np.int32(min(max(line[x], np.float32(0)), top))


@kernel
def _resize_rows(source, at, row, width, bounds, weights, line, out, out_height):
    """Resize a plane's height: each row of the result is a weighted sum of rows, which vector instructions add.

    Args:
        source, at, row, width: The plane: where it begins, the step to its next row, values of a row.
        bounds, weights: As `_weigh` fills them.
        line: (width,) float32, scratch.
        out: Of source's type, (out_height * width,), filled.
        out_height: Rows of the result.
    """
    top = np.float32(255.5 if source.itemsize == 1 else 65535.5) - np.float32(0.25)
    used = 0
    for y in range(out_height):
        first, count = np.int64(bounds[2 * y]), np.int64(bounds[2 * y + 1])
        for x in range(width):
            line[x] = np.float32(0.5)  # so that cutting the fraction off rounds half up
        k = np.int64(0)
        while count - k >= _MOST_TAPS_AT_ONCE:
            start = at + (first + k) * row
            _add_four(
                line, part(source, start, width), part(source, start + row, width),
                part(source, start + 2 * row, width), part(source, start + 3 * row, width),
                part(weights, used + k, _MOST_TAPS_AT_ONCE),
            )  # fmt: skip
            k += _MOST_TAPS_AT_ONCE
        while k < count:
            _add_one(line, part(source, at + (first + k) * row, width), weights[used + k])
            k += 1
        _round_into(line, top, part(out, y * width, width))
        used += count


@kernel
def resize_window(
    source, at, row, plane, channels, height, width, box_top, box_left, box_height, box_width, out, out_height,
    out_width, cubic, bounds, weights, line,
):  # fmt: skip
    """Resize a part of a window of an image: columns, then rows, each rounded by itself, as Pillow does.

    Args:
        source: uint8 or uint16 (n,); at: where the window begins; row, plane: steps to the next row and plane.
        channels, height, width: Of the window.
        box_top, box_left, box_height, box_width: float64, the part that is resized, inside the window. It may begin
            and end between pixels; what lies beside it in the window counts for the pixels at its edges.
        out: Of source's type, filled with contiguous planes (channels, out_height, out_width).
        out_height, out_width: Of the result.
        cubic: The bicubic filter instead of the triangle.
        bounds, weights, line: Scratch, as long as `resize_scratch` says.
    """
    across = part(bounds, 2 * out_height, 2 * out_width)
    used = _weigh(height, box_top, box_height, out_height, cubic, bounds, weights)
    weights_across = part(weights, used, weights.shape[0] - used)
    _weigh(width, box_left, box_width, out_width, cubic, across, weights_across)
    # Only the rows that the result is made of.
    first = np.int64(bounds[0])
    rows = np.int64(bounds[2 * out_height - 2]) + np.int64(bounds[2 * out_height - 1]) - first
    for y in range(out_height):
        bounds[2 * y] -= first
    at += first * row
    longest = max(width, height, out_width)
    values = rows * max(width, out_width)
    room = line.ctypes.data + np.uint64(4 * longest)
    one = array_at(room, values, source)
    other = array_at(room + np.uint64(values * source.itemsize), values, source)
    for c in range(channels):
        # Columns as the rows of the transposed plane.
        pixels = part(source, at + c * plane, (rows - 1) * row + width)
        transpose_plane(pixels, row, one, rows, width, rows)
        _resize_rows(one, np.int64(0), rows, rows, across, weights_across, part(line, 0, rows), other, out_width)
        transpose_plane(other, rows, one, out_width, rows, out_width)
        result = part(out, c * out_height * out_width, out_height * out_width)
        _resize_rows(
            one, np.int64(0), out_width, out_width, bounds, weights, part(line, 0, out_width), result, out_height
        )
