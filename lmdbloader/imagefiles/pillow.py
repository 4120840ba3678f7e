"""The kinds of image file that Pillow decodes: BMP, GIF, TIFF, WebP and plain PNM."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
    features,
)

from lmdbloader.errors import ImageError
from lmdbloader.imagefiles.gif import check_single_frame
from lmdbloader.imagefiles.header import ImageHeader, Pixels, exif_orientation

_GREY_MODES = frozenset({"1", "L", "I;16", "I;16B", "I;16L", "I;16N", "LA", "La"})
_RGB_MODES = frozenset({"RGB", "RGBX", "RGBA", "RGBa", "P", "PA", "CMYK", "YCbCr"})
_ALPHA_MODES = frozenset({"LA", "La", "RGBA", "RGBa", "PA"})
_BITS_PER_SAMPLE_TAG, _PHOTOMETRIC_TAG = 258, 262

# By process: a forked child must not wait for a thread of its parent's.
_limit_locks: dict[int, threading.Lock] = {}


def read_bmp(data: memoryview, name: str) -> ImageHeader:
    """Read a BMP file's header."""
    return _read_header(BmpImagePlugin.BmpImageFile, "BMP", data, name)


def read_gif(data: memoryview, name: str) -> ImageHeader:
    """Read a GIF file's blocks and header; more than one frame is refused."""
    check_single_frame(data, name)
    return _read_header(GifImagePlugin.GifImageFile, "GIF", data, name)


def read_tiff(data: memoryview, name: str) -> ImageHeader:
    """Read a TIFF file's first directory; more than one page is refused."""
    return _read_header(TiffImagePlugin.TiffImageFile, "TIFF", data, name)


def read_webp(data: memoryview, name: str) -> ImageHeader:
    """Read a WebP file's header; more than one frame is refused."""
    if not features.check("webp"):
        raise ImageError(name, "a WebP file, and the installed Pillow was built without WebP")
    if len(data) < 8 + int.from_bytes(data[4:8], "little"):
        raise ImageError(name, f"the WebP file is cut short: it ends at byte {len(data)}")
    return _read_header(WebPImagePlugin.WebPImageFile, "WebP", data, name)


def read_plain_pnm(data: memoryview, name: str) -> ImageHeader:
    """Read the header of a PBM file, or of a PGM or PPM file of decimal numbers."""
    return _read_header(PpmImagePlugin.PpmImageFile, "PNM", data, name)


def _read_header(opener: Callable[..., ImageFile.ImageFile], kind: str, data: memoryview, name: str) -> ImageHeader:
    try:
        # Not Image.open: it would try every format that Pillow knows.
        with _no_pixel_limit():
            image = opener(io.BytesIO(data))
            num_frames = getattr(image, "n_frames", 1)
        mode, (width, height) = image.mode, image.size
        transparency = image.info.get("transparency")
        orientation = _orientation(image, kind)
        reason = _unusable(image, kind, num_frames, len(data))
    except Exception as error:  # hostile bytes make Pillow's parsers raise nearly anything
        raise ImageError(name, f"the {kind} header is damaged or of an unsupported kind: {_describe(error)}") from error
    if reason:
        raise ImageError(name, reason)
    return ImageHeader(
        height=height,
        width=width,
        channels=1 if mode in _GREY_MODES else 3,
        dtype=np.dtype(np.uint16) if mode.startswith("I;16") else np.dtype(np.uint8),
        alpha=mode in _ALPHA_MODES or transparency is not None,
        orientation=orientation,
        decode=lambda: _decode(image, kind, name),
    )


@contextmanager
def _no_pixel_limit() -> Iterator[None]:
    """Lift Pillow's own limit on an image's size, which is one per process: `DecodePolicy.max_pixels` rules here."""
    with _limit_locks.setdefault(os.getpid(), threading.Lock()):
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _orientation(image: ImageFile.ImageFile, kind: str) -> int:
    """Return the EXIF orientation that is left to apply; Pillow has applied a TIFF file's own."""
    exif = image.info.get("exif")
    return exif_orientation(exif) if kind != "TIFF" and isinstance(exif, bytes) else 1


def _unusable(image: ImageFile.ImageFile, kind: str, num_frames: int, num_bytes: int) -> str | None:
    """Return why an opened image cannot be used whatever the policy, None if it can."""
    if num_frames != 1:
        return f"the {kind} file holds {num_frames} frames or pages; only files with a single one can be used"
    if image.mode not in _GREY_MODES | _RGB_MODES:
        return (
            f"pixels of Pillow's mode {image.mode} are not supported; "
            "save it with 8 or 16 bits a sample as grey, RGB, palette or CMYK"
        )
    tile = image.tile[0] if image.tile else None
    if isinstance(image, PpmImagePlugin.PpmImageFile) and tile and isinstance(tile.args, tuple):
        maximum = tile.args[-1]
        if isinstance(maximum, int) and maximum > 255:  # `pnm` reads these, but for a comment within the number
            return f"a PNM file of maximum {maximum} with a comment within it; write its header without"
    if kind == "BMP" and tile and tile.codec_name == "raw" and isinstance(tile.args, tuple):
        # Pillow does not miss the padding at the end of the last row.
        needed = tile.offset + int(tile.args[1]) * image.height
        if num_bytes < needed:
            return f"the BMP file is cut short: {num_bytes} bytes of {needed}"
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        bits = image.tag_v2.get(_BITS_PER_SAMPLE_TAG, (1,))
        if max(bits) > 8 and (max(bits) != 16 or not image.mode.startswith("I;16")):
            return f"a TIFF file of {max(bits)}-bit {image.mode} would be clipped to 8 bits; save it as 16-bit PNG"
        if max(bits) == 16 and image.tag_v2.get(_PHOTOMETRIC_TAG) == 0:
            return "a 16-bit TIFF file in which zero is white; save it with zero as black, or as 16-bit PNG"
    return None


def _decode(image: ImageFile.ImageFile, kind: str, name: str) -> Pixels:
    """Return the pixels as (height, width, samples), a last sample of alpha where there is one."""
    try:
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            with _no_pixel_limit():
                image.load()
        else:
            image.load()
        target = _target_mode(image)
        pixels = np.array(image if image.mode == target else image.convert(target))
    except Exception as error:  # hostile bytes make Pillow's decoders raise nearly anything
        raise ImageError(name, f"the {kind} data is damaged: {_describe(error)}") from error
    if pixels.dtype.byteorder == ">":
        pixels = pixels.astype(np.uint16)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _target_mode(image: Image.Image) -> str:
    """Return the mode whose array is what the header promised."""
    mode, transparent = image.mode, "transparency" in image.info
    if mode.startswith("I;16"):
        return mode
    if mode in _GREY_MODES:
        return "LA" if transparent or mode in _ALPHA_MODES else "L"
    return "RGBA" if transparent or mode in _ALPHA_MODES else "RGB"


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
