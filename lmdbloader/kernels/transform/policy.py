"""Kernels that draw a policy's operation and its magnitude, and make it one of the operations that others carry out."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.philox import AUGMENT_STREAM, below, philox, unit
from lmdbloader.kernels.runtime.trigonometry import cos, sin
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.kernels.transform import policy_tables as table
from lmdbloader.kernels.transform.warp import set_affine

_DEGREES = 57.29577951308232


@kernel
def magnitude_of(space, which, k, bins, height, width):
    """Return magnitude k of `bins` of an operation for an image, float64, as torch.linspace has it in float32.

    Args:
        space, which: STANDARD, WIDE or MIXED, and the operation.
        k, bins: The number of the magnitude, and how many there are.
        height, width: Of the image.
    """
    last = np.float64(bins - 1)
    if which == table.POSTERIZE:
        bits, fewer = table.BITS[space, 0], table.BITS[space, 1]
        return np.float64(np.rint(np.float32(bits) - np.float32(k) / np.float32(last / fewer)))
    if which > table.SOLARIZE or which == table.IDENTITY:
        return 0.0
    start, end = np.float64(1.0), np.float64(0.0)
    if which != table.SOLARIZE:
        start, end = end, table.LARGEST[space, which]
        if end < 0:
            end = -end * (width if which == table.TRANSLATE_X else height)
    start, end = np.float64(np.float32(start)), np.float64(np.float32(end))
    step = np.float64((np.float32(end) - np.float32(start)) / np.float32(last))
    # From both ends, each with one rounding.
    return np.float64(np.float32(start + step * k if k < bins // 2 else end - step * (bins - 1 - k)))


@kernel
def signed(which, magnitude, word):
    """Return a magnitude with a random sign if the operation has one."""
    return -magnitude if table.SHEAR_X <= which <= table.SHARPNESS and unit(word) < 0.5 else magnitude


@kernel
def choose(numbers, slot, seed, sample, epoch, number, height, width):
    """Return the operation that a policy draws for one of its places, and its magnitude.

    Args:
        numbers: (NUM_REAL,) float64, see `opcodes.POLICY_SPACE`.
        slot: The place; the two of a sub-policy of AutoAugment draw it together.
        seed, sample, epoch, number: uint64, of the random numbers; `number` is that of the operation in the program.
        height, width: Of the image.
    """
    words = philox(seed, AUGMENT_STREAM, sample, epoch, number, np.uint64(0))
    space, bins = np.int64(numbers[op.POLICY_SPACE]), np.int64(numbers[op.POLICY_BINS])
    if numbers[op.POLICY_TABLE] >= 0:
        first = philox(seed, AUGMENT_STREAM, sample, epoch, number - np.uint64(slot), np.uint64(1))
        entry = table.SUB_POLICIES[np.int64(numbers[op.POLICY_TABLE]), below(first[0], table.NUM_SUB_POLICIES)]
        which, k = entry[3 * slot], entry[3 * slot + 2]
        if unit(words[0]) >= entry[3 * slot + 1] / 10.0:
            which = np.int64(table.IDENTITY)
    else:
        which, k = below(words[0], table.NUM_RANDOM), np.int64(numbers[op.POLICY_MAGNITUDE])
        if k < 0:
            k = below(words[1], bins)
    return which, signed(which, magnitude_of(space, which, k, bins, height, width), words[2])


@kernel
def _arctan(x):
    """Return the angle in degrees whose tangent is x, by Halley's method: exact to the last digits for |x| up to 1."""
    angle = x
    for _ in range(4):
        sine, cosine = sin(angle), cos(angle)
        angle -= (sine - x * cosine) / (cosine + x * sine)
    return angle * _DEGREES


@kernel
def moves(which):
    """Return whether an operation moves pixels."""
    return table.SHEAR_X <= which <= table.ROTATE


