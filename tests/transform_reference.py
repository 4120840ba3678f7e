"""The definition of every transform in plain NumPy, slow and obvious, for tests to compare compiled code with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from warp_reference import affine_grid, affine_matrix, perspective_grid, sample

from lmdbloader import transforms as T
from lmdbloader.kernels import entries
from lmdbloader.kernels.runtime.exponential import exp, log

LARGEST = {torch.uint8: 255, torch.uint16: 65535}
DTYPES = {
    np.dtype(np.uint8): torch.uint8, np.dtype(np.uint16): torch.uint16, np.dtype(np.float16): torch.float16,
    np.dtype(np.float32): torch.float32,
}  # fmt: skip
AUGMENTATIONS = 2
PERMUTATIONS = [(0, 1, 2), (0, 2, 1), (1, 2, 0), (1, 0, 2), (2, 0, 1), (2, 1, 0)]
TONES = T.RandomPosterize | T.RandomEqualize | T.RandomAutocontrast | T.RandomAdjustSharpness
WARPS = T.RandomRotation | T.RandomAffine | T.RandomPerspective
COLORS = (
    T.ColorJitter | T.RandomGrayscale | T.RandomSolarize | T.RandomInvert | T.GaussianBlur | T.GaussianNoise | TONES
    | T.RandomChannelPermutation
)  # fmt: skip
CONTAINERS = T.RandomApply | T.RandomChoice | T.RandomOrder


@dataclass(frozen=True)
class Expected:
    """An image on its way: float64 values (C, H, W), their type, and by how much the compiled result may differ."""

    values: np.ndarray
    dtype: torch.dtype
    slack: float = 0.0


def words(seed: int, epoch: int, sample: int, number: int, block: int = 0) -> list[int]:
    """Return four random words of NumPy's Philox, which adds one to its counter before it draws."""
    counter = (sample | epoch << 64 | number << 128 | block << 192) - 1
    return np.random.Philox(counter=counter % 2**256, key=seed | AUGMENTATIONS << 64).random_raw(4).tolist()


def unit(word: int) -> float:
    """Return a word as a float from 0 to 1."""
    return (word >> 11) * 2.0**-53


def below(word: int, n: int) -> int:
    """Return a word as a whole number below n."""
    return word * n >> 64


def uniform(word: int, low: float, high: float) -> float:
    """Return a word as a float from low to high."""
    return low + (high - low) * unit(word)


def filter_matrix(size: int, out_size: int, cubic: bool, begin: float, length: float) -> np.ndarray:
    """Return Pillow's BILINEAR or BICUBIC of the part that begins at `begin` as a matrix (out_size, size)."""
    scale = length / out_size
    stretch = max(scale, 1.0)
    center = begin + (np.arange(out_size)[:, None] + 0.5) * scale
    x = np.abs((np.arange(size)[None, :] + 0.5 - center) / stretch)
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    weights = np.where(x < 1, near, np.where(x < 2, far, 0.0)) if cubic else np.maximum(1 - x, 0)
    return weights / weights.sum(1, keepdims=True)


def resize(
    values: np.ndarray, height: int, width: int, cubic: bool, largest: int | None, *,
    columns_first: bool = True, box: tuple[float, float, float, float] | None = None, half: float = 0.5,
) -> np.ndarray:  # fmt: skip
    """Resize (C, H, W), or the box (top, left, height, width) of it, rounding up from `half` after each direction.

    Without a largest number, the values are floats and are not rounded.
    """
    top, left, h, w = box or (0, 0, *values.shape[1:])

    def rounded(v: np.ndarray) -> np.ndarray:
        return v if largest is None else np.clip(np.floor(v + 1 - half), 0, largest)

    down = filter_matrix(values.shape[1], height, cubic, top, h)
    across = filter_matrix(values.shape[2], width, cubic, left, w).T
    return rounded(down @ rounded(values @ across)) if columns_first else rounded(rounded(down @ values) @ across)


