"""Resizing uint8 images, 64 rows or columns at a time, in whole numbers."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.resize.weights import most_weights, pair_up, weigh
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import i64_at, part, u8_at
from lmdbloader.kernels.runtime.vectors import PAIR_NBYTES, spread_columns, spread_rows, sum_pairs, turn_blocks

_SIDE = 16
_LANES = 64
# Room for where 4 blocks come from and go to, for copies of them, and for the sums of 16 columns.
_COLUMNS = 32  # that are made to pairs at a time
_BLOCK_NBYTES = _SIDE * _COLUMNS
_PLACES_NBYTES, _COPIES_NBYTES, _SUMS_NBYTES = 64, 4 * _BLOCK_NBYTES, _SIDE * _LANES
_FIXED_NBYTES = _PLACES_NBYTES + _COPIES_NBYTES + _SUMS_NBYTES
_PAIRS_OF_COLUMNS_NBYTES = _COLUMNS // 2 * PAIR_NBYTES


@kernel
def bytes_scratch(height, width, out_height, out_width, channels, cubic, between):
    """Return how many weights (float32) and bytes `resize_bytes` needs; the arguments are those of `resize_scratch`."""
    weights = most_weights(height, out_height, cubic) + most_weights(width, out_width, cubic)
    pairs = (max(height, width) // _COLUMNS + 2) * _PAIRS_OF_COLUMNS_NBYTES
    # Of (height + _SIDE) * (out_width + 2 * _LANES) the one part that is large.
    image = channels * (between + 2 * _LANES * (height + _SIDE) + _SIDE * out_width)
    return weights + weights // 2, _LANES + _FIXED_NBYTES + pairs + image


@kernel
def _copy_block(source, row, height, width, copy):
    """Copy the existing part of a block; the rest has a weight of zero."""
    for y in range(min(height, _SIDE)):
        pixels, copied = u8_at(source + np.uint64(y * row), width), u8_at(copy + np.uint64(_COLUMNS * y), _COLUMNS)
        for x in range(min(width, _COLUMNS)):
            copied[x] = pixels[x]


@kernel
def _spread_blocks(blocks, x, row, height, width, is_readable, copies, pairs):
    """Make the pairs of 32 columns from x on of four blocks.

    Args:
        blocks: (4,) int64 addresses of where each begins; row: the step to the next row.
        height, width: Rows and columns that there are.
        is_readable: Whether all 16 x 32 bytes of each may be read, even outside of the image; else `copies` is used.
        pairs: Address of the pairs, filled.
    """
    a, b, c, d, step = blocks[0] + x, blocks[1] + x, blocks[2] + x, blocks[3] + x, row
    if not is_readable:
        for k in range(4):
            _copy_block(np.uint64(blocks[k] + x), row, height, width - x, np.uint64(copies + k * _BLOCK_NBYTES))
        a, step = copies, np.int64(_COLUMNS)
        b, c, d = a + _BLOCK_NBYTES, a + 2 * _BLOCK_NBYTES, a + 3 * _BLOCK_NBYTES
    spread_columns(np.uint64(a), np.uint64(b), np.uint64(c), np.uint64(d), step, np.uint64(pairs))


@kernel
def _resize_columns(
    source, end, row, plane, channels, height, width, out_width, precision, count, starts, weights, image, tall,
    stride, room,
):  # fmt: skip
    """Resize the width of all planes.

    Sixteen rows make a block; four blocks, be they of different planes, are resized at a time.

    Args:
        source: Address of the window; end: of the first byte that may not be read.
        row, plane, channels, height, width: Of the window.
        precision: As `pair_up` returns it; count: pairs of each result; starts: as `weigh` fills them.
        weights: Address of the weights, filled by `pair_up`.
        image: Address of `tall` rows of `stride` bytes for each plane, filled.
        room: Address of scratch.
    """
    blocks = i64_at(np.uint64(room), 8)
    copies = room + _PLACES_NBYTES
    sums = copies + _COPIES_NBYTES
    pairs = sums + _SUMS_NBYTES
    a_plane = (height + _SIDE - 1) // _SIDE
    for group in range(0, channels * a_plane, 4):
        for k in range(4):
            number = min(group + k, channels * a_plane - 1)
            y = min(number % a_plane * _SIDE, max(height - _SIDE, 0))  # the last may take some rows again
            blocks[k] = source + number // a_plane * plane + y * row
            blocks[4 + k] = image + (number // a_plane * tall + y) * stride
        # Up to 31 bytes behind the window are read with its last columns, where there are any.
        last = max(max(blocks[0], blocks[1]), max(blocks[2], blocks[3])) + (_SIDE - 1) * row
        most = end - last - _COLUMNS if height >= _SIDE else np.int64(-1)
        ready = np.int64(0)
        for x in range(0, out_width, _SIDE):
            behind = min(x + _SIDE, out_width)
            needed = min(np.int64(starts[behind - 1]) + 2 * count, width)
            while ready < needed:
                made = pairs + (ready >> 1) * PAIR_NBYTES
                _spread_blocks(blocks, ready, row, height, width, ready <= most, copies, made)
                ready += _COLUMNS
            for i in range(x, behind):
                sum_pairs(
                    np.uint64(pairs + (np.int64(starts[i]) >> 1) * PAIR_NBYTES), np.uint64(weights + 4 * count * i),
                    count, precision, np.uint64(sums + (i - x) * _LANES),
                )  # fmt: skip
            turn_blocks(
                np.uint64(sums), np.uint64(blocks[4] + x), np.uint64(blocks[5] + x), np.uint64(blocks[6] + x),
                np.uint64(blocks[7] + x), stride,
            )  # fmt: skip


@kernel
def _resize_rows(image, height, stride, width, out, out_height, precision, count, starts, weights, room):
    """Resize the height of a plane.

    Args:
        image: Address of the plane; height, width: of it; stride: bytes from one row to the next, at least 64.
        out: Address of (out_height, width), filled.
        precision: As `pair_up` returns it; count: pairs of each result; starts: as `weigh` fills them.
        weights: Address of the weights, filled by `pair_up`.
        room: Address of scratch.
    """
    sums = room + _PLACES_NBYTES + _COPIES_NBYTES
    pairs = sums + _SUMS_NBYTES
    for left in range(0, width, _LANES):
        x = max(min(left, width - _LANES), 0)  # the last may take some columns again
        ready = np.int64(0)
        for y in range(out_height):
            needed = min(np.int64(starts[y]) + 2 * count, height)
            while ready < needed:
                at = image + ready * stride + x
                spread_rows(np.uint64(at), np.uint64(at + stride), np.uint64(pairs + (ready >> 1) * PAIR_NBYTES))
                ready += 2
            target = out + y * width + x
            sum_pairs(
                np.uint64(pairs + (np.int64(starts[y]) >> 1) * PAIR_NBYTES), np.uint64(weights + 4 * count * y), count,
                precision, np.uint64(target if width >= _LANES else sums),
            )  # fmt: skip
            if width < _LANES:
                found, wanted = u8_at(np.uint64(sums), width), u8_at(np.uint64(target), width)
                for k in range(width):
                    wanted[k] = found[k]


@kernel
def _weigh_pairs(size, begin, length, out_size, cubic, unit, starts, room):
    """Fill `room` with pairs and return (first, behind, precision, count, where the pairs are, how much is used)."""
    first, behind, count = weigh(size, begin, length, out_size, cubic, unit, starts, room)
    used, most = out_size * (count + 2), out_size * (count + 2) + out_size * count // 2
    pairs = part(room, used, most - used)
    precision = pair_up(out_size, count, unit, room, pairs.view(np.int16))
    return first, min(behind, size), precision, count // 2, np.int64(pairs.ctypes.data), most


@kernel
def resize_bytes(
    source, at, row, plane, channels, height, width, box_top, box_left, box_height, box_width, out, out_height,
    out_width, cubic, bounds, weights, room,
):  # fmt: skip
    """Resize a part of a window of an image; see `resize_window`.

    Args:
        source, out: uint8.
        room: Scratch, at least as many bytes as `bytes_scratch` says.
    """
    two, four = np.int64(2), np.int64(4)
    top, bottom, precision_down, count_down, weights_down, used = _weigh_pairs(
        height, box_top, box_height, out_height, cubic, two, bounds, weights
    )
    across = part(bounds, out_height, out_width)
    left, right, precision_across, count_across, weights_across, used = _weigh_pairs(
        width, box_left, box_width, out_width, cubic, four, across, part(weights, used, weights.shape[0] - used)
    )
    # Only the rows and columns that the result is made of.
    height, width = bottom - top, right - left
    address = np.int64(source.ctypes.data)
    aligned = (np.int64(room.ctypes.data) + _LANES - 1) & -_LANES
    image = aligned + _FIXED_NBYTES + (max(height, width) // _COLUMNS + 2) * _PAIRS_OF_COLUMNS_NBYTES
    # Of the rows, pairs are made: there may be one more.
    tall, stride = max(height + 1, _SIDE), max((out_width + _SIDE - 1) & -_SIDE, _LANES)
    _resize_columns(
        address + at + top * row + left, address + source.shape[0], row, plane, channels, height, width, out_width,
        precision_across, count_across, across, weights_across, image, tall, stride, aligned,
    )  # fmt: skip
    target = np.int64(out.ctypes.data)
    for c in range(channels):
        _resize_rows(
            image + c * tall * stride, height, stride, out_width, target + c * out_height * out_width, out_height,
            precision_down, count_down, bounds, weights_down, aligned,
        )  # fmt: skip
