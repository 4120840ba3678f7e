"""The kernel that verifies, turns and converts an image's planes of uint8 to float32 in one pass over its memory.

A strip of some rows is hashed, which brings it into the fastest cache, and is then converted from there. In several
passes an image of some 30 KB comes from a slower cache each time, while the memory waits.
"""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import LINE_NBYTES
from lmdbloader.kernels.runtime.rows import BLOCK, convert_rows, convert_transposed
from lmdbloader.kernels.runtime.xxhash import xxh3, xxh3_advance, xxh3_begin, xxh3_end
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.kernels.transform.geometry import is_filled

# XXH3 hashes fewer bytes in another way.
_LEAST_NBYTES = 241


@kernel
def suits(g, out, streams):
    """Return whether `convert_planes` can write the result of a geometry to an address."""
    height, width = g[op.HEIGHT], g[op.WIDTH]
    if is_filled(g) or width < BLOCK or (g[op.TRANSPOSED] and height < BLOCK):
        return False
    # Lines are written past the caches as a whole only, and once.
    is_even = width % BLOCK == 0 and (g[op.TRANSPOSED] == 0 or height % BLOCK == 0)
    return not streams or (is_even and out & np.uint64(LINE_NBYTES - 1) == np.uint64(0))


@kernel
def _convert_strip(source, first, count, row, g, out, factor, term, streams):
    """Convert `count` rows of a plane's result from row `first` on; if it is transposed, BLOCK columns."""
    height, width = g[op.HEIGHT], g[op.WIDTH]
    down, across = g[op.DOWN] * row, g[op.ACROSS]
    begin = np.int64(source) + g[op.ROW] * row + g[op.COLUMN]
    if g[op.TRANSPOSED] == 0:
        begin += down * first - (width - 1 if across < 0 else 0)
        target = out + np.uint64(4 * first * width)
        convert_rows(np.uint64(begin), down, target, 4 * width, count, width, factor, term, across < 0, streams)
        return
    for block in range(0, height, BLOCK):
        y = min(block, height - BLOCK)
        # A block's rows are loaded upwards from their first value: with a step of -1 the last comes first.
        edge = y + BLOCK - 1 if across < 0 else y
        convert_transposed(
            np.uint64(begin + down * first + across * edge), down, out + np.uint64(4 * (edge * width + first)),
            4 * width * across, factor, term, streams,
        )  # fmt: skip


@kernel
def convert_planes(source, nbytes, row, plane, channels, g, out, affine, streams):
    """Write the result of a geometry as planes of float32, and return XXH3 (uint64) of the planes that it reads.

    Args:
        source: uint64 address of the first plane of uint8; row, plane: steps to the next row and plane.
        nbytes: Of all planes, which are hashed; 0 if no hash is wanted. Then 0 is returned.
        channels: Number of planes.
        g: (NUM_GEOMETRY,) int64, see `opcodes`, which `suits`.
        out: uint64 address of the image in the batch.
        affine: (channels, 2) float32: factor and term of each channel.
        streams: Whether the batch is written past the caches, see `settle`.
    """
    height, width = g[op.HEIGHT], g[op.WIDTH]
    # The strips in the order of memory: along the result's rows, or, if it is transposed, along its columns.
    along = width if g[op.TRANSPOSED] else height
    top = g[op.ROW] + (min(g[op.DOWN], 0) * (along - 1))
    hashed, done = np.uint64(nbytes), np.int64(0)
    hashes = nbytes >= _LEAST_NBYTES
    state = xxh3_begin()
    for c in range(channels):
        from_plane, to_plane = source + np.uint64(c * plane), out + np.uint64(4 * c * height * width)
        for begun in range(0, along, BLOCK):
            count = min(np.int64(BLOCK), along - begun)
            if hashes:
                done = xxh3_advance(state, source, done, c * plane + (top + begun + count) * row, hashed)
            first = begun if g[op.DOWN] > 0 else along - begun - count
            if g[op.TRANSPOSED]:
                first = min(first, along - BLOCK) if g[op.DOWN] > 0 else max(first - (BLOCK - count), 0)
            _convert_strip(from_plane, first, count, row, g, to_plane, affine[c, 0], affine[c, 1], streams)
    if hashes:
        return xxh3_end(state, source, done, hashed)
    return xxh3(source, hashed) if nbytes > 0 else np.uint64(0)