def turn_hue(image: np.ndarray, turn: float, top: int) -> np.ndarray:
    """Turn the hue of pixels (3, H, W) as torchvision v2 defines it, through float32 HSV."""
    f = np.float32
    rgb = image.astype(f) * f(1 / top)
    value, low = rgb.max(0), rgb.min(0)
    is_grey = value == low
    saturation = (value - low) / np.where(is_grey, f(1), value)
    red, green, blue = (value - rgb) / np.where(is_grey, f(1), value - low)
    hue = np.select(
        [rgb[0] == value, rgb[1] == value], [blue - green, (red + f(2)) - blue], (green + f(4)) - red
    )  # fmt: skip
    hue = np.fmod(hue * f(1 / 6) + f(1), f(1)) + f(turn)
    hue = np.where(hue < 0, hue + f(1), np.fmod(hue, f(1)))
    sector = np.floor(hue * f(6))
    rest = saturation * (hue * f(6) - sector)
    falling, rising, least = (f(1) - rest), rest + (f(1) - saturation), f(1) - saturation
    q, t, p = (np.clip(part * value, 0, 1) for part in (falling, rising, least))
    colors = np.array([(value, t, p), (q, value, p), (p, value, t), (p, q, value), (t, p, value), (value, p, q)])
    chosen = np.take_along_axis(colors, sector.astype(int)[None, None] % 6, 0)[0]
    return np.minimum(np.trunc(chosen * f(top + 1 - 1e-3)), f(top))


