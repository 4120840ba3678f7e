"""The check of pairs: the sizes of two images, their similarity and their alignment."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.option_names import option
from lmdbloader.conversion.options import ConvertOptions
from lmdbloader.errors import ImageError
from lmdbloader.images.downscale import downscale, psnr_between

Pixels = npt.NDArray[Any]
SCALES = range(1, 9)
# Pairs of one size that show the same picture agree better than this (a correlation), under strong noise, blur, rain,
# haze and in the dark too; of different pictures, one in thirty does.
_SAME_PICTURE, _BLOCKS = 0.15, 16
_MIN_PSNR = 20.0
# Other bicubic programs agree with ours to 54 dB and more; a photograph moved by a pixel to 42 dB at most (of eight).
_SURELY_ALIGNED_PSNR = 50.0
# Moving such an image back gains more than this, in dB, and noise does not.
_MOVED_PSNR = 0.5


def fit_pair(hr: Pixels, lr: Pixels, options: ConvertOptions, name: str) -> tuple[Pixels, int]:
    """Return the HR image of a pair, cropped with `crop_to_scale`, and how many times larger than the LR image it is.

    Raises:
        ImageError: The factors of height and width differ, or are not the expected one, or channels or bits differ.
    """
    sizes = f"HR is {hr.shape[1]}x{hr.shape[0]}, LR is {lr.shape[1]}x{lr.shape[0]}"
    exact = [s for s in SCALES if hr.shape[:2] == (s * lr.shape[0], s * lr.shape[1])]
    # A very small image may be cropped to several multiples.
    candidates = (*filter(None, [options.scale]), *exact, *SCALES)
    scale = next((s for s in candidates if lr.shape[:2] == (hr.shape[0] // s, hr.shape[1] // s)), None)
    if scale is None or (scale not in exact and not options.crop_to_scale):
        raise ImageError(name, f"{sizes}: {_why_no_pair(lr, scale)}")
    if scale not in exact:
        hr = hr[: scale * lr.shape[0], : scale * lr.shape[1]]
    if options.scale not in (None, scale):
        raise ImageError(name, f"{sizes}: that is scale {scale}, expected {options.scale}")
    if hr.shape[2] != lr.shape[2] or hr.dtype != lr.dtype:
        raise ImageError(name, f"HR has {hr.shape[2]} channels of {hr.dtype}, LR {lr.shape[2]} of {lr.dtype}")
    return hr, scale


def find_scales(hr: Pixels, lows: Sequence[Pixels], options: ConvertOptions, name: str) -> int | list[int]:
    """Return the scale of a pair; for several LR images a list, in their order.

    Raises:
        ImageError: As by `fit_pair`; or two scales are equal, or they are not the expected ones.
    """
    expected = options.scale
    if len(lows) == 1 and not isinstance(expected, list):
        return fit_pair(hr, lows[0], options, name)[1]
    found = [fit_pair(hr, low, replace(options, scale=None), name)[1] for low in lows]
    if 1 in found or len(set(found)) < len(found) or expected not in (None, sorted(found)):
        scales, different = ", ".join(map(str, found)), f"different scales of 2 to {SCALES.stop - 1}"
        raise ImageError(name, f"its LR images have the scales {scales}; expected {expected or different}")
    return found


def _why_no_pair(lr: Pixels, scale: int | None) -> str:
    """Return what to do about sizes that do not fit; `scale` is that of a cropped HR image, if there is one."""
    if scale is not None:
        cropped = f"{scale * lr.shape[1]}x{scale * lr.shape[0]}"
        return (
            f"HR is not a multiple of {scale}. {option('crop_to_scale', True)} crops it to {cropped} at the right and "
            "bottom, as LR was probably made"
        )
    return f"expected HR to be the same whole multiple ({SCALES.start} to {SCALES.stop - 1}) of LR both ways"


def common_text(scales: Collection[int]) -> str:
    """Return the number that sides must be a multiple of, as text for messages.

    >>> common_text([3]), common_text([2, 3])
    ('the scale 3', '6, the least common multiple of the scales 2, 3')
    """
    if len(scales) == 1:
        return f"the scale {math.lcm(*scales)}"
    return f"{math.lcm(*scales)}, the least common multiple of the scales {', '.join(map(str, scales))}"


def check_alignment(hr: Pixels, lr: Pixels, scale: int, min_psnr: float | None, name: str) -> None:
    """Refuse a pair whose LR image is another picture, or is shifted; of one size, a pair of equal images.

    The HR image (H, W, C) is downscaled and compared with the LR image (H / scale, W / scale, C). The LR image may come
    from another bicubic, or be degraded on purpose, so `min_psnr` (dB; 0 accepts everything; None is 20, or no bound
    for images of one size) finds only another picture. A shifted image agrees better when shifted back. So does an
    image that is blurred by a motion: those of one size are not tried.

    Raises:
        ImageError: The images do not agree, or are equal.
    """
    least = (_MIN_PSNR if scale > 1 else -math.inf) if min_psnr is None else min_psnr
    if least <= 0 and min_psnr is not None:
        return
    ours = downscale(hr, scale) if scale > 1 else hr
    found = psnr_between(ours, lr)
    if scale == 1 and found == math.inf and hr.min() < hr.max():  # blur leaves a single color as it is
        accept = option("min_pair_psnr", 0)
        raise ImageError(name, f"its HR and LR images are the same: expected a degraded LR image ({accept} accepts it)")
    if not found >= least:  # it is NaN if a pixel is
        downscaled = f" downscaled by {scale}" if scale > 1 else ""
        raise ImageError(
            name,
            f"the HR image{downscaled} and the LR image agree to only {found:.1f} dB, expected at least "
            f"{least:g}: they show different pictures, or are not aligned ({option('min_pair_psnr')} sets the "
            "bound)",
        )
    if scale > 1 and found < max(_SURELY_ALIGNED_PSNR, least) and min(lr.shape[:2]) > 2:
        psnr, down, right = max((_psnr_moved(ours, lr, y, x), y, x) for y in (-1, 0, 1) for x in (-1, 0, 1))
        if (down or right) and psnr > _psnr_moved(ours, lr, 0, 0) + _MOVED_PSNR:
            raise ImageError(
                name,
                f"the LR image is not aligned: it agrees with the HR image downscaled by {scale} to {found:.1f} dB, "
                f"but better when moved by ({right}, {down}) pixels ({option('min_pair_psnr', 0)} accepts every pair)",
            )


def _psnr_moved(ours: Pixels, lr: Pixels, down: int, right: int) -> float:
    """Return the PSNR of the LR image, moved by at most a pixel, without the pixels at its borders."""
    height, width = lr.shape[:2]
    inner = ours[1 : height - 1, 1 : width - 1]
    moved = lr[1 - down : height - 1 - down, 1 - right : width - 1 - right]
    return psnr_between(np.ascontiguousarray(inner), np.ascontiguousarray(moved))


def show_same_picture(hr: Pixels, lr: Pixels) -> bool:
    """Return whether two images (H, W, C) of one size seem to show the same picture, however degraded one of them is.

    The changes between the means of neighboring blocks are correlated: noise, blur, haze and brightness keep them.
    """
    one, other = (_changes(image) for image in (hr, lr))
    norm = math.sqrt(float((one @ one) * (other @ other)))
    return norm == 0 or float(one @ other) >= _SAME_PICTURE * norm


def _changes(image: Pixels) -> Pixels:
    """Return the differences (N,) between the means of neighboring blocks, 16 each way."""
    means = image.mean(2, dtype=np.float64)
    for axis in (0, 1):
        starts = np.arange(min(_BLOCKS, means.shape[axis])) * means.shape[axis] // min(_BLOCKS, means.shape[axis])
        sizes = np.diff([*starts, means.shape[axis]])
        means = np.add.reduceat(means, starts, axis) / np.expand_dims(sizes, 1 - axis)
    return np.concatenate([np.diff(means, axis=axis).reshape(-1) for axis in (0, 1)])
