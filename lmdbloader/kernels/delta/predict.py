"""Rows of pixels predicted from the row above and the left neighbor, and back.

A prediction is h(row above) plus a running sum, so that a row becomes differences, and differences a row, sixteen
bytes at a time. All sums wrap around.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from lmdbloader.kernels.delta import layout as at
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import part

_U = np.uint64
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_NBYTES = 16


@njit(inline="always")
def estimate(above, x, width, predictor):
    """Return what a predictor with running sums makes of the row above a pixel."""
    if predictor == at.LEFT:
        return np.int64(0)
    here = np.int64(above[x])
    if predictor == at.GRADIENT:
        return here
    return (here + ((np.int64(above[max(x - 1, 0)]) + np.int64(above[min(x + 1, width - 1)])) >> 1) + 1) >> 1


def _lanes(builder: Any, a: Any, b: Any, lanes: Any) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(lanes)), [_I32(i) for i in lanes]))


def _running(builder: Any, value: Any) -> Any:
    """Return the running sums of a vector."""
    count, zeros, shift = value.type.count, ir.Constant(value.type, None), 1
    while shift < count:
        moved = _lanes(builder, zeros, value, [count - shift + k for k in range(count)])
        value, shift = builder.add(value, moved), 2 * shift
    return value


def _row_of(bits: int, predictor: int) -> Any:
    kind = ir.IntType(bits)
    count = 8 * _NBYTES // bits
    vector = ir.VectorType(kind, count)
    one = ir.Constant(vector, [kind(1)] * count)

    def smoothed(b, left, here, right):  # type: ignore[no-untyped-def]
        low = b.add(b.and_(left, right), b.lshr(b.xor(left, right), one))
        return b.sub(b.or_(here, low), b.lshr(b.xor(here, low), one))

    @intrinsic
    def undo(typing_context, row, above, carry, blocks):
        """Turn the first differences of a row into pixels.

        Args:
            row, above: uint64 addresses; a pixel behind those of `above` is read too.
            carry: uint64, the running sum before the first one.
            blocks: int64, how many times 16 bytes.

        Returns:
            The running sum after them (uint64).
        """

        def generate(context, b, signature, arguments):
            row, above, carry, blocks = arguments

            def load(address, kind=vector):
                return b.load(b.inttoptr(address, kind.as_pointer()), align=1)

            def everywhere(value):
                first = b.insert_element(ir.Constant(vector, ir.Undefined), value, _I32(0))
                return _lanes(b, first, first, [0] * count)

            total, before = (cgutils.alloca_once(b, vector) for _ in range(2))  # LLVM keeps them in registers
            b.store(everywhere(b.trunc(carry, kind)), total)
            b.store(everywhere(load(above, kind)), before)
            with cgutils.for_range(b, blocks, intp=_I64) as loop:
                offset = b.shl(loop.index, _I64(4))
                place, place_above = b.add(row, offset), b.add(above, offset)
                sums = _running(b, load(place))
                found = b.add(sums, b.load(total))
                b.store(b.add(b.load(total), _lanes(b, sums, sums, [count - 1] * count)), total)
                if predictor != at.LEFT:
                    here = load(place_above)
                    left = _lanes(b, b.load(before), here, [count - 1 + k for k in range(count)])
                    right = load(b.add(place_above, _I64(bits // 8))) if predictor == at.SMOOTH else here
                    b.store(here, before)
                    found = b.add(found, smoothed(b, left, here, right) if predictor == at.SMOOTH else here)
                b.store(found, b.inttoptr(place, vector.as_pointer()), align=1)
            return b.zext(b.extract_element(b.load(total), _I32(0)), _I64)

        return types.uint64(types.uint64, types.uint64, types.uint64, types.int64), generate

    return undo


_LEFT8, _GRADIENT8, _SMOOTH8 = (_row_of(8, predictor) for predictor in (at.LEFT, at.GRADIENT, at.SMOOTH))
_LEFT16, _GRADIENT16, _SMOOTH16 = (_row_of(16, predictor) for predictor in (at.LEFT, at.GRADIENT, at.SMOOTH))


@njit(inline="always")
def _undo(plane, height, width, predictor, left, gradient, smoothed):
    """Turn the differences of a plane, (height x width,) uint8 or uint16, into pixels."""
    if predictor == at.NONE:
        return
    for x in range(1, width):
        plane[x] = plane[x] + plane[x - 1]
    blocks = plane.itemsize * width // _NBYTES
    done = blocks * (_NBYTES // plane.itemsize)
    for y in range(1, height):
        above, row = part(plane, (y - 1) * width, width), part(plane, y * width, width)
        if predictor == at.UP:
            for x in range(width):  # vector instructions
                row[x] = row[x] + above[x]
            continue
        here, there = np.uint64(row.ctypes.data), np.uint64(above.ctypes.data)
        if predictor == at.LEFT:
            carry = left(here, there, np.uint64(above[0]), blocks)
        elif predictor == at.GRADIENT:
            carry = gradient(here, there, _U(0), blocks)
        else:
            carry = smoothed(here, there, _U(0), blocks)
            if done == width:  # the last pixel has no right neighbor
                row[width - 1] = carry + np.uint64(estimate(above, width - 1, width, predictor))
        for x in range(done, width):
            carry += np.uint64(row[x])
            row[x] = carry + np.uint64(estimate(above, x, width, predictor))


@kernel
def undo_bytes(plane, height, width, predictor):
    """Turn the differences of a plane (height x width,) uint8 into pixels."""
    _undo(plane, height, width, predictor, _LEFT8, _GRADIENT8, _SMOOTH8)


@kernel
def undo_words(plane, height, width, predictor):
    """Turn the differences of a plane (height x width,) uint16 into pixels."""
    _undo(plane, height, width, predictor, _LEFT16, _GRADIENT16, _SMOOTH16)
