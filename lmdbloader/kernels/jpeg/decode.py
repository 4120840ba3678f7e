"""JPEG files decoded: the planes, or the pixels, of any window, from a tile or an entry of the seek table on."""

from __future__ import annotations

import numpy as np
from numba import njit

from lmdbloader.kernels.codec_numbers import FAST_MAGIC, SEEK_ENTRY_NBYTES, SEEK_FOOTER_NBYTES
from lmdbloader.kernels.jpeg import head as facts
from lmdbloader.kernels.jpeg import workspace as space
from lmdbloader.kernels.jpeg.bits import MOST_BLOCKS, decode_coefficients, unstuff
from lmdbloader.kernels.jpeg.color import stored_window, turn, write_pixels
from lmdbloader.kernels.jpeg.head import past_marker
from lmdbloader.kernels.jpeg.idct import clear_block, fill_block, has_others, transform_block
from lmdbloader.kernels.jpeg.recode import STEP, TILES, blocks_of, decode_tiles, open_tiles, tiles_at_once
from lmdbloader.kernels.jpeg.seek import (
    entry_at,
    offset_at,
    orientation_of,
)
from lmdbloader.kernels.jpeg.workspace import lines_at, num_planned, places, prepare
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import i64_at, load_bits, load_u16, load_u32, store_u16, u8_at, u64_at

_FAST = int.from_bytes(FAST_MAGIC, "little")


@kernel
def load_first(room, bit):
    """Return a bit reader at a bit of the byte at an address."""
    return load_bits(room) << np.uint64(bit), np.uint64(56 - bit), room + np.uint64(7)


@kernel
def _decode_row(data, work, entry, mcu, keep, end, limit, sizes, planes, steps):
    """Decode MCUs of one row into the planes.

    Args:
        data: uint8, the file.
        work: Address of the scratch, prepared.
        entry: (byte, bit, first coefficients of three components), the start of decoding.
        mcu, keep, end: The MCU that begins there, the first whose pixels are needed, and the one after the last.
        limit: End of the coded bytes that may be needed.
        sizes: Pixels of a block's side, for luminance and colour.
        planes: Addresses of the pixels of MCU `keep`, for each component.
        steps: Bytes from one row to the next, for luminance and colour.

    Returns:
        Whether all went well.
    """
    head = i64_at(work, facts.HEAD_WORDS)
    order = work + np.uint64(space.ORDER_AT)
    room = work + np.uint64(space.FIXED_NBYTES)
    plan, planned = i64_at(work + np.uint64(space.PLAN_AT), MOST_BLOCKS * space.PLANNED), num_planned(head)
    targets = u64_at(work + np.uint64(space.TARGETS_AT), 3)
    for c in range(3):
        targets[c] = planes[c]
    at, bit, before = entry
    length, stop = unstuff(data.ctypes.data + np.uint64(at), limit - at, room)
    buffer, count, reading = load_first(room, bit)
    ends = room + np.uint64(length + 8)
    levels = i64_at(work + np.uint64(space.LEVELS_AT), 3)
    for c in range(3):
        levels[c] = before[c]
    restart = head[facts.RESTART]
    left = restart - mcu % restart if restart else end
    while mcu < end:
        if left == 0:
            at = past_marker(data, at + stop, np.int64(-1))
            if at < 0 or at > limit:
                return False
            length, stop = unstuff(data.ctypes.data + np.uint64(at), limit - at, room)
            buffer, count, reading = load_first(room, np.int64(0))
            ends = room + np.uint64(length + 8)
            for c in range(3):
                levels[c] = 0
            left = restart
        left -= 1
        # All blocks first, then their pixels: reading sixteen bytes that were just written two by two is slow.
        for b in range(0, planned, space.PLANNED):
            buffer, count, reading, difference, state = decode_coefficients(
                buffer, count, reading, np.uint64(plan[b + space.BY_FIRST]), np.uint64(plan[b + space.BY]),
                order, np.uint64(plan[b + space.BLOCK]),
            )  # fmt: skip
            if state < 0:
                return False
            levels[plan[b + space.OF]] += difference
            plan[b + space.STATE], plan[b + space.LEVEL] = state, levels[plan[b + space.OF]]
        for b in range(0, planned, space.PLANNED):
            block = np.uint64(plan[b + space.BLOCK])
            if mcu >= keep:
                c = plan[b + space.OF]
                size = sizes[1] if c else sizes[0]
                step = steps[1] if c else steps[0]
                target = (
                    targets[c]
                    + np.uint64(plan[b + space.DOWN_AT] * size) * step
                    + np.uint64(plan[b + space.ACROSS_AT] * size)
                )
                scale = np.uint64(plan[b + space.SCALE])
                if plan[b + space.STATE] == 0 or size == 1:
                    fill_block(np.int32(plan[b + space.LEVEL]) * np.int32(load_u16(scale)), target, step, size)
                else:
                    store_u16(block, np.uint16(plan[b + space.LEVEL]))
                    transform_block(block, scale, target, step, size)
            if plan[b + space.STATE]:
                clear_block(block)
        if mcu >= keep:
            targets[0] += np.uint64(head[facts.ACROSS_MOST] * sizes[0])
            targets[1] += np.uint64(sizes[1])
            targets[2] += np.uint64(sizes[1])
        if reading > ends:
            return False
        mcu += 1
    return True


