"""Encodes pixels as payloads of `delta`: the predictor of each channel, a Huffman code for each plane, the streams.

Entropies are compared with our own logarithm, so that every machine makes the same bytes.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from lmdbloader.kernels.delta import layout as at
from lmdbloader.kernels.delta.predict import estimate
from lmdbloader.kernels.huffman import measure, merge
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.exponential import log
from lmdbloader.kernels.runtime.memory import i64_at, part, store_u16, store_u32, u8_at, u16_at, u32_at
from lmdbloader.kernels.runtime.symbols import memcpy

_U = np.uint64
_I64 = ir.IntType(64)
_NUMBERS, _SYMBOLS = at.NUMBERS, at.SYMBOLS
# Bytes are counted in so many histograms in turn: the same one twice in a row would wait for itself.
_TURNS = 4
# Symbols that are written together: at most 44 bits after at most 7 that wait.
_AT_ONCE = 4
# Of an entry of a table of codes: the bits of its length.
_LENGTH_BITS = 4
# Nodes of a tree of 256 symbols, 8 bytes each: counts, parents, order, depths.
_TREE_NBYTES = 8 * (512 + 512 + 256 + 512)
_COUNTS_NBYTES = 4 * 256 * _TURNS
# The most bytes of a predictor and a table, each symbol with a run of its own.
_TABLE_NBYTES = 264


@intrinsic
def _store_bits(typing_context, address, word):
    """Store a uint64 at a uint64 address, its highest byte first."""

    def generate(context, builder, signature, arguments):
        address, word = arguments
        builder.store(builder.bswap(word), builder.inttoptr(address, _I64.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), generate


@kernel
def delta_room(nbytes, planes):
    """Return the bytes of working memory for an image of so many bytes, and of planes of bytes."""
    return 4 * nbytes + planes * (4 * 256 + _TABLE_NBYTES) + 256 + _TREE_NBYTES + _COUNTS_NBYTES + 64


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
def _count(data, counts):
    """Write how often each byte occurs in the first 256 of `counts`, uint32."""
    for k in range(256 * _TURNS):
        counts[k] = 0
    whole = data.shape[0] // _TURNS * _TURNS
    for x in range(0, whole, _TURNS):
        for k in range(_TURNS):
            counts[np.uint64(256 * k) + np.uint64(data[x + k])] += np.uint32(1)
    for x in range(whole, data.shape[0]):
        counts[np.uint64(data[x])] += np.uint32(1)
    for k in range(256):
        for turn in range(1, _TURNS):
            counts[k] += counts[256 * turn + k]


@kernel
def _cost(counts, total):
    """Return total x the entropy of counts, in nats."""
    found = total * log(np.float64(total))
    for k in range(256):
        if counts[k] > 1:
            found -= counts[k] * log(np.float64(counts[k]))
    return found


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
def _choose(image, channel, shape, rooms, counts, differences):
    """Return the best predictor of a channel, with LESS_GREEN if that helps, and write its differences."""
    channels, height, width, itemsize = shape
    values, line, out = rooms
    count = height * width
    best, least = np.int64(0), np.inf
    for less_green in range(2 if channels == 3 and channel != 1 else 1):
        source = _take(image, channel, count, itemsize, less_green, values)
        for predictor in range(at.NUM_PREDICTORS):
            _differ(source, height, width, itemsize, predictor, line, out, differences)
            cost = 0.0
            for byte in range(itemsize):
                _count(part(differences, byte * count, count), counts)
                cost += _cost(counts, count)
            if cost < least:
                best, least = predictor + at.LESS_GREEN * less_green, cost
    source = _take(image, channel, count, itemsize, best & at.LESS_GREEN, values)
    _differ(source, height, width, itemsize, best & ~at.LESS_GREEN, line, out, differences)
    return best


@kernel
def _sort(counts, order):
    """Write the numbers of the symbols that occur, the rarest first; return how many."""
    used = np.int64(0)
    for number in range(255, -1, -1):  # mostly sorted already
        count = counts[_SYMBOLS[number]]
        if count:
            k = used
            while k > 0 and counts[_SYMBOLS[order[k - 1]]] > count:
                order[k] = order[k - 1]
                k -= 1
            order[k] = number
            used += 1
    return used


@kernel
def _make_code(counts, tree, codes, lengths):
    """Make a code for a plane.

    Args:
        counts: (256,) uint32 of each byte.
        tree: Room for int64.
        codes: (256,) uint32, filled: for each byte its code, and then its length in _LENGTH_BITS.
        lengths: (256,) uint8, filled: the length of each symbol by number, 0 if it does not occur; ALONE.

    Returns:
        The bits of all its codes.
    """
    weights, parents = part(tree, 0, 512), part(tree, 512, 512)
    order, depths = part(tree, 1024, 256), part(tree, 1280, 512)
    for number in range(256):
        lengths[number] = 0
        codes[number] = 0
    used = _sort(counts, order)
    if used == 1:
        lengths[order[0]] = at.ALONE
        return np.int64(0)
    for k in range(used):
        weights[k] = counts[_SYMBOLS[order[k]]]
    merge(used, weights, parents)
    of_length = part(tree, 0, at.MOST_BITS + 1)  # the weights have done their work
    measure(used, parents, depths, of_length, at.MOST_BITS)
    k, nbits = np.int64(0), np.int64(0)
    for length in range(at.MOST_BITS, 0, -1):
        for _ in range(of_length[length]):
            lengths[order[k]] = length
            nbits += length * np.int64(counts[_SYMBOLS[order[k]]])
            k += 1
    code = np.int64(0)
    for length in range(1, at.MOST_BITS + 1):
        for number in range(256):
            if lengths[number] == length:
                codes[_SYMBOLS[number]] = (code << _LENGTH_BITS) | length
                code += 1
        code <<= 1
    return nbits


@kernel
def _write_table(lengths, out, place):
    """Write a table at out[place]; return the place after it."""
    end = np.int64(256)
    while lengths[end - 1] == 0:
        end -= 1
    number = np.int64(0)
    while number < end:
        run = np.int64(1)
        while number + run < end and run < at.MOST_RUN and lengths[number + run] == lengths[number]:
            run += 1
        out[place] = np.int64(lengths[number]) | (run - 1) << 4
        place += 1
        number += run
    return place


@kernel
def _write_stream(differences, count, planes, first, stop, codes, target):
    """Write symbols first ... stop - 1 of each plane at a uint64 address; return the address after them."""
    bits, waiting = _U(0), _U(0)
    for plane in range(planes):
        data, table = part(differences, plane * count, count), part(codes, 256 * plane, 256)
        x = first
        while x < stop:
            for _ in range(min(_AT_ONCE, stop - x)):
                entry = np.uint64(table[np.uint64(data[np.uint64(x)])])
                waiting += entry & _U(15)
                bits |= (entry >> _U(_LENGTH_BITS)) << (_U(64) - waiting & _U(63))
                x += 1
            _store_bits(target, bits)
            target += waiting >> _U(3)
            bits <<= waiting & ~_U(7) & _U(63)
            waiting &= _U(7)
    return target + (waiting + _U(7) >> _U(3))


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
    room = np.uint64(work.ctypes.data + 15) & ~_U(15)
    tree, counts = i64_at(room, _TREE_NBYTES // 8), u32_at(room + _U(_TREE_NBYTES), 256 * _TURNS)
    room += _U(_TREE_NBYTES + _COUNTS_NBYTES)
    codes, tables = u32_at(room, 256 * planes), u8_at(room + np.uint64(1024 * planes), _TABLE_NBYTES * planes)
    room += np.uint64((1024 + _TABLE_NBYTES) * planes)
    lengths, step = u8_at(room, 256), np.uint64(nbytes + 1 & ~1)
    room += _U(256)
    rooms = room, room + step, room + _U(2) * step
    differences = u8_at(room + _U(3) * step, nbytes)
    nbits, size = np.int64(0), np.int64(0)
    for channel in range(channels):
        of_channel = part(differences, channel * itemsize * count, itemsize * count)
        tables[size] = _choose(image, channel, (channels, height, width, itemsize), rooms, counts, of_channel)
        size += 1
        for plane in range(channel * itemsize, (channel + 1) * itemsize):
            _count(part(differences, plane * count, count), counts)
            nbits += _make_code(counts, tree, part(codes, 256 * plane, 256), lengths)
            size = _write_table(lengths, tables, size)
    if nbits // 8 + at.STREAMS + size + at.FOOT_NBYTES > most:
        return np.int64(0)
    foot = np.uint64(tree.ctypes.data)  # the codes are made
    begin = target = np.uint64(out.ctypes.data)
    share = count // at.STREAMS
    for k in range(at.STREAMS):
        stop = (k + 1) * share if k < at.STREAMS - 1 else count
        end = _write_stream(differences, count, planes, k * share, stop, codes, target)
        store_u16(foot + _U(2 * k), np.uint16(end - target))
        target = end
    memcpy(target, np.uint64(tables.ctypes.data), np.uint64(size))
    store_u32(foot + _U(2 * at.STREAMS), np.uint32(width))
    store_u16(foot + _U(2 * at.STREAMS + 4), np.uint16(channels | itemsize << 8))
    target += np.uint64(size)
    memcpy(target, foot, _U(at.FOOT_NBYTES))
    return np.int64(target - begin) + at.FOOT_NBYTES
