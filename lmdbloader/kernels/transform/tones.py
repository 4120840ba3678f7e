"""Kernels for changes of tones: fewer bits, even histograms, the whole range, sharpness, and the order of channels."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import i32_at, load_u8, load_u64, part
from lmdbloader.kernels.runtime.philox import below, unit
from lmdbloader.kernels.transform import opcodes as op

# Tables that are counted in turns: an addition does not wait for one to the same number just before.
_TABLES, _LEVELS = 4, 256


@kernel
def _posterize(pixels, bits):
    mask = np.uint32(0xFFFF_FFFF) << np.uint32(8 * pixels.itemsize - bits)
    for i in range(pixels.shape[0]):
        pixels[i] = np.uint32(pixels[i]) & mask


@kernel
def _swap(pixels, a, b, plane):
    first, second = part(pixels, a * plane, plane), part(pixels, b * plane, plane)
    for i in range(plane if a != b else 0):
        value = first[i]
        first[i] = second[i]
        second[i] = value


@kernel
def _equalize(plane, tables):
    """Even out the histogram of a plane, by its upper 8 bits, as torchvision does; tables: int32 scratch."""
    for k in range(_TABLES * _LEVELS):
        tables[k] = 0
    start, size, itemsize = np.uint64(plane.ctypes.data), plane.shape[0], plane.itemsize
    for i in range(size * itemsize // 8):  # a word of pixels at once
        word = load_u64(start + np.uint64(8 * i))
        for k in range(_TABLES):
            table = part(tables, k * _LEVELS, _LEVELS)
            if itemsize == 1:
                table[word >> np.uint64(16 * k) & np.uint64(255)] += 1
            table[word >> np.uint64(16 * k + 8) & np.uint64(255)] += 1
    for i in range(size * itemsize // 8 * 8 // itemsize, size):
        tables[np.uint32(plane[i]) >> np.uint32(8 * (itemsize - 1))] += 1
    last = 0
    for k in range(_LEVELS):
        tables[k] += tables[_LEVELS + k] + tables[2 * _LEVELS + k] + tables[3 * _LEVELS + k]
        last = k if tables[k] else last
    step = (size - tables[last]) // 255
    total = np.int64(step // 2)
    for k in range(_LEVELS):
        count = tables[k]
        tables[k] = min(total // step, 255) if step else k
        total += count
    for k in range(_LEVELS, _TABLES * _LEVELS):
        tables[k] = tables[k % _LEVELS] << (8 * (k // _LEVELS))
    second, third = part(tables, _LEVELS, _LEVELS), part(tables, 2 * _LEVELS, _LEVELS)
    fourth, words = part(tables, 3 * _LEVELS, _LEVELS), i32_at(start, size * itemsize // 4)
    for i in range(words.shape[0]):
        at = start + np.uint64(4 * i)
        word = second[load_u8(at + np.uint64(1))] | fourth[load_u8(at + np.uint64(3))]
        if itemsize == 1:
            word |= tables[np.uint64(load_u8(at))] | third[load_u8(at + np.uint64(2))]
        words[i] = word
    for i in range(words.shape[0] * 4 // itemsize, size):
        plane[i] = tables[np.uint32(plane[i]) >> np.uint32(8 * (itemsize - 1))] << (8 * (itemsize - 1))


@kernel
def _stretch(plane):
    """Stretch the values of a plane over their whole range, in float32 as torchvision does."""
    low, high = plane[0], plane[0]
    for i in range(plane.shape[0]):
        low, high = min(low, plane[i]), max(high, plane[i])
    if low == high:
        return
    top = np.float32(255 if plane.itemsize == 1 else 65535)
    least, scale = np.float32(low), (np.float32(high) - np.float32(low)) * np.float32(1 / np.float64(top))
    for i in range(plane.shape[0]):
        plane[i] = np.int32(min((np.float32(plane[i]) - least) / scale, top))


@kernel
def _sharpen_row(row, sums, target, alpha, top):
    """Blend the inner pixels of a row with their neighborhood; target: from the second one on.

    torch adds a multiple in one rounding. Here the factor is split, so that for 8 bits only the last addition rounds.
    """
    n = target.shape[0]
    before, middle, after, inner = part(sums, 0, n), part(sums, 1, n), part(sums, 2, n), part(row, 1, n)
    split = np.float32(1536) * max(abs(alpha), np.float32(1))
    high = (alpha + split) - split
    low = alpha - high
    for x in range(n):
        here = inner[x]
        total = before[x] + middle[x] + after[x] + np.float32(4) * here  # an exact whole number
        off = np.rint(total * np.float32(1 / 13)) - here
        if target.itemsize == 1:
            found = (here + high * off) + low * off
        else:
            found = np.float32(np.float64(here) + np.float64(alpha) * np.float64(off))
        target[x] = np.int32(min(max(found, np.float32(0)), top))


@kernel
def _sharpen(plane, height, width, factor, line):
    """Blend a plane with its smoothed self, all but its edges, as torchvision does; line: float32, 3 * width."""
    if height <= 2 or width <= 2:
        return
    alpha, top = np.float32(1 - factor), np.float32(255 if plane.itemsize == 1 else 65535)
    sums, above, here = part(line, 0, width), part(line, width, width), part(line, 2 * width, width)
    for x in range(width):
        here[x] = np.float32(plane[x])
    for y in range(1, height - 1):
        above, here = here, above
        row, after = part(plane, y * width, width), part(plane, (y + 1) * width, width)
        for x in range(width):
            here[x] = np.float32(row[x])
            sums[x] = above[x] + here[x] + np.float32(after[x])
        _sharpen_row(here, sums, part(row, 1, width - 2), alpha, top)


@kernel
def draw_tone(code, numbers, words, more, drawn):
    """Draw the numbers of an operation of this module for one sample, as `draw_colors` does."""
    if code == op.PERMUTE:
        which = below(words[0], 6)
        first = which // 2
        drawn[op.COLOR_SOURCES] = first
        drawn[op.COLOR_SOURCES + 1] = (first + 1 + which % 2) % 3
        drawn[op.COLOR_SOURCES + 2] = (first + 2 - which % 2) % 3
        return True
    drawn[op.COLOR_AMOUNT] = numbers[op.TONE_AMOUNT]
    return unit(more[0]) < numbers[op.TONE_P]


@kernel
def tone_room(width):
    """Return the float32 that `change_tones` works with."""
    return max(3 * width, np.int64(_TABLES * _LEVELS))


@kernel
def change_tones(pixels, channels, height, width, drawn, line):
    """Apply an operation of this module to an image in place.

    Args:
        pixels: uint8 or uint16, planes (height, width) one after the other.
        channels, height, width: Of the image.
        drawn: (NUM_COLOR,) float64, filled by `draw_tone`.
        line: float32, `tone_room` values.
    """
    code, plane, amount = drawn[op.COLOR_CODE], height * width, drawn[op.COLOR_AMOUNT]
    if code == op.POSTERIZE:
        _posterize(part(pixels, 0, channels * plane), np.int64(amount))
    elif code == op.PERMUTE and channels == 3:
        first, second = np.int64(drawn[op.COLOR_SOURCES]), np.int64(drawn[op.COLOR_SOURCES + 1])
        _swap(pixels, 0, first, plane)
        _swap(pixels, 1, second if second else first, plane)
    elif code != op.PERMUTE:
        counts = i32_at(line.ctypes.data, _TABLES * _LEVELS)
        for c in range(channels):
            each = part(pixels, c * plane, plane)
            if code == op.EQUALIZE:
                _equalize(each, counts)
            elif code == op.AUTOCONTRAST:
                _stretch(each)
            elif code == op.SHARPNESS:
                _sharpen(each, height, width, amount, line)
