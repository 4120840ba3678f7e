"""Changes the colors of batches with torch, on any device, by the numbers that were drawn for their samples.

These are the operations of the kernels in `lmdbloader.kernels.transform.color`, on float32 and in the same order, but
each is one call for all samples. Decisions are made on the host from the numbers drawn: nothing waits for the device.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lmdbloader.kernels.transform import opcodes as op

F64 = npt.NDArray[np.float64]
_GRAY = np.array([0.2989, 0.587, 0.114], np.float32)[:, None, None]
_CONTRAST, _SATURATION, _STEPS = 1, 2, np.array(list(permutations(range(3))))  # the orders of these and brightness
# Of `lmdbloader.kernels.degrade.blur`. The side is the largest at which 8 bits are blurred in whole numbers.
_NOTHING, _LEAST_SIGMA, _MOST_IN_WHOLE = np.float32(1e-8), 1e-3, 33
# Of `lmdbloader.kernels.degrade.random`: of Philox4x32-10, ln, sin and cos.
_CHUNK, _ROUNDS, _LOW, _SQRT_HALF, _PER_WORD = 256, 10, 0xFFFFFFFF, 0x3F3504F3, 2.0**-31
_MULTIPLIERS, _WEYL = (0xCD9E8D57, 0xD2511F53), np.array([0x9E3779B9, 0xBB67AE85])
_LOG = (-4, -2 * 0.6666677671711297, -2 * 0.3997749557387647, -2 * 0.2987307339130012)
_SIN = (0.7853981609834033, -0.08074543483021365, 0.002490007127099729, -3.5954507786203746e-05)
_COS = (1, -0.30842448849215764, 0.015850397618649145, -0.0003191601600803162)


def change_colors(images: Tensor, drawn: F64, applied: npt.NDArray[np.bool_]) -> Tensor:
    """Return images after one operation on colors each, as the compiled kernels change them.

    Args:
        images: (B, C, H, W) uint8 or uint16, on any device; not changed.
        drawn: (B, NUM_COLOR), the numbers of each sample's operation, see `opcodes`; AUGMIX is none of them.
        applied: (B,), which images are changed at all.
    """
    codes, sides = drawn[:, op.COLOR_CODE].astype(np.int64), drawn[:, [op.COLOR_ACROSS, op.COLOR_DOWN]].max(1)
    is_large, is_policy = (codes == op.BLUR) & (sides > _MOST_IN_WHOLE), drawn[:, op.COLOR_ORDER] < 0
    kinds = 2 * codes + np.where(codes == op.JITTER, is_policy, is_large)
    order = np.argsort(np.where(codes == op.JITTER, -(drawn[:, op.COLOR_ORDER] % 4), 0), kind="stable")
    for kind in np.unique(kinds[applied]).tolist():
        rows, change = order[(applied & (kinds == kind))[order]], CHANGES[kind // 2]
        if np.array_equal(rows, np.arange(len(images))):
            images = change(images, drawn)
        else:
            words, at = _words(images), _on(images, rows)
            found = change(words.index_select(0, at).view(images.dtype), drawn[rows])
            images = words.index_copy(0, at, _words(found)).view(images.dtype)
    return images


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return an array on a device; nothing waits for its work, as for a copy from memory that is not pinned."""
    host = torch.from_numpy(array)
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)


def _on(like: Tensor, numbers: Any) -> Tensor:
    return to_device(np.ascontiguousarray(numbers), like.device)


def _columns(like: Tensor, *numbers: F64) -> Tensor:
    """Return float32 (columns, n, 1, 1, 1) of numbers of n samples."""
    return _on(like, np.stack(numbers).astype(np.float32)[..., None, None, None])


def _words(images: Tensor) -> Tensor:
    """Return pixels as a type that all operations take which do not calculate."""
    return images.view(torch.int16) if images.dtype == torch.uint16 else images


