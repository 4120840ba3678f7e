"""Kernels for conversion: images cut into patches and tiles."""

from __future__ import annotations

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import array_at, part


@kernel
def cut(image, top, left, height, width, out):
    """Write the window of an image (H, W, C) at (top, left) into the flat `out` as (C, height, width)."""
    channels = image.shape[2]
    plane = height * width
    if channels == 3:
        whole = array_at(image.ctypes.data, image.size, image)
        # Rows of the image's whole width follow each other, so they are one long row.
        rows, length = (1, plane) if width == image.shape[1] else (height, width)
        for y in range(rows):
            source = part(whole, 3 * ((top + y) * image.shape[1] + left), 3 * length)
            first, second, third = (
                part(out, y * length, length),
                part(out, plane + y * length, length),
                part(out, 2 * plane + y * length, length),
            )
            for x in range(length):  # vector instructions
                first[x] = source[3 * x]
                second[x] = source[3 * x + 1]
                third[x] = source[3 * x + 2]
    else:
        for c in range(channels):
            for y in range(height):
                for x in range(width):
                    out[c * plane + y * width + x] = image[top + y, left + x, c]


@kernel
def cut_many(image, tops, lefts, height, width, out):
    """Write the windows of an image (H, W, C) into out (n, C * height * width); the caller checks bounds."""
    for i in range(tops.shape[0]):
        cut(image, tops[i], lefts[i], height, width, out[i])


@kernel
def cut_tiles(image, tile, out):
    """Write the tiles of an image (H, W, C) into the flat `out`, each (C, h, w), clipped at the edges."""
    height, width, channels = image.shape
    tile = max(tile, 1)  # a step of zero would be an exception
    at = 0
    for top in range(0, height, tile):
        h = min(tile, height - top)
        for left in range(0, width, tile):
            w = min(tile, width - left)
            cut(image, top, left, h, w, out[at : at + h * w * channels])
            at += h * w * channels
