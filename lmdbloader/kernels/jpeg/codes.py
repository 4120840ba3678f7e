"""Huffman codes of tokens: made from their counts, packed, and as the tables that decode them."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.huffman import measure, merge
from lmdbloader.kernels.jpeg.tokens import MEANINGS, MOST_BITS, NUM_TOKENS, TABLE_NBYTES
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import part, u32_at

_TABLE_SIZE = 1 << MOST_BITS
# Room for `make_code`: tokens by their counts; weights, parents and depths of leaves and nodes.
CODE_ROOM = NUM_TOKENS + 3 * (2 * NUM_TOKENS)
# Lengths are packed into half bytes, lower half first: a length; or a number of zeros, less one, or of 16 zeros, behind
# one of these; or the end, behind which all are zeros.
_ZEROS, _MANY_ZEROS, _END = 0, 12, 15
# The most bytes of packed lengths.
PACKED_NBYTES = NUM_TOKENS + 1


@kernel
def make_code(counts, lengths, room):
    """Make a code.

    Args:
        counts: (NUM_TOKENS,) int64, how often each token comes; becomes the codes, each with its length above 16 bits.
        lengths: (NUM_TOKENS,) uint8, filled; 0 for tokens that do not come.
        room: (CODE_ROOM,) int64.
    """
    tokens, weights = part(room, 0, NUM_TOKENS), part(room, NUM_TOKENS, 2 * NUM_TOKENS)
    parents, depths = part(room, 3 * NUM_TOKENS, 2 * NUM_TOKENS), part(room, 5 * NUM_TOKENS, 2 * NUM_TOKENS)
    n = 0
    for s in range(NUM_TOKENS):
        lengths[s] = 0
        if counts[s]:
            tokens[n] = counts[s] << 9 | s
            n += 1
    if n < 2:
        for k in range(n):
            lengths[tokens[k] & 511], counts[tokens[k] & 511] = 1, 1 << 16
        return
    for gap in (57, 23, 10, 4, 1):  # Shell's sort
        for k in range(gap, n):
            i, key = k, tokens[k]
            while i >= gap and tokens[i - gap] > key:
                tokens[i] = tokens[i - gap]
                i -= gap
            tokens[i] = key
    for i in range(n):
        weights[i] = tokens[i] >> 9
    merge(n, weights, parents)
    of_length = part(weights, 0, MOST_BITS + 1)  # the weights have done their work
    measure(n, parents, depths, of_length, MOST_BITS)
    k = 0
    for length in range(MOST_BITS, 0, -1):
        for _ in range(of_length[length]):
            lengths[tokens[k] & 511] = length
            k += 1
    code = 0
    for length in range(1, MOST_BITS + 1):
        code <<= 1
        for s in range(NUM_TOKENS):
            if lengths[s] == length:
                counts[s] = length << 16 | code
                code += 1


@kernel
def pack_lengths(lengths, out):
    """Pack lengths, (NUM_TOKENS,) uint8, into `out`, (PACKED_NBYTES,) uint8; return the number of bytes."""
    end = NUM_TOKENS
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
                zeros = min(zeros // 16, 16) * 16
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
    """Unpack lengths from packed[at] on into (NUM_TOKENS,) uint8.

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
            for k in range(s, NUM_TOKENS):
                lengths[k] = 0
            return (half + 1) // 2
        if value in (_ZEROS, _MANY_ZEROS):
            if half >= size:
                return -1
            zeros = (np.int64(packed[half // 2] >> (half % 2 * 4)) & 15) + 1
            half += 1
            zeros *= 16 if value == _MANY_ZEROS else 1
            if s + zeros > NUM_TOKENS:
                return -1
            for k in range(s, s + zeros):
                lengths[k] = 0
            s += zeros
        else:
            if value > MOST_BITS or s >= NUM_TOKENS:
                return -1
            lengths[s] = value
            s += 1
    return -1


@kernel
def fill_table(lengths, table_at, has_context, starts):
    """Make the table that decodes a code.

    Args:
        lengths: (NUM_TOKENS,) uint8.
        table_at: Address of TABLE_NBYTES, filled with uint32, see `tokens`.
        has_context: Whether tokens say which of two tables comes next.
        starts: (MOST_BITS + 1,) int64, scratch.

    Returns:
        Whether the lengths are those of a code.
    """
    table = u32_at(table_at, _TABLE_SIZE)
    at = 0
    for length in range(1, MOST_BITS + 1):
        found = 0
        for s in range(NUM_TOKENS):  # vector instructions
            found += lengths[s] == length
        at, starts[length] = at + (found << (MOST_BITS - length)), at
    if at > _TABLE_SIZE:
        return False
    same_table = np.int64(0) if has_context else np.int64(TABLE_NBYTES)
    for s in range(NUM_TOKENS):
        length = np.int64(lengths[s])
        if length:
            entry = np.uint32(MEANINGS[s] | same_table | length)
            same = part(table, starts[length], _TABLE_SIZE >> length)
            for k in range(same.shape[0]):
                same[k] = entry
            starts[length] += _TABLE_SIZE >> length
    for k in range(at, _TABLE_SIZE):  # bits that are no code begin another block
        table[k] = np.uint32(MEANINGS[NUM_TOKENS - 1] | same_table | 1)
    return True
