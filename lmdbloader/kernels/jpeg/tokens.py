"""Coefficients of JPEG blocks as bytes, which decode faster than the codes of the file.

A block has the difference of its first coefficient, the number of its tokens, and the tokens. A token stands for some
zeros and the coefficient behind them:

    0                  16 zeros
    1 to 16            0 to 15 zeros, and a value of the stream of large ones
    17 to 24 + ...     0 zeros and 1, -1, 2, -2, ... up to 47 and -47; 1 zero and values up to 15; 2 zeros, 3 zeros, and
                       values up to 7; 4 to 7 zeros and up to 3; 8 to 15 zeros and up to 1

A large value is 2 * (its absolute value - 1), plus one if it is negative; above 254 it is 255, and 16 bits of the rest.
A difference is 2 * d, or -1 - 2 * d if it is negative; above 254 it is 255, and 16 bits of the rest.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lmdbloader.kernels.codec_numbers import JPEG_STREAMS
from lmdbloader.kernels.jpeg.bits import (
    END_OF_BLOCK,
    LOOKED_AT,
    ZEROS_AT,
    long_code,
    put_coefficient,
    value_of,
)
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import (
    load_bits,
    load_i32,
    load_u8,
    load_u16,
    store_u8,
    store_u16,
)

# The streams of a file: for luminance, then for colour, the numbers of tokens, the differences and the tokens; then for
# both the large values. These have Huffman codes. The rest of the largest values has none.
COUNTS, DIFFERENCES, TOKENS = 0, 2, 4
LARGE, REST, STREAMS = 6, 7, JPEG_STREAMS
CODED = LARGE + 1
_ESCAPE = np.uint64(255)
# The first token with a value, and the largest value of tokens with so many zeros.
_FIRST = 17
_LARGEST = np.array([47, 15, 7, 7, 3, 3, 3, 3] + [1] * 8)
_FIRST_OF = _FIRST + np.append(0, np.cumsum(2 * _LARGEST)[:-1])
# By token: its value shifted up by 8 bits, and its zeros.
_MEANING = np.zeros(256, np.int32)
_MEANING[0] = 15
_MEANING[1:_FIRST] = np.arange(16)
for _zeros in range(16):
    for _value in range(1, _LARGEST[_zeros] + 1):
        _MEANING[_FIRST_OF[_zeros] + 2 * _value - 2] = _value << 8 | _zeros
        _MEANING[_FIRST_OF[_zeros] + 2 * _value - 1] = -_value << 8 | _zeros


@kernel
def token_room(nbytes, blocks):
    """Return the most bytes of a stream of a file: of codes and values have two bits at least, or nine if they have a
    rest; of blocks each one or none."""
    return min(4 * nbytes, 64 * blocks) + blocks + 64


@njit(inline="always")
def _look_up(buffer, table):
    return load_i32(table + ((buffer >> np.uint64(64 - LOOKED_AT)) << np.uint64(2)))


@njit(inline="always")
def _put_rest(large, rest, value):
    """Write a large value; return where the next ones go."""
    if value < _ESCAPE:
        store_u8(large, np.uint8(value))
        return large + np.uint64(1), rest
    store_u8(large, np.uint8(255))
    store_u16(rest, np.uint16(value))
    return large + np.uint64(1), rest + np.uint64(2)


@njit(inline="always")
def _put_difference(difference, at, rest):
    """Write the difference of a first coefficient; return where the next rest goes."""
    _, rest = _put_rest(at, rest, np.uint64((difference << 1) ^ (difference >> 63)))
    return rest


@njit(inline="always")
def get_difference(at, rest):
    """Read the difference of a first coefficient, and where the next rest is."""
    folded = np.int64(load_u8(at))
    if folded == 255:
        folded = np.int64(load_u16(rest))
        rest += np.uint64(2)
    return (folded >> 1) ^ -(folded & 1), rest


@njit(inline="always")
def take_block(buffer, count, at, first_table, table, base, differences, tokens, large, rest):
    """Decode one block of the file into tokens.

    Args:
        buffer, count, at, first_table, table: As for `decode_coefficients`.
        base: What is added to the difference of the first coefficient before it is written.
        differences, tokens, large, rest: Addresses where they go.

    Returns:
        (buffer, count, at, the difference in the file, tokens, large, rest; tokens is 0 for codes that make no sense).
    """
    none = np.uint64(0)
    buffer |= load_bits(at) >> count
    at += (np.uint64(63) - count) >> np.uint64(3)
    count |= np.uint64(56)
    entry = _look_up(buffer, first_table)
    if entry == 0:
        entry = long_code(first_table, buffer, True)
        if entry == 0:
            return buffer, count, at, np.int32(0), none, large, rest
    difference = value_of(buffer, entry)
    used = np.uint64(entry) & np.uint64(63)
    buffer <<= used
    count -= used
    rest = _put_difference(base + np.int64(difference), differences, rest)
    k = np.int64(1)
    while k < 64:
        if count < np.uint64(32):  # a code and its value have at most 27 bits
            buffer |= load_bits(at) >> count
            at += (np.uint64(63) - count) >> np.uint64(3)
            count |= np.uint64(56)
        entry = _look_up(buffer, table)
        if entry == 0:
            entry = long_code(table, buffer, False)
            if entry == 0:
                return buffer, count, at, difference, none, large, rest
        value = np.int64(value_of(buffer, entry))
        used = np.uint64(entry) & np.uint64(63)
        buffer <<= used
        count -= used
        zeros = np.int64(entry) >> ZEROS_AT & 127
        if zeros == END_OF_BLOCK:
            return buffer, count, at, difference, tokens, large, rest
        k += zeros + 1
        size = abs(value)
        token = np.int64(0)
        if size > _LARGEST[zeros]:
            token = zeros + 1
            large, rest = _put_rest(large, rest, np.uint64(size - 1) << np.uint64(1) | np.uint64(value < 0))
        elif size:
            token = _FIRST_OF[zeros] + 2 * size - 2 + np.int64(value < 0)
        store_u8(tokens, np.uint8(token))
        tokens += np.uint64(1)
    if k != 64:
        return buffer, count, at, difference, none, large, rest
    return buffer, count, at, difference, tokens, large, rest


@njit(inline="always")
def _get_large(large, rest):
    value = np.int32(load_u8(large))
    if value == 255:
        value = np.int32(load_u16(rest))
        rest += np.uint64(2)
    size = 1 + (value >> 1)
    return np.int32(-size if value & 1 else size), large + np.uint64(1), rest


@njit(inline="always")
def read_token(token, large, rest):
    """Return the zeros and the value of a token, and where the next large value and its rest are."""
    meaning = np.int32(_MEANING[token])
    value = meaning >> np.int32(8)
    if is_large(token):
        value, large, rest = _get_large(large, rest)
    return np.uint64(meaning & 15), value, large, rest


@njit(inline="always")
def is_large(token):
    """Return whether the value of a token is in the stream of large ones."""
    return np.uint8(token - np.uint8(1)) < np.uint8(_FIRST - 1)


@njit(inline="always")
def expand_block(count, tokens, large, rest, places, block):
    """Write the coefficients of a block that are not zero.

    Args:
        count: Its tokens, at most 63.
        tokens, large, rest: Addresses of the first of each.
        places, block: As for `decode_coefficients`.

    Returns:
        (large, rest) behind them.
    """
    k = np.uint64(1)
    end = tokens + count
    while tokens < end:
        zeros, value, large, rest = read_token(load_u8(tokens), large, rest)
        tokens += np.uint64(1)
        k += zeros
        put_coefficient(block, places, k & np.uint64(127), value)  # a damaged block may lead beyond its end
        k += np.uint64(1)
    return large, rest


@njit(inline="always")
def pass_block(count, tokens, large, rest):
    """Return (large, rest) behind the tokens of a block, which are not needed."""
    end = tokens + count
    while tokens < end:
        if is_large(load_u8(tokens)):
            _, large, rest = _get_large(large, rest)
        tokens += np.uint64(1)
    return large, rest
