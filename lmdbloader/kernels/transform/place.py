"""Kernels that write the result of a geometry into a batch, row by row: cropped, turned, converted and erased."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.half import half_bits_of
from lmdbloader.kernels.runtime.memory import (
    array_at,
    bits_of,
    f32_at,
    part,
    stream,
    u8_at,
    u16_at,
    u32_at,
)
from lmdbloader.kernels.runtime.rows import (
    BLOCK,
    copy_rows,
    stream_as_floats,
    transpose_block,
    transpose_two_blocks,
    turn_rows,
    turn_rows_of_floats,
    turn_rows_of_words,
)
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.kernels.transform.float_pass import convert_planes, suits
from lmdbloader.kernels.transform.geometry import is_filled


@kernel
def _transpose(source, at, down, across, out, out_at, out_row, height, width):
    """Write out(y, x) = source[at + down * x + across * y]; one of down, across is a step of one value."""
    if source.itemsize == 1 and height >= BLOCK and width >= BLOCK:
        from_address = np.int64(source.ctypes.data) + at
        to_address = np.int64(out.ctypes.data) + out_at
        y, side = np.int64(0), np.int64(0)
        while y < height:
            side = np.int64(2 * BLOCK if height - y >= 2 * BLOCK else BLOCK)
            y = min(y, height - side)  # the last block may write some rows and columns again
            # The block's rows are loaded upwards from their first value, so with a step of -1 they come out reversed.
            first, target_y, target_step = across * y, y, out_row
            if across < 0:
                first, target_y, target_step = across * (y + side - 1), y + side - 1, -out_row
            for block_x in range(0, width, BLOCK):
                x = min(block_x, width - BLOCK)
                begin = np.uint64(from_address + down * x + first)
                target = np.uint64(to_address + target_y * out_row + x)
                if side == BLOCK:
                    transpose_block(begin, down, target, target_step)
                else:
                    transpose_two_blocks(begin, down, target, target_step)
            y += side
        return
    for y in range(height):
        for x in range(width):
            out[out_at + y * out_row + x] = source[at + down * x + across * y]


@kernel
def transpose_plane(source, row, out, out_row, height, width):
    """Write out[y * out_row + x] = source[x * row + y] for height x width values."""
    _transpose(source, 0, row, np.int64(1), out, 0, out_row, height, width)


@kernel
def _place_plane(source, origin, row, g, fill, out):
    """Write the result of a geometry for one plane, whose first value is source[origin]; see `place`."""
    height, width = g[op.HEIGHT], g[op.WIDTH]
    if is_filled(g):
        if out.itemsize == 4:
            words = u32_at(out.ctypes.data, height * width)
            for i in range(height * width):
                words[i] = fill
        else:
            for i in range(height * width):
                out[i] = fill
    top, left, h, w = g[op.TOP], g[op.LEFT], g[op.BOTTOM] - g[op.TOP], g[op.RIGHT] - g[op.LEFT]
    if h <= 0 or w <= 0:
        return
    down, across = g[op.DOWN] * row, g[op.ACROSS]
    start, target = origin + g[op.ROW] * row + g[op.COLUMN], top * width + left
    if g[op.TRANSPOSED]:
        _transpose(source, start + down * left + across * top, down, across, out, target, width, h, w)
        return
    size = source.itemsize
    begin, to = start + down * top + across * left, out.ctypes.data + np.uint64(target * size)
    if across < 0:
        begin -= w - 1
    first = source.ctypes.data + np.uint64(begin * size)
    if across > 0:
        copy_rows(first, down * size, to, width * size, h, w * size)
    elif size == 1:
        turn_rows(first, down, to, width, h, w)
    elif size == 4:
        turn_rows_of_floats(first, down * size, to, width * size, h, w * size)
    else:
        turn_rows_of_words(first, down * size, to, width * size, h, w * size)


@kernel
def place(source, row, plane, channels, g, out):
    """Write the result of a geometry as contiguous planes of the same type.

    Args:
        source: uint8, uint16 or float32 (n,), the image's planes; row, plane: steps to the next row and plane.
        channels: Number of planes.
        g: (NUM_GEOMETRY,) int64, see `opcodes`.
        out: Of source's type, room for the planes.
    """
    count = g[op.HEIGHT] * g[op.WIDTH]
    for c in range(channels):
        _place_plane(source, c * plane, row, g, g[op.FILL + min(c, 2)], part(out, c * count, count))


@kernel
def _nearest(position, scale, size):
    """Return which of `size` pixels torchvision's NEAREST takes for one of the result: in float32, as in torch."""
    return min(np.int64(np.floor(np.float32(position) * scale)), size - 1)


