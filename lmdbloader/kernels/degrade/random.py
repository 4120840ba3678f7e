"""Many random numbers at once: words, uniform and normal numbers, as functions of a key and a position.

Words are those of Philox4x32-10 (Salmon, Moraes, Dror and Shaw: Parallel random numbers: as easy as 1, 2, 3, SC 2011),
which passes BigCrush: its products of 32 bits are vector instructions everywhere, while those of 64 bits, which
Philox4x64 and other hashes of counters need, are not. The position is the lower half of the counter; the key has 128
bits, of which Philox takes the first 64 as its key and the others as the upper half of the counter.

Numbers come in chunks: positions that are CHUNK apart. The blocks of a chunk lie across it, so that neighbors are
computed side by side.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import bits_of, float_of_bits, part, u32_at

CHUNK = 256
_BLOCKS = CHUNK // 4
_PAIRS = CHUNK // 2
_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
# Polynomials of least largest error, found by weighted least squares. For ln(1 + f) / s - 2 with s = f / (2 + f), in
# s * s, times -2; for sin and cos of a quarter of pi times y, in y * y.
_LOG = tuple(np.float32(-2 * c) for c in (2, 0.6666677671711297, 0.3997749557387647, 0.2987307339130012))
_SIN = tuple(
    np.float32(c) for c in (0.7853981609834033, -0.08074543483021365, 0.002490007127099729, -3.5954507786203746e-05)
)
_COS = tuple(np.float32(c) for c in (1, -0.30842448849215764, 0.015850397618649145, -0.0003191601600803162))
_LN2 = np.float32(-2 * np.log(2))
_SQRT_HALF = np.int32(0x3F3504F3)  # the bits of the largest float32 below
_ONE, _HALF_ONE, _TWO = np.float32(1), np.float32(0.5), np.float32(2)
_PER_WORD = np.float32(2.0**-31)


@njit(inline="always")
def _block(key0, key1, block):
    """Return the four words of a block."""
    c0, c1, c2, c3 = block & _LOW, block >> _HALF, key1 & _LOW, key1 >> _HALF
    k0, k1 = key0 & _LOW, key0 >> _HALF
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (second >> _HALF) ^ c1 ^ k0, second & _LOW, (first >> _HALF) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


@kernel
def fill_words(out, key0, key1, first):
    """Fill uint32 words with random bits: whole chunks, as many as fit, from number `first` (int64) on."""
    for chunk in range(out.shape[0] // CHUNK):
        at = chunk * CHUNK
        a, b = part(out, at, _BLOCKS), part(out, at + _BLOCKS, _BLOCKS)
        c, d = part(out, at + 2 * _BLOCKS, _BLOCKS), part(out, at + 3 * _BLOCKS, _BLOCKS)
        block = np.uint64(first + chunk) * np.uint64(_BLOCKS)
        for i in range(_BLOCKS):
            w0, w1, w2, w3 = _block(key0, key1, block + np.uint64(i))
            a[i], b[i], c[i], d[i] = np.uint32(w0), np.uint32(w2), np.uint32(w1), np.uint32(w3)


@kernel
def fill_uniform(out, key0, key1, first):
    """Fill float32 with uniform numbers in [0, 1), multiples of 2**-24; otherwise as `fill_words`."""
    count = out.shape[0] // CHUNK * CHUNK
    fill_words(u32_at(out.ctypes.data, count), key0, key1, first)
    for i in range(count):
        out[i] = np.float32(np.int32(bits_of(out[i]) >> np.uint32(8))) * np.float32(2.0**-24)


@njit(inline="always")
def _radius(word):
    """Return the square root of -2 ln u of a float32 for the uniform u that a word stands for: up to 6.66."""
    n = np.int32(word >> np.uint32(1))
    u = (np.float32(n) + _HALF_ONE) * _PER_WORD
    bits = np.int32(bits_of(u))
    k = np.int32(np.int32(bits - _SQRT_HALF) >> np.int32(23))
    # Near 1 the digits that matter are those of 1 - u.
    less = (np.float32(np.int32(np.int32(0x7FFFFFFF) - n)) + _HALF_ONE) * _PER_WORD
    f = -less if k == 0 else float_of_bits(np.uint32(bits - np.int32(k << np.int32(23)))) - _ONE
    s = f / (_TWO + f)
    z = s * s
    return np.sqrt(np.float32(k) * _LN2 + s * (_LOG[0] + z * (_LOG[1] + z * (_LOG[2] + z * _LOG[3]))))


@kernel
def fill_normal(out, key0, key1, first):
    """Fill float32 with normal numbers of mean 0 and variance 1; otherwise as `fill_words`.

    Box and Muller (1958): a radius and an angle give two. Two bits of the angle's word choose the quarter circle.
    """
    count = out.shape[0] // CHUNK * CHUNK
    fill_words(u32_at(out.ctypes.data, count), key0, key1, first)
    for at in range(0, count, CHUNK):
        x, y = part(out, at, _PAIRS), part(out, at + _PAIRS, _PAIRS)
        for i in range(_PAIRS):
            word = bits_of(y[i])
            radius = _radius(bits_of(x[i]))
            radius = float_of_bits(bits_of(radius) | np.uint32(word << np.uint32(31)))
            t = np.float32(np.int32(word)) * _PER_WORD
            z = t * t
            sine = t * (_SIN[0] + z * (_SIN[1] + z * (_SIN[2] + z * _SIN[3])))
            cosine = _COS[0] + z * (_COS[1] + z * (_COS[2] + z * _COS[3]))
            turned = (word & np.uint32(2)) != 0
            x[i] = radius * (sine if turned else cosine)
            y[i] = radius * (cosine if turned else sine)
