"""Draws the chain of degradations of one sample: which steps in which order, and the numbers of each."""

from __future__ import annotations

import math

import numpy as np

from lmdbloader.kernels.degrade import blur, steps
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.exponential import exp
from lmdbloader.kernels.runtime.philox import DEGRADE_STREAM, below, philox, uniform, unit

_U = np.uint64
_LN10 = math.log(10)
# The last word of the counter of a walk, less 16 times the number of the frame before and the place of the number.
_OF_WALK = np.uint64(1 << 16)
# The counter of a step's words is its number; those of the chain itself have this one.
_OF_CHAIN = np.uint64(1 << 32)
# Shapes of the families iso, aniso, generalized_iso, generalized_aniso, plateau_iso, plateau_aniso.
_SHAPES = blur.GAUSSIAN, blur.GENERALIZED, blur.PLATEAU


@kernel
def _whole_if(value, word, low, high, is_whole):
    """Return a number of a range: a whole one from low to high, or the real one that was drawn."""
    return low + np.float64(below(word, np.int64(high - low) + 1)) if is_whole else value


@kernel
def _choice(step, first, count, value):
    """Return which of `count` cumulative probabilities from column `first` on a value in [0, 1) belongs to."""
    for k in range(count - 1):
        if value < step[first + k]:
            return np.int64(k)
    return np.int64(count - 1)


@kernel
def _walked(value, first, last, walk, which, place):
    """Return a number in a frame of a window: to each frame it takes a random step within its limits.

    Args:
        value: In the first frame; first, last: its limits, in any order.
        walk: Walks and frame as of `draw_chain`, and the counter: seed, sample, epoch, number of the step of the chain.
        which: Of the walks; place: of the number among those of the step of the chain.
    """
    walks, frame, seed, sample, epoch, number = walk
    most, low, high = walks[which], min(first, last), max(first, last)
    if most > 0.0:
        for k in range(frame):
            words = philox(seed, DEGRADE_STREAM, sample, epoch, number, _OF_WALK + np.uint64(16 * k + place))
            value = min(max(value + uniform(words[0], -most, most), low), high)
    return value


@kernel
def _drawn(word, first, last, walk, which, place):
    return _walked(uniform(word, first, last), first, last, walk, which, place)


