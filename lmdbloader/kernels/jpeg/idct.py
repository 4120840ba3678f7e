"""The inverse discrete cosine transform of JPEG blocks, to 8 x 8, 4 x 4, 2 x 2 or 1 x 1 pixels, in vector registers.

Source: Loeffler, Ligtenberg and Moschytz, "Practical fast 1-D DCT algorithms with 11 multiplications" (1989), in the
fixed point that libjpeg made the reference of (13 bits of fraction, 2 of them kept between the passes): the pixels are
the same, bit for bit. The smaller results leave out high frequencies, as libjpeg's do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import store_u64, u8_at

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
FRACTION, KEPT = 13, 2


def _fixed(value: float) -> int:
    return int(np.floor(value * (1 << FRACTION) + 0.5))


class Lanes:
    """Vectors of eight int32, with the operators that the transforms are written in."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def __add__(self, other: Lanes) -> Lanes:
        return Lanes(self.builder, self.builder.add(self.value, other.value))

    def __sub__(self, other: Lanes) -> Lanes:
        return Lanes(self.builder, self.builder.sub(self.value, other.value))

    def _all(self, number: int) -> Any:
        count = self.value.type.count
        return ir.Constant(ir.VectorType(_I32, count), [_I32(number)] * count)

    def __mul__(self, factor: float) -> Lanes:
        return Lanes(self.builder, self.builder.mul(self.value, self._all(_fixed(factor))))

    def __lshift__(self, bits: int) -> Lanes:
        return Lanes(self.builder, self.builder.shl(self.value, self._all(bits)))

    def descaled(self, bits: int) -> Lanes:
        """Return them divided by a power of two and rounded."""
        raised = self.builder.add(self.value, self._all(1 << (bits - 1)))
        return Lanes(self.builder, self.builder.ashr(raised, self._all(bits)))

    def pixels(self) -> Any:
        """Return them as eight bytes around 128."""
        b = self.builder
        value = b.add(self.value, self._all(128))
        value = b.select(b.icmp_signed("<", value, self._all(0)), self._all(0), value)
        value = b.select(b.icmp_signed(">", value, self._all(255)), self._all(255), value)
        return b.trunc(value, ir.VectorType(_I8, value.type.count))


def _to_eight(r: Sequence[Lanes]) -> tuple[list[Lanes], int]:
    """Return eight results of eight values, and the bits of fraction that they have gained."""
    z1 = (r[2] + r[6]) * 0.541196100
    even2 = z1 + r[6] * -1.847759065
    even3 = z1 + r[2] * 0.765366865
    even0, even1 = (r[0] + r[4]) << FRACTION, (r[0] - r[4]) << FRACTION
    low = (even0 + even3, even1 + even2, even1 - even2, even0 - even3)
    z5 = (r[7] + r[3] + r[5] + r[1]) * 1.175875602
    z1, z2 = (r[7] + r[1]) * -0.899976223, (r[5] + r[3]) * -2.562915447
    z3, z4 = (r[7] + r[3]) * -1.961570560 + z5, (r[5] + r[1]) * -0.390180644 + z5
    high = (
        r[1] * 1.501321110 + z1 + z4,
        r[3] * 3.072711026 + z2 + z3,
        r[5] * 2.053119869 + z2 + z4,
        r[7] * 0.298631336 + z1 + z3,
    )
    return [a + b for a, b in zip(low, high, strict=True)] + [a - b for a, b in zip(low, high, strict=True)][::-1], 0


def _to_four(r: Sequence[Lanes]) -> tuple[list[Lanes], int]:
    """Return four results of eight values; number 4 of them does not count."""
    base, turn = r[0] << (FRACTION + 1), r[2] * 1.847759065 + r[6] * -0.765366865
    low = (base + turn, base - turn)
    high = (
        r[7] * -0.509795579 + r[5] * -0.601344887 + r[3] * 0.899976223 + r[1] * 2.562915447,
        r[7] * -0.211164243 + r[5] * 1.451774981 + r[3] * -2.172734803 + r[1] * 1.061594337,
    )
    return [low[0] + high[0], low[1] + high[1], low[1] - high[1], low[0] - high[0]], 1


def _to_two(r: Sequence[Lanes]) -> tuple[list[Lanes], int]:
    """Return two results of eight values, of which the even ones but the first do not count."""
    base = r[0] << (FRACTION + 2)
    turn = r[7] * -0.720959822 + r[5] * 0.850430095 + r[3] * -1.272758580 + r[1] * 3.624509785
    return [base + turn, base - turn], 2


