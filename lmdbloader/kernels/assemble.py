"""Kernels that check, decode, transform and place the images of many samples: from the data file to batches."""

from __future__ import annotations

import numpy as np

from lmdbloader.base.clock_words import DECODE, FUNCTION, TRANSFORM
from lmdbloader.kernels import assemble_columns as col
from lmdbloader.kernels import codec_numbers as num
from lmdbloader.kernels.decode import (
    decode_block,
    decode_window,
    fetch,
    fetch_jpeg,
    has_room,
    has_windows,
    is_intact,
    is_jpeg,
)
from lmdbloader.kernels.jpeg.decode import decode_planes, stored_shape, want_nothing, want_pixels, write_window
from lmdbloader.kernels.jpeg.kept import use_planes
from lmdbloader.kernels.jpeg.resize import want_resized, write_resized
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
from lmdbloader.kernels.transform.program import draw, raise_most
from lmdbloader.kernels.transform.warp import displaces, move, warp

# Samples whose rows, and later payloads, are asked for together: the processor then looks up their pages side by side.
_TOGETHER = 32
# Tables of a JPEG are made in the time in which so many pixels are decoded.
_OPENING = 4096
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
    """Write the stored sizes of sample i's images into their first stages; return whether each can be an image's.

    geometry: (views, fields, stages, NUM_GEOMETRY) int64.
    """
    for f in range(columns.shape[0]):
        height, width = _u32_of(columns[f], col.IMAGE_HEIGHT, i), _u32_of(columns[f], col.IMAGE_WIDTH, i)
        if not _fits(height, width, 1, _MOST_PIXELS):
            return False
        for v in range(geometry.shape[0]):
            geometry[v, f, 0, op.HEIGHT] = geometry[v, f, 0, op.STORED_HEIGHT] = height
            geometry[v, f, 0, op.WIDTH] = geometry[v, f, 0, op.STORED_WIDTH] = width
    return True


@kernel
def _is_resized(g):
    """Return whether a stage resizes a window of the image before it."""
    return g[op.CLOSING] == op.THEN_RESIZE and not is_filled(g)


@kernel
def _run_stages(source, row, plane, begun, rooms, rest):
    """Carry an image through its stages from number `begun` on and write it into the batch; see `_carry`.

    If earlier stages are done, their result is in the room ROOM_FIRST.
    """
    channels, geometry, color, scratch, described, affine, out = rest
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
        elif _is_resized(g):
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
def _first_stage(geometry):
    """Return the number of the first stage that does anything, of all the stages of a field's image."""
    first = np.int64(0)
    while geometry[first, op.CLOSING] == op.CARRY and first < geometry.shape[0] - 1:
        first += 1
    return first


@kernel
def _first_window(geometry):
    """Return (top, bottom, left, right) of the pixels of an image that its stages use."""
    g = geometry[_first_stage(geometry)]
    if g[op.TOP] < g[op.BOTTOM] and g[op.LEFT] < g[op.RIGHT]:
        return _window(g, g[op.TOP], g[op.BOTTOM], g[op.LEFT], g[op.RIGHT])
    return np.int64(0), np.int64(1), np.int64(0), np.int64(1)  # all of it is fill


@kernel
def _union(geometry, f, begin, end):
    """Return the window around those of views begin ... end - 1, and the sum of their areas."""
    top, bottom, left, right = _first_window(geometry[begin, f])
    total = (bottom - top) * (right - left)
    for v in range(begin + 1, end):
        a, b, c, d = _first_window(geometry[v, f])
        total += (b - a) * (d - c)
        top, bottom, left, right = min(top, a), max(bottom, b), min(left, c), max(right, d)
    return (top, bottom, left, right), total


@kernel
def _at_once(geometry, f, opening):
    """Return how many views are read together: all, or one if they are far apart; opening: pixels as dear as a read."""
    num_views = geometry.shape[0]
    (top, bottom, left, right), total = _union(geometry, f, np.int64(0), num_views)
    return num_views if (bottom - top) * (right - left) <= total + opening * (num_views - 1) else np.int64(1)


