"""Kernels that compute an order by position: bijections with keys that depend only on seed, epoch and purpose."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.philox import ORDER_STREAM, philox

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ONE, _ZERO = np.uint64(1), np.uint64(0)
# Pairs of rounds: at least 3, and with few bits more, since their round functions have few different values. With fewer
# some permutations of 5 and 6 values, and some places among 100, came up too often.
_PAIRS, _PAIRS_OF_ONE_BIT = 3, 36
# Positions that are dealt to piles together.
_BLOCK = 1024


@kernel
def _mix(x):
    """Return a uint64 of which every bit depends on every bit of x: the finalizer of SplitMix64.

    Steele, Lea and Flood: Fast splittable pseudorandom number generators (OOPSLA 2014).
    """
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


@kernel
def _num_bits(n):
    """Return the bits of the numbers below n."""
    bits = 0
    while (1 << bits) < n:
        bits += 1
    return bits


@kernel
def _num_pairs(bits):
    """Return how many pairs of rounds make a permutation of numbers with so many bits."""
    return max(_PAIRS_OF_ONE_BIT // max(bits, 1), _PAIRS) if bits > 0 else _PAIRS


@kernel
def _permuted(position, n, bits, pairs, key):
    """Return the number that a bijection of 0 ... n - 1 has at a position.

    A Feistel network on the two halves of the position's bits; results of at least n go through it again, which is
    called cycle walking (Black and Rogaway: Ciphers with arbitrary finite domains, CT-RSA 2002). One half is a bit
    shorter if their number is odd, so fewer than half of the results are too large.

    Args:
        position, n: int64, 0 <= position < n.
        bits: `_num_bits(n)`.
        pairs: Of rounds.
        key: uint64, which chooses the bijection.
    """
    low = np.uint64(bits - bits // 2)
    low_mask, high_mask = (_ONE << low) - _ONE, (_ONE << np.uint64(bits // 2)) - _ONE
    x = np.uint64(position)
    while True:
        high, rest, k = x >> low, x & low_mask, key
        for _ in range(pairs):
            high ^= _mix(rest + k) & high_mask
            rest ^= _mix(high + (k ^ _GOLDEN)) & low_mask
            k = k * _SECOND + _GOLDEN
        x = (high << low) | rest
        if x < np.uint64(n):
            return np.int64(x)


@kernel
def _of_both_parities(number, n, bits, key):
    """Return a number of `_permuted` after an exchange of 0 and 1, which half of the keys make if n is 2**bits >= 16.

    The network alone gives no odd permutations of so many numbers: each round exchanges an even number of pairs. Of
    other numbers it gives both kinds, though not equally often.
    """
    if number < 2 and bits > 3 and n == 1 << bits:
        return number ^ np.int64(_mix(key ^ _SECOND) & _ONE)
    return number


@kernel
def permute(positions, n, seed, epoch, purpose, out):
    """Write the numbers at some positions of a random permutation of 0 ... n - 1.

    Args:
        positions: (m,) int64, at least 0; the permutation is repeated after its end.
        n: int64, at least 1.
        seed, epoch, purpose: uint64; they choose the permutation.
        out: (m,) int64.
    """
    key = philox(seed, ORDER_STREAM, _ZERO, epoch, purpose, _ZERO)[0]
    bits = _num_bits(n)
    pairs = _num_pairs(bits)
    for i in range(positions.shape[0]):
        out[i] = _of_both_parities(_permuted(positions[i] % n, n, bits, pairs, key), n, bits, key)


@kernel
def read_lanes(positions, num_lanes, ends, firsts, seed, epoch, purpose, out):
    """Write the numbers at some positions of an order in lanes.

    The numbers 0 ... n - 1 are divided into blocks of neighbors. The blocks, in a random order, are one sequence. It
    is cut into lanes of equal length, to within one, and the lanes take turns: position p is in lane p % num_lanes.
    What a lane has of a block is shuffled.

    Args:
        positions: (m,) int64, at least 0; the order is repeated after its end.
        num_lanes: int64, 1 to n.
        ends: (b,) int64, increasing: the length of the sequence at the end of each of its blocks; the last is n.
        firsts: (b,) int64: the first number of each block.
        seed, epoch, purpose: uint64.
        out: (m,) int64.
    """
    num_samples = ends[-1]
    each, longer = num_samples // num_lanes, num_samples % num_lanes
    key = philox(seed, ORDER_STREAM, _ZERO, epoch, purpose, _ZERO)[0]
    for i in range(positions.shape[0]):
        position = positions[i] % num_samples
        lane = position % num_lanes
        lane_begin = lane * each + min(lane, longer)
        lane_end = lane_begin + each + (1 if lane < longer else 0)
        place = lane_begin + position // num_lanes
        block, above = 0, ends.shape[0] - 1
        while block < above:
            middle = (block + above) // 2
            if ends[middle] > place:
                above = middle
            else:
                block = middle + 1
        block_begin = ends[block - 1] if block > 0 else 0
        begin = max(block_begin, lane_begin)
        length = min(ends[block], lane_end) - begin
        own_key = _mix(key + _GOLDEN * np.uint64(begin + 1))
        # Between two neighbors in the epoch are num_lanes blocks: their own order may be a little less than uniform.
        within = _permuted(place - begin, length, _num_bits(length), _PAIRS, own_key)
        out[i] = firsts[block] + begin - block_begin + within


@kernel
def _num_dealt(position, share, all_shares):
    """Return how many of the positions before one belong to the first of two: (position * share + half) // all_shares.

    Args:
        position, share: int64; 0 <= share <= all_shares.
        all_shares: int64, 1 to 2**50.
    """
    whole, part = position // all_shares, position % all_shares
    found = np.int64(np.float64(part) * np.float64(share) / np.float64(all_shares))
    # The product may have more than 64 bits; what is left of it is small, and `found` may be off by one.
    product = np.uint64(part) * np.uint64(share) + np.uint64(all_shares // 2)
    left = np.int64(product - np.uint64(found) * np.uint64(all_shares))
    while left < 0:
        left += all_shares
        found -= 1
    while left >= all_shares:
        left -= all_shares
        found += 1
    return whole * share + found


@kernel
def _place_dealt(position, share, all_shares, block, cycle, length, key):
    """Return how many of the positions before one belong to the first of two piles, and 1 if this one does, else 0.

    At the ends of blocks the number is `_num_dealt`. Within a block it is dealt out at random but evenly: each half
    gets its share, each half of that, and so on, rounded up or down at random. So no pile has only even positions.

    Args:
        position: int64, 0 to `length`.
        share, all_shares: As in `_num_dealt`.
        block: int64, positions of a block.
        cycle: int64, the number of blocks after which the same come again, or 0.
        length: int64, of all; the last block may be shorter.
        key: uint64.
    """
    number = position // block
    begin = number * block
    end = begin + block if begin + block < length else length
    count = _num_dealt(begin, share, all_shares)
    n, size, at = _num_dealt(end, share, all_shares) - count, end - begin, position - begin
    word = _mix(key + _GOLDEN * np.uint64((number % cycle if cycle > 0 else number) + 1))
    while 0 < n < size:
        left = size // 2
        in_left, part = n * left // size, n * left % size
        if np.int64(((word >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32)) < part:
            in_left += 1
        if at < left:
            n, size, word = in_left, left, _mix(word + _GOLDEN)
        else:
            count += in_left
            n, size, at, word = n - in_left, size - left, at - left, _mix(word ^ _FIRST)
    if n == 0:
        return count, 0
    return count + at, 1


@kernel
def _dealt(position, shares, total, pile, length, cycle, key):
    """Return a pile, and how many of the positions before one belong to it.

    The first pile takes its share of the positions, the second its share of the others, and so on.

    Args:
        position: int64, from 0 to `length`.
        shares: (d,) int64, as in `deal`.
        total: int64, their sum.
        pile: int64, one with a share; -1 for that of the position.
        length, cycle: As in `deal`.
        key: uint64.
    """
    rest, left = total, length
    for d in range(shares.shape[0]):
        if shares[d] == rest:  # the last pile that has a share
            return d, position
        block = rest if cycle > 0 else _BLOCK
        before, is_here = _place_dealt(
            position, shares[d], rest, block, cycle, left, _mix(key + _GOLDEN * np.uint64(d + 1))
        )
        if d == pile or (is_here > 0 and pile < 0):
            return d, before
        position -= before
        left -= _num_dealt(left, shares[d], rest)
        rest -= shares[d]
    return 0, position


@kernel
def deal(positions, shares, pile, length, cycle, seed, epoch, purpose, chosen, numbers):
    """Deal positions to several piles in proportion to their shares, at random but evenly.

    Args:
        positions: (m,) int64, from 0 to before `length`; to `length` itself with a `pile`.
        shares: (d,) int64, at least 0, one of them above; their sum is at most 2**50.
        pile: int64, one with a share, of which the positions are counted; -1 for that of each position.
        length: int64, of all positions.
        cycle: int64, after how many times sum(shares) positions they are dealt equally again; 0 for never.
        seed, epoch, purpose: uint64; they choose how.
        chosen: (m,) int64, the pile of each position, or `pile`.
        numbers: (m,) int64, how many of the positions before it belong to that pile.
    """
    key = philox(seed, ORDER_STREAM, _ZERO, epoch, purpose, _ONE)[0]
    total = 0
    for d in range(shares.shape[0]):
        total += shares[d]
    for i in range(positions.shape[0]):
        chosen[i], numbers[i] = _dealt(positions[i], shares, total, pile, length, cycle, key)


@kernel
def shuffle_piles(chosen, numbers, lengths, seed, epoch, purpose, out):
    """Write the draws at some places of piles, each of which is shuffled again whenever all of it was drawn.

    The draw is sample + n * times: samples of all piles are counted one pile after the other, n in all.

    Args:
        chosen: (m,) int64, the pile.
        numbers: (m,) int64, at least 0: how many were drawn from it before.
        lengths: (d,) int64, the samples of each pile; at least 1 of those that are drawn from.
        seed, epoch, purpose: uint64; they choose the permutations.
        out: (m,) int64.
    """
    key = philox(seed, ORDER_STREAM, _ZERO, epoch, purpose, _ZERO)[0]
    total = 0
    for d in range(lengths.shape[0]):
        total += lengths[d]
    for i in range(chosen.shape[0]):
        begin = 0
        for d in range(chosen[i]):
            begin += lengths[d]
        n = lengths[chosen[i]]
        times = numbers[i] // n
        own_key = _mix(_mix(key + _GOLDEN * np.uint64(chosen[i] + 1)) + _GOLDEN * np.uint64(times + 1))
        bits = _num_bits(n)
        pairs = _num_pairs(bits)
        within = _of_both_parities(_permuted(numbers[i] % n, n, bits, pairs, own_key), n, bits, own_key)
        out[i] = begin + within + total * times
