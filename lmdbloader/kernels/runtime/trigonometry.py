"""sin and cos of float64, with the same bits on every machine: C libraries differ in the last bit.

They only add, subtract and multiply, and nothing is fused. The error is less than one unit in the last place for angles
up to a million. Source: the splitting by a quarter turn, in three parts, and the forms of the two sums that lose no
digits, are those of Sun's fdlibm (1993); the polynomials are Taylor series.
"""

from __future__ import annotations

import math

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel

# Of pi / 2: the first two parts have 33 digits, so that their products with the number of quarter turns are exact.
_QUARTER, _QUARTER_2, _QUARTER_3 = 1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21
_PER_QUARTER = 0.6366197723675814
_S3, _S5, _S7, _S9, _S11, _S13, _S15, _S17 = ((-1) ** (n // 2) / math.factorial(n) for n in range(3, 18, 2))
_C4, _C6, _C8, _C10, _C12, _C14, _C16 = ((-1) ** (n // 2) / math.factorial(n) for n in range(4, 17, 2))


@kernel
def _reduced(x):
    """Return x less the nearest number of quarter turns as (number, rounded difference, the rest of it)."""
    quarters = np.rint(x * _PER_QUARTER)
    first = x - quarters * _QUARTER
    second = quarters * _QUARTER_2
    high = first - second
    low = ((first - high) - second) - quarters * _QUARTER_3
    r = high + low
    return np.int64(quarters), r, (high - r) + low


@kernel
def _sin_near(r, low):
    """Return the sine of r + low, of which r is at most an eighth of a turn."""
    z = r * r
    z2 = z * z
    z4 = z2 * z2
    series = (_S5 + z * _S7 + z2 * (_S9 + z * _S11)) + z4 * (_S13 + z * _S15 + z2 * _S17)
    cube = z * r
    return r - ((z * (0.5 * low - cube * series) - low) - cube * _S3)


@kernel
def _cos_near(r, low):
    """Return the cosine of r + low, of which r is at most an eighth of a turn."""
    z = r * r
    z2 = z * z
    z4 = z2 * z2
    series = (_C4 + z * _C6 + z2 * (_C8 + z * _C10)) + z4 * (_C12 + z * _C14 + z2 * _C16)
    half = 0.5 * z
    rest = 1.0 - half
    return rest + (((1.0 - rest) - half) + (z2 * series - r * low))


@kernel
def _turned(quarters, r, low):
    turn = quarters & 3
    value = _cos_near(r, low) if turn & 1 else _sin_near(r, low)
    return -value if turn & 2 else value


@kernel
def sin(x):
    """Return the sine of a float64, an angle up to a million."""
    quarters, r, low = _reduced(x)
    return _turned(quarters, r, low)


@kernel
def cos(x):
    """Return the cosine of a float64, an angle up to a million."""
    quarters, r, low = _reduced(x)
    return _turned(quarters + 1, r, low)
