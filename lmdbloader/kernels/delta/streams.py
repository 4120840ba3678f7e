"""Huffman tables of the codec `delta`, and its eight streams of codes decoded side by side.

Sources: canonical codes as in RFC 1951; the bit reader whose lowest set bit says how much was read is that of zstd's
decoder (Huff0).
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
from lmdbloader.kernels.runtime.memory import load_u8, load_u16, store_u16, store_u64

_U = np.uint64
_I8, _I16, _I64 = (ir.IntType(bits) for bits in (8, 16, 64))
# Codes that are decoded between two looks at where a stream goes on: a word has 56 bits at least.
_AT_ONCE = 5
_SYMBOLS = at.SYMBOLS


def stack_room(nbytes: int) -> Any:
    """Return a function that kernels call for the uint64 address of so many bytes on their stack."""

    @intrinsic
    def room(typing_context):
        def generate(context, builder, signature, arguments):
            found = cgutils.alloca_once(builder, ir.ArrayType(_I64, (nbytes + 7) // 8))
            return builder.ptrtoint(found, _I64)

        return types.uint64(), generate

    return room


@kernel
def read_table(source, end, table, counts):
    """Make the table of a plane.

    Args:
        source: uint64 address of its bytes; end: of the first byte that is not the payload's.
        table: uint64 address of TABLE_ENTRIES uint16, filled: the length of a code, and its symbol in the upper byte.
        counts: uint64 address of 32 uint16.

    Returns:
        uint64 address after the table's bytes; 0 if they make no complete code.
    """
    for length in range(16):
        store_u16(counts + _U(2 * length), np.uint16(0))
    read, room, symbols = source, np.int64(at.TABLE_ENTRIES), np.int64(0)
    while room > 0:
        if read >= end:
            return _U(0)
        byte = np.int64(load_u8(read))
        length, run = byte & 15, (byte >> 4) + 1
        read += _U(1)
        symbols += run
        if symbols > 256 or (length > at.MOST_BITS and length != at.ALONE):
            return _U(0)
        if length == at.ALONE:
            if room != at.TABLE_ENTRIES or run != 1:
                return _U(0)
            _fill(table, np.int64(at.TABLE_ENTRIES), np.uint64(_SYMBOLS[symbols - 1]) << _U(8))
            return read
        if length:
            place = counts + _U(2 * length)
            store_u16(place, np.uint16(load_u16(place) + run))
            room -= run << (at.MOST_BITS - length)
    if room:
        return _U(0)
    first = np.int64(0)
    for length in range(1, at.MOST_BITS + 1):
        place = counts + _U(2 * length)
        count = np.int64(load_u16(place))
        store_u16(place, np.uint16(first))
        first += count << (at.MOST_BITS - length)
    symbols = np.int64(0)
    while source < read:
        byte = np.int64(load_u8(source))
        length, run = byte & 15, (byte >> 4) + 1
        source += _U(1)
        if length:
            place, step = counts + _U(2 * length), np.int64(1) << (at.MOST_BITS - length)
            first = np.int64(load_u16(place))
            for number in range(symbols, symbols + run):
                entry = np.uint64(_SYMBOLS[number]) << _U(8) | np.uint64(length)
                _fill(table + np.uint64(2 * first), step, entry)
                first += step
            store_u16(place, np.uint16(first))
        symbols += run
    return read


@njit(inline="always")
def _fill(target, count, entry):
    """Write an entry of a table so many times: a power of two."""
    if count >= 4:
        four = entry * _U(0x0001000100010001)
        for k in range(0, count, 4):
            store_u64(target + _U(2 * k), four)
    else:
        for k in range(count):
            store_u16(target + _U(2 * k), np.uint16(entry))


def _refilled(builder, word, read, last):  # type: ignore[no-untyped-def]
    """Return the next 56 bits or more of a stream, above a one, and the address where they begin."""
    used = builder.cttz(word, ir.IntType(1)(1))
    read = builder.add(read, builder.lshr(used, _I64(3)))
    read = builder.select(builder.icmp_unsigned("<", read, last), read, last)
    bits = builder.bswap(builder.load(builder.inttoptr(read, _I64.as_pointer()), align=1))
    return builder.shl(builder.or_(bits, _I64(1)), builder.and_(used, _I64(7))), read


def _one_code(builder, word, table, out):  # type: ignore[no-untyped-def]
    """Write the symbol of the next code; return the word after it."""
    place = builder.add(table, builder.shl(builder.lshr(word, _I64(64 - at.MOST_BITS)), _I64(1)))
    entry = builder.load(builder.inttoptr(place, _I16.as_pointer()), align=2)
    symbol = builder.trunc(builder.lshr(entry, _I16(8)), _I8)
    builder.store(symbol, builder.inttoptr(out, _I8.as_pointer()))
    return builder.shl(word, builder.and_(builder.zext(entry, _I64), _I64(63)))


def _decoder(num_streams: int, num_codes: int, step: int) -> Any:
    """Return a function that kernels call to decode codes of some streams, round by round, into bytes `step` apart."""
    name = f"lmdbloader_delta_{num_streams}_{num_codes}_{step}"
    kind = ir.FunctionType(ir.VoidType(), [_I64] * 6)

    def define(module):  # type: ignore[no-untyped-def]
        function = ir.Function(module, kind, name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")  # more of its words are in registers then
        builder = ir.IRBuilder(function.append_basic_block())
        state, last, table, out, lane, rounds = function.args
        pointers = [
            builder.inttoptr(builder.add(state, _I64(8 * k)), _I64.as_pointer()) for k in range(2 * num_streams)
        ]
        rooms = [cgutils.alloca_once(builder, _I64) for _ in pointers]
        for pointer, room in zip(pointers, rooms, strict=True):
            builder.store(builder.load(pointer), room)
        lanes = [builder.mul(lane, _I64(k)) for k in range(num_streams)]
        with cgutils.for_range(builder, rounds, intp=_I64) as loop:
            here = builder.add(out, builder.mul(loop.index, _I64(num_codes * step)))
            places, words = [builder.add(here, offset) for offset in lanes], []
            for k in range(num_streams):
                word, read = (builder.load(room) for room in rooms[2 * k : 2 * k + 2])
                word, read = _refilled(builder, word, read, last)
                builder.store(read, rooms[2 * k + 1])
                words.append(word)
            for code in range(num_codes):
                offset = _I64(code * step)
                words = [
                    _one_code(builder, word, table, builder.add(place, offset))
                    for word, place in zip(words, places, strict=True)
                ]
            for k, word in enumerate(words):
                builder.store(word, rooms[2 * k])
        for pointer, room in zip(pointers, rooms, strict=True):
            builder.store(builder.load(room), pointer)
        builder.ret_void()
        return function

    @intrinsic
    def decode(typing_context, state, last, table, out, lane, rounds):
        """Decode `rounds` times some codes of each stream.

        Args:
            state: uint64 address of (word, address) of each stream, uint64.
            last: uint64 address of the last eight bytes that may be read.
            table: uint64 address of the table.
            out, lane: uint64 address of the first stream's bytes, and from stream to stream.
            rounds: int64.
        """

        def generate(context, builder, signature, arguments):
            module = builder.module
            builder.call(module.globals.get(name) or define(module), arguments)
            return context.get_dummy_value()

        address = types.uint64
        return types.void(address, address, address, address, address, types.int64), generate

    return decode


_many_bytes, _many_words = _decoder(at.STREAMS, _AT_ONCE, 1), _decoder(at.STREAMS, _AT_ONCE, 2)
_one_byte, _one_word = _decoder(1, 1, 1), _decoder(1, 1, 2)


@njit(inline="always")
def _decode(state, last, table, out, count, step, many, one):
    share = count // at.STREAMS
    lane, rounds = np.uint64(share * step), share // _AT_ONCE
    many(state, last, table, out, lane, rounds)
    done = rounds * _AT_ONCE
    for k in range(at.STREAMS):
        rest = share - done + (count % at.STREAMS if k == at.STREAMS - 1 else 0)
        place = out + _U(k) * lane + np.uint64(done * step)
        one(state + _U(16 * k), last, table, place, _U(0), rest)


@kernel
def decode_plane(state, last, table, out, count, is_wide):
    """Decode a plane of bytes.

    Args:
        state: uint64 address of (next bits above a one, address where they begin) of each stream, uint64.
        last: uint64 address of the last eight bytes that may be read.
        table: uint64 address of the plane's table.
        out: uint64 address of the first byte.
        count: int64 bytes.
        is_wide: Whether they are every second one of `out`.
    """
    if is_wide:
        _decode(state, last, table, out, count, 2, _many_words, _one_word)
    else:
        _decode(state, last, table, out, count, 1, _many_bytes, _one_byte)
