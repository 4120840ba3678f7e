"""Blocks of 8 x 8 differences: their order, and as vectors the way from pairs and raw bits to an image, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lmdbloader.kernels.delta import layout as at
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import load_u8

_U = np.uint64
_RAW_BITS = at.RAW_BITS
# Keys by which blocks are sorted: kinds, and of blocks that the edge cuts 16 more.
KEYS = 32
_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_COUNT = at.SIDE * at.SIDE
_BYTES, _WORDS, _BITS = ir.VectorType(_I8, _COUNT), ir.VectorType(_I16, _COUNT), ir.VectorType(ir.IntType(1), _COUNT)
_PAIRS, _OF_PAIRS = ir.VectorType(_I8, _COUNT // 2), ir.VectorType(_I16, _COUNT // 2)


def _all(vector: Any, value: int) -> Any:
    return ir.Constant(vector, [vector.element(value)] * vector.count)


def _lanes(builder: Any, a: Any, b: Any, lanes: Any) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(lanes)), [_I32(i) for i in lanes]))


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _values(builder, pairs, raw, count, apart):  # type: ignore[no-untyped-def]
    """Return the differences at an address of pairs, and where escapes are; see `put_bytes`."""
    b = builder
    wide = b.zext(_load(b, pairs, _PAIRS), _OF_PAIRS)
    both = b.and_(b.or_(wide, b.shl(wide, _all(_OF_PAIRS, 4))), _all(_OF_PAIRS, 0x0F0F))
    halves = b.bitcast(both, _BYTES)
    escapes = b.icmp_unsigned("==", halves, _all(_BYTES, at.ESCAPE))
    found = cgutils.alloca_once(b, _BYTES)  # LLVM keeps it in a register
    b.store(b.sub(b.xor(halves, _all(_BYTES, 8)), _all(_BYTES, 8)), found)
    with cgutils.for_range(b, count, intp=_I64) as loop:
        mask = b.bitcast(_load(b, b.add(raw, b.mul(loop.index, apart)), _I64), _BITS)
        value = b.load(found)
        b.store(b.sub(b.add(value, value), b.sext(mask, _BYTES)), found)
    return b.select(escapes, _all(_BYTES, 0), b.load(found)), b.bitcast(escapes, _I64)


@intrinsic
def put_bytes(typing_context, pairs, raw, count, apart, target, step):
    """Write a block of bytes.

    Args:
        pairs: uint64 address of its pairs.
        raw: uint64 address of its raw bits, of which up to 7 bytes more are read.
        count: int64, how many of them a difference has; apart: uint64, bytes from one of them to the next.
        target: uint64 address; step: uint64, from row to row.

    Returns:
        A one for each escape (uint64), instead of which 0 was written.
    """

    def generate(context, builder, signature, arguments):
        pairs, raw, count, apart, target, step = arguments
        values, escapes = _values(builder, pairs, raw, count, apart)
        rows = builder.bitcast(values, ir.VectorType(_I64, at.SIDE))
        for y in range(at.SIDE):
            row = builder.extract_element(rows, _I32(y))
            builder.store(row, builder.inttoptr(target, _I64.as_pointer()), align=1)
            target = builder.add(target, step)
        return escapes

    address = types.uint64
    return types.uint64(address, address, types.int64, address, address, address), generate


@intrinsic
def add_words(typing_context, pairs, raw, count, apart, target, step, shift):
    """Add a block of bytes with signs to words, each times 2 ** shift (uint64); else as `put_bytes`."""

    def generate(context, builder, signature, arguments):
        b = builder
        pairs, raw, count, apart, target, step, shift = arguments
        values, escapes = _values(b, pairs, raw, count, apart)
        row_kind = ir.VectorType(_I16, at.SIDE)
        first = b.insert_element(ir.Constant(row_kind, ir.Undefined), b.trunc(shift, _I16), _I32(0))
        shifts = _lanes(b, first, first, [0] * at.SIDE)
        for y in range(at.SIDE):
            row = b.sext(_lanes(b, values, values, range(at.SIDE * y, at.SIDE * (y + 1))), row_kind)
            place = b.inttoptr(target, row_kind.as_pointer())
            b.store(b.add(b.load(place, align=1), b.shl(row, shifts)), place, align=1)
            target = b.add(target, step)
        return escapes

    address = types.uint64
    return types.uint64(address, address, types.int64, address, address, address, address), generate


@intrinsic
def bits_of(typing_context, values, bit):
    """Return bit number `bit` (uint64) of each of 64 bytes at a uint64 address."""

    def generate(context, builder, signature, arguments):
        b = builder
        first = b.insert_element(ir.Constant(_BYTES, ir.Undefined), b.trunc(b.shl(_I64(1), arguments[1]), _I8), _I32(0))
        wanted = b.and_(_load(b, arguments[0], _BYTES), _lanes(b, first, first, [0] * _COUNT))
        return b.bitcast(b.icmp_unsigned("!=", wanted, _all(_BYTES, 0)), _I64)

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def pairs_of(typing_context, values, raw_bits, pairs):
    """Write the pairs of 64 bytes at a uint64 address to another one; raw_bits: uint64, at most 7."""

    def generate(context, builder, signature, arguments):
        b = builder
        values, raw_bits, pairs = arguments
        first = b.insert_element(ir.Constant(_BYTES, ir.Undefined), b.trunc(raw_bits, _I8), _I32(0))
        high = b.ashr(_load(b, values, _BYTES), _lanes(b, first, first, [0] * _COUNT))
        fits = b.icmp_unsigned("<", b.add(high, _all(_BYTES, 7)), _all(_BYTES, 15))
        halves = b.bitcast(b.select(fits, b.and_(high, _all(_BYTES, 15)), _all(_BYTES, at.ESCAPE)), _OF_PAIRS)
        found = b.trunc(b.or_(halves, b.lshr(halves, _all(_OF_PAIRS, 4))), _PAIRS)
        b.store(found, b.inttoptr(pairs, _PAIRS.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), generate


@intrinsic
def cheapest(typing_context, values, step, costs):
    """Return the least cost of a block, and below it 4 bits with its kind (uint64).

    Args:
        values: uint64 address; step: uint64, from row to row.
        costs: uint64 address of COSTS.
    """

    def generate(context, builder, signature, arguments):
        b = builder
        values, step, costs = arguments
        vector = ir.VectorType(_I16, 16)
        total = ir.Constant(vector, None)
        for _ in range(at.SIDE):
            for x in range(at.SIDE):
                value = b.zext(_load(b, b.add(values, _I64(x)), _I8), _I64)
                total = b.add(total, _load(b, b.add(costs, b.shl(value, _I64(5))), vector))
            values = b.add(values, step)
        least = total
        for half in (8, 4, 2, 1):
            other = _lanes(b, least, least, [k ^ half for k in range(16)])
            least = b.select(b.icmp_unsigned("<", least, other), least, other)
        found = b.bitcast(b.icmp_unsigned("==", total, least), _I16)
        kind = b.zext(b.cttz(found, ir.IntType(1)(1)), _I64)
        cost = b.zext(b.extract_element(least, _I32(0)), _I64)
        return b.or_(b.shl(cost, _I64(4)), kind)

    return types.uint64(types.uint64, types.uint64, types.uint64), generate


@kernel
def _row(plane, y, height, width, itemsize):
    """Return the place of the first pixel of a row, as `sort_blocks` writes it."""
    upper = plane & itemsize - 1
    return ((plane >> itemsize - 1) * height + y) * width << 1 | upper


@kernel
def sort_blocks(kinds, first, count, shape, keys, places, counts):
    """Sort blocks `first` ... by kind, those that the edge cuts last.

    Args:
        kinds: uint64 address of the differences of their kinds, 4 bits each.
        first, count: int64.
        shape: (height, width, bytes of a value) of a channel.
        keys: (count,) uint8, filled: of each block in order.
        places: (2, GROUP) uint32 in one array; the first row is filled: place of each block in the order of keys.
        counts: (2, KEYS) uint32 in one array, filled: the blocks of each key, and the place after the last one.

    Returns:
        The bytes of their raw bits.
    """
    height, width, itemsize = shape
    for k in range(2 * KEYS):
        counts[k] = 0
    across, down = (width + at.SIDE - 1) // at.SIDE, (height + at.SIDE - 1) // at.SIDE
    plane, y, x = first // (across * down), first // across % down * at.SIDE, first % across * at.SIDE
    row, rows = _row(plane, y, height, width, itemsize), min(at.SIDE, height - y)
    raw_nbytes, kind = np.int64(0), _U(0)
    for block in range(count):
        kind = kind + (np.uint64(load_u8(kinds + np.uint64(block >> 1))) >> np.uint64(4 * (block & 1))) & _U(15)
        key, padded = kind, np.int64(at.SIDE * at.SIDE)
        if rows < at.SIDE or x + at.SIDE > width:
            key, padded = kind | _U(16), rows * min(at.SIDE, width - x) + at.PADDED - 1 & -at.PADDED
        raw_nbytes += np.int64(_RAW_BITS[kind]) * (padded >> 3)
        keys[block] = key
        places[at.GROUP + block] = row + 2 * x
        counts[key] += np.uint32(1)
        x += at.SIDE
        if x >= width:
            x, y = np.int64(0), y + at.SIDE
            if y >= height:
                y, plane = np.int64(0), plane + 1
            row, rows = _row(plane, y, height, width, itemsize), min(at.SIDE, height - y)
    for key in range(1, KEYS):
        counts[KEYS + key] = counts[KEYS + key - 1] + counts[key - 1]
    for block in range(count):
        slot = _U(KEYS) + np.uint64(keys[block])
        places[np.uint64(counts[slot])] = places[at.GROUP + block]
        counts[slot] += np.uint32(1)
    return raw_nbytes
