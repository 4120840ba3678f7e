"""Blur kernels as Real-ESRGAN and BSRGAN draw them, and the filter that applies them with a mirrored border.

Sources: Gaussian, generalized Gaussian and plateau-shaped kernels of Liu et al., "Estimating generalized Gaussian blur
kernels" (2020), and the circular low-pass filter, in the forms of BasicSR's `degradations.py`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from lmdbloader.kernels.degrade.lanes import PAIRS_NBYTES, add_pairs
from lmdbloader.kernels.degrade.steps import TAPS
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.exponential import exp, log
from lmdbloader.kernels.runtime.memory import LINE_NBYTES, array_at, f32_at, part, u16_at
from lmdbloader.kernels.runtime.trigonometry import cos, sin

# Shapes of kernels. A separable one is given as one row, which is used in both directions.
GAUSSIAN, GENERALIZED, PLATEAU, SINC = range(4)
# A row of weights that all are smaller changes no pixel by a thousandth of a level of 16 bits.
_NOTHING = 1e-8
_LEAST_SIGMA = 1e-3
# The side of the largest kernel whose errors in numbers of 16 bits, if all add up, stay below half a level of 8 bits.
_MOST_IN_WHOLE = 33


@kernel
def row_length(size):
    """Return how many weights a row of a kernel has, with the zeros after them."""
    return (size + TAPS - 1) // TAPS * TAPS


@kernel
def bessel(x):
    """Return J1 of a float64 from 0 to 60: Bessel's integral by the trapezoidal rule, whose error is below 1e-12."""
    points = np.int64(x) + 40
    total = 0.0
    for k in range(1, points):
        angle = k * (math.pi / points)
        total += cos(angle - x * sin(angle))
    # The integrand is 1 at 0 and -1 at pi.
    return total / points


@kernel
def _sinc(omega, r):
    if r == 0.0:
        return omega * omega / (4 * math.pi)
    return omega * bessel(omega * r) / (2 * math.pi * r)


@kernel
def make_kernel(shape, size, first, second, angle, beta, weights):
    """Write a normalized blur kernel.

    Args:
        shape: GAUSSIAN ... SINC.
        size: Its side, odd, up to LARGEST of `steps`.
        first, second: Standard deviations along the axes; of SINC `first` is the cutoff in radians a pixel.
        angle: Of the first axis, in radians.
        beta: The exponent of GENERALIZED and PLATEAU.
        weights: float32, KERNEL_ROOM values; filled row by row, each of `row_length(size)`; or with one row, of a
            separable kernel.

    Returns:
        Whether it is separable.
    """
    step, half = row_length(size), size // 2
    if shape == GAUSSIAN and first == second:
        gaussian_row(size, first, weights)
        return True
    first, second = max(first, _LEAST_SIGMA), max(second, _LEAST_SIGMA)
    c, s = cos(angle), sin(angle)
    # The inverse of the covariance.
    a, b = 1.0 / (first * first), 1.0 / (second * second)
    xx, yy, xy = c * c * a + s * s * b, s * s * a + c * c * b, 2.0 * c * s * (a - b)
    total = 0.0
    for y in range(size):
        for x in range(step):
            down, across = y - half, x - half
            if x >= size:
                found = 0.0
            elif shape == SINC and (abs(down) > abs(across) or down > 0 or across > 0):
                continue
            elif shape == SINC:
                found = _sinc(first, math.sqrt(np.float64(down * down + across * across)))
            else:
                q = xx * across * across + yy * down * down + xy * across * down
                power = q if beta == 1.0 or q == 0.0 else exp(beta * log(q))
                found = 1.0 / (1.0 + power) if shape == PLATEAU else exp(-0.5 * power)
            weights[y * step + x] = np.float32(found)
            total += found
    if shape == SINC:
        total = _mirror(size, step, weights)
    for k in range(size * step):
        weights[k] = np.float32(weights[k] / total)
    return False


@kernel
def _mirror(size, step, weights):
    """Fill a kernel of eight equal parts from one; return its sum."""
    half, total = size // 2, 0.0
    for y in range(size):
        for x in range(size):
            a, b = abs(y - half), abs(x - half)
            near, far = min(a, b), max(a, b)
            found = weights[(half - near) * step + half - far]
            weights[y * step + x] = found
            total += found
    return total


@kernel
def gaussian_row(size, sigma, weights):
    """Write the normalized weights of a Gaussian kernel in one direction, `row_length` values."""
    half, total = size // 2, 0.0
    scale = -0.5 / (max(sigma, _LEAST_SIGMA) * max(sigma, _LEAST_SIGMA))
    for x in range(size):
        total += exp(scale * (x - half) * (x - half))
    for x in range(row_length(size)):
        weights[x] = np.float32(exp(scale * (x - half) * (x - half)) / total) if x < size else np.float32(0)


