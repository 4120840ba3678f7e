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
from lmdbloader.kernels.runtime.memory import i64_at, load_bits, load_u16, load_u32, store_u16, u8_at

_FAST = int.from_bytes(FAST_MAGIC, "little")


@kernel
def load_first(room, bit):
    """Return a bit reader at a bit of the byte at an address."""
    return load_bits(room) << np.uint64(bit), np.uint64(56 - bit), room + np.uint64(7)


@kernel
def _decode_row(data, work, entry, mcu, row, end, limit, among):
    """Decode MCUs of one row into the planes.

    Args:
        data: uint8, the file.
        work: Address of the scratch, prepared.
        entry: (byte, bit, first coefficients of three components), the start of decoding.
        mcu, row, end: The MCU that begins there, the first of its row, and the one after the last.
        limit: End of the coded bytes that may be needed.
        among: (first, end) of the scales whose planes are wanted.

    Returns:
        Whether all went well.
    """
    head = i64_at(work, facts.HEAD_WORDS)
    order = work + np.uint64(space.ORDER_AT)
    room = work + np.uint64(space.FIXED_NBYTES)
    plan, planned = i64_at(work + np.uint64(space.PLAN_AT), MOST_BLOCKS * space.PLANNED), num_planned(head)
    scales = i64_at(work + np.uint64(space.SCALES_AT), space.FREE + 1)
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
        for s in range(among[0], among[1]):
            scale = space.SCALE_WORDS * s
            if scales[scale + space.FIRST] <= mcu - row < scales[scale + space.UNTIL]:
                _transform_mcu(head, plan, planned, scales, scale)
        for b in range(0, planned, space.PLANNED):
            if plan[b + space.STATE]:
                clear_block(np.uint64(plan[b + space.BLOCK]))
        if reading > ends:
            return False
        mcu += 1
    return True


@kernel
def _transform_mcu(head, plan, planned, scales, s):
    """Write the pixels of the MCU that was just decoded to where the next ones of a scale go, and move on."""
    sizes = scales[s + space.SIZE], scales[s + space.COLOR_SIZE]
    steps = np.uint64(scales[s + space.ROW]), np.uint64(scales[s + space.COLOR_ROW])
    targets = s + space.TARGETS
    for b in range(0, planned, space.PLANNED):
        block = np.uint64(plan[b + space.BLOCK])
        c = plan[b + space.OF]
        size = sizes[1] if c else sizes[0]
        step = steps[1] if c else steps[0]
        target = (
            np.uint64(scales[targets + c])
            + np.uint64(plan[b + space.DOWN_AT] * size) * step
            + np.uint64(plan[b + space.ACROSS_AT] * size)
        )
        scale = np.uint64(plan[b + space.SCALE])
        if plan[b + space.STATE] == 0 or size == 1:
            fill_block(np.int32(plan[b + space.LEVEL]) * np.int32(load_u16(scale)), target, step, size)
        else:
            store_u16(block, np.uint16(plan[b + space.LEVEL]))
            transform_block(block, scale, target, step, size)
    scales[targets] += head[facts.ACROSS_MOST] * sizes[0]
    scales[targets + 1] += sizes[1]
    scales[targets + 2] += sizes[1]


@kernel
def _start_row(work, s, row):
    """Let a scale's next pixels be those of a row of MCUs, if any are wanted."""
    head, scales = i64_at(work, facts.HEAD_WORDS), i64_at(work + np.uint64(space.SCALES_AT), space.FREE + 1)
    s = space.SCALE_WORDS * s
    above = row - scales[s + space.FIRST_ROW]
    if above < 0 or row >= scales[s + space.END_ROW]:
        scales[s + space.UNTIL] = 0
        return
    scales[s + space.UNTIL] = scales[s + space.END]
    color = scales[s + space.COLOR] + above * scales[s + space.COLOR_SIZE] * scales[s + space.COLOR_ROW]
    scales[s + space.TARGETS] = (
        scales[s + space.PLANE] + above * head[facts.DOWN_MOST] * scales[s + space.SIZE] * scales[s + space.ROW]
    )
    scales[s + space.TARGETS + 1], scales[s + space.TARGETS + 2] = color, color + scales[s + space.COLOR_PLANE]


