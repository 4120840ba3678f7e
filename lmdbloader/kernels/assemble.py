"""Kernels that check, decode, transform and place the images of many samples: from the data file to batches."""

from __future__ import annotations

import numpy as np

from lmdbloader.base.clock_words import FUNCTION, TRANSFORM
from lmdbloader.kernels import assemble_columns as col
from lmdbloader.kernels import codec_numbers as num
from lmdbloader.kernels.decode import (
    decode_block,
    decode_jpeg_resized,
    decode_window,
    fetch,
    has_room,
    has_windows,
    is_intact,
    is_jpeg,
)
from lmdbloader.kernels.resize.antialias import has_scratch, resize_window
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.half import floats_of_halves
from lmdbloader.kernels.runtime.memory import array_at, f32_at, i64_at, prefetch, settle, u8_at, u16_at, u32_at, u64_at
from lmdbloader.kernels.runtime.presence import look
from lmdbloader.kernels.runtime.timing import tick
from lmdbloader.kernels.runtime.xxhash import xxh3_copy
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.kernels.transform.color import change_colors
from lmdbloader.kernels.transform.float_pass import convert_planes, suits
from lmdbloader.kernels.transform.geometry import is_filled
from lmdbloader.kernels.transform.mixing import mix
from lmdbloader.kernels.transform.place import erase, finish, place, place_nearest
from lmdbloader.kernels.transform.program import draw
from lmdbloader.kernels.transform.warp import displaces, move, warp

# Samples whose rows, and later payloads, are asked for together: the processor then looks up their pages side by side.
_TOGETHER = 32
# No image has as many: its bytes are one payload.
_MOST_PIXELS = 2**31


@kernel
def _u32_of(columns, column, i):
    """Return row i of a column of uint32 of a field, as int64."""
    row = i & columns[col.OWN_ROW + column]
    return np.int64(u32_at(columns[column], row + 1)[row])


@kernel
def _u8_of(columns, column, i):
    """Return row i of a column of uint8 of a field, as int64."""
    row = i & columns[col.OWN_ROW + column]
    return np.int64(u8_at(columns[column], row + 1)[row])


@kernel
def _window(g, top, bottom, left, right):
    """Return (top, bottom, left, right) in the image of a rectangle of the result."""
    rows_from, rows_to, columns_from, columns_to = top, bottom, left, right
    if g[op.TRANSPOSED]:
        rows_from, rows_to, columns_from, columns_to = left, right, top, bottom
    a, b = g[op.ROW] + g[op.DOWN] * rows_from, g[op.ROW] + g[op.DOWN] * (rows_to - 1)
    c, d = g[op.COLUMN] + g[op.ACROSS] * columns_from, g[op.COLUMN] + g[op.ACROSS] * (columns_to - 1)
    return min(a, b), max(a, b) + 1, min(c, d), max(c, d) + 1


@kernel
def _fits(height, width, channels, nbytes):
    """Return whether an image is not empty, and not larger than a room of so many bytes; sizes may be of any kind."""
    return height > 0 and width > 0 and np.float64(height) * width * channels <= nbytes


@kernel
def _set_sizes(columns, i, geometry):
    """Write the stored sizes of sample i's images into their first stages; return whether each can be an image's."""
    for f in range(columns.shape[0]):
        height, width = _u32_of(columns[f], col.IMAGE_HEIGHT, i), _u32_of(columns[f], col.IMAGE_WIDTH, i)
        if not _fits(height, width, 1, _MOST_PIXELS):
            return False
        geometry[f, 0, op.HEIGHT] = geometry[f, 0, op.STORED_HEIGHT] = height
        geometry[f, 0, op.WIDTH] = geometry[f, 0, op.STORED_WIDTH] = width
    return True