@kernel
def _carry(address, image, bits, row, plane, begun, rooms, rest):
    """Carry pixels at an address through the stages of a view, see `_run_stages`.

    Args:
        address: Of values of image[2] channels.
        image: (height, width, channels) of what is there.
        bits: Of a value, see `described`.
        row, plane: Values to the next row, and to the next channel (0: they are equal).
        begun: How many stages are done.
        rooms: As in `assemble`.
        rest: (channels, geometry, color, scratch, described, affine, out).
    """
    count = image[0] * image[1] * image[2]
    if bits == 8:
        return _run_stages(u8_at(address, count), row, plane, begun, rooms, rest)
    if bits == 16:
        return _run_stages(u16_at(address, count), row, plane, begun, rooms, rest)
    floats = f32_at(address, count)
    if bits // 8 == 2:
        if not _fits(count, 4, 1, rooms[col.ROOM_NBYTES + col.ROOM_SECOND]):
            return num.CHANGED
        floats = f32_at(rooms[col.ROOM_SECOND], count)
        floats_of_halves(address, floats)
    return _run_stages(floats, row, plane, begun, rooms, rest)


@kernel
def _read_jpeg(file, payload, verify, image, f, described, affine, geometry, color, rooms, scratch, out):
    """Read a JPEG into its places in the batch, each part of it decoded once; see `_read_image`.

    Args:
        payload: (its first byte, its length, its checksum); of a block with its planes, (address, 0, 0).
        image: (height, width, channels).
        f: Number of the field; the others are as in `assemble`, and `out` has the address of each view and field.
    """
    clock, (at, nbytes, checksum) = file[4], payload
    if nbytes:
        status, source, orientation = fetch_jpeg(file, at, nbytes, checksum, verify, rooms[col.ROOM_STORED])
        if status:
            return status
    else:
        source, orientation = np.uint64(at), i64_at(at, 2)[1]
    work, num_views, num_fields = np.uint64(rooms[col.ROOM_JPEG]), geometry.shape[0], geometry.shape[1]
    begin, step = np.int64(0), _at_once(geometry, f, np.int64(_OPENING))
    while begin < num_views:
        end = begin + step
        want_nothing(work)
        for v in range(begin, end):
            g, window = geometry[v, f, _first_stage(geometry[v, f])], _first_window(geometry[v, f])
            if window[0] < 0 or window[2] < 0 or window[1] > image[0] or window[3] > image[1]:
                return num.CHANGED
            if not _is_resized(g):
                want_pixels(work, image, orientation, window)
                continue
            h, w, new_h, new_w = window[1] - window[0], window[3] - window[2], g[op.NEW_HEIGHT], g[op.NEW_WIDTH]
            fits = _fits(new_h, new_w, image[2], rooms[col.ROOM_NBYTES + col.ROOM_FIRST])
            if not (fits and has_scratch(h, w, new_h, new_w, g[op.CUBIC] != 0, scratch)):
                return num.CHANGED
            want_resized(work, image, orientation, window, new_h, new_w)
        stored = stored_shape(image, orientation)
        fine = decode_planes(source, nbytes, work, stored) if nbytes else use_planes(source, work, stored)
        tick(clock, DECODE)
        if not fine:
            return num.BAD_JPEG
        for v in range(begin, end):
            k, first = v * num_fields + f, _first_stage(geometry[v, f])
            g, window = geometry[v, f, first], _first_window(geometry[v, f])
            wanted = described[k, col.OUT_CHANNELS]
            if _is_resized(g):
                pixels, height, width = np.uint64(rooms[col.ROOM_FIRST]), g[op.NEW_HEIGHT], g[op.NEW_WIDTH]
                write_resized(
                    work, image, orientation, window, height, width, g[op.CUBIC] != 0, pixels,
                    np.uint64(rooms[col.ROOM_SECOND]), scratch,
                )  # fmt: skip
                first += 1
            else:
                pixels, height, width = np.uint64(rooms[col.ROOM_PIXELS]), window[1] - window[0], window[3] - window[2]
                write_window(nbytes, image, orientation, window, pixels, work)
                tick(clock, DECODE)
                g[op.ROW] -= window[0]
                g[op.COLUMN] -= window[2]
                first = np.int64(0)
            plane = height * width if image[2] == wanted else np.int64(0)
            rest = wanted, geometry[v, f], color[v, f], scratch, described[k], affine[k], np.uint64(out[k])
            status = _carry(pixels, (height, width, image[2]), np.int64(8), width, plane, first, rooms, rest)
            if status:
                return status
        begin = end
    return num.OK


