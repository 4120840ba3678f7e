"""Kernels for operations on values: the numbers that each draws for a sample, and its change of the pixels."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.degrade.blur import blur_pixels, blur_pixels_room
from lmdbloader.kernels.degrade.noise import NOISE_ROOM, add_to_pixels
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import part, u64_at
from lmdbloader.kernels.runtime.philox import below, uniform, unit
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.kernels.transform.tones import change_tones, draw_tone, tone_room

BRIGHTNESS, CONTRAST, SATURATION = range(3)


@kernel
def _step(order, place):
    """Return the one of three at a place (0 to 2) of a permutation (0 to 5)."""
    first = order // 2
    if place == 0:
        return first
    lower = np.int64(1) if first == 0 else np.int64(0)
    higher = np.int64(1) if first == 2 else np.int64(2)
    return lower if (place == 1) == (order % 2 == 0) else higher


@kernel
def _gray(red, green, blue):
    return (
        np.float32(0.2989) * np.float32(red)
        + np.float32(0.587) * np.float32(green)
        + np.float32(0.114) * np.float32(blue)
    )


@kernel
def _blend(pixels, other, factor, top):
    """Mix pixels with one value and truncate them to integers."""
    term = (np.float32(1) - factor) * other
    for i in range(pixels.shape[0]):
        pixels[i] = np.int32(min(max(np.float32(pixels[i]) * factor + term, np.float32(0)), top))


@kernel
def _mean_gray(pixels, channels, plane):
    if channels == 1:
        total = np.int64(0)
        for i in range(plane):
            total += np.int64(pixels[i])
        return total / plane
    red, green, blue = part(pixels, 0, plane), part(pixels, plane, plane), part(pixels, 2 * plane, plane)
    total = np.int64(0)
    for i in range(plane):
        total += np.int64(np.int32(_gray(red[i], green[i], blue[i])))
    return total / plane


@kernel
def _saturate(pixels, plane, factor, top):
    red, green, blue = part(pixels, 0, plane), part(pixels, plane, plane), part(pixels, 2 * plane, plane)
    rest, low = np.float32(1) - factor, np.float32(0)
    for i in range(plane):
        gray = rest * np.float32(np.int32(_gray(red[i], green[i], blue[i])))
        red[i] = np.int32(min(max(np.float32(red[i]) * factor + gray, low), top))
        green[i] = np.int32(min(max(np.float32(green[i]) * factor + gray, low), top))
        blue[i] = np.int32(min(max(np.float32(blue[i]) * factor + gray, low), top))


@kernel
def _plus(value, high, low):
    """Return value + (high + low), float32: nearly always with one rounding, as torch adds a multiple."""
    total = value + high
    added = total - value
    return total + (((value - (total - added)) + (high - added)) + low)


@kernel
def saturate_as_torch(pixels, plane, saturation):
    """Change the saturation of three planes of uint8 to torch's last bit, which ColorJitter does not."""
    red, green, blue = part(pixels, 0, plane), part(pixels, plane, plane), part(pixels, 2 * plane, plane)
    factor, rest, low, top = np.float32(saturation), np.float32(1.0 - saturation), np.float32(0), np.float32(255)
    large = rest * np.float32(65537)
    upper = large - (large - rest)  # of 8 bits: its products are exact
    lower = rest - upper
    for i in range(plane):
        gray = np.float32(np.int32(_gray(red[i], green[i], blue[i])))
        a, b = upper * gray, lower * gray
        red[i] = np.int32(min(max(_plus(np.float32(red[i]) * factor, a, b), low), top))
        green[i] = np.int32(min(max(_plus(np.float32(green[i]) * factor, a, b), low), top))
        blue[i] = np.int32(min(max(_plus(np.float32(blue[i]) * factor, a, b), low), top))


