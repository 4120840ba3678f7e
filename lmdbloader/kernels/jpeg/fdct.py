"""The forward discrete cosine transform of JPEG blocks and their quantization, in vector registers.

Source: as of the inverse one, in libjpeg's fixed point and with its rounding: coefficients are the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lmdbloader.kernels.jpeg.idct import FRACTION, KEPT, Lanes, transposed

_I8, _I16, _I32, _FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()


def _frequencies(r: Sequence[Lanes]) -> tuple[list[Lanes], list[Lanes]]:
    """Return eight frequencies of eight values: 0 and 4, and the others with FRACTION more bits of fraction."""
    low = [r[i] + r[7 - i] for i in range(4)]
    high = [r[7 - i] - r[i] for i in range(4, 8)]  # of values 3 and 4, 2 and 5, 1 and 6, 0 and 7
    outer, inner = low[0] + low[3], low[1] + low[2]
    outer_step, inner_step = low[0] - low[3], low[1] - low[2]
    turn = (inner_step + outer_step) * 0.541196100
    z1, z2, z3, z4 = high[0] + high[3], high[1] + high[2], high[0] + high[2], high[1] + high[3]
    z5 = (z3 + z4) * 1.175875602
    z1, z2 = z1 * -0.899976223, z2 * -2.562915447
    z3, z4 = z3 * -1.961570560 + z5, z4 * -0.390180644 + z5
    others = [
        high[3] * 1.501321110 + z1 + z4,
        turn + outer_step * 0.765366865,
        high[2] * 3.072711026 + z2 + z3,
        high[1] * 2.053119869 + z2 + z4,
        turn + inner_step * -1.847759065,
        high[0] * 0.298631336 + z1 + z3,
    ]
    return [outer + inner, outer - inner], others


def _in_order(ends: Sequence[Lanes], others: Sequence[Lanes]) -> list[Lanes]:
    return [ends[0], *others[:3], ends[1], *others[3:]]


@intrinsic
def quantize_block(typing_context, source, step, added, inverse, block):
    """Write the quantized coefficients of 8 x 8 pixels.

    Args:
        source: uint64 address of the pixels; step: bytes from one row to the next, uint64.
        added, inverse: uint64 addresses of (8, 8) float32: with a divisor of 8 times the quantization, its half and
            0.5, and 1 over it. A quotient is so never nearly a whole number, and cutting its fraction off is exact.
        block: uint64 address of (8, 8) int16, filled.
    """

    def generate(context, builder, signature, arguments):
        source, step, added, inverse, block = arguments
        integers, floats = ir.VectorType(_I32, 8), ir.VectorType(_FLOAT, 8)

        def loaded(address, kind):
            return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)

        rows = []
        for i in range(8):
            at = builder.add(source, builder.mul(step, ir.Constant(step.type, i)))
            pixels = builder.zext(loaded(at, ir.VectorType(_I8, 8)), integers)
            rows.append(builder.sub(pixels, ir.Constant(integers, [_I32(128)] * 8)))
        ends, others = _frequencies([Lanes(builder, v) for v in transposed(builder, rows)])
        across = _in_order([v << KEPT for v in ends], [v.descaled(FRACTION - KEPT) for v in others])
        ends, others = _frequencies([Lanes(builder, v) for v in transposed(builder, [v.value for v in across])])
        down = _in_order([v.descaled(KEPT) for v in ends], [v.descaled(FRACTION + KEPT) for v in others])
        none = ir.Constant(integers, None)
        for i, lanes in enumerate(down):
            value = lanes.value
            is_negative = builder.icmp_signed("<", value, none)
            size = builder.select(is_negative, builder.sub(none, value), value)
            offset = ir.Constant(block.type, 32 * i)
            size = builder.fadd(builder.sitofp(size, floats), loaded(builder.add(added, offset), floats))
            size = builder.fmul(size, loaded(builder.add(inverse, offset), floats))
            size = builder.fptosi(size, integers)
            value = builder.select(is_negative, builder.sub(none, size), size)
            value = builder.trunc(value, ir.VectorType(_I16, 8))
            at = builder.add(block, ir.Constant(block.type, 16 * i))
            builder.store(value, builder.inttoptr(at, value.type.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64, types.uint64, types.uint64), generate
