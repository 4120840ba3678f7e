"""Kernels that make and read the seek table of a JPEG file.

A payload is the file's own bytes, then an entry for every row of MCUs and every 64 pixels along it, then a footer (all
little-endian):

    entry (8 bytes):   a uint64: in its lowest 25 bits the byte of the file where the MCU begins, in 3 the bit in it (0:
                       the highest), and in 3 x 12 the first coefficients of the blocks before it, one for each
                       component, in two's complement
    footer (16 bytes): uint32 bytes of the file, uint32 entries, uint16 MCUs from entry to entry, uint8 orientation
                       (1 to 8, as in EXIF), a zero byte, the bytes "SEEK"
"""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.codec_numbers import SEEK_ENTRY_NBYTES, SEEK_FOOTER_NBYTES
from lmdbloader.kernels.jpeg import head as facts
from lmdbloader.kernels.jpeg import workspace as space
from lmdbloader.kernels.jpeg.bits import MOST_BLOCKS, decode_coefficients, stuffed_position, unstuff
from lmdbloader.kernels.jpeg.head import past_marker
from lmdbloader.kernels.jpeg.progressive import run_scans
from lmdbloader.kernels.jpeg.workspace import num_planned, places, prepare, set_order
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import i64_at, load_u8, load_u32, load_u64, part, store_u16, store_u64

_OFFSET_BITS, _LEVEL_BITS = 25, 12
# Pixels from one entry of a row to the next: a window's row is decoded from at most so many before it on.
_SPACING = 64


