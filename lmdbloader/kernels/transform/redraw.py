"""Kernels that draw the transforms of samples without reading them, and say what was drawn."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.kernels.transform.geometry import is_filled
from lmdbloader.kernels.transform.program import draw


@kernel
def _follow(m, a, b, c, d, e, f, g, h):
    """Multiply a matrix (3, 3) by [[a, b, c], [d, e, f], [g, h, 1]] from the right."""
    for k in range(3):
        x, y, z = m[k, 0], m[k, 1], m[k, 2]
        m[k, 0], m[k, 1], m[k, 2] = x * a + y * d + z * g, x * b + y * e + z * h, x * c + y * f + z


@kernel
def _follow_warp(m, g, drawn):
    """Multiply a matrix by that which carries places of a warp's result to its image; a displacement is left out."""
    k = op.WARP_MATRIX
    a, b, c, d, e, f = drawn[k], drawn[k + 1], drawn[k + 2], drawn[k + 3], drawn[k + 4], drawn[k + 5]
    if drawn[op.COLOR_CODE] == op.PERSPECTIVE:
        _follow(m, a, b, c, d, e, f, drawn[k + 6], drawn[k + 7])
    elif drawn[op.COLOR_CODE] == op.AFFINE:  # from middle to middle
        x, y = g[op.NEW_WIDTH] * 0.5, g[op.NEW_HEIGHT] * 0.5
        c, f = c + g[op.WIDTH] * 0.5 - a * x - b * y, f + g[op.HEIGHT] * 0.5 - d * x - e * y
        _follow(m, a, b, c, d, e, f, 0.0, 0.0)


@kernel
def _find_source(geometry, color, inverse, flips):
    """Find the matrix that carries places of the result to the stored image, and whether this is mirrored."""
    flips[0] = flips[1] = 0
    turned = np.int64(0)
    for k in range(3):
        for j in range(3):
            inverse[k, j] = 1.0 if k == j else 0.0
    last = geometry.shape[0] - 1
    for s in range(last + 1):
        g = geometry[s]
        if g[op.CLOSING] == op.CARRY and s < last:
            continue
        if g[op.CLOSING] == op.THEN_RESIZE and not is_filled(g) and not g[op.MASK]:
            # The window was resized as stored, and the next stage turns it.
            height, width = (g[op.WIDTH], g[op.HEIGHT]) if g[op.TRANSPOSED] else (g[op.HEIGHT], g[op.WIDTH])
            top = g[op.ROW] - (height - 1 if g[op.DOWN] < 0 else 0)
            left = g[op.COLUMN] - (width - 1 if g[op.ACROSS] < 0 else 0)
            x, y = float(width) / float(g[op.NEW_WIDTH]), float(height) / float(g[op.NEW_HEIGHT])
            _follow(inverse, x, 0.0, float(left), 0.0, y, float(top), 0.0, 0.0)
            continue
        flips[1 - turned] ^= g[op.DOWN] < 0
        flips[turned] ^= g[op.ACROSS] < 0
        turned ^= g[op.TRANSPOSED]
        # Places are edges between pixels: of an axis that runs backwards, they begin behind its last pixel.
        down, across = float(g[op.DOWN]), float(g[op.ACROSS])
        row, column = float(g[op.ROW] + (g[op.DOWN] < 0)), float(g[op.COLUMN] + (g[op.ACROSS] < 0))
        if g[op.TRANSPOSED]:
            _follow(inverse, 0.0, across, column, down, 0.0, row, 0.0, 0.0)
        else:
            _follow(inverse, across, 0.0, column, 0.0, down, row, 0.0, 0.0)
        if g[op.CLOSING] == op.THEN_RESIZE:
            x, y = float(g[op.WIDTH]) / float(g[op.NEW_WIDTH]), float(g[op.HEIGHT]) / float(g[op.NEW_HEIGHT])
            _follow(inverse, x, 0.0, 0.0, 0.0, y, 0.0, 0.0, 0.0)
        elif g[op.CLOSING] == op.THEN_WARP:
            _follow_warp(inverse, g, color[s])


@kernel
def draw_many(program, view, seed, epoch, samples, most, geometry, color, rectangles):
    """Draw the transforms of a view for many samples.

    Args:
        program, view, seed, epoch, most: As in `draw`.
        samples: (n,) int64, the numbers that random choices depend on.
        geometry, color, rectangles: (n, ...) of what `draw` is given and fills for each sample.

    Returns:
        A status.
    """
    for j in range(samples.shape[0]):
        status = draw(program, view, seed, epoch, np.uint64(samples[j]), geometry[j], color[j], rectangles[j], most)
        if status:
            return status
    return np.int64(0)


@kernel
def redraw(program, view, geometry, color, inverses, flips, applied, numbers):
    """Say what `draw_many` has drawn.

    Args:
        program, view, geometry, color: As in `draw_many`.
        inverses: (n, fields, 3, 3) float64, filled with the matrices that carry (x, y, 1) of the result to the stored
            image; places are edges between pixels, from 0 to the width and the height.
        flips: (n, fields, 2) uint8, filled with whether the columns and the rows of the stored images run backwards,
            by flips and turns.
        applied: (n, operations of the view) uint8, filled with whether each operation changed the sample.
        numbers: (n, operations of the view, NUM_COLOR) float64, filled with what each drew for its first field.
    """
    begin, num_fields = program[2][view, op.VIEW_BEGIN], geometry.shape[1]
    for j in range(geometry.shape[0]):
        for f in range(num_fields):
            _find_source(geometry[j, f], color[j, f], inverses[j, f], flips[j, f])
        for number in range(applied.shape[1]):
            operation, f = program[0][begin + number], np.int64(0)
            while f < num_fields - 1 and not operation[op.OP_FIELDS] >> f & 1:
                f += 1
            found = color[j, f, operation[op.OP_STAGE]]
            is_last = found[op.COLOR_OPERATION] == begin + number  # of its stage, of which one at most ends it
            applied[j, number] = is_last and geometry[j, f, operation[op.OP_STAGE], op.CLOSING] >= op.THEN_COLOR
            for k in range(op.NUM_COLOR):
                numbers[j, number, k] = found[k]
