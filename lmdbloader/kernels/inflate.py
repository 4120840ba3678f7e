"""Decompresses zlib streams into one buffer; whatever the bytes are, it reads and writes nothing outside its buffers.

Sources: RFC 1950 and RFC 1951 for the format; Eric Biggers' libdeflate for tables whose entries say all about a code,
and which double in length from one length of code to the next.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lmdbloader.kernels.lz4 import copy_match
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import load_u16, load_u32, load_u64, store_u16, u8_at, u32_at
from lmdbloader.kernels.runtime.symbols import memcpy

# Bytes behind the source and the output that may be read and written.
_SLACK = 320
# Codes of up to so many bits are looked up at once. A longer one leads to a table of the bits behind its first ones.
_LITERAL_BITS, _DISTANCE_BITS, _LENGTH_BITS = 11, 9, 7
_MOST_BITS, _MOST_LITERALS, _MOST_DISTANCES, _END = 15, 288, 32, 256
_LITERAL_ROOM = (1 << _LITERAL_BITS) + (_MOST_LITERALS << (_MOST_BITS - _LITERAL_BITS))
_DISTANCE_ROOM = (1 << _DISTANCE_BITS) + (_MOST_DISTANCES << (_MOST_BITS - _DISTANCE_BITS))
_LENGTHS_AT = _LITERAL_ROOM + _DISTANCE_ROOM
# Scratch, uint32: both tables; lengths of codes, which may go on behind their end before this is noticed; symbols in
# the order of their codes.
_MOST_REPEATED = 138
_ORDER_AT = _LENGTHS_AT + _MOST_LITERALS + _MOST_DISTANCES + _MOST_REPEATED
_WORK = _ORDER_AT + 17 + _MOST_LITERALS
# An entry: bits of the code and of the number behind it; two flags; bits of the code alone, or how many literals; the
# literals, what the number is added to, or where the table of a longer code is. Without a code it is _OTHER | _SPECIAL.
_USED = np.uint32(63)
_SPECIAL, _OTHER, _CODE_AT, _VALUE_AT = np.uint32(1 << 6), np.uint32(1 << 7), np.uint32(8), np.uint32(16)
_CODE = np.uint32(15)
_ONE_LITERAL, _TWO_LITERALS = np.uint32(1 << 8), np.uint32(2 << 8)
# Lengths and distances of matches: what each is at least, and the bits of the number that is added.
_LENGTH_EXTRA = np.array([0] * 8 + [k for k in range(1, 6) for _ in range(4)] + [0], np.uint32)
_LENGTH_BASE = np.array([*range(3, 11), *((4 + j << k) + 3 for k in range(1, 6) for j in range(4)), 258], np.uint32)
_DISTANCE_EXTRA = np.array([0] * 4 + [k for k in range(1, 14) for _ in range(2)], np.uint32)
_DISTANCE_BASE = np.array([1, 2, 3, 4, *((2 + j << k) + 1 for k in range(1, 14) for j in range(2))], np.uint32)
_LENGTH_ORDER = np.array([16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15])
# The most bytes whose sums of Adler-32 fit into 32 bits, rounded down.
_ADLER, _ADLER_NBYTES = np.uint64(65521), 4096
_ZERO, _ONE, _EIGHT = np.uint64(0), np.uint64(1), np.uint64(8)


@njit(inline="always")
def _refill(bits, count, at):
    """Return the bit reader with at least 56 bits: next bits (rightmost first), how many, address of the next byte."""
    bits |= load_u64(at) << count
    at += (np.uint64(63) - count) >> np.uint64(3)
    return bits, count | np.uint64(56), at


@njit(inline="always")
def _look_up(table, bits, width):
    return load_u32(table + ((bits & np.uint64((1 << width) - 1)) << np.uint64(2)))


@njit(inline="always")
def _number(bits, entry):
    """Return the length or distance of an entry, with the bits behind its code added."""
    extra = (bits & ((_ONE << np.uint64(entry & _USED)) - _ONE)) >> np.uint64(entry >> _CODE_AT & _CODE)
    return np.uint64(entry >> _VALUE_AT) + extra


@kernel
def _entry(symbol, length, width):
    """Return the entry of a symbol with a code of this length, for the table whose codes of `width` bits it has."""
    code = np.uint32(length) | np.uint32(length << 8)
    if width == _LENGTH_BITS:
        return np.uint32(length) | np.uint32(symbol << 16)
    if width == _DISTANCE_BITS:
        if symbol >= _DISTANCE_BASE.size:
            return _OTHER | _SPECIAL
        return (code + _DISTANCE_EXTRA[symbol]) | (_DISTANCE_BASE[symbol] << _VALUE_AT)
    if symbol < _END:
        return np.uint32(length) | _ONE_LITERAL | np.uint32(symbol << 16)
    if symbol == _END:
        return np.uint32(length) | _OTHER | _SPECIAL
    if symbol > _END + _LENGTH_BASE.size:
        return _OTHER | _SPECIAL
    symbol -= _END + 1
    return (code + _LENGTH_EXTRA[symbol]) | _OTHER | (_LENGTH_BASE[symbol] << _VALUE_AT)


@kernel
def _build(lengths, order, table, width):
    """Make the table of a code.

    Args:
        lengths: (number of symbols,) uint32 length of each symbol's code, 15 at most; 0 for none.
        order: Scratch, uint32: 17 and as many as symbols.
        table: uint32, filled; there is room for a table of longer codes for each symbol.
        width: Codes of up to so many bits are looked up at once.

    Returns:
        Whether the code makes sense: all sequences of bits begin with one, or the only one is of a single bit.
    """
    for length in range(17):
        order[length] = 0
    for symbol in range(lengths.size):
        order[lengths[symbol] + 1] += np.uint32(1)
    longest = 0
    for length in range(1, 17):
        longest = length - 1 if order[length] else longest
        order[length] += order[length - 1]
    # order[length] is now where the symbols of this length begin, then where they end.
    for symbol in range(lengths.size):
        place = order[lengths[symbol]]
        order[17 + place] = symbol
        order[lengths[symbol]] = place + np.uint32(1)
    nothing = _OTHER | _SPECIAL
    table[0] = nothing
    left, code, size, end = 1, 0, 1, 1 << width
    for length in range(1, max(longest, width) + 1):
        if length <= width:  # what the table has repeats with each value of the next bit
            for k in range(size):
                table[size + k] = table[k]
            size <<= 1
        left = 2 * left - np.int64(order[length] - order[length - 1])
        if left < 0:
            return False
        for place in range(order[length - 1], order[length]):
            entry = _entry(np.int64(order[17 + place]), length, width)
            first = code & ((1 << width) - 1)
            if length <= width:
                table[code] = entry
            else:
                if table[first] == nothing:
                    table[first] = nothing | np.uint32(end << 16)
                    for k in range(1 << (_MOST_BITS - width)):
                        table[end + k] = nothing
                    end += 1 << (_MOST_BITS - width)
                start = np.int64(table[first] >> _VALUE_AT)
                for k in range(code >> width, 1 << (_MOST_BITS - width), 1 << (length - width)):
                    table[start + k] = entry
            # The next code is one more, and the first bit of a code is the lowest one.
            bit = 1 << (length - 1)
            while code & bit:
                bit >>= 1
            code = (code & (bit - 1)) | bit
    return left == 0 or (longest <= 1 and width != _LENGTH_BITS)


@kernel
def _pair_up(table):
    """Let the entries of literals that leave enough bits for another one have both."""
    for k in range((1 << _LITERAL_BITS) - 1, -1, -1):
        entry = table[k]
        used = entry & _USED
        following = table[k >> np.int64(used)]
        both = used + (following & _USED)
        if (entry | following) & _OTHER == 0 and both <= _LITERAL_BITS:
            value = (entry >> _VALUE_AT) | (following >> _VALUE_AT << np.uint32(8))
            table[k] = both | _TWO_LITERALS | value << _VALUE_AT


@kernel
def _read_codes(bits, count, at, end, is_fixed, work):
    """Make both tables of a block.

    Returns:
        (the bit reader, whether they make sense).
    """
    distances = work + np.uint64(4 * _LITERAL_ROOM)
    address = work + np.uint64(4 * _LENGTHS_AT)
    order = u32_at(work + np.uint64(4 * _ORDER_AT), 17 + _MOST_LITERALS)
    lengths = u32_at(address, _MOST_LITERALS + _MOST_DISTANCES + _MOST_REPEATED)
    literals, both = _MOST_LITERALS, _MOST_LITERALS + _MOST_DISTANCES
    if is_fixed:
        for k in range(both):
            lengths[k] = 8 if k < 144 else 9 if k < 256 else 7 if k < 280 else 8 if k < literals else 5
    else:
        literals = 257 + np.int64(bits & np.uint64(31))
        both = literals + 1 + np.int64(bits >> np.uint64(5) & np.uint64(31))
        given = 4 + np.int64(bits >> np.uint64(10) & np.uint64(15))
        if literals > 286 or both - literals > 30:
            return bits, count, at, False
        bits >>= np.uint64(14)
        count -= np.uint64(14)
        for k in range(19):
            if k % 15 == 0:
                bits, count, at = _refill(bits, count, at)
            lengths[_LENGTH_ORDER[k]] = np.uint32(bits & np.uint64(7)) if k < given else np.uint32(0)
            bits >>= np.uint64(3 if k < given else 0)
            count -= np.uint64(3 if k < given else 0)
        if not _build(u32_at(address, 19), order, u32_at(distances, _DISTANCE_ROOM), _LENGTH_BITS):
            return bits, count, at, False
        done = 0
        while done < both:
            if at > end + _EIGHT:
                return bits, count, at, False
            bits, count, at = _refill(bits, count, at)
            entry = _look_up(distances, bits, _LENGTH_BITS)
            symbol = entry >> _VALUE_AT
            bits >>= np.uint64(entry & _USED)
            # 16 repeats the length before 3 to 6 times, 17 and 18 a zero 3 to 10 and 11 to 138 times.
            value, times, more = symbol, 1, np.uint64(0)
            if symbol > 15:
                more = np.uint64(2 if symbol == 16 else 3 if symbol == 17 else 7)
                times = (11 if symbol == 18 else 3) + np.int64(bits & ((_ONE << more) - _ONE))
                if symbol == 16 and done == 0:
                    return bits, count, at, False
                value = lengths[done - 1] if symbol == 16 else np.uint32(0)
            bits >>= more
            count -= np.uint64(entry & _USED) + more
            for k in range(done, done + times):
                lengths[k] = value
            done += times
        if done > both or lengths[_END] == 0:
            return bits, count, at, False
    table = u32_at(work, _LITERAL_ROOM)
    if not _build(u32_at(address, literals), order, table, _LITERAL_BITS):
        return bits, count, at, False
    _pair_up(table)
    behind = u32_at(address + np.uint64(4 * literals), both - literals)
    return bits, count, at, _build(behind, order, u32_at(distances, _DISTANCE_ROOM), _DISTANCE_BITS)


@njit(inline="always")
def _emit(bits, count, target, entry):
    """Write an entry's one or two literals, and drop the bits of their codes."""
    store_u16(target, np.uint16(entry >> _VALUE_AT))
    used = np.uint64(entry & _USED)
    return bits >> used, count - used, target + np.uint64(entry >> _CODE_AT & _CODE)


