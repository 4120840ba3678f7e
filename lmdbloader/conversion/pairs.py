"""Whether two images are a pair: one the other's size times a whole number, alike, and neither moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.option_names import option
from lmdbloader.errors import ImageError
from lmdbloader.images.downscale import downscale, psnr_between

Pixels = npt.NDArray[Any]
SCALES = range(2, 9)
# Bicubic of others agrees with ours to 54 dB and more; the smoothest of eight photographs moved by a pixel to 42 dB.
_SURELY_ALIGNED_PSNR = 50.0
# Moving it back gains more than that, in dB; noise alone makes no such difference.
_MOVED_PSNR = 0.5


def pair_scale(hr: Pixels, lr: Pixels, expected: int | None, name: str) -> int:
    """Return how many times larger the HR image of a pair is.

    Raises:
        ImageError: Not the same whole number both ways, not the expected one, or other channels or bits.
    """
    sizes = f"HR is {hr.shape[1]}x{hr.shape[0]}, LR is {lr.shape[1]}x{lr.shape[0]}"
    scale = int(hr.shape[0] // lr.shape[0])
    if scale not in SCALES or hr.shape[0] != scale * lr.shape[0] or hr.shape[1] != scale * lr.shape[1]:
        raise ImageError(
            name, f"{sizes}: expected the same whole multiple ({SCALES.start} to {SCALES.stop - 1}) both ways"
        )
    if expected is not None and scale != expected:
        raise ImageError(name, f"{sizes}: that is scale {scale}, expected {expected}")
    if hr.shape[2] != lr.shape[2] or hr.dtype != lr.dtype:
        raise ImageError(name, f"HR has {hr.shape[2]} channels of {hr.dtype}, LR {lr.shape[2]} of {lr.dtype}")
    return scale


def check_alignment(hr: Pixels, lr: Pixels, scale: int, min_psnr: float, name: str) -> None:
    """Refuse a pair whose LR image is another picture, or moved against the HR image.

    The HR image is downscaled and compared with the LR image. Which bicubic made that, or what was done to it on
    purpose, is not known, so `min_psnr` can only tell another picture; an image that is moved tells itself by
    agreeing better when it is moved back.

    Args:
        hr: (H, W, C).
        lr: (H / scale, W / scale, C).
        scale: Between them.
        min_psnr: Of the LR image and the downscaled HR image, dB; 0 or less accepts everything.
        name: Of the pair.

    Raises:
        ImageError: They do not agree.
    """
    if min_psnr <= 0:
        return
    ours = downscale(hr, scale)
    found = psnr_between(ours, lr)
    if found < min_psnr:
        raise ImageError(
            name,
            f"the HR image downscaled by {scale} and the LR image agree to {found:.1f} dB only, expected at least "
            f"{min_psnr:g}: another picture, or not aligned ({option('min_pair_psnr')} sets the bound)",
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
    """Return the agreement of the LR image, moved by a pixel at most, without the pixels at its borders."""
    height, width = lr.shape[:2]
    inner = ours[1 : height - 1, 1 : width - 1]
    moved = lr[1 - down : height - 1 - down, 1 - right : width - 1 - right]
    return psnr_between(np.ascontiguousarray(inner), np.ascontiguousarray(moved))
