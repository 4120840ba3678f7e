"""The numbers and the codes of the codec `delta` that its encoder and decoder share.

A payload has eight streams of codes, raw bits, escapes, predictors, and a foot. The specification is in
docs/reference/format.md.
"""

from __future__ import annotations

import numpy as np

# Streams are decoded side by side: a processor has finished another one's look-up while it waits for one.
STREAMS = 8
# The longest code; a table of all bits of that length is looked up in.
MOST_BITS = 11
# How a row is predicted from the row above it.
NONE, UP, LEFT, GRADIENT, SMOOTH, NUM_PREDICTORS = 0, 1, 2, 3, 4, 5
# Or-ed to the predictor of a channel from which green is subtracted.
LESS_GREEN = 8
# Lengths of the streams (u16), width (u32), channels (u8), bytes of a value and how far values are shifted (u8); and
# the most bytes of pixels: streams must fit u16.
FOOT_NBYTES, MOST_RAW_NBYTES = 22, 1 << 18
# The sides of a block, and the blocks that are sorted together.
SIDE, GROUP = 8, 1024
# A code has a pair of differences; pairs are padded so that each stream has as many.
PADDED = 2 * STREAMS
# Kinds of blocks: all differences are 0; all their bits are raw. The others have the codes of their number in LENGTHS.
ZERO, RAW = 0, 15
# The lower half of a pair is its first value, 4 bits with a sign. This one stands for a byte among the escapes.
ESCAPE = 8
# An escape has a byte, and takes the decoder a while: it counts as so many bits when codes are compared.
ESCAPE_BITS, COST_UNIT = 12, 16
# Of each kind: the bits of a difference that are raw, below the value in a pair.
RAW_BITS = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 8], np.uint8)
# The lengths of the codes of pairs, first those of differences of kinds: a hexadecimal digit for two magnitudes each,
# (0, 0), (1, 0), (1, 1), (2, 0) ... (8, 8), where 8 is an escape; 0 has no code. They were fitted to blocks of
# scikit-image's photographs, as they are, shrunk, and with noise: each block to the kind with the fewest bits, lengths
# by trying whether other ones take fewer. Photographs that were left out took 0.02 % more (the median of 15); one with
# gaps in its histogram took 5 % more.
LENGTHS = [
    "3555767888789a9899aaa9aaabbb9aabbbbb9aabbbbb9",
    "145789abbbbbbbbbb00000b0000000000000abbb0bbb9",
    "1585976ab97bbb08bbb009000000a0000000700b00bb9",
    "24466899abbbb00000000000000000000000b0b00000a",
    "3455667789a9abbbbbb00b00000000000000bbb00000a",
    "455666677878899999aabaaabbbbbbbbbbb0000000009",
    "35788999aa9abbbbbbbbbbbbbbb0bbbb0000abbbbbba9",
    "455677889a99ababbbbbb000000000000000b00000bba",
    "55667777888899aaaaabbbbbbbbbbbbbb0000000000ba",
    "35788999ab9abbbbbbbbbbbbbbbbbbbbbb00bbbbbbbba",
    "455677889a99abbbbbbb0bb00000000000000000000ba",
    "566667778888899999aabaaabbbbbbbbbbba00000000a",
    "366788899a99aabaaabbbbbbbbbbbbbbb00aabbbbbbaa",
    "45667788899999babbbbbbbbbbb0b00000000000000ba",
    "456677789a99abbabbbbbbbbbbbbbbbb00000000000ba",
]


def _lengths(kind: int) -> np.ndarray:
    """Return the lengths (256,) of a kind's codes by pair."""
    value = (np.arange(16) ^ 8) - 8
    size = np.where(value == -8, 8, np.maximum(value, -value if RAW_BITS[kind] == 0 else -1 - value))
    second, first = (size[np.arange(256) >> shift & 15] for shift in (4, 0))
    low, high = np.minimum(first, second), np.maximum(first, second)
    return np.array([int(digit, 16) for digit in LENGTHS[kind]])[high * (high + 1) // 2 + low]


def _tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the arrays below."""
    decoded, encoded = np.ones((len(LENGTHS), 1 << MOST_BITS), np.uint16), np.zeros((len(LENGTHS), 256), np.uint32)
    costs = np.zeros((256, 16), np.uint16)
    pairs, values = np.arange(256), np.arange(256).astype(np.uint8).astype(np.int8)
    escaped = (pairs & 15 == ESCAPE) + 2 * (pairs >> 4 == ESCAPE)
    for kind in range(len(LENGTHS)):
        lengths, place = _lengths(kind), 0
        code = np.zeros(256, np.int64)
        for pair in np.lexsort((pairs, lengths)):
            if lengths[pair]:
                code[pair], count = place >> MOST_BITS - lengths[pair], 1 << MOST_BITS - lengths[pair]
                decoded[kind, place : place + count] = pair << 8 | lengths[pair]
                place += count
        # A pair without a code becomes one of those with an escape instead of either or both of its values.
        others = np.stack([pairs, pairs & 0xF0 | ESCAPE, pairs & 15 | ESCAPE << 4, pairs * 0 + (ESCAPE | ESCAPE << 4)])
        bits = np.where(lengths, lengths, 99)[others] + ESCAPE_BITS * np.array([0, 1, 1, 2])[escaped[others]]
        chosen = others[bits.argmin(0), pairs]
        encoded[kind] = code[chosen] << 8 | escaped[chosen] << 4 | lengths[chosen]
        share = (np.where(lengths, 0.5**lengths, 0)).reshape(16, 16).sum(0)
        mean = bits.min(0).reshape(16, 16) @ share
        cost = mean - (share @ mean) / 2
        high = values >> RAW_BITS[kind]
        found = np.where(np.abs(high) < ESCAPE, cost[high & 15], cost[ESCAPE]) + RAW_BITS[kind]
        costs[:, kind] = np.rint(COST_UNIT * found)
    costs[:, ZERO], costs[:, RAW] = np.where(values, 1000, 0), 8 * COST_UNIT
    return decoded.reshape(-1), encoded.reshape(-1), costs.reshape(-1)


# DECODED: for each kind and MOST_BITS bits, the length of the code that they begin with, and above it the pair.
# ENCODED: for each kind and pair, the length of its code, above it 1 for an escape of its first value and 2 of its
# second one, and above it the code. COSTS: for each byte and kind, about how many bits it takes, times COST_UNIT.
DECODED, ENCODED, COSTS = _tables()
