"""JPEG files whose coefficients are stored as tokens (`tokens`), tile by tile: made, opened, decoded, and given back.

Such a payload has the bytes of the file but for its coded ones; the packed lengths of the codes;
for each tile the bytes of its streams (uint16); the tiles; and a footer (all little-endian):

    codes:             of luminance two, and of color one if there is any
    tile:              a stream of the blocks of luminance, then one of color, in the order of the file; first
                       coefficients begin at 0, and behind the last block is the token of another one
    footer (16 bytes): uint32 bytes of the file, uint32 bytes behind the first coded ones, uint16 MCUs from tile to
                       tile in a row, uint8 orientation (1 to 8, as in EXIF), a zero byte, the bytes "FAST"
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lmdbloader.kernels.codec_numbers import SEEK_FOOTER_NBYTES
from lmdbloader.kernels.jpeg import head as facts
from lmdbloader.kernels.jpeg import workspace as space
from lmdbloader.kernels.jpeg.bits import MOST_BLOCKS, has_ones
from lmdbloader.kernels.jpeg.codes import CODE_ROOM, PACKED_NBYTES, fill_table, make_code, pack_lengths, unpack_lengths
from lmdbloader.kernels.jpeg.tokens import (
    BLOCK_TOKENS,
    CODES,
    MOST_BITS,
    NUM_OFFSETS,
    NUM_TOKENS,
    SAME,
    SLACK_BLOCKS,
    TABLE_NBYTES,
    TILE_BLOCKS,
    decode_jobs,
    fill_offsets,
    find_others,
    is_behind,
    put_block,
)
from lmdbloader.kernels.jpeg.workspace import codes_of_file, num_planned, places, prepare
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import (
    i64_at,
    leading_zeros,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    part,
    reversed_u64,
    store_u8,
    store_u16,
    store_u64,
    trailing_zeros,
    u8_at,
    u16_at,
    u64_at,
)
from lmdbloader.kernels.runtime.symbols import memcpy

_U = np.uint64
# Facts of a payload's tiles: bytes of the file, and of those behind the first coded ones; MCUs from tile to tile,
# tiles in a row; streams of a tile; blocks of an MCU of luminance and of color; addresses of the sizes, the tiles, the
# footer.
FILE_NBYTES, BEHIND, STEP, ACROSS, STREAMS, BLOCKS, SIZES, TILES, FOOTER = 0, 1, 2, 3, 4, 5, 7, 8, 9
# Tiles have so many pixels across, or as many times more as it takes for so many bytes each.
_TILE_PIXELS, _TILE_NBYTES = 64, 280
# The most bytes of a file for each byte of its payload.
_MOST_RATIO = 64


@kernel
def encode_tokens(data, blocks, work, widening, tokens, out):
    """Write a file's payload, but for its footer, from its coefficients.

    Args:
        data, blocks, work: As for `scan`, which has just read the file.
        widening: How many times as wide as usual the tiles are.
        tokens: uint16, room for the tokens of the whole file.
        out: uint8, room for the payload.

    Returns:
        (the bytes written, or -1 if there is not enough room; those of the file behind its first coded ones; MCUs from
        tile to tile).
    """
    head = i64_at(work, facts.HEAD_WORDS)
    room = i64_at(work + _U(space.CODE_ROOM_AT), CODE_ROOM)
    lengths = u8_at(work + _U(space.LENGTHS_AT), CODES * NUM_TOKENS)
    codes = i64_at(work + _U(space.TOKEN_TABLES_AT), CODES * NUM_TOKENS)
    scans = i64_at(work + _U(space.SCANS_AT), 3 + 2 * space.MOST_SCANS)
    coded = np.int64(0)
    for k in range(1, 2 * scans[0] + 1, 2):
        coded += scans[k + 1] - scans[k]
    scan = head[facts.SCAN]
    behind = data.shape[0] - coded - scan
    down, across = places(head)
    planned = num_planned(head) // space.PLANNED
    luminance = head[facts.PER_COMPONENT + facts.ACROSS] * head[facts.PER_COMPONENT + facts.DOWN]
    streams = 2 if planned > luminance else 1
    num_codes = streams + 1
    step = max(1, _TILE_PIXELS // (8 * head[facts.ACROSS_MOST]))
    num_tiles = down * ((across + step - 1) // step)
    wider = widening * max(1, -(-_TILE_NBYTES * num_tiles // coded))
    step *= max(1, min(wider, TILE_BLOCKS // (step * planned)))
    num_tiles = down * ((across + step - 1) // step)
    if scan + behind + num_codes * PACKED_NBYTES + 2 * streams * num_tiles > out.shape[0]:
        return np.int64(-1), behind, step
    for k in range(codes.shape[0]):
        codes[k] = 0
    num, done = np.int64(0), np.int64(0)
    for k in range(1, 2 * scans[0] + 3, 2):
        end = scans[k] if k <= 2 * scans[0] else data.shape[0]
        memcpy(np.uint64(out.ctypes.data + num), np.uint64(data.ctypes.data + done), np.uint64(end - done))
        num, done = num + end - done, scans[k + 1]
    # The tokens of each stream, with their number before them.
    total = np.int64(0)
    for row in range(down):
        column = np.int64(0)
        while column < across:
            mcus = min(step, across - column)
            if total + planned * mcus * BLOCK_TOKENS + 6 > tokens.shape[0]:
                return np.int64(-1), behind, step
            for stream in range(streams):
                first, last = (luminance, planned) if stream else (np.int64(0), luminance)
                begin = total
                total += 2
                at = np.uint64(blocks) + np.uint64(128 * (row * across + column) * planned)
                total = _put_stream(at, mcus, planned, first, last, tokens, total)
                store_u16(tokens.ctypes.data + _U(2 * begin), np.uint16(total - begin - 2))
                store_u16(tokens.ctypes.data + _U(2 * begin + 2), np.uint16((total - begin - 2) >> 16))
                # From here on with the number of their code.
                code = np.int64(2 * NUM_TOKENS if stream else 0)
                found = part(tokens, begin + 2, total - begin - 2)
                for k in range(found.shape[0]):
                    token = np.int64(found[k])
                    found[k] = code + token
                    codes[code + token] += 1
                    code = np.int64(2 * NUM_TOKENS) if stream else NUM_TOKENS * (1 - is_behind(token))
            column += step
    for k in range(num_codes):
        code, length = part(codes, k * NUM_TOKENS, NUM_TOKENS), part(lengths, k * NUM_TOKENS, NUM_TOKENS)
        make_code(code, length, room)
        num += pack_lengths(length, part(out, num, PACKED_NBYTES))
    sizes, num = num, num + 2 * streams * num_tiles
    at = np.int64(0)
    for _ in range(streams * num_tiles):
        count = np.int64(tokens[at]) | np.int64(tokens[at + 1]) << 16
        nbytes = _write_stream(part(tokens, at + 2, count), codes, part(out, num, out.shape[0] - num))
        if nbytes < 0 or nbytes > 0xFFFF:
            return np.int64(-1), behind, step
        store_u16(out.ctypes.data + np.uint64(sizes), np.uint16(nbytes))
        sizes, num, at = sizes + 2, num + nbytes, at + 2 + count
    return np.int64(num), behind, step


@njit(inline="always")
def put(bits, count, at, found, nbits, value):
    """Write a code and the bits of the value behind it; return the writer behind them.

    Args:
        bits, count: The last bits, and how many are not in whole bytes yet.
        at: Address where these go; eight bytes are written.
        found: The code, with its length above 16 bits.
        nbits, value: How many bits the value has, and these.
    """
    length = (found >> 16) + nbits
    bits = bits << np.uint64(length) | np.uint64((found & 0xFFFF) << nbits | value)
    count += length
    store_u64(at, reversed_u64(bits << np.uint64(64 - count)))
    return bits, count & 7, at + np.uint64(count >> 3)


@kernel
def _put_stream(at, mcus, planned, first, last, tokens, total):
    """Write the tokens of blocks `first` to `last` of some MCUs, and of another block; return the number of all."""
    before = (np.int64(0), np.int64(0))
    for _ in range(mcus):
        for b in range(first, last):
            block = at + _U(128 * b)
            level = np.int64(np.int16(load_u16(block)))
            total = put_block(block, level - before[0], tokens, total)
            # Two components of color take turns.
            before = (before[1], level) if first else (level, level)
        at += np.uint64(128 * planned)
    tokens[total] = SAME
    return total + 1


@kernel
def _write_stream(tokens, codes, out):
    """Write the codes of a stream; return their bytes, -1 without enough room."""
    if out.shape[0] < 2 * tokens.shape[0] + 8:
        return np.int64(-1)
    begin = np.uint64(out.ctypes.data)
    bits, count, at = _U(0), np.int64(0), begin
    for k in range(tokens.shape[0]):
        found = codes[tokens[k]]
        bits, count, at = put(bits, count, at, found, np.int64(0), np.int64(0))
    return np.int64(at - begin) + (count + 7 >> 3)


@kernel
def open_tiles(payload, nbytes, work, in_zigzag):
    """Read what comes before the tiles of a payload, and make the tables of its codes.

    Args:
        payload, nbytes: Address of the payload and its length, with a footer.
        work: Address of `jpeg_room` bytes, filled with what `prepare` fills too, and the facts of the tiles.
        in_zigzag: Whether blocks will be in that order, and tables of the file's codes are needed.

    Returns:
        Whether all went well.
    """
    footer = nbytes - SEEK_FOOTER_NBYTES
    tail = payload + np.uint64(footer)
    data = u8_at(payload, footer)
    step = np.int64(load_u16(tail + _U(8)))
    status = prepare(data, work, in_zigzag)
    if (status != facts.FINE and status != facts.PROGRESSIVE) or step < 1:
        return False
    head, tiles = i64_at(work, facts.HEAD_WORDS), i64_at(work + _U(space.TILES_AT), 16)
    down, across = places(head)
    planned = num_planned(head) // space.PLANNED
    luminance = head[facts.PER_COMPONENT + facts.ACROSS] * head[facts.PER_COMPONENT + facts.DOWN]
    tiles[FILE_NBYTES], tiles[BEHIND] = np.int64(load_u32(tail)), np.int64(load_u32(tail + _U(4)))
    tiles[STEP], tiles[ACROSS] = step, (across + step - 1) // step
    tiles[BLOCKS], tiles[BLOCKS + 1] = luminance, planned - luminance
    tiles[STREAMS] = 2 if planned > luminance else 1
    at = head[facts.SCAN] + tiles[BEHIND]
    if step * planned > TILE_BLOCKS or at > footer:
        return False
    fill_offsets(u16_at(work + _U(space.OFFSETS_AT), NUM_OFFSETS), step * planned, in_zigzag)
    lengths = u8_at(work + _U(space.LENGTHS_AT), NUM_TOKENS)
    starts = i64_at(work + _U(space.CODE_ROOM_AT), MOST_BITS + 1)
    for k in range(tiles[STREAMS] + 1):
        at = unpack_lengths(data, at, lengths)
        # The table of the first code is the second: a code's bit leads there.
        table = work + _U(space.TOKEN_TABLES_AT + TABLE_NBYTES * (1 - k if k < 2 else 2))
        if at < 0 or not fill_table(lengths, table, k < 2, starts):
            return False
    tiles[SIZES] = payload + np.uint64(at)
    at += 2 * tiles[STREAMS] * tiles[ACROSS] * down
    tiles[TILES], tiles[FOOTER] = payload + np.uint64(at), tail
    return at <= footer


@kernel
def tiles_at_once(tiles):
    """Return how many tiles `decode_tiles` decodes."""
    return min(space.MOST_JOBS // 2, space.ROOM_BLOCKS // _tile_room(tiles))


@kernel
def _tile_room(tiles):
    return tiles[STEP] * (tiles[BLOCKS] + tiles[BLOCKS + 1]) + 2 * SLACK_BLOCKS


@kernel
def blocks_of(work, number):
    """Return the addresses of the blocks of luminance and of color of the tile of that number that was decoded."""
    tiles = i64_at(work + _U(space.TILES_AT), 16)
    first = work + np.uint64(space.TILE_BLOCKS_AT + 128 * (1 + number * _tile_room(tiles)))
    return first, first + np.uint64(128 * (tiles[STEP] * tiles[BLOCKS] + SLACK_BLOCKS))


@kernel
def decode_tiles(work, window, begin, count, known, at):
    """Decode tiles into the scratch.

    Args:
        work: Address of `jpeg_room` bytes, which `open_tiles` has filled.
        window: (row, column, columns) of tiles.
        begin, count: The first in the window, by its number, and how many: at most `tiles_at_once`.
        known, at: Number of a tile of the payload and its address; at first 0 and TILES.

    Returns:
        (whether all went well, number and address of the tile behind them).
    """
    head, tiles = i64_at(work, facts.HEAD_WORDS), i64_at(work + _U(space.TILES_AT), 16)
    _, across = places(head)
    row, column, columns = window
    streams, step, end = tiles[STREAMS], tiles[STEP], np.uint64(tiles[FOOTER])
    tables = work + _U(space.TOKEN_TABLES_AT)
    jobs_at = work + _U(space.JOBS_AT)
    jobs = u64_at(jobs_at, 4 * (space.MOST_JOBS + 1))
    cleared = u64_at(work + _U(space.TILE_BLOCKS_AT), 16 * (1 + count * _tile_room(tiles)))
    for k in range(cleared.shape[0]):
        cleared[k] = 0
    for number in range(count):
        tile = (row + (begin + number) // columns) * tiles[ACROSS] + column + (begin + number) % columns
        at += np.uint64(sum_sizes(tiles, known, tile))
        mcus = min(step, across - tile % tiles[ACROSS] * step)
        first, color = blocks_of(work, number)
        for stream in range(streams):
            job = 4 * (number + stream * count)
            jobs[job] = at
            jobs[job + 1] = (color if stream else first) - _U(128)
            jobs[job + 2] = 64 * (1 + mcus * tiles[BLOCKS + stream])
            jobs[job + 3] = tables + _U(TABLE_NBYTES if stream else 0)
            at += np.uint64(load_u16(np.uint64(tiles[SIZES] + 2 * (tile * streams + stream))))
        known = tile + 1
        if at > end:
            return False, known, at
    job = 4 * streams * count
    jobs[job], jobs[job + 1] = end, work + _U(space.TILE_BLOCKS_AT + 128 * (1 + space.ROOM_BLOCKS))
    jobs[job + 2], jobs[job + 3] = 64, tables
    if not decode_jobs(jobs_at, streams * count, work + _U(space.OFFSETS_AT), end + _U(SEEK_FOOTER_NBYTES - 8)):
        return False, known, at
    for number in range(count):
        tile = column + (begin + number) % columns
        mcus = min(step, across - tile * step)
        first, color = blocks_of(work, number)
        _add_up(first, mcus * tiles[BLOCKS], _U(128))
        if streams > 1:
            _add_up(color, mcus, _U(256))
            _add_up(color + _U(128), mcus, _U(256))
    return True, known, at


@njit(inline="always")
def _add_up(block, count, step):
    """Turn the differences of first coefficients into these."""
    level = np.uint16(0)
    for _ in range(count):
        level = np.uint16(level + load_u16(block))
        store_u16(block, level)
        block += step


@kernel
def sum_sizes(tiles, first, end):
    """Return the bytes of tiles `first` to `end`."""
    total = np.int64(0)
    sizes = u16_at(np.uint64(tiles[SIZES] + 2 * tiles[STREAMS] * first), tiles[STREAMS] * (end - first))
    for k in range(sizes.shape[0]):
        total += sizes[k]
    return total


@njit(inline="always")
def bits_of(value):
    """Return how many bits say a value, behind the code that has their number, and these."""
    nbits = 64 - np.int64(leading_zeros(np.uint64(abs(value))))
    return nbits, (value - (value < 0)) & ((np.int64(1) << nbits) - 1)


@kernel
def _put_block(bits, count, at, block, difference, first_codes, codes):
    """Write a block with the codes of the file; return the writer behind it."""
    nbits, value = bits_of(difference)
    bits, count, at = put(bits, count, at, first_codes[nbits], nbits, value)
    left, before, zero = find_others(block), np.int64(0), np.int64(0)
    while left:
        k = np.int64(trailing_zeros(left))
        left &= left - _U(1)
        zeros = k - before - 1
        before = k
        while zeros >= 16:
            bits, count, at = put(bits, count, at, codes[0xF0], zero, zero)
            zeros -= 16
        nbits, value = bits_of(np.int64(np.int16(load_u16(block + np.uint64(2 * k)))))
        bits, count, at = put(bits, count, at, codes[(zeros << 4 | nbits) & 255], nbits, value)
    if before < 63:
        bits, count, at = put(bits, count, at, codes[0], zero, zero)
    return bits, count, at


@kernel
def end_codes(bits, count, at, begin, out, end):
    """Write ones up to the end of a byte; copy all bytes, stuffed, to `out`; return the address behind them."""
    more = -count & 7
    if more:
        store_u8(at, np.uint8(bits << np.uint64(more) | (_U(1) << np.uint64(more)) - _U(1)))
        at += _U(1)
    while begin < at:
        while begin + _U(8) <= at and out + _U(8) <= end and not has_ones(load_u64(begin)):
            store_u64(out, load_u64(begin))
            begin += _U(8)
            out += _U(8)
        for _ in range(min(at - begin, _U(8))):
            byte = load_u8(begin)
            begin += _U(1)
            if out < end:
                store_u8(out, byte)
                out += _U(1)
            if byte == np.uint8(255) and out < end:
                store_u8(out, np.uint8(0))
                out += _U(1)
    return out


@kernel
def restore(payload, nbytes, work, out):
    """Give back the file of a payload, which is not progressive.

    Args:
        payload, nbytes: Address of the payload and its length, with a footer.
        work: Address of `jpeg_room` bytes for the longer one of payload and file.
        out: uint8, room for the file.

    Returns:
        Whether `out` was filled.
    """
    tiles = i64_at(work + _U(space.TILES_AT), 16)
    if not open_tiles(payload, nbytes, work, True) or tiles[FILE_NBYTES] != out.shape[0]:
        return False
    head = i64_at(work, facts.HEAD_WORDS)
    plan, planned = i64_at(work + _U(space.PLAN_AT), MOST_BLOCKS * space.PLANNED), num_planned(head)
    before = i64_at(work + _U(space.LEVELS_AT), 3)
    down, across = places(head)
    scan, tail = head[facts.SCAN], tiles[FILE_NBYTES] - tiles[BEHIND]
    if scan > tail:
        return False
    codes = codes_of_file(work)
    memcpy(np.uint64(out.ctypes.data), payload, np.uint64(scan))
    target, end = np.uint64(out.ctypes.data + scan), np.uint64(out.ctypes.data + tail)
    memcpy(end, payload + np.uint64(scan), np.uint64(tiles[BEHIND]))
    begin = work + _U(space.FIXED_NBYTES)
    bits, count, coded, restarts, left = _U(0), np.int64(0), begin, np.int64(0), head[facts.RESTART]
    known, at, at_once, total = np.int64(0), np.uint64(tiles[TILES]), tiles_at_once(tiles), tiles[ACROSS] * down
    for c in range(3):
        before[c] = 0
    for tile in range(total):
        if tile % at_once == 0:
            window, ready = (np.int64(0), np.int64(0), tiles[ACROSS]), min(at_once, total - tile)
            fine, known, at = decode_tiles(work, window, tile, ready, known, at)
            if not fine:
                return False
        first, color = blocks_of(work, tile % at_once)
        for _ in range(min(tiles[STEP], across - tile % tiles[ACROSS] * tiles[STEP])):
            if head[facts.RESTART]:
                if left == 0:
                    target = end_codes(bits, count, coded, begin, target, end)
                    if target + _U(2) > end:
                        return False
                    store_u8(target, np.uint8(0xFF))
                    store_u8(target + _U(1), np.uint8(0xD0 + (restarts & 7)))
                    target += _U(2)
                    bits, count, coded, left = _U(0), np.int64(0), begin, head[facts.RESTART]
                    restarts += 1
                    for c in range(3):
                        before[c] = 0
                left -= 1
            if coded - begin > np.uint64(out.shape[0]):
                return False
            for b in range(0, planned, space.PLANNED):
                c = plan[b + space.OF]
                p = facts.PER_COMPONENT + 5 * c
                block = color if c else first
                if c:
                    color += _U(128)
                else:
                    first += _U(128)
                level = np.int64(np.int16(load_u16(block)))
                bits, count, coded = _put_block(
                    bits, count, coded, block, level - before[c],
                    part(codes, 256 * head[p + facts.FIRST_TABLE], 256), part(codes, 256 * head[p + facts.TABLE], 256),
                )  # fmt: skip
                before[c] = level
    return end_codes(bits, count, coded, begin, target, end) == end


@kernel
def restored_nbytes(payload, nbytes):
    """Return the bytes of the file in a payload; -1 if it cannot have as many."""
    if nbytes < SEEK_FOOTER_NBYTES:
        return np.int64(-1)
    found = np.int64(load_u32(payload + np.uint64(nbytes - SEEK_FOOTER_NBYTES)))
    return found if found <= _MOST_RATIO * nbytes else np.int64(-1)
