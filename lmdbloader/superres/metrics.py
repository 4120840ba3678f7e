"""PSNR and SSIM on luma or RGB, computed as the super-resolution literature computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lmdbloader.base.arguments import flag, number
from lmdbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    Picture = NDArray[np.generic] | torch.Tensor

__all__ = ["luma", "psnr", "ssim"]

# BT.601 in studio swing for R, G, B in 0..255: MATLAB's rgb2ycbcr.
LUMA_WEIGHTS = (65.481 / 255, 128.553 / 255, 24.966 / 255)
LUMA_OFFSET = 16.0
PEAK = 255.0

WINDOW = 11
WINDOW_SIGMA = 1.5
SSIM_C1 = (0.01 * PEAK) ** 2
SSIM_C2 = (0.03 * PEAK) ** 2


# The largest values of pixels that are whole numbers.
_PEAKS = {"uint8": 255.0, "uint16": 65535.0}


def luma(image: Picture, *, data_range: float | None = None) -> NDArray[np.float64]:
    """Return the luma of an image as MATLAB's `rgb2ycbcr` defines it, without its rounding to whole numbers.

    Args:
        image: (3, H, W) RGB, or (1, H, W) luma, of uint8, uint16 or floats. A NumPy array, or a torch tensor on any
            device.
        data_range: The value of white in an image of floats, such as 1.0 or 255; that of uint8 is 255, of uint16 65535.

    Returns:
        (H, W) float64 on the scale 0..255, a copy; RGB gives 16 (black) to 235 (white).

    Raises:
        OptionError: The shape is not (1 or 3, H, W), or there is no data_range for floats, or one for whole numbers.

    >>> import numpy as np
    >>> luma(np.full((3, 1, 2), 255, np.uint8))
    array([[235., 235.]])
    """
    _check_range([image], data_range)
    return _luma(image, data_range)


def _pixels(image: Picture, data_range: float | None) -> NDArray[np.float64]:
    """Return (1 or 3, H, W) on the scale 0..255, a copy."""
    if isinstance(image, np.ndarray):
        array: NDArray[np.generic] = image
    else:
        array = (image.double() if image.is_floating_point() else image).detach().cpu().numpy()  # NumPy has no bfloat16
    pixels = array.astype(np.float64)
    pixels /= _PEAKS.get(array.dtype.name, data_range or PEAK) / PEAK
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        raise OptionError(
            f"expected an image of shape (3, H, W) or (1, H, W); found {pixels.shape}. Take one image of a batch, or "
            "one band: image[k : k + 1]."
        )
    return pixels


def _luma(image: Picture, data_range: float | None) -> NDArray[np.float64]:
    pixels = _pixels(image, data_range)
    if len(pixels) == 1:
        return pixels.reshape(pixels.shape[1:])
    red, green, blue = LUMA_WEIGHTS
    weighted: NDArray[np.float64] = LUMA_OFFSET + red * pixels[0] + green * pixels[1] + blue * pixels[2]
    return weighted


def psnr(
    image: Picture, reference: Picture, *, scale: int, data_range: float | None = None, rgb: bool = False
) -> float:
    """Return the peak signal-to-noise ratio of the luma in dB, for a peak of 255; infinity for equal images.

    Args:
        image: The upscaled image, (C, H, W) as `luma` takes it.
        reference: The original, of the same height and width.
        scale: Pixels shaved off each side first, by custom the upscaling factor; 0 shaves nothing.
        data_range: As for `luma`; images of whole numbers have their own.
        rgb: Compute the mean squared error over R, G and B instead of luma.

    Raises:
        OptionError: The sizes differ, floats have no data_range, nothing is left after shaving, or there is no RGB.

    >>> import numpy as np
    >>> black = np.zeros((1, 8, 8), np.uint8)
    >>> psnr(black, black, scale=2), round(psnr(black + 1, black, scale=2), 2)
    (inf, 48.13)
    """
    first, second = _shaved_planes(image, reference, scale, data_range, smallest=1, rgb=rgb)
    error = float(np.mean((first - second) ** 2))
    return float("inf") if error == 0 else float(10 * np.log10(PEAK**2 / error))


def ssim(
    image: Picture, reference: Picture, *, scale: int, data_range: float | None = None, rgb: bool = False
) -> float:
    """Return the mean structural similarity of the luma (Wang et al. 2004), 1 for equal images.

    11 x 11 Gaussian window with sigma 1.5, K1 = 0.01, K2 = 0.03, L = 255; only windows wholly inside the image count.

    Args:
        image: The upscaled image, (C, H, W) as `luma` takes it.
        reference: The original, of the same height and width.
        scale: Pixels shaved off each side first, by custom the upscaling factor; 0 shaves nothing.
        data_range: As for `luma`; images of whole numbers have their own.
        rgb: Return the mean of the SSIM of R, G and B instead of that of luma.

    Raises:
        OptionError: The sizes differ, floats have no data_range, fewer than 11 x 11 pixels are left after shaving, or
            there is no RGB.

    >>> import numpy as np
    >>> ramp = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    >>> ssim(ramp, ramp, scale=2)
    1.0
    """
    planes = _shaved_planes(image, reference, scale, data_range, smallest=WINDOW, rgb=rgb)
    return float(np.mean([_similarity(*pair) for pair in zip(*planes, strict=True)]))


def _similarity(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    mean_first, mean_second = _blur(first), _blur(second)
    product, squares = mean_first * mean_second, mean_first**2 + mean_second**2
    covariance = _blur(first * second) - product
    # The formula needs only the sum of the two variances, so one blur serves both.
    variances = _blur(first**2 + second**2) - squares
    similarity = (2 * product + SSIM_C1) * (2 * covariance + SSIM_C2)
    similarity /= (squares + SSIM_C1) * (variances + SSIM_C2)
    return float(np.mean(similarity))


def _check_range(images: Sequence[Picture], data_range: float | None) -> None:
    names = [str(image.dtype).removeprefix("torch.") for image in images]
    others = [name for name in names if name not in _PEAKS]
    if data_range is not None and not 0 < number("data_range", data_range) < float("inf"):
        raise OptionError(f"data_range={data_range!r}: expected the value of white, such as 1.0 or 255.")
    if others and data_range is None:
        raise OptionError(
            f"pixels of {others[0]}: the value of white is not known. Write data_range=1.0 for pixels from 0 to 1, or "
            "data_range=255."
        )
    if not others and data_range is not None and data_range != _PEAKS[names[0]]:
        raise OptionError(
            f"data_range={data_range!r} with pixels of {names[0]}, in which white is {_PEAKS[names[0]]:.0f}. Leave it "
            "out, or give floats."
        )


def _shaved_planes(
    image: Picture, reference: Picture, scale: int, data_range: float | None, *, smallest: int, rgb: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lumas of two images as (1, H, W), or their channels as (3, H, W), without their borders."""
    _check_range([image, reference], data_range)
    if flag("rgb", rgb):
        first, second = _pixels(image, data_range), _pixels(reference, data_range)
        if len(first) != 3 or len(second) != 3:
            raise OptionError(
                f"rgb=True: expected two images of shape (3, H, W); found {first.shape} and {second.shape}. merge_luma "
                "adds colors to luma."
            )
    else:
        first, second = _luma(image, data_range)[None], _luma(reference, data_range)[None]
    height, width = first.shape[1:]
    if first.shape != second.shape:
        raise OptionError(f"image and reference must have one size; found {first.shape[1:]} and {second.shape[1:]}.")
    if scale < 0:
        raise OptionError(f"scale is the number of pixels to shave off each side: 0 or more; found {scale}.")
    if min(height, width) - 2 * scale < smallest:
        raise OptionError(
            f"an image of {height} x {width} shaved by {scale} on each side leaves less than the "
            f"{smallest} x {smallest} pixels that this metric needs."
        )
    inside = np.s_[:, scale : height - scale, scale : width - scale]
    return first[inside], second[inside]


def _blur(plane: NDArray[np.float64]) -> NDArray[np.float64]:
    """Filter (H, W) with the SSIM window, one axis after the other: (H - 10, W - 10)."""
    return _blur_rows(_blur_rows(plane).T).T


def _blur_rows(plane: NDArray[np.float64]) -> NDArray[np.float64]:
    """Filter each row of (H, W): (H, W - 10).

    One `np.convolve` filters all rows as one long row, ten times as fast as shifted sums. Results of windows that span
    two rows are cut away.
    """
    distance = np.arange(WINDOW) - WINDOW // 2
    weights = np.exp(-(distance**2) / (2 * WINDOW_SIGMA**2))
    blurred = np.convolve(plane.ravel(), weights / weights.sum(), mode="same").reshape(plane.shape)
    return blurred[:, WINDOW // 2 : -(WINDOW // 2)]