@kernel
def _run_stages(source, row, plane, channels, begun, geometry, color, rooms, scratch, described, affine, out):
    """Carry an image through its stages from number `begun` on and write it into the batch.

    If earlier stages are done, their result is in the room ROOM_FIRST.
    """
    bounds, weights, line = scratch
    last = geometry.shape[0] - 1
    room, other = np.int64(col.ROOM_FIRST), np.int64(col.ROOM_SECOND)
    if begun:
        room, other = other, room
    limit = rooms[col.ROOM_NBYTES + col.ROOM_FIRST] // source.itemsize
    for s in range(begun, last):
        g = geometry[s]
        if g[op.CLOSING] == op.CARRY:
            continue
        h, w = g[op.HEIGHT], g[op.WIDTH]
        if g[op.CLOSING] == op.THEN_RESIZE or g[op.CLOSING] == op.THEN_WARP:
            new_h, new_w = g[op.NEW_HEIGHT], g[op.NEW_WIDTH]
        else:
            new_h, new_w = h, w
        if not (_fits(h, w, channels, limit) and _fits(new_h, new_w, channels, limit)):
            return num.CHANGED
        if g[op.CLOSING] == op.THEN_RESIZE and g[op.MASK]:
            if new_w > bounds.shape[0]:
                return num.CHANGED
            target = array_at(rooms[room], limit, source)
            place_nearest(source, row, g, target, new_h, new_w, bounds)
        elif g[op.CLOSING] == op.THEN_RESIZE and not is_filled(g):
            top, bottom, left, right = _window(g, np.int64(0), h, np.int64(0), w)
            if not has_scratch(bottom - top, right - left, new_h, new_w, g[op.CUBIC] != 0, scratch):
                return num.CHANGED
            target = array_at(rooms[room], limit, source)
            resize_window(
                source, top * row + left, row, plane, channels, bottom - top, right - left,
                0.0, 0.0, float(bottom - top), float(right - left),
                target, new_h, new_w, g[op.CUBIC] != 0, bounds, weights, line,
            )  # fmt: skip
        else:
            target = array_at(rooms[room], limit, source)
            place(source, row, plane, channels, g, target)
            if g[op.CLOSING] == op.THEN_RESIZE:
                if not has_scratch(h, w, new_h, new_w, g[op.CUBIC] != 0, scratch):
                    return num.CHANGED
                room, other = other, room
                resized = array_at(rooms[room], limit, source)
                resize_window(
                    target, 0, w, h * w, channels, h, w, 0.0, 0.0, float(h), float(w),
                    resized, new_h, new_w, g[op.CUBIC] != 0, bounds, weights, line,
                )  # fmt: skip
                target = resized
            elif g[op.CLOSING] == op.THEN_WARP:
                room, other = other, room
                warped = array_at(rooms[room], limit, source)
                if not warp(target, channels, h, w, g, color[s], warped, new_h, new_w, line):
                    return num.CHANGED
                target = warped
            elif g[op.CLOSING] == op.THEN_COLOR:
                if source.itemsize == 1 and color[s, op.COLOR_CODE] == op.AUGMIX:
                    fits = mix(u8_at(target.ctypes.data, limit), channels, h, w, color[s], line)
                elif source.itemsize == 1:
                    fits = change_colors(u8_at(target.ctypes.data, limit), channels, h, w, color[s], line)
                else:
                    fits = change_colors(u16_at(target.ctypes.data, limit), channels, h, w, color[s], line)
                if not fits:
                    return num.CHANGED
        source, row, plane = target, new_w, new_h * new_w
        room, other = other, room
    g = geometry[last]
    if g[op.HEIGHT] != described[col.OUT_HEIGHT] or g[op.WIDTH] != described[col.OUT_WIDTH]:
        return num.CHANGED
    kind = described[col.KIND]
    if source.itemsize == 4 and kind == op.COPY and described[col.OUT_ITEMSIZE] == 2:  # float16, which came as float32
        kind = np.int64(op.HALF)
    finish(
        source, row, plane, channels, g, out, described[col.OUT_ITEMSIZE], described[col.CHANNELS_LAST] != 0,
        kind, affine, np.uint64(described[col.TABLE]), described[col.TABLE_STEP],
        array_at(rooms[room], limit, source), described[col.STREAMED] != 0,
    )  # fmt: skip
    return num.OK


@kernel
def _is_copied(geometry, described, height, width):
    """Return whether an image of this size goes into the batch as its planes are stored."""
    g = geometry[0]
    is_whole = g[op.ROW] == 0 and g[op.COLUMN] == 0 and g[op.HEIGHT] == height and g[op.WIDTH] == width
    is_upright = g[op.TRANSPOSED] == 0 and g[op.DOWN] > 0 and g[op.ACROSS] > 0 and not is_filled(g)
    fits = described[col.OUT_HEIGHT] == height and described[col.OUT_WIDTH] == width
    is_same = described[col.KIND] == op.COPY and described[col.CHANNELS_LAST] == 0
    return geometry.shape[0] == 1 and is_whole and is_upright and fits and is_same


