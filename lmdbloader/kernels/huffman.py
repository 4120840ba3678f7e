"""Huffman codes of bytes: the code of given counts, and streams of codes that are read in four lanes at once.

Symbol i of a stream is in lane i % 4, so that a processor decodes four codes at a time. A lane holds its symbols of
several streams, one stream after the other, each with its own code. Bits begin at the highest one of a byte.

Sources: the two queues of van Leeuwen, "On the construction of Huffman trees" (1976), for the lengths of codes; the
lanes are those of Giesen, "Interleaved entropy coders" (2014).
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import load_bits, load_u16, part, store_u8

# Codes have at most so many bits: one look-up decodes any, and five fit into what a lane holds.
MOST_BITS = 11
TABLE_SIZE = 1 << MOST_BITS
_AT_ONCE = 5
# Room for `code_lengths`: symbols by their counts; weights, and parents, of leaves and nodes.
LENGTHS_ROOM = 256 + 2 * 512
# Lengths are packed into half bytes, lower half first: a length; or a number of zeros, less one, or of 16 zeros, behind
# one of these; or the end, behind which all are zeros.
_ZEROS, _MANY_ZEROS, _END = 0, 12, 15
# The most bytes of packed lengths.
PACKED_NBYTES = 257


@kernel
def code_lengths(counts, lengths, room):
    """Find the lengths of an optimal code, or of one close to it if that has codes of more than MOST_BITS.

    Args:
        counts: (256,) int64, how often each byte comes.
        lengths: (256,) uint8, filled; 0 for bytes that do not come.
        room: (LENGTHS_ROOM,) int64.
    """
    symbols, weights, parents = part(room, 0, 256), part(room, 256, 512), part(room, 768, 512)
    n = 0
    for s in range(256):
        lengths[s] = 0
        if counts[s]:
            i = n
            while i > 0 and counts[symbols[i - 1]] > counts[s]:
                symbols[i] = symbols[i - 1]
                i -= 1
            symbols[i] = s
            n += 1
    if n == 1:
        lengths[symbols[0]] = 1
    if n <= 1:
        return
    for i in range(n):
        weights[i] = counts[symbols[i]]
    leaf, node = 0, n
    for made in range(n, 2 * n - 1):
        weights[made] = 0
        for _ in range(2):  # the lightest of leaves and nodes, both in order of their weights
            if node >= made or (leaf < n and weights[leaf] <= weights[node]):
                taken, leaf = leaf, leaf + 1
            else:
                taken, node = node, node + 1
            weights[made] += weights[taken]
            parents[taken] = made
    depths = weights
    depths[2 * n - 2] = 0
    for i in range(2 * n - 3, -1, -1):
        depths[i] = depths[parents[i]] + 1
    _limit(depths, n)
    for i in range(n):
        lengths[symbols[i]] = depths[i]


@kernel
def _limit(depths, n):
    """Limit the lengths of n codes, the rarest first, so that they are still those of a code."""
    used = 0
    for i in range(n):
        depths[i] = min(depths[i], MOST_BITS)
        used += TABLE_SIZE >> depths[i]
    while used > TABLE_SIZE:
        i = 0
        while depths[i] == MOST_BITS:
            i += 1
        depths[i] += 1
        used -= TABLE_SIZE >> depths[i]
    for i in range(n - 1, -1, -1):
        while depths[i] > 1 and used + (TABLE_SIZE >> depths[i]) <= TABLE_SIZE:
            used += TABLE_SIZE >> depths[i]
            depths[i] -= 1


@kernel
def codes_of(lengths, codes):
    """Assign the codes of their lengths, (256,) uint8, in the order of lengths and then of bytes: (256,) int64."""
    code = 0
    for length in range(1, MOST_BITS + 1):
        code <<= 1
        for s in range(256):
            if lengths[s] == length:
                codes[s] = code
                code += 1


@kernel
def pack_lengths(lengths, out):
    """Pack lengths, (256,) uint8, into `out`, (PACKED_NBYTES,) uint8; return the number of bytes."""
    end = 256
    while end > 0 and lengths[end - 1] == 0:
        end -= 1
    half = 0
    s = 0
    while s <= end:
        first, second = np.int64(_END), np.int64(-1)
        if s < end:
            zeros = 0
            while lengths[s + zeros] == 0:
                zeros += 1
            first = np.int64(lengths[s])
            if zeros >= 16:
                zeros = zeros // 16 * 16
                first, second = np.int64(_MANY_ZEROS), np.int64(zeros // 16 - 1)
            elif zeros:
                first, second = np.int64(_ZEROS), np.int64(zeros - 1)
            s += max(zeros, 1)
        else:
            s = end + 1
        for value in (first, second):
            if value >= 0:
                out[half // 2] = value if half % 2 == 0 else out[half // 2] | value << 4
                half += 1
    return (half + 1) // 2


@kernel
def unpack_lengths(packed, at, lengths):
    """Unpack lengths from packed[at] on into (256,) uint8.

    Returns:
        The position behind them; -1 if they are damaged.
    """
    size = 2 * packed.shape[0]
    half = 2 * at
    s = 0
    while half < size:
        value = np.int64(packed[half // 2] >> (half % 2 * 4)) & 15
        half += 1
        if value == _END:
            for k in range(s, 256):
                lengths[k] = 0
            return (half + 1) // 2
        if value in (_ZEROS, _MANY_ZEROS):
            if half >= size:
                return -1
            zeros = (np.int64(packed[half // 2] >> (half % 2 * 4)) & 15) + 1
            half += 1
            zeros *= 16 if value == _MANY_ZEROS else 1
            if s + zeros > 256:
                return -1
            for k in range(s, s + zeros):
                lengths[k] = 0
            s += zeros
        else:
            if value > MOST_BITS or s >= 256:
                return -1
            lengths[s] = value
            s += 1
    return -1


@kernel
def fill_table(lengths, table, starts):
    """Make the table that decodes a code.

    Args:
        lengths: (256,) uint8.
        table: (TABLE_SIZE,) uint16, filled: for each MOST_BITS bits a byte, and the length of its code above it.
        starts: (MOST_BITS + 1,) int64, scratch.

    Returns:
        Whether the lengths are those of a code.
    """
    for length in range(MOST_BITS + 1):
        starts[length] = 0
    for s in range(256):
        starts[lengths[s]] += 1
    at = 0
    for length in range(1, MOST_BITS + 1):
        at, starts[length] = at + (starts[length] << (MOST_BITS - length)), at
    if at > TABLE_SIZE:
        return False
    for s in range(256):
        length = np.int64(lengths[s])
        if length:
            entry = np.uint16(s | length << 8)
            same = part(table, starts[length], TABLE_SIZE >> length)
            for k in range(same.shape[0]):
                same[k] = entry
            starts[length] += TABLE_SIZE >> length
    for k in range(at, TABLE_SIZE):  # bits that are no code
        table[k] = 0
    return True


@intrinsic
def _trailing_zeros(typing_context, word):
    """Return the number of zeros below the lowest bit of a uint64 that is one."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@njit(inline="always")
