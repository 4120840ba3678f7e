"""The scans of progressive JPEG files: read into coefficients, and written from them as libjpeg writes them.

A scan has some bits of some coefficients: their highest bits, or in a refinement the next lower bit. Source: ITU-T
T.81, annex G. How long runs of ends of blocks become is as in libjpeg's jcphuff.c.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lmdbloader.kernels.codec_numbers import SEEK_FOOTER_NBYTES
from lmdbloader.kernels.jpeg import head as facts
from lmdbloader.kernels.jpeg import workspace as space
from lmdbloader.kernels.jpeg.bits import MOST_BLOCKS, decode_symbol, refill, unstuff
from lmdbloader.kernels.jpeg.head import past_marker, read_tables, word_at
from lmdbloader.kernels.jpeg.recode import (
    ACROSS,
    BEHIND,
    BLOCKS,
    FILE_NBYTES,
    STEP,
    TILES,
    bits_of,
    blocks_of,
    decode_tiles,
    end_codes,
    open_tiles,
    put,
    tiles_at_once,
)
from lmdbloader.kernels.jpeg.tokens import find_large
from lmdbloader.kernels.jpeg.workspace import codes_of_file, num_planned, places, prepare, views
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import (
    i64_at,
    leading_zeros,
    load_u16,
    part,
    store_u8,
    store_u16,
    trailing_zeros,
    u8_at,
    u64_at,
)
from lmdbloader.kernels.runtime.symbols import memcpy

_U = np.uint64
# Of a coefficient of which no bit is known.
_UNKNOWN = 15
# A file with bits above these is not recoded, as tokens do not have them.
_MOST_BITS = 11
# A run ends when it has so many blocks, or when so many bits of refinement wait for its end: libjpeg's limits.
_MOST_RUN, _MOST_WAITING = 0x7FFF, 1000 - 64 + 1


@kernel
def _read_header(data, at, end, head, seen, known):
    """Read the header of a scan.

    Args:
        data, at, end: The file, and where the header's content begins and ends.
        head: Its facts, of which the tables are filled.
        seen: One bit for each Huffman table that was read.
        known: (3, 64) int64, the lowest known bit of each coefficient; updated.

    Returns:
        (a bit for each of its components; 0 if it is damaged, or bits do not follow each other as they should; its
        first and last coefficient; the bit that was the lowest known one, 0 if none was; that of the scan).
    """
    bad = (np.int64(0), np.int64(0), np.int64(0), np.int64(0), np.int64(0))
    count = np.int64(data[at]) if at < end else np.int64(0)
    if count < 1 or count > 3 or end - at != 4 + 2 * count:
        return bad
    names, bounds = part(head, facts.NAMES, 3), at + 1 + 2 * count
    first, last = np.int64(data[bounds]), np.int64(data[bounds + 1])
    high, low = np.int64(data[bounds + 2] >> 4), np.int64(data[bounds + 2] & 15)
    if last > 63 or first > last or (last > 0 if first == 0 else count > 1) or low > 13:
        return bad
    if high and high != low + 1:
        return bad
    chosen, c = np.int64(0), np.int64(-1)
    for k in range(count):
        c += 1
        while c < head[facts.COMPONENTS] and names[c] != data[at + 1 + 2 * k]:
            c += 1
        if c >= head[facts.COMPONENTS]:
            return bad
        p = facts.PER_COMPONENT + 5 * c
        tables = np.int64(data[at + 2 + 2 * k])
        head[p + facts.FIRST_TABLE], head[p + facts.TABLE] = tables >> 4 & 3, 4 + (tables & 3)
        table = head[p + facts.TABLE if first else p + facts.FIRST_TABLE]
        if tables & 0xCC or not (seen >> table & 1 or (first == 0 and high)):
            return bad
        for j in range(64 * c + first, 64 * c + last + 1):
            if known[j] != (high if high else _UNKNOWN):
                return bad
            known[j] = low
        chosen |= np.int64(1) << c
    return chosen, first, last, high, low


@kernel
def run_scans(data, work, blocks, out):
    """Read all scans of a file into coefficients, or write them and all other bytes of the file.

    Args:
        data: uint8, the file; to write, its bytes without the coded ones.
        work: Address of `jpeg_room` bytes, where the head was prepared. If the scans are read, where their coded bytes
            begin and end is noted there.
        blocks: Address of 64 int16 for each block, in zigzag order; to read, all zero.
        out: uint8, room for the file; empty: the scans are read.

    Returns:
        The bytes written, 0 if the scans were read; -1 if a scan is damaged, a bit of a coefficient is in none or in
        two, the file is of another kind, or `out` is too small.
    """
    head, _, tables, _ = views(work)
    scans = i64_at(work + _U(space.SCANS_AT), 3 + 2 * space.MOST_SCANS)
    known = i64_at(work + _U(space.KNOWN_AT), 3 * 64)
    size, at, seen = np.int64(data.shape[0]), np.int64(2), np.int64(0)
    done, num = np.int64(0), np.int64(0)
    head[facts.RESTART] = scans[0] = 0
    for k in range(known.shape[0]):
        known[k] = _UNKNOWN if k < 64 * head[facts.COMPONENTS] else 0
    marker = np.int64(0)
    while True:
        if at >= size or data[at] != 0xFF:
            return np.int64(-1)
        while at < size and data[at] == 0xFF:
            at += 1
        marker = np.int64(data[at]) if at < size else np.int64(0)
        at += 1
        if marker == 0xD9:
            break
        if marker == 0x01 or (marker >= 0xD0 and marker <= 0xD7):
            continue
        end = at + word_at(data, at) if at + 2 <= size else np.int64(0)
        at += 2
        if end < at or end > size:
            return np.int64(-1)
        if marker == 0xC4:
            found = read_tables(data, at, end, tables, True)
            if found < 0:
                return np.int64(-1)
            seen |= found
        elif marker == 0xDD:
            if end - at != 2:
                return np.int64(-1)
            head[facts.RESTART] = word_at(data, at)
        elif marker == 0xDA:
            scan = _read_header(data, at, end, head, seen, known)
            if scan[0] == 0 or scans[0] == space.MOST_SCANS:
                return np.int64(-1)
            k = 1 + 2 * scans[0]
            scans[k] = scans[k + 1] = end
            scans[0] += 1
            if out.shape[0]:
                num = _copy(data, done, end, out, num)
                num, done = _write_scan(work, blocks, scan, out, num) if num >= 0 else num, end
            else:
                end = scans[k + 1] = _read_scan(data, end, work, blocks, scan)
            if num < 0 or end < 0:
                return np.int64(-1)
        elif scans[0] and marker != 0xFE and marker & 0xF0 != 0xE0:  # neither a comment nor of an application
            return np.int64(-1)
        at = end
    for k in range(known.shape[0]):
        if known[k]:
            return np.int64(-1)
    return _copy(data, done, size, out, num) if out.shape[0] else num


@kernel
def _copy(data, begin, end, out, num):
    """Copy data[begin:end] to `out` from out[num] on; return the bytes in it, -1 if it is too small."""
    if num + end - begin > out.shape[0]:
        return np.int64(-1)
    memcpy(np.uint64(out.ctypes.data + num), np.uint64(data.ctypes.data + begin), np.uint64(end - begin))
    return num + end - begin


@kernel
def _count_units(head, chosen):
    """Return the MCUs of a scan, or blocks if it has one component, and these in a row: 0 for MCUs."""
    down, across = places(head)
    if chosen & (chosen - 1):
        return down * across, np.int64(0)
    p = facts.PER_COMPONENT + 5 * (chosen >> 1)
    wide = -(-head[facts.WIDTH] * head[p + facts.ACROSS] // (8 * head[facts.ACROSS_MOST]))
    return wide * -(-head[facts.HEIGHT] * head[p + facts.DOWN] // (8 * head[facts.DOWN_MOST])), wide


@njit(inline="always")
def _place(head, chosen, n, wide, planned, across):
    """Return the first block of unit n of a scan, in the order of tiles, and the number behind its last in the MCU."""
    if wide == 0:
        return n * planned, planned
    c = chosen >> 1
    p = facts.PER_COMPONENT + 5 * c
    more_across, more_down = head[p + facts.ACROSS], head[p + facts.DOWN]
    y, x = n // wide, n % wide
    b = y % more_down * more_across + x % more_across + (planned - head[facts.COMPONENTS] + c if c else 0)
    return (y // more_down * across + x // more_across) * planned + b, b + 1


@kernel
def _read_scan(data, at, work, blocks, scan):
    """Read the codes of a scan from data[at] on into blocks; return the position behind them, -1 if damaged."""
    head = i64_at(work, facts.HEAD_WORDS)
    plan, planned = i64_at(work + _U(space.PLAN_AT), MOST_BLOCKS * space.PLANNED), num_planned(head) // space.PLANNED
    levels, room = i64_at(work + _U(space.LEVELS_AT), 3), work + _U(space.FIXED_NBYTES)
    chosen, first, last, high, low = scan
    total, wide = _count_units(head, chosen)
    across = places(head)[1]
    size, n, restarts = np.int64(data.shape[0]), np.int64(0), np.int64(0)
    while n < total:
        length, stop = unstuff(data.ctypes.data + np.uint64(at), size - at, room)
        end = min(total, n + head[facts.RESTART]) if head[facts.RESTART] else total
        reader, run = (_U(0), _U(0), room), np.int64(0)
        for c in range(3):
            levels[c] = 0
        while n < end:
            number, behind = _place(head, chosen, n, wide, planned, across)
            block = np.uint64(blocks) + np.uint64(128 * number)
            for b in range(behind - 1 if wide else 0, behind):
                c = plan[space.PLANNED * b + space.OF]
                if chosen >> c & 1:
                    p = facts.PER_COMPONENT + 5 * c
                    table = work + np.uint64(space.TABLES_AT + 4 * facts.TABLE_WORDS * head[p + facts.TABLE])
                    if first and high:
                        reader, run = _refine(reader, run, block, first, last, low, table)
                    elif first:
                        reader, run = _read_others(reader, run, block, first, last, low, table)
                    elif high:
                        reader = refill(reader)
                        store_u16(block, np.uint16(load_u16(block) | reader[0] >> _U(63) << np.uint64(low)))
                        reader = (reader[0] << _U(1), reader[1] - _U(1), reader[2])
                    else:
                        table = work + np.uint64(space.TABLES_AT + 4 * facts.TABLE_WORDS * head[p + facts.FIRST_TABLE])
                        reader, _, _, value, used = decode_symbol(refill(reader), table, True)
                        levels[c] += value
                        level = levels[c] << low
                        if used == 0 or level < -(1 << _MOST_BITS) or level >= 1 << _MOST_BITS:
                            return np.int64(-1)
                        store_u16(block, np.uint16(level))
                    if run < 0:
                        return np.int64(-1)
                block += _U(128)
            n += 1
            if np.int64(reader[2] - room) * 8 - np.int64(reader[1]) > 8 * length:
                return np.int64(-1)
        # Neither a run nor bytes may be left.
        if run or np.int64(reader[2] - room) * 8 - np.int64(reader[1]) + 8 <= 8 * length:
            return np.int64(-1)
        at += stop
        if n < total:
            at = past_marker(data, at, restarts & 7)
            restarts += 1
            if at < 0:
                return at
    return at


@njit(inline="always")
def _read_others(reader, run, block, first, last, low, table):
    """Read the highest bits of a block's coefficients; return the bit reader and the run that is left, -1 if damaged.

    run: Blocks that end before they begin.
    """
    if run:
        return reader, run - 1
    k = first
    while k <= last:
        reader, zeros, nbits, value, used = decode_symbol(refill(reader), table, False)
        if used == 0:
            return reader, np.int64(-1)
        if zeros >= 16:
            return reader, value - 1
        k += zeros
        if nbits:
            if k > last or nbits + low > _MOST_BITS:
                return reader, np.int64(-1)
            store_u16(block + np.uint64(2 * k), np.uint16(value << low))
        k += 1
    return reader, run


@njit(inline="always")
def _refine_one(reader, at, low):
    """Read the next bit of the coefficient at an address that is not zero."""
    reader = refill(reader)
    value = np.int64(np.int16(load_u16(at)))
    more = np.int64(reader[0] >> _U(63)) << low
    store_u16(at, np.uint16(value - more if value < 0 else value + more))
    return reader[0] << _U(1), reader[1] - _U(1), reader[2]


@kernel
def _refine(reader, run, block, first, last, low, table):
    """Read the next bit of a block's coefficients; see `_read_others`."""
    left = find_large(block, np.int64(1)) & _band(first, last)
    k = first
    while run == 0 and k <= last:
        reader, zeros, nbits, value, used = decode_symbol(refill(reader), table, False)
        if zeros >= 16:
            run = value
            break
        if used == 0 or nbits > 1:
            return reader, np.int64(-1)
        # Past so many zeros, and past all others up to the next zero.
        while True:
            gap = np.int64(trailing_zeros(left)) - k if left else 64 - k
            if zeros < gap:
                k += zeros
                break
            zeros -= gap
            k += gap
            if k > last:
                break
            left &= left - _U(1)
            reader = _refine_one(reader, block + np.uint64(2 * k), low)
            k += 1
        if nbits:
            if k > last:
                return reader, np.int64(-1)
            store_u16(block + np.uint64(2 * k), np.uint16(value << low))
        k += 1
    if run:
        while left:
            k = np.int64(trailing_zeros(left))
            left &= left - _U(1)
            reader = _refine_one(reader, block + np.uint64(2 * k), low)
        run -= 1
    return reader, run


