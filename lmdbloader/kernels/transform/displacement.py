"""Kernels that draw the field of an elastic warp: uniform noise, smoothed by a Gaussian kernel as torchvision does."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.degrade.blur import blur_plane, gaussian_row, row_length
from lmdbloader.kernels.degrade.random import CHUNK, fill_uniform
from lmdbloader.kernels.degrade.steps import TAPS
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import part
from lmdbloader.kernels.transform import opcodes as op


@kernel
def kernel_side(sigma):
    """Return the side of torchvision's kernel for a standard deviation: odd, some 8 sigma; 1 for none."""
    return np.int64(8 * sigma + 1) // 2 * 2 + 1 if sigma > 0 else np.int64(1)


@kernel
def displacement_room(height, width, side):
    """Return the float32 of a field of displacements, and of those that `fill_displacements` works with."""
    rows = height + side + 2 * TAPS
    return 2 * height * width + CHUNK + 3 * row_length(side) + (width + 2 * TAPS) + rows * width


@kernel
def _smooth(plane, height, width, side, across, down, factor, work):
    """Smooth a plane in place with a kernel of `side` x `side`, mirrored at its border, and multiply it."""
    taps = row_length(side)
    columns, rows = part(work, 0, taps), part(work, taps, taps)
    gaussian_row(side, across, columns)
    gaussian_row(side, down, rows)
    for k in range(taps):
        rows[k] *= factor
    blur_plane(plane, height, width, side, columns, rows, plane, part(work, 2 * taps, work.shape[0] - 2 * taps))


@kernel
def fill_displacements(drawn, field):
    """Write the displacements across and down of an elastic warp, where 2 is the width or the height.

    Args:
        drawn: (NUM_COLOR,) float64, see `opcodes.WARP_ELASTIC`.
        field: float32, `displacement_room` values; two planes of the field's size are filled.

    Returns:
        Whether the field has as many values.
    """
    height, width = np.int64(drawn[op.WARP_HEIGHT]), np.int64(drawn[op.WARP_WIDTH])
    plane, key = height * width, np.uint64(drawn[op.WARP_KEY])
    alphas, sigmas = part(drawn, op.WARP_ELASTIC, 2), part(drawn, op.WARP_ELASTIC + op.ELASTIC_SIGMA, 2)
    if field.shape[0] < displacement_room(height, width, kernel_side(max(sigmas[0], sigmas[1]))):
        return False
    noise = part(field, 0, (2 * plane + CHUNK - 1) // CHUNK * CHUNK)
    work = part(field, 2 * plane + CHUNK, field.shape[0] - 2 * plane - CHUNK)
    fill_uniform(noise, key, np.uint64(drawn[op.WARP_KEY + 1]), np.int64(0))
    for axis in range(2):
        one = part(field, axis * plane, plane)
        factor = np.float32(alphas[axis] / (height if axis else width))
        smooth = sigmas[axis] > 0
        for i in range(plane):
            one[i] = (one[i] * np.float32(2) - np.float32(1)) * (np.float32(1) if smooth else factor)
        if smooth:
            _smooth(one, height, width, kernel_side(sigmas[axis]), sigmas[0], sigmas[1], factor, work)
    return True
