"""Sixty-four bytes at a time: pixels spread out as pairs of words, weighted sums of the pairs, and blocks turned back.

Four rows or columns of sixteen pixels each go through registers side by side, and no value ever leaves its sixteen.
LLVM compiles these vectors to the registers of the processor: one of 512 bits, two of 256, four of 128.

A pair is two pixels that are weighed together, as two adjacent words. PAIR_NBYTES hold the pairs of 64 rows or
columns: first those of the even ones of each sixteen, then those of the odd ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_SIDE = 16
_NBYTES = 64
PAIR_NBYTES = 256
# In this order shifts alone move four adjacent bytes from and into four vectors.
_ORDER = (0, 2, 1, 3)


def _vector(kind: ir.IntType, nbytes: int = _NBYTES) -> ir.VectorType:
    return ir.VectorType(kind, 8 * nbytes // kind.width)


def _splat(kind: ir.IntType, value: int, nbytes: int = _NBYTES) -> ir.Constant:
    vector = _vector(kind, nbytes)
    return ir.Constant(vector, [kind(value)] * vector.count)


def _shuffle(builder: Any, a: Any, b: Any, lanes: Sequence[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(lanes)), [_I32(i) for i in lanes]))


def _interleave(builder: Any, a: Any, b: Any, bits: int) -> tuple[Any, Any]:
    """Interleave values of some bits of two vectors: the lower halves of their sixteens, and the upper ones."""
    kind = ir.IntType(bits)
    vector = _vector(kind)
    before = a.type
    a, b = builder.bitcast(a, vector), builder.bitcast(b, vector)
    each = vector.count * _SIDE // _NBYTES
    both = []
    for half in (0, each // 2):
        lanes = [
            first + half + k // 2 + (k % 2) * vector.count
            for first in range(0, vector.count, each)
            for k in range(each)
        ]
        both.append(builder.bitcast(_shuffle(builder, a, b, lanes), before))
    return both[0], both[1]


def _pointer(builder: Any, address: Any, vector: ir.VectorType) -> Any:
    return builder.inttoptr(address, vector.as_pointer())


def _load(builder: Any, address: Any, nbytes: int = _NBYTES) -> Any:
    return builder.load(_pointer(builder, address, _vector(_I8, nbytes)), align=1)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, _pointer(builder, address, value.type), align=1)


def _words(builder: Any, value: Any) -> Any:
    return builder.bitcast(value, _vector(_I16))


def _blend(builder: Any, low: Any, high: Any) -> Any:
    """Return the lower words of one vector and the upper words of the other."""
    count = _vector(_I16).count
    return _shuffle(builder, _words(builder, low), _words(builder, high), [k + k % 2 * count for k in range(count)])


@intrinsic
def spread_columns(typing_context, first, second, third, fourth, step, target):
    """Make the pairs of 32 columns of 4 x 16 rows.

    Four columns make two pairs: the first with the third, the second with the fourth.

    Args:
        first, second, third, fourth: uint64 addresses of four blocks of 16 x 32 bytes; step: int64, between their rows.
        target: uint64 address of 16 x PAIR_NBYTES.
    """

    def generate(context, builder, signature, arguments):
        *blocks, step, target = arguments
        halves: tuple[list[Any], list[Any]] = ([], [])
        for i in range(_SIDE):
            offset = builder.mul(step, _I64(i))
            a, b, c, d = (_load(builder, builder.add(block, offset), 2 * _SIDE) for block in blocks)
            low, high = (_shuffle(builder, *two, range(_NBYTES)) for two in ((a, b), (c, d)))
            low, high = (builder.bitcast(value, _vector(_I64)) for value in (low, high))
            for half, rows in enumerate(halves):
                lanes = [part + 4 * block + 2 * half + k for part in (0, 8) for block in (0, 1) for k in (0, 1)]
                rows.append(builder.bitcast(_shuffle(builder, low, high, lanes), _vector(_I8)))
        for half, rows in enumerate(halves):
            for q, (i, j, k, m) in enumerate((r, r + 4, r + 8, r + 12) for r in _ORDER):
                low, high = _interleave(builder, rows[i], rows[j], 32), _interleave(builder, rows[k], rows[m], 32)
                fours = [*_interleave(builder, low[0], high[0], 64), *_interleave(builder, low[1], high[1], 64)]
                for number, value in enumerate(fours):
                    columns = _words(builder, value)
                    address = builder.add(target, _I64(PAIR_NBYTES * (8 * half + 2 * number) + _NBYTES * q))
                    _store(builder, builder.and_(columns, _splat(_I16, 0xFF)), address)
                    _store(builder, builder.lshr(columns, _splat(_I16, 8)), builder.add(address, _I64(PAIR_NBYTES)))
        return context.get_dummy_value()

    address = types.uint64
    return types.void(address, address, address, address, types.int64, address), generate


@intrinsic
def spread_rows(typing_context, first, second, target):
    """Make the pairs of 64 columns of two rows.

    Args:
        first, second: uint64 addresses of the rows; target: of PAIR_NBYTES.
    """

    def generate(context, builder, signature, arguments):
        first, second, target = arguments
        a, b = (_words(builder, _load(builder, address)) for address in (first, second))
        even = [builder.and_(value, _splat(_I16, 0xFF)) for value in (a, b)]
        odd = [builder.lshr(value, _splat(_I16, 8)) for value in (a, b)]
        pairs = []
        for low, high in (even, odd):
            low, high = (builder.bitcast(value, _vector(_I32)) for value in (low, high))
            pairs.append(_blend(builder, low, builder.shl(high, _splat(_I32, 16))))
            pairs.append(_blend(builder, builder.lshr(low, _splat(_I32, 16)), high))
        for q, value in enumerate(pairs):
            _store(builder, value, builder.add(target, _I64(_NBYTES * q)))
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), generate


@intrinsic
def sum_pairs(typing_context, pairs, weights, count, precision, target):
    """Write 64 weighted sums as bytes, rounded half up and clipped to 0 ... 255.

    Args:
        pairs: uint64 address of `count` times PAIR_NBYTES.
        weights: uint64 address of `count` pairs of int16, in units of 2 ** -precision; count: int64, at least 1.
        precision: int64, 16 at most.
        target: uint64 address of 64 bytes.
    """

    def generate(context, builder, signature, arguments):
        pairs, weights, count, precision, target = arguments
        sums = _vector(_I32)

        def everywhere(value):
            one = builder.insert_element(ir.Constant(sums, ir.Undefined), value, _I32(0))
            return _shuffle(builder, one, one, [0] * sums.count)

        shift = builder.trunc(precision, _I32)
        half = everywhere(builder.shl(_I32(1), builder.sub(shift, _I32(1))))
        rooms = [cgutils.alloca_once(builder, sums) for _ in range(4)]
        for room in rooms:
            builder.store(half, room)
        even, odd = range(0, 2 * sums.count, 2), range(1, 2 * sums.count, 2)
        wide = ir.VectorType(_I32, 2 * sums.count)
        with cgutils.for_range(builder, builder.lshr(count, _I64(1)), intp=_I64) as loop:
            for k in range(2):
                number = builder.add(builder.shl(loop.index, _I64(1)), _I64(k))
                weight = builder.add(weights, builder.shl(number, _I64(2)))
                weight = builder.load(builder.inttoptr(weight, _I32.as_pointer()), align=4)
                weight = builder.sext(builder.bitcast(everywhere(weight), _vector(_I16)), wide)
                at = builder.add(pairs, builder.mul(number, _I64(PAIR_NBYTES)))
                for q, room in enumerate(rooms):
                    value = _words(builder, _load(builder, builder.add(at, _I64(_NBYTES * q))))
                    product = builder.mul(builder.sext(value, wide), weight)
                    both = builder.add(
                        _shuffle(builder, product, product, even), _shuffle(builder, product, product, odd)
                    )
                    builder.store(builder.add(builder.load(room), both), room)
        down, up = everywhere(shift), everywhere(builder.sub(_I32(16), shift))
        words = []
        for low, high in ((rooms[0], rooms[1]), (rooms[2], rooms[3])):
            value = _blend(builder, builder.ashr(builder.load(low), down), builder.shl(builder.load(high), up))
            for bound, sign in ((0, "<"), (255, ">")):
                limit = _splat(_I16, bound)
                value = builder.select(builder.icmp_signed(sign, value, limit), limit, value)
            words.append(value)
        found = builder.or_(words[0], builder.shl(words[1], _splat(_I16, 8)))
        _store(builder, found, target)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.int64, types.int64, types.uint64), generate


@intrinsic
def turn_blocks(typing_context, source, first, second, third, fourth, step):
    """Turn 16 columns of 64 bytes into 4 blocks of 16 rows of 16 bytes.

    Args:
        source: uint64 address of 16 x 64 bytes.
        first, second, third, fourth: uint64 addresses of the blocks; step: int64, between their rows.
    """

    def generate(context, builder, signature, arguments):
        source, *blocks, step = arguments
        rows = [_load(builder, builder.add(source, _I64(_NBYTES * i))) for i in range(_SIDE)]
        # Interleaving rows i and i + 8 four times moves every byte to the transposed place.
        for _ in range(4):
            rows = [half for i in range(_SIDE // 2) for half in _interleave(builder, rows[i], rows[i + _SIDE // 2], 8)]
        for i, row in enumerate(rows):
            offset = builder.mul(step, _I64(i))
            for number, block in enumerate(blocks):
                value = _shuffle(builder, row, row, range(_SIDE * number, _SIDE * (number + 1)))
                _store(builder, value, builder.add(block, offset))
        return context.get_dummy_value()

    address = types.uint64
    return types.void(address, address, address, address, address, types.int64), generate
