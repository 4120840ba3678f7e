"""PBM, PGM and PPM files, binary and plain: Pillow reads grey of 16 bits as 32-bit, and clips colours to 8."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import ImageError
from lmdbloader.images.header import ImageHeader, Pixels, Sample

SIGNATURES = (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")

_NUMBER = rb"(?:\s|#[^\r\n]*[\r\n])+(\d{1,10})"
_END = rb"(?:#[^\r\n]*)?\s"
# A file of bits has no maximum.
_BITS_HEADER = re.compile(rb"P([14])" + 2 * _NUMBER + _END)
_HEADER = re.compile(rb"P([2356])" + 3 * _NUMBER + _END)
_COMMENT = re.compile(rb"#[^\r\n]*")
_NUMBERS = re.compile(rb"[\d\s]*")
_DIGITS = re.compile(rb"[01\s]*")
_BLANK = re.compile(rb"\s")
_PLAIN_BITS, _PLAIN_GREY, _PLAIN_COLORS, _BITS, _GREY, _COLORS = range(1, 7)
_MOST = 65535
# A plain file's text is parsed in pieces, as it takes several times the memory of its numbers.
_PIECE_NBYTES = 2**20


def read_header(data: memoryview, name: str) -> ImageHeader:
    """Read the header of a PBM, PGM or PPM file.

    Its pixels have 8 bits, to which they are scaled, or 16 if the maximum is above 255, with their own values.

    Raises:
        ImageError: It is damaged, cut short or holds several images.
    """
    kind, width, height, maximum, start = _read_numbers(data, name)
    channels = 3 if kind in (_PLAIN_COLORS, _COLORS) else 1
    dtype: np.dtype[Sample] = np.dtype(np.uint16 if maximum > 255 else np.uint8)
    count = height * width * channels
    if kind in (_PLAIN_GREY, _PLAIN_COLORS):
        stop = start + 2 * count - 1  # a number takes at least a digit and a blank
    elif kind == _BITS:
        stop = start + height * ((width + 7) // 8)
    else:
        stop = start + count * dtype.itemsize
    if stop > len(data):
        raise ImageError(name, f"the PNM file is cut short: {len(data)} bytes; its pixels take {stop} or more")
    if kind >= _BITS:
        _refuse_several(bytes(data[stop : stop + 1]), name)

    def numbers() -> Pixels:
        if kind in (_PLAIN_GREY, _PLAIN_COLORS):
            samples: npt.NDArray[Any] = _decode_plain(bytes(data[start:]), count, maximum, name)
        elif kind == _PLAIN_BITS:
            samples = _decode_digits(bytes(data[start:]), count, name)
        elif kind == _BITS:
            rows = np.frombuffer(data[start:stop], np.uint8).reshape(height, -1)
            samples = 1 - np.unpackbits(rows, axis=1, count=width)  # a bit of 1 is black
        else:
            samples = np.frombuffer(data[start:stop], dtype.newbyteorder(">"))
            _refuse_above(samples, maximum, name)
        return samples.astype(dtype).reshape(height, width, channels)

    def decode() -> Pixels:
        samples = numbers()
        if maximum >= 255:
            return samples
        return np.round(np.arange(maximum + 1) / maximum * 255).astype(np.uint8).take(samples)

    return ImageHeader(
        height=height,
        width=width,
        channels=channels,
        dtype=dtype,
        alpha=False,
        orientation=1,
        decode=decode,
        numbers=numbers if channels == 1 else None,
    )


def _read_numbers(data: memoryview, name: str) -> tuple[int, int, int, int, int]:
    """Return the kind, the width, the height, the maximum, and the offset of the pixels."""
    match = _BITS_HEADER.match(data) or _HEADER.match(data)
    if match is None:
        raise ImageError(name, "the PNM header is damaged or cut short")
    kind, width, height, maximum = map(int, (*match.groups(), 1)[:4])
    if not width or not height:
        raise ImageError(name, f"the PNM header gives {width}x{height} pixels")
    if not 0 < maximum <= _MOST:
        raise ImageError(name, f"a PGM or PPM of maximum {maximum}; expected at most {_MOST}")
    return kind, width, height, maximum, match.end()


def _refuse_several(rest: bytes, name: str) -> None:
    if rest == b"P":
        raise ImageError(name, "the PNM file holds several images; only files with a single one can be used")


def _refuse_above(samples: npt.NDArray[Any], maximum: int, name: str) -> None:
    if maximum < _MOST and samples.size and (most := int(samples.max())) > maximum:
        raise ImageError(name, f"the PNM data is damaged: a sample of {most}, and the maximum is {maximum}")


def _decode_plain(text: bytes, count: int, maximum: int, name: str) -> npt.NDArray[np.uint16]:
    """Return the numbers (count,) after a plain file's header, which blanks and comments separate."""
    text, stop = _without_comments(text, _NUMBERS)
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
    _check_all(text, stop, done, count, name)
    return samples


def _decode_digits(text: bytes, count: int, name: str) -> npt.NDArray[np.uint8]:
    """Return the bits (count,) after a plain file's header, 0 for a 1, which is black; blanks may separate them."""
    text, stop = _without_comments(text, _DIGITS)
    digits = np.frombuffer(b"".join(text[:stop].split()), np.uint8)
    _check_all(text, stop, min(len(digits), count), count, name)
    return ord("1") - digits[:count]


def _without_comments(text: bytes, form: re.Pattern[bytes]) -> tuple[bytes, int]:
    """Return a plain file's text without comments, and where it stops to have a form."""
    text = _COMMENT.sub(b" ", text)
    found = form.match(text)
    return text, found.end() if found else 0


def _check_all(text: bytes, stop: int, done: int, count: int, name: str) -> None:
    if done < count and stop < len(text):
        raise ImageError(name, f"the PNM data is damaged: {text[stop : stop + 8]!r} is not a number")
    if done < count:
        raise ImageError(name, f"the PNM file is cut short: {done} numbers of {count}")
    _refuse_several(text[stop : stop + 1], name)
