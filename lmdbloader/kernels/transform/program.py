"""Kernels that draw the random choices of a list of transforms, and compose them into a window of each stored image."""

from __future__ import annotations

import math

import numpy as np

from lmdbloader.kernels.assemble_columns import MOST_BETWEEN, MOST_HEIGHT, MOST_PIXELS, MOST_WIDTH
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.exponential import exp, log
from lmdbloader.kernels.runtime.philox import AUGMENT_STREAM, below, philox, uniform, unit
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.kernels.transform.color import draw_colors
from lmdbloader.kernels.transform.geometry import begin, crop, flip_horizontally, flip_vertically, is_filled, transpose
from lmdbloader.kernels.transform.policy import draw_mix, draw_policy
from lmdbloader.kernels.transform.warp import draw_warp

_TRIES = 10


@kernel
def _open_next(geometry, stage):
    """Start the next stage: with the same image, or with the result of this stage's closing."""
    g, following = geometry[stage], geometry[stage + 1]
    if g[op.CLOSING] == op.CARRY and g[op.WRITES]:
        g[op.CLOSING] = op.WRITE
    if g[op.CLOSING] == op.CARRY:
        for k in range(g.shape[0]):  # assigning a slice would compile Numba's error messages, for seconds
            following[k] = g[k]
        return
    if g[op.CLOSING] != op.THEN_RESIZE and g[op.CLOSING] != op.THEN_WARP:
        begin(following, g[op.HEIGHT], g[op.WIDTH])
        return
    height, width = g[op.NEW_HEIGHT], g[op.NEW_WIDTH]
    if (
        is_filled(g) or g[op.MASK] or g[op.CLOSING] == op.THEN_WARP
    ):  # the nearest label depends on the direction: a mask is turned first
        begin(following, height, width)
        return
    # The window is resized as stored; it is turned when it has fewer pixels.
    transposed, down, across = g[op.TRANSPOSED], g[op.DOWN], g[op.ACROSS]
    if transposed:
        height, width = width, height
        g[op.NEW_HEIGHT], g[op.NEW_WIDTH] = height, width
    begin(following, height, width)
    if transposed:
        transpose(following)
    # After an exchange the signs belong to the other axis: the rows of the image run along the result's columns.
    if (across if transposed else down) < 0:
        flip_vertically(following)
    if (down if transposed else across) < 0:
        flip_horizontally(following)


@kernel
def _align(geometry, fields, stage):
    """Return how the sizes of the images of some fields relate.

    Returns:
        (field of the largest image, grid): for all of them to be cropped alike, positions and sizes in the largest must
        be multiples of `grid`; a grid of 0 if the size of some image is not a whole fraction of the largest.
    """
    largest = -1
    for f in range(geometry.shape[0]):
        if fields >> f & 1 and (largest < 0 or geometry[f, stage, op.HEIGHT] > geometry[largest, stage, op.HEIGHT]):
            largest = f
    grid = np.int64(1)
    height, width = geometry[largest, stage, op.HEIGHT], geometry[largest, stage, op.WIDTH]
    for f in range(geometry.shape[0]):
        if fields >> f & 1:
            ratio = height // max(geometry[f, stage, op.HEIGHT], 1)
            if (
                ratio < 1
                or geometry[f, stage, op.HEIGHT] * ratio != height
                or geometry[f, stage, op.WIDTH] * ratio != width
            ):
                return largest, np.int64(0)
            a, b = grid, ratio
            while b:
                a, b = b, a % b
            grid = grid // a * ratio
    return largest, grid


@kernel
def _box(words, area, scale_low, scale_high, log_low, log_high):
    """Return two sides of a rectangle with a random share of an area, and a random ratio of the second to the first."""
    target = area * uniform(words[0], scale_low, scale_high)
    ratio = exp(uniform(words[1], log_low, log_high))
    return np.int64(np.rint(math.sqrt(target / ratio))), np.int64(np.rint(math.sqrt(target * ratio)))


@kernel
def _resized_crop_box(seed, sample, epoch, number, height, width, real):
    """Return (top, left, height, width) as torchvision's RandomResizedCrop.get_params draws it."""
    log_low, log_high = log(real[op.CROP_RATIO_LOW]), log(real[op.CROP_RATIO_HIGH])
    for attempt in range(_TRIES):
        words = philox(seed, AUGMENT_STREAM, sample, epoch, number, np.uint64(attempt))
        area = np.float64(height) * width
        h, w = _box(words, area, real[op.CROP_SCALE_LOW], real[op.CROP_SCALE_HIGH], log_low, log_high)
        if 0 < h <= height and 0 < w <= width:
            return below(words[2], height - h + 1), below(words[3], width - w + 1), h, w
    h, w = height, width
    if np.float64(width) / height < real[op.CROP_RATIO_LOW]:
        h = min(np.int64(np.rint(width / real[op.CROP_RATIO_LOW])), height)
    elif np.float64(width) / height > real[op.CROP_RATIO_HIGH]:
        w = min(np.int64(np.rint(height * real[op.CROP_RATIO_HIGH])), width)
    h, w = max(h, np.int64(1)), max(w, np.int64(1))
    return (height - h) // 2, (width - w) // 2, h, w