@kernel
def count_entries(data, work):
    """Return the most entries that `scan` makes, 0 if it cannot decode the file, and the MCUs between them.

    Arguments as there.
    """
    status = prepare(data, work, True)
    if status != facts.FINE and status != facts.PROGRESSIVE:
        return np.int64(0), np.int64(1)
    head = i64_at(work, facts.HEAD_WORDS)
    down, across = places(head)
    step = _SPACING // (8 * head[facts.ACROSS_MOST])
    return down * ((across + step - 1) // step), step


@kernel
def count_blocks(work):
    """Return the number of blocks of the file that `count_entries` has just read."""
    head = i64_at(work, facts.HEAD_WORDS)
    down, across = places(head)
    return down * across * (num_planned(head) // space.PLANNED)


@kernel
def scan(data, step, work, entries, blocks):
    """Decode all coefficients of a file, and note the start of each row of MCUs and of every few MCUs in it.

    A progressive file has no such entries, and needs blocks.

    Args:
        data: uint8, the file.
        step: MCUs between entries along a row.
        work: Address of `jpeg_room` bytes.
        entries: uint8, with room for all of them.
        blocks: Address of 64 int16 for each block and one more, all zero, filled with the coefficients in zigzag order;
            0: none.

    Returns:
        (FINE, DAMAGED, UNSUPPORTED or CODES_ONLY, which is sound, without entries; number of entries, height, width,
        components).
    """
    status = prepare(data, work, True)
    head = i64_at(work, facts.HEAD_WORDS)
    if status == facts.PROGRESSIVE:
        fine = blocks != 0 and run_scans(data, work, np.uint64(blocks), part(entries, 0, 0)) == 0
        status = facts.FINE if fine else facts.UNSUPPORTED
        return status, np.int64(0), head[facts.HEIGHT], head[facts.WIDTH], head[facts.COMPONENTS]
    if status != facts.FINE and status != facts.CODES_ONLY:
        return status, np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    has_entries = status == facts.FINE
    shape = head[facts.HEIGHT], head[facts.WIDTH], head[facts.COMPONENTS]
    down, across = places(head)
    total = down * across
    size = np.int64(data.shape[0])
    set_order(work, True)
    block = np.uint64(blocks) if blocks else work + np.uint64(space.BLOCK_AT)
    block_step = np.uint64(128 if blocks else 0)
    order = work + np.uint64(space.ORDER_AT)
    room = work + np.uint64(space.FIXED_NBYTES)
    plan, planned = i64_at(work + np.uint64(space.PLAN_AT), MOST_BLOCKS * space.PLANNED), num_planned(head)
    levels = i64_at(work + np.uint64(space.LEVELS_AT), 3)
    at, mcu, restarts, number = head[facts.SCAN], np.int64(0), np.int64(0), np.int64(0)
    needed = ((across + step - 1) // step) * down * SEEK_ENTRY_NBYTES if has_entries else 0
    if needed > entries.shape[0] or size >= 1 << _OFFSET_BITS:
        return facts.UNSUPPORTED, np.int64(0), shape[0], shape[1], shape[2]
    column, due, strayed = np.int64(0), np.int64(0), np.int64(0)
    while mcu < total:
        length, stop = unstuff(data.ctypes.data + np.uint64(at), size - at, room)
        end = min(total, mcu + head[facts.RESTART]) if head[facts.RESTART] else total
        for c in range(3):
            levels[c] = 0
        buffer, count, reading = np.uint64(0), np.uint64(0), room
        stuffed, unstuffed = at, np.int64(0)
        while mcu < end:
            if has_entries and due == 0:
                position = np.int64(reading - room) * 8 - np.int64(count)
                stuffed = stuffed_position(data, stuffed, (position >> 3) - unstuffed)
                unstuffed = position >> 3
                entry = np.uint64(stuffed) | np.uint64(position & 7) << np.uint64(_OFFSET_BITS)
                for c in range(3):
                    level = levels[c]
                    if level < -(1 << (_LEVEL_BITS - 1)) or level >= 1 << (_LEVEL_BITS - 1):
                        return facts.UNSUPPORTED, number, shape[0], shape[1], shape[2]
                    at_bit = np.uint64(_OFFSET_BITS + 3 + _LEVEL_BITS * c)
                    entry |= np.uint64(level & ((1 << _LEVEL_BITS) - 1)) << at_bit
                store_u64(entries.ctypes.data + np.uint64(number * SEEK_ENTRY_NBYTES), entry)
                number += 1
                due = step
            for b in range(0, planned, space.PLANNED):
                buffer, count, reading, difference, state = decode_coefficients(
                    buffer, count, reading, np.uint64(plan[b + space.BY_FIRST]), np.uint64(plan[b + space.BY]),
                    order, block,
                )  # fmt: skip
                levels[plan[b + space.OF]] += difference
                if state < 0:
                    return facts.DAMAGED, number, shape[0], shape[1], shape[2]
                store_u16(block, np.uint16(levels[plan[b + space.OF]]))
                block += block_step
            if np.int64(reading - room) * 8 - np.int64(count) > 8 * length:
                return facts.DAMAGED, number, shape[0], shape[1], shape[2]
            mcu, column, due = mcu + 1, column + 1, due - 1
            if column == across:
                column = due = np.int64(0)
        position = np.int64(reading - room) * 8 - np.int64(count)
        if position + 8 <= 8 * length:  # bytes that belong to nothing
            # Some cameras write a few before restart markers: the codes in front of them end in ones, as they must.
            last = np.int64(load_u8(room + np.uint64(position >> 3))) if position & 7 else np.int64(255)
            padding = (np.int64(1) << (-position & 7)) - 1
            if last & padding != padding:
                return facts.DAMAGED, number, shape[0], shape[1], shape[2]
            strayed += 1
        at += stop
        if mcu < total:
            at = past_marker(data, at, restarts & 7)
            restarts += 1
            if at < 0:
                return facts.DAMAGED, number, shape[0], shape[1], shape[2]
    scans = i64_at(work + np.uint64(space.SCANS_AT), 3)
    scans[0], scans[1], scans[2] = 1, head[facts.SCAN], at
    while at + 1 < size and data[at] == 0xFF and data[at + 1] == 0xFF:
        at += 1
    # Bytes that belong to nothing at one place alone are what damage leaves.
    if at + 1 >= size or data[at] != 0xFF or data[at + 1] != 0xD9 or strayed == 1:
        return facts.DAMAGED, number, shape[0], shape[1], shape[2]
    return status, number, shape[0], shape[1], shape[2]


@kernel
def offset_at(data, table, number):
    """Return the byte that entry `number` of the table at data[table] points to."""
    entry = load_u32(data.ctypes.data + np.uint64(table + number * SEEK_ENTRY_NBYTES))
    return np.int64(entry) & ((1 << _OFFSET_BITS) - 1)


@kernel
def _level(entry, component):
    """Return a first coefficient: shifted up so that the highest of its bits is the sign, then down."""
    lowest = _OFFSET_BITS + 3 + _LEVEL_BITS * component
    return np.int64(entry << np.uint64(64 - lowest - _LEVEL_BITS)) >> (64 - _LEVEL_BITS)


@kernel
def entry_at(data, table, number):
    """Return (byte, bit, DC levels of the three components) of entry `number` of the table at data[table]."""
    entry = load_u64(data.ctypes.data + np.uint64(table + number * SEEK_ENTRY_NBYTES))
    bit = np.int64(entry >> np.uint64(_OFFSET_BITS)) & 7
    return offset_at(data, table, number), bit, (_level(entry, 0), _level(entry, 1), _level(entry, 2))


@kernel
def orientation_of(payload, nbytes):
    """Return the orientation in a payload's footer; 1 if it is invalid."""
    if nbytes < SEEK_FOOTER_NBYTES:
        return np.int64(1)
    found = np.int64(load_u8(payload + np.uint64(nbytes - SEEK_FOOTER_NBYTES + 10)))
    return found if found >= 1 and found <= 8 else np.int64(1)