@njit(inline="always")
def _band(first, last):
    return (~_U(0) << np.uint64(first)) & (~_U(0) >> np.uint64(63 - last))


@kernel
def _write_scan(work, blocks, scan, out, num):
    """Write the codes of a scan to `out` from out[num] on; return the bytes in it, -1 if it is too small."""
    head = i64_at(work, facts.HEAD_WORDS)
    plan, planned = i64_at(work + _U(space.PLAN_AT), MOST_BLOCKS * space.PLANNED), num_planned(head) // space.PLANNED
    levels, begin = i64_at(work + _U(space.LEVELS_AT), 3), work + _U(space.FIXED_NBYTES)
    all_codes = codes_of_file(work)
    chosen, first, _, high, low = scan
    total, wide = _count_units(head, chosen)
    across = places(head)[1]
    target, limit = np.uint64(out.ctypes.data + num), np.uint64(out.ctypes.data + out.shape[0])
    left, restarts = head[facts.RESTART], np.int64(0)
    writer, waiting = (_U(0), np.int64(0), begin), (np.int64(0), np.int64(0), np.int64(0))
    # The tiles have been read: the bits of refinement that wait for the end of a run take their room.
    held = u64_at(work + _U(space.TILE_BLOCKS_AT), 2 * (_MOST_WAITING + 64))
    for c in range(3):
        levels[c] = 0
    p = facts.PER_COMPONENT + 5 * (chosen >> 1)
    codes = part(all_codes, 256 * head[p + facts.TABLE], 256)
    for n in range(total):
        if head[facts.RESTART]:
            if left == 0:
                writer, waiting = _put_run(writer, waiting, held, codes)
                target = end_codes(writer[0], writer[1], writer[2], begin, target, limit)
                if target + _U(2) > limit:
                    return np.int64(-1)
                store_u8(target, np.uint8(0xFF))
                store_u8(target + _U(1), np.uint8(0xD0 + (restarts & 7)))
                target += _U(2)
                writer, left = (_U(0), np.int64(0), begin), head[facts.RESTART]
                restarts += 1
                for c in range(3):
                    levels[c] = 0
            left -= 1
        number, behind = _place(head, chosen, n, wide, planned, across)
        block = np.uint64(blocks) + np.uint64(128 * number)
        if first and high:
            writer, waiting = _put_refined(writer, waiting, held, block, scan, codes)
        elif first:
            writer, waiting = _put_others(writer, waiting, held, block, scan, codes)
        else:
            for b in range(behind - 1 if wide else 0, behind):
                c = plan[space.PLANNED * b + space.OF]
                if chosen >> c & 1:
                    writer = _put_first(writer, block, c, levels, high, low, head, all_codes)
                block += _U(128)
        if writer[2] - begin > np.uint64(out.shape[0]):
            return np.int64(-1)
    writer, _ = _put_run(writer, waiting, held, codes)
    return np.int64(end_codes(writer[0], writer[1], writer[2], begin, target, limit) - np.uint64(out.ctypes.data))


