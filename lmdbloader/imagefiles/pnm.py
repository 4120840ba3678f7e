"""Binary PGM and PPM files of 8 or 16 bits; Pillow reads 16-bit ones as 32-bit or clips them to 8."""

from __future__ import annotations

import re

import numpy as np

from lmdbloader.errors import ImageError
from lmdbloader.imagefiles.header import ImageHeader, Pixels, Sample

SIGNATURES = (b"P5", b"P6")

_GAP = rb"(?:\s|#[^\r\n]*[\r\n])"
_HEADER = re.compile(rb"P([56])" + 3 * (_GAP + rb"+(\d{1,10})") + rb"(?:#[^\r\n]*)?\s")
_SAMPLE_NBYTES = {255: 1, 65535: 2}


def read_header(data: memoryview, name: str) -> ImageHeader:
    """Read a binary PGM or PPM file's header.

    Raises:
        ImageError: It is damaged, cut short, holds several images, or has a maximum other than 255 or 65535.
    """
    match = _HEADER.match(data)
    if match is None:
        raise ImageError(name, "the PGM or PPM header is damaged or cut short")
    kind, width, height, maximum = (int(number) for number in match.groups())
    if not width or not height:
        raise ImageError(name, f"the PGM or PPM header gives {width}x{height} pixels")
    if maximum not in _SAMPLE_NBYTES:
        raise ImageError(name, f"a PGM or PPM of maximum {maximum}; expected 255 (8 bits) or 65535 (16 bits)")
    channels = 1 if kind == 5 else 3
    start, stop = match.end(), match.end() + height * width * channels * _SAMPLE_NBYTES[maximum]
    if stop > len(data):
        raise ImageError(name, f"the PGM or PPM file is cut short: {len(data)} bytes of {stop}")
    if bytes(data[stop : stop + 1]) == b"P":
        raise ImageError(name, "the PGM or PPM file holds several images; only files with a single one can be used")

    def decode() -> Pixels:
        samples = np.frombuffer(data[start:stop], ">u2" if maximum == 65535 else np.uint8)
        return samples.astype(dtype).reshape(height, width, channels)

    dtype: np.dtype[Sample] = np.dtype(np.uint16 if maximum == 65535 else np.uint8)
    return ImageHeader(
        height=height, width=width, channels=channels, dtype=dtype, alpha=False, orientation=1, decode=decode
    )
