"""The kinds of image file that Pillow decodes: BMP, GIF, TIFF and WebP."""

from __future__ import annotations

import io
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    ImagePalette,
    TiffImagePlugin,
    WebPImagePlugin,
    features,
)

from lmdbloader.errors import ImageError
from lmdbloader.images.header import ORIENTATION_TAG, ImageHeader, Pixels, find_orientation, tiff_tags, xmp_orientation

GIF_SIGNATURES = (b"GIF87a", b"GIF89a")

_GIF_EXTENSION, _GIF_IMAGE, _GIF_TRAILER = 0x21, 0x2C, 0x3B
_GRAY_MODES = frozenset({"1", "L", "I;16", "I;16B", "I;16L", "I;16N", "LA", "La"})
_RGB_MODES = frozenset({"RGB", "RGBX", "RGBA", "RGBa", "P", "PA", "CMYK", "YCbCr"})
_ALPHA_MODES = frozenset({"LA", "La", "RGBA", "RGBa", "PA"})
_BITS_PER_SAMPLE_TAG, _PHOTOMETRIC_TAG = 258, 262
_COLOR_MAP_TAG, _TILE_WIDTH_TAG, _TILE_HEIGHT_TAG, _INK_SET_TAG = 320, 322, 323, 332
_WHITE_IS_ZERO, _INKS, _YCBCR = 0, 5, 6
_NOT_CMYK = 2
# tifffile makes pages of arrays (H, W, C) too, if nobody asks for another thing.
_OF_PAGES = (
    'If they are channels: tifffile.imwrite(new, tifffile.imread(path), photometric="minisblack", planarconfig='
    '"contig") of an array (H, W, C), or "separate" of (C, H, W); if they are the sizes of a pyramid: '
    "tifffile.imread(path, key=0)"
)
# BMP: the offset of the pixels, the length of the second header, the bits of a pixel; OS/2's short header, and there.
_BMP_OFFSET, _BMP_HEADER_NBYTES, _BMP_BITS, _BMP_SHORT_BITS = slice(10, 14), slice(14, 18), slice(28, 30), slice(24, 26)
_BMP_SHORT_HEADER_NBYTES = 12
_BITS_OF_BMP = {"1": 1, "L": 8}

# By process: a forked child must not wait for a thread of its parent.
_limit_locks: dict[int, threading.Lock] = {}


def read_bmp(data: memoryview, name: str) -> ImageHeader:
    """Read a BMP file's header."""
    return _read_header(BmpImagePlugin.BmpImageFile, "BMP", data, name)


def read_gif(data: memoryview, name: str) -> ImageHeader:
    """Read a GIF file's blocks and header; more than one frame is refused."""
    _check_single_frame(data, name)
    return _read_header(GifImagePlugin.GifImageFile, "GIF", data, name)


def read_tiff(data: memoryview, name: str) -> ImageHeader:
    """Read the first directory of a TIFF or BigTIFF file; more than one page is refused."""
    if bytes(data[:4]) == b"MM\0+":
        raise ImageError(name, "a big-endian BigTIFF file, which Pillow does not read; save it as TIFF")
    return _read_header(_TiffFile, "TIFF", data, name)


def read_webp(data: memoryview, name: str) -> ImageHeader:
    """Read a WebP file's header; more than one frame is refused."""
    if not features.check("webp"):
        raise ImageError(name, "a WebP file, and the installed Pillow was built without WebP")
    if len(data) < 8 + int.from_bytes(data[4:8], "little"):
        raise ImageError(name, f"the WebP file is cut short: it ends at byte {len(data)}")
    return _read_header(WebPImagePlugin.WebPImageFile, "WebP", data, name)


def _bmp_bits(data: memoryview) -> int:
    """Return the bits of a pixel of a BMP file."""
    is_short = int.from_bytes(data[_BMP_HEADER_NBYTES], "little") == _BMP_SHORT_HEADER_NBYTES
    return int.from_bytes(data[_BMP_SHORT_BITS if is_short else _BMP_BITS], "little")


class _TiffFile(TiffImagePlugin.TiffImageFile):
    """A TIFF file whose pixels are loaded as they are stored: Pillow's rotation depends on its version."""

    def __init__(self, file: io.BytesIO) -> None:
        self.orientation = _take_orientation(file)
        super().__init__(file)
        if self.orientation is None:
            xmp = self.info.get("xmp", b"")
            self.orientation = xmp_orientation(xmp.encode() if isinstance(xmp, str) else bytes(xmp))
        # Some writers give colors of 8 bits instead of 16. libtiff knows them by that too.
        if self.mode in ("P", "PA") and max(colors := self.tag_v2[_COLOR_MAP_TAG]) < 256:
            self.palette = ImagePalette.raw("RGB;L", bytes(colors))

    def load_end(self) -> None:
        """Skip Pillow's rotation, which other programs' metadata may ask for."""


