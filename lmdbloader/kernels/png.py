"""Kernels that undo the row filters of PNG."""

import numba
import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import u8_at


@numba.njit(inline="always")
def _paeth(left, above, corner):
    """Return the one of the three that is closest to left + above - corner, in PNG's order of preference."""
    low = min(left, above)
    high = max(left, above)
    threshold = 3 * corner - left - above
    if high <= threshold:
        return low
    if threshold <= low:
        return high
    return corner


@kernel
def _paeth_rgb(row, above, out):
    """Undo the Paeth filter of one row of 8-bit RGB pixels, the three channels in registers."""
    a0 = a1 = a2 = c0 = c1 = c2 = np.int32(0)
    for i in range(0, row.size - 2, 3):
        b0 = np.int32(above[i])
        b1 = np.int32(above[i + 1])
        b2 = np.int32(above[i + 2])
        a0 = (_paeth(a0, b0, c0) + np.int32(row[i])) & np.int32(255)
        a1 = (_paeth(a1, b1, c1) + np.int32(row[i + 1])) & np.int32(255)
        a2 = (_paeth(a2, b2, c2) + np.int32(row[i + 2])) & np.int32(255)
        out[i] = a0
        out[i + 1] = a1
        out[i + 2] = a2
        c0 = b0
        c1 = b1
        c2 = b2


@kernel
def _unfilter_row(kind, row, above, out, step):
    """Undo one row's filter; `step` is the distance in bytes to the pixel on the left."""
    n = row.size
    first = min(step, n)
    if kind == 0:
        for i in range(n):
            out[i] = row[i]
    elif kind == 1:
        for i in range(first):
            out[i] = row[i]
        for i in range(step, n):
            out[i] = row[i] + out[i - step]
    elif kind == 2:
        for i in range(n):
            out[i] = row[i] + above[i]
    elif kind == 3:
        for i in range(first):
            out[i] = row[i] + (above[i] >> 1)
        for i in range(step, n):
            out[i] = row[i] + ((np.int32(out[i - step]) + np.int32(above[i])) >> 1)
    elif step == 3:
        _paeth_rgb(row, above, out)
    else:
        for i in range(first):
            out[i] = row[i] + above[i]
        for i in range(step, n):
            out[i] = row[i] + _paeth(np.int32(out[i - step]), np.int32(above[i]), np.int32(above[i - step]))


@kernel
def unfilter(raw, zeros, out, step):
    """Undo the filters of an image's rows.

    Args:
        raw: (height, 1 + row_nbytes) uint8, C-contiguous: each row's filter number, then its filtered bytes.
        zeros: (row_nbytes,) uint8 of zeros: the row above the first.
        out: (height, row_nbytes) uint8, C-contiguous, which is filled.
        step: Bytes of a whole pixel, at least 1.

    Returns:
        -1, or the number of the first row whose filter number is not one of PNG's; rows from there on are not filled.
    """
    n = raw.shape[1] - 1
    above = u8_at(zeros.ctypes.data, n)
    for y in range(raw.shape[0]):
        kind = raw[y, 0]
        if kind > 4:
            return y
        row = u8_at(raw.ctypes.data + np.uint64(y * raw.shape[1] + 1), n)
        target = u8_at(out.ctypes.data + np.uint64(y * n), n)
        _unfilter_row(kind, row, above, target, step)
        above = target
    return -1