def jitter(values: np.ndarray, factors: Sequence[float], hue: float, order: int, top: int) -> np.ndarray:
    """Change brightness, contrast, saturation and hue as torchvision v2 defines it for integers, in float32."""
    f = np.float32
    image = values.astype(f)

    def blend(other: Any, factor: float) -> np.ndarray:
        mixed = image * f(factor) + (f(1) - f(factor)) * np.asarray(other, f)
        return np.trunc(np.clip(mixed, f(0), f(top)))

    def grey() -> np.ndarray:
        if len(image) == 1:
            return image[0]
        return np.floor(f(0.2989) * image[0] + f(0.587) * image[1] + f(0.114) * image[2])

    steps = list([(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)][order // 4])
    steps.insert(order % 4, 3)
    for step in steps:
        if step == 3:
            image = turn_hue(image, hue, top) if hue != 0 and len(image) == 3 else image
            continue
        factor = factors[step]
        if factor == 1 or (step == 2 and len(image) == 1):
            continue
        other = 0 if step == 0 else grey().mean(dtype=np.float64) if step == 1 else grey()
        image = blend(other, factor)
    return image.astype(np.float64)


def normals(drawn: Sequence[int], field: int, count: int) -> np.ndarray:
    """Return the normal numbers of GaussianNoise (count,) for the random words of its operation."""
    found = np.zeros(-(-count // 256) * 256, np.float32)
    entries.fill_normal(found, drawn[0] >> 11, drawn[1] >> 11 ^ field, 0)
    return found[:count]


def blur(values: np.ndarray, across: int, down: int, sigma: float) -> np.ndarray:
    """Blur (C, H, W) as torchvision defines it, with a border that is mirrored without repeating the edge."""
    for axis, size in ((2, across), (1, down)):
        offsets = np.arange(size) - size // 2
        weights = np.exp(-((offsets / sigma) ** 2) / 2)
        pads = [(size // 2, size // 2) if axis == k else (0, 0) for k in range(3)]
        padded = np.pad(values, pads, "reflect")
        values = np.lib.stride_tricks.sliding_window_view(padded, size, axis) @ (weights / weights.sum())
    return np.rint(values)


def equalize(plane: np.ndarray, top: int) -> np.ndarray:
    """Even out the histogram of a plane as torchvision defines it, by the upper 8 bits of each value."""
    unit_size = (top + 1) // 256
    levels = plane.astype(int) // unit_size
    counts = np.bincount(levels.ravel(), minlength=256)
    step = (plane.size - counts[levels.max()]) // 255
    if step == 0:
        return levels * unit_size
    table = (np.cumsum(counts) - counts + step // 2) // step
    return np.minimum(table, 255)[levels] * unit_size


def autocontrast(plane: np.ndarray, top: int) -> np.ndarray:
    """Stretch a plane to its whole range as torchvision defines it, in float32."""
    f, low, high = np.float32, plane.min(), plane.max()
    if low == high:
        return plane
    return np.trunc(np.clip((plane.astype(f) - f(low)) / ((f(high) - f(low)) * f(1 / top)), 0, f(top)))


def sharpness(plane: np.ndarray, factor: float, top: int) -> np.ndarray:
    """Blend a plane with its smoothed self as torchvision defines it, with one rounding to float32."""
    if min(plane.shape) <= 2:
        return plane
    inner = plane[1:-1, 1:-1]
    total = np.lib.stride_tricks.sliding_window_view(plane, (3, 3)).sum((2, 3)) + 4 * inner
    mixed = inner + float(np.float32(1 - factor)) * (np.rint(total / 13) - inner)
    values = plane.copy()
    values[1:-1, 1:-1] = np.trunc(np.clip(mixed.astype(np.float32), 0, top))
    return values


def with_tones(values: np.ndarray, t: Any, top: int) -> np.ndarray:
    """Change the tones of (C, H, W)."""
    if isinstance(t, T.RandomPosterize):
        size = (top + 1) >> t.bits
        return values // size * size
    if isinstance(t, T.RandomAdjustSharpness):
        return np.stack([sharpness(plane, t.sharpness_factor, top) for plane in values])
    return np.stack([(equalize if isinstance(t, T.RandomEqualize) else autocontrast)(p, top) for p in values])


def warp(
    values: np.ndarray, t: Any, draw: Any, full: tuple[int, int], ratio: int, grid: int, bilinear: bool, fill: Any
) -> np.ndarray:
    """Warp (C, H, W) as torchvision does; `full` is the size of the largest image."""
    (w0, w1, w2, w3), (a, b, c, d), r = draw(0), draw(1), t.real_numbers
    (height, width), (h, w) = values.shape[1:], full
    if isinstance(t, T.RandomPerspective):
        down, across = (int(t.distortion_scale * (side // 2)) + 1 for side in full)
        right, bottom, more = w - across, h - down, draw(2)
        xs = below(a, across), right + below(c, across), right + below(more[0], across), below(more[2], across)
        ys = below(b, down), below(d, down), bottom + below(more[1], down), bottom + below(more[3], down)
        to_x, to_y = (0, w - 1, w - 1, 0), (0, 0, h - 1, h - 1)
        rows = [(x, y, 1, 0, 0, 0, -u * x, -u * y) for x, y, u in zip(xs, ys, to_x, strict=True)]
        rows += [(0, 0, 0, x, y, 1, -v * x, -v * y) for x, y, v in zip(xs, ys, to_y, strict=True)]
        if unit(w0) >= t.p or min(full) == 1 or abs(np.linalg.det(rows)) < 1e-6:
            return values
        m = np.linalg.solve(rows, [*to_x, *to_y]) / (1, 1, ratio, 1, 1, ratio, 1 / ratio, 1 / ratio)
        return sample(values, perspective_grid(m, height, width), bilinear, fill).astype(np.float64)
    angle, shear = uniform(w0, *r[:2]), (uniform(a, *r[6:8]), uniform(b, *r[8:10]))
    shift = [round(uniform(v, -s, s) / grid) * grid for v, s in ((w1, r[2] * w), (w2, r[3] * h))]
    matrix = affine_matrix(angle, shift, uniform(w3, *r[4:6]), shear, t.center, h, w)
    matrix[:, 2] /= ratio
    return sample(values, affine_grid(matrix, height, width, height, width), bilinear, fill).astype(np.float64)


def resized_crop_box(draw: Any, height: int, width: int, t: Any) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) by torchvision's RandomResizedCrop.get_params."""
    for block in range(10):
        w0, w1, w2, w3 = draw(block)
        area = height * width * uniform(w0, *t.scale)
        ratio = exp(uniform(w1, log(t.ratio[0]), log(t.ratio[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return below(w2, height - h + 1), below(w3, width - w + 1), h, w
    h, w = height, width
    if width / height < t.ratio[0]:
        h = round(width / t.ratio[0])
    elif width / height > t.ratio[1]:
        w = round(height * t.ratio[1])
    h, w = max(h, 1), max(w, 1)
    return (height - h) // 2, (width - w) // 2, h, w


def erased_box(draw: Any, height: int, width: int, t: Any) -> tuple[int, int, int, int] | None:
    """Return (top, left, height, width) by torchvision's RandomErasing.get_params; None if nothing is erased."""
    if unit(draw(10)[0]) >= t.p:
        return None
    for block in range(10):
        w0, w1, w2, w3 = draw(block)
        area = height * width * uniform(w0, *t.scale)
        ratio = exp(uniform(w1, log(t.ratio[0]), log(t.ratio[1])))
        h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < h < height and 0 < w < width:
            return below(w2, height - h + 1), below(w3, width - w + 1), h, w
    return None


def convert(image: Expected, t: T.ToDtype) -> Expected:
    """Convert as torchvision v2's ToDtype does."""
    was, now, values, slack = image.dtype, t.dtype, image.values, image.slack
    if was == now:
        return image
    if t.scale and was in LARGEST and now in LARGEST:
        factor = 256 if now == torch.uint16 else 1 / 256
        return Expected(np.floor(values * factor), now, math.ceil(slack * factor))
    if t.scale and was in LARGEST:
        return Expected(values / LARGEST[was], now, (slack + 1e-7 * LARGEST[was]) / LARGEST[was])
    if now not in LARGEST:
        return Expected(values, now, slack)
    factor = LARGEST[now] + 1 - 1e-3 if t.scale else 1
    # From floats: one level more, as they may be on either side of a whole number.
    slack = 0 if was in LARGEST and not slack else math.ceil(slack * factor) + 1
    return Expected(np.clip(np.trunc(values * factor), 0, LARGEST[now]), now, slack)


def normalize(image: Expected, t: T.Normalize) -> Expected:
    """Subtract the mean and divide; float32 arithmetic may be off by some of the largest intermediate's last digits."""
    mean, std = (per_channel(v, len(image.values)) for v in (t.mean, t.std))
    largest = (np.abs(image.values).max(initial=1) + np.abs(mean).max()) / np.abs(std).min()
    slack = image.slack / np.abs(std).min() + 3e-7 * largest
    return replace(image, values=(image.values - mean) / std, slack=float(slack))


def crop(values: np.ndarray, top: int, left: int, height: int, width: int) -> np.ndarray:
    """Cut a window out of (C, H, W)."""
    assert top >= 0 and left >= 0 and top + height <= values.shape[1] and left + width <= values.shape[2]
    return values[:, top : top + height, left : left + width]


def per_channel(fill: Any, channels: int) -> np.ndarray:
    """Return a fill as (C, 1, 1)."""
    return np.broadcast_to(np.array(fill, float), channels)[:, None, None]


def apply_all(
    images: dict[str, np.ndarray],
    transforms: Sequence[Any],
    seed: int,
    epoch: int,
    sample: int,
    columns_first: bool,
    masks: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Expected]:
    """Return the transformed images (C, H, W) of one sample.

    `columns_first` is the order of a resize's two passes. `masks` names those of the images that are masks, and the
    label that fills each.
    """
    now = {name: Expected(image.astype(np.float64), DTYPES[image.dtype]) for name, image in images.items()}

    def walk(transforms: Sequence[Any], number: int, taken: bool) -> int:
        """Apply transforms if they are taken, and return the number of the operation after them."""
        for t in transforms:
            if isinstance(t, list | tuple):
                number = walk(t, number, taken)
                continue
            draw = partial(words, seed, epoch, sample, number)
            if isinstance(t, CONTAINERS):
                for inner, hit in branches(t, lambda block, draw=draw: draw(block)[0]):
                    number = walk(inner, number + 1, taken and hit)
                continue
            names = [name for name in now if t.fields is None or name in t.fields]
            if isinstance(t, T.ToDtype | T.Normalize | COLORS | T.RandomErasing | T.Cutout):
                names = [name for name in names if name not in masks]
            if not isinstance(t, T.Geometry):
                for name in names:
                    now[name] = convert(now[name], t) if isinstance(t, T.ToDtype) else normalize(now[name], t)
                continue
            if taken:
                _move(now, names, t, draw, columns_first, masks)
            number += 1
        return number

    walk(transforms, 0, True)
    return now


def branches(t: Any, draw: Any) -> list[tuple[list[Any], bool]]:
    """Return the branches of a container in the order of its operations, and which of them are taken."""
    items = t.transforms
    if isinstance(t, T.RandomApply):
        return [(items, unit(draw(0)) < t.p)]
    if isinstance(t, T.RandomChoice):
        shares = np.cumsum(t.p or [1] * len(items)) / np.sum(t.p or [1] * len(items))
        chosen = int(np.searchsorted(shares, unit(draw(0)), "right"))
        return [([item], k == chosen) for k, item in enumerate(items)]
    order = sorted(range(len(items)), key=draw)
    return [([item], order[place] == k) for place in range(len(items)) for k, item in enumerate(items)]


def nearest(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize (1, H, W) as torch's NEAREST, which torchvision's v2.Resize is for a tv_tensors.Mask."""
    resized = torch.nn.functional.interpolate(torch.from_numpy(values[None].copy()).float(), (height, width))
    return resized[0].double().numpy()


def _move(
    now: dict[str, Expected], names: list[str], t: Any, draw: Any, columns_first: bool, masks: Mapping[str, int]
) -> None:
    w0, w1, w2, w3 = draw(0)
    height, width = max((now[name].values.shape[1:] for name in names), key=lambda shape: shape[0])
    ratios = {name: height // now[name].values.shape[1] for name in names}
    grid = math.lcm(*ratios.values())
    rows, columns = height // grid, width // grid  # all positions are whole pixels of every field
    for name in names:
        image, ratio = now[name], ratios[name]
        values, step = image.values, grid // ratio
        channels, top = len(values), LARGEST.get(image.dtype)
        slack = image.slack
        if isinstance(t, T.RandomHorizontalFlip | T.RandomVerticalFlip):
            if unit(w0) < t.p:
                values = values[:, :, ::-1] if isinstance(t, T.RandomHorizontalFlip) else values[:, ::-1]
        elif isinstance(t, T.RandomDihedral):
            which = below(w0, 8)
            values = values.transpose(0, 2, 1) if which & 4 else values
            values = values[:, ::-1] if which & 2 else values
            values = values[:, :, ::-1] if which & 1 else values
        elif isinstance(t, T.RandomChannelPermutation):
            values = values[list(PERMUTATIONS[below(w0, 6)])] if channels == 3 else values
        elif isinstance(t, COLORS) and unit(draw(1)[0]) >= t.p:
            pass
        elif isinstance(t, T.RandomGrayscale):
            red, green, blue = values.astype(np.float32) if channels == 3 else [values[0]] * 3
            mixed = np.float32(0.2989) * red + np.float32(0.587) * green + np.float32(0.114) * blue
            values = np.tile(np.floor(mixed), (3, 1, 1)) if channels == 3 else values
        elif isinstance(t, T.RandomSolarize):
            values = np.where(values >= t.threshold, top - values, values)
        elif isinstance(t, T.RandomInvert):
            values = top - values
        elif isinstance(t, TONES):
            values = with_tones(values, t, top)
        elif isinstance(t, T.ColorJitter):
            ranges = t.real_numbers
            factors = [uniform(w, *ranges[2 * k : 2 * k + 2]) for k, w in enumerate((w0, w1, w2))]
            values = jitter(values, factors, uniform(draw(1)[1], *ranges[8:10]), below(w3, 24), top)
        elif isinstance(t, WARPS):
            fill = per_channel(masks.get(name, t.fill), channels)
            bilinear = t.interpolation == "bilinear" and name not in masks
            values = warp(values, t, draw, (height, width), ratio, grid, bilinear, fill)
            values = values if top is None else np.rint(values)
            slack += 0 if not bilinear else 1 if top else 1e-3 * float(np.abs(values).max(initial=1))
        elif isinstance(t, T.GaussianBlur):
            low, high, across, down, _ = t.real_numbers
            values, slack = blur(values, int(across), int(down), uniform(w0, low, high)), slack + 1
        elif isinstance(t, T.GaussianNoise):
            f, noise = np.float32, normals(draw(0), list(now).index(name), values.size).reshape(values.shape)
            values = np.clip(values + np.trunc(f(t.mean * top) + f(t.sigma * top) * noise), 0, top)
        elif isinstance(t, T.RandomErasing | T.Cutout):
            box = erased_box(draw, rows, columns, t) if isinstance(t, T.RandomErasing) else None
            if isinstance(t, T.Cutout) and unit(w2) < t.p:
                h, w = (side // grid for side in t.size_numbers)
                box = below(w0, rows - h + 1), below(w1, columns - w + 1), h, w
            if box is not None:
                y, x, h, w = (side * step for side in box)
                values = values.copy()
                values[:, y : y + h, x : x + w] = per_channel(t.value, channels)
        elif isinstance(t, T.CenterCrop):
            h, w = t.size_numbers
            y, x = round((height - h) // grid / 2), round((width - w) // grid / 2)
            values = crop(values, y * step, x * step, h // ratio, w // ratio)
        elif isinstance(t, T.RandomCrop | T.RandomTranslate):
            h, w = t.size_numbers if isinstance(t, T.RandomCrop) else (height, width)
            above, under, before, after = pads = list(t.padding_numbers)
            if getattr(t, "pad_if_needed", False):
                lacking = max(h - height - above - under, 0), max(w - width - before - after, 0)
                pads = [above + lacking[0], under + lacking[0], before + lacking[1], after + lacking[1]]
            above, under, before, after = (pad // ratio for pad in pads)
            shape = values.shape[1] + above + under, values.shape[2] + before + after
            padded = np.tile(per_channel(masks.get(name, t.fill), channels), (1, *shape))
            padded[:, above : above + values.shape[1], before : before + values.shape[2]] = values
            y = below(w0, (height + pads[0] + pads[1] - h) // grid + 1)
            x = below(w1, (width + pads[2] + pads[3] - w) // grid + 1)
            values = crop(padded, y * step, x * step, h // ratio, w // ratio)
        else:
            h, w = t.size_numbers
            if isinstance(t, T.RandomResizedCrop):
                values = crop(values, *(side * step for side in resized_crop_box(draw, rows, columns, t)))
            elif not isinstance(t.size, tuple):
                h, w = (h, max(h * width // height, 1)) if height <= width else (max(h * height // width, 1), h)
                h, w = h // grid * grid, w // grid * grid
            if name in masks:
                values = nearest(values, h // ratio, w // ratio)
            else:
                values = resize(
                    values, h // ratio, w // ratio, t.interpolation == "bicubic", top, columns_first=columns_first
                )
                # A half may be rounded either way, twice; floats are sums of float32.
                slack += 2e-6 * float(np.abs(values).max(initial=1)) if top is None else 2
        now[name] = replace(image, values=values.copy(), slack=slack)
