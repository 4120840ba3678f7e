"""The eight streams of a payload of `delta`, whose codes are looked up side by side.

Source: the bit reader whose lowest set bit says how much was read is that of zstd's decoder (Huff0).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lmdbloader.kernels.delta import layout as at

_I16, _I64 = ir.IntType(16), ir.IntType(64)


def _refilled(builder, word, read, last):  # type: ignore[no-untyped-def]
    """Return the next 56 bits or more of a stream, above a one, and the address where they begin."""
    used = builder.cttz(word, ir.IntType(1)(1))
    read = builder.add(read, builder.lshr(used, _I64(3)))
    read = builder.select(builder.icmp_unsigned("<", read, last), read, last)
    bits = builder.bswap(builder.load(builder.inttoptr(read, _I64.as_pointer()), align=1))
    return builder.shl(builder.or_(bits, _I64(1)), builder.and_(used, _I64(7))), read


def _one_code(builder, word, table, out):  # type: ignore[no-untyped-def]
    """Write the pair of the next code, and anything into the byte before it; return the word after the code."""
    place = builder.add(table, builder.shl(builder.lshr(word, _I64(64 - at.MOST_BITS)), _I64(1)))
    entry = builder.load(builder.inttoptr(place, _I16.as_pointer()), align=2)
    builder.store(entry, builder.inttoptr(builder.sub(out, _I64(1)), _I16.as_pointer()), align=1)
    return builder.shl(word, builder.and_(builder.zext(entry, _I64), _I64(63)))


def _decoder(num_codes: int, step: int) -> Any:
    """Return a function that kernels call to decode some codes of each stream, round by round `step` bytes apart."""
    name = f"lmdbloader_delta_{num_codes}"
    kind = ir.FunctionType(ir.VoidType(), [_I64] * 5)

    def define(module):  # type: ignore[no-untyped-def]
        function = ir.Function(module, kind, name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")  # more of its words are in registers then
        builder = ir.IRBuilder(function.append_basic_block())
        state, last, table, out, rounds = function.args
        # Where streams go on stays in memory, so that all words are in registers.
        places = [builder.inttoptr(builder.add(state, _I64(8 * k)), _I64.as_pointer()) for k in range(2 * at.STREAMS)]
        rooms = [cgutils.alloca_once(builder, _I64) for _ in range(at.STREAMS)]
        for k, room in enumerate(rooms):
            builder.store(builder.load(places[2 * k]), room)
        with cgutils.for_range(builder, rounds, intp=_I64) as loop:
            here, words = builder.add(out, builder.mul(loop.index, _I64(step))), []
            for k, room in enumerate(rooms):
                word, read = _refilled(builder, builder.load(room), builder.load(places[2 * k + 1]), last)
                builder.store(read, places[2 * k + 1])
                words.append(word)
            for place in range(num_codes * at.STREAMS):
                k = place % at.STREAMS
                words[k] = _one_code(builder, words[k], table, builder.sub(here, _I64(place)))
            for word, room in zip(words, rooms, strict=True):
                builder.store(word, room)
        for k, room in enumerate(rooms):
            builder.store(builder.load(room), places[2 * k])
        builder.ret_void()
        return function

    @intrinsic
    def decode(typing_context, state, last, table, out, rounds):
        """Decode `rounds` times some codes of each stream.

        Args:
            state: uint64 address of (word, address) of each stream, uint64.
            last: uint64 address of the last eight bytes that may be read.
            table: uint64 address of the table.
            out: uint64 address of the first code's pair; the others are before it, and one byte more is written.
            rounds: int64.
        """

        def generate(context, builder, signature, arguments):
            module = builder.module
            builder.call(module.globals.get(name) or define(module), arguments)
            return context.get_dummy_value()

        address = types.uint64
        return types.void(address, address, address, address, types.int64), generate

    return decode


# Codes of whole blocks, each into its own SLOT; and codes of a few, one of each stream.
SLOT = 64
decode_blocks, decode_few = _decoder(at.SIDE * at.SIDE // at.PADDED, SLOT), _decoder(1, -at.STREAMS)