@kernel
def place_nearest(source, row, g, out, new_height, new_width, columns):
    """Write the result of a geometry of one plane in another size: each pixel is the nearest one of the result.

    Args:
        source, row, g: As for `place`.
        out: Of source's type, (new_height * new_width,).
        new_height, new_width: The size.
        columns: (new_width,) int32, scratch.
    """
    height, width = g[op.HEIGHT], g[op.WIDTH]
    down, across = g[op.DOWN] * row, g[op.ACROSS]
    if g[op.TRANSPOSED]:
        down, across = across, down
    start = g[op.ROW] * row + g[op.COLUMN]
    scale = np.float32(width) / np.float32(new_width)
    for x in range(new_width):
        columns[x] = _nearest(x, scale, width)
    scale = np.float32(height) / np.float32(new_height)
    for y in range(new_height):
        from_y = _nearest(y, scale, height)
        is_inside = g[op.TOP] <= from_y < g[op.BOTTOM]
        for x in range(new_width):
            from_x = np.int64(columns[x])
            if is_inside and g[op.LEFT] <= from_x < g[op.RIGHT]:
                out[y * new_width + x] = source[start + down * from_y + across * from_x]
            else:
                out[y * new_width + x] = g[op.FILL]


@kernel
def _bfloat(value):
    """Return the upper half of a float32's bits, rounded to even; of a NaN another number, see `_mark_nans`."""
    bits = bits_of(value)
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@kernel
def _mark_nans(pixels, out, step):
    """Write a NaN of bfloat16 for each NaN of stored floats; the numbers of other pixels are finite."""
    if pixels.itemsize == 4:
        words = u16_at(out, (pixels.shape[0] - 1) * step + 1)
        for x in range(pixels.shape[0]):
            if pixels[x] != pixels[x]:
                words[x * step] = 0x7FC0


@kernel
def _convert(pixels, out, step, kind, factor, term, table, streams):
    """Convert contiguous values into every step-th value at `out`, if they are looked up, else into contiguous ones."""
    count = pixels.shape[0]
    reach = (count - 1) * step + 1
    if streams and kind == op.FLOAT and pixels.itemsize == 1:
        stream_as_floats(pixels.ctypes.data, out, count, factor, term)
    elif streams and kind == op.COPY:
        stream(pixels.ctypes.data, out, count * pixels.itemsize)
    elif kind == op.FLOAT:
        floats = f32_at(out, count)
        for x in range(count):
            floats[x] = np.float32(pixels[x]) * factor + term
    elif kind == op.COPY:
        same = array_at(out, count, pixels)
        for x in range(count):
            same[x] = pixels[x]
    elif kind == op.BFLOAT:
        words = u16_at(out, count)
        for x in range(count):
            words[x] = _bfloat(np.float32(pixels[x]) * factor + term)
        _mark_nans(pixels, out, np.int64(1))
    elif kind == op.HALF:
        words = u16_at(out, count)
        for x in range(count):
            words[x] = half_bits_of(np.float32(pixels[x]) * factor + term)
    elif kind == op.TABLE_8:
        found = u8_at(out, reach)
        known = u8_at(table, 1 << 16)
        for x in range(count):
            found[x * step] = known[np.uint64(pixels[x])]
    elif kind == op.TABLE_16:
        words = u16_at(out, reach)
        known_words = u16_at(table, 1 << 16)
        for x in range(count):
            words[x * step] = known_words[np.uint64(pixels[x])]
    else:
        floats = f32_at(out, reach)
        known_floats = f32_at(table, 1 << 16)
        for x in range(count):
            floats[x * step] = known_floats[np.uint64(pixels[x])]


