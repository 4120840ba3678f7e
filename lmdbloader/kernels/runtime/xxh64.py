"""XXH64, from which conversions draw: the same seed and names give the same choices with every version.

Source: Yann Collet, "xxHash fast digest algorithm", version 0.1.1. Words are little-endian, as those of
all processors that this package has kernels for.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import load_u8, load_u32, load_u64

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_ONE, _FOUR, _EIGHT = np.uint64(1), np.uint64(4), np.uint64(8)
_SIXTEEN, _TWENTY_FOUR, _STRIPE = np.uint64(16), np.uint64(24), np.uint64(32)


@njit(inline="always")
def _rotated(value, bits):
    return value << np.uint64(bits) | value >> np.uint64(64 - bits)


@njit(inline="always")
def _round(lane, word):
    return _rotated(lane + word * _P2, 31) * _P1


@njit(inline="always")
def _merged(total, lane):
    return (total ^ _round(np.uint64(0), lane)) * _P1 + _P4


@kernel
def xxh64(address, nbytes, seed):
    """Return XXH64 (uint64) of `nbytes` bytes at an address; all arguments are uint64."""
    end = address + nbytes
    total = seed + _P5
    if nbytes >= _STRIPE:
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while end - address >= _STRIPE:
            a = _round(a, load_u64(address))
            b = _round(b, load_u64(address + _EIGHT))
            c = _round(c, load_u64(address + _SIXTEEN))
            d = _round(d, load_u64(address + _TWENTY_FOUR))
            address += _STRIPE
        total = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
        total = _merged(_merged(_merged(_merged(total, a), b), c), d)
    total += nbytes
    while end - address >= _EIGHT:
        total = _rotated(total ^ _round(np.uint64(0), load_u64(address)), 27) * _P1 + _P4
        address += _EIGHT
    if end - address >= _FOUR:
        total = _rotated(total ^ np.uint64(load_u32(address)) * _P1, 23) * _P2 + _P3
        address += _FOUR
    while address < end:
        total = _rotated(total ^ np.uint64(load_u8(address)) * _P5, 11) * _P1
        address += _ONE
    total = (total ^ total >> np.uint64(33)) * _P2
    total = (total ^ total >> np.uint64(29)) * _P3
    return total ^ total >> np.uint64(32)


@kernel
def xxh64_many(data, start, nbytes, out):
    """Write XXH64 (seed 0) of data[start[i] : start[i] + nbytes[i]] into out[i] (uint64); the caller checks bounds."""
    base = data.ctypes.data
    for i in range(start.shape[0]):
        out[i] = xxh64(base + np.uint64(start[i]), np.uint64(nbytes[i]), np.uint64(0))
