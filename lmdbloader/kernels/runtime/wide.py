"""Numbers of 128 bits in kernels, as pairs (high, low) of uint64."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_I64, _I128 = ir.IntType(64), ir.IntType(128)


@intrinsic
def add_product(typing_context, high, low, a, b):
    """Return (high, low) + a * b modulo 2^128 as (high, low); all are uint64."""

    def generate(context, builder, signature, arguments):
        high, low, a, b = (builder.zext(argument, _I128) for argument in arguments)
        total = builder.add(builder.or_(builder.shl(high, _I128(64)), low), builder.mul(a, b))
        halves = [builder.trunc(half, _I64) for half in (builder.lshr(total, _I128(64)), total)]
        return context.make_tuple(builder, signature.return_type, halves)

    word = types.uint64
    return types.UniTuple(word, 2)(word, word, word, word), generate