@kernel
def _draw_blur(step, words, more, last, walk, found):
    size = np.int64(step[steps.LEAST_SIZE])
    size += 2 * below(words[1], (np.int64(step[steps.MOST_SIZE]) - size) // 2 + 1)
    found[steps.SIZE] = size
    if unit(words[2]) < step[steps.SINC_P]:
        least = step[steps.LEAST_OMEGA] if size < 13 else step[steps.LEAST_OMEGA_OF_LARGE]
        found[steps.SHAPE] = blur.SINC
        found[steps.FIRST] = found[steps.SECOND] = _drawn(words[3], least, math.pi, walk, steps.OMEGA_STEP, 0)
        return
    family = _choice(step, steps.FAMILIES, steps.NUM_FAMILIES, unit(words[3]))
    shape = _SHAPES[family // 2]
    if family & 1:
        low, high = step[steps.LEAST_SIGMA], step[steps.MOST_SIGMA]
        first = _drawn(more[0], low, high, walk, steps.SIGMA_STEP, 0)
        second = _drawn(more[1], low, high, walk, steps.SIGMA_STEP, 1)
        if step[steps.IS_VARIANCE]:
            first, second = math.sqrt(first), math.sqrt(second)
        angle = _drawn(more[2], step[steps.LEAST_ANGLE], step[steps.MOST_ANGLE], walk, steps.ANGLE_STEP, 2)
    else:
        first = second = _drawn(more[0], step[steps.LEAST_ISO], step[steps.MOST_ISO], walk, steps.SIGMA_STEP, 0)
        angle = 0.0
    beta = 1.0
    if shape != blur.GAUSSIAN:
        at = steps.LEAST_GENERALIZED if shape == blur.GENERALIZED else steps.LEAST_PLATEAU
        low, high = step[at], step[at + 1]
        # Half of them between the least exponent and 1, half between 1 and the greatest.
        beta = uniform(last[0], low, 1.0) if unit(more[3]) < 0.5 else uniform(last[0], 1.0, high)
        which = steps.GENERALIZED_STEP if shape == blur.GENERALIZED else steps.PLATEAU_STEP
        beta = _walked(beta, low, high, walk, which, 3)
    found[steps.SHAPE], found[steps.FIRST], found[steps.SECOND] = shape, first, second
    found[steps.ANGLE], found[steps.BETA] = angle, beta


@kernel
def _draw_resize(step, words, more, height, width, result_height, result_width, walk, found):
    """Draw a new size; a step that keeps it is not done."""
    if unit(more[0]) < step[steps.EVERY_P]:
        every = np.int64(step[steps.EVERY])
        found[steps.MODE], found[steps.FACTOR] = steps.EVERY_NTH, every
        found[steps.SPREAD] = uniform(more[1], step[steps.LEAST_EVERY], step[steps.MOST_EVERY])
        found[steps.HEIGHT], found[steps.WIDTH] = (height + every - 1) // every, (width + every - 1) // every
        return
    which, factor = unit(words[1]), 1.0
    if which < step[steps.UP_P]:
        factor = _drawn(words[2], step[steps.LEAST_UP], step[steps.MOST_UP], walk, steps.RESIZE_STEP, 0)
    elif which < step[steps.UP_P] + step[steps.DOWN_P]:
        factor = _drawn(words[2], step[steps.LEAST_DOWN], step[steps.MOST_DOWN], walk, steps.RESIZE_STEP, 0)
        factor = 1.0 / factor if step[steps.DIVIDES] else factor
    elif step[steps.KEEPS]:
        found[steps.DONE] = 0.0
        return
    high, wide = np.float64(height), np.float64(width)
    if step[steps.OF] == steps.OF_RESULT:
        high, wide = np.float64(result_height), np.float64(result_width)
    half = 0.5 if step[steps.ROUNDS] else 0.0
    new_height, new_width = np.int64(high * factor + half), np.int64(wide * factor + half)
    found[steps.HEIGHT], found[steps.WIDTH] = max(new_height, np.int64(1)), max(new_width, np.int64(1))
    found[steps.MODE] = _choice(step, steps.MODES, steps.NUM_MODES, unit(words[3]))
    found[steps.FACTOR] = factor if step[steps.BY_FACTOR] else 0.0
    found[steps.IS_ANTIALIASED] = step[steps.ANTIALIAS]
    # A factor near 1 moves pixels of an image that keeps its size.
    unmoved = found[steps.FACTOR] == 0.0 or found[steps.FACTOR] == 1.0
    if unmoved and found[steps.HEIGHT] == height and found[steps.WIDTH] == width:
        found[steps.DONE] = 0


@kernel
def _draw_noise(step, words, more, walk, found):
    which = unit(words[1])
    kind = steps.SPECKLE
    if which < step[steps.GAUSSIAN_P]:
        kind = steps.GAUSSIAN
    elif which < step[steps.GAUSSIAN_P] + step[steps.POISSON_P]:
        kind = steps.POISSON
    colors, which = steps.COLOR, unit(words[2])
    if which < step[steps.GRAY_P]:
        colors = steps.GRAY
    elif which < step[steps.GRAY_P] + step[steps.CORRELATED_P] and kind != steps.POISSON:
        colors = steps.CORRELATED
    low, high = step[steps.LEAST_NOISE], step[steps.MOST_NOISE]
    sigma = _whole_if(uniform(words[3], low, high), words[3], low, high, step[steps.IS_WHOLE] != 0)
    sigma = _walked(sigma, low, high, walk, steps.NOISE_STEP, 0) / 255.0
    found[steps.KIND], found[steps.COLORS], found[steps.VALUES] = kind, colors, 0.0
    if kind == steps.POISSON:
        sigma = _drawn(words[3], step[steps.LEAST_SCALE], step[steps.MOST_SCALE], walk, steps.SCALE_STEP, 0)
        if step[steps.MOST_VALUES] > 0:
            found[steps.VALUES] = exp(_LN10 * uniform(more[0], step[steps.LEAST_VALUES], step[steps.MOST_VALUES]))
    elif colors == steps.CORRELATED:  # as BSRGAN has it, of the greatest deviation
        sigma = high / 255.0
    found[steps.SIGMA] = sigma


@kernel
def _draw_order(rules, count, key, order):
    """Fill `order` with the numbers of the steps in the order in which they are done."""
    seed, sample, epoch = key
    for k in range(count):
        order[k] = k
    for number in range(rules.shape[0]):
        first, end = np.int64(rules[number, steps.FIRST_PLACE]), np.int64(rules[number, steps.END_PLACE])
        kind, counter = rules[number, steps.REORDER], _OF_CHAIN + np.uint64(1 + number)
        if kind == steps.KEEP_ORDER:
            before, after = np.int64(0), np.int64(0)
            for k in range(count):
                before, after = (k if order[k] == first else before), (k if order[k] == end else after)
            if before > after:
                order[before], order[after] = end, first
            continue
        words = philox(seed, DEGRADE_STREAM, sample, epoch, counter, _U(0))
        if unit(words[0]) >= rules[number, steps.ORDER_P]:
            continue
        if kind == steps.FIRST_LAST:
            moved = order[first]
            for k in range(first, end - 1):
                order[k] = order[k + 1]
            order[end - 1] = moved
            continue
        for k in range(end - 1, first, -1):
            words = philox(seed, DEGRADE_STREAM, sample, epoch, counter, np.uint64(k))
            other = first + below(words[1], k - first + 1)
            order[k], order[other] = order[other], order[k]


@kernel
def draw_chain(chances, table, rules, seed, epoch, sample, height, width, scale, walks, frame, drawn, order):
    """Draw the degradations of one sample, or of a frame of it, if it is a window of a clip.

    Args:
        chances: (variants,) float64, cumulative probabilities of the variants of the chain.
        table: (variants, steps, NUM_STEP) float64, see `steps`.
        rules: (variants, rules, 4) float64, see `steps`.
        seed, epoch, sample: uint64; everything depends only on them.
        height, width, scale: Of the image, and how many times smaller the result is.
        walks: (9,) float64, the most that numbers change from frame to frame, see `steps`.
        frame: int64, its number in the window.
        drawn: (steps, NUM_DRAWN) float64, filled.
        order: (steps,) int64, filled: the numbers of steps in their order.

    Returns:
        The number of the variant.
    """
    words = philox(seed, DEGRADE_STREAM, sample, epoch, _OF_CHAIN, _U(0))
    variant = np.int64(0)
    while variant < chances.shape[0] - 1 and unit(words[0]) >= chances[variant]:
        variant += 1
    count = table.shape[1]
    _draw_order(rules[variant], count, (seed, sample, epoch), order)
    result_height, result_width = height // scale, width // scale
    for k in range(count):
        number = order[k]
        step, found = table[variant, number], drawn[number]
        for j in range(steps.NUM_DRAWN):
            found[j] = 0.0
        words = philox(seed, DEGRADE_STREAM, sample, epoch, np.uint64(number), _U(0))
        if step[steps.CODE] == 0 or unit(words[0]) >= step[steps.P]:
            continue
        found[steps.DONE] = 1.0
        walk = walks, frame, seed, sample, epoch, np.uint64(number)
        more = philox(seed, DEGRADE_STREAM, sample, epoch, np.uint64(number), _U(1))
        if step[steps.CODE] == steps.BLUR:
            last = philox(seed, DEGRADE_STREAM, sample, epoch, np.uint64(number), _U(2))
            _draw_blur(step, words, more, last, walk, found)
        elif step[steps.CODE] == steps.RESIZE:
            _draw_resize(step, words, more, height, width, result_height, result_width, walk, found)
            if found[steps.DONE]:
                height, width = np.int64(found[steps.HEIGHT]), np.int64(found[steps.WIDTH])
        elif step[steps.CODE] == steps.NOISE:
            _draw_noise(step, words, more, walk, found)
        elif step[steps.CODE] == steps.JPEG:
            low, high = step[steps.LEAST_QUALITY], step[steps.MOST_QUALITY]
            quality = uniform(words[1], low, high)
            is_whole = step[steps.IS_WHOLE_QUALITY] != 0
            quality = _walked(_whole_if(quality, words[1], low, high, is_whole), low, high, walk, steps.QUALITY_STEP, 0)
            found[steps.QUALITY] = np.rint(quality) if is_whole else quality
            found[steps.ARITHMETIC_OF] = step[steps.ARITHMETIC]
    return variant


@kernel
def draw_chains(
    chances, table, rules, seed, epoch, samples, height, width, scale, walks, frames, drawn, orders, variants
):
    """Draw the degradations of many samples; see `draw_chain`.

    Args:
        samples: (n,) int64, of frames, `frames` of each window; drawn: (n, steps, NUM_DRAWN); orders: (n, steps) int64;
            variants: (n,) int64.
    """
    for j in range(samples.shape[0]):
        variants[j] = draw_chain(
            chances, table, rules, seed, epoch, np.uint64(samples[j]), height, width, scale, walks, j % frames,
            drawn[j], orders[j],
        )  # fmt: skip
