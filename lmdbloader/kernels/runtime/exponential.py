"""exp and log of float64, with the same bits on every machine: C libraries differ in the last bit.

They only add, subtract, multiply and divide, and nothing is fused. The error is less than one unit in the last place.
Source: the splitting by ln 2, in two parts, and the forms of the two sums that lose no digits, are those of Sun's
fdlibm (1993); the polynomials are Taylor series.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import bits_of_double, double_of_bits

# The first part has 32 digits, so that its product with an exponent is exact.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_PER_LN2 = 1.44269504088896338700
_LARGEST, _SMALLEST = 709.782712893384, -745.1332191019412
_SQRT2 = math.sqrt(2)
_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13 = (1 / math.factorial(n) for n in range(2, 14))
_L3, _L5, _L7, _L9, _L11, _L13, _L15, _L17, _L19, _L21 = (2 / n for n in range(3, 22, 2))


@njit(inline="always")
def _power_of_two(exponent):
    """Return 2 ** exponent, from -1022 to 1023."""
    return double_of_bits(np.uint64(exponent + 1023) << np.uint64(52))


@kernel
def exp(x):
    """Return e ** x of a float64."""
    if x != x:
        return x
    if x > _LARGEST:
        return np.inf
    if x < _SMALLEST:
        return 0.0
    k = np.rint(x * _PER_LN2)
    high, low = x - k * _LN2_HIGH, k * _LN2_LOW
    r = high - low
    lost = (high - r) - low
    # In pairs, pairs of pairs and so on: a processor computes them side by side.
    r2 = r * r
    r4 = r2 * r2
    above = (_E6 + r * _E7 + r2 * (_E8 + r * _E9)) + r4 * (_E10 + r * _E11 + r2 * (_E12 + r * _E13))
    series = r2 * ((_E2 + r * _E3 + r2 * (_E4 + r * _E5)) + r4 * above)
    total = 1.0 + r
    lost += r - (total - 1.0)
    n = np.int64(k)
    # In two steps, because the result may be too small for a normal number while half of its exponent is not.
    return (total + (lost + series)) * _power_of_two(n >> 1) * _power_of_two(n - (n >> 1))


@kernel
def log(x):
    """Return the natural logarithm of a float64."""
    if x != x or x == np.inf:
        return x
    if x <= 0.0:
        return -np.inf if x == 0.0 else np.nan
    k = np.int64(0)
    if x < 2.2250738585072014e-308:
        x *= 18014398509481984.0
        k = np.int64(-54)
    bits = bits_of_double(x)
    k += np.int64(bits >> np.uint64(52)) - 1023
    x = double_of_bits((bits & np.uint64(0xFFFFFFFFFFFFF)) | np.uint64(0x3FF0000000000000))
    if x > _SQRT2:
        x *= 0.5
        k += 1
    f = x - 1.0
    s = f / (2.0 + f)
    z = s * s
    z2 = z * z
    z4 = z2 * z2
    above = (_L11 + z * _L13 + z2 * (_L15 + z * _L17)) + z4 * (_L19 + z * _L21)
    series = z * ((_L3 + z * _L5 + z2 * (_L7 + z * _L9)) + z4 * above)
    half = 0.5 * f * f
    exponent = np.float64(k)
    return exponent * _LN2_HIGH - ((half - (s * (half + series) + exponent * _LN2_LOW)) - f)