@kernel
def _turn_hue(pixels, plane, turn, top):
    """Turn the hue: through float32 HSV, the operations and their order being torchvision's; its bits depend on it."""
    red, green, blue = part(pixels, 0, plane), part(pixels, plane, plane), part(pixels, 2 * plane, plane)
    zero, one, six = np.float32(0), np.float32(1), np.float32(6)
    scale, sixth = np.float32(1 / np.float64(top)), np.float32(1 / 6)
    levels = np.float32(np.float64(top) + (1 - 1e-3))
    for i in range(plane):
        r, g, b = np.float32(red[i]) * scale, np.float32(green[i]) * scale, np.float32(blue[i]) * scale
        value, low = max(max(r, g), b), min(min(r, g), b)
        chroma = value - low
        divisor = chroma if chroma > zero else one  # of grays nothing but the value counts
        saturation = chroma / (value if chroma > zero else one)
        from_r, from_g, from_b = (value - r) / divisor, (value - g) / divisor, (value - b) / divisor
        of_red, of_green, of_blue = (
            from_b - from_g, (from_r + np.float32(2)) - from_b, (from_g + np.float32(4)) - from_r,
        )  # fmt: skip
        hue = (of_red if value == r else of_green if value == g else of_blue) * sixth + one
        hue = (hue - one if hue >= one else hue) + turn
        hue = hue - one if hue >= one else hue + one if hue < zero else hue
        sixths = hue * six
        whole = np.floor(sixths)
        rest = saturation * (sixths - whole)
        sector = np.int32(whole if whole < six else zero)  # a hue just below 0 was rounded to a whole turn
        least = one - saturation
        falling = min(max((one - rest) * value, zero), one)
        rising = min(max((rest + least) * value, zero), one)
        least = min(max(least * value, zero), one)
        r = value if sector == 0 or sector == 5 else falling if sector == 1 else rising if sector == 4 else least
        g = value if sector == 1 or sector == 2 else falling if sector == 3 else rising if sector == 0 else least
        b = value if sector == 3 or sector == 4 else falling if sector == 5 else rising if sector == 2 else least
        # 65535 as a float32 comes out one too large.
        red[i] = np.int32(min(r * levels, top))
        green[i] = np.int32(min(g * levels, top))
        blue[i] = np.int32(min(b * levels, top))