def _take_orientation(file: io.BytesIO) -> int | None:
    """Return a TIFF file's orientation, None if it has no such tag, and set it to 1 in the file.

    For some kinds of file libtiff applies it too, and whether Pillow knows that depends on its version.
    """
    with file.getbuffer() as content:
        found = list(tiff_tags(content, ORIENTATION_TAG))
        for position, form, value in found:
            if value is not None:
                struct.pack_into(form, content, position, 1)
    return (found[0][2] or 1) if found else None


def _read_header(opener: Callable[..., ImageFile.ImageFile], kind: str, data: memoryview, name: str) -> ImageHeader:
    try:
        # Not Image.open: it would try every format that Pillow knows.
        with _no_pixel_limit():
            image = opener(io.BytesIO(data))
            num_frames = getattr(image, "n_frames", 1)
        mode, (width, height) = image.mode, image.size
        transparency = image.info.get("transparency")
        orientation = _orientation(image)
        reason = _unusable(image, kind, num_frames, data)
    except Exception as error:  # hostile bytes make Pillow's parsers raise nearly anything
        raise ImageError(name, f"the {kind} header is damaged or of an unsupported kind: {_describe(error)}") from error
    if reason:
        raise ImageError(name, reason)
    return ImageHeader(
        height=height,
        width=width,
        channels=1 if mode in _GRAY_MODES else 3,
        dtype=np.dtype(np.uint16) if mode.startswith("I;16") else np.dtype(np.uint8),
        alpha=mode in _ALPHA_MODES or transparency is not None,
        orientation=orientation,
        decode=lambda: _decode(image, kind, name),
        numbers=(lambda: _decode(image, kind, name, mode)) if _has_numbers(image, kind) else None,
        palette=lambda: _palette(image, kind, name),
    )


@contextmanager
def _no_pixel_limit() -> Iterator[None]:
    """Lift Pillow's own limit on an image's size, one per process: `DecodePolicy.max_pixels` applies instead."""
    with _limit_locks.setdefault(os.getpid(), threading.Lock()):
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _orientation(image: ImageFile.ImageFile) -> int:
    if isinstance(image, _TiffFile):
        return image.orientation if image.orientation and 1 <= image.orientation <= 8 else 1
    exif, xmp = (block if isinstance(block := image.info.get(key), bytes) else b"" for key in ("exif", "xmp"))
    return find_orientation(exif, xmp)


def _tile_parts(tile: Any) -> tuple[str, Any, int, Any]:
    """Return codec, extents, offset and arguments of one of Pillow's tiles, which have names only since 11.0."""
    codec, extents, offset, args = tile
    return codec, extents, offset, args


def several_frames(kind: str, count: int) -> str:
    """Return why a file of several frames cannot be used."""
    how = f". {_OF_PAGES}" if kind == "TIFF" else ""
    return f"the {kind} file holds {count} frames or pages; only files with a single one can be used{how}"


def is_large_tile(num_pixels: int, width: int, height: int) -> bool:
    """Return whether a tile is too large for an image: it may be larger than a small one, and is allocated whole."""
    return num_pixels > max(2**22, 4 * width * height)


def _unusable(image: ImageFile.ImageFile, kind: str, num_frames: int, data: memoryview) -> str | None:
    """Return why no policy accepts an opened image, None if one does."""
    if num_frames != 1:
        return several_frames(kind, num_frames)
    if image.mode not in _GRAY_MODES | _RGB_MODES:
        return (
            f"pixels of Pillow's mode {image.mode} are not supported; "
            "save it with 8 or 16 bits per sample as gray, RGB, palette or CMYK"
        )
    codec, _, offset, args = _tile_parts(image.tile[0]) if image.tile else ("", None, 0, None)
    if kind == "BMP":
        return _unusable_bmp(image, codec, offset, args, data)
    if isinstance(image, _TiffFile):
        return _unusable_tiff(image, codec)
    return None


def _unusable_bmp(image: ImageFile.ImageFile, codec: str, offset: int, args: Any, data: memoryview) -> str | None:
    if image.mode in _BITS_OF_BMP and _BITS_OF_BMP[image.mode] != _bmp_bits(data):
        # Pillow goes by the palette: it takes black and white for bits, and grays for values.
        return "a BMP file with a palette of grays, or of black and white, and other bits than these; save it as PNG"
    starts, header_nbytes = (int.from_bytes(data[part], "little") for part in (_BMP_OFFSET, _BMP_HEADER_NBYTES))
    if header_nbytes == _BMP_SHORT_HEADER_NBYTES and starts == 14 + header_nbytes and _bmp_bits(data) <= 8:
        # Pillow's versions disagree about the length of that palette.
        return "the BMP file's pixels begin where its palette does; save it again with another program"
    if codec == "raw" and isinstance(args, tuple):
        # Pillow does not notice that the padding of the last row is missing.
        needed = offset + int(args[1]) * image.height
        if len(data) < needed:
            return f"the BMP file is cut short: {len(data)} bytes of {needed}"
    if codec == "bmp_rle":  # which may jump over pixels, and Pillow's versions disagree about the target
        return "a run-length encoded BMP file; save it without compression"
    return None


