"""From the planes of a decoded JPEG to pixels: color samples interpolated, colors converted, images turned upright.

Sources: ITU-T T.871 for the colors; the interpolation of color samples (3/4 of the nearer, 1/4 of the farther one in
each direction that has half of them) and all rounding as libjpeg does it, so that pixels are the same bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import u8_at, u16_at
from lmdbloader.kernels.runtime.symbols import memcpy

_LANES = 16
# Narrower color planes than this are repeated, not interpolated.
_LEAST_INTERPOLATED = 3
_HALF = 1 << 15
# 1.402, 1.772, 0.344136 and 0.714136 in 16 bits of fraction.
_RED, _BLUE, _GREEN_OF_BLUE, _GREEN_OF_RED = 91881, 116130, 22554, 46802


def _vector(bits: int, number: int) -> Any:
    kind = ir.IntType(bits)
    return ir.Constant(ir.VectorType(kind, _LANES), [kind(number)] * _LANES)


def _loaded(builder: Any, address: Any, bits: int, *, is_signed: bool = False) -> Any:
    """Return sixteen bytes, or int16, at an address as integers of so many bits."""
    kind = ir.VectorType(ir.IntType(16 if is_signed else 8), _LANES)
    value = builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)
    wide = ir.VectorType(ir.IntType(bits), _LANES)
    return value if kind == wide else builder.zext(value, wide)


def _stored(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


@intrinsic
def _convert_sixteen(typing_context, luminance, blue, red, first, second, third):
    def generate(context, b, signature, arguments):
        y, blue, red = (_loaded(b, address, 32) for address in arguments[:3])
        blue, red = (b.sub(v, _vector(32, 128)) for v in (blue, red))

        def shifted(*terms):
            total = _vector(32, _HALF)
            for value, factor in terms:
                total = b.add(total, b.mul(value, _vector(32, factor)))
            return b.add(y, b.ashr(total, _vector(32, 16)))

        green = shifted((blue, -_GREEN_OF_BLUE), (red, -_GREEN_OF_RED))
        colors = shifted((red, _RED)), green, shifted((blue, _BLUE))
        for value, address in zip(colors, arguments[3:], strict=True):
            value = b.select(b.icmp_signed("<", value, _vector(32, 0)), _vector(32, 0), value)
            value = b.select(b.icmp_signed(">", value, _vector(32, 255)), _vector(32, 255), value)
            _stored(b, b.trunc(value, ir.VectorType(ir.IntType(8), _LANES)), address)
        return context.get_dummy_value()

    return types.void(*[types.uint64] * 6), generate


@kernel
def convert_line(luminance, blue, red, first, second, third, count):
    """Convert `count` pixels; all others are addresses of bytes, and those of the last three are filled with RGB."""
    if count < _LANES:
        y, b, r = u8_at(luminance, count), u8_at(blue, count), u8_at(red, count)
        for x in range(count):
            at = np.uint64(x)
            cb, cr = np.int64(b[x]) - 128, np.int64(r[x]) - 128
            green = y[x] + ((_HALF - _GREEN_OF_BLUE * cb - _GREEN_OF_RED * cr) >> 16)
            u8_at(first + at, 1)[0] = min(max(y[x] + ((_HALF + _RED * cr) >> 16), 0), 255)
            u8_at(second + at, 1)[0] = min(max(green, 0), 255)
            u8_at(third + at, 1)[0] = min(max(y[x] + ((_HALF + _BLUE * cb) >> 16), 0), 255)
        return
    for k in range(0, count, _LANES):
        at = np.uint64(min(k, count - _LANES))  # the last sixteen overlap the ones before
        _convert_sixteen(luminance + at, blue + at, red + at, first + at, second + at, third + at)


@intrinsic
def _blend_sixteen(typing_context, near, far, out):
    def generate(context, b, signature, arguments):
        near, far = (_loaded(b, address, 16) for address in arguments[:2])
        _stored(b, b.add(b.mul(near, _vector(16, 3)), far), arguments[2])
        return context.get_dummy_value()

    return types.void(*[types.uint64] * 3), generate


@intrinsic
def _widen_sixteen(typing_context, source, out):
    def generate(context, b, signature, arguments):
        _stored(b, _loaded(b, arguments[0], 16), arguments[1])
        return context.get_dummy_value()

    return types.void(*[types.uint64] * 2), generate


def _spread(shift: int, even: int, odd: int) -> Any:
    @intrinsic
    def spread(typing_context, before, here, behind, out):
        """Write two bytes for each of sixteen int16: 3/4 of it and 1/4 of its neighbor before, then behind it."""

        def generate(context, b, signature, arguments):
            before, here, behind = (_loaded(b, address, 16, is_signed=True) for address in arguments[:3])
            three = b.mul(here, _vector(16, 3))
            bytes_ = ir.VectorType(ir.IntType(8), _LANES)
            halves = [
                b.trunc(b.lshr(b.add(b.add(three, beside), _vector(16, bias)), _vector(16, shift)), bytes_)
                for beside, bias in ((before, even), (behind, odd))
            ]
            lanes = [i // 2 + _LANES * (i % 2) for i in range(2 * _LANES)]
            mask = ir.Constant(ir.VectorType(ir.IntType(32), 2 * _LANES), [ir.IntType(32)(i) for i in lanes])
            _stored(b, b.shuffle_vector(*halves, mask), arguments[3])
            return context.get_dummy_value()

        return types.void(*[types.uint64] * 4), generate

    return spread


_spread_across, _spread_blended = _spread(2, 1, 2), _spread(4, 8, 7)


@kernel
def _upsample(plane, step, height, width, origin, y, left, right, halves, line_at, out_at):
    """Interpolate one row of a color plane.

    Args:
        plane, step: Address of its decoded part, bytes to the next row.
        height, width: Of the whole plane.
        origin: (row, column) of the whole plane where the decoded part begins.
        y, left, right: Which pixels.
        halves: Whether there are half as many (rows, columns) as pixels.
        line_at: Address of room for int16; a vector more than the row may be written.
        out_at: Address of room for bytes.

    Returns:
        Address of the byte of pixel `left`.
    """
    half_rows, half_columns = halves
    near = y // 2 if half_rows else y
    far = near - 1 if y % 2 == 0 else near + 1
    far = min(max(far, 0), height - 1)
    near_at = plane + np.uint64((near - origin[0]) * step)
    if not half_columns:
        at = np.uint64(left - origin[1])
        if not half_rows:
            return near_at + at
        count = right - left
        far_at = plane + np.uint64((far - origin[0]) * step)
        for k in range(0, count, _LANES):
            _blend_sixteen(near_at + at + np.uint64(k), far_at + at + np.uint64(k), line_at + np.uint64(2 * k))
        line, out = u16_at(line_at, count), u8_at(out_at, count)
        bias = 1 + y % 2
        for x in range(count):
            out[x] = (line[x] + bias) >> 2
        return out_at
    first, last = left // 2, (right - 1) // 2
    count = last - first + 1
    out = u8_at(out_at, 2 * count)
    if width < _LEAST_INTERPOLATED:
        near_row = u8_at(near_at, last - origin[1] + 1)
        for x in range(count):
            out[2 * x] = out[2 * x + 1] = near_row[first - origin[1] + x]
        return out_at + np.uint64(left % 2)
    # With a neighbor on each side, which at the edges of the image is the value itself.
    begin, end = max(first - 1, 0), min(last + 1, width - 1)
    values = end - begin + 1
    at = np.uint64(begin - origin[1])
    filled = line_at + np.uint64(2 * (begin - first + 1))
    far_at = plane + np.uint64((far - origin[0]) * step)
    for k in range(0, values, _LANES):
        if half_rows:
            _blend_sixteen(near_at + at + np.uint64(k), far_at + at + np.uint64(k), filled + np.uint64(2 * k))
        else:
            _widen_sixteen(near_at + at + np.uint64(k), filled + np.uint64(2 * k))
    line = u16_at(line_at, count + 2)
    if first == 0:
        line[0] = line[1]
    if last == width - 1:
        line[count + 1] = line[count]
    for k in range(0, count, _LANES):
        here = line_at + np.uint64(2 * k)
        if half_rows:
            _spread_blended(here, here + np.uint64(2), here + np.uint64(4), out_at + np.uint64(2 * k))
        else:
            _spread_across(here, here + np.uint64(2), here + np.uint64(4), out_at + np.uint64(2 * k))
    return out_at + np.uint64(left % 2)


@kernel
def write_pixels(planes, image, halves, window, lines, out):
    """Write a window of a decoded JPEG as planes (C, h, w) of gray or RGB.

    Args:
        planes: As `planes_at` returns them, of the whole size.
        image: (height, width, components) of the whole image.
        halves: Whether there are half as many (rows, columns) of color samples as pixels.
        window: (top, bottom, left, right), inside the decoded part.
        lines: Address of 16 * (width + 128) bytes.
        out: Address of the result.
    """
    plane, row, color, color_row, color_plane, y0, x0, color_y0, color_x0, _, _ = planes
    height, width, components = image
    top, bottom, left, right = window
    count = right - left
    size = np.uint64((bottom - top) * count)
    color_height = (height + 1) // 2 if halves[0] else height
    color_width = (width + 1) // 2 if halves[1] else width
    room = np.uint64(2 * (width + 128))
    blue_room, red_room = lines + np.uint64(8 * (width + 128)), lines + np.uint64(8 * (width + 128)) + room
    for y in range(top, bottom):
        source = plane + np.uint64((y - y0) * row + left - x0)
        target = out + np.uint64((y - top) * count)
        if components == 1:
            memcpy(target, source, np.uint64(count))
            continue
        blue = _upsample(
            color, color_row, color_height, color_width, (color_y0, color_x0), y, left, right, halves, lines, blue_room
        )
        red = _upsample(
            color + np.uint64(color_plane), color_row, color_height, color_width, (color_y0, color_x0), y, left, right,
            halves, lines, red_room,
        )  # fmt: skip
        convert_line(source, blue, red, target, target + size, target + size + size, count)


@kernel
def stored_window(window, height, width, orientation):
    """Return the window (top, bottom, left, right) of a file that becomes a window of the upright image.

    Args:
        window: Of the upright image; height, width: its size.
        orientation: 1 to 8, as in EXIF.
    """
    top, bottom, left, right = window
    if orientation == 3 or orientation == 4 or orientation >= 7:
        top, bottom = height - bottom, height - top
    if orientation == 2 or orientation == 3 or orientation == 6 or orientation == 7:
        left, right = width - right, width - left
    if orientation >= 5:
        return left, right, top, bottom
    return top, bottom, left, right


@kernel
def turn(source, channels, height, width, orientation, out):
    """Turn planes upright.

    Args:
        source: Address of (channels, h, w) bytes as the file has them.
        channels, height, width: Of the result.
        orientation: 1 to 8, as in EXIF.
        out: Address of the result.
    """
    plane = height * width
    upside_down = orientation == 3 or orientation == 4 or orientation >= 7
    mirrored = orientation == 2 or orientation == 3 or orientation == 6 or orientation == 7
    found, turned = u8_at(source, channels * plane), u8_at(out, channels * plane)
    for c in range(channels):
        for y in range(height):
            from_y = height - 1 - y if upside_down else y
            for x in range(width):
                from_x = width - 1 - x if mirrored else x
                at = from_x * height + from_y if orientation >= 5 else from_y * width + from_x
                turned[c * plane + y * width + x] = found[c * plane + at]