@kernel
def _is_one_pass(geometry, described, out):
    """Return whether an image's planes go into the batch as float32 with no other stage between."""
    g = geometry[0]
    fits = described[col.OUT_HEIGHT] == g[op.HEIGHT] and described[col.OUT_WIDTH] == g[op.WIDTH]
    is_float = described[col.KIND] == op.FLOAT and described[col.CHANNELS_LAST] == 0
    return geometry.shape[0] == 1 and fits and is_float and suits(g, out, described[col.STREAMED] != 0)


@kernel
def _read_image(file, i, columns, verify, given, described, affine, geometry, color, rooms, scratch, out):
    """Read image i of one field into its place in the batch; see `assemble`.

    Somebody may write into the index meanwhile: each number of it is read once, and then compared with the rooms.
    """
    _, _, descriptor, _, clock = file
    at = i64_at(columns[col.OFFSET], i + 1)[i]
    nbytes, raw = _u32_of(columns, col.STORED_NBYTES, i), _u32_of(columns, col.RAW_NBYTES, i)
    checksum = u64_at(columns[col.CHECKSUM], i + 1)[i]
    codec = np.uint8(_u8_of(columns, col.CODEC, i))
    height, width = geometry[0, op.STORED_HEIGHT], geometry[0, op.STORED_WIDTH]
    channels, bits = _u8_of(columns, col.CHANNELS, i), _u8_of(columns, col.BITS, i)
    itemsize = bits // 8
    wanted = described[col.OUT_CHANNELS]
    # Grey among colours becomes three times the same plane.
    if (channels != wanted and channels != 1) or bits != described[col.IN_BITS]:
        return num.CHANGED
    if np.float64(height) * width * (channels * itemsize) != raw or raw == 0:
        return num.CHANGED
    row, plane = width, height * width
    if given[1] < 0:  # a JPEG in memory
        descriptor, at, nbytes = np.int64(-1), np.int64(0), -given[1]
        file, codec, verify = (given[0], nbytes, descriptor, at, clock), np.uint8(num.CODEC_JPEG), False
    if given[1] > 0:
        if raw != given[1]:
            return num.CHANGED
        address = np.uint64(given[0])
    elif (descriptor != -1 and nbytes > rooms[col.ROOM_NBYTES + col.ROOM_STORED]) or (
        codec != num.CODEC_RAW and raw > rooms[col.ROOM_NBYTES + col.ROOM_PIXELS]
    ):
        return num.CHANGED
    elif has_windows(codec):
        image, tile = (height, width, channels, itemsize), described[col.TILE]
        if not has_room(
            codec,
            nbytes,
            raw,
            image,
            tile,
            rooms[col.ROOM_NBYTES + col.ROOM_TILE],
            rooms[col.ROOM_NBYTES + col.ROOM_JPEG],
        ):
            return num.CHANGED
        first = np.int64(0)
        while geometry[first, op.CLOSING] == op.CARRY and first < geometry.shape[0] - 1:
            first += 1
        g = geometry[first]
        if g[op.TOP] < g[op.BOTTOM] and g[op.LEFT] < g[op.RIGHT]:
            top, bottom, left, right = _window(g, g[op.TOP], g[op.BOTTOM], g[op.LEFT], g[op.RIGHT])
        else:  # all of it is fill
            top, bottom, left, right = np.int64(0), np.int64(1), np.int64(0), np.int64(1)
        if top < 0 or left < 0 or bottom > height or right > width:
            return num.CHANGED
        if is_jpeg(codec) and g[op.CLOSING] == op.THEN_RESIZE and not is_filled(g):
            new_h, new_w = g[op.NEW_HEIGHT], g[op.NEW_WIDTH]
            if not _fits(new_h, new_w, channels, rooms[col.ROOM_NBYTES + col.ROOM_FIRST]):
                return num.CHANGED
            if not has_scratch(bottom - top, right - left, new_h, new_w, g[op.CUBIC] != 0, scratch):
                return num.CHANGED
            status = decode_jpeg_resized(
                file, at, nbytes, checksum, verify, (height, width, channels), (top, bottom, left, right),
                new_h, new_w, g[op.CUBIC] != 0, rooms[col.ROOM_FIRST], rooms[col.ROOM_SECOND], rooms[col.ROOM_STORED],
                rooms[col.ROOM_JPEG], scratch,
            )  # fmt: skip
            if status:
                return status
            plane = new_h * new_w if channels == wanted else np.int64(0)
            return _run_stages(
                u8_at(rooms[col.ROOM_FIRST], new_h * new_w * channels), new_w, plane, wanted, first + 1, geometry,
                color, rooms, scratch, described, affine, out,
            )  # fmt: skip
        status = decode_window(
            file, at, nbytes, checksum, codec, verify, image, tile, (top, bottom, left, right), rooms[col.ROOM_PIXELS],
            (rooms[col.ROOM_STORED], rooms[col.ROOM_TILE], rooms[col.ROOM_JPEG]),
        )  # fmt: skip
        if status:
            return status
        address = np.uint64(rooms[col.ROOM_PIXELS])
        g[op.ROW] -= top
        g[op.COLUMN] -= left
        row, plane = right - left, (bottom - top) * (right - left)
    elif codec == num.CODEC_RAW:  # used in place
        address = fetch(file, at, nbytes, rooms[col.ROOM_STORED], verify)
        if address == 0 or nbytes != raw:
            return num.OUT_OF_BOUNDS
        if verify and channels == wanted and _is_copied(geometry, described, height, width):
            found = xxh3_copy(address, np.uint64(out), np.uint64(nbytes), described[col.STREAMED] != 0)
            return num.OK if found == checksum else num.BAD_CHECKSUM
        # Reading columns takes half the time if the rows are in the cache, and hashing brings them there.
        hashes = verify or geometry[0, op.TRANSPOSED] != 0
        if hashes and channels == wanted and itemsize == 1 and _is_one_pass(geometry, described, out):
            found = convert_planes(
                address, nbytes, row, plane, channels, geometry[0], out, affine, described[col.STREAMED] != 0
            )
            return num.OK if found == checksum or not verify else num.BAD_CHECKSUM
        if hashes and not is_intact(address, nbytes, checksum, clock) and verify:
            return num.BAD_CHECKSUM
    else:
        status = decode_block(
            file, at, nbytes, raw, checksum, codec, verify, rooms[col.ROOM_PIXELS], rooms[col.ROOM_STORED]
        )  # fmt: skip
        if status:
            return status
        address = np.uint64(rooms[col.ROOM_PIXELS])
    count = plane * channels
    if channels != wanted:
        plane = np.int64(0)
    if itemsize == 1:
        return _run_stages(
            u8_at(address, count), row, plane, wanted, np.int64(0), geometry, color, rooms, scratch, described,
            affine, out,
        )  # fmt: skip
    if itemsize == 4 or bits % 2:
        floats = f32_at(address, count)
        if itemsize == 2:
            if not _fits(count, 4, 1, rooms[col.ROOM_NBYTES + col.ROOM_SECOND]):
                return num.CHANGED
            floats = f32_at(rooms[col.ROOM_SECOND], count)
            floats_of_halves(address, floats)
        return _run_stages(
            floats, row, plane, wanted, np.int64(0), geometry, color, rooms, scratch, described, affine, out,
        )  # fmt: skip
    return _run_stages(
        u16_at(address, count), row, plane, wanted, np.int64(0), geometry, color, rooms, scratch, described,
        affine, out,
    )  # fmt: skip


