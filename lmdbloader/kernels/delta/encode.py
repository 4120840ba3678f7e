"""Encodes pixels as payloads of `delta`: the predictor of each channel, a kind for each block, the streams.

Costs are integers, so that every machine makes the same bytes.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from lmdbloader.kernels.delta import layout as at
from lmdbloader.kernels.delta.blocks import KEYS, bits_of, cheapest, pairs_of, sort_blocks
from lmdbloader.kernels.delta.predict import estimate
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import (
    copy_8,
    load_u8,
    part,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
    trailing_zeros,
    u8_at,
    u16_at,
    u32_at,
)
from lmdbloader.kernels.runtime.symbols import memcpy

_U = np.uint64
_I64 = ir.IntType(64)
_RAW_BITS, _CODES, _COSTS = at.RAW_BITS, at.ENCODED, at.COSTS
# Codes that are written together: at most 44 bits after at most 7 that wait.
_AT_ONCE = 4
# Of a code in a stream: the bits of its length.
_LENGTH_BITS = 4
_BLOCK_NBYTES = at.SIDE * at.SIDE
# Working memory of a group: keys, places, counts, the differences of kinds, a block and its pairs.
_GROUP_NBYTES = at.GROUP + 8 * at.GROUP + 8 * KEYS + at.GROUP + 2 * _BLOCK_NBYTES


@intrinsic
def _store_bits(typing_context, address, word):
    """Store a uint64 at a uint64 address, its highest byte first."""

    def generate(context, builder, signature, arguments):
        address, word = arguments
        builder.store(builder.bswap(word), builder.inttoptr(address, _I64.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), generate


@kernel
def _padded_nbytes(nbytes, planes):
    """Return the most differences of planes, with those that fill up blocks; and a block more."""
    return 3 * nbytes + 15 * planes + _BLOCK_NBYTES


@kernel
def delta_room(nbytes, planes):
    """Return the bytes of working memory for an image of so many bytes, and of planes of bytes."""
    nbytes = min(nbytes, at.MOST_RAW_NBYTES)
    kinds = nbytes // 8 + planes
    return 5 * (nbytes + 2) + kinds + 3 * _padded_nbytes(nbytes, planes) + 2 * kinds + _GROUP_NBYTES + 512


@njit(inline="always")
def _differences(plane, height, width, predictor, line, out):
    """Write a plane (height x width,) less what it is predicted to be; all are uint8 or uint16, line has a row."""
    if predictor == at.NONE:
        for x in range(height * width):
            out[x] = plane[x]
        return
    for y in range(height):
        row, found = part(plane, y * width, width), part(out, y * width, width)
        above = part(plane, max(y - 1, 0) * width, width)
        if y == 0:
            for x in range(width):
                line[x] = 0
        elif predictor == at.LEFT:
            for x in range(width):
                line[x] = above[0]
        elif predictor == at.SMOOTH:
            line[0], line[width - 1] = (
                estimate(above, 0, width, predictor),
                estimate(above, width - 1, width, predictor),
            )
            _smooth_middle(part(above, 1, width), above, part(above, 2, width), part(line, 1, width), max(width - 2, 0))
        else:
            for x in range(width):
                line[x] = above[x]
        if predictor == at.UP and y:
            for x in range(width):
                found[x] = row[x] - line[x]
            continue
        found[0] = row[0] - line[0]
        _difference(part(row, 1, width), row, part(line, 1, width), line, part(found, 1, width), width - 1)


@njit(inline="always")
def _smooth_middle(here, left, right, out, count):
    for x in range(count):  # vector instructions
        out[x] = (np.int32(here[x]) + ((np.int32(left[x]) + np.int32(right[x])) >> 1) + 1) >> 1


@njit(inline="always")
def _difference(row, before, line, line_before, out, count):
    for x in range(count):  # vector instructions
        out[x] = (row[x] - line[x]) - (before[x] - line_before[x])


@kernel
def _differences_of_bytes(plane, height, width, predictor, line, out):
    _differences(plane, height, width, predictor, line, out)


@kernel
def _differences_of_words(plane, height, width, predictor, line, out, low, high):
    """Write the differences of uint16 as their lower bytes, signed numbers, and the rest."""
    _differences(plane, height, width, predictor, line, out)
    for x in range(height * width):
        value = out[x] + ((out[x] & 0x80) << 1)
        low[x] = value & 0xFF
        high[x] = value >> 8


@kernel
def _differ(values, height, width, itemsize, predictor, line, out, bytes_of):
    """Write the differences of a channel into bytes_of, plane after plane; see `_differences` for the others.

    values, line, out: uint64 addresses.
    """
    count = height * width
    if itemsize == 1:
        _differences_of_bytes(u8_at(values, count), height, width, predictor, u8_at(line, width), bytes_of)
    else:
        _differences_of_words(
            u16_at(values, count), height, width, predictor, u16_at(line, width), u16_at(out, count),
            part(bytes_of, 0, count), part(bytes_of, count, count),
        )  # fmt: skip


@njit(inline="always")
def _less(channel, green, values, count, middle):
    for x in range(count):  # vector instructions
        values[x] = channel[x] - green[x] - middle


@kernel
def _take(image, channel, count, itemsize, less_green, values):
    """Copy a channel of an image, less green if wanted, to the uint64 address `values`; return it."""
    source = np.uint64(image.ctypes.data)
    step = np.uint64(count * itemsize)
    here = source + np.uint64(channel) * step
    if not less_green:
        return here
    if itemsize == 1:
        _less(u8_at(here, count), u8_at(source + step, count), u8_at(values, count), count, 1 << 7)
    else:
        _less(u16_at(here, count), u16_at(source + step, count), u16_at(values, count), count, 1 << 15)
    return np.uint64(values)


@kernel
def _gather(values, width, rows, columns, block):
    """Copy `rows` rows of a block at a uint64 address to another one, one after the other, and zeros behind them."""
    if rows == at.SIDE and columns == at.SIDE:
        for y in range(at.SIDE):
            copy_8(values + np.uint64(y * width), block + _U(at.SIDE * y))
        return
    for k in range(at.SIDE):
        store_u64(block + _U(8 * k), _U(0))
    for y in range(rows):
        for x in range(columns):
            store_u8(block + np.uint64(y * columns + x), np.uint8(load_u8(values + np.uint64(y * width + x))))


@kernel
def _set_kinds(plane, height, width, kinds, block):
    """Write the kinds of a plane's blocks, and return about how many bits they take, times COST_UNIT.

    Args:
        plane: (height x width,) uint8 differences.
        kinds: uint8, filled.
        block: uint64 address of 64 bytes of working memory.
    """
    costs, values = np.uint64(_COSTS.ctypes.data), np.uint64(plane.ctypes.data)
    total, number = np.int64(0), np.int64(0)
    for y in range(0, height, at.SIDE):
        rows = min(at.SIDE, height - y)
        for x in range(0, width, at.SIDE):
            here, columns = values + np.uint64(y * width + x), min(at.SIDE, width - x)
            if rows == at.SIDE and columns == at.SIDE:
                found = cheapest(here, np.uint64(width), costs)
            else:
                _gather(here, width, rows, columns, block)
                found = cheapest(block, _U(at.SIDE), costs)
            kinds[number] = found & _U(15)
            total += np.int64(found >> _U(4))
            number += 1
    return total


@kernel
def _choose(image, channel, shape, rooms, differences, kinds):
    """Return the best predictor of a channel, with LESS_GREEN if that helps, and write its differences and kinds."""
    channels, height, width, itemsize = shape
    values, line, out, block = rooms
    count, blocks = height * width, kinds.shape[0] // itemsize
    best, least = np.int64(0), np.int64(1) << 62
    for less_green in range(2 if channels == 3 and channel != 1 else 1):
        source = _take(image, channel, count, itemsize, less_green, values)
        for predictor in range(at.NUM_PREDICTORS):
            _differ(source, height, width, itemsize, predictor, line, out, differences)
            cost = np.int64(0)
            for byte in range(itemsize):
                of_byte = part(differences, byte * count, count)
                cost += _set_kinds(of_byte, height, width, part(kinds, byte * blocks, blocks), block)
            if cost < least:
                best, least = predictor + at.LESS_GREEN * less_green, cost
    source = _take(image, channel, count, itemsize, best & at.LESS_GREEN, values)
    _differ(source, height, width, itemsize, best & ~at.LESS_GREEN, line, out, differences)
    for byte in range(itemsize):
        of_byte = part(differences, byte * count, count)
        _set_kinds(of_byte, height, width, part(kinds, byte * blocks, blocks), block)
    return best


@kernel
def _write_pairs(pairs, count, kind, codes, block, escape):
    """Write the codes of `count` pairs, the last one first.

    Args:
        pairs: uint64 address of them.
        kind: int64, 0 for the differences of kinds.
        codes: uint16, filled: for each pair its code, and then its length in _LENGTH_BITS.
        block: uint64 address of the values; escape: after the place of the first escape.

    Returns:
        The bits of the codes, and the uint64 address of the last escape.
    """
    nbits = np.int64(0)
    for k in range(count):
        entry = np.int64(_CODES[np.uint64(256 * kind) + np.uint64(load_u8(pairs + np.uint64(k)))])
        length = entry & 15
        codes[count - 1 - k] = entry >> 8 << _LENGTH_BITS | length
        nbits += length
        for half in range(2):
            if entry >> 4 + half & 1:
                escape -= _U(1)
                store_u8(escape, np.uint8(load_u8(block + np.uint64(2 * k + half))))
    return nbits, escape


@kernel
def _write_group(kinds, first, image, differences, group, codes, raw, escape):
    """Write the codes, raw bits and escapes of a group of blocks.

    Args:
        kinds: uint8 of the blocks.
        first: int64 number of the first one.
        image: (height, width, bytes of a value).
        differences: uint8, plane after plane.
        group: uint64 address of _GROUP_NBYTES.
        codes: uint16, filled, see `_write_pairs`.
        raw, escape: uint64 addresses of the next raw bits, and after the next escape.

    Returns:
        How many codes, their bits, and the addresses after the raw bits and of the last escape.
    """
    height, width, itemsize = image
    keys, places = u8_at(group, at.GROUP), u32_at(group + _U(at.GROUP), 2 * at.GROUP)
    counts, steps = u32_at(group + _U(9 * at.GROUP), 2 * KEYS), group + _U(9 * at.GROUP + 8 * KEYS)
    block = steps + _U(at.GROUP)
    pairs, count = block + _U(_BLOCK_NBYTES), kinds.shape[0]
    written = (count + at.PADDED - 1) // at.PADDED * at.STREAMS
    for k in range(written):
        store_u8(steps + np.uint64(k), np.uint8(0))
    before = np.int64(0)
    for k in range(count):
        step, before = (np.int64(kinds[k]) - before & 15) << 4 * (k & 1), np.int64(kinds[k])
        place = steps + np.uint64(k >> 1)
        store_u8(place, np.uint8(np.int64(load_u8(place)) | step))
    nbits, _ = _write_pairs(steps, written, 0, codes, block, block)
    sort_blocks(steps, first, count, image, keys, places, counts)
    for key in range(KEYS):
        kind = key & 15
        raw_bits, stop = np.int64(_RAW_BITS[np.uint64(kind)]), np.int64(counts[KEYS + key])
        for k in range(stop - np.int64(counts[key]), stop):
            place = np.int64(places[k]) >> 1
            channel = place // (height * width)
            rows, columns = min(at.SIDE, height - place // width % height), min(at.SIDE, width - place % width)
            padded = rows * columns + at.PADDED - 1 & -at.PADDED
            plane = channel * (itemsize - 1) + (np.int64(places[k]) & 1)
            values = np.uint64(differences.ctypes.data) + np.uint64(place + plane * height * width)
            _gather(values, width, rows, columns, block)
            if kind != at.ZERO and kind != at.RAW:
                pairs_of(block, np.uint64(raw_bits), pairs)
                here = part(codes, written, padded // 2)
                more, escape = _write_pairs(pairs, padded // 2, kind, here, block, escape)
                nbits, written = nbits + more, written + padded // 2
            for bit in range(raw_bits - 1, -1, -1):
                store_u64(raw, bits_of(block, np.uint64(bit)))
                raw += np.uint64(padded >> 3)
    return written, nbits, raw, escape


@kernel
def _write_stream(codes, first, target):
    """Write every eighth code from `first` on at a uint64 address; return the address after them."""
    bits, waiting, k = _U(0), _U(0), np.int64(first)
    while k < codes.shape[0]:
        for _ in range(min(_AT_ONCE, (codes.shape[0] - k + at.STREAMS - 1) // at.STREAMS)):
            entry = np.uint64(codes[np.uint64(k)])
            waiting += entry & _U(15)
            bits |= (entry >> _U(_LENGTH_BITS)) << (_U(64) - waiting & _U(63))
            k += at.STREAMS
        _store_bits(target, bits)
        target += waiting >> _U(3)
        bits <<= waiting & ~_U(7) & _U(63)
        waiting &= _U(7)
    return target + (waiting + _U(7) >> _U(3))


@kernel
def _shift(words, target):
    """Write uint16 without the bits that are 0 in all of them, if there are any; return how many."""
    bits = np.uint16(0)
    for x in range(words.shape[0]):  # vector instructions
        bits |= words[x]
    found = trailing_zeros(np.uint64(bits) | _U(0x8000))
    if found:
        for x in range(words.shape[0]):  # vector instructions
            target[x] = words[x] >> np.uint16(found)
    return np.int64(found)


@kernel
def delta_compress(image, channels, height, width, itemsize, out, most, work):
    """Encode one image.

    Args:
        image: uint8, the bytes of a (channels, height, width) array of uint8 or uint16.
        itemsize: Bytes of a value, 1 or 2.
        out: uint8, the payload; 16 bytes more than `most` at least.
        most: Its most bytes.
        work: uint8, `delta_room` bytes.

    Returns:
        The payload's bytes (int64); 0 if it has more, or the image is too large.
    """
    count, planes, nbytes = height * width, channels * itemsize, channels * height * width * itemsize
    if nbytes > at.MOST_RAW_NBYTES or nbytes < 1 or channels > 255:
        return np.int64(0)
    room, step = np.uint64(work.ctypes.data + 63) & ~_U(63), np.uint64(nbytes + 1 & ~1)
    of_plane = ((height + at.SIDE - 1) // at.SIDE) * ((width + at.SIDE - 1) // at.SIDE)
    blocks, most_padded = planes * of_plane, np.uint64(_padded_nbytes(nbytes, planes))
    group, room = room, room + _U(_GROUP_NBYTES)
    block, shift = group + _U(_GROUP_NBYTES - 2 * _BLOCK_NBYTES), np.int64(0)
    if itemsize == 2:
        shift = _shift(u16_at(np.uint64(image.ctypes.data), nbytes // 2), u16_at(room, nbytes // 2))
    source = u8_at(room, nbytes) if shift else image
    rooms = room + step, room + _U(2) * step, room + _U(3) * step, block
    differences, room = u8_at(room + _U(4) * step, nbytes), room + _U(5) * step
    codes = u16_at(room, np.int64(most_padded) // 2 + blocks)
    room += most_padded + np.uint64(2 * blocks)
    first_raw = raw = room
    first_escape = escape = room + _U(2) * most_padded
    kinds, predictors = u8_at(escape, blocks), escape + np.uint64(blocks)
    for channel in range(channels):
        of_channel = part(differences, channel * itemsize * count, itemsize * count)
        its_kinds = part(kinds, channel * itemsize * of_plane, itemsize * of_plane)
        found = _choose(source, channel, (channels, height, width, itemsize), rooms, of_channel, its_kinds)
        store_u8(predictors + np.uint64(channel), np.uint8(found))
    written, nbits = np.int64(0), np.int64(0)
    for first in range(0, blocks, at.GROUP):
        its_kinds = part(kinds, first, min(at.GROUP, blocks - first))
        here = part(codes, written, codes.shape[0] - written)
        more, more_bits, raw, escape = _write_group(
            its_kinds, first, (height, width, itemsize), differences, group, here, raw, escape
        )
        written, nbits = written + more, nbits + more_bits
    extra = np.int64(raw - first_raw) + np.int64(first_escape - escape) + channels + at.FOOT_NBYTES
    if nbits // 8 + at.STREAMS + extra > most:
        return np.int64(0)
    begin = target = np.uint64(out.ctypes.data)
    for k in range(at.STREAMS):
        end = _write_stream(part(codes, 0, written), k, target)
        store_u16(group + _U(2 * k), np.uint16(end - target))
        target = end
    store_u32(group + _U(2 * at.STREAMS), np.uint32(width))
    store_u16(group + _U(2 * at.STREAMS + 4), np.uint16(channels | itemsize << 8 | shift << 12))
    for source_of, size in (
        (first_raw, raw - first_raw), (escape, first_escape - escape), (predictors, np.uint64(channels)),
        (group, _U(at.FOOT_NBYTES)),
    ):  # fmt: skip
        memcpy(target, source_of, size)
        target += size
    return np.int64(target - begin)