@kernel
def _convert_apart(pixels, out, step, kind, factor, term):
    """Convert contiguous values into every step-th value at `out`, unless they are looked up."""
    count = pixels.shape[0]
    reach = (count - 1) * step + 1
    floats, words, same = f32_at(out, reach), u16_at(out, reach), array_at(out, reach, pixels)
    for x in range(count):
        if kind == op.COPY:
            same[x * step] = pixels[x]
        elif kind == op.FLOAT:
            floats[x * step] = np.float32(pixels[x]) * factor + term
        elif kind == op.BFLOAT:
            words[x * step] = _bfloat(np.float32(pixels[x]) * factor + term)
        else:
            words[x * step] = half_bits_of(np.float32(pixels[x]) * factor + term)
    if kind == op.BFLOAT:
        _mark_nans(pixels, out, step)


@kernel
def _convert_rgb(red, green, blue, out, kind, affine):
    """Convert three channels into pixels (R, G, B) side by side; the three stores together become vector stores."""
    count = red.shape[0]
    f0, f1, f2 = affine[0, 0], affine[1, 0], affine[2, 0]
    t0, t1, t2 = affine[0, 1], affine[1, 1], affine[2, 1]
    if kind == op.FLOAT:
        floats = f32_at(out, 3 * count)
        for x in range(count):
            floats[3 * x] = np.float32(red[x]) * f0 + t0
            floats[3 * x + 1] = np.float32(green[x]) * f1 + t1
            floats[3 * x + 2] = np.float32(blue[x]) * f2 + t2
    elif kind == op.COPY:
        same = array_at(out, 3 * count, red)
        for x in range(count):
            same[3 * x] = red[x]
            same[3 * x + 1] = green[x]
            same[3 * x + 2] = blue[x]
    elif kind == op.BFLOAT:
        words = u16_at(out, 3 * count)
        for x in range(count):
            words[3 * x] = _bfloat(np.float32(red[x]) * f0 + t0)
            words[3 * x + 1] = _bfloat(np.float32(green[x]) * f1 + t1)
            words[3 * x + 2] = _bfloat(np.float32(blue[x]) * f2 + t2)
        _mark_nans(red, out, np.int64(3))
        _mark_nans(green, out + np.uint64(2), np.int64(3))
        _mark_nans(blue, out + np.uint64(4), np.int64(3))
    else:
        words = u16_at(out, 3 * count)
        for x in range(count):
            words[3 * x] = half_bits_of(np.float32(red[x]) * f0 + t0)
            words[3 * x + 1] = half_bits_of(np.float32(green[x]) * f1 + t1)
            words[3 * x + 2] = half_bits_of(np.float32(blue[x]) * f2 + t2)