@kernel
def _expect_rows(columns, rows, first):
    """Ask for the cache lines of some samples' rows, one in each column: of many rows none of them is in a cache."""
    for j in range(first, min(first + _TOGETHER, rows.shape[0])):
        row = np.uint64(rows[j])
        for f in range(columns.shape[0]):
            prefetch(np.uint64(columns[f, col.OFFSET]) + row * np.uint64(8))
            prefetch(np.uint64(columns[f, col.CHECKSUM]) + row * np.uint64(8))
            for column in (col.STORED_NBYTES, col.RAW_NBYTES, col.IMAGE_HEIGHT, col.IMAGE_WIDTH):
                if columns[f, col.OWN_ROW + column]:
                    prefetch(np.uint64(columns[f, column]) + row * np.uint64(4))
            for column in (col.CODEC, col.CHANNELS, col.BITS):
                if columns[f, col.OWN_ROW + column]:
                    prefetch(np.uint64(columns[f, column]) + row)


@kernel
def _expect_payloads(file, columns, rows, first):
    """Ask for the first cache line of some samples' payloads, whose rows are in a cache by now."""
    base, _, descriptor, _, _ = file
    if descriptor != -1:
        return
    for j in range(first, min(first + _TOGETHER, rows.shape[0])):
        i = rows[j]
        for f in range(columns.shape[0]):
            prefetch(np.uint64(base) + np.uint64(i64_at(columns[f, col.OFFSET], i + 1)[i]))