@kernel
def _transform_tile(work, number, mcus, keep, sizes, planes, steps):
    """Write the pixels of a tile.

    Args:
        work: Address of the scratch, where the tile is decoded.
        number: Of the tile there.
        mcus, keep: The MCUs of the tile up to the last and from the first whose pixels are needed.
        sizes: Pixels of a block's side, for luminance and color.
        planes: Addresses of the pixels of MCU `keep`, for each component.
        steps: Bytes from one row to the next, for luminance and color.
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
def _decode_tile_window(work, window, among):
    """Decode a window of a recoded file into the planes; see `_decode_row`.

    Args:
        work: Address of the scratch, which `open_tiles` has filled.
        window: (first, end, first, end) of rows and columns of MCUs.
        among: (first, end) of the scales whose planes are wanted.

    Returns:
        Whether all went well.
    """
    head, tiles = i64_at(work, facts.HEAD_WORDS), i64_at(work + np.uint64(space.TILES_AT), 16)
    scales = i64_at(work + np.uint64(space.SCALES_AT), space.FREE + 1)
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
            row = first_row + (begin + number) // columns
            mcu = (column + (begin + number) % columns) * tile_mcus
            for exponent in range(among[0], among[1]):
                s = space.SCALE_WORDS * exponent
                _start_row(work, exponent, row)
                keep, mcus = max(scales[s + space.FIRST] - mcu, 0), min(tile_mcus, scales[s + space.UNTIL] - mcu)
                if mcus <= keep:
                    continue
                sizes = scales[s + space.SIZE], scales[s + space.COLOR_SIZE]
                steps = np.uint64(scales[s + space.ROW]), np.uint64(scales[s + space.COLOR_ROW])
                here, targets = mcu + keep - scales[s + space.FIRST], s + space.TARGETS
                planes = (
                    np.uint64(scales[targets] + here * head[facts.ACROSS_MOST] * sizes[0]),
                    np.uint64(scales[targets + 1] + here * sizes[1]), np.uint64(scales[targets + 2] + here * sizes[1]),
                )  # fmt: skip
                _transform_tile(work, number, mcus, keep, sizes, planes, steps)
        begin += count
    return True


@kernel
def block_sizes(head, shrink):
    """Return the pixels of a block's side for luminance and for color, when the whole shrinks to 1 / shrink.

    Color that has fewer samples than luminance keeps more pixels of its blocks, as far as both directions allow.
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
def want_nothing(work):
    """Want no planes of the next `decode_planes`; work: address of `jpeg_room` bytes."""
    scales = i64_at(work + np.uint64(space.SCALES_AT), space.FREE + 1)
    for s in range(space.NUM_SCALES):
        scales[space.SCALE_WORDS * s + space.BOTTOM] = 0


@kernel
def want(work, exponent, rows, columns):
    """Want the planes of a rectangle too.

    Args:
        work: Address of `jpeg_room` bytes.
        exponent: 0 to 3: every block becomes 8 / 2**exponent pixels a side.
        rows, columns: (first, end) of the rectangle in the file's own orientation, inside the image, not empty.
    """
    scales = i64_at(work + np.uint64(space.SCALES_AT), space.FREE + 1)
    s, (top, bottom), (left, right) = space.SCALE_WORDS * exponent, rows, columns
    if scales[s + space.BOTTOM]:
        top, bottom = min(top, scales[s + space.TOP]), max(bottom, scales[s + space.BOTTOM])
        left, right = min(left, scales[s + space.LEFT]), max(right, scales[s + space.RIGHT])
    scales[s + space.TOP], scales[s + space.BOTTOM] = top, bottom
    scales[s + space.LEFT], scales[s + space.RIGHT] = left, right