@njit(inline="always")
def _put(writer, found, nbits, value):
    return put(writer[0], writer[1], writer[2], found, nbits, value)


@njit(inline="always")
def _put_first(writer, block, c, levels, high, low, head, all_codes):
    """Write bits of the first coefficient of a block of component c."""
    level = np.int64(np.int16(load_u16(block))) >> low
    if high:
        return _put(writer, np.int64(0), np.int64(1), level & 1)
    nbits, value = bits_of(level - levels[c])
    levels[c] = level
    codes = part(all_codes, 256 * head[facts.PER_COMPONENT + 5 * c + facts.FIRST_TABLE], 256)
    return _put(writer, codes[nbits], nbits, value)


@njit(inline="always")
def _put_bits(writer, bits, count):
    """Write up to 63 bits."""
    for shift in (32, 0):
        some = min(count - shift, np.int64(32))
        if some > 0:
            found = np.int64(bits >> np.uint64(shift)) & ((np.int64(1) << some) - 1)
            writer = _put(writer, np.int64(0), some, found)
    return writer


@kernel
def _put_run(writer, waiting, held, codes):
    """Write the end of blocks that wait for it, and their bits of refinement.

    waiting: (blocks, pairs of bits and their number in `held`, bits).
    """
    run, pairs, _ = waiting
    if run:
        nbits = 63 - np.int64(leading_zeros(np.uint64(run)))
        writer = _put(writer, codes[nbits << 4 & 255], nbits, run - (np.int64(1) << nbits))
        for k in range(0, 2 * pairs, 2):
            writer = _put_bits(writer, held[k], np.int64(held[k + 1]))
    return writer, (np.int64(0), np.int64(0), np.int64(0))