def transposed(builder: Any, rows: Sequence[Any]) -> list[Any]:
    """Return eight vectors of eight lanes transposed; but for the last, shuffles stay within halves of a vector."""

    def shuffle(a: Any, b: Any, lanes: Sequence[int]) -> Any:
        return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, 8), [_I32(i) for i in lanes]))

    pairs = [
        shuffle(rows[i], rows[i + 1], lanes)
        for i in (0, 2, 4, 6)
        for lanes in ((0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15))
    ]
    fours = [
        shuffle(pairs[i + k], pairs[i + k + 2], lanes)
        for i in (0, 4)
        for k in (0, 1)
        for lanes in ((0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15))
    ]
    return [
        shuffle(fours[k], fours[k + 4], lanes)
        for lanes in ((0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))
        for k in range(4)
    ]


def _transform(transform: Callable[[Sequence[Lanes]], tuple[list[Lanes], int]]) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block, scale, target, step = arguments
        row = ir.VectorType(_I16, 8)
        rows = []
        for i in range(8):
            offset = ir.Constant(block.type, 16 * i)
            loaded, factors = (
                builder.load(builder.inttoptr(builder.add(address, offset), row.as_pointer()), align=2)
                for address in (block, scale)
            )
            rows.append(Lanes(builder, builder.sext(builder.mul(loaded, factors), ir.VectorType(_I32, 8))))
        down, gained = transform(rows)
        down = [v.descaled(FRACTION - KEPT + gained) for v in down]
        none = ir.Constant(ir.VectorType(_I32, 8), None)
        columns = transposed(builder, [v.value for v in down] + [none] * (8 - len(down)))
        across, gained = transform([Lanes(builder, v) for v in columns])
        done = [v.descaled(FRACTION + KEPT + 3 + gained).value for v in across]
        size = len(done)
        for i, line in enumerate(transposed(builder, done + [none] * (8 - size))[:size]):
            address = builder.add(target, builder.mul(step, ir.Constant(step.type, i)))
            word = builder.bitcast(Lanes(builder, line).pixels(), ir.IntType(64))
            part = builder.trunc(word, ir.IntType(8 * size)) if size < 8 else word
            builder.store(part, builder.inttoptr(address, part.type.as_pointer()), align=1)
        return context.get_dummy_value()

    @intrinsic
    def idct(typing_context, block, scale, target, step):
        return types.void(types.uint64, types.uint64, types.uint64, types.uint64), generate

    return idct


_idct_8, _idct_4, _idct_2 = _transform(_to_eight), _transform(_to_four), _transform(_to_two)


@intrinsic
def clear_block(typing_context, block):
    """Set the (8, 8) int16 coefficients at a uint64 address to zero."""

    def generate(context, builder, signature, arguments):
        none = ir.Constant(ir.VectorType(_I16, 16), None)
        for i in range(4):
            address = builder.add(arguments[0], ir.Constant(arguments[0].type, 32 * i))
            builder.store(none, builder.inttoptr(address, none.type.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(types.uint64), generate


@intrinsic
def has_others(typing_context, block):
    """Return whether any of the (8, 8) int16 coefficients at a uint64 address but the first is not zero."""

    def generate(context, builder, signature, arguments):
        kind = ir.VectorType(_I16, 64)
        loaded = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=2)
        loaded = builder.insert_element(loaded, _I16(0), _I32(0))
        return builder.icmp_unsigned("!=", builder.bitcast(loaded, ir.IntType(1024)), ir.IntType(1024)(0))

    return types.boolean(types.uint64), generate


@kernel
def fill_block(first, target, step, size):
    """Write the pixels of a block of which only the first coefficient is not zero; up to eight bytes of each row."""
    value = min(max(((first + np.int32(4)) >> np.int32(3)) + np.int32(128), np.int32(0)), np.int32(255))
    if size == 1:
        u8_at(target, 1)[0] = value
        return
    word = np.uint64(value) * np.uint64(0x0101010101010101)
    for y in range(size):
        store_u64(target + np.uint64(y) * step, word)


@kernel
def transform_block(block, scale, target, step, size):
    """Write the pixels of a block.

    Args:
        block, scale: Addresses of (8, 8) int16 coefficients and of their quantization.
        target: Address of the first pixel; step: bytes from one row to the next, uint64.
        size: 8, 4 or 2 pixels a side.
    """
    if size == 8:
        _idct_8(block, scale, target, step)
    elif size == 4:
        _idct_4(block, scale, target, step)
    else:
        _idct_2(block, scale, target, step)
