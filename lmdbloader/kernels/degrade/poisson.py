"""Poisson numbers without rejection: sums of a few numbers, each looked up in a table.

A sum of Poisson numbers is one whose mean is the sum of their means. So the mean of each of 256 levels is split into a
part below 16, multiples of 16 below 256, of 256 below 4096, and of 4096. Each part has an alias table (Walker: An
efficient method for generating discrete random variables with general distributions, TOMS 1977): the first bits of a
word choose a column; the others decide between its own number and another one. Where they equal the first bits of the
column's threshold, bits of another word decide.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import bits_of_double, double_of_bits, likely
from lmdbloader.kernels.runtime.philox import philox

LEVELS = 256
# The largest mean is below 3 * 4096.
LARGEST_MEAN = 12287.0
# Of each part: the bits of a table's size, and where its tables begin. Tables of the first part belong to levels, those
# of others to multiples.
_BITS = 6, 8, 10, 11
_PLACES = 0, 16384, 20736, 38144
TABLES_ROOM = 44288
_THRESHOLD_BITS = 48
_LOW, _NUMBER = np.uint64(0xFFFFFFFF), np.uint64(0xFFFF)


@njit(inline="always")
def _bits(k):
    return _BITS[0] if k == 0 else _BITS[1] if k == 1 else _BITS[2] if k == 2 else _BITS[3]


@njit(inline="always")
def _place(k):
    return _PLACES[0] if k == 0 else _PLACES[1] if k == 1 else _PLACES[2] if k == 2 else _PLACES[3]


@njit(inline="always")
def _first(mean, bits):
    """Return the least number of the table for a mean; it is about half the table's size away."""
    return max(np.int64(mean + 0.5 - 0.49 * (1 << bits)), 0)


@kernel
def fill_table(table, at, bits, mean):
    """Fill the alias table for a mean: 2**bits words from a place on.

    A word is a threshold, 48 bits, and another column. The numbers that the table leaves out are less likely than
    1e-12 together.
    """
    count = 1 << bits
    first = _first(mean, bits)
    total, p = 0.0, 1.0
    for k in range(count):
        table[at + k] = bits_of_double(p)
        total += p
        p *= mean / (first + k + 1)
    scale = count / total
    # The columns that are more than full are adjacent, from low up to high.
    low, high = count, 0
    for k in range(count):
        p = double_of_bits(table[at + k]) * scale
        table[at + k] = bits_of_double(p)
        if p >= 1.0:
            low, high = min(low, k), k + 1
    giver = low
    left = double_of_bits(table[at + giver])
    for n in range(count - (high - low)):
        k = n if n < low else n + high - low
        p = double_of_bits(table[at + k])
        while True:
            table[at + k] = np.uint64(np.int64(p * (1 << _THRESHOLD_BITS))) << np.uint64(16) | np.uint64(giver)
            left -= 1.0 - p
            if left >= 1.0 or giver + 1 == high:
                break
            # The giver has less than a column left: the next one fills it up.
            k, p = giver, left
            giver += 1
            left = double_of_bits(table[at + giver])
    for k in range(giver, high):
        table[at + k] = np.uint64(k)


@kernel
def prepare(means, present, tables, whole, least):
    """Fill the tables that levels need.

    Args:
        means: (LEVELS,) float64.
        present: (LEVELS,) int32, whether a level occurs.
        tables: (TABLES_ROOM,) uint64, filled.
        whole: (LEVELS,) int32, filled with the means as integers, cut off.
        least: (LEVELS,) int32, filled with what `add_part` does not add.

    Returns:
        The number of parts.
    """
    largest = 0
    for level in range(LEVELS):
        whole[level] = np.int32(means[level])
        least[level] = 0
        if present[level] != 0:
            largest = max(largest, np.int64(means[level]))
            fill_table(tables, level << _BITS[0], _BITS[0], means[level] - (np.int64(means[level]) >> 4 << 4))
    # A part may be 16 of its multiples if it is the last: 256 is the mean of many white pixels.
    parts = 1 if largest < 16 else 2 if largest < 272 else 3 if largest < 4352 else 4
    for k in range(1, parts):
        bits, unit = _bits(k), 1 << 4 * k
        for multiple in range(min(largest >> 4 * k, 16) + 1):
            fill_table(tables, _place(k) + (multiple << bits), bits, np.float64(multiple * unit))
        for level in range(LEVELS):
            multiple = np.int64(whole[level]) >> 4 * k
            multiple = multiple if k == parts - 1 else multiple & 15
            least[level] += np.int32(_first(np.float64(multiple * unit), bits))
    return parts


@kernel
def _decided(above, bits, key0, key1, position, k):
    """Return how much a threshold is above the other bits of a word when the bits of another one follow them."""
    more = philox(key0, key1, np.uint64(position), np.uint64(k), np.uint64(0), np.uint64(0))[0]
    return above - (more >> (np.uint64(64 - _THRESHOLD_BITS + 32) - bits))


@kernel
def add_part(k, is_last, tables, whole, levels, words, counts, key0, key1, position):
    """Add one part to Poisson numbers.

    Args:
        k: Which part.
        is_last: Whether it is the last one.
        tables, whole: Filled by `prepare`.
        levels: int32, one for each number.
        words: uint32, a random word for each number.
        counts: int32, the numbers; before the first part, `least` of their levels.
        key0, key1, position: Of further words, and the position of the first number.
    """
    bits, place, shift = np.uint64(_bits(k)), np.uint64(_place(k)), np.uint64(4 * k)
    mask = np.uint64(31 if is_last else 15)
    open_below = np.uint64(1) << (bits + np.uint64(_THRESHOLD_BITS - 32))
    for i in range(levels.shape[0]):
        level = np.uint64(levels[i])
        row = level if k == 0 else np.uint64(whole[level]) >> shift & mask
        spread = np.uint64(words[i]) << bits
        column, rest = spread >> np.uint64(32), (spread & _LOW) << np.uint64(_THRESHOLD_BITS - 32)
        entry = tables[place + (row << bits) + column]
        above = (entry >> np.uint64(16)) - rest
        if not likely(above >= open_below):
            above = _decided(above, bits, key0, key1, position + i, k)
        # By a shift, not by a condition: the processor would guess it wrong half of the time.
        choice = (above - np.uint64(1)) >> np.uint64(59) & np.uint64(16)
        counts[i] += np.int32(((entry & _NUMBER) << np.uint64(16) | column) >> choice & _NUMBER)
