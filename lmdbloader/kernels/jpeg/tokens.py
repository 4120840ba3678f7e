"""Coefficients of JPEG blocks as tokens with Huffman codes, which decode faster than those of their file.

A token moves on from the last coefficient of its block, in zigzag order, and adds a value there:

    0 to 191     past 0 to 15 zeros to the next one: 1, -1, 2, -2 ... up to 47 and -47 behind no zeros, 15 behind one, 7
                 behind two or three, 3 behind four to seven, 1 behind eight and more
    192 to 207   on by 1 to 16, adds nothing
    208 to 235   stays, adds 32, -32, 64 ... -224; 256, -256, 512 ... -1792
    236 to 362   to the first coefficient of the next block, adds its difference from that of the block before: 0, -1,
                 1 ... -63, 63

A value that has no token is put together of several. There are two codes for luminance: one behind a value of four and
more, or a difference of three and more, and one behind the others. Color has one.

Decoding takes the same few instructions for each token, without a branch, and works on three streams at a time: while
one waits for its look-up, the processor goes on with the others.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from lmdbloader.kernels.jpeg.bits import ZIGZAG
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import load_bits, load_u16, load_u32, load_u64, part, store_u16, trailing_zeros

_U = np.uint64
# Codes have at most so many bits: one look-up decodes any, and five fit into what a stream holds.
MOST_BITS = 11
TABLE_NBYTES = 4 << MOST_BITS
CODES = 3
_LARGEST = np.array([47, 15, 7, 7, 3, 3, 3, 3] + [1] * 8)
_FIRST_OF = np.append(0, np.cumsum(2 * _LARGEST)[:-1])
_SKIP = 192
_ADD = _SKIP + 16
_BEGIN = _ADD + 28
_MOST_BEGIN, _UNIT, _LARGE = 63, 32, 4
NUM_TOKENS = _BEGIN + 2 * _MOST_BEGIN + 1
# The most tokens of a block.
BLOCK_TOKENS = 3 + 63 * 4
# An entry of a table: bits of the code, how far it goes on, whether the second code comes next (the bytes of a table),
# what is or-ed to the place before (63 at the beginning of a block), the value.
_ON_AT, _BEHIND_AT, _OR_AT, _VALUE_AT = 6, 13, 14, 20


def _meanings() -> np.ndarray:
    found = np.zeros(NUM_TOKENS, np.int64)

    def put(token: int, on: int, value: int, *, is_behind: bool, begins: bool = False) -> None:
        found[token] = on << _ON_AT | is_behind << _BEHIND_AT | 63 * begins << _OR_AT | (value & 0xFFF) << _VALUE_AT

    for zeros in range(16):
        for size in range(1, _LARGEST[zeros] + 1):
            for sign in range(2):
                put(
                    _FIRST_OF[zeros] + 2 * size - 2 + sign, zeros + 1, -size if sign else size, is_behind=size >= _LARGE
                )
    for on in range(1, 17):
        put(_SKIP + on - 1, on, 0, is_behind=False)
    for k in range(14):
        size = _UNIT * (k + 1) if k < 7 else 256 * (k - 6)
        put(_ADD + 2 * k, 0, size, is_behind=True)
        put(_ADD + 2 * k + 1, 0, -size, is_behind=True)
    for difference in range(-_MOST_BEGIN, _MOST_BEGIN + 1):
        put(_begin_token(difference), 1, difference, is_behind=abs(difference) >= _LARGE - 1, begins=True)
    return found


def _begin_token(difference: int) -> int:
    return _BEGIN + (2 * difference if difference >= 0 else -2 * difference - 1)


MEANINGS = _meanings()
# Begins a block whose first coefficient is that of the one before.
SAME = _BEGIN
# The most blocks of a tile, and behind them as many as a damaged one may go on.
TILE_BLOCKS = 64
SLACK_BLOCKS = 5
# Where coefficients are, by their places in zigzag order behind the 64 of a block before the first one.
NUM_OFFSETS = 64 * (1 + TILE_BLOCKS + SLACK_BLOCKS)


@kernel
def fill_offsets(offsets, blocks, in_zigzag):
    """Fill uint16 with the offset of each coefficient in bytes, for tiles of so many blocks.

    in_zigzag: Whether blocks are in that order.
    """
    for k in range(64):
        offsets[k] = 2 * k if in_zigzag else 2 * ZIGZAG[k]
    for b in range(1, 1 + blocks + SLACK_BLOCKS):
        here = part(offsets, 64 * b, 64)
        for k in range(64):
            here[k] = offsets[k] + 128 * b


@njit(inline="always")
def is_behind(token):
    """Return 1 if the token behind this one, of luminance, has the first code, else 0."""
    return np.int64(MEANINGS[token]) >> _BEHIND_AT & 1


@njit(inline="always")
def _put_units(value, out, n):
    """Write tokens that add a multiple of 32."""
    size, sign = min(abs(value), 2047), np.int64(value < 0)  # a file with larger ones is not recoded
    if size >= 256:
        out[n] = _ADD + 2 * (6 + (size >> 8)) + sign
        n += 1
    if size & 255:
        out[n] = _ADD + 2 * ((size & 255) // _UNIT - 1) + sign
        n += 1
    return n


@njit(inline="always")
def _part_of(value, most):
    """Return the part of a large value that a token of at most so much adds; multiples of 32 are left."""
    size = abs(value)
    least = most + 1 - _UNIT
    size = least + (size - least) % _UNIT
    return -size if value < 0 else size


@intrinsic
def find_others(typing_context, block):
    """Return a uint64 with a bit for each of 64 int16 at a uint64 address but the first that is not zero."""

    def generate(context, builder, signature, arguments):
        kind = ir.VectorType(ir.IntType(16), 64)
        loaded = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=2)
        found = builder.bitcast(builder.icmp_unsigned("!=", loaded, ir.Constant(kind, None)), ir.IntType(64))
        return builder.and_(found, ir.IntType(64)(-2))

    return types.uint64(types.uint64), generate


@intrinsic
def find_large(typing_context, block, least):
    """Return a uint64 with a bit for each of 64 int16 at a uint64 address whose magnitude is at least so much."""

    def generate(context, builder, signature, arguments):
        kind = ir.VectorType(ir.IntType(16), 64)
        loaded = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=2)
        negative = builder.icmp_signed("<", loaded, ir.Constant(kind, None))
        size = builder.select(negative, builder.neg(loaded), loaded)
        one = builder.insert_element(
            ir.Constant(kind, None), builder.trunc(arguments[1], ir.IntType(16)), ir.IntType(32)(0)
        )
        bound = builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), 64), None))
        return builder.bitcast(builder.icmp_unsigned(">=", size, bound), ir.IntType(64))

    return types.uint64(types.uint64, types.int64), generate


@kernel
def put_block(block, difference, out, n):
    """Write the tokens of a block.

    Args:
        block: Address of 64 int16 in zigzag order, of which the first does not count.
        difference: Of the first coefficient.
        out: uint16, room for BLOCK_TOKENS from out[n] on.

    Returns:
        The number of tokens in `out`.
    """
    first = difference if abs(difference) <= _MOST_BEGIN else _part_of(difference, _MOST_BEGIN)
    out[n] = _BEGIN + (2 * first if first >= 0 else -2 * first - 1)
    n = _put_units(difference - first, out, n + 1)
    left, before = find_others(block), np.int64(0)
    while left:
        k = np.int64(trailing_zeros(left))
        left &= left - _U(1)
        value, zeros = np.int64(np.int16(load_u16(block + np.uint64(2 * k)))), k - before - 1
        before = k
        while zeros >= 16:
            out[n] = _SKIP + 15
            n, zeros = n + 1, zeros - 16
        if abs(value) <= _LARGEST[zeros]:
            out[n] = _FIRST_OF[zeros] + 2 * abs(value) - 2 + np.int64(value < 0)
            n += 1
            continue
        if zeros:
            out[n] = _SKIP + zeros - 1
            n += 1
        small = value if abs(value) <= _LARGEST[0] else _part_of(value, 47)
        out[n] = _FIRST_OF[0] + 2 * abs(small) - 2 + np.int64(small < 0)
        n = _put_units(value - small, out, n + 1)
    return n


# A stream that is being decoded: its next bits above a one, the address where they begin, the place of the last
# coefficient, the table of the next code; then as in a job, which is where a stream begins, the address of its blocks,
# the place that it ends with, and its tables.
_BITS, _AT, _PLACE, _TABLE, _BLOCKS, _END, _TABLES = range(7)
JOB_NBYTES = 32


@njit(inline="always")
def _begin_job(jobs, number, count):
    at = jobs + np.uint64(JOB_NBYTES) * np.uint64(min(number, count))
    tables = load_u64(at + _U(24))
    begin = _U(1), load_u64(at), _U(63), tables + _U(TABLE_NBYTES)
    return *begin, load_u64(at + _U(8)), load_u64(at + _U(16)), tables


@njit(inline="always")
def _refill(lane, limit):
    """Return a stream with at least 56 bits."""
    used = trailing_zeros(lane[_BITS])
    at = min(lane[_AT] + (used >> _U(3)), limit)
    bits = (load_bits(at) | _U(1)) << (used & _U(7))
    return bits, at, lane[_PLACE], lane[_TABLE], lane[_BLOCKS], lane[_END], lane[_TABLES]


@njit(inline="always")
def _step(lane, offsets):
    """Decode a token of a stream."""
    bits = lane[_BITS]
    entry = load_u32(lane[_TABLE] + (bits >> _U(64 - MOST_BITS) << _U(2)))
    word = np.uint64(entry)
    place = (lane[_PLACE] | (word >> _U(_OR_AT) & _U(63))) + (word >> _U(_ON_AT) & _U(31))
    at = lane[_BLOCKS] + np.uint64(load_u16(offsets + (place << _U(1))))
    store_u16(at, np.uint16(load_u16(at) + (np.int32(entry) >> np.int32(_VALUE_AT))))
    table = lane[_TABLES] + (word & _U(TABLE_NBYTES))
    return bits << (word & _U(63)), lane[_AT], place, table, lane[_BLOCKS], lane[_END], lane[_TABLES]


@kernel
def decode_jobs(jobs, count, offsets, limit):
    """Decode streams of tokens into blocks, which are zero before.

    Whatever the bits are, nothing is read behind `limit` + 8, and nothing written behind SLACK_BLOCKS more than the
    blocks of a job.

    Args:
        jobs: Address of (count + 1, 4) uint64: address of a stream, of the room of a block before its first one, place
            that it ends with, address of its tables. The last one is of no stream: its block is where others wait.
        offsets: Address of the places of coefficients, see `fill_offsets`.
        limit: The last address from which eight bytes may be read.

    Returns:
        Whether all streams ended.
    """
    a, b = _begin_job(jobs, 0, count), _begin_job(jobs, 1, count)
    c = _begin_job(jobs, 2, count)
    number, left, idle = 3, count, load_u64(jobs + np.uint64(JOB_NBYTES * count + 8))
    for _ in range(count * TILE_BLOCKS * BLOCK_TOKENS):
        a, b, c = _refill(a, limit), _refill(b, limit), _refill(c, limit)
        a, b, c = _step(a, offsets), _step(b, offsets), _step(c, offsets)
        a, b, c = _step(a, offsets), _step(b, offsets), _step(c, offsets)
        a, b, c = _step(a, offsets), _step(b, offsets), _step(c, offsets)
        a, b, c = _step(a, offsets), _step(b, offsets), _step(c, offsets)
        a, b, c = _step(a, offsets), _step(b, offsets), _step(c, offsets)
        if a[_PLACE] >= a[_END]:
            left -= np.int64(a[_BLOCKS] != idle)
            a, number = _begin_job(jobs, number, count), number + 1
        if b[_PLACE] >= b[_END]:
            left -= np.int64(b[_BLOCKS] != idle)
            b, number = _begin_job(jobs, number, count), number + 1
        if c[_PLACE] >= c[_END]:
            left -= np.int64(c[_BLOCKS] != idle)
            c, number = _begin_job(jobs, number, count), number + 1
        if left == 0:
            return True
    return False
