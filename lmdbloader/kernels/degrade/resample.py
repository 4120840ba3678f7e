"""Resizing of float32 planes: every result is a weighted sum of values, by the rules of the libraries that users name.

Sources of coordinates, weights and borders: torch's `interpolate`, the `resize` of Pillow and of OpenCV, MATLAB's
`imresize` (as BasicSR and BSRGAN have it), traiNNer-redux's `resize_pt`.
"""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.degrade import modes
from lmdbloader.kernels.degrade.lanes import LANES, SIDE, add_weighted, transpose_block
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import part
from lmdbloader.kernels.runtime.trigonometry import sin

# What values beyond the edges are: left out, the one at the edge, mirrored with it or without it.
_CUT, _REPEATED, _MIRRORED, _REFLECTED = range(4)
# Keys' cubics of a = -0.5, as in MATLAB and Pillow, and of a = -0.75, as in OpenCV and torch.
_TRIANGLE, _KEYS, _SHARP_KEYS, _LANCZOS = range(4)
_PI = 3.141592653589793
# OpenCV leaves out parts of a pixel that are smaller.
_LEAST_PART = 1e-3


@kernel
def resample_room(height, width, out_height, out_width):
    """Return the scratch of `resample` for images and results up to these sizes: lengths of bounds, weights and line.

    Where scales are given, sizes of results are floor(size * scale), or ceil(size * scale) for MATLAB.
    """
    between = min(height, out_height) * max(width, out_width)
    weights = 8 * (height + width + out_height + out_width) + 64
    return 2 * (out_height + out_width), weights, between + LANES * (width + out_width) + 8 * max(height, width) + 64


@kernel
def _support(kind):
    """Return the distance from which on a filter is zero."""
    return 1.0 if kind == _TRIANGLE else 3.0 if kind == _LANCZOS else 2.0


@kernel
def _filter(kind, x):
    """Return a filter's value at a distance."""
    x = abs(x)
    if kind == _TRIANGLE:
        return max(1.0 - x, 0.0)
    if kind == _LANCZOS:
        if x >= 3.0:
            return 0.0
        turned = _PI * x
        return 1.0 if x == 0.0 else 3.0 * sin(turned) * sin(turned / 3.0) / (turned * turned)
    a = -0.5 if kind == _KEYS else -0.75
    if x < 1.0:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    return (((x - 5.0) * x + 8.0) * x - 4.0) * a if x < 2.0 else 0.0


@kernel
def _inside(at, size, border):
    """Return which value counts for one that may be beyond the edges."""
    if 0 <= at < size:
        return at
    if border == _REPEATED or size == 1:
        return np.int64(0) if at < 0 else size - 1
    last = np.int64(1) if border == _MIRRORED else np.int64(2)
    at %= 2 * size + 2 - 2 * last
    return at if at < size else 2 * size - last - at


@kernel
def _mean(size, out_size, i, row):
    """Weigh a result of torch's "area": return its first value and the number of them, whose weights are in `row`."""
    first, behind = i * size // out_size, ((i + 1) * size + out_size - 1) // out_size
    for k in range(behind - first):
        row[k] = 1.0 / (behind - first)
    return first, behind - first


@kernel
def _mean_of_parts(size, ratio, i, row):
    """Weigh a result of OpenCV's INTER_AREA where it shrinks; see `_mean`."""
    begin = i * ratio
    end, length = begin + ratio, min(ratio, size - begin)
    behind = min(np.int64(np.floor(end)), size - 1)
    whole = min(np.int64(np.ceil(begin)), behind)
    first, count = whole, np.int64(0)
    if whole - begin > _LEAST_PART:
        first, count = whole - 1, np.int64(1)
        row[0] = (whole - begin) / length
    for _ in range(behind - whole):
        row[count] = 1.0 / length
        count += 1
    if end - behind > _LEAST_PART:
        row[count] = min(min(end - behind, 1.0), length) / length
        count += 1
    return first, count


@kernel
def _blend_of_parts(size, out_size, ratio, i, row):
    """Weigh a result of OpenCV's INTER_AREA where it does not shrink both sides; see `_mean`."""
    first = np.int64(np.floor(i * ratio))
    share = np.float32((i + 1) - (first + 1) * (out_size / size))
    share = max(share, np.float32(0))
    share -= np.floor(share)
    if first >= size - 1:
        first, share = size - 1, np.float32(0)
    row[0], row[1] = np.float32(1) - share, share
    return first, np.int64(2) if share > 0 else np.int64(1)


