"""Vectors of numbers: weighted sums of them, and blocks transposed."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lmdbloader.kernels.jpeg.idct import transposed

_I16, _I32, _I64, _FLOAT = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
LANES, SIDE = 16, 8
# Bytes of the sums that `add_pairs` makes at once.
PAIRS_NBYTES = 128


@intrinsic
def add_weighted(typing_context, source, step, weights, count, target):
    """Write the sums of `count` times LANES float32, weighted and added in their order.

    Args:
        source: uint64 address of the first values; step: bytes from them to the next ones, int64.
        weights: uint64 address of `count` float32; count: int64, at least 0.
        target: uint64 address of the sums.
    """

    def generate(context, builder, signature, arguments):
        source, step, weights, count, target = arguments
        vector = ir.VectorType(_FLOAT, LANES)
        sums = cgutils.alloca_once(builder, vector)
        builder.store(ir.Constant(vector, None), sums)
        with cgutils.for_range(builder, count, intp=_I64) as loop:
            at = builder.add(weights, builder.shl(loop.index, _I64(2)))
            weight = builder.load(builder.inttoptr(at, _FLOAT.as_pointer()), align=4)
            weight = spread(builder, weight, vector)
            at = builder.add(source, builder.mul(loop.index, step))
            values = builder.load(builder.inttoptr(at, vector.as_pointer()), align=4)
            builder.store(builder.fadd(builder.load(sums), builder.fmul(values, weight)), sums)
        builder.store(builder.load(sums), builder.inttoptr(target, vector.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64, types.uint64, types.int64, types.uint64), generate


def spread(builder: Any, number: Any, vector: Any) -> Any:
    """Return a number in all places of a vector."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, _I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_I32, vector.count), None))


@intrinsic
def add_pairs(typing_context, source, step, weights, count, first, target):
    """Write PAIRS_NBYTES of sums of float32 or uint16: `first`, the weighted values, and pairs on both sides of them.

    Args:
        source: uint64 address of the values in the middle; step: bytes from them to the next ones, int64.
        weights: uint64 address of 1 + `count` numbers, of the middle and of each pair; uint16 count 65536 as 1.
        count: int64, at least 0.
        first: Added to each sum; its type is that of the values.
        target: uint64 address of the sums.
    """

    def generate(context, builder, signature, arguments):
        source, step, weights, count, first, target = arguments
        is_whole, width = first.type == _I16, 2 if first.type == _I16 else 4
        vector = ir.VectorType(first.type, PAIRS_NBYTES // width)
        wide = ir.VectorType(_I32, vector.count)
        add, sums = builder.add if is_whole else builder.fadd, cgutils.alloca_once(builder, vector)

        def load(at, kind=vector):
            return builder.load(builder.inttoptr(at, kind.as_pointer()), align=width)

        def scaled(values, number):
            weight = load(builder.add(weights, builder.mul(number, _I64(width))), first.type)
            weight = spread(builder, weight, vector)
            if not is_whole:
                return builder.fmul(values, weight)
            product = builder.mul(builder.zext(values, wide), builder.zext(weight, wide))
            return builder.trunc(builder.lshr(product, ir.Constant(wide, [16] * wide.count)), vector)

        builder.store(add(scaled(load(source), _I64(0)), spread(builder, first, vector)), sums)
        with cgutils.for_range(builder, count, intp=_I64) as loop:
            number = builder.add(loop.index, _I64(1))
            off = builder.mul(number, step)
            pair = add(load(builder.sub(source, off)), load(builder.add(source, off)))
            builder.store(add(builder.load(sums), scaled(pair, number)), sums)
        builder.store(builder.load(sums), builder.inttoptr(target, vector.as_pointer()), align=width)
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64, types.uint64, types.int64, first, types.uint64), generate


def load_rows(builder: Any, address: Any, step: Any) -> list[Any]:
    """Return eight vectors of eight float32, of which each is `step` bytes behind the one before."""
    pointer = ir.VectorType(_FLOAT, SIDE).as_pointer()
    places = [builder.add(address, builder.mul(step, ir.Constant(step.type, i))) for i in range(SIDE)]
    return [builder.load(builder.inttoptr(at, pointer), align=4) for at in places]


def store_rows(builder: Any, rows: list[Any], address: Any, step: Any) -> None:
    """Store vectors, each `step` bytes behind the one before."""
    for i, row in enumerate(rows):
        at = builder.add(address, builder.mul(step, ir.Constant(step.type, i)))
        builder.store(row, builder.inttoptr(at, row.type.as_pointer()), align=4)


@intrinsic
def transpose_block(typing_context, source, source_step, target, target_step):
    """Transpose a block of 8 x 8 float32 from one uint64 address to another; steps: bytes between rows, int64."""

    def generate(context, builder, signature, arguments):
        source, source_step, target, target_step = arguments
        rows = load_rows(builder, source, source_step)
        store_rows(builder, transposed(builder, rows), target, target_step)
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64, types.uint64, types.int64), generate
