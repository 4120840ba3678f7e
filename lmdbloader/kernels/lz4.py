"""Decompresses LZ4 blocks; whatever the bytes are, it reads and writes nothing outside its two buffers.

Source: Yann Collet's description of LZ4's block format. A block is a list of sequences. A sequence is a token, some
literals (bytes to copy from the block) and a match (bytes to copy from the output, `offset` bytes before its end). The
token has the two lengths, 4 bits each; a length of 15 continues in further bytes, up to and including the first below
255. The last sequence ends after its literals.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import (
    copy_8,
    copy_16,
    copy_32,
    likely,
    load_u8,
    load_u16,
    load_u64,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)
from lmdbloader.kernels.runtime.symbols import memcpy

_LEAST_MATCH = np.uint64(4)
_LONG = np.uint64(15)
_GOES_ON = np.uint64(255)
_ZERO, _ONE, _TWO, _FOUR, _EIGHT = (np.uint64(value) for value in (0, 1, 2, 4, 8))
_SIXTEEN, _TWENTY_FOUR, _THIRTY_TWO, _SIXTY_FOUR = (np.uint64(value) for value in (16, 24, 32, 64))
# The most that one round of the fast loop reads of the source between two checks: a token, a length, 32 literals, an
# offset, a length. The most that it writes: 32 literals, and a match of up to 18 bytes as 32.
_READ = np.uint64(1 + 1 + 32 + 2 + 1)
_WRITTEN = np.uint64(32 + 32)
# For offsets below 8: which bits of a word repeat, and the factor that repeats them throughout the word.
_MASKS = np.array([0, *((1 << 8 * offset) - 1 for offset in range(1, 8))], np.uint64)
_REPEATED = np.array([0, *(sum(1 << at for at in range(0, 64, 8 * o)) for o in range(1, 8))], np.uint64)
# How many bytes of whole repetitions a word of 8 bytes has; for offsets from 8 on, 32 bytes.
_STEPS = np.array([1, *((8 if o < 8 else 32) // o * o for o in range(1, 32))], np.uint64)


@njit(inline="always")
def _repeat(target, offset, count):
    """Append bytes that repeat the last `offset` ones, from 1 to 7; may write up to 31 bytes too many."""
    end = target + count
    word = (load_u64(target - offset) & _MASKS[offset]) * _REPEATED[offset]
    step = _STEPS[offset]
    store_u64(target, word)
    store_u64(target + step, word)
    store_u64(target + step + step, word)
    at = target + step + step + step
    if step == _EIGHT:
        while at < end:
            store_u64(at, word)
            store_u64(at + _EIGHT, word)
            store_u64(at + _SIXTEEN, word)
            store_u64(at + _SIXTEEN + _EIGHT, word)
            at += _THIRTY_TWO
    else:
        while at < end:
            store_u64(at, word)
            at += step


@njit(inline="always")
def copy_match(target, offset, count):
    """Append this many bytes from `offset` bytes back; may write up to 32 bytes too many."""
    end = target + count
    source = target - offset
    if likely(offset >= _THIRTY_TWO):
        at = target
        while at < end:
            copy_16(source, at)
            copy_16(source + _SIXTEEN, at + _SIXTEEN)
            source += _THIRTY_TWO
            at += _THIRTY_TWO
    elif offset < _EIGHT:
        _repeat(target, offset, count)
    else:
        copy_8(source, target)
        copy_8(source + _EIGHT, target + _EIGHT)
        copy_8(source + _SIXTEEN, target + _SIXTEEN)
        copy_8(source + _SIXTEEN + _EIGHT, target + _SIXTEEN + _EIGHT)
        # These are whole repetitions and some bytes.
        step = _STEPS[offset]
        a, b = load_u64(target), load_u64(target + _EIGHT)
        c, d = load_u64(target + _SIXTEEN), load_u64(target + _SIXTEEN + _EIGHT)
        at = target + step
        while at < end:
            store_u64(at, a)
            store_u64(at + _EIGHT, b)
            store_u64(at + _SIXTEEN, c)
            store_u64(at + _SIXTEEN + _EIGHT, d)
            at += step


@kernel
def _append_match(target, offset, count, room):
    """Append exactly this many bytes from `offset` bytes back; there is room for `room`."""
    if room - count >= _THIRTY_TWO:
        copy_match(target, offset, count)
        return
    if count > _SIXTY_FOUR:
        done = count - _THIRTY_TWO
        copy_match(target, offset, done)
        target += done
        count -= done
        room -= done
    if offset >= _EIGHT:
        while count >= _EIGHT:
            copy_8(target - offset, target)
            target += _EIGHT
            count -= _EIGHT
    elif room >= _EIGHT:
        word = (load_u64(target - offset) & _MASKS[offset]) * _REPEATED[offset]
        step = _STEPS[offset]
        while count >= _EIGHT:
            store_u64(target, word)
            target += step
            count -= step
        if count & _FOUR:
            store_u32(target, np.uint32(word))
            target += _FOUR
            word >>= np.uint64(32)
        if count & _TWO:
            store_u16(target, np.uint16(word))
            target += _TWO
            word >>= _SIXTEEN
        if count & _ONE:
            store_u8(target, np.uint8(word))
        return
    while count > _ZERO:
        store_u8(target, load_u8(target - offset))
        target += _ONE
        count -= _ONE


@njit(inline="always")
def _rest_of_length(read, read_end):
    """Return (the sum of a length's further bytes, the address after them); the address is 0 if they do not end."""
    count = _ZERO
    while read < read_end:
        more = np.uint64(load_u8(read))
        read += _ONE
        count += more
        if more != _GOES_ON:
            return count, read
    return count, _ZERO


@kernel
def lz4_decompress(source, destination, nbytes, capacity):
    """Decompress one block.

    Args:
        source: uint64 address of the block; nbytes: its bytes.
        destination: uint64 address of `capacity` bytes, which do not overlap the block.

    Returns:
        How many bytes were written (int64); negative if the block is malformed or needs more room. Any of the
        `capacity` bytes may have changed.
    """
    if nbytes <= 0 or capacity < 0:
        return np.int64(-1)
    read, write = np.uint64(source), np.uint64(destination)
    begin = write
    read_end, write_end = read + np.uint64(nbytes), write + np.uint64(capacity)
    read_fast, write_fast = read_end - _READ, write_end - _WRITTEN
    token = count = _ZERO
    has_token = False

    # Far from both ends: copies may write too much, and later ones overwrite it.
    while likely(read < read_fast and write < write_fast):
        token = np.uint64(load_u8(read))
        read += _ONE
        count = token >> _FOUR
        if count == _LONG:
            more = np.uint64(load_u8(read))
            read += _ONE
            count += more
            if more == _GOES_ON:
                more, read = _rest_of_length(read, read_end)
                count += more
                if read == _ZERO:
                    return np.int64(-1)
        if count > _THIRTY_TWO:
            # Signed: after a long length, `read` may be past `read_fast`.
            if np.int64(count) >= np.int64(read_fast - read) or count >= write_fast - write:
                has_token = True
                break
            copy_32(read, write)
            at = _THIRTY_TWO
            while at < count:
                copy_32(read + at, write + at)
                at += _THIRTY_TWO
        else:
            copy_32(read, write)
        read += count
        write += count
        offset = np.uint64(load_u16(read))
        read += _TWO
        if offset > write - begin or offset == _ZERO:
            return np.int64(-1)
        count = token & _LONG
        if likely(count != _LONG):
            match = write - offset
            if likely(offset >= _SIXTEEN):
                copy_16(match, write)
                copy_16(match + _SIXTEEN, write + _SIXTEEN)
            elif offset >= _EIGHT:
                copy_8(match, write)
                copy_8(match + _EIGHT, write + _EIGHT)
                copy_8(match + _SIXTEEN, write + _SIXTEEN)
            else:
                word = (load_u64(match) & _MASKS[offset]) * _REPEATED[offset]
                step = _STEPS[offset]
                store_u64(write, word)
                store_u64(write + step, word)
                store_u64(write + step + step, word)
                # At least 15 bytes; there may be 18.
                store_u64(write + step + step + step, word)
            write += count + _LEAST_MATCH
        else:
            more = np.uint64(load_u8(read))
            read += _ONE
            count += more + _LEAST_MATCH
            if more == _GOES_ON:
                more, read = _rest_of_length(read, read_end)
                count += more
                if read == _ZERO:
                    return np.int64(-1)
            room = write_end - write
            if likely(count <= room - _THIRTY_TWO):
                copy_match(write, offset, count)
            elif count <= room:
                _append_match(write, offset, count, room)
            else:
                return np.int64(-1)
            write += count

    # The rest, to the byte.
    while has_token or read < read_end:
        if not has_token:
            token = np.uint64(load_u8(read))
            read += _ONE
            count = token >> _FOUR
            if count == _LONG:
                more, read = _rest_of_length(read, read_end)
                count += more
                if read == _ZERO:
                    return np.int64(-1)
        has_token = False
        if count > read_end - read or count > write_end - write:
            return np.int64(-1)
        if count <= _SIXTEEN and read_end - read >= _SIXTEEN and write_end - write >= _SIXTEEN:
            copy_16(read, write)
        elif count <= _THIRTY_TWO and read_end - read >= _THIRTY_TWO and write_end - write >= _THIRTY_TWO:
            copy_32(read, write)
        else:
            memcpy(write, read, count)
        read += count
        write += count
        if read_end - read < _TWO:
            return np.int64(write - begin) if read == read_end else np.int64(-1)
        offset = np.uint64(load_u16(read))
        read += _TWO
        if offset > write - begin or offset == _ZERO:
            return np.int64(-1)
        count = token & _LONG
        if count == _LONG:
            more, read = _rest_of_length(read, read_end)
            count += more
            if read == _ZERO:
                return np.int64(-1)
        count += _LEAST_MATCH
        room = write_end - write
        if count > room:
            return np.int64(-1)
        if offset >= _EIGHT and count <= _TWENTY_FOUR and room >= _TWENTY_FOUR:
            match = write - offset
            copy_8(match, write)
            copy_8(match + _EIGHT, write + _EIGHT)
            copy_8(match + _SIXTEEN, write + _SIXTEEN)
        else:
            _append_match(write, offset, count, room)
        write += count
    return np.int64(-1)