@njit(inline="always")
def _put_others(writer, waiting, held, block, scan, codes):
    """Write the highest bits of a block's coefficients, see `_put_run`."""
    _, first, last, _, low = scan
    left = find_large(block, np.int64(1) << low) & _band(first, last)
    k, zero = first - 1, np.int64(0)
    if left and waiting[0]:
        writer, waiting = _put_run(writer, waiting, held, codes)
    while left:
        zeros = -k - 1
        k = np.int64(trailing_zeros(left))
        zeros += k
        left &= left - _U(1)
        while zeros >= 16:
            writer = _put(writer, codes[0xF0], zero, zero)
            zeros -= 16
        value = np.int64(np.int16(load_u16(block + np.uint64(2 * k))))
        nbits, value = bits_of(-(-value >> low) if value < 0 else value >> low)
        writer = _put(writer, codes[(zeros << 4 | nbits) & 255], nbits, value)
    if k < last:
        waiting = (waiting[0] + 1, zero, zero)
        if waiting[0] == _MOST_RUN:
            writer, waiting = _put_run(writer, waiting, held, codes)
    return writer, waiting


@kernel
def _put_refined(writer, waiting, held, block, scan, codes):
    """Write the next bits of a block's coefficients, see `_put_run`."""
    _, first, last, _, low = scan
    band, zero = _band(first, last), np.int64(0)
    left = find_large(block, np.int64(1) << low) & band
    new = left & ~(find_large(block, np.int64(2) << low) & band)
    k, zeros, bits, count = first - 1, zero, _U(0), zero
    while left:
        zeros -= k + 1
        k = np.int64(trailing_zeros(left))
        zeros += k
        left &= left - _U(1)
        # Zeros in front of the last new coefficient; those behind it are a part of the block's end.
        while zeros > 15 and new:
            writer, waiting = _put_run(writer, waiting, held, codes)
            writer = _put_bits(_put(writer, codes[0xF0], zero, zero), bits, count)
            zeros, bits, count = zeros - 16, _U(0), zero
        value = np.int64(np.int16(load_u16(block + np.uint64(2 * k))))
        if new >> np.uint64(k) & _U(1):
            new &= new - _U(1)
            writer, waiting = _put_run(writer, waiting, held, codes)
            writer = _put(writer, codes[(zeros << 4 | 1) & 255], np.int64(1), np.int64(value > 0))
            writer = _put_bits(writer, bits, count)
            zeros, bits, count = zero, _U(0), zero
        else:
            bits, count = bits << _U(1) | np.uint64(abs(value) >> low & 1), count + 1
    if k < last or zeros or count:
        run, pairs, num = waiting
        if count:
            held[2 * pairs], held[2 * pairs + 1] = bits, np.uint64(count)
            pairs += 1
        waiting = (run + 1, pairs, num + count)
        if waiting[0] == _MOST_RUN or waiting[2] > _MOST_WAITING:
            writer, waiting = _put_run(writer, waiting, held, codes)
    return writer, waiting