def _unusable_tiff(image: _TiffFile, codec: str) -> str | None:
    tags = image.tag_v2
    bits, photometric = tags.get(_BITS_PER_SAMPLE_TAG, (1,)), tags.get(_PHOTOMETRIC_TAG)
    if photometric is None:  # readers assume the one or the other
        return "a TIFF file that does not say whether zero is black or white (PhotometricInterpretation); save it again"
    if photometric == _INKS and tags.get(_INK_SET_TAG) == _NOT_CMYK:
        return "a TIFF file of inks other than CMYK; save it as RGB"
    if max(bits) == 16 and photometric == _WHITE_IS_ZERO:
        return "a 16-bit TIFF file in which zero is white; save it with zero as black, or as 16-bit PNG"
    if photometric == _YCBCR and codec == "raw":  # Pillow before 13 reads it as RGB
        return "an uncompressed TIFF file of YCbCr; save it as RGB"
    width, height = tags.get(_TILE_WIDTH_TAG, 0), tags.get(_TILE_HEIGHT_TAG, 0)
    if is_large_tile(width * height, image.width, image.height):
        return f"a TIFF file of {image.width}x{image.height} pixels in tiles of {width}x{height}; save it without tiles"
    if codec == "libtiff" and not features.check("libtiff"):
        return "a compressed TIFF file, and the installed Pillow was built without libtiff"
    return None


def _has_numbers(image: ImageFile.ImageFile, kind: str) -> bool:
    """Return whether Pillow gives an opened image's own numbers: gray of fewer than 8 bits would be scaled."""
    if isinstance(image, _TiffFile) and image.mode == "L":  # where zero is white, readers turn the numbers round
        bits = max(image.tag_v2.get(_BITS_PER_SAMPLE_TAG, (1,)))
        return bool(bits == 8 and image.tag_v2.get(_PHOTOMETRIC_TAG) != _WHITE_IS_ZERO)
    return kind in ("BMP", "GIF", "TIFF") and (image.mode in ("L", "P", "1") or image.mode.startswith("I;16"))


def _decode(image: ImageFile.ImageFile, kind: str, name: str, target: str = "") -> Pixels:
    """Return the pixels as (height, width, samples); alpha, if any, is the last sample.

    `target` is Pillow's mode of the result; by default colors, or gray of 8 or 16 bits.
    """
    try:
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            with _no_pixel_limit():
                image.load()
        else:
            image.load()
        target = target or _target_mode(image)
        pixels = np.array(image if image.mode == target else image.convert(target))
    except Exception as error:  # hostile bytes make Pillow's decoders raise nearly anything
        raise _damaged(error, kind, name) from error
    if pixels.dtype.byteorder == ">":
        pixels = pixels.astype(np.uint16)
    if pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _palette(image: ImageFile.ImageFile, kind: str, name: str) -> bytes:
    """Return `ImageHeader.palette()` of an opened image, whose pixels Pillow decodes for it."""
    try:
        return bytes(image.getpalette("RGB") or ()) if image.mode == "P" else b""
    except Exception as error:
        raise _damaged(error, kind, name) from error


def _damaged(error: Exception, kind: str, name: str) -> ImageError:
    what = f"the {kind} data is damaged, or of a kind that Pillow does not decode"
    return ImageError(name, f"{what}: {_describe(error)}")


def _target_mode(image: Image.Image) -> str:
    """Return the mode whose array has the shape and dtype that the header promised."""
    mode, transparent = image.mode, "transparency" in image.info
    if mode.startswith("I;16"):
        return mode
    if mode in _GRAY_MODES:
        return "LA" if transparent or mode in _ALPHA_MODES else "L"
    return "RGBA" if transparent or mode in _ALPHA_MODES else "RGB"


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _check_single_frame(data: memoryview, name: str) -> None:
    """Check that a GIF file is complete and holds exactly one frame; nothing is decoded.

    Raises:
        ImageError: It is cut short, damaged, or holds no frame or several.
    """
    num_frames = 0
    try:
        position = 13 + _color_table_nbytes(data[10])
        while data[position] != _GIF_TRAILER:
            if data[position] == _GIF_EXTENSION:
                position += 2
            elif data[position] == _GIF_IMAGE:
                num_frames += 1
                position += 10 + _color_table_nbytes(data[position + 9]) + 1
            else:
                raise ImageError(name, f"the GIF file is damaged: unknown block at byte {position}")
            while data[position]:
                position += 1 + data[position]
            position += 1
    except IndexError:
        raise ImageError(name, f"the GIF file is cut short: it ends at byte {len(data)} inside a block") from None
    if num_frames != 1:
        raise ImageError(name, f"the GIF file holds {num_frames} frames; only files with a single one can be used")


def _color_table_nbytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0