@kernel
def jitter(pixels, channels, plane, brightness, contrast, saturation, hue, order):
    """Change brightness, contrast, saturation and hue in place, as torchvision does for integers: cut off at each step.

    Args:
        pixels: uint8 or uint16, planes one after the other.
        channels: 1 or 3; one channel has no saturation and no hue.
        plane: Values of a plane.
        brightness, contrast, saturation: Factors of at least 0, float64; 1 changes nothing.
        hue: The turn, -0.5 to 0.5 of the circle, float64; 0 changes nothing.
        order: 0 to 23: the permutation of the first three, times 4, plus the place of the hue among them.
    """
    top = np.float32(255 if pixels.itemsize == 1 else 65535)
    image = part(pixels, 0, channels * plane)
    for place in range(4):
        if place == order % 4:
            if hue != 0.0 and channels == 3:
                _turn_hue(image, plane, np.float32(hue), top)
            continue
        step = _step(order // 4, place - 1 if place > order % 4 else place)
        if step == BRIGHTNESS and brightness != 1.0:
            _blend(image, np.float32(0), np.float32(brightness), top)
        elif step == CONTRAST and contrast != 1.0:
            _blend(image, np.float32(_mean_gray(image, channels, plane)), np.float32(contrast), top)
        elif step == SATURATION and saturation != 1.0 and channels == 3:
            _saturate(image, plane, np.float32(saturation), top)


@kernel
def solarize(pixels, count, threshold):
    """Invert in place the values of at least a threshold (float64); a negative threshold changes nothing."""
    if threshold < 0:
        return
    image = part(pixels, 0, count)
    top = np.int32(255 if pixels.itemsize == 1 else 65535)
    least = np.int32(min(np.ceil(threshold), 65536.0))
    for i in range(image.shape[0]):
        value = np.int32(image[i])
        image[i] = top - value if value >= least else value


@kernel
def draw_colors(code, numbers, words, more, field, frame, drawn):
    """Draw the numbers of one operation on colors for one sample.

    Args:
        code: Of the operation.
        numbers: (NUM_REAL,) float64, its real numbers.
        words, more: Four random words each.
        field, frame: The number of the image among those of the sample, and that of the frame in a window; each has
            noise of its own.
        drawn: (NUM_COLOR,) float64, filled.

    Returns:
        Whether the operation changes this sample.
    """
    drawn[op.COLOR_CODE] = code
    if code == op.JITTER:
        if unit(more[0]) >= numbers[op.JITTER_P]:
            return False
        drawn[op.COLOR_THRESHOLD] = numbers[op.JITTER_THRESHOLD]
        for k in range(3):
            drawn[op.COLOR_FACTORS + k] = uniform(words[k], numbers[2 * k], numbers[2 * k + 1])
        drawn[op.COLOR_ORDER] = below(words[3], 24)
        drawn[op.COLOR_HUE] = uniform(more[1], numbers[op.JITTER_HUE_LOW], numbers[op.JITTER_HUE_HIGH])
        return True
    if code == op.BLUR:
        drawn[op.COLOR_SIGMA] = uniform(words[0], numbers[op.BLUR_LOW], numbers[op.BLUR_HIGH])
        drawn[op.COLOR_ACROSS], drawn[op.COLOR_DOWN] = numbers[op.BLUR_ACROSS], numbers[op.BLUR_DOWN]
        return unit(more[0]) < numbers[op.BLUR_P]
    if code == op.NOISE:
        drawn[op.COLOR_MEAN], drawn[op.COLOR_DEVIATION] = numbers[op.NOISE_MEAN], numbers[op.NOISE_SIGMA]
        drawn[op.COLOR_KEY] = np.float64(words[0] >> np.uint64(11))
        drawn[op.COLOR_KEY + 1] = np.float64((words[1] >> np.uint64(11)) ^ np.uint64(field) ^ frame << np.uint64(8))
        return unit(more[0]) < numbers[op.NOISE_P]
    return draw_tone(code, numbers, words, more, drawn)


@kernel
def color_room(height, width, down, across):
    """Return the float32 that `change_colors` works with; down, across: the sides of a blur's kernel, 0 for none."""
    blurring = blur_pixels_room(height, width, down, across) if down else np.int64(0)
    return max(max(np.int64(2 * NOISE_ROOM), tone_room(width)), blurring)


@kernel
def change_colors(pixels, channels, height, width, drawn, line):
    """Apply an operation on colors to an image in place.

    Args:
        pixels: uint8 or uint16, planes (height, width) one after the other.
        channels, height, width: Of the image.
        drawn: (NUM_COLOR,) float64, filled by `draw_colors`.
        line: float32, scratch.

    Returns:
        Whether the scratch has the values of `color_room`.
    """
    if drawn[op.COLOR_CODE] == op.JITTER and drawn[op.COLOR_ORDER] < 0:  # of a policy
        if channels == 3:
            saturate_as_torch(pixels, height * width, drawn[op.COLOR_FACTORS + 2])
    elif drawn[op.COLOR_CODE] == op.JITTER:
        jitter(
            pixels, channels, height * width, drawn[op.COLOR_FACTORS], drawn[op.COLOR_FACTORS + 1],
            drawn[op.COLOR_FACTORS + 2], drawn[op.COLOR_HUE], np.int64(drawn[op.COLOR_ORDER]),
        )  # fmt: skip
        solarize(pixels, channels * height * width, drawn[op.COLOR_THRESHOLD])
    elif drawn[op.COLOR_CODE] == op.BLUR:
        down, across = np.int64(drawn[op.COLOR_DOWN]), np.int64(drawn[op.COLOR_ACROSS])
        if line.shape[0] < color_room(height, width, down, across):
            return False
        blur_pixels(pixels, channels, height, width, down, across, drawn[op.COLOR_SIGMA], line)
    elif drawn[op.COLOR_CODE] == op.NOISE:
        add_to_pixels(
            pixels, channels * height * width, drawn[op.COLOR_MEAN], drawn[op.COLOR_DEVIATION],
            np.uint64(drawn[op.COLOR_KEY]), np.uint64(drawn[op.COLOR_KEY + 1]), u64_at(line.ctypes.data, NOISE_ROOM),
        )  # fmt: skip
    elif line.shape[0] < tone_room(width):
        return False
    else:
        change_tones(pixels, channels, height, width, drawn, line)
    return True
