"""The header of an image file of any kind: size, dtype, alpha, orientation, and its decoder; EXIF and TIFF tags."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Sample: TypeAlias = np.uint8 | np.uint16
Pixels: TypeAlias = npt.NDArray[Sample]

ORIENTATION_TAG = 0x0112
# The TIFF types that Pillow reads as integers: SHORT, LONG, SBYTE, SSHORT and SLONG. It reads a BYTE as text.
_INTEGER_FORMATS = {3: "H", 4: "I", 6: "b", 8: "h", 9: "i"}


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """The header of an image file of a known kind.

    Attributes:
        height: Rows as stored, before the EXIF rotation.
        width: Columns as stored, before the EXIF rotation.
        channels: 1 (grey) or 3 (RGB), without the alpha channel.
        dtype: uint8 or uint16.
        alpha: Whether the file carries transparency of any kind.
        orientation: EXIF orientation, 1 to 8, which `decode` does not apply.
        decode: Returns the pixels as (height, width, channels) or, with alpha, (height, width, channels + 1).
        decode_smaller: Takes (height, width) and returns the same image with fewer pixels, but at least these rows and
            columns, for less work; None if the kind of file does not allow it.
        numbers: Returns the file's own numbers as (height, width, 1) uint8 or uint16: those of a palette, or of grey
            pixels, not scaled to 8 bits. None for colours, and for kinds of files whose numbers are not exact.
        palette: Red, green and blue of each number, if the numbers are those of a palette.
    """

    height: int
    width: int
    channels: int
    dtype: np.dtype[Sample]
    alpha: bool
    orientation: int
    decode: Callable[[], Pixels]
    decode_smaller: Callable[[int, int], Pixels] | None = None
    numbers: Callable[[], Pixels] | None = None
    palette: bytes = b""


def exif_orientation(exif: bytes) -> int:
    """Return the orientation (1 to 8) in an EXIF block, 1 if it has no valid one.

    A damaged EXIF block is common in good photographs, so it is not an error.

    Args:
        exif: The block, with or without its leading ``Exif\\0\\0``.

    >>> exif_orientation(b"MM\\0*\\0\\0\\0\\x08" + b"\\0\\x01" + b"\\x01\\x12\\0\\x03\\0\\0\\0\\x01\\0\\x06\\0\\0")
    6
    >>> exif_orientation(b"not EXIF")
    1
    """
    value = tiff_integer(exif.removeprefix(b"Exif\0\0"), ORIENTATION_TAG)
    return value if value is not None and 1 <= value <= 8 else 1


def tiff_integer(block: bytes, tag: int) -> int | None:
    """Return the first value of an integer tag in the first directory of a TIFF-structured block, None if absent."""
    return next((value for _, _, value in tiff_integers(block, tag)), None)


def tiff_integers(block: bytes | memoryview, tag: int) -> Iterator[tuple[int, str, int]]:
    """Yield position, format and value of an integer tag in the first directory of a TIFF-structured block."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(block[:2]))
    if order is None:
        return
    try:
        (directory,) = struct.unpack_from(order + "I", block, 4)
        (num_entries,) = struct.unpack_from(order + "H", block, directory)
        for entry in range(directory + 2, directory + 2 + 12 * num_entries, 12):
            found, kind = struct.unpack_from(order + "HH", block, entry)
            if found == tag and kind in _INTEGER_FORMATS:
                form = order + _INTEGER_FORMATS[kind]
                (value,) = struct.unpack_from(form, block, entry + 8)
                yield entry + 8, form, int(value)
    except struct.error:
        return