@kernel
def _erased_box(seed, sample, epoch, number, height, width, real):
    """Return (top, left, height, width) as torchvision's RandomErasing.get_params draws it; a height of 0: no box."""
    words = philox(seed, AUGMENT_STREAM, sample, epoch, number, np.uint64(_TRIES))
    nothing = (np.int64(0), np.int64(0), np.int64(0), np.int64(0))
    if unit(words[0]) >= real[op.ERASE_P]:
        return nothing
    log_low, log_high = log(real[op.ERASE_RATIO_LOW]), log(real[op.ERASE_RATIO_HIGH])
    for attempt in range(_TRIES):
        words = philox(seed, AUGMENT_STREAM, sample, epoch, number, np.uint64(attempt))
        # Here torchvision's ratio is height over width; for RandomResizedCrop it is the inverse.
        area = np.float64(height) * width
        w, h = _box(words, area, real[op.ERASE_SCALE_LOW], real[op.ERASE_SCALE_HIGH], log_low, log_high)
        if 0 < h < height and 0 < w < width:
            return below(words[2], height - h + 1), below(words[3], width - w + 1), h, w
    return nothing


@kernel
def _resize_to(operation, height, width):
    """Return the size after a Resize to (height, width), or of the shorter side with the other in proportion."""
    if operation[op.OP_WIDTH]:
        return operation[op.OP_HEIGHT], operation[op.OP_WIDTH]
    side = operation[op.OP_HEIGHT]
    if height <= width:
        return side, max(side * width // height, 1)
    return max(side * height // width, 1), side


@kernel
def _is_taken(operation, numbers, seed, epoch, sample, number):
    """Return whether a BRANCH with a number takes the operations after it."""
    origin = np.uint64(number - operation[op.BRANCH_BACK])
    count, item = operation[op.BRANCH_COUNT], operation[op.BRANCH_ITEM]
    if count == 0:
        drawn = unit(philox(seed, AUGMENT_STREAM, sample, epoch, origin, np.uint64(0))[0])
        return numbers[op.BRANCH_LOW] <= drawn and drawn < numbers[op.BRANCH_HIGH]
    own = philox(seed, AUGMENT_STREAM, sample, epoch, origin, np.uint64(item))[0]
    place = np.int64(0)  # the items are sorted by a random word each
    for other in range(count):
        word = philox(seed, AUGMENT_STREAM, sample, epoch, origin, np.uint64(other))[0]
        place += word < own or (word == own and other < item)
    return place == operation[op.BRANCH_PLACE]


@kernel
def raise_most(most, height, width):
    """Raise `most` of `draw` to the size of an image."""
    most[MOST_PIXELS] = max(most[MOST_PIXELS], height * width)
    most[MOST_HEIGHT] = max(most[MOST_HEIGHT], height)
    most[MOST_WIDTH] = max(most[MOST_WIDTH], width)


@kernel
def draw(program, view, seed, epoch, sample, geometry, color, rectangles, most):
    """Draw and compose the operations of a view for one sample.

    Args:
        program: (whole, real, views): (operations, NUM_WHOLE) int64 and (operations, NUM_REAL) float64 of all views,
            and (views, NUM_VIEW) int64, see `opcodes`.
        view: Number of the view.
        seed, epoch, sample: uint64; random choices depend only on them, on the view, and on the operation's number in
            it. From the bit `opcodes.FRAME_BITS` on, sample is the number of a frame in its window, on which noise
            alone depends.
        geometry: (fields, stages, NUM_GEOMETRY) int64, filled; [:, 0, HEIGHT] and [:, 0, WIDTH] are given, the sizes of
            the stored images, as are MASK, OWN_FILL, WRITES and, for masks, FILL at every stage.
        color: (fields, stages, NUM_COLOR) float64, filled for stages that change colors.
        rectangles: (fields, erasings, 4) int64, filled with (top, left, height, width) in the finished image.
        most: (4,) int64, raised to the largest number of pixels, height and width of any image on the way, and to the
            largest product of one side of a resized image before, and the other side after the resize.

    Returns:
        A status.
    """
    whole, real, views = program
    begin_at, end_at, shared = views[view, op.VIEW_BEGIN], views[view, op.VIEW_END], views[view, op.VIEW_SHARED]
    num_fields = geometry.shape[0]
    frame, sample = sample >> np.uint64(op.FRAME_BITS), sample & np.uint64((1 << op.FRAME_BITS) - 1)
    for f in range(num_fields):
        begin(geometry[f, 0], geometry[f, 0, op.HEIGHT], geometry[f, 0, op.WIDTH])
    for f in range(num_fields):
        for k in range(rectangles.shape[1]):
            rectangles[f, k, 2] = 0
    stage = following = np.int64(0)
    for at in range(begin_at, end_at):
        operation, numbers = whole[at], real[at]
        number = at - begin_at
        if number >= shared:
            number += view << op.VIEW_BITS
        if at < following:
            continue
        if operation[op.OP_CODE] == op.BRANCH:
            if not _is_taken(operation, numbers, seed, epoch, sample, number):
                following = at + 1 + operation[op.BRANCH_SKIPS]
            continue
        while stage < operation[op.OP_STAGE]:
            for f in range(num_fields):
                g = geometry[f, stage]
                if (
                    g[op.CLOSING] == op.CARRY
                    and operation[op.OP_FIELDS] >> f & 1
                    and operation[op.OP_PADS]
                    and is_filled(g)
                ):
                    g[op.CLOSING] = op.WRITE  # it was padded with another fill
                _open_next(geometry[f], stage)
            stage += 1
        for f in range(num_fields):
            g = geometry[f, stage]
            if operation[op.OP_FIELDS] >> f & 1:
                color[f, stage, op.COLOR_OPERATION] = at
                for c in range(3 if operation[op.OP_PADS] and g[op.MASK] == 0 else 0):
                    g[op.FILL + c] = operation[op.OP_FILL + g[op.OWN_FILL] + c]
        status = _apply(
            operation, numbers, seed, epoch, sample, frame, np.uint64(number), geometry, color, rectangles, most, stage
        )
        if status:
            return status
        for f in range(num_fields):
            g = geometry[f, stage]
            if g[op.CLOSING] == op.THEN_RESIZE or g[op.CLOSING] == op.THEN_WARP:
                raise_most(most, g[op.NEW_HEIGHT], g[op.NEW_WIDTH])
            raise_most(most, g[op.HEIGHT], g[op.WIDTH])
    while stage < geometry.shape[1] - 1:
        for f in range(num_fields):
            _open_next(geometry[f], stage)
        stage += 1
    return 0


@kernel
def _apply(operation, numbers, seed, epoch, sample, frame, number, geometry, color, rectangles, most, stage):
    """Apply one operation to its fields; a new operation that moves pixels gets its branch here. See `draw`."""
    code, fields = operation[op.OP_CODE], operation[op.OP_FIELDS]
    num_fields = geometry.shape[0]
    words = philox(seed, AUGMENT_STREAM, sample, epoch, number, np.uint64(0))
    if code == op.HORIZONTAL_FLIP or code == op.VERTICAL_FLIP:
        if unit(words[0]) < numbers[op.FLIP_P]:
            for f in range(num_fields):
                if fields >> f & 1:
                    if code == op.HORIZONTAL_FLIP:
                        flip_horizontally(geometry[f, stage])
                    else:
                        flip_vertically(geometry[f, stage])
        return 0
    if code == op.DIHEDRAL:
        which = below(words[0], 8)
        for f in range(num_fields):
            if fields >> f & 1:
                g = geometry[f, stage]
                if g[op.HEIGHT] != g[op.WIDTH]:
                    return op.NOT_SQUARE
                if which & 4:
                    transpose(g)
                if which & 2:
                    flip_vertically(g)
                if which & 1:
                    flip_horizontally(g)
        return 0
    if code >= op.JITTER and code != op.AUGMIX:
        more = philox(seed, AUGMENT_STREAM, sample, epoch, number, np.uint64(1))
        for f in range(num_fields):
            if fields >> f & 1 and draw_colors(code, numbers, words, more, f, frame, color[f, stage]):
                geometry[f, stage, op.CLOSING] = op.THEN_COLOR
        return 0
    largest, grid = _align(geometry, fields, stage)
    if grid == 0:
        return op.NOT_ALIGNED
    full_height, full_width = geometry[largest, stage, op.HEIGHT], geometry[largest, stage, op.WIDTH]
    if code <= op.ELASTIC and code >= op.AFFINE:
        draw_warp(operation, numbers, seed, epoch, sample, number, geometry, color, stage, largest, grid)
        return 0
    if code == op.AUGMIX:
        draw_mix(operation, numbers, words, geometry, color, stage, full_height)
        return 0
    if code == op.POLICY:
        draw_policy(
            operation, numbers, seed, sample, epoch, number, geometry, color, stage, full_height, full_width
        )  # fmt: skip
        return 0
    # Positions are counted in steps of the grid, so that they fall on whole pixels of every field.
    rows, columns = full_height // grid, full_width // grid
    if code == op.RESIZE:
        height, width = _resize_to(operation, full_height, full_width)
        if operation[op.OP_WIDTH] == 0 and operation[op.OP_HEIGHT] % grid == 0:  # the longer side is rounded anyway
            height, width = height // grid * grid, width // grid * grid
        if height % grid or width % grid or height < 1 or width < 1:
            return op.NOT_DIVISIBLE
        top, left, h, w = np.int64(0), np.int64(0), rows, columns
    elif code == op.RANDOM_RESIZED_CROP:
        height, width = operation[op.OP_HEIGHT], operation[op.OP_WIDTH]
        if height % grid or width % grid:
            return op.NOT_DIVISIBLE
        top, left, h, w = _resized_crop_box(seed, sample, epoch, number, rows, columns, numbers)
    elif code == op.ERASE and operation[op.OP_HEIGHT] > 0:  # a rectangle of one size
        height, width = operation[op.OP_HEIGHT], operation[op.OP_WIDTH]
        if height % grid or width % grid:
            return op.NOT_DIVISIBLE
        h, w = height // grid, width // grid
        if h > rows or w > columns:
            return op.CROP_TOO_LARGE
        top, left = below(words[0], rows - h + 1), below(words[1], columns - w + 1)
        if unit(words[2]) >= numbers[op.ERASE_P]:
            h, w = np.int64(0), np.int64(0)
    elif code == op.ERASE:
        height, width = np.int64(0), np.int64(0)
        top, left, h, w = _erased_box(seed, sample, epoch, number, rows, columns, numbers)
    else:
        height, width = operation[op.OP_HEIGHT], operation[op.OP_WIDTH]
        pad_top, pad_bottom, pad_left, pad_right = (
            operation[op.OP_PAD_TOP],
            operation[op.OP_PAD_BOTTOM],
            operation[op.OP_PAD_LEFT],
            operation[op.OP_PAD_RIGHT],
        )
        if height == 0:  # a translation: the size stays
            height, width = full_height, full_width
        if height % grid or width % grid or pad_top % grid or pad_bottom % grid or pad_left % grid or pad_right % grid:
            return op.NOT_DIVISIBLE
        h, w, pad_top, pad_left = height // grid, width // grid, pad_top // grid, pad_left // grid
        down, across = rows + pad_top + pad_bottom // grid - h, columns + pad_left + pad_right // grid - w
        if operation[op.OP_PADS] == op.PADS_SMALL_IMAGES:  # as torchvision: what is missing, on both sides
            if down < 0:
                pad_top, down = pad_top - down, -down
            if across < 0:
                pad_left, across = pad_left - across, -across
        if down < 0 or across < 0:
            return op.CROP_TOO_LARGE
        if code == op.CENTER_CROP:
            top, left = np.int64(np.rint(down / 2.0)), np.int64(np.rint(across / 2.0))
        else:
            top, left = below(words[0], down + 1) - pad_top, below(words[1], across + 1) - pad_left
    for f in range(num_fields):
        if fields >> f & 1:
            g = geometry[f, stage]
            ratio = full_height // g[op.HEIGHT]
            unit_size = grid // ratio
            if code == op.ERASE:
                box = rectangles[f, operation[op.OP_RECTANGLE]]
                box[0], box[1], box[2], box[3] = top * unit_size, left * unit_size, h * unit_size, w * unit_size
                continue
            if code != op.RESIZE:
                crop(g, top * unit_size, left * unit_size, h * unit_size, w * unit_size)
            if code == op.RESIZE or code == op.RANDOM_RESIZED_CROP:
                g[op.CLOSING] = op.THEN_RESIZE
                g[op.NEW_HEIGHT], g[op.NEW_WIDTH], g[op.CUBIC] = height // ratio, width // ratio, operation[op.OP_CUBIC]
                # The window of a random crop may be the whole image, and an image turned in its file is resized as is.
                high, wide = full_height // ratio, full_width // ratio
                most[MOST_BETWEEN] = max(most[MOST_BETWEEN], max(high * g[op.NEW_WIDTH], wide * g[op.NEW_HEIGHT]))
    return 0
