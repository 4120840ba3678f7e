"""JPEG files with a seek table behind them: the table made, and the planes of any window decoded from where it begins.

A payload is the file's own bytes, then for every row of blocks' places (MCUs) and every 64 pixels along it an entry,
then a footer (all little-endian):

    entry (8 bytes):   a uint64: in its lowest 25 bits the byte of the file where the MCU begins, in 3 the bit in it (0:
                       the highest), and in 3 x 12 the first coefficients of the blocks before it, one for each
                       component, in two's complement
    footer (16 bytes): uint32 bytes of the file, uint32 entries, uint16 MCUs from entry to entry, uint8 orientation
                       (1 to 8, as in EXIF), a zero byte, the bytes "SEEK"
"""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels._compile import kernel
from lmdbloader.kernels._memory import i32_at, i64_at, u8_at, u64_at
from lmdbloader.kernels.jpegbits import (
    ORDERED,
    SLACK,
    TABLE_WORDS,
    ZIGZAG,
    decode_coefficients,
    load_bits,
    load_i32,
    load_u64,
    store_i16,
    store_u64,
    stuffed_position,
    unstuff,
)
from lmdbloader.kernels.jpegcolor import stored_window, turn, write_pixels
from lmdbloader.kernels.jpeghead import (
    ACROSS,
    ACROSS_MOST,
    COMPONENTS,
    DAMAGED,
    DOWN,
    DOWN_MOST,
    FINE,
    FIRST_TABLE,
    HEAD_WORDS,
    HEIGHT,
    PER_COMPONENT,
    QUANTISATION,
    QUANTISATION_WORDS,
    RESTART,
    SCAN,
    TABLE,
    TABLES_WORDS,
    UNSUPPORTED,
    WIDTH,
    read_head,
)
from lmdbloader.kernels.jpegidct import clear_block, fill_block, transform_block

ENTRY_NBYTES, FOOTER_NBYTES = 8, 16
_OFFSET_BITS, _LEVEL_BITS = 25, 12
# Pixels from one entry of a row to the next: a window's row is decoded from at most so many before it on.
_SPACING = 64
SEEK_MAGIC = b"SEEK"
# Scratch: what the head says, quantisation, Huffman tables, order of coefficients, blocks; bytes without stuffing,
# lines and planes lie behind it.
_QUANTISATION_AT = 8 * HEAD_WORDS + 8
_TABLES_AT = _QUANTISATION_AT + 4 * QUANTISATION_WORDS + 4 * ORDERED
_ORDER_AT = _TABLES_AT + 4 * TABLES_WORDS
_BLOCK_AT = (_ORDER_AT + 4 * ORDERED + 63) // 64 * 64
# Six blocks, each with room for what `decode_coefficients` puts outside of one.
_BLOCK_STEP = 192
_PLAN_AT = _BLOCK_AT + 6 * _BLOCK_STEP
_LEVELS_AT = _PLAN_AT + 8 * 6 * 9
_TARGETS_AT = _LEVELS_AT + 3 * 8
_FIXED_NBYTES = _TARGETS_AT + 3 * 8
# For each block of an MCU: its component, the addresses of its two Huffman tables and of its quantisation, its place
# among the blocks of its component, where its coefficients lie, and what became of it: a state, and the first of them.
_OF, _BY_FIRST, _BY, _SCALED_BY, _DOWN_AT, _ACROSS_AT, _BLOCK, _STATE, _LEVEL, _PLANNED = range(10)
# A plane's rows are longer by this, so that rows of vectors may be written past their end.
_PLANE_SLACK = 64


@kernel
def jpeg_room(nbytes, height, width):
    """Return how many bytes of scratch the kernels here need for a payload of an image, or any smaller one."""
    longest = max(height, width)
    planes = 3 * ((height + 32) * (width + 32) + _PLANE_SLACK * (longest + 32))
    return _FIXED_NBYTES + nbytes + SLACK + 16 * (longest + 128) + planes + 3 * height * width + 4096


@kernel
def _load(data, at, nbytes):
    value = np.int64(0)
    for k in range(nbytes):
        value |= np.int64(data[at + k]) << (8 * k)
    return value


@kernel
def _views(work):
    """Return the arrays at the beginning of the scratch: head, quantisation, tables, order."""
    head = i64_at(work, HEAD_WORDS)
    quantisation = i32_at(work + np.uint64(_QUANTISATION_AT), QUANTISATION_WORDS)
    tables = i32_at(work + np.uint64(_TABLES_AT), TABLES_WORDS)
    order = i32_at(work + np.uint64(_ORDER_AT), ORDERED)
    return head, quantisation, tables, order


