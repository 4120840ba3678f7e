"""Which values each result of a resize is made of, and how much each counts, as Pillow defines it."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import part

_LARGEST_WEIGHT = 32766.0


@kernel
def most_weights(size, out_size, cubic):
    """Return how much room `weigh` may need for at most `size` values and `out_size` results."""
    reach = 4 if cubic else 2
    # Shrinking: every value counts for `reach` results; enlarging: every result is made of `reach` values; and some
    # more that are zero.
    return reach * max(size, out_size) + 8 * out_size + 2 * out_size


@kernel
def _triangle(x):
    return max(np.float32(1) - abs(x), np.float32(0))


@kernel
def _keys(x):
    """Return Keys' cubic with a = -0.5."""
    one, two = np.float32(1), np.float32(2)
    x = min(abs(x), two)
    near = (np.float32(1.5) * x - np.float32(2.5)) * x * x + one
    far = ((np.float32(-0.5) * x + np.float32(2.5)) * x - np.float32(4)) * x + two
    return near if x < one else far


@kernel
def weigh(size, begin, length, out_size, cubic, unit, starts, room):
    """Fill in which values every result is made of.

    All results get the same number of weights, some of them zero: loops of changing length cost more. The first weights
    of all results come first, then the second ones: long loops that LLVM compiles to vector instructions.

    Args:
        size, out_size: Number of values and of results.
        begin, length: First value and length of the part to be resized, float64.
        cubic: The bicubic filter instead of the triangle.
        unit: 1; or 2 or 4 if results begin only at every second or fourth value, and have a multiple of 4 weights.
        starts: (out_size,) int32, set to the first value of each result, counted from `first` on.
        room: float32, of which the first (count * out_size,) are set to the weights.

    Returns:
        (first, behind, count): The first value that is needed, the one after the last (with a unit of 2 or 4 it may
        be after all values), and the number of weights of each result.
    """
    scale = length / out_size
    stretch = max(scale, 1.0)
    narrow = np.float32(1.0 / stretch)
    support = (2.0 if cubic else 1.0) * stretch
    first = max(np.int64(begin + 0.5 * scale - support + 0.5), 0) & -unit
    behind = min(np.int64(begin + (out_size - 0.5) * scale + support + 0.5), size)
    behind = (behind + unit - 1) & -unit
    granule = np.int64(1) if unit == 1 else np.int64(4)
    count = min(np.int64(np.ceil(2.0 * support)) + unit - 1, behind - first)
    count = (count + granule - 1) & -granule
    offsets = part(room, count * out_size, out_size)
    for i in range(out_size):
        center = begin + (i + 0.5) * scale
        start = max(np.int64(center - support + 0.5), 0) & -unit
        start = max(min(start, behind - count), first)
        starts[i] = start - first
        offsets[i] = start - center + 0.5
    for k in range(count):
        weights = part(room, k * out_size, out_size)
        # The filters are zero outside of their support.
        if cubic:
            for i in range(out_size):
                weights[i] = _keys((offsets[i] + np.float32(k)) * narrow)
        else:
            for i in range(out_size):
                weights[i] = _triangle((offsets[i] + np.float32(k)) * narrow)
    i = out_size - 1
    while i >= 0 and first + starts[i] + count > size:
        for k in range(size - first - starts[i], count):
            room[k * out_size + i] = 0
        i -= 1
    totals = offsets
    for i in range(out_size):
        totals[i] = 0
    for k in range(count):
        weights = part(room, k * out_size, out_size)
        for i in range(out_size):
            totals[i] += weights[i]
    for i in range(out_size):
        totals[i] = np.float32(1) / totals[i]
    for k in range(count):
        weights = part(room, k * out_size, out_size)
        for i in range(out_size):
            weights[i] *= totals[i]
    return first, behind, count


@kernel
def pair_up(out_size, count, unit, room, pairs):
    """Convert weights for `sum_pairs`: int16 in pairs, result after result.

    Args:
        out_size, count, unit: As `weigh` takes and returns them.
        room: Filled by `weigh`; changed.
        pairs: int16 (out_size * count,), filled. With a unit of 2 those of two values side by side are a pair; with
            one of 4 those of the first and the third of four are, and of the second and the fourth.

    Returns:
        The number of bits of a weight after the point.
    """
    largest = part(room, count * out_size, out_size)
    for i in range(out_size):
        largest[i] = 0
    for k in range(count):
        weights = part(room, k * out_size, out_size)
        for i in range(out_size):
            largest[i] = max(largest[i], abs(weights[i]))
    most = np.float32(0)
    for i in range(out_size):
        most = max(most, largest[i])
    precision = np.int64(16)
    while most * np.float32(1 << precision) > _LARGEST_WEIGHT:
        precision -= 1
    one = np.float32(1 << precision)
    # Sums are rounded, not weights, so that all add up to one.
    sums, before = part(room, count * out_size, out_size), part(room, (count + 1) * out_size, out_size)
    for i in range(out_size):
        sums[i] = before[i] = 0
    for k in range(count):
        weights = part(room, k * out_size, out_size)
        for i in range(out_size):
            sums[i] += weights[i]
            now = np.floor(sums[i] * one + np.float32(0.5))
            weights[i] = now - before[i]
            before[i] = now
    for k in range(count):
        place = k if unit == 2 else (k & ~3) + ((k & 1) << 1) + ((k & 2) >> 1)
        weights, paired = part(room, k * out_size, out_size), part(pairs, place, out_size * count - place)
        for i in range(out_size):
            paired[i * count] = np.int16(weights[i])
    return precision


@kernel
def weigh_many(sizes, out_size, cubic, unit, starts, weights, counts, bounds, room):
    """Fill in which values the results are made of, for rows of several sizes.

    Args:
        sizes: (n,) int64, how many values each row has.
        out_size, cubic, unit: As for `weigh`; with a unit of 2 or 4, weights become those of `pair_up`.
        starts: (n, out_size) int64, set to the first value of each result.
        weights: (n, most, out_size) float32, of which the first are set; `most` is not less than any count.
        counts: (n, 2) int64, set to the number of weights of each result, and to the bits of one after the point.
        bounds: (out_size,) int32, scratch.
        room: float32 scratch for 1.5 * most + 2 weights of each result.
    """
    for j in range(sizes.shape[0]):
        first, _, count = weigh(sizes[j], 0.0, float(sizes[j]), out_size, cubic, unit, bounds, room)
        counts[j, 0], counts[j, 1] = count, 0
        if unit > 1:
            used = out_size * (count + 2)
            counts[j, 1] = pair_up(out_size, count, unit, room, part(room, used, out_size * count // 2).view(np.int16))
        for i in range(out_size):
            starts[j, i] = first + bounds[i]
        for k in range(count):
            for i in range(out_size):
                weights[j, k, i] = room[k * out_size + i]