@kernel
def _read_tiles(file, payload, codec, verify, image, f, described, affine, geometry, color, rooms, scratch, out):
    """Read a tiled image into its places in the batch, each of its tiles decoded once; see `_read_image`.

    Args:
        image: (height, width, channels, bits); the others are as in `_read_jpeg`.
    """
    (at, nbytes, checksum), (height, width, channels, bits) = payload, image
    num_views, num_fields = geometry.shape[0], geometry.shape[1]
    begin, step = np.int64(0), _at_once(geometry, f, np.int64(0))
    while begin < num_views:
        end = begin + step
        window, _ = _union(geometry, f, begin, end)
        top, bottom, left, right = window
        if top < 0 or left < 0 or bottom > height or right > width:
            return num.CHANGED
        status = decode_window(
            file, at, nbytes, checksum, codec, verify, (height, width, channels, bits // 8), described[f, col.TILE],
            window, rooms[col.ROOM_PIXELS], (rooms[col.ROOM_STORED], rooms[col.ROOM_TILE], rooms[col.ROOM_JPEG]),
        )  # fmt: skip
        if status:
            return status
        part = bottom - top, right - left, channels
        for v in range(begin, end):
            k = v * num_fields + f
            g, wanted = geometry[v, f, _first_stage(geometry[v, f])], described[k, col.OUT_CHANNELS]
            g[op.ROW] -= top
            g[op.COLUMN] -= left
            plane = part[0] * part[1] if channels == wanted else np.int64(0)
            rest = wanted, geometry[v, f], color[v, f], scratch, described[k], affine[k], np.uint64(out[k])
            status = _carry(np.uint64(rooms[col.ROOM_PIXELS]), part, bits, part[1], plane, np.int64(0), rooms, rest)
            if status:
                return status
        begin = end
    return num.OK


@kernel
def _read_image(file, i, columns, verify, given, f, described, affine, geometry, color, rooms, scratch, out):
    """Read image i of field f into its places in the batch, one for each view; see `assemble`.

    Somebody may write into the index meanwhile: each number of it is read once, and then compared with the rooms.

    Args:
        out: (views * fields,) int64, the addresses of these places.
    """
    _, _, descriptor, _, clock = file
    columns, first = columns[f], described[f]
    at = i64_at(columns[col.OFFSET], i + 1)[i]
    nbytes, raw = _u32_of(columns, col.STORED_NBYTES, i), _u32_of(columns, col.RAW_NBYTES, i)
    checksum = u64_at(columns[col.CHECKSUM], i + 1)[i]
    codec = np.uint8(_u8_of(columns, col.CODEC, i))
    height, width = geometry[0, f, 0, op.STORED_HEIGHT], geometry[0, f, 0, op.STORED_WIDTH]
    channels, bits = _u8_of(columns, col.CHANNELS, i), _u8_of(columns, col.BITS, i)
    itemsize = bits // 8
    wanted = first[col.OUT_CHANNELS]
    # Gray among colors becomes three times the same plane.
    if (channels != wanted and channels != 1) or bits != first[col.IN_BITS]:
        return num.CHANGED
    if np.float64(height) * width * (channels * itemsize) != raw or raw == 0:
        return num.CHANGED
    if given[1] == col.KEPT and i64_at(given[0], 1)[0]:
        given = given[0] + np.int64(col.KEPT_AT), i64_at(given[0], 1)[0]
    if given[1] == col.KEPT:  # planes of a JPEG
        at, nbytes, checksum, codec = given[0], np.int64(0), np.uint64(0), np.uint8(num.CODEC_JPEG)
    elif given[1] < 0:  # a JPEG in memory
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
        image = height, width, channels
        if not has_room(
            codec, nbytes, raw, (height, width, channels, itemsize), first[col.TILE],
            rooms[col.ROOM_NBYTES + col.ROOM_TILE], rooms[col.ROOM_NBYTES + col.ROOM_JPEG],
        ):  # fmt: skip
            return num.CHANGED
        if is_jpeg(codec):
            return _read_jpeg(
                file, (at, nbytes, checksum), verify, image, f, described, affine, geometry, color, rooms, scratch, out
            )
        return _read_tiles(
            file, (at, nbytes, checksum), codec, verify, (height, width, channels, bits), f, described, affine,
            geometry, color, rooms, scratch, out,
        )  # fmt: skip
    elif codec == num.CODEC_RAW:  # used in place
        address = fetch(file, at, nbytes, rooms[col.ROOM_STORED], verify)
        if address == 0 or nbytes != raw:
            return num.OUT_OF_BOUNDS
        is_one, place_at, g = geometry.shape[0] == 1, np.uint64(out[f]), geometry[0, f]
        if is_one and verify and channels == wanted and _is_copied(g, first, height, width):
            found = xxh3_copy(address, place_at, np.uint64(nbytes), first[col.STREAMED] != 0)
            return num.OK if found == checksum else num.BAD_CHECKSUM
        # Reading columns takes half the time if the rows are in the cache, and hashing brings them there.
        hashes = verify or g[0, op.TRANSPOSED] != 0
        if is_one and hashes and channels == wanted and itemsize == 1 and _is_one_pass(g, first, place_at):
            found = convert_planes(
                address, nbytes, width, height * width, channels, g[0], place_at, affine[f], first[col.STREAMED] != 0
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
    plane = height * width if channels == wanted else np.int64(0)
    for v in range(geometry.shape[0]):
        k = v * geometry.shape[1] + f
        rest = wanted, geometry[v, f], color[v, f], scratch, described[k], affine[k], np.uint64(out[k])
        status = _carry(address, (height, width, channels), bits, width, plane, np.int64(0), rooms, rest)
        if status:
            return status
    return num.OK


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
            that are not; of a JPEG's payload in memory, its bytes as a negative number; of a block, see
            `jpeg.kept`, KEPT.
        described: (views * fields, NUM_DESCRIBED) int64, all fields of the first view first.
        affine: (views * fields, channels, 2) float32: factor and term of each channel where values become float32.
        erased: (views * fields, erasings, channels) uint32, the bits that fill each erased rectangle.
        program: (whole, real, views), the transforms, see `draw`.
        seed, epoch: uint64.
        rows: (n,) int64 rows of the index, each inside it.
        samples: (n,) int64, the numbers that random choices depend on.
        out: (batches, views * fields) int64 addresses, each with room for batch_size images (the last batch may be
            shorter).
        batch_size: Samples of a batch.
        rooms: (12,) int64, this thread's working memory.
        scratch: (bounds, weights, line), working memory of a resize.
        drawn: (geometry, color, rectangles, most, places): what `draw` fills, the first three for each view, and
            (views * fields,) int64 for the addresses of a sample's images in the batch.
        failed: (2,) int64, set to the position in `rows` and the field of the first failure.

    Returns:
        A status.
    """
    geometry, color, rectangles, most, places = drawn
    num_views, num_fields = geometry.shape[0], columns.shape[0]
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
        for v in range(num_views):
            status = draw(
                program, v, seed, epoch, np.uint64(samples[j]), geometry[v], color[v], rectangles[v], most
            )  # fmt: skip
            if status:
                return status
        if program[0].shape[0]:
            tick(clock, TRANSFORM)
        for f in range(num_fields):
            failed[col.FAILED_FIELD] = f
            for k in range(f, places.shape[0], num_fields):
                d = described[k]
                count = d[col.OUT_CHANNELS] * d[col.OUT_HEIGHT] * d[col.OUT_WIDTH]
                places[k] = out[j // batch_size, k] + (j % batch_size) * count * d[col.OUT_ITEMSIZE]
            pixels = (given[j, f, 0], given[j, f, 1]) if given.shape[0] else (np.int64(0), np.int64(0))
            status = _read_image(
                file, i, columns, verify, pixels, f, described, affine, geometry, color, rooms, scratch, places
            )
            if status:
                return status
            for v in range(num_views if erased.shape[1] else 0):
                k = v * num_fields + f
                d = described[k]
                for box in range(erased.shape[1]):
                    if rectangles[v, f, box, 2] > 0:
                        erase(
                            np.uint64(places[k]), d[col.OUT_ITEMSIZE], d[col.CHANNELS_LAST] != 0, d[col.OUT_CHANNELS],
                            d[col.OUT_HEIGHT], d[col.OUT_WIDTH], rectangles[v, f, box], erased[k, box],
                        )  # fmt: skip
            tick(clock, TRANSFORM)
    settle()
    return num.OK


@kernel
def _move_place(g, place):
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
def trace(columns, program, view, seed, epoch, rows, samples, drawn, field, counts, places, line):
    """Draw the transforms of samples, and move places in an image of each to where they are in the result.

    Args:
        columns, program, seed, epoch, rows, samples: As in `assemble`.
        view: Number of the view.
        drawn: As in `assemble`, with the geometries of masks: those are not turned after a resize.
        field: The field of the images.
        counts: (n,) int64, the places of each sample.
        places: (places, 2) float64 points (x, y), of which the last pixel is the width less 1; or (places, 4) boxes
            (left, top, right, bottom), from 0 to the width, which end where the image ends. They are replaced.
        line: float32, scratch of an elastic warp.

    Returns:
        A status.
    """
    geometry, color, rectangles, most, _ = drawn
    first, last = np.int64(0), geometry.shape[2] - 1
    for j in range(rows.shape[0]):
        if not _set_sizes(columns, rows[j], geometry):
            return num.CHANGED
        status = draw(
            program, view, seed, epoch, np.uint64(samples[j]), geometry[view], color[view], rectangles[view], most
        )
        if status:
            return status
        for s in range(last + 1):
            g = geometry[view, field, s]
            if g[op.CLOSING] == op.CARRY and s < last:
                continue
            warps = g[op.CLOSING] == op.THEN_WARP
            if warps and not displaces(color[view, field, s], line):
                return num.CHANGED
            for k in range(first, first + counts[j]):
                _move_place(g, places[k])
                if warps:
                    move(g, color[view, field, s], line, places[k])
        first += counts[j]
    return num.OK


@kernel
def measure(columns, program, rows, drawn, shapes, failed):
    """Find the shapes that a program gives every sample, without reading any.

    Args:
        columns, program, rows, drawn: As in `assemble`; `most` is set to the sizes that the rooms must hold.
        shapes: (views * fields, 4) int64, LOW_HEIGHT ... HIGH_WIDTH, lowered and raised to those of the results.
        failed: (2,) int64, set to the position in `rows` that a status is about.

    Returns:
        A status.
    """
    geometry, color, rectangles, most, _ = drawn
    last = geometry.shape[2] - 1
    for j in range(rows.shape[0]):
        failed[col.FAILED_ROW] = j
        if not _set_sizes(columns, rows[j], geometry):
            return num.CHANGED
        for f in range(columns.shape[0]):
            g = geometry[0, f, 0]
            raise_most(most, g[op.HEIGHT], g[op.WIDTH])
        for v in range(geometry.shape[0]):
            status = draw(
                program, v, np.uint64(0), np.uint64(0), np.uint64(j), geometry[v], color[v], rectangles[v], most
            )
            if status:
                return status
            for f in range(columns.shape[0]):
                g, shape = geometry[v, f, last], shapes[v * columns.shape[0] + f]
                shape[col.LOW_HEIGHT] = min(shape[col.LOW_HEIGHT], g[op.HEIGHT])
                shape[col.HIGH_HEIGHT] = max(shape[col.HIGH_HEIGHT], g[op.HEIGHT])
                shape[col.LOW_WIDTH] = min(shape[col.LOW_WIDTH], g[op.WIDTH])
                shape[col.HIGH_WIDTH] = max(shape[col.HIGH_WIDTH], g[op.WIDTH])
    return num.OK