@kernel
def _prefilter(ratio, taps):
    """Set the weights of traiNNer-redux's filter before shrinking; return how many are on each side of the middle."""
    side = np.int64(np.ceil(3.0 * ratio + 1.0)) - 2
    total = 0.0
    for k in range(-side, side + 1):
        value = _filter(_LANCZOS, k / ratio)
        taps[side + k] = value
        total += value
    for k in range(2 * side + 1):
        taps[k] /= total
    return side


@kernel
def _filtered(size, ratio, kind, stretch, border, side, taps, i, row):
    """Weigh a result of a filter; see `_mean`.

    Args:
        size: Number of values.
        ratio, i: The result is at (i + 0.5) * ratio.
        kind, stretch, border: Of the filter.
        side, taps: What is filtered are sums of 2 * side + 1 of the reflected values, by these weights.
        row: Filled.
    """
    center, support = (i + 0.5) * ratio, _support(kind) * stretch
    begin, behind = np.int64(np.floor(center - support + 0.5)), np.int64(np.floor(center + support + 0.5))
    if border == _CUT:
        begin, behind = max(begin, np.int64(0)), min(behind, size)
    first, last = size, np.int64(-1)
    for j in range(begin, behind):
        at = _inside(j, size, border)
        for k in range(at - side, at + side + 1):
            inside = _inside(k, size, _REFLECTED)
            first, last = min(first, inside), max(last, inside)
    count = max(last - first + 1, np.int64(0))
    for k in range(count):
        row[k] = 0
    total = 0.0
    for j in range(begin, behind):
        weight = _filter(kind, (j + 0.5 - center) / stretch)
        total += weight
        at = _inside(j, size, border) - side
        for k in range(2 * side + 1):
            row[_inside(at + k, size, _REFLECTED) - first] += weight * taps[k]
    for k in range(count):
        row[k] /= total
    while count > 1 and row[count - 1] == 0:
        count -= 1
    return first, count


@kernel
def _rule(mode, antialias):
    """Return the filter and the border of a mode, and whether the filter is stretched where it shrinks."""
    if mode == modes.MATLAB:
        return _KEYS, _MIRRORED, True
    if mode == modes.LANCZOS:
        return _LANCZOS, _CUT, True
    if mode == modes.BILINEAR:
        return _TRIANGLE, _CUT if antialias else _REPEATED, antialias
    return (_KEYS, _CUT, True) if antialias and mode == modes.BICUBIC else (_SHARP_KEYS, _REPEATED, False)


@kernel
def weigh(size, out_size, factor, mode, antialias, shrinks, bounds, weights, line):
    """Fill in which values every result is made of; see `resample`.

    Args:
        shrinks: Whether no side of the image grows.
        bounds: (2 * out_size,), set to the first value of each result and the number of them.
        weights: Filled, the same room for each result.
        line: Scratch.

    Returns:
        The room of a result in `weights`.
    """
    kind, border, stretches = _rule(mode, antialias)
    ratio = 1.0 / factor if factor > 0.0 else size / out_size
    if size == out_size and (mode == modes.BILINEAR or (mode == modes.BICUBIC and antialias)):
        ratio = 1.0  # torch copies, whatever the factor
    stretch = max(ratio, 1.0) if stretches else 1.0
    side = np.int64(0)
    line[0] = 1.0
    if mode == modes.REDUX and out_size < size:
        side = _prefilter(ratio, line)
    reach = 2.0 * _support(kind) * stretch
    if mode == modes.AREA or mode == modes.AREA_OF_PARTS:
        ratio = 1.0 / (out_size / size)
        reach = ratio + 1.0
    room = max(min(np.int64(np.ceil(reach)) + 2 * side + 1, size), np.int64(2))
    for i in range(out_size):
        row = part(weights, i * room, room)
        if mode == modes.AREA:
            first, count = _mean(size, out_size, i, row)
        elif mode == modes.AREA_OF_PARTS and shrinks:
            first, count = _mean_of_parts(size, ratio, i, row)
        elif mode == modes.AREA_OF_PARTS:
            first, count = _blend_of_parts(size, out_size, ratio, i, row)
        elif mode == modes.NEAREST_EXACT:
            # In float32, as in torch.
            place = np.float32(ratio) * (np.float32(i) + np.float32(0.5))
            first, count = min(np.int64(np.floor(place)), size - 1), np.int64(1)
            row[0] = 1
        else:
            first, count = _filtered(size, ratio, kind, stretch, border, side, line, i, row)
        bounds[2 * i], bounds[2 * i + 1] = first, count
    return room


