"""JPEG files: their marker segments, and their pixels by libjpeg, once it is clear that none is damaged."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass

import numpy as np
import simplejpeg
from PIL import Image, JpegImagePlugin

from lmdbloader.errors import ImageError
from lmdbloader.images.header import ImageHeader, Pixels, find_orientation, tiff_tags, tiff_values
from lmdbloader.kernels import entries
from lmdbloader.kernels.codec_numbers import SEEK_ENTRY_NBYTES

SIGNATURE = b"\xff\xd8\xff"

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_HUFFMAN, _ARITHMETIC = (0xC0, 0xC1, 0xC2), (0xC9, 0xCA)
_START_OF_SCAN, _END_OF_IMAGE, _APP1, _APP2 = 0xDA, 0xD9, 0xE1, 0xE2
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_EXIF, _XMP, _MPF = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0", b"MPF\0"
_NUMBER_OF_IMAGES_TAG, _IMAGES_TAG, _IMAGE_NBYTES, _OFFSET_IN_IMAGE = 0xB001, 0xB002, 16, 8
_COLORSPACES = {1: "GRAY", 3: "RGB", 4: "CMYK"}
_SOUND = (0, 3)  # FINE and CODES_ONLY of kernels/jpeg/head.py


@dataclass(frozen=True, slots=True)
class _Frame:
    """The facts in a JPEG file's marker segments up to the first scan."""

    height: int
    width: int
    num_components: int
    orientation: int
    num_others: int


def read_header(data: memoryview, name: str) -> ImageHeader:
    """Read a JPEG file's marker segments up to its first scan.

    Raises:
        ImageError: It is cut short, or of a kind that is not supported.
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
        num_others=frame.num_others,
    )


def _read_frame(data: memoryview, name: str) -> _Frame:
    size: tuple[int, int, int] | None = None
    exif: bytes | None = None
    xmp, num_others, position = b"", 0, 2
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
            _check_process(marker, name)
            size = _read_frame_size(body, name)
        elif marker == _APP1 and body.startswith(_EXIF) and exif is None:
            exif = body
        elif marker == _APP1 and body.startswith(_XMP):
            xmp = body
        elif marker == _APP2 and body.startswith(_MPF):
            num_others = _count_others(data[position + 2 + len(_MPF) :])
        position = stop
    if size is None:
        raise ImageError(name, "the JPEG file is damaged: no frame header before its first scan")
    return _Frame(*size, orientation=find_orientation(exif or b"", xmp), num_others=num_others)


def _check_process(marker: int, name: str) -> None:
    if marker not in _HUFFMAN:
        process = "arithmetic codes" if marker in _ARITHMETIC else "a lossless or hierarchical process"
        raise ImageError(name, f"a JPEG with {process} (SOF{marker - 0xC0}), which is not supported; save it again")


def _count_others(block: memoryview) -> int:
    """Return how many images follow the first one in a file, given what follows "MPF" in it.

    A program that removed them may have left their list in place.
    """
    found = next(tiff_tags(block, _IMAGES_TAG), None)
    if found is None:
        return 0
    (start,) = struct.unpack_from(found[1], block, found[0])
    count = 0
    for entry in range(1, (tiff_values(block, _NUMBER_OF_IMAGES_TAG) or (0,))[0]):
        at = start + _IMAGE_NBYTES * entry + _OFFSET_IN_IMAGE
        if at + 4 > len(block):
            break
        (offset,) = struct.unpack_from(found[1][0] + "I", block, at)
        count += offset > 0 and bytes(block[offset : offset + len(SIGNATURE)]) == SIGNATURE
    return count


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
        raise ImageError(name, f"a JPEG of {num_components} components; expected 1 (gray), 3 (color) or 4 (CMYK)")
    if not height or not width:
        raise ImageError(name, f"the JPEG header gives {width}x{height} pixels")
    return height, width, num_components


def _decode(data: memoryview, frame: _Frame, name: str, at_least: tuple[int, int] | None = None) -> Pixels:
    # Of libjpeg's reduced sizes, those above a half take no less time than the full one.
    smaller = {} if at_least is None else {"min_height": at_least[0], "min_width": at_least[1], "min_factor": 2}
    colorspace = _COLORSPACES[frame.num_components]
    try:
        # Strictly: libjpeg warns of damage, but also of oddities of cameras that lose nothing.
        pixels: Pixels = simplejpeg.decode_jpeg(data, colorspace=colorspace, strict=True, **smaller)
    except Exception as error:  # libjpeg's complaints about hostile bytes arrive as several types
        if frame.num_components == 4 or not _is_sound(data):
            raise ImageError(name, _describe(error)) from error
        return _decode_odd(data, name)
    if frame.num_components == 4:
        # Every writer of CMYK JPEGs follows Adobe's convention: ink is stored inverted.
        inks = Image.frombytes("CMYK", (pixels.shape[1], pixels.shape[0]), (~pixels).tobytes())
        pixels = np.array(inks.convert("RGB"))
    return pixels


def _describe(error: Exception) -> str:
    if "subsampling" in str(error):
        return "the JPEG has an unusual chroma sampling, and several scans or damaged data; save it again with 4:2:0"
    return f"the JPEG data is damaged: {error}"


def _is_sound(data: memoryview) -> bool:
    """Return whether all codes of a sequential JPEG of one scan make sense, and its restart markers are in order."""
    source, work = np.frombuffer(data, np.uint8), np.empty(entries.jpeg_room(len(data), 0, 0), np.uint8)
    expected, step = entries.count_entries(source, work.ctypes.data)
    status, *_ = entries.scan(source, step, work.ctypes.data, np.empty(expected * SEEK_ENTRY_NBYTES, np.uint8), 0)
    return status in _SOUND


def _decode_odd(data: memoryview, name: str) -> Pixels:
    """Return the pixels of a sound file that simplejpeg refuses."""
    try:
        pixels: Pixels = np.array(JpegImagePlugin.JpegImageFile(io.BytesIO(data)))
    except Exception as error:
        raise ImageError(name, f"a JPEG of a kind that libjpeg does not decode: {error}") from error
    return pixels if pixels.ndim == 3 else pixels[:, :, None]
