"""Compresses bytes to LZ4 blocks, the same ones as the lz4 library's LZ4_compress_default (1.9.4).

Source: the description of LZ4's block format by Yann Collet (see `decompress`). The encoder is greedy: a table
has the last position of each hash of some bytes; at each position it looks there for a match, and takes the first one.
The longer it finds none, the larger are its steps.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import (
    copy_literals,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_u8,
    store_u16,
    store_u32,
    trailing_zeros,
    zeroed_room_of,
)

_LEAST_MATCH = np.uint64(4)
_LONG = np.uint64(15)
_FULL = np.uint64(255)
_FARTHEST = np.uint64(65535)
# The format's rules for the end of a block: the last five bytes are literals, and the last match begins at least twelve
# bytes before the end.
_LAST_LITERALS, _LAST_MATCH = np.uint64(5), np.uint64(12)
_LARGEST = 0x7E000000
# Blocks shorter than this have positions of 16 bits.
_NARROW_BELOW = 65536 + 11
_TABLE_NBYTES = 16384
_SKIP_BITS = np.uint64(6)
_ZERO, _ONE, _TWO, _FOUR, _EIGHT, _SIXTEEN = (np.uint64(value) for value in (0, 1, 2, 4, 8, 16))

_zeroed_table = zeroed_room_of(_TABLE_NBYTES)


@njit(inline="always")
def _slot(table, address, narrow):
    """Return the address of the table's entry for the bytes at an address: four bytes if narrow, else five."""
    if narrow:
        product = np.uint64(load_u32(address)) * np.uint64(2654435761) & np.uint64(0xFFFFFFFF)
        return table + (product >> np.uint64(32 - 13)) * _TWO
    product = (load_u64(address) << np.uint64(24)) * np.uint64(889523592379)
    return table + (product >> np.uint64(64 - 12)) * _FOUR


@njit(inline="always")
def _known(slot, narrow):
    if narrow:
        return np.uint64(load_u16(slot))
    return np.uint64(load_u32(slot))


@njit(inline="always")
def _keep(slot, position, narrow):
    if narrow:
        store_u16(slot, np.uint16(position))
    else:
        store_u32(slot, np.uint32(position))


@njit(inline="always")
def _common(first, second, end):
    """Return how many bytes are equal from two addresses on; the bytes of the first end at `end`."""
    at = first
    while end - at >= _SIXTEEN and (
        load_u64(at) == load_u64(second) and load_u64(at + _EIGHT) == load_u64(second + _EIGHT)
    ):
        at += _SIXTEEN
        second += _SIXTEEN
    while end - at >= _EIGHT:
        difference = load_u64(at) ^ load_u64(second)
        if difference != _ZERO:
            return at - first + (trailing_zeros(difference) >> np.uint64(3))
        at += _EIGHT
        second += _EIGHT
    while at < end and load_u8(at) == load_u8(second):
        at += _ONE
        second += _ONE
    return at - first


@njit(inline="always")
def _write_length(write, length):
    """Write the part of a length that does not fit into the token; return the address after it."""
    if length >= _LONG:
        length -= _LONG
        while length >= _FOUR * _FULL:
            store_u32(write, np.uint32(0xFFFFFFFF))
            write += _FOUR
            length -= _FOUR * _FULL
        while length >= _FULL:
            store_u8(write, np.uint8(255))
            write += _ONE
            length -= _FULL
        store_u8(write, np.uint8(length))
        write += _ONE
    return write


@njit(inline="always")
def _compress(source, destination, nbytes, capacity, narrow):
    end = source + nbytes
    write, write_end = destination, destination + capacity
    anchor = source
    if nbytes > _LAST_MATCH:
        table = _zeroed_table()
        # No match begins from here on, and none ends after `match_end`.
        last = end - _LAST_MATCH + _ONE
        match_end = end - _LAST_LITERALS
        read = source + _ONE
        slot = _slot(table, read, narrow)
        going = True
        while going:
            # Look for a match.
            following, step, tries = read, _ONE, _ONE << _SKIP_BITS
            match = _ZERO
            while True:
                read = following
                following += step
                step = tries >> _SKIP_BITS
                tries += _ONE
                if following > last:
                    going = False
                    break
                position = read - source
                known = _known(slot, narrow)
                next_slot = _slot(table, following, narrow)
                _keep(slot, position, narrow)
                slot = next_slot
                match = source + known
                if (narrow or position - known <= _FARTHEST) and load_u32(match) == load_u32(read):
                    break
            if not going:
                break
            while read > anchor and match > source and load_u8(read - _ONE) == load_u8(match - _ONE):
                read -= _ONE
                match -= _ONE
            # The literals, and the match that follows: a token, an offset, the last token and the last literals.
            count = read - anchor
            if count // _FULL + count + np.uint64(1 + 2 + 1 + 5) > write_end - write:
                return np.int64(0)
            token = write
            high = min(count, _LONG) << _FOUR
            write = _write_length(write + _ONE, count)
            copy_literals(anchor, write, count)
            write += count
            while True:
                store_u16(write, np.uint16(read - match))
                write += _TWO
                read += _LEAST_MATCH
                count = _common(read, match + _LEAST_MATCH, match_end)
                read += count
                if np.int64(write_end - write) < np.int64((count + np.uint64(240)) // _FULL + np.uint64(1 + 5)):
                    return np.int64(0)
                store_u8(token, np.uint8(high | min(count, _LONG)))
                write = _write_length(write, count)
                anchor = read
                if read >= last:
                    going = False
                    break
                _keep(_slot(table, read - _TWO, narrow), read - _TWO - source, narrow)
                slot = _slot(table, read, narrow)
                position = read - source
                known = _known(slot, narrow)
                _keep(slot, position, narrow)
                match = source + known
                if not ((narrow or position - known <= _FARTHEST) and load_u32(match) == load_u32(read)):
                    break
                # The next match follows without literals.
                token = write
                high = _ZERO
                write += _ONE
            read += _ONE
            if going:
                slot = _slot(table, read, narrow)
    count = end - anchor
    if count + _ONE + (count + np.uint64(240)) // _FULL > write_end - write:
        return np.int64(0)
    store_u8(write, np.uint8(min(count, _LONG) << _FOUR))
    write = _write_length(write + _ONE, count)
    copy_literals(anchor, write, count)
    return np.int64(write + count - destination)


@kernel
def _compress_narrow(source, destination, nbytes, capacity):
    return _compress(source, destination, nbytes, capacity, True)


@kernel
def _compress_wide(source, destination, nbytes, capacity):
    return _compress(source, destination, nbytes, capacity, False)


@kernel
def lz4_compress(source, destination, nbytes, capacity):
    """Compress bytes to one block.

    Args:
        source: uint64 address of `nbytes` bytes.
        destination: uint64 address of `capacity` bytes, which do not overlap them.

    Returns:
        The length of the block (int64); 0 if it does not fit, or for more than 2 GB. Then any of the `capacity`
        bytes may have changed.
    """
    if nbytes < 0 or nbytes > _LARGEST or capacity <= 0:
        return np.int64(0)
    if nbytes < _NARROW_BELOW:
        return _compress_narrow(np.uint64(source), np.uint64(destination), np.uint64(nbytes), np.uint64(capacity))
    return _compress_wide(np.uint64(source), np.uint64(destination), np.uint64(nbytes), np.uint64(capacity))
