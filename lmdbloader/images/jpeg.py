"""JPEG files: their marker segments, and their pixels by simplejpeg in strict mode, which refuses damaged data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import simplejpeg
from PIL import Image

from lmdbloader.errors import ImageError
from lmdbloader.images.header import ImageHeader, Pixels, exif_orientation, tiff_integer

SIGNATURE = b"\xff\xd8\xff"

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN, _END_OF_IMAGE, _APP1, _APP2 = 0xDA, 0xD9, 0xE1, 0xE2
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_NUMBER_OF_IMAGES_TAG = 0xB001
_COLORSPACES = {1: "GRAY", 3: "RGB", 4: "CMYK"}


@dataclass(frozen=True, slots=True)
class _Frame:
    """The facts in a JPEG file's marker segments up to the first scan."""

    height: int
    width: int
    num_components: int
    orientation: int


def read_header(data: memoryview, name: str) -> ImageHeader:
    """Read a JPEG file's marker segments up to its first scan.

    Raises:
        ImageError: It is cut short, holds several images, or is of a kind that is not supported.
    """
    frame = _read_frame(data, name)
    return ImageHeader(
        height=frame.height,
        width=frame.width,
        channels=1 if frame.num_components == 1 else 3,
        dtype=np.dtype(np.uint8),
        alpha=False,
        orientation=frame.orientation,
        decode=lambda: _decode(data, frame, name),
        decode_smaller=lambda height, width: _decode(data, frame, name, (height, width)),
    )


def _read_frame(data: memoryview, name: str) -> _Frame:
    size: tuple[int, int, int] | None = None
    orientation, exif_seen, num_images, gain_map = 1, False, 1, False
    position = 2
    while True:
        marker, position = _next_marker(data, position, name)
        if marker in _STANDALONE:
            continue
        stop = position + int.from_bytes(data[position : position + 2], "big")
        if marker == _END_OF_IMAGE or stop < position + 2 or stop > len(data):
            raise ImageError(name, f"the JPEG file is cut short or damaged at byte {position}, before its first scan")
        if marker == _START_OF_SCAN:
            break
        body = bytes(data[position + 2 : stop])
        if marker in _START_OF_FRAME:
            size = _read_frame_size(body, name)
        elif marker == _APP1 and body.startswith(b"Exif\0\0") and not exif_seen:
            orientation, exif_seen = exif_orientation(body), True
        elif marker == _APP1 and b' hdrgm:Version="' in body:
            gain_map = True
        elif marker == _APP2 and body.startswith(b"MPF\0"):
            num_images = tiff_integer(body[4:], _NUMBER_OF_IMAGES_TAG) or 1
        position = stop
    if size is None:
        raise ImageError(name, "the JPEG file is damaged: no frame header before its first scan")
    # The second image of an Ultra HDR photograph is its gain map, so the file still shows a single picture.
    if num_images > 1 and not gain_map:
        raise ImageError(name, f"the file (MPO) holds {num_images} images; only files with a single one can be used")
    return _Frame(*size, orientation=orientation)


def _next_marker(data: memoryview, position: int, name: str) -> tuple[int, int]:
    """Return the marker at a position, past its fill bytes, and the position after it."""
    start = position
    while position < len(data) and data[position] == 0xFF:
        position += 1
    if position >= len(data):
        raise ImageError(name, f"the JPEG file is cut short: it ends at byte {len(data)}, before its first scan")
    if position == start:
        raise ImageError(name, f"the JPEG file is damaged: expected a marker at byte {position}")
    return data[position], position + 1


def _read_frame_size(body: bytes, name: str) -> tuple[int, int, int]:
    if len(body) < 6:
        raise ImageError(name, "the JPEG file is damaged: its frame header is too short")
    precision, num_components = body[0], body[5]
    height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
    if precision != 8:
        raise ImageError(name, f"a JPEG with {precision} bits per sample; only 8 bits are supported")
    if num_components not in _COLORSPACES:
        raise ImageError(name, f"a JPEG of {num_components} components; expected 1 (grey), 3 (colour) or 4 (CMYK)")
    if not height or not width:
        raise ImageError(name, f"the JPEG header gives {width}x{height} pixels")
    return height, width, num_components


def _decode(data: memoryview, frame: _Frame, name: str, at_least: tuple[int, int] | None = None) -> Pixels:
    # Of libjpeg's reduced sizes, those above a half take no less time than the full one.
    smaller = {} if at_least is None else {"min_height": at_least[0], "min_width": at_least[1], "min_factor": 2}
    colorspace = _COLORSPACES[frame.num_components]
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, colorspace=colorspace, strict=True, **smaller)
    except Exception as error:  # libjpeg's complaints about hostile bytes arrive as several types
        raise ImageError(name, f"the JPEG data is damaged: {error}") from error
    if frame.num_components == 4:
        # Every writer of CMYK JPEGs follows Adobe's convention: ink is stored inverted.
        inks = Image.frombytes("CMYK", (pixels.shape[1], pixels.shape[0]), (~pixels).tobytes())
        pixels = np.array(inks.convert("RGB"))
    return pixels
