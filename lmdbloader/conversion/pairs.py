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
SCALES = range(2, 9)
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
    if len(set(found)) < len(found) or expected not in (None, sorted(found)):
        scales = ", ".join(map(str, found))
        raise ImageError(name, f"its LR images have the scales {scales}; expected {expected or 'different scales'}")
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


def check_alignment(hr: Pixels, lr: Pixels, scale: int, min_psnr: float, name: str) -> None:
    """Refuse a pair whose LR image is another picture, or is shifted.

    The HR image (H, W, C) is downscaled and compared with the LR image (H / scale, W / scale, C). The LR image may come
    from another bicubic, or be degraded on purpose, so `min_psnr` (dB; 0 accepts everything) finds only another
    picture. A shifted image agrees better when shifted back.

    Raises:
        ImageError: The images do not agree.
    """
    if min_psnr <= 0:
        return
    ours = downscale(hr, scale)
    found = psnr_between(ours, lr)
    if not found >= min_psnr:  # it is NaN if a pixel is
        raise ImageError(
            name,
            f"the HR image downscaled by {scale} and the LR image agree to only {found:.1f} dB, expected at least "
            f"{min_psnr:g}: they show different pictures, or are not aligned ({option('min_pair_psnr')} sets the "
            "bound)",
        )
    if found < max(_SURELY_ALIGNED_PSNR, min_psnr) and min(lr.shape[:2]) > 2:
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
