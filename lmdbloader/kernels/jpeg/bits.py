"""The entropy-coded part of JPEG: bytes without stuffing, Huffman tables, codes, and blocks of baseline files.

Sources: ITU-T T.81 for the format; the refill that needs no branch is variant 4 of Giesen, "Reading bits in far too
many ways" (2018).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import load_bits, load_i32, load_u64, store_u16, store_u64, u8_at

# Codes of up to so many bits are looked up at once; the few longer ones are searched for.
_LOOKED_AT = 10
_LOOKUP = 1 << _LOOKED_AT
# A table: the lookup, for each length of code the largest one and where its symbols begin, the symbols.
_LARGEST, _FIRST, _SYMBOLS = _LOOKUP, _LOOKUP + 18, _LOOKUP + 36
TABLE_WORDS = _SYMBOLS + 256
# Four tables for the first coefficient of blocks, four for the others.
NUM_TABLES = 8
# An entry of the lookup: bits of the code and the value together, zeros that go before the value (all of a block at its
# end), bits of the code, bits of the value. No entry is zero but that of a longer code, or of none.
_ZEROS_AT, _CODE_AT, _VALUE_AT = 8, 16, 24
_MOST_BITS = 11
_BEYOND = 64
_END_OF_BLOCK = 127
# Coefficients that `decode_coefficients` may name: those of a block, and as far behind it as a code may lead.
ORDERED = 64 + _END_OF_BLOCK
# The most blocks of an MCU that the standard allows.
MOST_BLOCKS = 10
# Room behind unstuffed bytes that reading may touch before it is noticed that they have ended: 64 coefficients of at
# most 31 bits in each of these blocks.
SLACK = 4096

ZIGZAG = np.array([
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
    28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63,
])  # fmt: skip


@kernel
def has_ones(word):
    """Return whether one of eight bytes is 0xFF: then its complement has a zero."""
    return (~word - np.uint64(0x0101010101010101)) & word & np.uint64(0x8080808080808080) != np.uint64(0)


@kernel
def unstuff(source, nbytes, target):
    """Copy entropy-coded bytes up to a marker, without the zeros that are stuffed behind each 0xFF.

    Args:
        source, nbytes: Address of the first, and how many there are.
        target: Address of room for nbytes + SLACK.

    Returns:
        (bytes written, bytes read: up to a marker, or nbytes).
    """
    at, end, out = np.uint64(source), np.uint64(source + nbytes), np.uint64(target)
    while at < end:
        while at + np.uint64(8) <= end:
            word = load_u64(at)
            if has_ones(word):
                break
            store_u64(out, word)
            at += np.uint64(8)
            out += np.uint64(8)
        stop = min(at + np.uint64(8), end)
        while at < stop:
            byte = u8_at(at, 2)
            if byte[0] == 0xFF:
                if at + np.uint64(1) >= end or byte[1] != 0:
                    store_u64(out, np.uint64(0))
                    store_u64(out + np.uint64(8), np.uint64(0))
                    return np.int64(out - np.uint64(target)), np.int64(at - np.uint64(source))
                at += np.uint64(1)
            u8_at(out, 1)[0] = byte[0]
            at += np.uint64(1)
            out += np.uint64(1)
    store_u64(out, np.uint64(0))
    store_u64(out + np.uint64(8), np.uint64(0))
    return np.int64(out - np.uint64(target)), np.int64(nbytes)


@kernel
def stuffed_position(data, at, count):
    """Return the position in `data` of unstuffed byte number `count`, counted from data[at] on."""
    while count > 0:
        if count >= 8 and at + 8 <= data.shape[0] and not has_ones(load_u64(data.ctypes.data + np.uint64(at))):
            at += 8
            count -= 8
        else:
            at += 2 if data[at] == 0xFF else 1
            count -= 1
    return at


@kernel
def _entry(symbol, length, for_first):
    """Return the lookup entry of a symbol with a code of this length; 0 if the symbol makes no sense."""
    bits = symbol & 15
    zeros = np.int64(0) if for_first else symbol >> 4
    if bits > _MOST_BITS:
        return np.int64(0)
    # Zeros without a value behind them are sixteen; or the rest of a block, and in progressive files of more blocks:
    # their number follows.
    if not for_first and bits == 0 and zeros < 15:
        bits, zeros = zeros, np.int64(_BEYOND if zeros else _END_OF_BLOCK)
    return (bits << _VALUE_AT) | (length << _CODE_AT) | (zeros << _ZEROS_AT) | (length + bits)


@kernel
def build_table(data, at, end, for_first, table):
    """Make a Huffman table from its segment.

    Args:
        data: uint8; at: position of the sixteen counts, before `end`; end: of the segment.
        for_first: Whether it is for first coefficients, whose symbols are bits of the value alone.
        table: (TABLE_WORDS,) int32, filled.

    Returns:
        The number of symbols, which follow the counts; -1 if the counts make no sense.
    """
    for k in range(_LOOKUP):
        table[k] = 0
    code = np.int64(0)
    number = np.int64(0)
    for length in range(1, 17):
        count = np.int64(data[at + length - 1])
        table[_FIRST + length] = number - code
        if code + count > np.int64(1) << length or number + count > min(256, end - at - 16):
            return np.int64(-1)
        for _ in range(count):
            symbol = np.int64(data[at + 16 + number])
            table[_SYMBOLS + number] = symbol
            if for_first and symbol > 15:
                return np.int64(-1)
            if length <= _LOOKED_AT:
                entry = _entry(symbol, length, for_first)
                first = code << (_LOOKED_AT - length)
                for k in range(np.int64(1) << (_LOOKED_AT - length)):
                    table[first + k] = entry
            code += 1
            number += 1
        table[_LARGEST + length] = code - 1 if count else -1
        code <<= 1
    return number


@kernel
def codes_of_table(table, codes):
    """Fill (256,) int64 with the code of each symbol that a Huffman table has, and its length above 16 bits."""
    for k in range(256):
        codes[k] = 0
    number = np.int64(0)
    for length in range(1, 17):
        first = np.int64(table[_FIRST + length])
        while number < 256 and number - first <= np.int64(table[_LARGEST + length]):
            codes[table[_SYMBOLS + number] & 255] = length << 16 | (number - first)
            number += 1


@kernel
def _long_code(table, buffer, for_first):
    """Return the lookup entry of a code too long for the lookup table; 0 if there is none."""
    for length in range(_LOOKED_AT + 1, 17):
        code = np.int64(buffer >> np.uint64(64 - length))
        if code <= np.int64(load_i32(table + np.uint64(4 * (_LARGEST + length)))):
            number = code + np.int64(load_i32(table + np.uint64(4 * (_FIRST + length))))
            if number < 0 or number > 255:
                return np.int32(0)
            symbol = np.int64(load_i32(table + np.uint64(4 * (_SYMBOLS + number))))
            return np.int32(_entry(symbol, length, for_first))
    return np.int32(0)


@kernel
def _value(buffer, entry):
    """Return the value behind a code, without a branch; a first bit of zero means a negative value."""
    bits = np.uint64(entry) >> np.uint64(_VALUE_AT)
    behind = buffer << (np.uint64(entry) >> np.uint64(_CODE_AT) & np.uint64(31))
    value = np.int64(behind >> np.uint64(1) >> (np.uint64(63) - bits))
    is_negative = np.int64(~behind >> np.uint64(63))
    return np.int32(value + is_negative - (is_negative << np.int64(bits)))


@njit(inline="always")
def _decode_one(buffer, count, k, table, order, block):
    """Decode the next coefficient of a block; return the bit reader and the number of the coefficient after it."""
    entry = load_i32(table + ((buffer >> np.uint64(64 - _LOOKED_AT)) << np.uint64(2)))
    if entry == 0:
        entry = _long_code(table, buffer, False)
        if entry == 0:  # not a code: treated as one that leads beyond the block
            entry = np.int32(_BEYOND << _ZEROS_AT)
    value = _value(buffer, entry)
    used = np.uint64(entry) & np.uint64(63)
    k += np.uint64(entry) >> np.uint64(_ZEROS_AT) & np.uint64(127)
    # Coefficients outside of the block, and its end code, go to a place that is never read.
    store_u16(block + np.uint64(load_i32(order + (k << np.uint64(2)))), np.uint16(value))
    return buffer << used, count - used, k + np.uint64(1)


@njit(inline="always")
def decode_coefficients(buffer, count, at, first_table, table, order, block):
    """Decode one block.

    Args:
        buffer, count, at: The bit reader: next bits (leftmost first), number of valid ones, address of the next byte.
        first_table, table: Addresses of its two Huffman tables.
        order: Address of (ORDERED,) int32, the offset in the block of each coefficient of zigzag order, in bytes; 128
            after the 64th.
        block: Address of (8, 8) int16 coefficients, all zero, and one more for those outside.

    Returns:
        (buffer, count, at, difference of the first coefficient, 1 if others may not be zero, 0 if they are, -1 for
        codes that make no sense).
    """
    looked = np.uint64(64 - _LOOKED_AT)
    buffer |= load_bits(at) >> count
    at += (np.uint64(63) - count) >> np.uint64(3)
    count |= np.uint64(56)
    entry = load_i32(first_table + ((buffer >> looked) << np.uint64(2)))
    if entry == 0:
        entry = _long_code(first_table, buffer, True)
        if entry == 0:
            return buffer, count, at, np.int32(0), np.int64(-1)
    difference = _value(buffer, entry)
    used = np.uint64(entry) & np.uint64(63)
    buffer <<= used
    count -= used
    k = np.uint64(1)
    while k < np.uint64(64):
        buffer |= load_bits(at) >> count
        at += (np.uint64(63) - count) >> np.uint64(3)
        count |= np.uint64(56)
        # Two codes and their values have at most 54 bits.
        buffer, count, k = _decode_one(buffer, count, k, table, order, block)
        if k < np.uint64(64):
            buffer, count, k = _decode_one(buffer, count, k, table, order, block)
    # Complete; ended by a code, at once or later; or beyond the block.
    if k == np.uint64(_END_OF_BLOCK + 2):
        return buffer, count, at, difference, np.int64(0)
    return buffer, count, at, difference, np.int64(1 if k == np.uint64(64) or k > np.uint64(_END_OF_BLOCK + 1) else -1)


@njit(inline="always")
def refill(reader):
    """Return a bit reader (next bits, leftmost first, number of valid ones, address of the next byte) with 56 bits."""
    buffer, count, at = reader
    return buffer | load_bits(at) >> count, count | np.uint64(56), at + ((np.uint64(63) - count) >> np.uint64(3))


@njit(inline="always")
def decode_symbol(reader, table, for_first):
    """Decode a code of a progressive scan and the bits behind it.

    Args:
        reader: See `refill`; with 56 bits.
        table: Address of a Huffman table.
        for_first: Whether it is for first coefficients.

    Returns:
        (reader, zeros, bits of the value, the value, bits of both). Zeros of sixteen and more are the end of a block:
        then the value is the number of blocks that end. If there is no such code, it has no bits.
    """
    buffer, count, at = reader
    entry = load_i32(table + ((buffer >> np.uint64(64 - _LOOKED_AT)) << np.uint64(2)))
    if entry == 0:
        entry = _long_code(table, buffer, for_first)
    zeros, nbits = np.int64(entry) >> _ZEROS_AT & 127, np.int64(entry) >> _VALUE_AT
    value, used = np.int64(_value(buffer, entry)), np.uint64(entry) & np.uint64(63)
    if zeros >= 16:
        behind = buffer << (np.uint64(entry) >> np.uint64(_CODE_AT) & np.uint64(31))
        value = (np.int64(1) << nbits) + np.int64(behind >> np.uint64(1) >> np.uint64(63 - nbits))
    return (buffer << used, count - used, at), zeros, nbits, value, np.int64(used)
