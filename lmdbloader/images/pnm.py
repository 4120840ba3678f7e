"""Binary PBM, PGM and PPM files: Pillow reads gray of 16 bits as 32-bit, and clips colors to 8."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import ImageError
from lmdbloader.images.header import ImageHeader, Pixels

SIGNATURES = (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")

_NUMBER = rb"(?:\s|#[^\r\n]*[\r\n])+(\d{1,10})"
_END = rb"(?:#[^\r\n]*)?\s"
# A file of bits has no maximum.
_BITS_HEADER = re.compile(rb"P(4)" + 2 * _NUMBER + _END)
_HEADER = re.compile(rb"P([56])" + 3 * _NUMBER + _END)
_BITS, _COLORS = 4, 6
_MOST = 65535


def read_header(data: memoryview, name: str) -> ImageHeader:
    """Read the header of a PBM, PGM or PPM file.

    Its pixels have 8 bits, to which they are scaled, or 16 if the maximum is above 255, with their own values.

    Raises:
        ImageError: It is damaged, cut short, of decimal numbers, or holds several images.
    """
    if bytes(data[:2]) in SIGNATURES[:3]:
        raise ImageError(name, "a PNM file of decimal numbers, which is not supported; save it as a binary one, or PNG")
    kind, width, height, maximum, start = _read_numbers(data, name)
    channels = 3 if kind == _COLORS else 1
    dtype = np.dtype(np.uint16 if maximum > 255 else np.uint8)
    row_nbytes = (width + 7) // 8 if kind == _BITS else width * channels * dtype.itemsize
    stop = start + height * row_nbytes
    if stop > len(data):
        raise ImageError(name, f"the PNM file is cut short: {len(data)} bytes; its pixels take {stop}")
    if bytes(data[stop : stop + 1]) == b"P":
        raise ImageError(name, "the PNM file holds several images; only files with a single one can be used")

    def numbers() -> Pixels:
        if kind == _BITS:
            rows = np.frombuffer(data[start:stop], np.uint8).reshape(height, -1)
            samples: npt.NDArray[Any] = 1 - np.unpackbits(rows, axis=1, count=width)  # a bit of 1 is black
        else:
            samples = np.frombuffer(data[start:stop], dtype.newbyteorder(">"))
            if maximum < _MOST and samples.size and (most := int(samples.max())) > maximum:
                raise ImageError(name, f"the PNM data is damaged: a sample of {most}, and the maximum is {maximum}")
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
