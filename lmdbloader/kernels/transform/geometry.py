"""Kernels that compose crops, flips and transpositions into the geometry of a result."""

from __future__ import annotations

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.transform import opcodes as op


@kernel
def begin(g, height, width):
    """Set the geometry g of a stage that starts with an image as it is."""
    g[op.TRANSPOSED] = 0
    g[op.DOWN] = 1
    g[op.ACROSS] = 1
    g[op.ROW] = 0
    g[op.COLUMN] = 0
    g[op.HEIGHT] = height
    g[op.WIDTH] = width
    g[op.TOP] = 0
    g[op.BOTTOM] = height
    g[op.LEFT] = 0
    g[op.RIGHT] = width
    g[op.CLOSING] = op.CARRY


@kernel
def is_filled(g):
    """Return whether a part of the result is outside of the image and is filled."""
    return g[op.TOP] > 0 or g[op.LEFT] > 0 or g[op.BOTTOM] < g[op.HEIGHT] or g[op.RIGHT] < g[op.WIDTH]


@kernel
def crop(g, top, left, height, width):
    """Crop a window, which may extend beyond the image."""
    if g[op.TRANSPOSED]:
        g[op.ROW] += g[op.DOWN] * left
        g[op.COLUMN] += g[op.ACROSS] * top
    else:
        g[op.ROW] += g[op.DOWN] * top
        g[op.COLUMN] += g[op.ACROSS] * left
    g[op.TOP] = min(max(g[op.TOP] - top, 0), height)
    g[op.BOTTOM] = min(max(g[op.BOTTOM] - top, 0), height)
    g[op.LEFT] = min(max(g[op.LEFT] - left, 0), width)
    g[op.RIGHT] = min(max(g[op.RIGHT] - left, 0), width)
    g[op.HEIGHT] = height
    g[op.WIDTH] = width


@kernel
def flip_horizontally(g):
    """Mirror left and right."""
    last = g[op.WIDTH] - 1
    if g[op.TRANSPOSED]:
        g[op.ROW] += g[op.DOWN] * last
        g[op.DOWN] = -g[op.DOWN]
    else:
        g[op.COLUMN] += g[op.ACROSS] * last
        g[op.ACROSS] = -g[op.ACROSS]
    g[op.LEFT], g[op.RIGHT] = g[op.WIDTH] - g[op.RIGHT], g[op.WIDTH] - g[op.LEFT]


@kernel
def flip_vertically(g):
    """Mirror top and bottom."""
    last = g[op.HEIGHT] - 1
    if g[op.TRANSPOSED]:
        g[op.COLUMN] += g[op.ACROSS] * last
        g[op.ACROSS] = -g[op.ACROSS]
    else:
        g[op.ROW] += g[op.DOWN] * last
        g[op.DOWN] = -g[op.DOWN]
    g[op.TOP], g[op.BOTTOM] = g[op.HEIGHT] - g[op.BOTTOM], g[op.HEIGHT] - g[op.TOP]


@kernel
def transpose(g):
    """Exchange rows and columns."""
    g[op.TRANSPOSED] = 1 - g[op.TRANSPOSED]
    g[op.HEIGHT], g[op.WIDTH] = g[op.WIDTH], g[op.HEIGHT]
    g[op.TOP], g[op.LEFT] = g[op.LEFT], g[op.TOP]
    g[op.BOTTOM], g[op.RIGHT] = g[op.RIGHT], g[op.BOTTOM]