@njit(inline="always")
def mirrored(at, size):
    """Return where a place outside of an image is inside: mirrored at the middle of its first and last pixels."""
    if size == 1:
        return np.int64(0)
    period = 2 * (size - 1)
    at = abs(at) % period
    return min(at, period - at)


@kernel
def padded_room(height, width, size):
    """Return the float32 of a plane with a border for a kernel of this side, of two for a separable one."""
    return 2 * (height + size + TAPS) * (width + row_length(size) + TAPS)


@kernel
def _pad_rows(plane, height, width, top, left, right, out):
    """Write a plane with `top` mirrored rows on both sides, and mirrored columns; each row has left + width + right."""
    step = left + width + right
    for y in range(height + 2 * top):
        row, line = part(plane, mirrored(y - top, height) * width, width), part(out, y * step, step)
        inner = part(line, left, width)
        for x in range(width):
            inner[x] = row[x]
        for x in range(left):
            line[x] = row[mirrored(x - left, width)]
        for x in range(right):
            line[left + width + x] = row[mirrored(width + x, width)]


@kernel
def _add_taps(line, row, after, later, last, a, b, c, d):
    for x in range(line.shape[0]):  # vector instructions
        line[x] += (a * row[x] + b * after[x]) + (c * later[x] + d * last[x])


@kernel
def filter_row(rows, taps, count, down, line):
    """Add `count` weighted rows or columns (`down` values from one to the next) to a line."""
    width = line.shape[0]
    for k in range(0, count, TAPS):
        a, b, c, d = taps[k], taps[k + 1], taps[k + 2], taps[k + 3]
        if max(max(abs(a), abs(b)), max(abs(c), abs(d))) < np.float32(_NOTHING):
            continue
        at = k * down
        _add_taps(
            line, part(rows, at, width), part(rows, at + down, width), part(rows, at + 2 * down, width),
            part(rows, at + 3 * down, width), a, b, c, d,
        )  # fmt: skip