@kernel
def finish(
    source, row, plane, channels, g, out, out_itemsize, channels_last, kind, affine, table, table_step, spare, streams
):
    """Write the result of a geometry into its place in the batch.

    Args:
        source: uint8, uint16 or float32 (n,), the image's planes; row, plane: steps to the next row and plane.
        channels: Number of planes.
        g: (NUM_GEOMETRY,) int64, see `opcodes`.
        out: Address of the image in the batch; out_itemsize: bytes of a value there.
        channels_last: Whether a pixel's channels are adjacent there, rather than in planes.
        kind: How a value is made, COPY ... TABLE_32.
        affine: (channels, 2) float32: factor and term of each channel.
        table, table_step: Address of the first channel's table, and the bytes to the next channel's.
        spare: Of source's type, room for the result in planes.
        streams: Whether planes of pixels or of float32 are written past the caches, see `settle`.
    """
    height, width = g[op.HEIGHT], g[op.WIDTH]
    start, down = g[op.ROW] * row + g[op.COLUMN], g[op.DOWN] * row
    is_contiguous = down == width and g[op.ACROSS] > 0 and not (g[op.TRANSPOSED] or is_filled(g))
    streams = streams and not channels_last and (kind == op.FLOAT or kind == op.COPY)
    if kind == op.FLOAT and not channels_last and source.itemsize == 1 and suits(g, out, streams):
        convert_planes(source.ctypes.data, np.int64(0), row, plane, channels, g, out, affine, streams)
        return
    if not is_contiguous and (streams or (kind == op.FLOAT and not channels_last)):
        # Plane by plane: a plane that was just placed is converted while it is in the fastest cache.
        for c in range(channels):
            placed = part(spare, 0, height * width)
            _place_plane(source, c * plane, row, g, g[op.FILL + min(c, 2)], placed)
            _convert(
                placed, out + np.uint64(c * height * width * out_itemsize), np.int64(1), kind, affine[c, 0],
                affine[c, 1], table, streams,
            )  # fmt: skip
        return
    if kind == op.COPY and not channels_last and not is_contiguous:
        place(source, row, plane, channels, g, array_at(out, channels * height * width, source))
        return
    if g[op.TRANSPOSED] or g[op.ACROSS] < 0 or is_filled(g):
        place(source, row, plane, channels, g, spare)
        source, start, down, plane = spare, np.int64(0), width, height * width
    runs, length = height, width
    if down == width:  # the rows are contiguous
        runs, length = np.int64(1), height * width
    for y in range(runs):
        at = start + y * down
        if channels_last and channels == 3 and kind <= op.HALF:
            _convert_rgb(
                part(source, at, length), part(source, at + plane, length), part(source, at + 2 * plane, length),
                out + np.uint64(y * length * 3 * out_itemsize), kind, affine,
            )  # fmt: skip
            continue
        for c in range(channels):
            if channels_last:
                target, step = y * length * channels + c, channels
            else:
                target, step = c * height * width + y * length, np.int64(1)
            if step > 1 and kind <= op.HALF:
                _convert_apart(
                    part(source, at + c * plane, length), out + np.uint64(target * out_itemsize), step, kind,
                    affine[c, 0], affine[c, 1],
                )  # fmt: skip
                continue
            _convert(
                part(source, at + c * plane, length), out + np.uint64(target * out_itemsize), step,
                kind, affine[c, 0], affine[c, 1], table + np.uint64(c * table_step), streams,
            )  # fmt: skip


@kernel
def erase(out, out_itemsize, channels_last, channels, height, width, box, values):
    """Fill a rectangle of a finished image.

    Args:
        out: Address of the image in the batch.
        out_itemsize: 1, 2 or 4 bytes a value.
        channels_last, channels, height, width: Its layout there.
        box: (4,) top, left, height, width; a height of 0: nothing to fill.
        values: (channels,) uint32, the bits of the fill.
    """
    top, left, h, w = box[0], box[1], box[2], box[3]
    for c in range(channels):
        for y in range(top, top + h):
            if channels_last:
                at, step = (y * width + left) * channels + c, channels
            else:
                at, step = (c * height + y) * width + left, np.int64(1)
            count = (w - 1) * step + 1
            if out_itemsize == 4:
                wide = f32_at(out + np.uint64(4 * at), count).view(np.uint32)
                for x in range(w):
                    wide[x * step] = values[c]
            elif out_itemsize == 2:
                words = u16_at(out + np.uint64(2 * at), count)
                for x in range(w):
                    words[x * step] = values[c]
            else:
                narrow = u8_at(out + np.uint64(at), count)
                for x in range(w):
                    narrow[x * step] = values[c]