@kernel
def count_restored(payload, nbytes, work):
    """Return the blocks of a payload's file if it is progressive, else 0.

    Args:
        payload, nbytes: Address of the payload and its length, with a footer.
        work: Address of `jpeg_room` bytes.
    """
    if prepare(u8_at(payload, nbytes - SEEK_FOOTER_NBYTES), work, False) != facts.PROGRESSIVE:
        return np.int64(0)
    head = i64_at(work, facts.HEAD_WORDS)
    down, across = places(head)
    return down * across * (num_planned(head) // space.PLANNED)


@kernel
def restore_scans(payload, nbytes, work, blocks, out):
    """Give back the progressive file of a payload.

    Args:
        payload, nbytes, work, out: As for `restore`.
        blocks: uint16, room for the coefficients of as many blocks as `count_restored` says.

    Returns:
        Whether `out` was filled.
    """
    tiles = i64_at(work + _U(space.TILES_AT), 16)
    if count_restored(payload, nbytes, work) * 64 > blocks.shape[0] or out.shape[0] == 0:
        return False
    if not open_tiles(payload, nbytes, work, True) or tiles[FILE_NBYTES] != out.shape[0]:
        return False
    head = i64_at(work, facts.HEAD_WORDS)
    down, across = places(head)
    known, at, at_once, total = np.int64(0), np.uint64(tiles[TILES]), tiles_at_once(tiles), tiles[ACROSS] * down
    target = np.uint64(blocks.ctypes.data)
    luminance, color = np.uint64(128 * tiles[BLOCKS]), np.uint64(128 * tiles[BLOCKS + 1])
    for tile in range(total):
        if tile % at_once == 0:
            window, ready = (np.int64(0), np.int64(0), tiles[ACROSS]), min(at_once, total - tile)
            fine, known, at = decode_tiles(work, window, tile, ready, known, at)
            if not fine:
                return False
        first, other = blocks_of(work, tile % at_once)
        for _ in range(min(tiles[STEP], across - tile % tiles[ACROSS] * tiles[STEP])):
            memcpy(target, first, luminance)
            memcpy(target + luminance, other, color)
            first, other, target = first + luminance, other + color, target + luminance + color
    kept = u8_at(payload, head[facts.SCAN] + tiles[BEHIND])
    return run_scans(kept, work, np.uint64(blocks.ctypes.data), out) == out.shape[0]