def _refill(buffer, at, limit):
    """Return a lane with at least 56 bits of its own."""
    used = _trailing_zeros(buffer)
    at = min(at + (used >> np.uint64(3)), limit)
    return (load_bits(at) | np.uint64(1)) << (used & np.uint64(7)), at


@njit(inline="always")
def _next(buffer, table, out):
    """Write the next byte of a lane, and return the lane behind it."""
    entry = load_u16(table + (buffer >> np.uint64(64 - MOST_BITS) << np.uint64(1)))
    store_u8(out, np.uint8(entry))
    return buffer << (np.uint64(entry) >> np.uint64(8))


@njit(inline="always")
def begin_lanes(a, b, c, d):
    """Return four lanes that begin at four addresses."""
    full = np.uint64(1)
    return full, a, full, b, full, c, full, d


@njit(inline="always")
def decode_lanes(lanes, limit, table, n, out):
    """Decode n symbols; whatever the bits are, nothing is read behind `limit` + 8.

    Args:
        lanes: Of each lane: its next bits, leftmost first, and a one behind them; the address of their first byte. As
            many bits of it as there are zeros behind the one are used.
        limit: The last address from which eight bytes may be read.
        table: Address of the table of the code.
        n: How many symbols.
        out: Address of room for n bytes and three more.

    Returns:
        The lanes behind the symbols.
    """
    a, pa, b, pb, c, pc, d, pd = lanes
    end = out + np.uint64(n)
    while out < end:
        a, pa = _refill(a, pa, limit)
        b, pb = _refill(b, pb, limit)
        c, pc = _refill(c, pc, limit)
        d, pd = _refill(d, pd, limit)
        if out + np.uint64(4 * _AT_ONCE) <= end:
            for _ in range(_AT_ONCE):
                a = _next(a, table, out)
                b = _next(b, table, out + np.uint64(1))
                c = _next(c, table, out + np.uint64(2))
                d = _next(d, table, out + np.uint64(3))
                out += np.uint64(4)
            continue
        while out + np.uint64(4) <= end:
            a = _next(a, table, out)
            b = _next(b, table, out + np.uint64(1))
            c = _next(c, table, out + np.uint64(2))
            d = _next(d, table, out + np.uint64(3))
            out += np.uint64(4)
        left = end - out
        if left > np.uint64(0):
            a = _next(a, table, out)
        if left > np.uint64(1):
            b = _next(b, table, out + np.uint64(1))
        if left > np.uint64(2):
            c = _next(c, table, out + np.uint64(2))
        out = end
    return a, pa, b, pb, c, pc, d, pd


@kernel
def encode_lane(symbols, lane, lengths, codes, bits, count, out):
    """Write the symbols of one lane of a stream.

    Args:
        symbols: (n,) uint8; lane: 0 to 3.
        lengths, codes: (256,) of the code.
        bits, count: uint64 bits that are not written yet, and how many, fewer than 8.
        out: Address where they go.

    Returns:
        (bits, count, out) behind them.
    """
    for i in range(lane, symbols.shape[0], 4):
        s = symbols[i]
        bits = bits << np.uint64(lengths[s]) | np.uint64(codes[s])
        count += np.int64(lengths[s])
        while count >= 8:
            count -= 8
            store_u8(out, np.uint8(bits >> np.uint64(count)))
            out += np.uint64(1)
    return bits, count, out


@kernel
def end_lane(bits, count, out):
    """Write the last bits of a lane, and zeros up to the end of their byte; return the address behind it."""
    if count:
        store_u8(out, np.uint8(bits << np.uint64(8 - count)))
        out += np.uint64(1)
    return out