@kernel
def _decode_block(bits, count, at, end, out, target, out_end, work):
    """Decode the literals and matches of a block.

    Args:
        bits, count, at: The bit reader.
        end: Address behind the source.
        out, target, out_end: Addresses of the first byte, of the next one, and behind the last one.
        work: Address of the tables.

    Returns:
        (the bit reader, target; 0 for bytes that make no sense or too many).
    """
    table, distances = work, work + np.uint64(4 * _LITERAL_ROOM)
    while at <= end + _EIGHT and target <= out_end:
        bits, count, at = _refill(bits, count, at)
        entry = _look_up(table, bits, _LITERAL_BITS)
        if entry & _OTHER == 0:  # four look-ups of literals take 44 bits of the 56
            bits, count, target = _emit(bits, count, target, entry)
            entry = _look_up(table, bits, _LITERAL_BITS)
            if entry & _OTHER == 0:
                bits, count, target = _emit(bits, count, target, entry)
                entry = _look_up(table, bits, _LITERAL_BITS)
                if entry & _OTHER == 0:
                    bits, count, target = _emit(bits, count, target, entry)
                    entry = _look_up(table, bits, _LITERAL_BITS)
                    if entry & _OTHER == 0:
                        bits, count, target = _emit(bits, count, target, entry)
                        continue
        # A length, a distance and their numbers have at most 48 bits.
        bits, count, at = _refill(bits, count, at)
        if entry & _SPECIAL:
            if entry >> _VALUE_AT:
                entry = _look_up(
                    table + (np.uint64(entry >> _VALUE_AT) << np.uint64(2)), bits >> np.uint64(_LITERAL_BITS), 4
                )
                if entry & _OTHER == 0:
                    bits, count, target = _emit(bits, count, target, entry)
                    continue
            if entry & _SPECIAL:
                used = np.uint64(entry & _USED)
                return bits >> used, count - used, at, target if used else _ZERO
        length = _number(bits, entry)
        bits >>= np.uint64(entry & _USED)
        count -= np.uint64(entry & _USED)
        entry = _look_up(distances, bits, _DISTANCE_BITS)
        if entry & _SPECIAL:
            start = distances + (np.uint64(entry >> _VALUE_AT) << np.uint64(2))
            entry = _look_up(start, bits >> np.uint64(_DISTANCE_BITS), _MOST_BITS - _DISTANCE_BITS)
        distance = _number(bits, entry)
        if entry & _SPECIAL or distance > target - out:
            break
        bits >>= np.uint64(entry & _USED)
        count -= np.uint64(entry & _USED)
        copy_match(target, distance, length)
        target += length
    return bits, count, at, _ZERO


