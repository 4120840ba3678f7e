"""Noise on float32 images: Gaussian, speckle, correlated between the channels, and Poisson.

An image is a flat array of planes, values 0 to 1. The noise is a function of the key; what a step draws besides, such
as sigma, its caller draws. Noise of one color each is noise in gray on an image of one long plane.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lmdbloader.kernels.degrade.poisson import LEVELS, TABLES_ROOM, add_part, prepare
from lmdbloader.kernels.degrade.random import CHUNK, fill_normal, fill_words
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import f32_at, f64_at, i32_at, part, u32_at
from lmdbloader.kernels.runtime.philox import philox, unit

# Places in the work, in words of uint64. First three chunks of numbers of 32 bits, then one more.
_MORE, _LEVELS, _MIXTURE, NOISE_ROOM = 3 * CHUNK // 2, CHUNK // 2, 2 * CHUNK, 2 * CHUNK + 24
# What Poisson noise has of the levels.
_MEANS, _PRESENT = NOISE_ROOM, NOISE_ROOM + LEVELS
_WHOLE, _LEAST = _PRESENT + LEVELS // 2, _PRESENT + LEVELS
_TABLES = _LEAST + LEVELS // 2
POISSON_ROOM = _TABLES + TABLES_ROOM
_ZERO, _ONE, _TOP = np.float32(0), np.float32(1), np.float32(255)


@njit(inline="always")
def _at(work, place):
    """Return the address of a place in the work."""
    return work.ctypes.data + np.uint64(8 * place)


@kernel
def clip(values):
    """Cut float32 values off at 0 and 1."""
    for i in range(values.shape[0]):
        values[i] = min(max(values[i], _ZERO), _ONE)


@kernel
def _add(image, noise, speckle, clipped):
    """Add noise to values, or its product with them."""
    if speckle:
        for i in range(image.shape[0]):
            image[i] += image[i] * noise[i]
    else:
        for i in range(image.shape[0]):
            image[i] += noise[i]
    if clipped:
        clip(image)


@kernel
def gaussian(image, channels, plane, sigma, gray, speckle, clipped, key0, key1, work):
    """Add Gaussian noise.

    Args:
        image: float32, changed.
        channels, plane: Of the image; a plane's number of values.
        sigma: float64, for values from 0 to 1.
        gray: Whether all channels have the same noise.
        speckle: Whether the noise is multiplied by the image.
        clipped: Whether the image is clipped, after the noise; before speckle, too.
        key0, key1: uint64.
        work: (NOISE_ROOM,) uint64.
    """
    if speckle and clipped:
        clip(part(image, 0, channels * plane))
    if not gray:
        channels, plane = 1, channels * plane
    noise, factor = f32_at(_at(work, 0), CHUNK), np.float32(sigma)
    for at in range(0, plane, CHUNK):
        fill_normal(noise, key0, key1, at // CHUNK)
        for i in range(CHUNK):
            noise[i] *= factor
        for channel in range(channels):
            _add(part(image, channel * plane + at, min(CHUNK, plane - at)), noise, speckle, clipped)


@kernel
def add_to_pixels(pixels, count, mean, sigma, key0, key1, work):
    """Add Gaussian noise to whole numbers, cut to whole numbers towards 0 as in torchvision's GaussianNoise, and clip.

    Args:
        pixels: uint8 or uint16, changed.
        count: Number of values.
        mean, sigma: float64, for values from 0 to 1.
        key0, key1: uint64.
        work: (CHUNK / 2,) uint64.
    """
    top = np.float32(255 if pixels.itemsize == 1 else 65535)
    noise, middle, factor = f32_at(_at(work, 0), CHUNK), np.float32(mean * top), np.float32(sigma * top)
    for at in range(0, count, CHUNK):
        fill_normal(noise, key0, key1, at // CHUNK)
        some = part(pixels, at, min(CHUNK, count - at))
        for i in range(some.shape[0]):
            changed = np.int32(some[i]) + np.int32(min(max(middle + factor * noise[i], -top), top))
            some[i] = min(max(changed, np.int32(0)), np.int32(top))


@kernel
def _orthogonalise(m):
    """Turn the columns of a 3x3 matrix until they are orthogonal: its left singular vectors, times its singular values.

    One-sided Jacobi (Hestenes: Inversion of matrices by biorthogonalization, 1958); the longest column comes first.
    """
    for turn in range(30):
        p = 0 if turn % 3 < 2 else 1
        q = 1 if turn % 3 == 0 else 2
        pp, qq, pq = 0.0, 0.0, 0.0
        for row in range(0, 9, 3):
            pp += m[row + p] * m[row + p]
            qq += m[row + q] * m[row + q]
            pq += m[row + p] * m[row + q]
        c, s = 1.0, 0.0
        if pq != 0.0:
            ratio = (qq - pp) / (2 * pq)
            tangent = (1.0 if ratio >= 0 else -1.0) / (abs(ratio) + np.sqrt(1 + ratio * ratio))
            c = 1 / np.sqrt(1 + tangent * tangent)
            s = c * tangent
            pp, qq = pp - tangent * pq, qq + tangent * pq
        swapped = qq > pp
        for row in range(0, 9, 3):
            a, b = c * m[row + p] - s * m[row + q], s * m[row + p] + c * m[row + q]
            m[row + p], m[row + q] = (b, a) if swapped else (a, b)


@kernel
def _scale_columns(m, power):
    """Divide the columns of a 3x3 matrix by their lengths, or by the roots of these (power 0.5)."""
    for k in range(3):
        length = np.sqrt(m[k] * m[k] + m[3 + k] * m[3 + k] + m[6 + k] * m[6 + k])
        length = np.sqrt(length) if power == 0.5 else length
        for row in range(0, 9, 3):
            m[row + k] = m[row + k] / length if length > 0.0 else 0.0


@kernel
def draw_mixture(level, key0, key1, mixture):
    """Draw how three normal numbers make the correlated noise of three channels.

    BSRGAN's covariance: |level**2 U.T D U|, the absolute value of each element. D is diagonal with uniform numbers, U
    has the left singular vectors of a matrix of uniform numbers (`scipy.linalg.orth`). The absolute values of a matrix
    of 3x3 have no smaller determinant, so that the covariance has no negative eigenvalue.

    Args:
        level: float64, for values from 0 to 1.
        key0, key1: uint64.
        mixture: (21,) float64; the first nine are filled with a matrix, a row for each channel.
    """
    u, d = part(mixture, 9, 9), part(mixture, 18, 3)
    for k in range(3):
        words = philox(key0, key1, np.uint64(k), np.uint64(0), np.uint64(0), np.uint64(1))
        u[3 * k], u[3 * k + 1], u[3 * k + 2], d[k] = unit(words[0]), unit(words[1]), unit(words[2]), unit(words[3])
    _orthogonalise(u)
    _scale_columns(u, 1.0)
    for i in range(3):
        for j in range(3):
            total = u[i] * d[0] * u[j] + u[3 + i] * d[1] * u[3 + j] + u[6 + i] * d[2] * u[6 + j]
            mixture[3 * i + j] = abs(level * level * total)
    _orthogonalise(part(mixture, 0, 9))
    _scale_columns(mixture, 0.5)


@kernel
def correlated(image, channels, plane, level, speckle, clipped, key0, key1, work):
    """Add noise that is correlated between three channels, by `draw_mixture`; otherwise as `gaussian`.

    The level is 25 / 255 in BSRGAN, whatever its sigma is. An image of one channel, which BSRGAN does not take, gets
    the noise of the first one.
    """
    if speckle and clipped:
        clip(part(image, 0, channels * plane))
    mixture, noise = f64_at(_at(work, _MIXTURE), 21), f32_at(_at(work, _MORE), CHUNK)
    normal = f32_at(_at(work, 0), 3 * CHUNK)
    first, second, third = part(normal, 0, CHUNK), part(normal, CHUNK, CHUNK), part(normal, 2 * CHUNK, CHUNK)
    draw_mixture(level, key0, key1, mixture)
    for at in range(0, plane, CHUNK):
        fill_normal(normal, key0, key1, 3 * (at // CHUNK))
        for channel in range(channels):
            a, b, c = mixture[3 * channel], mixture[3 * channel + 1], mixture[3 * channel + 2]
            a, b, c = np.float32(a), np.float32(b), np.float32(c)
            for i in range(CHUNK):
                noise[i] = a * first[i] + b * second[i] + c * third[i]
            _add(part(image, channel * plane + at, min(CHUNK, plane - at)), noise, speckle, clipped)


@kernel
def _find_levels(image, at, channels, plane, red, values, levels):
    """Find the levels of 8 bits of a chunk: of its values, or of the gray of several channels.

    Args:
        image, channels, plane: The image.
        at: Where the chunk begins in a plane.
        red: float32, what red counts for in the gray of three channels; the gray of other numbers is their mean.
        values: float32, work, as many as levels.
        levels: int32, filled.
    """
    count = levels.shape[0]
    first = part(image, at, count)
    if channels == 3:
        second, third = part(image, plane + at, count), part(image, 2 * plane + at, count)
        for i in range(count):
            values[i] = red * first[i] + np.float32(0.587) * second[i] + np.float32(0.114) * third[i]
    else:
        for i in range(count):
            values[i] = first[i]
        for channel in range(1, channels):
            other = part(image, channel * plane + at, count)
            for i in range(count):
                values[i] += other[i]
        for i in range(count):
            values[i] /= np.float32(channels)
    for i in range(count):
        levels[i] = np.int32(np.rint(min(max(_ZERO, values[i] * _TOP), _TOP)))  # in this order NaN becomes 0


@kernel
def round_to_levels(values):
    """Round float32 values to the nearest of 256 levels from 0 to 1."""
    for i in range(values.shape[0]):
        values[i] = np.rint(min(max(values[i] * _TOP, _ZERO), _TOP)) / _TOP


@kernel
def _mark_levels(image, channels, plane, red, work, present):
    """Mark the levels that occur in an image or its gray, and return how many there are."""
    for level in range(LEVELS):
        present[level] = 0
    for at in range(0, plane, CHUNK):
        levels = i32_at(_at(work, _LEVELS), min(CHUNK, plane - at))
        _find_levels(image, at, channels, plane, red, f32_at(_at(work, 0), CHUNK), levels)
        for i in range(levels.shape[0]):
            present[np.uint64(levels[i])] = 1
    different = 0
    for level in range(LEVELS):
        different += present[level]
    return different


@kernel
def poisson(image, channels, plane, scale, photons, gray, clipped, key0, key1, work):
    """Add Poisson noise: scale * (Poisson(x * photons) / photons - x), x being the image rounded to 8 bits.

    Args:
        image: float32, changed.
        channels, plane: Of the image; a plane's number of values.
        scale: float64.
        photons: float64, up to 12287, of white: the image itself is rounded, as BSRGAN does. If 0, the number of
            different values of x, rounded up to a power of two, as Real-ESRGAN counts.
        gray: Whether all channels have the same noise: that of their gray, which is x then.
        clipped: Whether the image is clipped afterwards.
        key0, key1: uint64.
        work: (POISSON_ROOM,) uint64.
    """
    rounded = photons > 0.0
    if rounded:
        round_to_levels(part(image, 0, channels * plane))
    if not gray:
        channels, plane = 1, channels * plane
    red = np.float32(0.299 if rounded else 0.2989)  # as each of them has it
    noise, counts = f32_at(_at(work, 0), CHUNK), i32_at(_at(work, 2 * _LEVELS), CHUNK)
    words, tables = u32_at(_at(work, _MORE), CHUNK), part(work, _TABLES, TABLES_ROOM)
    means, present = f64_at(_at(work, _MEANS), LEVELS), i32_at(_at(work, _PRESENT), LEVELS)
    whole, least = i32_at(_at(work, _WHOLE), LEVELS), i32_at(_at(work, _LEAST), LEVELS)
    different = _mark_levels(image, channels, plane, red, work, present)
    if not rounded:
        photons = 1.0
        while photons < different:
            photons *= 2.0
    for level in range(LEVELS):
        means[level] = np.float64(np.float32(level) / _TOP) * photons
    parts = prepare(means, present, tables, whole, least)
    factor, divisor = np.float32(scale), np.float32(photons)
    for at in range(0, plane, CHUNK):
        count = min(CHUNK, plane - at)
        levels = i32_at(_at(work, _LEVELS), count)
        _find_levels(image, at, channels, plane, red, noise, levels)
        for i in range(count):
            counts[i] = least[np.uint64(levels[i])]
        for k in range(parts):
            fill_words(words, key0, key1, 4 * (at // CHUNK) + k)
            add_part(k, k == parts - 1, tables, whole, levels, words, counts, key0, key1, at)
        for i in range(count):
            noise[i] = (np.float32(counts[i]) / divisor - np.float32(levels[i]) / _TOP) * factor
        for channel in range(channels):
            _add(part(image, channel * plane + at, count), noise, False, clipped)