@kernel
def assemble(
    file, verify, columns, given, described, affine, erased, program, seed, epoch, rows, samples, out, batch_size,
    rooms, scratch, drawn, failed,
):  # fmt: skip
    """Read the images of many samples into batches.

    Args:
        file: (address of the map, its bytes, file descriptor, guard, clock), see `fetch`.
        verify: Whether to check XXH3 before anything is decompressed.
        columns: (fields, 2 x columns) int64: the addresses of the index's columns, and which of them have a number for
            each row; see `assemble_columns` for these, `described` and `rooms`.
        given: (n or 0, fields, 2) int64 addresses and bytes of (C, H, W) pixels that are decoded already, 0 for those
            that are not; of a JPEG's payload in memory, its bytes as a negative number.
        described: (fields, NUM_DESCRIBED) int64.
        affine: (fields, channels, 2) float32: factor and term of each channel where the values become float32.
        erased: (fields, erasings, channels) uint32, the bits that fill each erased rectangle.
        program: (whole, real), the transforms, see `draw`.
        seed, epoch: uint64.
        rows: (n,) int64 rows of the index, each inside it.
        samples: (n,) int64, the numbers that random choices depend on.
        out: (batches, fields) int64 addresses, each with room for batch_size images (the last batch may be shorter).
        batch_size: Samples of a batch.
        rooms: (12,) int64, this thread's working memory.
        scratch: (bounds, weights, line), working memory of a resize.
        drawn: (geometry, color, rectangles, most), which `draw` fills.
        failed: (2,) int64, set to the position in `rows` and the field of the first failure.

    Returns:
        A status.
    """
    geometry, color, rectangles, most = drawn
    whole, real = program
    num_fields = columns.shape[0]
    _, _, _, guard, clock = file
    tick(clock, FUNCTION)
    look(guard)
    _expect_rows(columns, rows, 0)
    _expect_payloads(file, columns, rows, 0)
    _expect_rows(columns, rows, _TOGETHER)
    for j in range(rows.shape[0]):
        failed[col.FAILED_ROW] = j
        failed[col.FAILED_FIELD] = 0
        i = rows[j]
        if j % _TOGETHER == 0:
            _expect_payloads(file, columns, rows, j + _TOGETHER)
            _expect_rows(columns, rows, j + 2 * _TOGETHER)
        if not _set_sizes(columns, i, geometry):
            return num.CHANGED
        status = draw(whole, real, seed, epoch, np.uint64(samples[j]), geometry, color, rectangles, most)
        if whole.shape[0]:
            tick(clock, TRANSFORM)
        if status:
            return status
        for f in range(num_fields):
            failed[col.FAILED_FIELD] = f
            d = described[f]
            count = d[col.OUT_CHANNELS] * d[col.OUT_HEIGHT] * d[col.OUT_WIDTH]
            place_at = np.uint64(out[j // batch_size, f] + (j % batch_size) * count * d[col.OUT_ITEMSIZE])
            pixels = (given[j, f, 0], given[j, f, 1]) if given.shape[0] else (np.int64(0), np.int64(0))
            status = _read_image(
                file, i, columns[f], verify, pixels, d, affine[f], geometry[f], color[f], rooms, scratch, place_at
            )
            if status:
                return status
            for k in range(erased.shape[1]):
                if rectangles[f, k, 2] > 0:
                    erase(
                        place_at, d[col.OUT_ITEMSIZE], d[col.CHANNELS_LAST] != 0, d[col.OUT_CHANNELS],
                        d[col.OUT_HEIGHT], d[col.OUT_WIDTH], rectangles[f, k], erased[f, k],
                    )  # fmt: skip
            tick(clock, TRANSFORM)
    settle()
    return num.OK


@kernel
def _carry(g, place):
    """Move a point (x, y), or the corners of a box, through the window of a stage and its resize."""
    unit = 1.0 if place.shape[0] == 4 else 0.0  # the sides of boxes are between pixels
    for k in range(0, place.shape[0], 2):
        x, y = place[k], place[k + 1]
        if g[op.TRANSPOSED]:
            x, y = y - g[op.ROW], x - g[op.COLUMN]
            x, y = x if g[op.DOWN] > 0 else unit - x, y if g[op.ACROSS] > 0 else unit - y
        else:
            x, y = x - g[op.COLUMN], y - g[op.ROW]
            x, y = x if g[op.ACROSS] > 0 else unit - x, y if g[op.DOWN] > 0 else unit - y
        if place.shape[0] == 4:
            x = min(max(x, float(g[op.LEFT])), float(g[op.RIGHT]))
            y = min(max(y, float(g[op.TOP])), float(g[op.BOTTOM]))
        if g[op.CLOSING] == op.THEN_RESIZE:
            x, y = x * (g[op.NEW_WIDTH] / g[op.WIDTH]), y * (g[op.NEW_HEIGHT] / g[op.HEIGHT])
        place[k], place[k + 1] = x, y
    if place.shape[0] == 4:  # a flip exchanges the corners
        for k in range(2):
            place[k], place[k + 2] = min(place[k], place[k + 2]), max(place[k], place[k + 2])


@kernel
def trace(columns, program, seed, epoch, rows, samples, drawn, field, counts, places, line):
    """Draw the transforms of samples, and move places in an image of each to where they are in the result.

    Args:
        columns, program, seed, epoch, rows, samples: As in `assemble`.
        drawn: As in `assemble`, with the geometries of masks: those are not turned after a resize.
        field: The field of the images.
        counts: (n,) int64, the places of each sample.
        places: (places, 2) float64 points (x, y), of which the last pixel is the width less 1; or (places, 4) boxes
            (left, top, right, bottom), from 0 to the width, which end where the image ends. They are replaced.
        line: float32, scratch of an elastic warp.

    Returns:
        A status.
    """
    geometry, color, rectangles, most = drawn
    whole, real = program
    first, last = np.int64(0), geometry.shape[1] - 1
    for j in range(rows.shape[0]):
        if not _set_sizes(columns, rows[j], geometry):
            return num.CHANGED
        status = draw(whole, real, seed, epoch, np.uint64(samples[j]), geometry, color, rectangles, most)
        if status:
            return status
        for s in range(last + 1):
            g = geometry[field, s]
            if g[op.CLOSING] == op.CARRY and s < last:
                continue
            warps = g[op.CLOSING] == op.THEN_WARP
            if warps and not displaces(color[field, s], line):
                return num.CHANGED
            for k in range(first, first + counts[j]):
                _carry(g, places[k])
                if warps:
                    move(g, color[field, s], line, places[k])
        first += counts[j]
    return num.OK


@kernel
def measure(columns, program, rows, drawn, shapes, failed):
    """Find the shapes that a program gives every sample, without reading any.

    Args:
        columns, program, rows, drawn: As in `assemble`; `most` is set to the sizes that the rooms must hold.
        shapes: (fields, 4) int64, set to LOW_HEIGHT ... HIGH_WIDTH of the results.
        failed: (2,) int64, set to the position in `rows` that a status is about.

    Returns:
        A status.
    """
    geometry, color, rectangles, most = drawn
    whole, real = program
    last = geometry.shape[1] - 1
    for j in range(rows.shape[0]):
        if not _set_sizes(columns, rows[j], geometry):
            failed[col.FAILED_ROW] = j
            return num.CHANGED
        for f in range(columns.shape[0]):
            most[col.MOST_PIXELS] = max(most[col.MOST_PIXELS], geometry[f, 0, op.HEIGHT] * geometry[f, 0, op.WIDTH])
            most[col.MOST_HEIGHT] = max(most[col.MOST_HEIGHT], geometry[f, 0, op.HEIGHT])
            most[col.MOST_WIDTH] = max(most[col.MOST_WIDTH], geometry[f, 0, op.WIDTH])
        status = draw(whole, real, np.uint64(0), np.uint64(0), np.uint64(j), geometry, color, rectangles, most)
        if status:
            failed[col.FAILED_ROW] = j
            return status
        for f in range(columns.shape[0]):
            g = geometry[f, last]
            shapes[f, col.LOW_HEIGHT] = g[op.HEIGHT] if j == 0 else min(shapes[f, col.LOW_HEIGHT], g[op.HEIGHT])
            shapes[f, col.HIGH_HEIGHT] = g[op.HEIGHT] if j == 0 else max(shapes[f, col.HIGH_HEIGHT], g[op.HEIGHT])
            shapes[f, col.LOW_WIDTH] = g[op.WIDTH] if j == 0 else min(shapes[f, col.LOW_WIDTH], g[op.WIDTH])
            shapes[f, col.HIGH_WIDTH] = g[op.WIDTH] if j == 0 else max(shapes[f, col.HIGH_WIDTH], g[op.WIDTH])
    return num.OK