@kernel
def _place_planes(work, head, plane):
    """Place the wanted planes of all scales from an address on; return the MCUs and the scales that they take.

    Returns:
        (first, end, first, end) of rows and columns of MCUs, (first, end) of scales; the ends are 0 if there are none.
    """
    scales = i64_at(work + np.uint64(space.SCALES_AT), space.FREE + 1)
    mcu_height, mcu_width = 8 * head[facts.DOWN_MOST], 8 * head[facts.ACROSS_MOST]
    window, among = (np.int64(2**40), np.int64(0), np.int64(2**40), np.int64(0)), (np.int64(0), np.int64(0))
    for exponent in range(space.NUM_SCALES):
        s = space.SCALE_WORDS * exponent
        if scales[s + space.BOTTOM] == 0:
            scales[s + space.END_ROW] = scales[s + space.END] = 0
            continue
        first_row, end_row = scales[s + space.TOP] // mcu_height, (scales[s + space.BOTTOM] - 1) // mcu_height + 1
        first, end = scales[s + space.LEFT] // mcu_width, (scales[s + space.RIGHT] - 1) // mcu_width + 1
        size, color_size = block_sizes(head, np.int64(1) << exponent)
        row = (end - first) * head[facts.ACROSS_MOST] * size + space.PLANE_SLACK
        color_row = (end - first) * color_size + space.PLANE_SLACK
        color = plane + np.uint64((end_row - first_row) * head[facts.DOWN_MOST] * size * row)
        color_plane = (end_row - first_row) * color_size * color_row
        scales[s + space.FIRST_ROW], scales[s + space.END_ROW] = first_row, end_row
        scales[s + space.FIRST], scales[s + space.END] = first, end
        scales[s + space.SIZE], scales[s + space.COLOR_SIZE] = size, color_size
        scales[s + space.ROW], scales[s + space.COLOR_ROW] = row, color_row
        scales[s + space.PLANE], scales[s + space.COLOR] = plane, color
        scales[s + space.COLOR_PLANE] = color_plane
        plane = color + np.uint64(2 * color_plane)
        window = min(window[0], first_row), max(window[1], end_row), min(window[2], first), max(window[3], end)
        among = (among[0] if among[1] else np.int64(exponent)), np.int64(exponent + 1)
    scales[space.FREE] = plane
    return window, among


