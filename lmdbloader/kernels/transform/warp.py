"""Kernels that warp images as torchvision does for tensors: rotated, sheared and scaled, nearest or bilinear.

A place of the result is carried to the image in float32 with the operations of torchvision's grids and of torch's
`grid_sample`, one by one and in their order: with the nearest pixel, the last bit decides which one is taken.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import array_at, f32_at, i32_at, part
from lmdbloader.kernels.runtime.philox import AUGMENT_STREAM, below, philox, uniform, unit
from lmdbloader.kernels.runtime.trigonometry import cos, sin
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.kernels.transform.displacement import displacement_room, fill_displacements

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_LANES = 4
# Zeros around an image between which bilinear weights fall: one row before it and two after it, and columns.
_BORDER = 3
_HALF, _ONE = np.float32(0.5), np.float32(1)
_PER_DEGREE = math.pi / 180


def _blend_of(kind: ir.Type) -> Any:
    """Return the function that weighs four pixels of four values; the last value says how much of it is image."""
    lanes, floats = ir.VectorType(kind, 2 * _LANES), ir.VectorType(_F32, 2 * _LANES)
    is_float = isinstance(kind, ir.FloatType)

    def shuffled(builder: Any, value: Any, which: list[int]) -> Any:
        return builder.shuffle_vector(
            value, value, ir.Constant(ir.VectorType(_I32, len(which)), [_I32(i) for i in which])
        )

    def everywhere(builder: Any, first: Any, second: Any) -> Any:
        both = builder.insert_element(ir.Constant(floats, ir.Undefined), first, _I32(0))
        return shuffled(builder, builder.insert_element(both, second, _I32(1)), [0] * _LANES + [1] * _LANES)

    @intrinsic
    def blend(typing_context, top, bottom, weights, fill, target):
        """Weigh two adjacent pixels at an address `top`, and two at `bottom`, by four weights, into `target`."""

        def generate(context, builder, signature, arguments):
            top, bottom, weights, fill, target = arguments
            total = None
            each = [builder.extract_value(weights, k) for k in range(4)]
            for address, pair in ((top, each[:2]), (bottom, each[2:])):
                value = builder.load(builder.inttoptr(address, lanes.as_pointer()), align=1)
                if not is_float:
                    value = builder.uitofp(value, floats)
                value = builder.fmul(value, everywhere(builder, *pair))
                total = value if total is None else builder.fadd(total, value)
            total = builder.fadd(shuffled(builder, total, [0, 1, 2, 3]), shuffled(builder, total, [4, 5, 6, 7]))
            around = builder.load(builder.inttoptr(fill, total.type.as_pointer()), align=4)
            share = shuffled(builder, total, [3] * _LANES)
            total = builder.fadd(builder.fmul(builder.fsub(total, around), share), around)
            if not is_float:
                rint = cgutils.get_or_insert_function(
                    builder.module, ir.FunctionType(total.type, (total.type,)), "llvm.rint.v4f32"
                )
                total = builder.fptosi(builder.call(rint, (total,)), ir.VectorType(_I32, _LANES))
                total = builder.trunc(total, ir.VectorType(kind, _LANES))
            builder.store(total, builder.inttoptr(target, total.type.as_pointer()), align=1)
            return context.get_dummy_value()

        address = types.uint64
        return types.void(address, address, types.UniTuple(types.float32, 4), address, address), generate

    return blend


_blend_u8, _blend_u16, _blend_f32 = (_blend_of(kind) for kind in (ir.IntType(8), ir.IntType(16), _F32))


@kernel
def warp_room(height, width, itemsize, side):
    """Return the float32 that `warp` works with at most.

    Args:
        height, width: Of the largest image, before or after it.
        itemsize: Bytes of a value.
        side: Of the kernel that smooths an elastic warp, 0 for none.
    """
    room = (height + _BORDER) * (width + _BORDER) * itemsize + (7 + itemsize) * width + _LANES
    return room + (displacement_room(height, width, side) if side else np.int64(0))


@kernel
def draw_warp(operation, numbers, seed, epoch, sample, number, geometry, color, stage, largest, grid):
    """Draw a warp of the images of some fields.

    Args:
        operation, numbers, seed, epoch, sample, number, geometry, color, stage: As for `_apply` of `program`.
        largest, grid: As `_align` there finds them. Shifts are multiples of the grid.
    """
    fields, full = operation[op.OP_FIELDS], geometry[largest, stage]
    words = philox(seed, AUGMENT_STREAM, sample, epoch, number, np.uint64(0))
    more = philox(seed, AUGMENT_STREAM, sample, epoch, number, np.uint64(1))
    bilinear = operation[op.OP_CUBIC] != 0
    if operation[op.OP_CODE] == op.PERSPECTIVE:
        if unit(words[0]) < numbers[op.PERSPECTIVE_P]:
            last = philox(seed, AUGMENT_STREAM, sample, epoch, number, np.uint64(2))
            _set_perspective(geometry, color, fields, stage, full, numbers[op.PERSPECTIVE_SHARE], more, last, bilinear)
        return
    if operation[op.OP_CODE] == op.ELASTIC:
        for f in range(geometry.shape[0]):
            if fields >> f & 1:
                drawn = color[f, stage]
                _close(geometry[f, stage], drawn, op.ELASTIC, bilinear)
                for k in range(4):
                    drawn[op.WARP_ELASTIC + k] = numbers[k]
                drawn[op.WARP_KEY] = np.float64(words[0] >> np.uint64(11))
                drawn[op.WARP_KEY + 1] = np.float64(words[1] >> np.uint64(11))
                drawn[op.WARP_HEIGHT], drawn[op.WARP_WIDTH] = full[op.HEIGHT], full[op.WIDTH]
        return
    angle = uniform(words[0], numbers[op.AFFINE_LOW], numbers[op.AFFINE_HIGH])
    across, down = numbers[op.AFFINE_ACROSS] * full[op.WIDTH], numbers[op.AFFINE_DOWN] * full[op.HEIGHT]
    shear = op.AFFINE_SHEAR
    shift_x = np.rint(uniform(words[1], -across, across) / grid) * grid
    shift_y = np.rint(uniform(words[2], -down, down) / grid) * grid
    set_affine(
        geometry, color, fields, stage, angle, shift_x, shift_y,
        uniform(words[3], numbers[op.AFFINE_SCALE_LOW], numbers[op.AFFINE_SCALE_HIGH]),
        uniform(more[0], numbers[shear], numbers[shear + 1]), uniform(more[1], numbers[shear + 2], numbers[shear + 3]),
        numbers[op.AFFINE_CENTER], numbers[op.AFFINE_CENTER + 1], bilinear,
    )  # fmt: skip
    if operation[op.OP_EXPANDS] != op.EXPANDS_NOT:
        most = operation[op.OP_EXPANDS] == op.EXPANDS_MOST
        is_quarter = np.rint(angle / 90.0) * 90.0 == angle and numbers[op.AFFINE_CENTER] != numbers[op.AFFINE_CENTER]
        _expand(geometry, color, fields, stage, full, grid, most, is_quarter)


@kernel
def _set_perspective(geometry, color, fields, stage, full, share, words, more, bilinear):
    """Draw four corners as torchvision's RandomPerspective does, and have those of the image carried there."""
    height, width = full[op.HEIGHT], full[op.WIDTH]
    down, across = np.int64(share * (height // 2)) + 1, np.int64(share * (width // 2)) + 1
    x0, y0 = below(words[0], across), below(words[1], down)
    x1, y1 = width - across + below(words[2], across), below(words[3], down)
    x2, y2 = width - across + below(more[0], across), height - down + below(more[1], down)
    x3, y3 = below(more[2], across), height - down + below(more[3], down)
    # The unit square is carried to the corners (Heckbert: Fundamentals of texture mapping, 1989), and this is inverted.
    ax, ay, bx, by = x1 - x2, y1 - y2, x3 - x2, y3 - y2
    sum_x, sum_y = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    area = ax * by - bx * ay
    others = np.float64((x1 - x0) * (y3 - y0) - (x3 - x0) * (y1 - y0)) * ((x0 - x1) * -ay + ax * (y0 - y1))
    others *= (x0 - x3) * by - bx * (y0 - y3)
    if area == 0 or others == 0:
        return  # three corners are on one line; torchvision raises an error
    g, h = (sum_x * by - bx * sum_y) / area, (ax * sum_y - sum_x * ay) / area
    a, b, d, e = x1 - x0 + g * x1, x3 - x0 + h * x3, y1 - y0 + g * y1, y3 - y0 + h * y3
    last = a * e - b * d
    if last == 0.0:
        return
    wide, high = (width - 1) / last, (height - 1) / last
    for f in range(geometry.shape[0]):
        if fields >> f & 1:
            ratio = np.float64(height // geometry[f, stage, op.HEIGHT])
            _close(geometry[f, stage], color[f, stage], op.PERSPECTIVE, bilinear)
            m = part(color[f, stage], op.WARP_MATRIX, 8)
            m[0], m[1], m[2] = (e - y0 * h) * wide, (x0 * h - b) * wide, (b * y0 - x0 * e) * wide / ratio
            m[3], m[4], m[5] = (y0 * g - d) * high, (a - x0 * g) * high, (x0 * d - a * y0) * high / ratio
            m[6], m[7] = (d * h - e * g) / last * ratio, (b * g - a * h) / last * ratio


@kernel
def _ends(matrix, along_x, along_y, over):
    """Return the first and the last pixel border of a turned image on one axis, as torchvision rounds them."""
    x, y, term = np.float32(matrix[0]) * along_x, np.float32(matrix[1]) * along_y, np.float32(matrix[2])
    low = min(min((-x - y) + term, (-x + y) + term), min((x + y) + term, (x - y) + term)) + over
    high = max(max((-x - y) + term, (-x + y) + term), max((x + y) + term, (x - y) + term)) + over
    step, per_step = np.float32(1e-4), np.float32(1e4)
    low, high = np.float32(np.int64(low * per_step)) * step, np.float32(np.int64(high * per_step)) * step
    return np.int64(np.floor(low)), np.int64(np.ceil(high))


@kernel
def _expand(geometry, color, fields, stage, full, grid, most, is_quarter):
    """Enlarge the result of a rotation to hold all of the image; `most`: as much as any angle takes.

    For other angles than quarters of a turn the size is that of torchvision, which may be one pixel more than needed.
    """
    height, width = full[op.HEIGHT], full[op.WIDTH]
    half_w, half_h = np.float32(width * 0.5), np.float32(height * 0.5)
    for f in range(geometry.shape[0]):
        if fields >> f & 1 and geometry[f, stage, op.HEIGHT] == height:
            m = part(color[f, stage], op.WARP_MATRIX, 6)
            left, right = _ends(m, half_w, half_h, half_w)
            top, bottom = _ends(part(m, 3, 3), half_w, half_h, half_h)
            new_height, new_width = bottom - top, right - left
            is_odd = abs(m[1]) > 0.5
    if is_quarter:
        new_height, new_width = (width, height) if is_odd else (height, width)
    if most:
        new_height = new_width = np.int64(math.sqrt(np.float64(height * height + width * width))) + 3
    new_height, new_width = (new_height + grid - 1) // grid * grid, (new_width + grid - 1) // grid * grid
    for f in range(geometry.shape[0]):
        if fields >> f & 1:
            g = geometry[f, stage]
            ratio = height // g[op.HEIGHT]
            g[op.NEW_HEIGHT], g[op.NEW_WIDTH] = new_height // ratio, new_width // ratio
            color[f, stage, op.WARP_EXPANDS] = 1
            if is_quarter:
                color[f, stage, op.WARP_BILINEAR] = 0


@kernel
def _close(g, drawn, code, bilinear):
    """End a stage with a warp to the same size."""
    g[op.CLOSING] = op.THEN_WARP
    g[op.NEW_HEIGHT], g[op.NEW_WIDTH] = g[op.HEIGHT], g[op.WIDTH]
    drawn[op.COLOR_CODE], drawn[op.WARP_BILINEAR] = code, 1.0 if bilinear else 0.0


@kernel
def set_affine(
    geometry, color, fields, stage, angle, shift_x, shift_y, scale, shear_x, shear_y, center_x, center_y, bilinear
):
    """Have images warped at the end of a stage as torchvision's `affine` does, each at its own scale.

    Args:
        geometry, color: As for `draw`.
        fields: A set of fields, one bit for each.
        stage: The number of the stage.
        angle, shear_x, shear_y: Degrees, float64.
        shift_x, shift_y: Pixels of the largest image, float64.
        scale: A factor above 0, float64.
        center_x, center_y: Pixels of the largest image, float64; NaN for its middle.
        bilinear: Whether images are interpolated; masks never are.
    """
    most_height, most_width = np.int64(1), np.int64(1)
    for f in range(geometry.shape[0]):
        if fields >> f & 1:
            most_height = max(most_height, geometry[f, stage, op.HEIGHT])
            most_width = max(most_width, geometry[f, stage, op.WIDTH])
    turn, across, down = angle * _PER_DEGREE, shear_x * _PER_DEGREE, shear_y * _PER_DEGREE
    tangent = sin(across) / cos(across)
    a, c = cos(turn - down) / cos(down), sin(turn - down) / cos(down)
    b, d = -(a * tangent + sin(turn)), cos(turn) - c * tangent
    middle_x = 0.0 if center_x != center_x else center_x - most_width * 0.5
    middle_y = 0.0 if center_y != center_y else center_y - most_height * 0.5
    xx, xy, yx, yy = d / scale, -b / scale, -c / scale, a / scale
    to_x = middle_x - xx * (middle_x + shift_x) - xy * (middle_y + shift_y)
    to_y = middle_y - yx * (middle_x + shift_x) - yy * (middle_y + shift_y)
    # A turn by quarters alone moves whole pixels, which need no weights; torchvision copies them too.
    turns = np.rint(angle / 90.0)
    is_turn = scale == 1.0 and shear_x == 0.0 and shear_y == 0.0 and shift_x == 0.0 and shift_y == 0.0
    if is_turn and turns * 90.0 == angle and center_x != center_x:
        bilinear = bilinear and np.int64(turns) % 2 != 0 and (most_height - most_width) % 2 != 0
    for f in range(geometry.shape[0]):
        if fields >> f & 1:
            g, drawn = geometry[f, stage], color[f, stage]
            _close(g, drawn, op.AFFINE, bilinear)
            drawn[op.WARP_MATRIX], drawn[op.WARP_MATRIX + 1] = xx, xy
            drawn[op.WARP_MATRIX + 2] = to_x * g[op.WIDTH] / most_width
            drawn[op.WARP_MATRIX + 3], drawn[op.WARP_MATRIX + 4] = yx, yy
            drawn[op.WARP_MATRIX + 5] = to_y * g[op.HEIGHT] / most_height
            drawn[op.WARP_EXPANDS] = 0


@njit(inline="always")
def _ratio(value, over):
    return np.float32(value) / np.float32(over)


@kernel
def _affine_row(y, new_height, height, width, drawn, xs, ys):
    """Write the places in the image of a row's pixels, see `_affine_grid` of torchvision's."""
    m, count = op.WARP_MATRIX, xs.shape[0]
    half_w, half_h = np.float32(width * 0.5), np.float32(height * 0.5)
    xx, yx = _ratio(drawn[m], half_w), _ratio(drawn[m + 3], half_h)
    from_y = np.float32(y - (new_height - 1) * 0.5)
    add_x, add_y = from_y * _ratio(drawn[m + 1], half_w), from_y * _ratio(drawn[m + 4], half_h)
    to_x, to_y = _ratio(drawn[m + 2], half_w), _ratio(drawn[m + 5], half_h)
    first = np.float32((1 - count) * 0.5)
    for x in range(count):
        from_x = np.float32(np.int32(x)) + first
        xs[x] = (((from_x * xx + add_x) + to_x) + _ONE) * half_w - _HALF
        ys[x] = (((from_x * yx + add_y) + to_y) + _ONE) * half_h - _HALF


@kernel
def _perspective_row(y, height, width, drawn, xs, ys):
    """Write the places in the image of a row's pixels, see `_perspective_grid` of torchvision's."""
    m, half_w, half_h = op.WARP_MATRIX, np.float32(width * 0.5), np.float32(height * 0.5)
    from_y = np.float32(y) + _HALF
    xx, add_x, to_x = _ratio(drawn[m], half_w), from_y * _ratio(drawn[m + 1], half_w), _ratio(drawn[m + 2], half_w)
    yx, add_y, to_y = _ratio(drawn[m + 3], half_h), from_y * _ratio(drawn[m + 4], half_h), _ratio(drawn[m + 5], half_h)
    over, add_over = np.float32(drawn[m + 6]), from_y * np.float32(drawn[m + 7])
    for x in range(xs.shape[0]):
        from_x = np.float32(np.int32(x)) + _HALF
        depth = (from_x * over + add_over) + _ONE
        xs[x] = ((((from_x * xx + add_x) + to_x) / depth - _ONE) + _ONE) * half_w - _HALF
        ys[x] = ((((from_x * yx + add_y) + to_y) / depth - _ONE) + _ONE) * half_h - _HALF


@njit(inline="always")
def _even(i, count):
    """Return where the middle of a pixel is, from -1 to 1, as torch's linspace finds it: rounded once."""
    first, last = np.float32((1 - count) / count), np.float32((count - 1) / count)
    step = np.float64((last - first) / np.float32(max(count - 1, 1)))
    return np.float32(first + step * i if i < count // 2 else last - step * (count - 1 - i))


@kernel
def _elastic_row(y, height, width, drawn, field, xs, ys):
    """Write the places in the image of a row's pixels: displaced by the field, at its own scale."""
    full_height, full_width = np.int64(drawn[op.WARP_HEIGHT]), np.int64(drawn[op.WARP_WIDTH])
    half_w, half_h, ratio = np.float32(width * 0.5), np.float32(height * 0.5), full_height // height
    from_y, plane = _even(y, height), full_height * full_width
    # The middle of a pixel is that of a pixel of the field, or between four.
    first, second = (ratio * (2 * y + 1) - 1) // 2 * full_width, ratio * (2 * y + 1) // 2 * full_width
    upper_x, lower_x = part(field, first, full_width), part(field, second, full_width)
    upper_y, lower_y = part(field, plane + first, full_width), part(field, plane + second, full_width)
    if ratio == 1:
        for x in range(width):
            xs[x] = ((_even(x, width) + upper_x[x]) + _ONE) * half_w - _HALF
            ys[x] = ((from_y + upper_y[x]) + _ONE) * half_h - _HALF
        return
    for x in range(width):
        a, b = (ratio * (2 * x + 1) - 1) // 2, ratio * (2 * x + 1) // 2
        move_x = ((upper_x[a] + upper_x[b]) + (lower_x[a] + lower_x[b])) * np.float32(0.25)
        move_y = ((upper_y[a] + upper_y[b]) + (lower_y[a] + lower_y[b])) * np.float32(0.25)
        xs[x] = ((_even(x, width) + move_x) + _ONE) * half_w - _HALF
        ys[x] = ((from_y + move_y) + _ONE) * half_h - _HALF


@kernel
def _find_nearest(xs, ys, height, width, found):
    """Write for each place the number of its pixel, or -1 outside of the image; halves become even, as in torch."""
    last_x, last_y = np.float32(width - 1), np.float32(height - 1)
    step = np.int32(width)
    for x in range(xs.shape[0]):
        column, row = np.rint(xs[x]), np.rint(ys[x])
        is_inside = (column >= 0) & (column <= last_x) & (row >= 0) & (row <= last_y)
        column, row = column if is_inside else np.float32(0), row if is_inside else np.float32(0)
        number = np.int32(row) * step + np.int32(column)
        found[x] = number if is_inside else np.int32(-1)


@kernel
def _take(source, found, fill, out):
    for x in range(found.shape[0]):
        at = found[x]
        out[x] = source[np.uint32(at)] if at >= 0 else fill


@kernel
def _weigh(xs, ys, height, width, found, weights):
    """Write for each place the number of its upper left pixel in the bordered image, and the weights of its four."""
    count = xs.shape[0]
    a, b = part(weights, 0, count), part(weights, count, count)
    c, d = part(weights, 2 * count, count), part(weights, 3 * count, count)
    last_x, last_y, least, step = np.float32(width), np.float32(height), np.float32(-1), np.int32(width + _BORDER)
    for i in range(count):
        x, y = xs[i], ys[i]
        x, y = x if x > least else least, y if y > least else least  # of a NaN too
        x, y = x if x < last_x else last_x, y if y < last_y else last_y
        left, top = np.floor(x), np.floor(y)
        right_share, bottom_share = x - left, y - top
        left_share, top_share = _ONE - right_share, _ONE - bottom_share
        found[i] = (np.int32(top) + np.int32(1)) * step + (np.int32(left) + np.int32(1))
        a[i], b[i] = left_share * top_share, right_share * top_share
        c[i], d[i] = left_share * bottom_share, right_share * bottom_share


@kernel
def _interleave(source, first, channels, height, width, rest, out):
    """Write pixels of up to three planes and a 1; around them zeros and `rest`: whether the fill has no part there."""
    step = width + _BORDER
    plane = height * width
    for y in range(height + _BORDER):
        row = part(out, y * step * _LANES, step * _LANES)
        if y == 0 or y > height:
            for x in range(step * _LANES):
                row[x] = rest if x & 3 == 3 else 0
            continue
        for x in range(_LANES):
            row[x] = row[(step - 2) * _LANES + x] = row[(step - 1) * _LANES + x] = rest if x == 3 else 0
        at = first * plane + (y - 1) * width
        red = part(source, at, width)
        green = part(source, at + plane if channels > 1 else at, width)
        blue = part(source, at + 2 * plane if channels > 2 else at, width)
        inner = part(row, _LANES, width * _LANES)
        for x in range(width):
            inner[4 * x] = red[x]
            inner[4 * x + 1] = green[x]
            inner[4 * x + 2] = blue[x]
            inner[4 * x + 3] = 1


@kernel
def _blend_row(pixels, found, weights, step, fill, line):
    """Write the weighed pixels of a row, four values each."""
    count = found.shape[0]
    a, b = part(weights, 0, count), part(weights, count, count)
    c, d = part(weights, 2 * count, count), part(weights, 3 * count, count)
    base, around, out = pixels.ctypes.data, fill.ctypes.data, line.ctypes.data
    size = np.uint64(_LANES * pixels.itemsize)
    below = np.uint64(step) * size
    for x in range(count):
        top = base + np.uint64(np.uint32(found[x])) * size
        each, target = (a[x], b[x], c[x], d[x]), out + np.uint64(x) * size
        if pixels.itemsize == 1:
            _blend_u8(top, top + below, each, around, target)
        elif pixels.itemsize == 2:
            _blend_u16(top, top + below, each, around, target)
        else:
            _blend_f32(top, top + below, each, around, target)


@kernel
def _fill_of(g, channel, itemsize):
    """Return the fill of a channel as a float32."""
    value = g[op.FILL + min(channel, 2)]
    return (
        f32_at(g.ctypes.data + np.uint64(8 * (op.FILL + min(channel, 2))), 1)[0] if itemsize == 4 else np.float32(value)
    )


@kernel
def warp(source, channels, height, width, g, drawn, target, new_height, new_width, line):
    """Warp an image; what is outside of it is filled.

    Args:
        source: uint8, uint16 or float32, planes (height, width) one after the other.
        channels, height, width: Of the image.
        g: (NUM_GEOMETRY,) int64, with its fill, and MASK for labels, which are never mixed.
        drawn: (NUM_COLOR,) float64, see `opcodes.WARP_BILINEAR`.
        target: Of source's type, room for planes (new_height, new_width).
        new_height, new_width: The size of the result.
        line: float32, scratch.

    Returns:
        Whether the scratch has the values of `warp_room`.
    """
    code, room = drawn[op.COLOR_CODE], warp_room(height, max(width, new_width), source.itemsize, np.int64(0))
    if line.shape[0] < room:
        return False
    field = part(line, room, line.shape[0] - room)
    if code == op.ELASTIC and not fill_displacements(drawn, field):
        return False
    fill = part(line, 0, 4)
    xs, ys = part(line, 4, new_width), part(line, 4 + new_width, new_width)
    found = i32_at(line.ctypes.data + np.uint64(4 * (4 + 2 * new_width)), new_width)
    weights = part(line, 4 + 3 * new_width, 4 * new_width)
    between = array_at(line.ctypes.data + np.uint64(16 + 28 * new_width), _LANES * new_width, source)
    pixels = array_at(
        line.ctypes.data + np.uint64(16 + 28 * new_width + _LANES * new_width * source.itemsize),
        (height + _BORDER) * (width + _BORDER) * _LANES,
        source,
    )
    bilinear = drawn[op.WARP_BILINEAR] != 0 and g[op.MASK] == 0
    plane, new_plane = height * width, new_height * new_width
    first = np.int64(0)
    while first < channels:
        count = min(channels - first, 3) if bilinear else channels
        if bilinear:
            _interleave(source, first, count, height, width, drawn[op.WARP_BILINEAR] == op.TO_BLACK, pixels)
            for c in range(3):
                fill[c] = _fill_of(g, first + c, source.itemsize)
            fill[3] = 0
        for y in range(new_height):
            if code == op.PERSPECTIVE:
                _perspective_row(y, height, width, drawn, xs, ys)
            elif code == op.ELASTIC:
                _elastic_row(y, height, width, drawn, field, xs, ys)
            else:
                _affine_row(y, new_height, height, width, drawn, xs, ys)
            if not bilinear:
                _find_nearest(xs, ys, height, width, found)
                for c in range(channels):
                    line_out = part(target, c * new_plane + y * new_width, new_width)
                    around = array_at(g.ctypes.data + np.uint64(8 * (op.FILL + min(c, 2))), 1, source)[0]
                    _take(part(source, c * plane, plane), found, around, line_out)
                continue
            _weigh(xs, ys, height, width, found, weights)
            _blend_row(pixels, found, weights, width + _BORDER, fill, between)
            for c in range(count):
                row = part(target, (first + c) * new_plane + y * new_width, new_width)
                for x in range(new_width):
                    row[x] = between[np.uint64(_LANES * x + c)]
        first += count
    return True


@kernel
def displaces(drawn, line):
    """Write the field of an elastic warp into the scratch, and return whether there is room for it."""
    return drawn[op.COLOR_CODE] != op.ELASTIC or fill_displacements(drawn, line)


@kernel
def _affine_place(g, drawn, x, y):
    """Return where an affine warp moves a place, from the corner of the result."""
    m = part(drawn, op.WARP_MATRIX, 6)
    x, y = x - g[op.WIDTH] * 0.5 - m[2], y - g[op.HEIGHT] * 0.5 - m[5]
    area = m[0] * m[4] - m[1] * m[3]
    return (m[4] * x - m[1] * y) / area, (m[0] * y - m[3] * x) / area


@kernel
def _perspective_place(drawn, x, y):
    m = part(drawn, op.WARP_MATRIX, 8)
    depth = (m[3] * m[7] - m[4] * m[6]) * x + (m[1] * m[6] - m[0] * m[7]) * y + (m[0] * m[4] - m[1] * m[3])
    new_x = (m[4] - m[5] * m[7]) * x + (m[2] * m[7] - m[1]) * y + (m[1] * m[5] - m[2] * m[4])
    new_y = (m[5] * m[6] - m[3]) * x + (m[0] - m[2] * m[6]) * y + (m[2] * m[3] - m[0] * m[5])
    return new_x / depth, new_y / depth


@kernel
def _elastic_place(g, drawn, field, x, y):
    """Return the place of a pixel, moved by the opposite of its displacement, which is nearly the inverse."""
    column = min(max(np.int64(x), 0), g[op.WIDTH] - 1)
    row = min(max(np.int64(y), 0), g[op.HEIGHT] - 1)
    full_height, full_width = np.int64(drawn[op.WARP_HEIGHT]), np.int64(drawn[op.WARP_WIDTH])
    ratio = full_height // g[op.HEIGHT]
    at = (ratio * (2 * row + 1) // 2) * full_width + ratio * (2 * column + 1) // 2
    move_x, move_y = field[at] * 0.5 * g[op.WIDTH], field[full_height * full_width + at] * 0.5 * g[op.HEIGHT]
    return column - move_x, row - move_y


@kernel
def _first_corner(g, drawn):
    """Return the least x and y of the corners of an image that an affine warp moves."""
    least_x, least_y = np.inf, np.inf
    for k in range(4):
        x, y = _affine_place(g, drawn, float(k % 2 * g[op.WIDTH]), float(k // 2 * g[op.HEIGHT]))
        least_x, least_y = min(least_x, x), min(least_y, y)
    return least_x, least_y


@kernel
def _moved(g, drawn, field, corner, x, y):
    if drawn[op.COLOR_CODE] == op.PERSPECTIVE:
        return _perspective_place(drawn, x, y)
    if drawn[op.COLOR_CODE] == op.ELASTIC:
        return _elastic_place(g, drawn, field, x, y)
    x, y = _affine_place(g, drawn, x, y)
    return x - corner[0], y - corner[1]


@kernel
def move(g, drawn, field, place):
    """Move a point, or a box to the one around its corners, as torchvision moves them with the image of a warp.

    Args:
        g: (NUM_GEOMETRY,) int64.
        drawn: (NUM_COLOR,) float64.
        field: float32, filled by `displaces`.
        place: (2,) or (4,) float64, replaced. A box ends at the borders of the image; one without area stays one.
    """
    corner = (-0.5 * g[op.NEW_WIDTH], -0.5 * g[op.NEW_HEIGHT])
    if drawn[op.COLOR_CODE] == op.AFFINE and drawn[op.WARP_EXPANDS] != 0:
        corner = _first_corner(g, drawn)
    if place.shape[0] == 2:
        place[0], place[1] = _moved(g, drawn, field, corner, place[0], place[1])
        return
    left, top, right, bottom = place[0], place[1], place[2], place[3]
    if left >= right or top >= bottom:
        right, bottom = left, top
    if drawn[op.COLOR_CODE] == op.ELASTIC:
        left, top, right, bottom = np.ceil(left), np.ceil(top), np.ceil(right), np.ceil(bottom)
    least_x, least_y, most_x, most_y = np.inf, np.inf, -np.inf, -np.inf
    for k in range(4):
        x, y = _moved(g, drawn, field, corner, right if k % 2 else left, bottom if k // 2 else top)
        least_x, least_y, most_x, most_y = min(least_x, x), min(least_y, y), max(most_x, x), max(most_y, y)
    wide, high = float(g[op.NEW_WIDTH]), float(g[op.NEW_HEIGHT])
    place[0], place[1] = min(max(least_x, 0.0), wide), min(max(least_y, 0.0), high)
    place[2], place[3] = min(max(most_x, 0.0), wide), min(max(most_y, 0.0), high)