@kernel
def _add_adler(data, low, high):
    """Return the sums of Adler-32 with these bytes added."""
    for start in range(0, data.size, _ADLER_NBYTES):
        part = u8_at(data.ctypes.data + np.uint64(start), min(_ADLER_NBYTES, data.size - start))
        total, weighted, weight = np.uint32(0), np.uint32(0), np.uint32(part.size)
        for i in range(part.size):  # vector instructions, without casts of 64 bits
            total = np.uint32(total + part[i])
            weighted = np.uint32(weighted + np.uint32(np.uint32(part[i]) * np.uint32(weight - np.uint32(i))))
        high = (high + np.uint64(part.size) * low + np.uint64(weighted)) % _ADLER
        low = (low + np.uint64(total)) % _ADLER
    return low, high


@kernel
def inflate_room():
    """Return how many bytes more than they need `source` and `out` of `inflate` have, and how many words `work` has."""
    return _SLACK, _WORK


@kernel
def inflate(source, nbytes, out, expected, work):
    """Decompress a zlib stream that has as many bytes as expected.

    Args:
        source: (nbytes + slack,) uint8, see `inflate_room`; the stream, and any bytes behind it.
        nbytes: Of the stream and what follows it in the file.
        out: (expected + slack,) uint8, of which the first `expected` are filled.
        expected: Bytes of the decompressed data.
        work: (words,) uint32, scratch.

    Returns:
        Whether the stream is sound, its checksum is right, and it has exactly these bytes.
    """
    if nbytes < 2 or (256 * source[0] + source[1]) % 31 or source[0] & 15 != 8 or source[0] > 0x78 or source[1] & 32:
        return False
    begin, tables = np.uint64(out.ctypes.data), np.uint64(work.ctypes.data)
    at = np.uint64(source.ctypes.data) + np.uint64(2)
    end = at + np.uint64(nbytes - 2)
    target, out_end = begin, begin + np.uint64(expected)
    bits, count, low, high = _ZERO, _ZERO, _ONE, _ZERO
    is_last = False
    while not is_last:
        if at > end + _EIGHT:
            return False
        bits, count, at = _refill(bits, count, at)
        is_last, kind = bits & _ONE != _ZERO, bits >> _ONE & np.uint64(3)
        bits >>= np.uint64(3)
        count -= np.uint64(3)
        first = target
        if kind == 0:
            at -= count >> np.uint64(3)
            bits, count = _ZERO, _ZERO
            size = np.uint64(load_u16(at))
            if size + np.uint64(load_u16(at + np.uint64(2))) != np.uint64(0xFFFF):
                return False
            at += np.uint64(4)
            if at > end or size > end - at or size > out_end - target:
                return False
            memcpy(target, at, size)
            at += size
            target += size
        else:
            if kind == 3:
                return False
            bits, count, at, makes_sense = _read_codes(bits, count, at, end, kind == 1, tables)
            if not makes_sense:
                return False
            bits, count, at, target = _decode_block(bits, count, at, end, begin, target, out_end, tables)
            if target == 0 or target > out_end:
                return False
        low, high = _add_adler(u8_at(first, np.int64(target - first)), low, high)
    at -= count >> np.uint64(3)
    if target != out_end or at + np.uint64(4) > end:
        return False
    checksum = u8_at(at, 4)
    found = np.uint64(0)
    for k in range(4):
        found = found << np.uint64(8) | np.uint64(checksum[k])
    return found == (high << np.uint64(16) | low)