def _jittered(pixels: Tensor, numbers: F64) -> Tensor:
    """Change brightness, contrast, saturation and hue; samples whose hue changes later come first."""
    top, is_color, count = torch.iinfo(pixels.dtype).max, pixels.shape[1] == 3, np.arange(len(numbers))
    order, has_hue = numbers[:, op.COLOR_ORDER].astype(np.int64), is_color and numbers[:, op.COLOR_HUE].any()
    places, steps, is_policy = np.where(has_hue, order % 4, 3), _STEPS[order // 4].T, bool(order[0] < 0)
    # Changes by 1 go between those before that of the hue and those after it: there are fewer calls then.
    ranks = np.where(numbers[count, op.COLOR_FACTORS + steps] == 1, 1, 2 * (np.arange(3)[:, None] >= places))
    steps = np.take_along_axis(steps, np.argsort(ranks, 0, kind="stable"), 0)
    factors = numbers[count, op.COLOR_FACTORS + steps].astype(float if is_policy else np.float32)
    factors[(steps == _SATURATION) & (not is_color)] = 1
    of_gray, of_mean = ((1 - factors) * (steps == step) for step in (_SATURATION, _CONTRAST))
    threshold = np.where(numbers[:, op.COLOR_THRESHOLD] < 0, 65536, np.ceil(numbers[:, op.COLOR_THRESHOLD]))
    table = _columns(pixels, *factors, *of_gray, *of_mean, numbers[:, op.COLOR_HUE], threshold)
    values, shares = pixels.float(), _on(pixels, _GRAY)
    for is_after in (False, True):
        if is_after and has_hue:
            _turn_hue(values, table[9], top)
        for k in range(3):
            later = (places > k).sum()
            some = slice(later, None) if is_after else slice(later)
            if (factors[k, some] != 1).any():
                _blend(values[some], table[k:9:3, some], shares, top, is_policy)
    if (threshold < 65536).any():
        values = torch.where(values >= table[10], top - values, values)
    return values.to(pixels.dtype)


def _blend(values: Tensor, factors: Tensor, shares: Tensor, top: int, rounds_once: bool) -> None:
    """Multiply whole numbers, add multiples of their gray and of its mean, and cut them off, in place."""
    gray = values
    if values.shape[1] == 3:
        parts = values * shares
        gray = (parts[:, :1] + parts[:, 1:2]).add_(parts[:, 2:]).trunc_()
    mean = gray.mean((1, 2, 3), keepdim=True, dtype=torch.float64).float()
    term = ((gray.double() if rounds_once else gray) * factors[1]).add_(mean * factors[2])
    values.mul_(factors[0]).add_(term).clamp_(0, top).trunc_()


def _turn_hue(values: Tensor, turn: Tensor, top: int) -> None:
    """Turn the hue of whole numbers (n, 3, H, W) in place, unless by 0."""
    colors = values * float(np.float32(1 / top))
    value = colors.amax(1, keepdim=True)
    chroma = value - colors.amin(1, keepdim=True)
    saturation = chroma / value.clamp(min=1e-9)  # 0 of grays
    parts = (value - colors) / chroma.clamp(min=1e-9)
    red, green, blue = parts[:, :1], parts[:, 1:2], parts[:, 2:]
    hue = torch.where(value == colors[:, 1:2], (red + 2).sub_(blue), (green + 4).sub_(red))
    hue = torch.where(value == colors[:, :1], blue - green, hue)
    hue = hue.mul_(float(np.float32(1 / 6))).add_(1).frac_().add_(turn)
    sixths = hue.sub_(hue.floor()).mul_(6)
    whole = sixths.floor()
    rest, least = sixths.sub_(whole).mul_(saturation), 1 - saturation
    falling, rising = (1 - rest).mul_(value), rest.add_(least).mul_(value)
    least.mul_(value)
    # What red is in each of six sectors. Green and blue are at two and four sectors from there.
    choices = torch.cat([value, falling, least, least, rising, value], 1)
    sectors = (whole.long() + _on(values, np.array([0, 4, 2])[:, None, None])).remainder_(6)
    found = choices.gather(1, sectors).mul_(float(np.float32(top + (1 - 1e-3)))).clamp_(max=top).trunc_()
    torch.where(turn == 0, values, found, out=values)


def _blurred(pixels: Tensor, numbers: F64) -> Tensor:
    """Blur with a Gaussian kernel, of 8 bits in whole numbers that count 128 as 1."""
    across, down = numbers[:, op.COLOR_ACROSS], numbers[:, op.COLOR_DOWN]
    is_whole = pixels.dtype == torch.uint8 and max(across.max(), down.max()) <= _MOST_IN_WHOLE
    values = pixels.int() << 7 if is_whole else pixels.float()
    for dim, sides in ((3, across), (2, down)):
        weights = _weights(sides.astype(np.int64) // 2, numbers[:, op.COLOR_SIGMA], is_whole)
        count, size = len(weights) - 2, pixels.shape[dim]
        period, at = max(2 * (size - 1), 1), np.abs(np.arange(-count, size + count))
        padded = values.index_select(dim, _on(values, np.minimum(at % period, -at % period)))
        table = _on(values, weights[..., None, None, None])
        values = padded.narrow(dim, count, size) * table[0]
        values = (values >> 16).add_(table[-1]) if is_whole else values
        for k in range(1, count + 1):
            pair = (padded.narrow(dim, count - k, size) + padded.narrow(dim, count + k, size)).mul_(table[k])
            values.add_(pair.bitwise_right_shift_(16) if is_whole else pair)
    values = (values + 64) >> 7 if is_whole else values.round_()
    return values.clamp_(0, torch.iinfo(pixels.dtype).max).to(pixels.dtype)


def _weights(halves: npt.NDArray[np.int64], sigma: F64, is_whole: bool) -> npt.NDArray[Any]:
    """Return weights of the middle, of the pairs around it, and what is added to sums of whole products, cut off."""
    least, offset = np.maximum(sigma, _LEAST_SIGMA), np.arange(-halves.max(), halves.max() + 1)[:, None]
    shares = np.where(np.abs(offset) <= halves, np.exp(-0.5 / (least * least) * offset * offset), 0)
    weights = (shares / np.cumsum(shares, 0)[-1]).astype(np.float32)[halves.max() :]
    weights = np.rint(weights * 65536).astype(np.int32) if is_whole else weights
    weights[1:][weights[1:] < _NOTHING] = 0
    counts = (weights[1:] > 0).sum(0)
    weights[0] = np.minimum(65536 - 2 * weights[1:].sum(0), 65535) if is_whole else weights[0]
    return np.vstack([weights[: 1 + counts.max()], (counts + 1) // 2]).astype(weights.dtype)


def _noisy(pixels: Tensor, numbers: F64) -> Tensor:
    """Add Gaussian noise, cut to whole numbers towards 0; see `fill_normal` of the kernels."""
    top, size = torch.iinfo(pixels.dtype).max, pixels[0].numel()
    middle, factor = _columns(pixels, numbers[:, op.COLOR_MEAN] * top, numbers[:, op.COLOR_DEVIATION] * top)
    first, second = _random_words(pixels, numbers[:, op.COLOR_KEY : op.COLOR_KEY + 2], -(-size // _CHUNK))
    angle = second.view(torch.int32)[..., ::2]  # the lower halves
    radius = (_radius(first).view(torch.int32) | (angle << 31)).view(torch.float32)
    turn = angle.float().mul_(_PER_WORD)
    square, is_turned = turn * turn, (angle & 2) != 0
    sine, cosine = _polynomial(square, _SIN).mul_(turn), _polynomial(square, _COS)
    one, other = torch.where(is_turned, sine, cosine).mul_(radius), torch.where(is_turned, cosine, sine).mul_(radius)
    noise = torch.stack([one, other], 2).flatten(1)[:, :size].view(pixels.shape)
    noise = noise.mul(factor).add_(middle).clamp_(-top, top).trunc_()
    return noise.add_(pixels.float()).clamp_(0, top).to(pixels.dtype)


def _random_words(like: Tensor, keys: F64, chunks: int) -> tuple[Tensor, Tensor]:
    """Return (n, chunks, 2, _CHUNK / 4) int64, words for radii, and for angles, whose upper halves are void."""
    first_key, counter = (np.stack([key & _LOW, key >> 32], 1) for key in keys.astype(np.int64).T)
    rounds = [first_key + k * _WEYL & _LOW for k in range(_ROUNDS)]
    table = _on(like, np.stack([*rounds, counter * [0, 1], counter[:, :1] * [0, 1]])[:, :, None, :, None])
    blocks = torch.arange(chunks * _CHUNK // 4, device=like.device).view(chunks, 1, -1)
    multipliers, is_block = _on(like, np.array([_MULTIPLIERS, [1, 0]])[..., None])
    first, second = blocks * is_block + table[-1], table[-2]
    for k in range(_ROUNDS):
        products = first.flip(2) * multipliers
        first = (products >> 32).bitwise_xor_(second).bitwise_xor_(table[k]).bitwise_and_(_LOW)
        second = products
    return first, second


def _polynomial(at: Tensor, factors: tuple[float, ...]) -> Tensor:
    found = at * factors[3]
    return found.add_(factors[2]).mul_(at).add_(factors[1]).mul_(at).add_(factors[0])


def _radius(words: Tensor) -> Tensor:
    """Return the square roots of -2 ln u of the uniform u that words stand for."""
    number = words >> 1
    bits = number.float().add_(0.5).mul_(_PER_WORD).view(torch.int32)
    exponent = (bits - _SQRT_HALF) >> 23
    # Near 1 the digits that matter are those of 1 - u.
    near = (0x7FFFFFFF - number).float().add_(0.5).mul_(-_PER_WORD)
    rest = torch.where(exponent == 0, near, (bits - (exponent << 23)).view(torch.float32).sub_(1))
    ratio = rest / (rest + 2)
    squares = exponent.float().mul_(-2 * np.log(2)).add_(_polynomial(ratio * ratio, _LOG).mul_(ratio))
    return squares.double().sqrt_().float()  # MKL does not round roots of float32 to the nearest


def _posterized(pixels: Tensor, numbers: F64) -> Tensor:
    words, masks = _words(pixels), -1 << (8 * pixels.element_size() - numbers[:, op.COLOR_AMOUNT].astype(np.int64))
    masks = masks.astype(np.uint8 if words.dtype == torch.uint8 else np.int16)
    return (words & _on(words, masks[:, None, None, None])).view(pixels.dtype)


def _equalized(pixels: Tensor, numbers: F64) -> Tensor:
    """Even out the histograms of channels, by the upper 8 bits of their values."""
    shift = 8 * pixels.element_size() - 8
    values, levels = pixels.flatten(2).long() >> shift, torch.arange(256, device=pixels.device)
    counts = values.new_zeros(*values.shape[:2], 256)
    counts.scatter_add_(2, values, values.new_ones(1).expand_as(values))
    last = counts.gather(2, ((counts > 0) * levels).amax(2, keepdim=True))
    step = (values.shape[2] - last) // 255
    table = (counts.cumsum(2).sub_(counts).add_(step // 2) // step.clamp(min=1)).clamp_(max=255)
    return (torch.where(step > 0, table, levels) << shift).gather(2, values).view(pixels.shape).to(pixels.dtype)


def _stretched(pixels: Tensor, numbers: F64) -> Tensor:
    """Stretch the values of channels over their whole range."""
    values, top = pixels.float(), torch.iinfo(pixels.dtype).max
    low, high = values.amin((2, 3), keepdim=True), values.amax((2, 3), keepdim=True)
    is_flat, scale = high == low, (high - low).mul_(float(np.float32(1 / top)))
    values.sub_(low.masked_fill_(is_flat, 0)).div_(scale.masked_fill_(is_flat, 1))
    return values.clamp_(max=top).to(pixels.dtype)


def _sharpened(pixels: Tensor, numbers: F64) -> Tensor:
    """Blend images with their smoothed selves, all but the edges."""
    alpha = _columns(pixels, 1 - numbers[:, op.COLOR_AMOUNT])[0]
    values, found = pixels.float(), pixels.clone()
    here, total = values[:, :, 1:-1, 1:-1], values[:, :, :-2] + values[:, :, 1:-1] + values[:, :, 2:]
    total = (total[..., :-2] + total[..., 1:-1]).add_(total[..., 2:]).add_(here * 4)
    off = total.mul_(float(np.float32(1 / 13))).round_().sub_(here)
    blended = (off.double() * alpha.double()).add_(here).float()  # rounded once
    found[:, :, 1:-1, 1:-1] = blended.clamp_(0, torch.iinfo(pixels.dtype).max).to(pixels.dtype)
    return found


def _permuted(pixels: Tensor, numbers: F64) -> Tensor:
    channels = pixels.shape[1]
    sources = numbers[:, op.COLOR_SOURCES : op.COLOR_SOURCES + channels].astype(np.int64) % channels
    planes = _on(pixels, (channels * np.arange(len(numbers))[:, None] + sources).ravel())
    return _words(pixels).flatten(0, 1).index_select(0, planes).view(pixels.dtype).view(pixels.shape)


# By opcode; others are not available on a device.
CHANGES = {
    op.JITTER: _jittered, op.BLUR: _blurred, op.NOISE: _noisy, op.POSTERIZE: _posterized, op.EQUALIZE: _equalized,
    op.AUTOCONTRAST: _stretched, op.SHARPNESS: _sharpened, op.PERMUTE: _permuted,
}  # fmt: skip
