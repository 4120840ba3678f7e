"""Binary PGM and PPM files, and plain ones of 16 bits, which Pillow reads as 32-bit or clips to 8 bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import ImageError
from lmdbloader.images import pillow
from lmdbloader.images.header import ImageHeader, Pixels, Sample

SIGNATURES = (b"P5", b"P6")
PLAIN_SIGNATURES = (b"P2", b"P3")

_GAP = rb"(?:\s|#[^\r\n]*[\r\n])"
_HEADER = re.compile(rb"P([2356])" + 3 * (_GAP + rb"+(\d{1,10})") + rb"(?:#[^\r\n]*)?\s")
_COMMENT = re.compile(rb"#[^\r\n]*")
_NUMBERS = re.compile(rb"[\d\s]*")
_BLANK = re.compile(rb"\s")
_MOST = 65535
# A plain file's text is parsed in pieces, as it takes several times the memory of its numbers.
_PIECE_NBYTES = 2**20


def read_header(data: memoryview, name: str) -> ImageHeader:
    """Read a binary PGM or PPM file's header.

    Raises:
        ImageError: It is damaged, cut short, holds several images, or has a maximum below 255.
    """
    kind, width, height, maximum, start = _read_numbers(data, name)
    if maximum < 255:
        raise ImageError(name, f"a PGM or PPM of maximum {maximum}; expected 255 (8 bits) or more (16 bits)")
    channels = 1 if kind == 5 else 3
    dtype: np.dtype[Sample] = np.dtype(np.uint16 if maximum > 255 else np.uint8)
    stop = start + height * width * channels * dtype.itemsize
    if stop > len(data):
        raise ImageError(name, f"the PGM or PPM file is cut short: {len(data)} bytes of {stop}")
    _refuse_several(bytes(data[stop : stop + 1]), name)

    def decode() -> Pixels:
        samples = np.frombuffer(data[start:stop], dtype.newbyteorder(">")).astype(dtype)
        _refuse_above(samples, maximum, name)
        return samples.reshape(height, width, channels)

    return _header(height, width, channels, dtype, decode)


def read_plain_header(data: memoryview, name: str) -> ImageHeader:
    """Read the header of a PGM or PPM file of decimal numbers; Pillow reads those of at most 8 bits.

    Raises:
        ImageError: It is damaged or cut short.
    """
    match = _HEADER.match(data)
    if match is None or int(match[4]) <= 255:
        return pillow.read_plain_pnm(data, name)
    kind, width, height, maximum, start = _read_numbers(data, name)
    channels = 1 if kind == 2 else 3
    count = height * width * channels
    if start + 2 * count - 1 > len(data):  # a number takes at least a digit and a blank
        raise ImageError(name, f"the PGM or PPM file is cut short: {len(data)} bytes for {count} numbers")

    dtype: np.dtype[Sample] = np.dtype(np.uint16)

    def decode() -> Pixels:
        return _decode_plain(bytes(data[start:]), count, maximum, name).reshape(height, width, channels)

    return _header(height, width, channels, dtype, decode)


def _read_numbers(data: memoryview, name: str) -> tuple[int, int, int, int, int]:
    """Return the kind, the width, the height, the maximum, and the offset of the pixels."""
    match = _HEADER.match(data)
    if match is None:
        raise ImageError(name, "the PGM or PPM header is damaged or cut short")
    kind, width, height, maximum = (int(number) for number in match.groups())
    if not width or not height:
        raise ImageError(name, f"the PGM or PPM header gives {width}x{height} pixels")
    if not 0 < maximum <= _MOST:
        raise ImageError(name, f"a PGM or PPM of maximum {maximum}; expected at most {_MOST}")
    return kind, width, height, maximum, match.end()


def _header(
    height: int, width: int, channels: int, dtype: np.dtype[Sample], decode: Callable[[], Pixels]
) -> ImageHeader:
    return ImageHeader(
        height=height, width=width, channels=channels, dtype=dtype, alpha=False, orientation=1, decode=decode
    )


def _refuse_several(rest: bytes, name: str) -> None:
    if rest == b"P":
        raise ImageError(name, "the PGM or PPM file holds several images; only files with a single one can be used")


def _refuse_above(samples: npt.NDArray[Any], maximum: int, name: str) -> None:
    if maximum < _MOST and samples.size and (most := int(samples.max())) > maximum:
        raise ImageError(name, f"the PGM or PPM data is damaged: a sample of {most}, and the maximum is {maximum}")


def _decode_plain(text: bytes, count: int, maximum: int, name: str) -> npt.NDArray[np.uint16]:
    """Return the numbers (count,) after a plain file's header, which blanks and comments separate."""
    text = _COMMENT.sub(b" ", text)
    found = _NUMBERS.match(text)
    stop = found.end() if found else 0
    samples = np.empty(count, np.uint16)
    done = at = 0
    while done < count and at < stop:
        blank = _BLANK.search(text, min(at + _PIECE_NBYTES, stop), stop)
        end = blank.start() if blank else stop
        if piece := text[at:end].strip():
            numbers = np.fromstring(piece, np.int64, sep=" ")[: count - done]
            _refuse_above(numbers, maximum, name)
            samples[done : done + len(numbers)] = numbers
            done += len(numbers)
        at = end
    if done < count and stop < len(text):
        raise ImageError(name, f"the PGM or PPM data is damaged: {text[stop : stop + 8]!r} is not a number")
    if done < count:
        raise ImageError(name, f"the PGM or PPM file is cut short: {done} numbers of {count}")
    _refuse_several(text[stop : stop + 1], name)
    return samples