@kernel
def _transform_tile(work, number, mcus, keep, sizes, planes, steps):
    """Write the pixels of a tile.

    Args:
        work: Address of the scratch, where the tile is decoded.
        number: Of the tile there.
        mcus, keep: The MCUs of the tile, and the first whose pixels are needed.
        sizes, steps: As for `_decode_row`.
        planes: Addresses of the pixels of MCU `keep`, for each component.
    """
    head = i64_at(work, facts.HEAD_WORDS)
    plan, planned = i64_at(work + np.uint64(space.PLAN_AT), MOST_BLOCKS * space.PLANNED), num_planned(head)
    across, down = head[facts.PER_COMPONENT + facts.ACROSS], head[facts.PER_COMPONENT + facts.DOWN]
    first, color = blocks_of(work, number)
    first += np.uint64(128 * across * down * keep)
    color += np.uint64(256 * keep)
    scale, size, step = np.uint64(plan[space.SCALE]), sizes[0], steps[0]
    at = planes[0]
    for _ in range(mcus - keep):
        for y in range(down):
            target = at + np.uint64(y * size) * step
            for _ in range(across):
                _transform(first, scale, target, step, size)
                first += np.uint64(128)
                target += np.uint64(size)
        at += np.uint64(across * size)
    size, step = sizes[1], steps[1]
    for b in range(across * down * space.PLANNED, planned, space.PLANNED):
        c = plan[b + space.OF]
        block, scale = color + np.uint64(128 * (c - 1)), np.uint64(plan[b + space.SCALE])
        target = planes[1] if c == 1 else planes[2]
        for _ in range(mcus - keep):
            _transform(block, scale, target, step, size)
            block += np.uint64(256)
            target += np.uint64(size)


@njit(inline="always")
def _transform(block, scale, target, step, size):
    if size == 1 or not has_others(block):
        fill_block(np.int32(np.int16(load_u16(block))) * np.int32(load_u16(scale)), target, step, size)
    else:
        transform_block(block, scale, target, step, size)


@kernel
def _decode_tile_window(payload, nbytes, work, window, sizes, planes, steps):
    """Decode a window of a recoded file into the planes; see `_decode_row`.

    Args:
        work: Address of the scratch, which `open_tiles` has filled.
        window: (first, end, first, end) of rows and columns of MCUs.

    Returns:
        Whether all went well.
    """
    head, tiles = i64_at(work, facts.HEAD_WORDS), i64_at(work + np.uint64(space.TILES_AT), 16)
    first_row, end_row, first, end = window
    tile_mcus = tiles[STEP]
    column = first // tile_mcus
    columns = (end + tile_mcus - 1) // tile_mcus - column
    total, at_once = (end_row - first_row) * columns, tiles_at_once(tiles)
    known, at, begin = np.int64(0), np.uint64(tiles[TILES]), np.int64(0)
    while begin < total:
        count = min(at_once, total - begin)
        fine, known, at = decode_tiles(work, (first_row, column, columns), begin, count, known, at)
        if not fine:
            return False
        for number in range(count):
            row, mcu = (begin + number) // columns, (column + (begin + number) % columns) * tile_mcus
            keep = max(first - mcu, 0)
            here = mcu + keep - first
            target = (
                planes[0]
                + np.uint64(row * head[facts.DOWN_MOST] * sizes[0]) * steps[0]
                + np.uint64(here * head[facts.ACROSS_MOST] * sizes[0])
            )
            color = np.uint64(row * sizes[1]) * steps[1] + np.uint64(here * sizes[1])
            _transform_tile(
                work,
                number,
                min(tile_mcus, end - mcu),
                keep,
                sizes,
                (target, planes[1] + color, planes[2] + color),
                steps,
            )
        begin += count
    return True


