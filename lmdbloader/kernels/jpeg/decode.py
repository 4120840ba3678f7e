"""JPEG files decoded: the planes, or the pixels, of any window, from the seek table's entry before it on."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.codec_numbers import FAST_MAGIC, SEEK_ENTRY_NBYTES, SEEK_FOOTER_NBYTES
from lmdbloader.kernels.jpeg import head as facts
from lmdbloader.kernels.jpeg import workspace as space
from lmdbloader.kernels.jpeg.bits import MOST_BLOCKS, decode_coefficients, unstuff
from lmdbloader.kernels.jpeg.color import stored_window, turn, write_pixels
from lmdbloader.kernels.jpeg.idct import clear_block, fill_block, transform_block
from lmdbloader.kernels.jpeg.recode import decode_tile, open_tiles, sum_sizes
from lmdbloader.kernels.jpeg.seek import (
    entry_at,
    offset_at,
    orientation_of,
    past_marker,
)
from lmdbloader.kernels.jpeg.tokens import (
    COUNTS,
    DIFFERENCES,
    LARGE,
    REST,
    STREAMS,
    TOKENS,
    expand_block,
    get_difference,
    pass_block,
)
from lmdbloader.kernels.jpeg.workspace import lines_at, num_planned, places, prepare
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import (
    i64_at,
    load_bits,
    load_u8,
    load_u16,
    load_u32,
    store_u16,
    u8_at,
    u64_at,
)

_FAST = int.from_bytes(FAST_MAGIC, "little")


@kernel
def load_first(room, bit):
    """Return a bit reader at a bit of the byte at an address."""
    return load_bits(room) << np.uint64(bit), np.uint64(56 - bit), room + np.uint64(7)


@kernel
def _transform_blocks(head, plan, planned, targets, sizes, steps):
    """Write the pixels of one MCU, whose blocks are decoded, at `targets`, and clear its blocks."""
    for b in range(0, planned, space.PLANNED):
        block, c = np.uint64(plan[b + space.BLOCK]), plan[b + space.OF]
        size, step = (sizes[1], steps[1]) if c else (sizes[0], steps[0])
        target = (
            targets[c] + np.uint64(plan[b + space.DOWN_AT] * size) * step + np.uint64(plan[b + space.ACROSS_AT] * size)
        )
        first = np.int32(plan[b + space.LEVEL]) * np.int32(load_u32(np.uint64(plan[b + space.PLACES])) >> np.uint32(8))
        if plan[b + space.STATE] == 0 or size == 1:
            fill_block(first, target, step, size)
        else:
            store_u16(block, np.uint16(first))
            transform_block(block, target, step, size)
        if plan[b + space.STATE]:
            clear_block(block)
    targets[0] += np.uint64(head[facts.ACROSS_MOST] * sizes[0])
    targets[1] += np.uint64(sizes[1])
    targets[2] += np.uint64(sizes[1])


@kernel
def _clear_blocks(plan, planned):
    for b in range(0, planned, space.PLANNED):
        if plan[b + space.STATE]:
            clear_block(np.uint64(plan[b + space.BLOCK]))


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
                np.uint64(plan[b + space.PLACES]), np.uint64(plan[b + space.BLOCK]),
            )  # fmt: skip
            if state < 0:
                return False
            levels[plan[b + space.OF]] += difference
            plan[b + space.STATE], plan[b + space.LEVEL] = state, levels[plan[b + space.OF]]
        if mcu >= keep:
            _transform_blocks(head, plan, planned, targets, sizes, steps)
        else:
            _clear_blocks(plan, planned)
        if reading > ends:
            return False
        mcu += 1
    return True


@kernel
def _decode_tile_row(sizes_at, at, stop, row, step, work, first, end, sizes, planes, steps):
    """Decode MCUs of one row of tiles into the planes.

    Args:
        sizes_at: Address of the sizes of the row's tiles.
        at, stop: Addresses of the first of them, and of the end of all tiles.
        row: MCUs in a row of the image.
        step: MCUs from tile to tile.
        work: Address of the scratch, which `open_tiles` has filled.
        first, end: The first MCU whose pixels are needed, and the one after the last.
        sizes, planes, steps: As for `_decode_row`.

    Returns:
        Whether all went well.
    """
    head = i64_at(work, facts.HEAD_WORDS)
    plan, planned = i64_at(work + np.uint64(space.PLAN_AT), MOST_BLOCKS * space.PLANNED), num_planned(head)
    streams = i64_at(work + np.uint64(space.STREAMS_AT), STREAMS)
    levels, targets = i64_at(work + np.uint64(space.LEVELS_AT), 3), u64_at(work + np.uint64(space.TARGETS_AT), 3)
    for c in range(3):
        targets[c] = planes[c]
    at += np.uint64(sum_sizes(sizes_at, np.int64(0), first // step))
    for tile in range(first // step, (end + step - 1) // step):
        nbytes = np.int64(load_u16(sizes_at + np.uint64(2 * tile)))
        mcus = min(step, row - tile * step)
        if at + np.uint64(nbytes) > stop or not decode_tile(at, nbytes, mcus, work):
            return False
        at += np.uint64(nbytes)
        for c in range(3):
            levels[c] = 0
        # The streams of luminance and of colour: counts, differences, tokens.
        counts, others = np.uint64(streams[COUNTS]), np.uint64(streams[COUNTS + 1])
        differences, other_differences = np.uint64(streams[DIFFERENCES]), np.uint64(streams[DIFFERENCES + 1])
        tokens, other_tokens = np.uint64(streams[TOKENS]), np.uint64(streams[TOKENS + 1])
        large, rest = np.uint64(streams[LARGE]), np.uint64(streams[REST])
        for mcu in range(tile * step, min(tile * step + mcus, end)):
            for b in range(0, planned, space.PLANNED):
                c = plan[b + space.OF]
                if c:
                    difference, rest = get_difference(other_differences, rest)
                    count, begin = np.uint64(load_u8(others)), other_tokens
                    others += np.uint64(1)
                    other_differences += np.uint64(1)
                    other_tokens += count
                else:
                    difference, rest = get_difference(differences, rest)
                    count, begin = np.uint64(load_u8(counts)), tokens
                    counts += np.uint64(1)
                    differences += np.uint64(1)
                    tokens += count
                levels[c] += difference
                plan[b + space.LEVEL] = levels[c]
                if mcu >= first and (sizes[1] if c else sizes[0]) > 1:
                    plan[b + space.STATE] = count
                    large, rest = expand_block(
                        count, begin, large, rest, np.uint64(plan[b + space.PLACES]), np.uint64(plan[b + space.BLOCK])
                    )
                else:
                    plan[b + space.STATE] = 0
                    large, rest = pass_block(count, begin, large, rest)
            if mcu >= first:
                _transform_blocks(head, plan, planned, targets, sizes, steps)
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
    tiles_across, sizes_at, tiles, stop = np.int64(0), work, work, work
    if is_recoded:
        fine, _, step, tiles_across, sizes_at, tiles, stop, _ = open_tiles(payload, nbytes, work)
        if not fine:
            return bad
    elif step < 1 or file_nbytes + num_entries * SEEK_ENTRY_NBYTES != footer or prepare(data, work) != facts.FINE:
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
    if is_recoded:
        tiles += np.uint64(sum_sizes(sizes_at, np.int64(0), first_row * tiles_across))
    for r in range(first_row, end_row):
        at = plane + np.uint64((r - first_row) * head[facts.DOWN_MOST] * size * row)
        color_at = color + np.uint64((r - first_row) * color_size * color_row)
        addresses = at, color_at, color_at + np.uint64(color_plane)
        rows_nbytes = np.uint64(row), np.uint64(color_row)
        if is_recoded:
            at_row = sizes_at + np.uint64(2 * r * tiles_across)
            if not _decode_tile_row(
                at_row, tiles, stop, across, step, work, first, end, (size, color_size), addresses, rows_nbytes
            ):
                return bad
            tiles += np.uint64(sum_sizes(at_row, np.int64(0), tiles_across))
            continue
        number = r * entries_across + first // step
        behind = r * entries_across + (end + step - 1) // step  # of the next row if there is none in this one
        limit = file_nbytes
        if behind < num_entries:
            limit = min(limit, offset_at(whole, file_nbytes, behind) + 2)
        entry = entry_at(whole, file_nbytes, number)
        if entry[0] < head[facts.SCAN] or entry[0] >= limit:
            return bad
        fine = _decode_row(
            data, work, entry, r * across + first // step * step, r * across + first, r * across + end, limit,
            (size, color_size), addresses, rows_nbytes,
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
