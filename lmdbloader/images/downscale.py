"""Low-resolution images from high-resolution ones: bicubic downscaling by an integer, and how close two images are."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import OptionError
from lmdbloader.images.header import PIXEL_TYPES, Pixels
from lmdbloader.kernels import entries

__all__ = ["BicubicMethod", "crop_to_multiple", "downscale", "psnr_between"]

BicubicMethod: TypeAlias = Literal["matlab", "pillow"]

_MAX_SCALE = 128


def crop_to_multiple(image: Pixels, scale: int) -> Pixels:
    """Crop an image on the right and at the bottom so that its sides are multiples of a scale.

    Args:
        image: (height, width, ...) array.
        scale: At least 1.

    Returns:
        A view of image.

    Raises:
        OptionError: The image is smaller than the scale.

    >>> crop_to_multiple(np.zeros((7, 9, 3), np.uint8), 4).shape
    (4, 8, 3)
    """
    height, width = (side - side % scale for side in image.shape[:2])
    if not height or not width:
        raise OptionError(f"an image of {image.shape[1]}x{image.shape[0]} pixels is smaller than the scale, {scale}")
    return image[:height, :width]


def downscale(image: Pixels, scale: int, *, method: BicubicMethod = "matlab") -> Pixels:
    """Downscale an image by an integer, bicubic and antialiased.

    Args:
        image: (height, width, channels) uint8, uint16, float16 or float32; both sides are multiples of scale.
        scale: 2 to 128.
        method: "matlab" equals MATLAB's ``imresize(image, 1/scale, 'bicubic')``, which the super-resolution literature
            uses: cubic kernel of a = -0.5 stretched by the scale, mirrored borders, rows first, rounded (halves away
            from zero) and clipped after each direction. The sums are exact, so for scales whose weights are not binary
            fractions (3, 5, ...) true halves are rounded up, where floating point might fall short.
            Floats are summed in float64, and neither rounded nor clipped.
            "pillow" equals Pillow's ``Image.resize`` with BICUBIC; 8 bits only.

    Returns:
        A new array (height / scale, width / scale, channels) of the image's dtype.

    Raises:
        OptionError: The scale, the method, or the image's shape or dtype is not one of those above.

    >>> downscale(np.arange(64, dtype=np.uint8).reshape(8, 8, 1), 4)[:, :, 0].tolist()
    [[12, 17], [46, 51]]
    """
    if not isinstance(scale, int) or not 2 <= scale <= _MAX_SCALE:
        raise OptionError(f"scale is {scale!r}; expected an integer from 2 to {_MAX_SCALE}")
    if method not in get_args(BicubicMethod):
        raise OptionError(f"bicubic method is {method!r}; expected one of {', '.join(get_args(BicubicMethod))}")
    if image.dtype not in PIXEL_TYPES or image.ndim != 3 or not image.size:
        raise OptionError(
            f"cannot downscale {image.dtype} of shape {image.shape}; expected {', '.join(PIXEL_TYPES)} "
            "(height, width, channels)"
        )
    height, width = image.shape[:2]
    if height % scale or width % scale:
        raise OptionError(
            f"{width}x{height} pixels are not a multiple of the scale, {scale}; crop to "
            f"{width - width % scale}x{height - height % scale} first (crop_to_multiple)"
        )
    if method == "pillow":
        return _downscale_pillow(image, scale)
    return _downscale_floats(image, scale) if image.dtype.kind == "f" else _downscale_matlab(image, scale)


def psnr_between(a: Pixels, b: Pixels) -> float:
    """Return the peak signal-to-noise ratio between two images in dB, infinite when they are equal.

    Args:
        a: uint8, uint16, float16 or float32 array, not empty. The peak of floats is the range of both images.
        b: Array of a's shape and dtype.

    Raises:
        OptionError: Shapes or dtypes differ or are not as above.

    >>> psnr_between(np.zeros((2, 2, 1), np.uint8), np.full((2, 2, 1), 255, np.uint8))
    0.0
    """
    if a.shape != b.shape or a.dtype != b.dtype or a.dtype not in PIXEL_TYPES or not a.size:
        raise OptionError(
            f"cannot compare {a.dtype} of shape {a.shape} with {b.dtype} of shape {b.shape}; "
            f"expected two arrays of one shape and type: {', '.join(PIXEL_TYPES)}"
        )
    if a.dtype.kind == "f":
        peak = float(max(a.max(), b.max())) - float(min(a.min(), b.min()))
        squared = float(np.square(a.astype(np.float64) - b).mean())
        return 10.0 * math.log10(peak**2 / squared) if squared else math.inf
    total = int(entries.squared_error(np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)))
    if not total:
        return math.inf
    return 10.0 * math.log10(int(np.iinfo(a.dtype).max) ** 2 * a.size / total)


@lru_cache(maxsize=8)
def _bicubic_weights(scale: int) -> tuple[int, tuple[int, ...], int]:
    """Return the first tap's place, the taps' numerators, and their common denominator, which is their sum.

    Places count source pixels from the first one under an output pixel.

    >>> _bicubic_weights(2)
    (-3, (-3, -9, 29, 111, 111, 29, -9, -3), 256)
    """
    center = Fraction(scale - 1, 2)
    weights = {place: _cubic((place - center) / scale) / scale for place in range(-2 * scale, 3 * scale)}
    places = [place for place, weight in weights.items() if weight]
    denominator = math.lcm(*(weight.denominator for weight in weights.values()))
    taps = range(places[0], places[-1] + 1)
    return taps.start, tuple(int(weights[place] * denominator) for place in taps), denominator


def _cubic(x: Fraction) -> Fraction:
    """Return Keys' cubic convolution kernel of a = -0.5, exactly."""
    x = abs(x)
    if x <= 1:
        return (3 * x**3 - 5 * x**2 + 2) / 2
    if x < 2:
        return (-(x**3) + 5 * x**2 - 8 * x + 4) / 2
    return Fraction(0)


