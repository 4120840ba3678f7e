"""The kernel of AugMix: it mixes an image with chains of operations on copies of it."""

from __future__ import annotations

import math

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.exponential import exp, log
from lmdbloader.kernels.runtime.memory import cube_at, f64_at, i64_at, part, u8_at
from lmdbloader.kernels.runtime.philox import below, philox, unit
from lmdbloader.kernels.runtime.trigonometry import cos
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.kernels.transform import policy_tables as table
from lmdbloader.kernels.transform.color import change_colors, color_room
from lmdbloader.kernels.transform.policy import magnitude_of, moves, set_color, set_move, signed
from lmdbloader.kernels.transform.warp import warp, warp_room

_BINS, _TRIES = 10, 1000
_TURN = 2 * math.pi
# What random words decide.
_SHARE, _DEPTH, _OPERATION = range(3)
# Scratch before the images, in float64: the shares, and a geometry with its numbers.
_SHARES = 2 + op.MOST_CHAINS
_HEAD = _SHARES + op.NUM_GEOMETRY + op.NUM_COLOR


@kernel
def _words(drawn, what, first, second):
    """Return four random words of an image's key."""
    key0, key1 = np.uint64(drawn[op.MIX_KEY]), np.uint64(drawn[op.MIX_KEY + 1])
    return philox(key0, key1, np.uint64(first), np.uint64(second), np.uint64(what), np.uint64(0))


@kernel
def _log_gamma(alpha, drawn, place):
    """Return the logarithm of a number of the Gamma distribution: Marsaglia and Tsang, TOMS 2000."""
    d = (alpha + 1.0 if alpha < 1.0 else alpha) - 1 / 3
    for attempt in range(_TRIES):  # nearly always the first one succeeds
        words = _words(drawn, _SHARE, place, attempt)
        x = math.sqrt(-2.0 * log(1.0 - unit(words[0]))) * cos(_TURN * unit(words[1]))
        v = 1.0 + x / math.sqrt(9.0 * d)
        v = v * v * v
        if v > 0 and log(1.0 - unit(words[2])) < 0.5 * x * x + d - d * v + d * log(v):
            return log(d * v) + (log(1.0 - unit(words[3])) / alpha if alpha < 1.0 else 0.0)
    return log(d)


@kernel
def fill_shares(shares, first, count, drawn):
    """Fill `count` shares from number `first` on, float64, with numbers of the Dirichlet distribution."""
    top, total = -np.inf, 0.0
    for k in range(first, first + count):
        shares[k] = _log_gamma(drawn[op.MIX_NUMBERS + op.MIX_ALPHA], drawn, k)
        top = max(top, shares[k])
    for k in range(first, first + count):
        shares[k] = exp(shares[k] - top)
        total += shares[k]
    for k in range(first, first + count):
        shares[k] /= total


@kernel
def mixing_room(height, width):
    """Return the float32 that `mix` works with at most."""
    count, none = 3 * height * width, np.int64(0)
    rest = max(warp_room(height, width, np.int64(1), none), color_room(height, width, none, none))
    return 2 * _HEAD + count + 2 * (count // 4 + 16) + rest


@kernel
def _choose(drawn, chain, place, height, width):
    """Return an operation of a chain, and its magnitude for an image of this size."""
    words = _words(drawn, _OPERATION, chain, place)
    # The operations that move pixels come first, then those on tones, then brightness and the like.
    tones = np.int64(table.ROTATE)
    colors = tones + table.INVERT - table.POSTERIZE
    i = below(words[0], colors + (table.NUM_COLORS if drawn[op.MIX_NUMBERS + op.MIX_ALL] != 0 else 0))
    which = 1 + i if i < tones else table.POSTERIZE + i - tones if i < colors else table.BRIGHTNESS + i - colors
    k = below(words[1], np.int64(drawn[op.MIX_NUMBERS + op.MIX_SEVERITY]))
    return which, signed(which, magnitude_of(table.MIXED, which, k, _BINS, height, width), words[2])


@kernel
def _apply(which, magnitude, here, other, channels, height, width, drawn, geometry, color, rest):
    """Apply an operation to an image in the first of two places; return whether it fits, and whether it moved on."""
    g = geometry[0, 0]
    if not moves(which):
        set_color(which, magnitude, color[0, 0])
        return change_colors(here, channels, height, width, color[0, 0], rest), False
    g[op.HEIGHT], g[op.WIDTH], g[op.MASK] = height, width, 0
    for c in range(3):
        g[op.FILL + c] = np.int64(drawn[op.MIX_FILL + c])
    blends = drawn[op.MIX_NUMBERS + op.POLICY_BLENDS]
    set_move(which, magnitude, geometry, color, np.int64(1), np.int64(0), blends, drawn[op.MIX_RATIO])
    return warp(here, channels, height, width, g, color[0, 0], other, height, width, rest), True


@kernel
def _add(mixed, image, share):
    for i in range(image.shape[0]):
        mixed[i] += share * np.float32(image[i])


@kernel
def mix(pixels, channels, height, width, drawn, line):
    """Mix an image in place with chains of operations on it.

    Args:
        pixels: uint8, up to three planes (height, width) one after the other.
        channels, height, width: Of the image.
        drawn: (NUM_COLOR,) float64, see `opcodes.MIX_KEY`.
        line: float32, scratch.

    Returns:
        Whether the scratch has the values of `mixing_room`.
    """
    if line.shape[0] < mixing_room(height, width) or channels > 3:
        return False
    count, base, ratio = channels * height * width, line.ctypes.data, np.int64(drawn[op.MIX_RATIO])
    shares = f64_at(base, _SHARES)
    geometry = cube_at(base + np.uint64(8 * _SHARES), op.NUM_GEOMETRY, i64_at(base, 1))
    color = cube_at(base + np.uint64(8 * (_SHARES + op.NUM_GEOMETRY)), op.NUM_COLOR, shares)
    at, quarter = 2 * _HEAD + count, count // 4 + 16
    mixed, image = part(line, 2 * _HEAD, count), part(pixels, 0, count)
    here, other = u8_at(base + np.uint64(4 * at), count), u8_at(base + np.uint64(4 * (at + quarter)), count)
    rest = part(line, at + 2 * quarter, line.shape[0] - at - 2 * quarter)
    chains = np.int64(drawn[op.MIX_NUMBERS + op.MIX_WIDTH])
    fill_shares(shares, np.int64(0), np.int64(2), drawn)
    fill_shares(shares, np.int64(2), chains, drawn)
    for i in range(count):
        mixed[i] = 0
    _add(mixed, image, np.float32(shares[0]))
    for chain in range(chains):
        for i in range(count):
            here[i] = image[i]
        depth = np.int64(drawn[op.MIX_NUMBERS + op.MIX_DEPTH])
        if depth == 0:
            depth = 1 + below(_words(drawn, _DEPTH, chain, 0)[0], 3)
        for place in range(depth):
            which, magnitude = _choose(drawn, chain, place, height * ratio, width * ratio)
            fits, moved = _apply(which, magnitude, here, other, channels, height, width, drawn, geometry, color, rest)
            if not fits:
                return False
            if moved:
                here, other = other, here
        _add(mixed, here, np.float32(shares[2 + chain]) * np.float32(shares[1]))
    for i in range(count):
        image[i] = np.int32(mixed[i])
    return True
