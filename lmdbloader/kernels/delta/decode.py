"""Decodes payloads of `delta`; whatever the bytes are, it reads and writes nothing outside its two buffers."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.delta import layout as at
from lmdbloader.kernels.delta.predict import undo_bytes, undo_words
from lmdbloader.kernels.delta.streams import decode_plane, read_table, stack_room
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import (
    load_bits,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    part,
    store_u64,
    u8_at,
    u16_at,
)

_U = np.uint64
_room_of_table, _room_of_counts, _room_of_state = map(stack_room, (2 * at.TABLE_ENTRIES, 32, 16 * at.STREAMS))


@kernel
def _begin(state, source, foot, nbytes):
    """Fill the states of the streams; return the address after them, 0 if they are longer than the payload."""
    read = source
    for k in range(at.STREAMS):
        store_u64(state + _U(16 * k), load_bits(read) | _U(1))
        store_u64(state + _U(16 * k + 8), read)
        read += np.uint64(load_u16(foot + _U(2 * k)))
        if read > foot:
            return _U(0)
    return read


@kernel
def _has_ended(state, source, foot):
    """Return whether each stream was read to its end."""
    end = source
    for k in range(at.STREAMS):
        end += np.uint64(load_u16(foot + _U(2 * k)))
        word, read = load_u64(state + _U(16 * k)), load_u64(state + _U(16 * k + 8))
        used = _U(0)
        while word & _U(1) == _U(0):
            word >>= _U(1)
            used += _U(1)
        if read + (used + _U(7) >> _U(3)) != end:
            return False
    return True


@kernel
def delta_decompress(source, destination, nbytes, capacity):
    """Decode one payload.

    Args:
        source: uint64 address of the payload; nbytes: its bytes.
        destination: uint64 address of `capacity` bytes, which do not overlap it.

    Returns:
        `capacity` (int64), or -1 if the payload is malformed or its image has another size. Any of the `capacity` bytes
        may have changed.
    """
    foot = np.uint64(source) + np.uint64(nbytes) - _U(at.FOOT_NBYTES)
    if nbytes < at.FOOT_NBYTES or capacity < 1 or capacity > at.MOST_RAW_NBYTES:
        return np.int64(-1)
    width = np.int64(load_u32(foot + _U(2 * at.STREAMS)))
    channels = np.int64(load_u8(foot + _U(2 * at.STREAMS + 4)))
    itemsize = np.int64(load_u8(foot + _U(2 * at.STREAMS + 5)))
    row = width * channels * itemsize
    if not 1 <= itemsize <= 2 or row < 1 or capacity % row:
        return np.int64(-1)
    height = capacity // row
    count = height * width
    table, counts, state = _room_of_table(), _room_of_counts(), _room_of_state()
    read, last = _begin(state, np.uint64(source), foot, nbytes), foot + _U(at.FOOT_NBYTES - 8)
    less_green = np.int64(0)
    for channel in range(channels):
        if read == _U(0) or read >= foot:
            return np.int64(-1)
        predictor = np.int64(load_u8(read))
        read += _U(1)
        if predictor & at.LESS_GREEN:
            less_green |= 1 << channel
            if channels != 3 or channel == 1:
                return np.int64(-1)
        predictor &= ~at.LESS_GREEN
        if predictor >= at.NUM_PREDICTORS:
            return np.int64(-1)
        plane = np.uint64(destination) + np.uint64(channel * count * itemsize)
        for byte in range(itemsize):
            read = read_table(read, foot, table, counts)
            if read == _U(0):
                return np.int64(-1)
            decode_plane(state, last, table, plane + _U(byte), count, itemsize == 2)
        if itemsize == 1:
            undo_bytes(u8_at(plane, count), height, width, predictor)
        else:
            undo_words(u16_at(plane, count), height, width, predictor)
    if read != foot or not _has_ended(state, np.uint64(source), foot):
        return np.int64(-1)
    if less_green and itemsize == 1:
        _add_green(u8_at(destination, capacity), count, less_green, 1 << 7)
    elif less_green:
        _add_green(u16_at(destination, capacity // 2), count, less_green, 1 << 15)
    return capacity


@kernel
def _add_green(image, count, channels, middle):
    for channel in (0, 2):
        if channels >> channel & 1:
            plane, green = part(image, channel * count, count), part(image, count, count)
            for x in range(count):  # vector instructions
                plane[x] = plane[x] + green[x] + middle
