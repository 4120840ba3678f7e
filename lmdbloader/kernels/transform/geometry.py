"""Kernels that compose crops, flips and transpositions into the geometry of a result."""

from __future__ import annotations

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.transform.opcodes import (
    ACROSS,
    BOTTOM,
    CARRY,
    CLOSING,
    COLUMN,
    DOWN,
    HEIGHT,
    LEFT,
    RIGHT,
    ROW,
    TOP,
    TRANSPOSED,
    WIDTH,
)


@kernel
def begin(g, height, width):
    """Set the geometry g of a stage that starts with an image as it is."""
    g[TRANSPOSED] = 0
    g[DOWN] = 1
    g[ACROSS] = 1
    g[ROW] = 0
    g[COLUMN] = 0
    g[HEIGHT] = height
    g[WIDTH] = width
    g[TOP] = 0
    g[BOTTOM] = height
    g[LEFT] = 0
    g[RIGHT] = width
    g[CLOSING] = CARRY


@kernel
def is_filled(g):
    """Return whether a part of the result is outside of the image and is filled."""
    return g[TOP] > 0 or g[LEFT] > 0 or g[BOTTOM] < g[HEIGHT] or g[RIGHT] < g[WIDTH]


@kernel
def crop(g, top, left, height, width):
    """Crop a window, which may extend beyond the image."""
    if g[TRANSPOSED]:
        g[ROW] += g[DOWN] * left
        g[COLUMN] += g[ACROSS] * top
    else:
        g[ROW] += g[DOWN] * top
        g[COLUMN] += g[ACROSS] * left
    g[TOP] = min(max(g[TOP] - top, 0), height)
    g[BOTTOM] = min(max(g[BOTTOM] - top, 0), height)
    g[LEFT] = min(max(g[LEFT] - left, 0), width)
    g[RIGHT] = min(max(g[RIGHT] - left, 0), width)
    g[HEIGHT] = height
    g[WIDTH] = width


@kernel
def flip_horizontally(g):
    """Mirror left and right."""
    last = g[WIDTH] - 1
    if g[TRANSPOSED]:
        g[ROW] += g[DOWN] * last
        g[DOWN] = -g[DOWN]
    else:
        g[COLUMN] += g[ACROSS] * last
        g[ACROSS] = -g[ACROSS]
    g[LEFT], g[RIGHT] = g[WIDTH] - g[RIGHT], g[WIDTH] - g[LEFT]


@kernel
def flip_vertically(g):
    """Mirror top and bottom."""
    last = g[HEIGHT] - 1
    if g[TRANSPOSED]:
        g[COLUMN] += g[ACROSS] * last
        g[ACROSS] = -g[ACROSS]
    else:
        g[ROW] += g[DOWN] * last
        g[DOWN] = -g[DOWN]
    g[TOP], g[BOTTOM] = g[HEIGHT] - g[BOTTOM], g[HEIGHT] - g[TOP]


@kernel
def transpose(g):
    """Exchange rows and columns."""
    g[TRANSPOSED] = 1 - g[TRANSPOSED]
    g[HEIGHT], g[WIDTH] = g[WIDTH], g[HEIGHT]
    g[TOP], g[LEFT] = g[LEFT], g[TOP]
    g[BOTTOM], g[RIGHT] = g[RIGHT], g[BOTTOM]