@kernel
def _pairs_step(width):
    """Return a width with room for whole sums of `add_pairs`, of uint16 or float32."""
    return (width + PAIRS_NBYTES // 2 - 1) // (PAIRS_NBYTES // 2) * (PAIRS_NBYTES // 2)


@kernel
def blur_pixels_room(height, width, down, across):
    """Return the float32 that `blur_pixels` works with."""
    tables = row_length(max(down, across)) + down + across + 4
    return tables + across + LINE_NBYTES // 4 + (height + down + 2) * _pairs_step(width)


@kernel
def _weigh_pairs(size, sigma, row, weights):
    """Write the weights of the middle and of the pairs around it that count, and what is added to their sum.

    Args:
        size, sigma: Of the kernel.
        row: float32 scratch, `row_length(size)`.
        weights: size // 2 + 2 float32, or uint16 that count 65536 as 1. Products of these are cut off, by half on
            average: what is added makes up for it.

    Returns:
        The number of pairs.
    """
    gaussian_row(size, sigma, row)
    half, count, rest, is_whole = size // 2, np.int64(0), np.float32(65536), weights.itemsize == 2
    for k in range(1, half + 1):
        weight = np.rint(row[half + k] * np.float32(65536)) if is_whole else row[half + k]
        weights[k] = np.int64(weight) if is_whole else weight
        rest -= np.float32(2) * weight
        count = k if weight >= np.float32(_NOTHING) else count
    weights[0] = np.int64(min(rest, np.float32(65535))) if is_whole else row[half]
    weights[count + 1] = (count + 1) // 2 if is_whole else 0
    return count


@kernel
def _add_row(source, step, weights, count, width, target):
    """Add the weighted values of a row or of rows, `step` values from one to the next on both sides of `source`."""
    itemsize = source.itemsize
    for at in range(0, width * itemsize, PAIRS_NBYTES):
        add_pairs(
            np.uint64(source.ctypes.data) + np.uint64(at), np.int64(step * itemsize), np.uint64(weights.ctypes.data),
            np.int64(count), weights[count + 1], np.uint64(target.ctypes.data) + np.uint64(at),
        )  # fmt: skip


@kernel
def _blur_planes(pixels, channels, height, width, down, across, sigma, row, work):
    """Blur whole numbers in float32 or, of 8 bits, in uint16 that count 128 as 1; see `blur_pixels`."""
    step, at = _pairs_step(width), across // 2 + 2
    columns, rows = part(work, 0, at), part(work, at, down // 2 + 2)
    left, above = _weigh_pairs(across, sigma, row, columns), _weigh_pairs(down, sigma, row, rows)
    if left == 0 and above == 0:
        return
    padded = part(work, at + rows.shape[0], step + 2 * left)
    # Rows that begin with a cache line are read in two thirds of the time.
    end = padded.ctypes.data + np.uint64(padded.shape[0] * work.itemsize + LINE_NBYTES - 1)
    total = array_at(end & ~np.uint64(LINE_NBYTES - 1), step, work)
    sums = array_at(total.ctypes.data + np.uint64(step * work.itemsize), (height + 2 * above) * step, work)
    top, middle = np.float32(255 if pixels.itemsize == 1 else 65535), part(padded, left, width)
    for c in range(channels):
        for y in range(height):
            line = part(pixels, (c * height + y) * width, width)
            for x in range(width):
                middle[x] = np.uint16(line[x]) << np.uint16(7) if work.itemsize == 2 else line[x]
            for x in range(left):
                padded[x] = middle[mirrored(x - left, width)]
                padded[left + width + x] = middle[mirrored(width + x, width)]
            _add_row(middle, 1, columns, left, width, part(sums, (above + y) * step, step))
        for y in range(-above, height + above):
            if y < 0 or y >= height:
                line = part(sums, (above + y) * step, width)
                same = part(sums, (above + mirrored(y, height)) * step, width)
                for x in range(width):
                    line[x] = same[x]
        for y in range(height):
            _add_row(part(sums, (above + y) * step, step), step, rows, above, width, total)
            out = part(pixels, (c * height + y) * width, width)
            for x in range(width):
                if work.itemsize == 2:
                    out[x] = (np.uint32(total[x]) + np.uint32(64)) >> np.uint32(7)
                else:
                    out[x] = np.int32(np.rint(min(max(np.float32(total[x]), np.float32(0)), top)))


@kernel
def blur_pixels(pixels, channels, height, width, down, across, sigma, work):
    """Blur whole numbers in place with a Gaussian kernel, as torchvision's GaussianBlur.

    Values of 8 bits may be one off: for kernels that are not large, they are blurred in whole numbers.

    Args:
        pixels: uint8 or uint16, planes one after the other.
        channels, height, width: Of the image.
        down, across: The sides of the kernel, odd.
        sigma: Its standard deviation, float64.
        work: float32, `blur_pixels_room` values.
    """
    taps = row_length(max(down, across))
    row, at, count = part(work, 0, taps), work.ctypes.data + np.uint64(4 * taps), work.shape[0] - taps
    if pixels.itemsize == 1 and max(down, across) <= _MOST_IN_WHOLE:
        _blur_planes(pixels, channels, height, width, down, across, sigma, row, u16_at(at, count))
    else:
        _blur_planes(pixels, channels, height, width, down, across, sigma, row, f32_at(at, count))


@kernel
def blur_plane(plane, height, width, size, columns, rows, out, work):
    """Filter a plane with `row_length(size)` weights along its rows, and along its columns; see `blur`."""
    taps, half = row_length(size), size // 2
    padded = part(work, 0, width + taps + 2 * TAPS)
    sums = part(work, padded.shape[0], (height + size + 2 * TAPS) * width)
    middle = part(padded, half, width)
    for y in range(height):
        line, row = part(plane, y * width, width), part(sums, (half + y) * width, width)
        for x in range(width):
            middle[x] = line[x]
            row[x] = np.float32(0)
        for x in range(padded.shape[0] - width):
            at = x if x < half else x + width
            padded[at] = middle[mirrored(at - half, width)]
        filter_row(padded, columns, taps, np.int64(1), row)
    for y in range(-half, height + size + 2 * TAPS - half):
        if y < 0 or y >= height:
            row, same = part(sums, (half + y) * width, width), part(sums, (half + mirrored(y, height)) * width, width)
            for x in range(width):
                row[x] = same[x]
    for y in range(height):
        line = part(out, y * width, width)
        for x in range(width):
            line[x] = np.float32(0)
        filter_row(part(sums, y * width, (taps + TAPS) * width), rows, taps, width, line)


@kernel
def blur(source, channels, height, width, size, separable, weights, out, padded):
    """Filter an image with a kernel; the border is mirrored without repeating the edge (OpenCV's reflect101).

    Args:
        source: float32 (channels * height * width,).
        size, separable, weights: As `make_kernel` fills them.
        out: float32 (channels * height * width,), which may be `source`.
        padded: float32, `padded_room` values.
    """
    half, count, taps = size // 2, height * width, row_length(size)
    right = half + TAPS
    step = width + half + right
    for c in range(channels):
        plane = part(out, c * count, count)
        if separable:
            blur_plane(part(source, c * count, count), height, width, size, weights, weights, plane, padded)
            continue
        _pad_rows(part(source, c * count, count), height, width, half, half, right, padded)
        for y in range(height):
            line = part(plane, y * width, width)
            for x in range(width):
                line[x] = np.float32(0)
            for k in range(size):
                mine = part(weights, k * taps, taps)
                filter_row(part(padded, (y + k) * step, step), mine, taps, np.int64(1), line)
