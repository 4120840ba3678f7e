"""Kernels that undo the row filters of PNG."""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import u8_at

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_SUB, _UP, _AVERAGE, _PAETH = 1, 2, 3, 4
# Rows that go through registers side by side, and the samples of a pixel there.
_ROWS = 8
_SAMPLES = 4


@intrinsic
def _unfilter_diagonals(typing_context, filtered, filtered_step, above, out, out_step, step, count):
    """Undo the filters of eight rows of pixels of 3 or 4 bytes at once, each row a pixel behind the row above it.

    So all that a pixel depends on is in registers: its left neighbor is the row's own last pixel, and those above are
    the last two pixels of the row above. Sub and Up are the Paeth filter with zeros for the other neighbors.

    Args:
        filtered: uint64 address of the first row's filter number; filtered_step: int64, from row to row.
        above: uint64 address of the row above the first one.
        out: uint64 address of the first row; out_step: int64, from row to row. Row k has its first 8 - k pixels.
        step: int64 bytes of a pixel. One more byte behind it is read and written.
        count: int64 pixels of each row to do, at least 1.
    """

    def generate(context, builder, signature, arguments):
        filtered, filtered_step, above, out, out_step, step, count = arguments
        pixels, longs = ir.VectorType(_I32, _ROWS), ir.VectorType(_I64, _ROWS)
        octets, words = ir.VectorType(_I8, _SAMPLES * _ROWS), ir.VectorType(_I16, _SAMPLES * _ROWS)

        def pointer(address, kind):
            return builder.inttoptr(address, kind.as_pointer())

        def gather(addresses):
            found = ir.Constant(pixels, ir.Undefined)
            for k, address in enumerate(addresses):
                found = builder.insert_element(found, builder.load(pointer(address, _I32), align=1), _I32(k))
            return builder.zext(builder.bitcast(found, octets), words)

        def where(kinds, *wanted):
            """Return all ones in the rows with one of these filters."""
            found = ir.Constant(pixels, [_I32(0)] * _ROWS)
            for kind in wanted:
                same = builder.icmp_unsigned("==", kinds, ir.Constant(longs, [_I64(kind)] * _ROWS))
                found = same if kind == wanted[0] else builder.or_(found, same)
            return builder.bitcast(builder.sext(found, longs), words)

        kinds = ir.Constant(longs, ir.Undefined)
        sources, targets = [], []
        for k in range(_ROWS):
            start = builder.add(filtered, builder.mul(filtered_step, _I64(k)))
            kind = builder.zext(builder.load(pointer(start, _I8)), _I64)
            kinds = builder.insert_element(kinds, kind, _I32(k))
            skipped = builder.mul(step, _I64(_ROWS - k))
            sources.append(builder.add(builder.add(start, _I64(1)), skipped))
            targets.append(builder.add(builder.add(out, builder.mul(out_step, _I64(k))), skipped))
        above = builder.add(above, builder.mul(step, _I64(_ROWS)))
        uses_left, uses_above = where(kinds, _SUB, _AVERAGE, _PAETH), where(kinds, _UP, _AVERAGE, _PAETH)
        uses_corner = where(kinds, _PAETH)
        is_average = builder.icmp_signed("!=", where(kinds, _AVERAGE), ir.Constant(words, [_I16(0)] * words.count))
        lefts = gather([builder.sub(target, step) for target in targets])
        two = builder.add(step, step)
        corners = gather([builder.sub(above, step), *(builder.sub(target, two) for target in targets[:-1])])

        before = builder.block
        body, after = builder.append_basic_block("diagonal"), builder.append_basic_block("done")
        builder.branch(body)
        builder.position_at_end(body)
        number, left, corner = builder.phi(_I64), builder.phi(words), builder.phi(words)
        number.add_incoming(_I64(0), before)
        left.add_incoming(lefts, before)
        corner.add_incoming(corners, before)
        at = builder.mul(number, step)
        first = gather([builder.add(above, at)])
        lanes = [*range(_SAMPLES), *range(words.count, 2 * words.count - _SAMPLES)]
        up = builder.shuffle_vector(
            first, left, ir.Constant(ir.VectorType(_I32, words.count), [_I32(i) for i in lanes])
        )
        a, b, c = builder.and_(left, uses_left), builder.and_(up, uses_above), builder.and_(corner, uses_corner)
        total = builder.add(a, b)
        threshold = builder.sub(builder.add(builder.add(c, c), c), total)
        a_is_low = builder.icmp_signed("<", a, b)
        low, high = builder.select(a_is_low, a, b), builder.select(a_is_low, b, a)
        found = builder.select(builder.icmp_signed("<=", high, threshold), low, c)
        found = builder.select(builder.icmp_signed("<=", threshold, low), high, found)
        average = builder.lshr(total, ir.Constant(words, [_I16(1)] * words.count))
        found = builder.select(is_average, average, found)
        found = builder.add(found, gather([builder.add(source, at) for source in sources]))
        found = builder.and_(found, ir.Constant(words, [_I16(255)] * words.count))
        written = builder.bitcast(builder.trunc(found, octets), pixels)
        for k, target in enumerate(targets):
            value = builder.extract_element(written, _I32(k))
            builder.store(value, pointer(builder.add(target, at), _I32), align=1)
        following = builder.add(number, _I64(1))
        number.add_incoming(following, body)
        left.add_incoming(found, body)
        corner.add_incoming(up, body)
        builder.cbranch(builder.icmp_signed("<", following, count), body, after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    address = types.uint64
    return types.void(address, types.int64, address, address, types.int64, types.int64, types.int64), generate


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
def _unfilter_row(kind, row, above, out, step, start):
    """Undo one row's filter from byte `start` on; `step` is the distance in bytes to the pixel on the left."""
    n = row.size
    first = min(step, n)
    others = max(step, start)
    if kind == 0:
        for i in range(start, n):
            out[i] = row[i]
    elif kind == _SUB:
        for i in range(start, first):
            out[i] = row[i]
        for i in range(others, n):
            out[i] = row[i] + out[i - step]
    elif kind == _UP:
        for i in range(start, n):
            out[i] = row[i] + above[i]
    elif kind == _AVERAGE:
        for i in range(start, first):
            out[i] = row[i] + (above[i] >> 1)
        for i in range(others, n):
            out[i] = row[i] + ((np.int32(out[i - step]) + np.int32(above[i])) >> 1)
    else:
        for i in range(start, first):
            out[i] = row[i] + above[i]
        for i in range(others, n):
            out[i] = row[i] + _paeth(np.int32(out[i - step]), np.int32(above[i]), np.int32(above[i - step]))


@kernel
def _unfilter_part(raw, zeros, out, step, y, start, stop):
    """Undo the filter of bytes `start` to `stop` of row y; the others are as `unfilter` gets them."""
    n = raw.shape[1] - 1
    row = u8_at(raw.ctypes.data + np.uint64(y * raw.shape[1] + 1), stop)
    above = u8_at(out.ctypes.data + np.uint64((y - 1) * n) if y else zeros.ctypes.data, stop)
    _unfilter_row(raw[y, 0], row, above, u8_at(out.ctypes.data + np.uint64(y * n), stop), step, start)


@kernel
def unfilter(raw, zeros, out, step):
    """Undo the filters of an image's rows.

    Args:
        raw: (height, 1 + row_nbytes) uint8, C-contiguous: each row's filter number, then its filtered bytes.
        zeros: (row_nbytes,) uint8 of zeros: the row above the first.
        out: (height, row_nbytes) uint8, C-contiguous, which is filled. It may begin 8 rows before `raw` in one memory.
        step: Bytes of a whole pixel, at least 1.

    Returns:
        -1, or the number of the first row whose filter number is not one of PNG's; then nothing is filled.
    """
    height, n = raw.shape[0], raw.shape[1] - 1
    for y in range(height):
        if raw[y, 0] > _PAETH:
            return y
    # The last pixel is left out: four bytes are written where it may have three.
    width = n // step
    together = width - 1 - _ROWS
    y = 0
    if together > 0 and (step == 3 or step == 4):
        while y + _ROWS <= height:
            for k in range(_ROWS):
                _unfilter_part(raw, zeros, out, step, y + k, 0, (_ROWS - k) * step)
            above = out.ctypes.data + np.uint64((y - 1) * n) if y else zeros.ctypes.data
            filtered, target = raw.ctypes.data + np.uint64(y * (n + 1)), out.ctypes.data + np.uint64(y * n)
            _unfilter_diagonals(filtered, n + 1, np.uint64(above), target, n, step, together)
            for k in range(_ROWS):
                _unfilter_part(raw, zeros, out, step, y + k, (width - 1 - k) * step, n)
            y += _ROWS
    while y < height:
        _unfilter_part(raw, zeros, out, step, y, 0, n)
        y += 1
    return -1