@kernel
def block_sizes(head, shrink):
    """Return the pixels of a block's side for luminance and for colour, when the whole shrinks to 1 / shrink.

    Colour that has fewer samples than luminance keeps more pixels of its blocks, as far as both directions allow.
    """
    size = 8 // shrink
    color = size
    while (
        color < 8
        and head[facts.ACROSS_MOST] * size % (2 * color) == 0
        and head[facts.DOWN_MOST] * size % (2 * color) == 0
    ):
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
        The scratch after the planes is free, and 16 * (width + 128) bytes before them.
    """
    none = np.int64(0)
    bad = (False, work, none, work, none, none, none, none, none, none, False, False)
    if nbytes < SEEK_FOOTER_NBYTES:
        return bad
    whole = u8_at(payload, nbytes)
    footer = nbytes - SEEK_FOOTER_NBYTES
    tail = payload + np.uint64(footer)
    file_nbytes, num_entries = np.int64(load_u32(tail)), np.int64(load_u32(tail + np.uint64(4)))
    step = np.int64(load_u16(tail + np.uint64(8)))
    data = u8_at(payload, file_nbytes)
    is_recoded = load_u32(tail + np.uint64(12)) == np.uint32(_FAST)
    if is_recoded:
        if not open_tiles(payload, nbytes, work, False):
            return bad
    elif step < 1 or file_nbytes + num_entries * SEEK_ENTRY_NBYTES != footer or prepare(data, work, True) != facts.FINE:
        return bad
    head = i64_at(work, facts.HEAD_WORDS)
    if head[facts.HEIGHT] != image[0] or head[facts.WIDTH] != image[1] or head[facts.COMPONENTS] != image[2]:
        return bad
    down, across = places(head)
    entries_across = (across + step - 1) // step
    if not is_recoded and entries_across * down != num_entries:
        return bad
    mcu_height, mcu_width = 8 * head[facts.DOWN_MOST], 8 * head[facts.ACROSS_MOST]
    first_row, end_row = rows[0] // mcu_height, (rows[1] + mcu_height - 1) // mcu_height
    first, end = columns[0] // mcu_width, (columns[1] + mcu_width - 1) // mcu_width
    size, color_size = block_sizes(head, shrink)
    row = (end - first) * head[facts.ACROSS_MOST] * size + space.PLANE_SLACK
    color_row = (end - first) * color_size + space.PLANE_SLACK
    height, color_height = (end_row - first_row) * head[facts.DOWN_MOST] * size, (end_row - first_row) * color_size
    plane = lines_at(work, nbytes) + np.uint64(16 * (image[1] + 128))
    color = plane + np.uint64(height * row)
    color_plane = color_height * color_row
    if is_recoded and not _decode_tile_window(
        payload, nbytes, work, (first_row, end_row, first, end), (size, color_size),
        (plane, color, color + np.uint64(color_plane)), (np.uint64(row), np.uint64(color_row)),
    ):  # fmt: skip
        return bad
    for r in range(first_row, first_row if is_recoded else end_row):
        number = r * entries_across + first // step
        behind = r * entries_across + (end + step - 1) // step  # of the next row if there is none in this one
        limit = file_nbytes
        if behind < num_entries:
            limit = min(limit, offset_at(whole, file_nbytes, behind) + 2)
        entry = entry_at(whole, file_nbytes, number)
        if entry[0] < head[facts.SCAN] or entry[0] >= limit:
            return bad
        at = plane + np.uint64((r - first_row) * head[facts.DOWN_MOST] * size * row)
        color_at = color + np.uint64((r - first_row) * color_size * color_row)
        fine = _decode_row(
            data, work, entry, r * across + first // step * step, r * across + first, r * across + end, limit,
            (size, color_size), (at, color_at, color_at + np.uint64(color_plane)),
            (np.uint64(row), np.uint64(color_row)),
        )  # fmt: skip
        if not fine:
            return bad
    return (
        True, plane, row, color, color_row, color_plane, first_row * head[facts.DOWN_MOST] * size,
        first * head[facts.ACROSS_MOST] * size, first_row * color_size, first * color_size,
        head[facts.DOWN_MOST] * size > color_size, head[facts.ACROSS_MOST] * size > color_size,
    )  # fmt: skip


@kernel
def decode_pixels(payload, nbytes, image, window, out, work):
    """Write a window of a payload's upright image as planes (C, h, w), decoding no more of the file than necessary.

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
    fine, _, _, color, _, color_plane, _, _, _, _, half_rows, half_columns = planes
    if not fine:
        return False
    free = color + np.uint64(2 * color_plane)
    target = np.uint64(out) if orientation == 1 else free
    lines = lines_at(work, nbytes)
    write_pixels(
        planes, (height, width, channels), (half_rows, half_columns), (top, bottom, left, right), lines, target
    )
    if orientation != 1:
        turn(target, channels, window[1] - window[0], window[3] - window[2], orientation, np.uint64(out))
    return True