@kernel
def _prepare(data, work):
    """Read the head of a file into the scratch; return FINE, DAMAGED or UNSUPPORTED."""
    head, quantisation, tables, order = _views(work)
    status = read_head(data, head, quantisation, tables)
    for k in range(ORDERED):
        order[k] = 2 * ZIGZAG[k] if k < 64 else 128
    blocks = i64_at(work + np.uint64(_BLOCK_AT), 6 * _BLOCK_STEP // 8)
    for k in range(blocks.shape[0]):
        blocks[k] = 0
    if status != FINE:
        return status
    plan = i64_at(work + np.uint64(_PLAN_AT), 6 * _PLANNED)
    b = 0
    for c in range(head[COMPONENTS]):
        p = PER_COMPONENT + 5 * c
        for y in range(head[p + DOWN]):
            for x in range(head[p + ACROSS]):
                plan[b + _OF] = c
                plan[b + _BY_FIRST] = work + np.uint64(_TABLES_AT + 4 * TABLE_WORDS * head[p + FIRST_TABLE])
                plan[b + _BY] = work + np.uint64(_TABLES_AT + 4 * TABLE_WORDS * head[p + TABLE])
                plan[b + _SCALED_BY] = work + np.uint64(_QUANTISATION_AT + 256 * head[p + QUANTISATION])
                plan[b + _DOWN_AT], plan[b + _ACROSS_AT] = y, x
                plan[b + _BLOCK] = work + np.uint64(_BLOCK_AT + b // _PLANNED * _BLOCK_STEP)
                b += _PLANNED
    return FINE


@kernel
def _num_planned(head):
    """Return how many words the plan of an MCU has."""
    colors = head[COMPONENTS] - 1
    return _PLANNED * (head[PER_COMPONENT + ACROSS] * head[PER_COMPONENT + DOWN] + colors)


@kernel
def _places(head):
    """Return how many MCUs a file has down and across."""
    down, across = 8 * head[DOWN_MOST], 8 * head[ACROSS_MOST]
    return (head[HEIGHT] + down - 1) // down, (head[WIDTH] + across - 1) // across


@kernel
def _past_marker(data, at, number):
    """Return where the coded bytes behind restart marker `number` (0 to 7, -1: any) begin; -1 where none stands."""
    size = data.shape[0]
    while at + 1 < size and data[at] == 0xFF and data[at + 1] == 0xFF:
        at += 1
    if at + 1 >= size or data[at] != 0xFF or data[at + 1] & 0xF8 != 0xD0:
        return np.int64(-1)
    if number >= 0 and np.int64(data[at + 1] & 7) != number:
        return np.int64(-1)
    return at + 2


@kernel
def count_entries(data, work):
    """Return how many entries `scan` will make, 0 where it will not decode the file, and the MCUs from one to the next.

    Arguments as there.
    """
    if _prepare(data, work) != FINE:
        return np.int64(0), np.int64(1)
    head = i64_at(work, HEAD_WORDS)
    down, across = _places(head)
    step = _SPACING // (8 * head[ACROSS_MOST])
    return down * ((across + step - 1) // step), step


@kernel
def scan(data, step, work, entries):
    """Decode all coefficients of a file once, and note where each row of MCUs and every few of its MCUs begin.

    Args:
        data: uint8, the file.
        step: MCUs between entries along a row.
        work: Address of `jpeg_room` bytes.
        entries: uint8, with room for all of them.

    Returns:
        (FINE, DAMAGED or UNSUPPORTED, number of entries, height, width, components).
    """
    status = _prepare(data, work)
    head = _views(work)[0]
    if status != FINE:
        return status, np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    shape = head[HEIGHT], head[WIDTH], head[COMPONENTS]
    down, across = _places(head)
    total = down * across
    size = np.int64(data.shape[0])
    block = work + np.uint64(_BLOCK_AT)
    order = work + np.uint64(_ORDER_AT)
    room = work + np.uint64(_FIXED_NBYTES)
    plan, planned = i64_at(work + np.uint64(_PLAN_AT), 6 * _PLANNED), _num_planned(head)
    levels = i64_at(work + np.uint64(_LEVELS_AT), 3)
    at, mcu, restarts, number = head[SCAN], np.int64(0), np.int64(0), np.int64(0)
    if ((across + step - 1) // step) * down * ENTRY_NBYTES > entries.shape[0] or size >= 1 << _OFFSET_BITS:
        return UNSUPPORTED, np.int64(0), shape[0], shape[1], shape[2]
    column, due = np.int64(0), np.int64(0)
    while mcu < total:
        length, stop = unstuff(data.ctypes.data + np.uint64(at), size - at, room)
        end = min(total, mcu + head[RESTART]) if head[RESTART] else total
        for c in range(3):
            levels[c] = 0
        buffer, count, reading = np.uint64(0), np.uint64(0), room
        stuffed, unstuffed = at, np.int64(0)
        while mcu < end:
            if due == 0:
                position = np.int64(reading - room) * 8 - np.int64(count)
                stuffed = stuffed_position(data, stuffed, (position >> 3) - unstuffed)
                unstuffed = position >> 3
                entry = np.uint64(stuffed) | np.uint64(position & 7) << np.uint64(_OFFSET_BITS)
                for c in range(3):
                    level = levels[c]
                    if level < -(1 << (_LEVEL_BITS - 1)) or level >= 1 << (_LEVEL_BITS - 1):
                        return UNSUPPORTED, number, shape[0], shape[1], shape[2]
                    at_bit = np.uint64(_OFFSET_BITS + 3 + _LEVEL_BITS * c)
                    entry |= np.uint64(level & ((1 << _LEVEL_BITS) - 1)) << at_bit
                store_u64(entries.ctypes.data + np.uint64(number * ENTRY_NBYTES), entry)
                number += 1
                due = step
            for b in range(0, planned, _PLANNED):
                buffer, count, reading, difference, state = decode_coefficients(
                    buffer, count, reading, np.uint64(plan[b + _BY_FIRST]), np.uint64(plan[b + _BY]),
                    np.uint64(plan[b + _SCALED_BY]), order, block,
                )  # fmt: skip
                levels[plan[b + _OF]] += difference
                if state < 0:
                    return DAMAGED, number, shape[0], shape[1], shape[2]
            if np.int64(reading - room) * 8 - np.int64(count) > 8 * length:
                return DAMAGED, number, shape[0], shape[1], shape[2]
            mcu, column, due = mcu + 1, column + 1, due - 1
            if column == across:
                column = due = np.int64(0)
        position = np.int64(reading - room) * 8 - np.int64(count)
        if position + 8 <= 8 * length:  # bytes that belong to nothing
            return DAMAGED, number, shape[0], shape[1], shape[2]
        at += stop
        if mcu < total:
            at = _past_marker(data, at, restarts & 7)
            restarts += 1
            if at < 0:
                return DAMAGED, number, shape[0], shape[1], shape[2]
    while at + 1 < size and data[at] == 0xFF and data[at + 1] == 0xFF:
        at += 1
    if at + 1 >= size or data[at] != 0xFF or data[at + 1] != 0xD9:
        return DAMAGED, number, shape[0], shape[1], shape[2]
    return FINE, number, shape[0], shape[1], shape[2]


@kernel
def _decode_row(data, work, entry, mcu, keep, end, limit, sizes, planes, steps):
    """Decode MCUs of one row into the planes.

    Args:
        data: uint8, the file.
        work: Address of the scratch, prepared.
        entry: (byte, bit, first coefficients of three components) where decoding begins.
        mcu, keep, end: The MCU that begins there, the first whose pixels are wanted, and the one behind the last.
        limit: Where the coded bytes of interest end at the latest.
        sizes: Pixels of a block's side, for luminance and colour.
        planes: Addresses of the pixels of MCU `keep`, for each component.
        steps: Bytes from one row to the next, for luminance and colour.

    Returns:
        Whether all went well.
    """
    head = i64_at(work, HEAD_WORDS)
    order = work + np.uint64(_ORDER_AT)
    room = work + np.uint64(_FIXED_NBYTES)
    plan, planned = i64_at(work + np.uint64(_PLAN_AT), 6 * _PLANNED), _num_planned(head)
    targets = u64_at(work + np.uint64(_TARGETS_AT), 3)
    for c in range(3):
        targets[c] = planes[c]
    at, bit, before = entry
    length, stop = unstuff(data.ctypes.data + np.uint64(at), limit - at, room)
    buffer, count, reading = load_first(room, bit)
    ends = room + np.uint64(length + 8)
    levels = i64_at(work + np.uint64(_LEVELS_AT), 3)
    for c in range(3):
        levels[c] = before[c]
    restart = head[RESTART]
    left = restart - mcu % restart if restart else end
    while mcu < end:
        if left == 0:
            at = _past_marker(data, at + stop, np.int64(-1))
            if at < 0 or at > limit:
                return False
            length, stop = unstuff(data.ctypes.data + np.uint64(at), limit - at, room)
            buffer, count, reading = load_first(room, np.int64(0))
            ends = room + np.uint64(length + 8)
            for c in range(3):
                levels[c] = 0
            left = restart
        left -= 1
        # All blocks first, then their pixels: what was just written in pairs of bytes is slow to be read in sixteens.
        for b in range(0, planned, _PLANNED):
            buffer, count, reading, difference, state = decode_coefficients(
                buffer, count, reading, np.uint64(plan[b + _BY_FIRST]), np.uint64(plan[b + _BY]),
                np.uint64(plan[b + _SCALED_BY]), order, np.uint64(plan[b + _BLOCK]),
            )  # fmt: skip
            if state < 0:
                return False
            levels[plan[b + _OF]] += difference
            plan[b + _STATE], plan[b + _LEVEL] = state, levels[plan[b + _OF]]
        for b in range(0, planned, _PLANNED):
            block = np.uint64(plan[b + _BLOCK])
            if mcu >= keep:
                c = plan[b + _OF]
                size = sizes[1] if c else sizes[0]
                step = steps[1] if c else steps[0]
                target = (
                    targets[c] + np.uint64(plan[b + _DOWN_AT] * size) * step + np.uint64(plan[b + _ACROSS_AT] * size)
                )
                first = np.int32(plan[b + _LEVEL]) * load_i32(np.uint64(plan[b + _SCALED_BY]))
                if plan[b + _STATE] == 0 or size == 1:
                    fill_block(first, target, step, size)
                else:
                    store_i16(block, first)
                    transform_block(block, target, step, size)
            if plan[b + _STATE]:
                clear_block(block)
        if mcu >= keep:
            targets[0] += np.uint64(head[ACROSS_MOST] * sizes[0])
            targets[1] += np.uint64(sizes[1])
            targets[2] += np.uint64(sizes[1])
        if reading > ends:
            return False
        mcu += 1
    return True


@kernel
def load_first(room, bit):
    """Return a bit reader at a bit of the byte at an address."""
    return load_bits(room) << np.uint64(bit), np.uint64(56 - bit), room + np.uint64(7)


@kernel
def _offset(data, table, number):
    """Return where entry `number` of the table at data[table] points to."""
    return _load(data, table + number * ENTRY_NBYTES, 4) & ((1 << _OFFSET_BITS) - 1)


@kernel
def _level(entry, component):
    """Return a first coefficient: shifted up so that the highest of its bits is the sign, then down."""
    lowest = _OFFSET_BITS + 3 + _LEVEL_BITS * component
    return np.int64(entry << np.uint64(64 - lowest - _LEVEL_BITS)) >> (64 - _LEVEL_BITS)


@kernel
def _entry(data, table, number):
    entry = load_u64(data.ctypes.data + np.uint64(table + number * ENTRY_NBYTES))
    bit = np.int64(entry >> np.uint64(_OFFSET_BITS)) & 7
    return _offset(data, table, number), bit, (_level(entry, 0), _level(entry, 1), _level(entry, 2))


@kernel
def lines_at(work, nbytes):
    """Return the address of the room for lines in the scratch; nbytes: of the payload."""
    return (work + np.uint64(_FIXED_NBYTES + nbytes + SLACK + 63)) & ~np.uint64(63)


@kernel
def orientation_of(payload, nbytes):
    """Return the orientation that a payload's footer gives, 1 where it makes no sense."""
    found = np.int64(u8_at(payload + np.uint64(nbytes - FOOTER_NBYTES + 10), 1)[0]) if nbytes >= FOOTER_NBYTES else 1
    return found if found >= 1 and found <= 8 else np.int64(1)


@kernel
def decode_pixels(payload, nbytes, image, window, out, work):
    """Write a window of a payload's upright image as planes (C, h, w), decoding no more than it needs.

    Args:
        payload, nbytes: Address of the payload and its length.
        image: (height, width, channels) of the upright image.
        window: (top, bottom, left, right), inside it.
        out: Address of the result.
        work: Address of `jpeg_room` bytes.

    Returns:
        Whether all went well.
    """
    height, width, channels = image
    orientation = orientation_of(payload, nbytes)
    top, bottom, left, right = stored_window(window, height, width, orientation)
    if orientation >= 5:
        height, width = width, height
    # Interpolating colour looks at one sample more on each side: at most two pixels.
    rows, columns = (max(top - 2, 0), min(bottom + 2, height)), (max(left - 2, 0), min(right + 2, width))
    planes = decode_planes(payload, nbytes, rows, columns, 1, work, (height, width, channels))
    if not planes[0]:
        return False
    free = planes[3] + np.uint64(2 * planes[5])
    target = np.uint64(out) if orientation == 1 else free
    lines = lines_at(work, nbytes)
    write_pixels(planes, (height, width, channels), (planes[10], planes[11]), (top, bottom, left, right), lines, target)
    if orientation != 1:
        turn(target, channels, window[1] - window[0], window[3] - window[2], orientation, np.uint64(out))
    return True


@kernel
def block_sizes(head, shrink):
    """Return the pixels of a block's side for luminance and for colour, when the whole shrinks to 1 / shrink.

    Colour that has fewer samples than luminance keeps more pixels of its blocks, as far as both directions allow.
    """
    size = 8 // shrink
    color = size
    while color < 8 and head[ACROSS_MOST] * size % (2 * color) == 0 and head[DOWN_MOST] * size % (2 * color) == 0:
        color *= 2
    return size, color


@kernel
def decode_planes(payload, nbytes, rows, columns, shrink, work, image):
    """Decode the planes of all MCUs that touch a rectangle of pixels.

    Args:
        payload, nbytes: Address of the payload and its length.
        rows, columns: (first, end) of the rectangle in the file's own orientation, inside the image.
        shrink: 1, 2, 4 or 8: every block becomes 8 / shrink pixels a side.
        work: Address of `jpeg_room` bytes.
        image: (height, width, components) that the file must have.

    Returns:
        (whether all went well, address of the luminance plane and the bytes of its rows, address of the first colour
        plane, the bytes of its rows and from it to the second one, first row and column of luminance pixels, first row
        and column of colour pixels, whether there are half as many rows and half as many columns of colour samples).
        What lies behind the planes in the scratch is free, and 16 * (width + 128) bytes before them.
    """
    none = np.int64(0)
    bad = (False, work, none, work, none, none, none, none, none, none, False, False)
    if nbytes < FOOTER_NBYTES:
        return bad
    whole = u8_at(payload, nbytes)
    footer = nbytes - FOOTER_NBYTES
    file_nbytes, num_entries, step = _load(whole, footer, 4), _load(whole, footer + 4, 4), _load(whole, footer + 8, 2)
    if step < 1 or file_nbytes + num_entries * ENTRY_NBYTES != footer:
        return bad
    data = u8_at(payload, file_nbytes)
    if _prepare(data, work) != FINE:
        return bad
    head = i64_at(work, HEAD_WORDS)
    if head[HEIGHT] != image[0] or head[WIDTH] != image[1] or head[COMPONENTS] != image[2]:
        return bad
    down, across = _places(head)
    entries_across = (across + step - 1) // step
    if entries_across * down != num_entries:
        return bad
    mcu_height, mcu_width = 8 * head[DOWN_MOST], 8 * head[ACROSS_MOST]
    first_row, end_row = rows[0] // mcu_height, (rows[1] + mcu_height - 1) // mcu_height
    first, end = columns[0] // mcu_width, (columns[1] + mcu_width - 1) // mcu_width
    size, color_size = block_sizes(head, shrink)
    row = (end - first) * head[ACROSS_MOST] * size + _PLANE_SLACK
    color_row = (end - first) * color_size + _PLANE_SLACK
    height, color_height = (end_row - first_row) * head[DOWN_MOST] * size, (end_row - first_row) * color_size
    plane = lines_at(work, nbytes) + np.uint64(16 * (image[1] + 128))
    color = plane + np.uint64(height * row)
    color_plane = color_height * color_row
    for r in range(first_row, end_row):
        number = r * entries_across + first // step
        behind = r * entries_across + (end + step - 1) // step  # of the next row where there is none in this one
        limit = file_nbytes
        if behind < num_entries:
            limit = min(limit, _offset(whole, file_nbytes, behind) + 2)
        entry = _entry(whole, file_nbytes, number)
        if entry[0] < head[SCAN] or entry[0] >= limit:
            return bad
        at = plane + np.uint64((r - first_row) * head[DOWN_MOST] * size * row)
        color_at = color + np.uint64((r - first_row) * color_size * color_row)
        fine = _decode_row(
            data, work, entry, r * across + first // step * step, r * across + first, r * across + end, limit,
            (size, color_size), (at, color_at, color_at + np.uint64(color_plane)),
            (np.uint64(row), np.uint64(color_row)),
        )  # fmt: skip
        if not fine:
            return bad
    return (
        True, plane, row, color, color_row, color_plane, first_row * head[DOWN_MOST] * size,
        first * head[ACROSS_MOST] * size, first_row * color_size, first * color_size,
        head[DOWN_MOST] * size > color_size, head[ACROSS_MOST] * size > color_size,
    )  # fmt: skip
