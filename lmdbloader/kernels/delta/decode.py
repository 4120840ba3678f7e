"""Decodes payloads of `delta`; whatever the bytes are, it reads and writes nothing outside its two buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from lmdbloader.kernels.delta import layout as at
from lmdbloader.kernels.delta.blocks import KEYS, add_words, put_bytes, sort_blocks
from lmdbloader.kernels.delta.predict import undo_bytes, undo_words
from lmdbloader.kernels.delta.streams import SLOT, decode_blocks, decode_few
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import (
    load_bits,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    part,
    store_u8,
    store_u16,
    store_u64,
    trailing_zeros,
    u8_at,
    u16_at,
    u32_at,
)

_U = np.uint64
_RAW_BITS, _TABLES = at.RAW_BITS, at.DECODED
# Whole blocks whose pairs wait at a time.
_WAITING = 16


def _stack_room(nbytes: int) -> Any:
    """Return a function that kernels call for the address of so many bytes on their stack, at a multiple of 64."""

    @intrinsic
    def room(typing_context):
        def generate(context, builder, signature, arguments):
            found = cgutils.alloca_once(builder, ir.ArrayType(ir.IntType(64), nbytes // 8 + 8))
            address = builder.ptrtoint(found, ir.IntType(64))
            return builder.and_(builder.add(address, ir.IntType(64)(63)), ir.IntType(64)(-64))

        return types.uint64(), generate

    return room


_room_of_state, _room_of_kinds = _stack_room(16 * at.STREAMS), _stack_room(at.GROUP // 2 + 64)
_room_of_slots, _room_of_counts = _stack_room(SLOT * (_WAITING + 2)), _stack_room(4 * 2 * KEYS)
_room_of_keys, _room_of_places = _stack_room(at.GROUP), _stack_room(4 * 2 * at.GROUP)


@kernel
def _begin(state, source, foot):
    """Fill the states of the streams; return the address after them."""
    read = source
    for k in range(at.STREAMS):
        store_u64(state + _U(16 * k), load_bits(min(read, foot)) | _U(1))
        store_u64(state + _U(16 * k + 8), read)
        read += np.uint64(load_u16(foot + _U(2 * k)))
    return read


@kernel
def _has_ended(state, source, foot):
    """Return whether each stream was read to its end."""
    end = source
    for k in range(at.STREAMS):
        end += np.uint64(load_u16(foot + _U(2 * k)))
        word, read = load_u64(state + _U(16 * k)), load_u64(state + _U(16 * k + 8))
        if read + (trailing_zeros(word) + _U(7) >> _U(3)) != end:
            return False
    return True


@kernel
def _put(pairs, raw, raw_bits, apart, escape, least, target, row, itemsize, shift):
    """Write a block, or add it to words; return the address of its last escape, 0 below `least`."""
    if itemsize == 1:
        escapes = put_bytes(pairs, raw, raw_bits, apart, target, row)
    else:
        escapes = add_words(pairs, raw, raw_bits, apart, target, row, np.uint64(shift))
    while escapes:
        number = trailing_zeros(escapes)
        escapes &= escapes - _U(1)
        escape -= _U(1)
        if escape < least:
            return _U(0)
        value, place = np.int64(load_u8(escape)), target + (number >> _U(3)) * row
        if itemsize == 1:
            store_u8(place + (number & _U(7)), np.uint8(value))
        else:
            place += _U(2) * (number & _U(7))
            store_u16(place, np.uint16(np.int64(load_u16(place)) + (((value ^ 128) - 128) << shift)))
    return escape


@kernel
def _put_whole(state, last, slots, places, kind, raw, escape, least, image):
    """Decode whole blocks of a kind.

    Args:
        state, last: As in `_decode_planes`.
        slots: uint64 address of _WAITING times SLOT bytes, and of 2 SLOT for a block that the edge cuts.
        places: uint32 of each block.
        kind: int64.
        raw, escape: uint64 addresses of the next raw bits, and after the next escape.
        least: uint64 address of the first byte that may be an escape.
        image: (uint64 address, height, width, bytes of a value).

    Returns:
        raw and escape after the blocks; escape is 0 if there were too few.
    """
    destination, _, width, itemsize = image
    raw_bits, row = np.int64(_RAW_BITS[np.uint64(kind)]), np.uint64(width * itemsize)
    if kind == at.ZERO or kind == at.RAW:
        for k in range(_WAITING * SLOT // 8):
            store_u64(slots + _U(8 * k), _U(0))
    for start in range(0, places.shape[0], _WAITING):
        count = min(_WAITING, places.shape[0] - start)
        if kind != at.ZERO and kind != at.RAW:
            decode_blocks(state, last, _table(kind), slots + _U(SLOT - 1), count)
        for k in range(count):
            place, pairs = np.int64(places[np.uint64(start + k)]), slots + np.uint64(SLOT * k + SLOT // 2)
            target = destination + np.uint64((place >> 1) * itemsize)
            escape = _put(pairs, raw, raw_bits, _U(8), escape, least, target, row, itemsize, 8 * (place & 1))
            raw += np.uint64(8 * raw_bits)
            if escape == _U(0):
                return raw, escape
    return raw, escape


@kernel
def _put_rest(state, last, slots, places, kind, raw, escape, least, image):
    """Decode blocks of a kind that the edge cuts; else as `_put_whole`."""
    destination, height, width, itemsize = image
    raw_bits, whole = np.int64(_RAW_BITS[np.uint64(kind)]), slots + _U(SLOT * _WAITING)
    for k in range(places.shape[0]):
        place, shift = np.int64(places[k]) >> 1, 8 * (np.int64(places[k]) & 1)
        rows, columns = min(at.SIDE, height - place // width % height), min(at.SIDE, width - place % width)
        padded = rows * columns + at.PADDED - 1 & -at.PADDED
        for word in range(at.SIDE):
            store_u64(slots + _U(8 * word), _U(0))
            store_u64(whole + _U(16 * word), _U(0))
            store_u64(whole + _U(16 * word + 8), _U(0))
        pairs, row = slots + _U(SLOT // 2), np.uint64(at.SIDE * itemsize)
        if kind != at.ZERO and kind != at.RAW:
            decode_few(state, last, _table(kind), pairs + np.uint64(padded // 2 - 1), padded // at.PADDED)
        apart = np.uint64(padded >> 3)
        escape = _put(pairs, raw, raw_bits, apart, escape, least, whole, row, itemsize, shift)
        raw += np.uint64(raw_bits) * apart
        if escape == _U(0):
            break
        target = destination + np.uint64(place * itemsize)
        for y in range(rows):
            line, its_row = whole + np.uint64(y * columns * itemsize), target + np.uint64(y * width * itemsize)
            if itemsize == 1:
                _add(u8_at(line, columns), u8_at(its_row, columns), False)
            else:
                _add(u16_at(line, columns), u16_at(its_row, columns), True)
    return raw, escape


@njit(inline="always")
def _add(values, target, adds):
    for x in range(values.shape[0]):
        target[x] = values[x] + (target[x] if adds else 0)


@kernel
def _table(kind):
    return np.uint64(_TABLES.ctypes.data) + (np.uint64(kind) << _U(at.MOST_BITS + 1))


@kernel
def _decode_planes(state, last, raw, escape, planes, image):
    """Decode all blocks of an image.

    Args:
        state: uint64 address of the streams' states.
        last: uint64 address of the last eight bytes that streams may read.
        raw, escape: uint64 addresses of the first raw bits, and after the first escape.
        planes: int64, how many planes of bytes it has.
        image: (uint64 address, height, width, bytes of a value).

    Returns:
        Whether there were neither more nor fewer raw bits and escapes.
    """
    _, height, width, itemsize = image
    kinds, slots = _room_of_kinds(), _room_of_slots()
    keys = u8_at(_room_of_keys(), at.GROUP)
    places, counts = u32_at(_room_of_places(), 2 * at.GROUP), u32_at(_room_of_counts(), 2 * KEYS)
    blocks = planes * ((width + at.SIDE - 1) // at.SIDE) * ((height + at.SIDE - 1) // at.SIDE)
    for first in range(0, blocks, at.GROUP):
        count = min(at.GROUP, blocks - first)
        rounds = (count + at.PADDED - 1) // at.PADDED
        decode_few(state, last, _table(np.int64(0)), kinds + np.uint64(at.STREAMS * (rounds + 1) - 1), rounds)
        nbytes = sort_blocks(kinds + _U(at.STREAMS), first, count, (height, width, itemsize), keys, places, counts)
        if np.int64(escape - raw) < nbytes:
            return False
        least, start = raw + np.uint64(nbytes), np.int64(0)
        for key in range(KEYS):
            here = part(places, start, np.int64(counts[KEYS + key]) - start)
            start += here.shape[0]
            if here.shape[0] == 0:
                continue
            if key < KEYS // 2:
                raw, escape = _put_whole(state, last, slots, here, key, raw, escape, least, image)
            else:
                raw, escape = _put_rest(state, last, slots, here, key - KEYS // 2, raw, escape, least, image)
            if escape == _U(0):
                return False
    return raw == escape


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
    channels, last_byte = np.int64(load_u8(foot + _U(20))), np.int64(load_u8(foot + _U(21)))
    itemsize, shift = last_byte & 15, last_byte >> 4
    row = width * channels * itemsize
    if not 1 <= itemsize <= 2 or (itemsize == 1 and shift) or row < 1 or capacity % row:
        return np.int64(-1)
    height, end = capacity // row, foot - np.uint64(channels)
    state = _room_of_state()
    raw = _begin(state, np.uint64(source), foot)
    if nbytes < at.FOOT_NBYTES + channels or raw > end:
        return np.int64(-1)
    for channel in range(channels):
        predictor = np.int64(load_u8(end + np.uint64(channel)))
        if predictor & ~at.LESS_GREEN >= at.NUM_PREDICTORS or (
            predictor & at.LESS_GREEN and (channels != 3 or channel == 1)
        ):
            return np.int64(-1)
    if itemsize == 2:
        words = u16_at(destination, capacity // 2)
        for x in range(words.shape[0]):
            words[x] = 0
    image = np.uint64(destination), height, width, itemsize
    fine = _decode_planes(state, foot + _U(at.FOOT_NBYTES - 8), raw, end, channels * itemsize, image)
    if not fine or not _has_ended(state, np.uint64(source), foot):
        return np.int64(-1)
    _undo(image, end, channels, shift)
    return capacity


@kernel
def _undo(image, predictors, channels, shift):
    """Turn differences into pixels; predictors: uint64 address of a byte for each channel."""
    destination, height, width, itemsize = image
    count, less_green = height * width, np.int64(0)
    for channel in range(channels):
        predictor = np.int64(load_u8(predictors + np.uint64(channel)))
        if predictor & at.LESS_GREEN:
            less_green |= 1 << channel
        predictor &= ~at.LESS_GREEN
        plane = destination + np.uint64(channel * count * itemsize)
        if itemsize == 1:
            undo_bytes(u8_at(plane, count), height, width, predictor)
        else:
            undo_words(u16_at(plane, count), height, width, predictor)
    if itemsize == 1:
        _add_green(u8_at(destination, channels * count), count, less_green, 1 << 7)
    else:
        words = u16_at(destination, channels * count)
        _add_green(words, count, less_green, 1 << 15)
        if shift:
            for x in range(words.shape[0]):  # vector instructions
                words[x] = words[x] << np.uint16(shift)


@kernel
def _add_green(image, count, channels, middle):
    for channel in (0, 2):
        if channels >> channel & 1:
            plane, green = part(image, channel * count, count), part(image, count, count)
            for x in range(count):  # vector instructions
                plane[x] = plane[x] + green[x] + middle
