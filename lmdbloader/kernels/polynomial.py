"""A hash of a column that can be joined from those of its parts: two polynomials modulo 2^61 - 1.

The hash of the values v[0] ... v[n - 1] is, for each of the two bases B, the sum of x(v[i]) B^(n - 1 - i) modulo PRIME,
where x mixes the bits of a value; the hash of two columns, one after the other, is the first one's times B to the
number of the second one's values, plus the second one's. The second polynomial takes the mixed bits with its halves
exchanged. Both remainders together determine the 64 bits, so one changed value is always noticed.

A text is two values: the number of its bytes, and their XXH64.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lmdbloader.kernels.polynomial_numbers import BASES, PRIME
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.wide import add_product
from lmdbloader.kernels.runtime.xxhash import xxh64

# Values whose products are added before the sum is divided: eight of 122 bits fit into 128.
_GROUP = 8
_FIRST, _SECOND = (np.array([pow(base, _GROUP - 1 - i, PRIME) for i in range(_GROUP)], np.uint64) for base in BASES)
# For a group of equal values: the sum of these powers.
_FIRST_SUM, _SECOND_SUM = (np.uint64(sum(pow(base, i, PRIME) for i in range(_GROUP)) % PRIME) for base in BASES)
_FIRST_STEP, _SECOND_STEP = (np.uint64(pow(base, _GROUP, PRIME)) for base in BASES)
_FIRST_BASE, _SECOND_BASE = (np.uint64(base) for base in BASES)
_FIRST_SQUARE, _SECOND_SQUARE = (np.uint64(pow(base, 2, PRIME)) for base in BASES)
_PRIME, _ZERO = np.uint64(PRIME), np.uint64(0)
# Not an int32.
_NO_CODE = np.int64(2**31)
_STEP, _MIX_1, _MIX_2 = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@njit(inline="always")
def _mixed(value):
    """Return a bijection of 64 bits: the output function of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = value + _STEP
    value = (value ^ value >> np.uint64(30)) * _MIX_1
    value = (value ^ value >> np.uint64(27)) * _MIX_2
    return value ^ value >> np.uint64(31)


@njit(inline="always")
def _folded(value):
    """Return a value of at most PRIME + 7 with the same remainder."""
    return (value & _PRIME) + (value >> np.uint64(61))


@njit(inline="always")
def _exchanged(value):
    return value << np.uint64(32) | value >> np.uint64(32)


@njit(inline="always")
def _reduced(high, low):
    """Return a value of at most PRIME + 7 with the remainder of 128 bits."""
    middle = (high << np.uint64(3) | low >> np.uint64(61)) & _PRIME
    return _folded((low & _PRIME) + middle + (high >> np.uint64(58)))


@njit(inline="always")
def _remainder(value):
    value = _folded(value)
    return value if value < _PRIME else value - _PRIME


@njit(inline="always")
def _added(a, b, mixed):
    """Return the two sums with one more value."""
    high, low = add_product(_ZERO, _folded(mixed), a, _FIRST_BASE)
    a = _reduced(high, low)
    high, low = add_product(_ZERO, _folded(_exchanged(mixed)), b, _SECOND_BASE)
    return a, _reduced(high, low)


@njit(inline="always")
def _added_two(a, b, first, second):
    """Return the two sums with two more values."""
    high, low = add_product(_ZERO, _folded(second), a, _FIRST_SQUARE)
    high, low = add_product(high, low, _folded(first), _FIRST_BASE)
    a = _reduced(high, low)
    high, low = add_product(_ZERO, _folded(_exchanged(second)), b, _SECOND_SQUARE)
    high, low = add_product(high, low, _folded(_exchanged(first)), _SECOND_BASE)
    return a, _reduced(high, low)


@njit(inline="always")
def _are_equal(values, first):
    k = 1
    while k < _GROUP and values[first + k] == values[first]:
        k += 1
    return k == _GROUP


@kernel
def hash_numbers(values: np.ndarray, sums: np.ndarray) -> None:
    """Append numbers to a column.

    Args:
        values: (n,) unsigned, the bits of the numbers.
        sums: (2,) uint64, the hash so far; (0, 0) for a new column.
    """
    a, b = sums[0], sums[1]
    n = values.shape[0]
    at = 0
    while at + _GROUP <= n:
        high, low = add_product(_ZERO, _ZERO, a, _FIRST_STEP)
        other_high, other_low = add_product(_ZERO, _ZERO, b, _SECOND_STEP)
        if _are_equal(values, at):  # sizes, codecs and classes often repeat
            mixed = _mixed(np.uint64(values[at]))
            high, low = add_product(high, low, _folded(mixed), _FIRST_SUM)
            other_high, other_low = add_product(other_high, other_low, _folded(_exchanged(mixed)), _SECOND_SUM)
        else:
            for k in range(_GROUP):
                mixed = _mixed(np.uint64(values[at + k]))
                high, low = add_product(high, low, _folded(mixed), _FIRST[k])
                other_high, other_low = add_product(other_high, other_low, _folded(_exchanged(mixed)), _SECOND[k])
        a, b = _reduced(high, low), _reduced(other_high, other_low)
        at += _GROUP
    while at < n:
        a, b = _added(a, b, _mixed(np.uint64(values[at])))
        at += 1
    sums[0], sums[1] = _remainder(a), _remainder(b)


@kernel
def hash_texts(data: np.ndarray, ends: np.ndarray, sums: np.ndarray) -> int:
    """Append texts to a column.

    Args:
        data: (m,) uint8, the texts in UTF-8, one after the other.
        ends: (n + 1,) int32 or int64; text i is data[ends[i]:ends[i + 1]].
        sums: As in `hash_numbers`.

    Returns:
        The number of texts that were added: fewer than n if one is not inside `data`.
    """
    a, b = sums[0], sums[1]
    base, n = data.ctypes.data, ends.shape[0] - 1
    row = 0
    while row < n:
        start, end = np.int64(ends[row]), np.int64(ends[row + 1])
        if start < 0 or end < start or end > data.shape[0]:
            break
        nbytes = np.uint64(end - start)
        hashed = xxh64(base + np.uint64(start), nbytes, _ZERO)
        a, b = _added_two(a, b, _mixed(nbytes), _mixed(hashed))
        row += 1
    sums[0], sums[1] = _remainder(a), _remainder(b)
    return row


@kernel
def hash_names(data: np.ndarray, ends: np.ndarray, codes: np.ndarray, sums: np.ndarray) -> int:
    """Append texts that repeat to a column.

    Args:
        data, ends: The texts by number, as in `hash_texts`.
        codes: (n,) int32, the numbers.
        sums: As in `hash_numbers`.

    Returns:
        The number of texts that were added: fewer than n if one is not inside `data`.
    """
    a, b = sums[0], sums[1]
    base, n = data.ctypes.data, codes.shape[0]
    last = _NO_CODE
    length = hashed = _ZERO
    row = 0
    while row < n:
        code = np.int64(codes[row])
        if code != last:  # samples of one source are consecutive
            if code < 0 or code + 1 >= ends.shape[0]:
                break
            start, end = np.int64(ends[code]), np.int64(ends[code + 1])
            if start < 0 or end < start or end > data.shape[0]:
                break
            nbytes = np.uint64(end - start)
            length, hashed = _mixed(nbytes), _mixed(xxh64(base + np.uint64(start), nbytes, _ZERO))
            last = code
        a, b = _added_two(a, b, length, hashed)
        row += 1
    sums[0], sums[1] = _remainder(a), _remainder(b)
    return row
