"""Thumbnails: pixels of any kind as small pictures that stand in the text of a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[Any]
Tones = Mapping[tuple[str, str], tuple[float, float]]

# Pixels on the screen; smaller ones are enlarged by the browser, by a whole number.
SIDE = 96
# Of one encoded thumbnail: as PNG if it fits, or as the best JPEG that does.
MAX_NBYTES = 3600
_QUALITIES = (85, 70, 50, 30, 10)
_CHANNELS = (1, 3, 4)
# An array is a picture if it is no thinner than this.
_MIN_SIDE, _MAX_ASPECT = 4, 8


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A small picture.

    Attributes:
        uri: The picture itself, as a page refers to it.
        width, height: At which it is shown, in pixels.
        is_enlarged: Whether that is more than it has, so that pixels are to be seen.
    """

    uri: str
    width: int
    height: int
    is_enlarged: bool


def as_picture(array: Pixels) -> Pixels | None:
    """Return an array of numbers as (C, H, W) with C of 1, 3 or 4 if it looks like a picture, else None.

    >>> as_picture(np.zeros((32, 48, 4))).shape, as_picture(np.zeros((3, 32, 48))).shape, as_picture(np.zeros(9))
    ((4, 32, 48), (3, 32, 48), None)
    """
    if array.dtype.kind not in "buif" or array.ndim not in (2, 3):
        return None
    if array.ndim == 2:
        array = array[None]
    elif array.shape[0] not in _CHANNELS and array.shape[2] in _CHANNELS:
        array = np.moveaxis(array, 2, 0)
    shorter, longer = sorted(array.shape[1:])
    fits = array.shape[0] in _CHANNELS and shorter >= _MIN_SIDE and longer <= _MAX_ASPECT * shorter
    return array if fits else None


def tones(pictures: Iterable[tuple[str, Pixels]]) -> dict[tuple[str, str], tuple[float, float]]:
    """Return which values are black and white, for each field and dtype that is not uint8.

    They are those of all pictures together, so that these can be compared: 0 and the largest for whole numbers, 0 and 1
    for floats between them, else the smallest and the largest.
    """
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for name, picture in pictures:
        if picture.dtype == np.uint8:
            continue
        finite = picture[np.isfinite(picture)] if picture.dtype.kind == "f" else picture
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        before = found.get((name, picture.dtype.name), (low, high))
        found[name, picture.dtype.name] = min(low, before[0]), max(high, before[1])
    return {key: _rounded(key[1], *values) for key, values in found.items()}


def _rounded(dtype: str, low: float, high: float) -> tuple[float, float]:
    if dtype.startswith("float"):
        return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
    return min(low, 0.0), max(high, 1.0)


def thumbnail(name: str, picture: Pixels, tones: Tones) -> Thumbnail:
    """Return pixels (C, H, W), C of 1, 3 or 4, as a small picture; a fourth channel is how opaque it is.

    Args:
        name: Of the field.
        picture: Of any numbers.
        tones: What is black and white.
    """
    _, height, width = picture.shape
    # Of a large picture each so many pixels only: what is left is reduced with care, and quickly.
    step = max(1, max(height, width) // (8 * SIDE))
    image = _to_pil(_to_bytes(picture[:, ::step, ::step], tones.get((name, picture.dtype.name), (0.0, 255.0))))
    longer = max(image.size)
    if longer > SIDE:
        size = max(1, round(image.width * SIDE / longer)), max(1, round(image.height * SIDE / longer))
        image = image.resize(size, Image.Resampling.LANCZOS)
    factor = max(1, SIDE // max(image.size))
    return Thumbnail(_encoded(image), image.width * factor, image.height * factor, factor > 1)


def _to_bytes(picture: Pixels, extent: tuple[float, float]) -> npt.NDArray[np.uint8]:
    if picture.dtype == np.uint8:
        return picture
    low, high = extent
    scale = 255 / (high - low) if high > low else 0.0
    with np.errstate(all="ignore"):
        values = np.nan_to_num((picture.astype(np.float64) - low) * scale, nan=0.0, posinf=255.0, neginf=0.0)
    return np.clip(values + 0.5, 0, 255).astype(np.uint8)


def _to_pil(picture: npt.NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(picture[0] if len(picture) == 1 else np.moveaxis(picture, 0, 2)))


def _encoded(image: Image.Image) -> str:
    """Return a picture as a data URI of at most about MAX_NBYTES * 4 / 3 characters, as far as that can be."""
    data, kind = _saved(image, "PNG", optimize=True), "png"
    if len(data) > MAX_NBYTES and image.mode == "RGBA":  # JPEG has no transparency: fewer colours instead
        data = _saved(image.quantize(32, Image.Quantize.FASTOCTREE), "PNG", optimize=True)
    for quality in _QUALITIES if len(data) > MAX_NBYTES and image.mode != "RGBA" else ():
        data, kind = _saved(image, "JPEG", quality=quality, optimize=True), "jpeg"
        if len(data) <= MAX_NBYTES:
            break
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _saved(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()