def _mirrored(indices: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Reflect indices beyond either end back into range(size), the end itself repeated, as often as needed."""
    indices = indices % (2 * size)
    return np.where(indices < size, indices, 2 * size - 1 - indices)


def _downscale_matlab(image: Pixels, scale: int) -> Pixels:
    height, width, channels = image.shape
    out_height, out_width = height // scale, width // scale
    first, numerators, divisor = _bicubic_weights(scale)
    # The kernel takes four taps a pass: pad with taps of weight 0.
    numerators += (0,) * (-len(numerators) % 4)
    taps = np.arange(len(numerators))
    row_at = _mirrored(scale * np.arange(out_height)[:, None] + (first + taps), height)
    # Phase p holds the pixels p, p + scale, p + 2 * scale ... of the row continued beyond its borders.
    phase_width = out_width + (len(numerators) - 1) // scale
    pixels = _mirrored(first + np.arange(scale)[:, None] + scale * np.arange(phase_width), width)
    sample_at = (channels * pixels[:, :, None] + np.arange(channels)).reshape(-1)
    offset_at = (taps % scale * phase_width + taps // scale) * channels

    top = int(np.iinfo(image.dtype).max)
    fits = top * sum(map(abs, numerators)) + divisor < 1 << 31
    integer: type[np.int32] | type[np.int64] = np.int32 if fits else np.int64
    shift = divisor.bit_length() - 1 if divisor & (divisor - 1) == 0 else -1
    out = np.empty((out_height, out_width * channels), image.dtype)
    entries.downscale(
        np.ascontiguousarray(image).reshape(height, width * channels),
        row_at,
        np.array(numerators, integer),
        sample_at,
        offset_at,
        divisor,
        shift,
        top,
        np.empty(width * channels, integer),
        np.empty(width * channels, image.dtype),
        np.empty(sample_at.size, image.dtype),
        out,
    )
    return out.reshape(out_height, out_width, channels)


def _downscale_floats(image: Pixels, scale: int) -> Pixels:
    first, numerators, divisor = _bicubic_weights(scale)
    sums = image.astype(np.float64)
    for axis in (0, 1):
        size = image.shape[axis]
        places = _mirrored(first + scale * np.arange(size // scale)[:, None] + np.arange(len(numerators)), size)
        parts = (weight / divisor * sums.take(places[:, tap], axis) for tap, weight in enumerate(numerators))
        sums = reduce(np.add, parts)
    return sums.astype(image.dtype)


def _downscale_pillow(image: Pixels, scale: int) -> Pixels:
    from PIL import Image

    if image.dtype != np.uint8 or image.shape[2] not in (1, 3):
        raise OptionError(
            f"Pillow cannot downscale {image.dtype} of {image.shape[2]} channels; choose the bicubic method 'matlab'"
        )
    height, width, channels = image.shape
    picture = Image.fromarray(image[:, :, 0] if channels == 1 else image)
    small = picture.resize((width // scale, height // scale), Image.Resampling.BICUBIC)
    return np.array(small).reshape(height // scale, width // scale, channels)
