"""JPEG files whose coefficients are stored as Huffman-coded tokens: made, given back, and read tile by tile.

Such a payload has the bytes of the file before its coded ones, and those behind them; the packed lengths of the codes
of the seven streams; the bytes of each tile (uint16); the tiles; and a footer (all little-endian):

    tile:              for lanes 0 to 2 the bytes of each, less a quarter of the tile's (int8); four lanes, each with
                       its symbols of stream after stream; the rest of the largest values
    footer (16 bytes): uint32 bytes of the file, uint32 bytes behind the coded ones, uint16 MCUs from tile to tile in a
                       row, uint8 orientation (1 to 8, as in EXIF), a zero byte, the bytes "FAST"
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lmdbloader.kernels.codec_numbers import SEEK_FOOTER_NBYTES, TILE_ENTRIES
from lmdbloader.kernels.huffman import (
    LENGTHS_ROOM,
    MOST_BITS,
    PACKED_NBYTES,
    TABLE_SIZE,
    begin_lanes,
    code_lengths,
    codes_of,
    decode_lanes,
    encode_lane,
    end_lane,
    fill_table,
    pack_lengths,
    unpack_lengths,
)
from lmdbloader.kernels.jpeg import head as facts
from lmdbloader.kernels.jpeg import workspace as space
from lmdbloader.kernels.jpeg.bits import MOST_BLOCKS
from lmdbloader.kernels.jpeg.tokens import (
    CODED,
    COUNTS,
    DIFFERENCES,
    LARGE,
    REST,
    STREAMS,
    TOKENS,
    get_difference,
    is_large,
    read_token,
)
from lmdbloader.kernels.jpeg.workspace import codes_of_file, num_planned, places, prepare
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import i64_at, load_u8, load_u16, load_u32, part, store_u8, u8_at, u16_at
from lmdbloader.kernels.runtime.symbols import memcpy

_LANES_NBYTES = 3
# A tile has at most so many blocks, of at most so many symbols and as many bytes of the rest.
_MOST_TILE_NBYTES = space.TILE_BLOCKS * (2 + 64 + 64) * MOST_BITS // 8 + space.TILE_BLOCKS * 2 * 64
# The most bytes of a file for each byte of its payload: a code and its value have at most 27 bits, all of them stuffed.
_MOST_RATIO = 64


@kernel
def _num_blocks(head):
    """Return the blocks of an MCU for luminance and for colour."""
    luminance = head[facts.PER_COMPONENT + facts.ACROSS] * head[facts.PER_COMPONENT + facts.DOWN]
    return luminance, num_planned(head) // space.PLANNED - luminance


@kernel
def _count(values, which):
    """Return how many of some bytes are one."""
    found = 0
    for k in range(values.shape[0]):
        found += values[k] == which
    return found


@kernel
def _count_large(values):
    """Return how many tokens have a large value."""
    found = 0
    for k in range(values.shape[0]):
        found += is_large(values[k])
    return found


@kernel
def _sum(values):
    total = 0
    for k in range(values.shape[0]):
        total += values[k]
    return total


@kernel
def encode_tokens(data, step, work, tokens, out):
    """Write a file's payload, but for its footer, from its tokens.

    Args:
        data, step, work, tokens: As for `scan`, which has just read the file.
        out: uint8, room for RECODING_SLACK bytes more than the file.

    Returns:
        (the bytes written, or -1 if they do not fit or a tile is too long; bytes of the file behind its coded ones).
    """
    head = i64_at(work, facts.HEAD_WORDS)
    streams = i64_at(work + np.uint64(space.STREAMS_AT), STREAMS)
    codes = i64_at(work + np.uint64(space.CODES_AT), 256 * CODED)
    lengths = u8_at(work + np.uint64(space.LENGTHS_AT), 256 * CODED)
    room = i64_at(work + np.uint64(space.ROOM_AT), LENGTHS_ROOM)
    scan, behind = head[facts.SCAN], data.shape[0] - head[facts.END]
    memcpy(np.uint64(out.ctypes.data), np.uint64(data.ctypes.data), np.uint64(scan))
    memcpy(np.uint64(out.ctypes.data + scan), np.uint64(data.ctypes.data + head[facts.END]), np.uint64(behind))
    num = scan + behind
    if num + CODED * PACKED_NBYTES > out.shape[0]:
        return np.int64(-1), behind
    for k in range(CODED):
        counts, code = part(codes, 256 * k, 256), part(lengths, 256 * k, 256)
        for s in range(256):
            counts[s] = 0
        symbols = part(tokens[k], 0, streams[k] - np.int64(tokens[k].ctypes.data))
        for i in range(symbols.shape[0]):
            counts[symbols[i]] += 1
        code_lengths(counts, code, room)
        codes_of(code, counts)
        num += pack_lengths(code, part(out, num, PACKED_NBYTES))
    step *= TILE_ENTRIES
    luminance, color = _num_blocks(head)
    down, across = places(head)
    at, nbytes = part(room, 0, STREAMS), part(room, STREAMS, STREAMS)
    for k in range(STREAMS):
        at[k] = tokens[k].ctypes.data
    sizes, num = num, num + 2 * down * ((across + step - 1) // step)
    for _ in range(down):
        column = np.int64(0)
        while column < across:
            if num + _MOST_TILE_NBYTES > out.shape[0]:
                return np.int64(-1), behind
            mcus = min(step, across - column)
            column += step
            _measure(at, mcus * luminance, mcus * color, nbytes)
            size = _encode_tile(at, nbytes, lengths, codes, out.ctypes.data + np.uint64(num))
            if size < 0:
                return np.int64(-1), behind
            u16_at(out.ctypes.data + np.uint64(sizes), 1)[0] = size
            sizes += 2
            num += size
            for k in range(STREAMS):
                at[k] += nbytes[k]
    return np.int64(num), behind


@kernel
def _encode_tile(at, nbytes, lengths, codes, tile):
    """Write a tile; return its bytes, or -1 if its lanes differ too much.

    Args:
        at, nbytes: (STREAMS,) int64, address and bytes of its tokens in each stream.
        lengths, codes: (CODED * 256,), of each stream's code.
        tile: Address of the tile.
    """
    target = tile + np.uint64(_LANES_NBYTES)
    begin = target
    sizes = (np.int64(0), np.int64(0), np.int64(0))
    for lane in range(4):
        bits, count = np.uint64(0), np.int64(0)
        for k in range(CODED):
            symbols = u8_at(at[k], nbytes[k])
            bits, count, target = encode_lane(
                symbols, lane, part(lengths, 256 * k, 256), part(codes, 256 * k, 256), bits, count, target
            )
        target = end_lane(bits, count, target)
        if lane < 3:
            sizes = sizes[1], sizes[2], np.int64(target - begin)
        begin = target
    memcpy(target, np.uint64(at[REST]), np.uint64(nbytes[REST]))
    size = np.int64(target - tile) + nbytes[REST]
    for size_of_lane in sizes:
        differs = size_of_lane - size // 4
        if differs < -128 or differs > 127:
            return np.int64(-1)
        store_u8(tile, np.uint8(differs & 255))
        tile += np.uint64(1)
    return size


@kernel
def _measure(at, luminance, color, nbytes):
    """Find the bytes of each stream in a tile of so many blocks, whose tokens begin at addresses `at`."""
    nbytes[COUNTS], nbytes[COUNTS + 1] = luminance, color
    nbytes[DIFFERENCES], nbytes[DIFFERENCES + 1] = luminance, color
    nbytes[LARGE] = nbytes[REST] = 0
    for k in range(2):
        nbytes[TOKENS + k] = _sum(u8_at(at[COUNTS + k], nbytes[COUNTS + k]))
        nbytes[LARGE] += _count_large(u8_at(at[TOKENS + k], nbytes[TOKENS + k]))
        nbytes[REST] += 2 * _count(u8_at(at[DIFFERENCES + k], nbytes[DIFFERENCES + k]), 255)
    nbytes[REST] += 2 * _count(u8_at(at[LARGE], nbytes[LARGE]), 255)


@kernel
def open_tiles(payload, nbytes, work):
    """Read what comes before the tiles of a payload, and make the tables of its codes.

    Args:
        payload, nbytes: Address of the payload and its length, with a footer.
        work: Address of `jpeg_room` bytes, filled with what `prepare` fills too.

    Returns:
        (whether all went well, bytes of the file, MCUs from tile to tile, tiles in a row, address of the sizes, of the
        tiles and of their end, bytes behind the coded ones).
    """
    none, zero = np.uint64(0), np.int64(0)
    bad = (False, zero, zero, zero, none, none, none, zero)
    footer = nbytes - SEEK_FOOTER_NBYTES
    tail = payload + np.uint64(footer)
    file_nbytes, behind = np.int64(load_u32(tail)), np.int64(load_u32(tail + np.uint64(4)))
    step = np.int64(load_u16(tail + np.uint64(8)))
    data = u8_at(payload, footer)
    if prepare(data, work) != facts.FINE or step < 1:
        return bad
    head = i64_at(work, facts.HEAD_WORDS)
    down, across = places(head)
    tiles_across = (across + step - 1) // step
    at = head[facts.SCAN] + behind
    if step * (num_planned(head) // space.PLANNED) > space.TILE_BLOCKS or at > footer:
        return bad
    lengths = u8_at(work + np.uint64(space.LENGTHS_AT), 256)
    starts = i64_at(work + np.uint64(space.STARTS_AT), MOST_BITS + 1)
    for k in range(CODED):
        at = unpack_lengths(data, at, lengths)
        table = u16_at(work + np.uint64(space.CODES_AT + 2 * TABLE_SIZE * k), TABLE_SIZE)
        if at < 0 or not fill_table(lengths, table, starts):
            return bad
    tiles = at + 2 * tiles_across * down
    if tiles > footer:
        return bad
    return True, file_nbytes, step, tiles_across, payload + np.uint64(at), payload + np.uint64(tiles), tail, behind


@kernel
def sum_sizes(sizes, first, end):
    """Return the bytes of tiles `first` to `end`, whose uint16 sizes are at an address."""
    total = np.int64(0)
    values = u16_at(sizes + np.uint64(2 * first), end - first)
    for k in range(values.shape[0]):
        total += values[k]
    return total


@kernel
def decode_tile(tile, nbytes, mcus, work):
    """Decode the tokens of a tile into the scratch, where the addresses of its streams are at STREAMS_AT.

    Args:
        tile, nbytes: Address of the tile and its bytes, behind which a footer's can be read.
        mcus: MCUs in the tile, no more than from tile to tile.
        work: Address of `jpeg_room` bytes, which `open_tiles` has filled.

    Returns:
        Whether all went well.
    """
    head = i64_at(work, facts.HEAD_WORDS)
    luminance, color = _num_blocks(head)
    luminance, color = mcus * luminance, mcus * color
    streams = i64_at(work + np.uint64(space.STREAMS_AT), STREAMS)
    tables = work + np.uint64(space.CODES_AT)
    to = work + np.uint64(space.TILE_AT)
    if nbytes < _LANES_NBYTES:
        return False
    limit = tile + np.uint64(nbytes)
    a = tile + np.uint64(_LANES_NBYTES)
    b = a + np.uint64(nbytes // 4 + np.int64(np.int8(load_u8(tile))))
    c = b + np.uint64(nbytes // 4 + np.int64(np.int8(load_u8(tile + np.uint64(1)))))
    d = c + np.uint64(nbytes // 4 + np.int64(np.int8(load_u8(tile + np.uint64(2)))))
    if a > b or b > c or c > d or d > limit:
        return False
    lanes = begin_lanes(a, b, c, d)
    large, rest = np.int64(0), np.int64(0)
    for k in range(CODED):
        if k < TOKENS:
            n = color if k & 1 else luminance
        elif k < LARGE:
            counts = u8_at(streams[COUNTS + (k & 1)], color if k & 1 else luminance)
            n = np.int64(0)
            for i in range(counts.shape[0]):
                if counts[i] > 63:
                    return False
                n += counts[i]
        else:
            n = large
        streams[k] = to
        lanes = decode_lanes(lanes, limit, tables + np.uint64(2 * TABLE_SIZE * k), n, to)
        if k >= TOKENS and k < LARGE:
            large += _count_large(u8_at(to, n))
        elif k >= DIFFERENCES:
            rest += 2 * _count(u8_at(to, n), 255)
        to += np.uint64(n + 3)
    streams[REST] = limit - np.uint64(rest)
    return limit - np.uint64(rest) >= tile


@njit(inline="always")
def _put(bits, count, out, end, code):
    """Write a code, or a value, of its number of bits; return the writer behind it."""
    bits = bits << np.uint64(code >> np.int64(16)) | np.uint64(code & np.int64(0xFFFF))
    count += code >> np.int64(16)
    while count >= 8:
        count -= 8
        byte = np.uint8(bits >> np.uint64(count))
        if out < end:
            store_u8(out, byte)
            out += np.uint64(1)
        if byte == np.uint8(255) and out < end:
            store_u8(out, np.uint8(0))
            out += np.uint64(1)
    return bits, count, out


@njit(inline="always")
def _value_bits(value):
    """Return the bits that say a value, behind the code that has their number, with that above them."""
    size = abs(value)
    bits = np.int64(0)
    while size:
        size >>= 1
        bits += 1
    return bits << np.int64(16) | (value - (value < 0)) & ((np.int64(1) << bits) - 1)


@kernel
def restore(payload, nbytes, work, out):
    """Give back the file of a payload.

    Args:
        payload, nbytes: Address of the payload and its length, with a footer.
        work: Address of `jpeg_room` bytes.
        out: uint8, room for the file.

    Returns:
        Whether `out` was filled.
    """
    fine, file_nbytes, step, tiles_across, sizes, at, stop, behind = open_tiles(payload, nbytes, work)
    if not fine or file_nbytes != out.shape[0]:
        return False
    head = i64_at(work, facts.HEAD_WORDS)
    plan, planned = i64_at(work + np.uint64(space.PLAN_AT), MOST_BLOCKS * space.PLANNED), num_planned(head)
    streams = i64_at(work + np.uint64(space.STREAMS_AT), STREAMS)
    levels, before = i64_at(work + np.uint64(space.LEVELS_AT), 3), i64_at(work + np.uint64(space.TARGETS_AT), 3)
    down, across = places(head)
    scan, tail = head[facts.SCAN], file_nbytes - behind
    if scan > tail:
        return False
    codes = codes_of_file(work)
    memcpy(np.uint64(out.ctypes.data), payload, np.uint64(scan))
    target, end = np.uint64(out.ctypes.data + scan), np.uint64(out.ctypes.data + tail)
    memcpy(end, payload + np.uint64(scan), np.uint64(behind))
    bits, count, restarts, left = np.uint64(0), np.int64(0), np.int64(0), head[facts.RESTART]
    for c in range(3):
        before[c] = 0
    for number in range(tiles_across * down):
        first = number % tiles_across * step
        tile_nbytes = np.int64(load_u16(sizes + np.uint64(2 * number)))
        mcus = min(step, across - first)
        if at + np.uint64(tile_nbytes) > stop or not decode_tile(at, tile_nbytes, mcus, work):
            return False
        at += np.uint64(tile_nbytes)
        for c in range(3):
            levels[c] = 0
        for _ in range(mcus):
            if head[facts.RESTART]:
                if left == 0:
                    bits, count, target = _put(bits, count, target, end, np.int64(7) << 16 | 127)
                    if target + np.uint64(2) > end:
                        return False
                    store_u8(target, np.uint8(0xFF))
                    store_u8(target + np.uint64(1), np.uint8(0xD0 + (restarts & 7)))
                    target += np.uint64(2)
                    bits, count, left = np.uint64(0), np.int64(0), head[facts.RESTART]
                    restarts += 1
                    for c in range(3):
                        before[c] = 0
                left -= 1
            for b in range(0, planned, space.PLANNED):
                c = plan[b + space.OF]
                p = facts.PER_COMPONENT + 5 * c
                bits, count, target = _put_block(
                    bits, count, target, end, streams, min(c, 1), levels, before, c,
                    part(codes, 256 * head[p + facts.FIRST_TABLE], 256), part(codes, 256 * head[p + facts.TABLE], 256),
                )  # fmt: skip
    bits, count, target = _put(bits, count, target, end, np.int64(7) << 16 | 127)
    return target == end


@kernel
def _put_block(bits, count, out, end, streams, k, levels, before, c, first_codes, codes):
    """Write the next block of a tile with the codes of the file; return the writer behind it."""
    difference, rest = get_difference(np.uint64(streams[DIFFERENCES + k]), np.uint64(streams[REST]))
    streams[DIFFERENCES + k] += 1
    levels[c] += difference
    value = _value_bits(levels[c] - before[c])
    before[c] = levels[c]
    bits, count, out = _put(bits, count, out, end, first_codes[value >> 16 & 15])
    bits, count, out = _put(bits, count, out, end, value)
    tokens, large = np.uint64(streams[TOKENS + k]), np.uint64(streams[LARGE])
    position = 0
    number = np.int64(load_u8(np.uint64(streams[COUNTS + k])))
    streams[COUNTS + k] += 1
    for _ in range(number):
        zeros, found, large, rest = read_token(load_u8(tokens), large, rest)
        tokens += np.uint64(1)
        value = _value_bits(np.int64(found))
        bits, count, out = _put(bits, count, out, end, codes[np.int64(zeros) << 4 | value >> 16 & 15])
        bits, count, out = _put(bits, count, out, end, value)
        position += np.int64(zeros) + 1
    if position < 63:
        bits, count, out = _put(bits, count, out, end, codes[0])
    streams[TOKENS + k], streams[LARGE], streams[REST] = tokens, large, rest
    return bits, count, out


@kernel
def restored_nbytes(payload, nbytes):
    """Return the bytes of the file in a payload; -1 if it cannot have as many."""
    if nbytes < SEEK_FOOTER_NBYTES:
        return np.int64(-1)
    found = np.int64(load_u32(payload + np.uint64(nbytes - SEEK_FOOTER_NBYTES)))
    return found if found <= _MOST_RATIO * nbytes else np.int64(-1)
