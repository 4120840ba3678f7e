"""What JPEG compression does to an image: libjpeg's with all its rounding, and DiffJPEG's, which Real-ESRGAN has.

Sources: ITU-T T.81, Annex K, for the tables and T.871 for the colors; libjpeg's downsampling, edges and tables of a
quality; BasicSR's `DiffJPEG` without its differentiable rounding.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lmdbloader.kernels.degrade.jpeg_tables import COLOR, LUMINANCE, TO_RGB, TO_YCC, TO_YCC_BITS
from lmdbloader.kernels.degrade.lanes import load_rows, store_rows
from lmdbloader.kernels.jpeg.color import write_pixels
from lmdbloader.kernels.jpeg.fdct import quantize_block
from lmdbloader.kernels.jpeg.idct import fill_block, has_others, transform_block, transposed
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import f32_at, load_u16, part, u8_at, u16_at

# cos(k pi / 16) / 2
_COSINES = (
    0.5, 0.4903926402016152, 0.46193976625564337, 0.4157348061512726, 0.35355339059327376, 0.2777851165098011,
    0.19134171618254488, 0.09754516100806412,
)  # fmt: skip


_SLACK = 64
# Quantization, addends and inverses of two tables, and a block.
_ADDS_AT, _INVERSES_AT, _BLOCK_AT, _FREE_AT = 256, 768, 1280, 1408


@kernel
def degrade_jpeg_room(height, width):
    """Return the bytes of scratch of `compress_libjpeg` and `compress_diffjpeg` for images up to this size."""
    tall, wide = height + 16, width + 16
    planes = 3 * tall * wide + 12 * wide + 3 * height * width + 16 * (wide + 128)
    return _FREE_AT + max(planes, 4 * 28 * wide) + 8 * _SLACK


@kernel
def _aligned(address):
    return (np.uint64(address) + np.uint64(_SLACK - 1)) & ~np.uint64(_SLACK - 1)


@kernel
def _set_table(quality, basic, scale, added, inverse):
    """Set libjpeg's quantization of a quality, and what `quantize_block` needs of it."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    for k in range(64):
        step = min(max((np.int64(basic[k]) * percent + 50) // 100, 1), 255)
        scale[k] = step
        added[k] = np.float32(4 * step) + np.float32(0.5)
        inverse[k] = np.float32(1) / np.float32(8 * step)


@kernel
def _byte(value):
    """Return a value of 0 to 1 as a whole number of 0 to 255, halves to even, in float32."""
    return np.rint(min(max(value, np.float32(0)), np.float32(1)) * np.float32(255))


@kernel
def _mix_bytes(red, green, blue, factors, out, width, wide):
    """Write one of YCbCr as libjpeg does: whole numbers of at most 24 bits, which float32 adds exactly."""
    a, b, c, term = factors[0], factors[1], factors[2], factors[3]
    for x in range(width):
        total = a * _byte(red[x]) + b * _byte(green[x]) + c * _byte(blue[x]) + term
        out[x] = np.floor(total * np.float32(1 / 65536))
    for x in range(width, wide):
        out[x] = out[width - 1]


@kernel
def _cut(row, out):
    """Write values without their fraction."""
    for x in range(out.shape[0]):
        out[x] = np.int32(row[x])


@kernel
def _halve(first, second, bias, out):
    """Write the mean of each four values of two rows, a bias added to their sums: once, twice, once, twice ..."""
    for x in range(out.shape[0]):
        total = first[2 * x] + first[2 * x + 1] + second[2 * x] + second[2 * x + 1]
        out[x] = (total + bias * np.float32(1 + (x & 1))) * np.float32(0.25)


@kernel
def _read_planes(source, channels, height, width, halves, rows, planes, wide, color):
    """Fill planes of uint8 with an image as YCbCr.

    Args:
        source, channels, height, width, halves: As in `compress_libjpeg`.
        rows: Scratch, float32 (3 * wide,).
        planes: uint8, rows of `wide` values of luminance; the last one of an odd number may be repeated.
        color: (where color begins in planes, values of its rows, of its planes).
    """
    begin, color_wide, color_plane = color
    first, second, mean = part(rows, 0, wide), part(rows, wide, wide), part(rows, 2 * wide, color_wide)
    green, blue = (height * width, 2 * height * width) if channels == 3 else (np.int64(0), np.int64(0))
    for y in range(0, height, 2):
        for c in range(channels):
            at = begin + (c - 1) * color_plane
            for k in range(2):
                row, line = min(y + k, height - 1) * width, second if k else first
                _mix_bytes(
                    part(source, row, width), part(source, green + row, width), part(source, blue + row, width),
                    TO_YCC_BITS[c], line, width, wide,
                )  # fmt: skip
                if c == 0 or not halves:
                    _cut(line, part(planes, (0 if c == 0 else at) + (y + k) * wide, wide))
            if c > 0 and halves:
                _halve(first, second, np.float32(1), mean)
                _cut(mean, part(planes, at + y // 2 * color_wide, color_wide))


@kernel
def _pass_blocks(plane, height, tall, wide, tables, number):
    """Repeat the last row of a plane down to whole blocks, quantize the blocks and transform them back in place."""
    for y in range(height, tall):
        above, below = part(plane, (height - 1) * wide, wide), part(plane, y * wide, wide)
        for x in range(wide):
            below[x] = above[x]
    scale, block = tables + np.uint64(128 * number), tables + np.uint64(_BLOCK_AT)
    added, inverse = tables + np.uint64(_ADDS_AT + 256 * number), tables + np.uint64(_INVERSES_AT + 256 * number)
    for y in range(0, tall, 8):
        for x in range(0, wide, 8):
            at = plane.ctypes.data + np.uint64(y * wide + x)
            quantize_block(at, np.uint64(wide), added, inverse, block)
            if has_others(block):
                transform_block(block, scale, at, np.uint64(wide), np.int64(8))
            else:
                first = np.int32(np.int16(load_u16(block))) * np.int32(load_u16(scale))
                fill_block(first, at, np.uint64(wide), np.int64(8))


@kernel
def compress_libjpeg(source, channels, height, width, quality, halves, out, work):
    """Write an image as it is after libjpeg has saved and opened it: pixels are the same as Pillow's and OpenCV's.

    Args:
        source: float32 (channels * height * width,) of 0 to 1, which is rounded to 8 bits, halves to even.
        channels, height, width: 3 (RGB) or 1, the size.
        quality: 1 to 100.
        halves: Whether color has half as many rows and columns (4:2:0, as libraries usually save); else 4:4:4.
        out: float32, filled with 8-bit values over 255; it may be the source.
        work: uint8, scratch, as long as `degrade_jpeg_room` says.
    """
    tables = _aligned(work.ctypes.data)
    for k in range(2):
        at = tables + np.uint64(256 * k)
        _set_table(
            quality, COLOR if k else LUMINANCE, u16_at(tables + np.uint64(128 * k), 64),
            f32_at(at + np.uint64(_ADDS_AT), 64), f32_at(at + np.uint64(_INVERSES_AT), 64),
        )  # fmt: skip
    side = np.int64(16 if halves else 8)
    tall, wide = (height + side - 1) & -side, (width + side - 1) & -side
    color_height, color_tall, color_wide = height, tall, wide
    if halves:
        color_height, color_tall, color_wide = (height + 1) // 2, tall // 2, wide // 2
    color_plane = color_tall * color_wide
    rows = f32_at(tables + np.uint64(_FREE_AT), 3 * wide)
    planes = u8_at(tables + np.uint64(_FREE_AT + 12 * wide), tall * wide + 2 * color_plane)
    _read_planes(
        source, channels, height, width, halves, rows, planes, wide, (tall * wide, color_wide, color_plane)
    )  # fmt: skip
    _pass_blocks(part(planes, 0, tall * wide), height, tall, wide, tables, 0)
    for c in range(channels - 1):
        color = part(planes, tall * wide + c * color_plane, color_plane)
        _pass_blocks(color, color_height, color_tall, color_wide, tables, 1)
    size, none = channels * height * width, np.int64(0)
    first = planes.ctypes.data
    decoded = _aligned(first + np.uint64(planes.shape[0] + _SLACK))
    write_pixels(
        (first, wide, first + np.uint64(tall * wide), color_wide, color_plane, none, none, none, none, halves, halves),
        (height, width, channels), (halves, halves), (none, height, none, width),
        _aligned(decoded + np.uint64(size)), decoded,
    )  # fmt: skip
    pixels = u8_at(decoded, size)
    for i in range(size):
        out[i] = np.float32(pixels[i]) / np.float32(255)


def _sum(builder, values, factors):
    total = None
    for value, factor in zip(values, factors, strict=True):
        product = builder.fmul(value, ir.Constant(value.type, [ir.FloatType()(factor)] * 8))
        total = product if total is None else builder.fadd(total, product)
    return total


def _cosine(frequency, place):
    """Return an entry of the orthonormal transform: half the cosine of so many sixteenths of half a turn."""
    angle = (2 * place + 1) * frequency % 32 if frequency else 4
    angle = min(angle, 32 - angle)
    return _COSINES[angle] if angle < 8 else -_COSINES[16 - angle]


def _to_frequencies(builder, rows):
    halves = (
        [builder.fadd(rows[i], rows[7 - i]) for i in range(4)],
        [builder.fsub(rows[i], rows[7 - i]) for i in range(4)],
    )
    return [_sum(builder, halves[u % 2], [_cosine(u, x) for x in range(4)]) for u in range(8)]


def _from_frequencies(builder, rows):
    even, odd = (
        [_sum(builder, rows[first::2], [_cosine(u, x) for u in range(first, 8, 2)]) for x in range(4)]
        for first in (0, 1)
    )
    return [builder.fadd(a, b) for a, b in zip(even, odd, strict=True)] + [
        builder.fsub(a, b) for a, b in zip(even[::-1], odd[::-1], strict=True)
    ]


@intrinsic
def _pass_floats(typing_context, block, step, table):
    """Transform 8 x 8 float32, quantize them by a table, halves to even, and transform them back in place.

    Args:
        block: uint64 address; step: bytes from one row to the next, int64.
        table: uint64 address of (8, 8) float32; a row is a horizontal frequency.
    """

    def generate(context, builder, signature, arguments):
        block, step, table = arguments
        rows = _to_frequencies(builder, load_rows(builder, block, step))
        rows = _to_frequencies(builder, transposed(builder, rows))
        steps = load_rows(builder, table, ir.Constant(step.type, 32))
        vector = rows[0].type
        rint = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, (vector,)), "llvm.rint.v8f32")
        rows = [
            builder.fmul(builder.call(rint, (builder.fdiv(row, each),)), each)
            for row, each in zip(rows, steps, strict=True)
        ]
        rows = transposed(builder, _from_frequencies(builder, rows))
        store_rows(builder, _from_frequencies(builder, rows), block, step)
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64, types.uint64), generate


@kernel
def _pass_strip(strip, wide, table):
    """Pass rows of float32 through blocks of 8 x 8."""
    for y in range(0, strip.shape[0] // wide, 8):
        for x in range(0, wide, 8):
            _pass_floats(strip.ctypes.data + np.uint64(4 * (y * wide + x)), 4 * wide, table)


@kernel
def _mix(red, green, blue, factors, out, width, wide):
    """Write one of YCbCr of 0 to 255, around 0; of black from `width` on."""
    a, b, c, term = factors[0], factors[1], factors[2], factors[3]
    full = np.float32(255)
    for x in range(width):
        out[x] = a * (red[x] * full) + b * (green[x] * full) + c * (blue[x] * full) + term
    for x in range(width, wide):
        out[x] = term


@kernel
def _unmix(luminance, first, second, by_first, by_second, out):
    """Write one of RGB of 0 to 1."""
    low, high = np.float32(0), np.float32(255)
    for x in range(out.shape[0]):
        value = luminance[x] + np.float32(128) + by_first * first[x] + by_second * second[x]
        out[x] = min(max(value, low), high) / high


@kernel
def _repeat(row, out):
    """Write each value twice."""
    for x in range(row.shape[0]):
        out[2 * x] = row[x]
        out[2 * x + 1] = row[x]


@kernel
def _read_strip(source, channels, height, width, top, luminance, color, lines, wide):
    """Fill a strip of sixteen rows with an image as YCbCr, black outside of it; of color the means of four."""
    green, blue = (height * width, 2 * height * width) if channels == 3 else (np.int64(0), np.int64(0))
    for y in range(16):
        given, row = (width, (top + y) * width) if top + y < height else (np.int64(0), np.int64(0))
        for c in range(channels):
            at = 2 * max(c - 1, 0) * wide
            first, second = part(lines, at, wide), part(lines, at + wide, wide)
            line = part(luminance, y * wide, wide) if c == 0 else second if y & 1 else first
            _mix(
                part(source, row, given), part(source, green + row, given), part(source, blue + row, given),
                TO_YCC[c], line, given, wide,
            )  # fmt: skip
            if c > 0 and y & 1:
                at = (8 * (c - 1) + y // 2) * (wide // 2)
                _halve(first, second, np.float32(0), part(color, at, wide // 2))


@kernel
def compress_diffjpeg(source, channels, height, width, quality, out, work):
    """Write an image as it is after Real-ESRGAN's DiffJPEG: nothing but the coefficients is rounded.

    Args:
        source: float32 (channels * height * width,) of 0 to 1.
        channels, height, width: 3 (RGB) or 1, of which gray RGB's first channel is made; the size.
        quality: float64, above 0 and below 100.
        out: float32, filled with 0 to 1; it may be the source.
        work: uint8, scratch, as long as `degrade_jpeg_room` says.
    """
    tables_at = _aligned(work.ctypes.data)
    tables = f32_at(tables_at, 128)
    factor = np.float32(50.0 / quality if quality < 50.0 else 2.0 - quality / 50.0)
    for k in range(64):
        tables[k] = np.float32(LUMINANCE[k]) * factor
        tables[64 + k] = np.float32(COLOR[k]) * factor
    wide, plane = (width + 15) & -16, height * width
    half = wide // 2
    room = f32_at(tables_at + np.uint64(512), 28 * wide)
    luminance, color, lines = part(room, 0, 16 * wide), part(room, 16 * wide, 8 * wide), part(room, 24 * wide, 4 * wide)
    for x in range(2 * wide):
        lines[x] = 0  # which is the color of gray
    for top in range(0, height, 16):
        _read_strip(source, channels, height, width, top, luminance, color, lines, wide)
        _pass_strip(luminance, wide, tables_at)
        if channels == 3:
            _pass_strip(color, half, tables_at + np.uint64(256))
        for y in range(min(np.int64(16), height - top)):
            row, first, second = part(luminance, y * wide, wide), part(lines, 0, wide), part(lines, wide, wide)
            for c in range(channels - 1):
                _repeat(part(color, (8 * c + y // 2) * half, half), second if c else first)
            for c in range(channels):
                at = c * plane + (top + y) * width
                _unmix(row, first, second, TO_RGB[c, 0], TO_RGB[c, 1], part(out, at, width))