@kernel
def set_move(which, magnitude, geometry, color, fields, stage, blends, ratio):
    """Draw an operation that moves pixels for some fields, as torchvision's policies call `affine` and `rotate`.

    Args:
        which, magnitude: The operation, for an image `ratio` times as large as the largest one here.
        geometry, color, fields, stage: As for `set_affine`.
        blends: As of WARP_BILINEAR.
        ratio: A factor.
    """
    along_x = magnitude if which == table.SHEAR_X or which == table.TRANSLATE_X else 0.0
    along_y = magnitude if which == table.SHEAR_Y or which == table.TRANSLATE_Y else 0.0
    angle, shift_x, shift_y, shear_x, shear_y, center = 0.0, 0.0, 0.0, 0.0, 0.0, np.nan
    if which == table.ROTATE:  # counted from 0 to 360 degrees, and in the other direction
        angle = -(magnitude + 360.0 if magnitude < 0 else magnitude)
    elif which == table.SHEAR_X or which == table.SHEAR_Y:
        shear_x, shear_y, center = _arctan(along_x), _arctan(along_y), 0.0
    else:
        shift_x, shift_y = np.trunc(along_x) / ratio, np.trunc(along_y) / ratio
    set_affine(geometry, color, fields, stage, angle, shift_x, shift_y, 1.0, shear_x, shear_y, center, center, False)
    for f in range(geometry.shape[0]):
        if fields >> f & 1:
            color[f, stage, op.WARP_BILINEAR] = blends


@kernel
def set_color(which, magnitude, drawn):
    """Draw an operation that changes values of 8 bits: fill `drawn`, (NUM_COLOR,) float64."""
    drawn[op.COLOR_CODE] = op.JITTER
    for k in range(3):
        drawn[op.COLOR_FACTORS + k] = 1.0
    drawn[op.COLOR_ORDER], drawn[op.COLOR_THRESHOLD], drawn[op.COLOR_HUE] = 0.0, -1.0, 0.0
    if which == table.BRIGHTNESS:
        drawn[op.COLOR_FACTORS] = 1.0 + magnitude
    elif which == table.CONTRAST:
        drawn[op.COLOR_FACTORS + 1] = 1.0 + magnitude
    elif which == table.COLOR:
        drawn[op.COLOR_FACTORS + 2], drawn[op.COLOR_ORDER] = 1.0 + magnitude, -1.0
    elif which == table.SOLARIZE:  # compared in float32
        drawn[op.COLOR_THRESHOLD] = np.float64(np.float32(255.0 * magnitude))
    elif which == table.INVERT:
        drawn[op.COLOR_THRESHOLD] = 0.0
    elif which == table.SHARPNESS:
        drawn[op.COLOR_CODE], drawn[op.COLOR_AMOUNT] = op.SHARPNESS, 1.0 + magnitude
    elif which == table.POSTERIZE:
        drawn[op.COLOR_CODE], drawn[op.COLOR_AMOUNT] = op.POSTERIZE, magnitude
    else:
        drawn[op.COLOR_CODE] = op.AUTOCONTRAST if which == table.AUTO_CONTRAST else op.EQUALIZE


@kernel
def draw_policy(operation, numbers, seed, sample, epoch, number, geometry, color, stage, height, width):
    """Draw one of a policy's operations for its fields; masks follow those that move pixels, and others leave them.

    Args:
        operation, numbers: Rows of a program.
        seed, sample, epoch, number: As for `choose`.
        geometry, color, stage: As for `draw` of `program`.
        height, width: Of the largest image.
    """
    which, magnitude = choose(numbers, operation[op.OP_SLOT], seed, sample, epoch, number, height, width)
    if which == table.IDENTITY:
        return
    fields = operation[op.OP_FIELDS]
    if moves(which):
        set_move(which, magnitude, geometry, color, fields, stage, numbers[op.POLICY_BLENDS], 1.0)
        return
    for f in range(geometry.shape[0]):
        if fields >> f & 1 and geometry[f, stage, op.MASK] == 0:
            set_color(which, magnitude, color[f, stage])
            geometry[f, stage, op.CLOSING] = op.THEN_COLOR


@kernel
def draw_mix(operation, numbers, words, geometry, color, stage, height):
    """Draw AugMix for its fields: its key, of two of the random words, with which `mix` draws all else."""
    for f in range(geometry.shape[0]):
        g, drawn = geometry[f, stage], color[f, stage]
        if operation[op.OP_FIELDS] >> f & 1 and g[op.MASK] == 0:
            g[op.CLOSING], drawn[op.COLOR_CODE] = op.THEN_COLOR, op.AUGMIX
            drawn[op.MIX_KEY] = np.float64(words[0] >> np.uint64(11))
            drawn[op.MIX_KEY + 1] = np.float64(words[1] >> np.uint64(11))
            for k in range(op.MIX_ALL + 1):
                drawn[op.MIX_NUMBERS + k] = numbers[k]
            for c in range(3):
                drawn[op.MIX_FILL + c] = operation[op.OP_FILL + c]
            drawn[op.MIX_RATIO] = height // g[op.HEIGHT]