@kernel
def decode_planes(payload, nbytes, work, image):
    """Decode the planes of all MCUs that touch what is wanted, each part of the file once.

    Args:
        payload, nbytes: Address of the payload and its length.
        work: Address of `jpeg_room` bytes, where `want` has set what is wanted. The scratch after the planes is free,
            and 16 * (width + 128) bytes before them.
        image: (height, width, components) that the file must have.

    Returns:
        Whether all went well.
    """
    if nbytes < SEEK_FOOTER_NBYTES:
        return False
    whole = u8_at(payload, nbytes)
    footer = nbytes - SEEK_FOOTER_NBYTES
    tail = payload + np.uint64(footer)
    file_nbytes, num_entries = np.int64(load_u32(tail)), np.int64(load_u32(tail + np.uint64(4)))
    step = np.int64(load_u16(tail + np.uint64(8)))
    data = u8_at(payload, file_nbytes)
    is_recoded = load_u32(tail + np.uint64(12)) == np.uint32(_FAST)
    if is_recoded:
        if not open_tiles(payload, nbytes, work, False):
            return False
    elif step < 1 or file_nbytes + num_entries * SEEK_ENTRY_NBYTES != footer or prepare(data, work, True) != facts.FINE:
        return False
    head = i64_at(work, facts.HEAD_WORDS)
    if head[facts.HEIGHT] != image[0] or head[facts.WIDTH] != image[1] or head[facts.COMPONENTS] != image[2]:
        return False
    down, across = places(head)
    entries_across = (across + step - 1) // step
    if not is_recoded and entries_across * down != num_entries:
        return False
    window, among = _place_planes(work, head, lines_at(work, nbytes) + np.uint64(16 * (image[1] + 128)))
    if is_recoded:
        return _decode_tile_window(work, window, among)
    first_row, end_row, first, end = window
    for r in range(first_row, end_row):
        number = r * entries_across + first // step
        behind = r * entries_across + (end + step - 1) // step  # of the next row if there is none in this one
        limit = file_nbytes
        if behind < num_entries:
            limit = min(limit, offset_at(whole, file_nbytes, behind) + 2)
        entry = entry_at(whole, file_nbytes, number)
        if entry[0] < head[facts.SCAN] or entry[0] >= limit:
            return False
        for s in range(among[0], among[1]):
            _start_row(work, s, r)
        row = r * across
        if not _decode_row(data, work, entry, row + first // step * step, row, row + end, limit, among):
            return False
    return True


@kernel
def planes_at(work, exponent):
    """Return the planes of a scale that `decode_planes` has filled.

    Returns:
        (address of the luminance plane and the bytes of its rows, address of the first color plane, the bytes of its
        rows and from it to the second one, first row and column of luminance pixels, first row and column of color
        pixels, whether there are half as many rows and half as many columns of color samples).
    """
    head, scales = i64_at(work, facts.HEAD_WORDS), i64_at(work + np.uint64(space.SCALES_AT), space.FREE + 1)
    s = space.SCALE_WORDS * exponent
    size, color_size = scales[s + space.SIZE], scales[s + space.COLOR_SIZE]
    first_row, first = scales[s + space.FIRST_ROW], scales[s + space.FIRST]
    return (
        np.uint64(scales[s + space.PLANE]), scales[s + space.ROW], np.uint64(scales[s + space.COLOR]),
        scales[s + space.COLOR_ROW], scales[s + space.COLOR_PLANE], first_row * head[facts.DOWN_MOST] * size,
        first * head[facts.ACROSS_MOST] * size, first_row * color_size, first * color_size,
        head[facts.DOWN_MOST] * size > color_size, head[facts.ACROSS_MOST] * size > color_size,
    )  # fmt: skip


@kernel
def want_pixels(work, image, orientation, window):
    """Want what `write_window` needs; see there."""
    height, width, _ = image
    top, bottom, left, right = stored_window(window, height, width, orientation)
    if orientation >= 5:
        height, width = width, height
    # Interpolating color looks at one sample more on each side: at most two pixels.
    rows, columns = (max(top - 2, 0), min(bottom + 2, height)), (max(left - 2, 0), min(right + 2, width))
    want(work, np.int64(0), rows, columns)


@kernel
def write_window(nbytes, image, orientation, window, out, work):
    """Write a window of a payload's upright image, whose planes are decoded, as planes (C, h, w).

    Args:
        nbytes: Of the payload.
        image: (height, width, channels) of the upright image.
        orientation: 1 to 8, as in EXIF.
        window: (top, bottom, left, right), inside it.
        out: Address of the result.
        work: Address of `jpeg_room` bytes.
    """
    height, width, channels = image
    inner = stored_window(window, height, width, orientation)
    if orientation >= 5:
        height, width = width, height
    planes = planes_at(work, np.int64(0))
    free = np.uint64(i64_at(work + np.uint64(space.SCALES_AT), space.FREE + 1)[space.FREE])
    target = out if orientation == 1 else free
    write_pixels(planes, (height, width, channels), planes[-2:], inner, lines_at(work, nbytes), target)
    if orientation != 1:
        turn(target, channels, window[1] - window[0], window[3] - window[2], orientation, out)


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
    orientation = orientation_of(payload, nbytes)
    want_nothing(work)
    want_pixels(work, image, orientation, window)
    if not decode_planes(payload, nbytes, work, stored_shape(image, orientation)):
        return False
    write_window(nbytes, image, orientation, window, np.uint64(out), work)
    return True


@kernel
def stored_shape(image, orientation):
    """Return (height, width, channels) of the file of an upright image."""
    height, width, channels = image
    if orientation >= 5:
        height, width = width, height
    return height, width, channels
