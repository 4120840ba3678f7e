"""Random numbers without a state: Philox4x64-10, a function of a key and a counter."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel

# The second half of the key: the purpose of a number.
ORDER_STREAM, AUGMENT_STREAM, DEGRADE_STREAM, NOISE_STREAM = (np.uint64(n) for n in range(1, 5))

_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_WEYL = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


@kernel
def _high_product(a, b):
    """Return the upper 64 bits of the product of two uint64."""
    a_low, a_high, b_low, b_high = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    low_high, high_low = a_low * b_high, a_high * b_low
    carry = ((a_low * b_low) >> _HALF) + (low_high & _LOW) + (high_low & _LOW)
    return a_high * b_high + (low_high >> _HALF) + (high_low >> _HALF) + (carry >> _HALF)


@kernel
def philox(key0, key1, c0, c1, c2, c3):
    """Return four random words for a key and a counter, all uint64.

    Salmon, Moraes, Dror and Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011). NumPy's Philox gives the
    same words for the counter before, as it counts first.
    """
    for _ in range(_ROUNDS):
        high0, low0 = _high_product(_MULTIPLIERS[0], c0), _MULTIPLIERS[0] * c0
        high1, low1 = _high_product(_MULTIPLIERS[1], c2), _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0 += _WEYL[0]
        key1 += _WEYL[1]
    return c0, c1, c2, c3


@kernel
def unit(word):
    """Return a word as a float64 in [0, 1)."""
    return np.float64(word >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def uniform(word, low, high):
    """Return a word as a float64 in [low, high)."""
    return low + (high - low) * unit(word)


@kernel
def below(word, n):
    """Return a word as an int64 in [0, n); each comes up equally often to within n in 2**64."""
    return np.int64(_high_product(word, np.uint64(n)))