@kernel
def _sum_rows(source, width, bounds, weights, room, out, out_height):
    """Resize a plane's height.

    Args:
        source, width: The plane, values of a row.
        bounds, weights, room: As `weigh` fills and returns them.
        out, out_height: The result.
    """
    step = 4 * width
    for y in range(out_height):
        first, count = np.int64(bounds[2 * y]), np.int64(bounds[2 * y + 1])
        begin, target = source.ctypes.data + np.uint64(first * step), out.ctypes.data + np.uint64(y * step)
        mine = weights.ctypes.data + np.uint64(4 * y * room)
        for x in range(width if width < LANES else 0):
            total = np.float32(0)
            for k in range(count):
                total += weights[y * room + k] * source[(first + k) * width + x]
            out[y * width + x] = total
        for k in range(0, width if width >= LANES else 0, LANES):
            at = np.uint64(4 * min(k, width - LANES))  # the last overlap the ones before
            add_weighted(begin + at, step, mine, count, target + at)


@kernel
def _transpose(source, row, height, width, out, out_row):
    """Write out[x * out_row + y] = source[y * row + x] between addresses; at least eight rows and columns."""
    for i in range(0, width, SIDE):
        x = min(i, width - SIDE)  # the last overlap the ones before
        for k in range(0, height, SIDE):
            y = min(k, height - SIDE)
            begin, target = source + np.uint64(4 * (y * row + x)), out + np.uint64(4 * (x * out_row + y))
            transpose_block(begin, 4 * row, target, 4 * out_row)


@kernel
def _sum_columns(source, height, width, bounds, weights, room, line, out, out_width):
    """Resize a plane's width, sixteen rows at a time, turned: vectors across them; see `_sum_rows`.

    line: Scratch of 16 * (width + out_width).
    """
    if height < LANES or min(width, out_width) < SIDE:
        for y in range(height):
            for x in range(out_width):
                total = np.float32(0)
                for k in range(bounds[2 * x + 1]):
                    total += weights[x * room + k] * source[y * width + bounds[2 * x] + k]
                out[y * out_width + x] = total
        return
    strip, lanes, nbytes = line.ctypes.data, np.int64(LANES), np.int64(4 * LANES)
    results, mine = strip + np.uint64(nbytes * width), weights.ctypes.data
    for k in range(0, height, LANES):
        y = min(k, height - LANES)
        _transpose(source.ctypes.data + np.uint64(4 * y * width), width, lanes, width, strip, lanes)
        for x in range(out_width):
            add_weighted(
                strip + np.uint64(nbytes * bounds[2 * x]), nbytes, mine + np.uint64(4 * x * room),
                np.int64(bounds[2 * x + 1]), results + np.uint64(nbytes * x),
            )  # fmt: skip
        target = out.ctypes.data + np.uint64(4 * y * out_width)
        _transpose(results, lanes, out_width, lanes, target, out_width)


@kernel
def resample(
    source, channels, height, width, out, out_height, out_width, mode, antialias, factor_y, factor_x, bounds, weights,
    line,
):  # fmt: skip
    """Resize planes. Results are not clipped.

    Args:
        source: float32 (channels * height * width,).
        channels, height, width: Of it.
        out: float32 (channels * out_height * out_width,), filled; not the source.
        out_height, out_width: Of the result.
        mode: One of `modes`.
        antialias: Whether BILINEAR and BICUBIC, where they shrink, weigh all values, as torch does with antialias=True
            (bicubic then with a = -0.5, otherwise with -0.75). The other modes are what they are.
        factor_y, factor_x: Results are 1 / factor apart, float64; 0: evenly spread over the image. torch and MATLAB
            use the factors that they are given; AREA and AREA_OF_PARTS, like theirs, only the sizes.
        bounds, weights, line: Scratch, int32, float32 and float32, as long as `resample_room` says.
    """
    shrinks = height >= out_height and width >= out_width
    room = weigh(height, out_height, factor_y, mode, antialias, shrinks, bounds, weights, line)
    across, mine, room_across = bounds, weights, room
    if width != height or out_width != out_height or factor_x != factor_y:
        across = part(bounds, 2 * out_height, 2 * out_width)
        mine = part(weights, room * out_height, weights.shape[0] - room * out_height)
        room_across = weigh(width, out_width, factor_x, mode, antialias, shrinks, across, mine, line)
    # First the direction that leaves fewer values.
    rows_first = out_height <= height
    between = part(line, 0, out_height * width if rows_first else height * out_width)
    strips = part(line, between.shape[0], line.shape[0] - between.shape[0])
    for c in range(channels):
        plane = part(source, c * height * width, height * width)
        result = part(out, c * out_height * out_width, out_height * out_width)
        if rows_first:
            _sum_rows(plane, width, bounds, weights, room, between, out_height)
            _sum_columns(between, out_height, width, across, mine, room_across, strips, result, out_width)
        else:
            _sum_columns(plane, height, width, across, mine, room_across, strips, between, out_width)
            _sum_rows(between, out_width, bounds, weights, room, result, out_height)
