"""Pixels to PNG files, 8 and 16 bits, grey and RGB; Pillow writes no RGB of 16 bits."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import OptionError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOR_TYPES = {1: 0, 3: 2}
_MAX_SIDE = 2**31 - 1
# Rows are filtered and compressed in parts of about this size, so that memory stays near the image's own.
_PART_NBYTES = 4 * 2**20


def encode_png(image: npt.NDArray[Any], *, level: int = 6) -> bytes:
    """Return a PNG file with exactly these pixels.

    Args:
        image: (H, W, C) uint8 or uint16 with 1 (grey) or 3 (RGB) channels; need not be contiguous.
        level: Of zlib, 0 (fast) to 9 (small).

    Raises:
        OptionError: Another shape or dtype, or no pixels.

    >>> encode_png(np.zeros((2, 3, 1), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    plain = image.ndim == 3 and image.shape[2] in _COLOR_TYPES and min(image.shape) > 0
    if not plain or max(image.shape) > _MAX_SIDE or image.dtype not in (np.uint8, np.uint16):
        raise OptionError(f"an image of {image.shape} {image.dtype}; expected (H, W, 1 or 3) of uint8 or uint16")
    height, width, channels = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8 * image.itemsize, _COLOR_TYPES[channels], 0, 0, 0)
    return b"".join(
        (_SIGNATURE, _chunk(b"IHDR", header), _chunk(b"IDAT", _compress(image, level)), _chunk(b"IEND", b""))
    )


def _compress(image: npt.NDArray[Any], level: int) -> bytes:
    row_nbytes = image.shape[1] * image.shape[2] * image.itemsize
    step = image.shape[2] * image.itemsize
    at_once = max(1, _PART_NBYTES // row_nbytes)
    deflate = zlib.compressobj(level)
    above = np.zeros((1, row_nbytes), np.uint8)
    parts = []
    for first in range(0, len(image), at_once):
        rows = np.ascontiguousarray(image[first : first + at_once], f">u{image.itemsize}")
        lines = rows.reshape(len(rows), -1).view(np.uint8)
        parts.append(deflate.compress(_filtered(lines, np.concatenate((above, lines[:-1])), step).data))
        above = lines[-1:]
    return b"".join((*parts, deflate.flush()))


def _filtered(lines: npt.NDArray[np.uint8], above: npt.NDArray[np.uint8], step: int) -> npt.NDArray[np.uint8]:
    """Return rows with the filter's number in front, each with the filter that leaves the smallest differences.

    Args:
        lines: (rows, n) bytes.
        above: (rows, n) bytes of the row above each.
        step: Bytes from one pixel to the next.
    """
    left = np.zeros_like(lines)
    left[:, step:] = lines[:, :-step]
    # None, Sub, Up; wrapping around is what the format asks for.
    candidates = [lines, lines - left, lines - above]
    costs = [np.abs(c.view(np.int8), dtype=np.int16).sum(axis=1, dtype=np.int64) for c in candidates]
    best = np.argmin(costs, axis=0)
    out = np.empty((len(lines), 1 + lines.shape[1]), np.uint8)
    out[:, 0] = best
    for number, candidate in enumerate(candidates):
        chosen = best == number
        out[chosen, 1:] = candidate[chosen]
    return out


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(body, zlib.crc32(kind)))
