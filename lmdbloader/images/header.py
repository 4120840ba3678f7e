"""The header of an image file of any kind: size, dtype, orientation and decoder; EXIF, XMP and TIFF tags."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Pixels: TypeAlias = npt.NDArray[Any]

PIXEL_TYPES = ("uint8", "uint16", "float16", "float32")
ORIENTATION_TAG = 0x0112
# The TIFF types that Pillow reads as integers: SHORT, LONG, SBYTE, SSHORT and SLONG. It reads a BYTE as text.
_INTEGER_FORMATS = {3: "H", 4: "I", 6: "b", 8: "h", 9: "i"}
# The pattern of Pillow: an attribute, or an element.
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
# TIFF and BigTIFF: the place of the directory's offset, its format and that of the number of entries, the format of an
# entry's count, the bytes of an entry and the place of its value.
_TIFF_FORMS = {42: (4, "I", "H", "I", 12, 8), 43: (8, "Q", "Q", "Q", 20, 12)}


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """The header of an image file of a known kind.

    Attributes:
        height: Rows as stored, before the rotation.
        width: Columns as stored, before the rotation.
        channels: 1 (gray), 3 (RGB) or up to 64 (bands), without the alpha channel.
        dtype: uint8, uint16, float16 or float32.
        alpha: Whether the file carries transparency of any kind.
        orientation: Of EXIF or XMP, 1 to 8, which `decode` does not apply.
        decode: Returns the pixels as (height, width, channels) or, with alpha, (height, width, channels + 1).
        decode_smaller: Takes (height, width) and returns the same image with fewer pixels, but at least these rows and
            columns, for less work; None if the kind of file does not allow it.
        numbers: Returns the file's own numbers as (height, width, 1) uint8 or uint16: those of a palette, or of gray
            pixels, not scaled to 8 bits. None for colors, and for kinds of files whose numbers are not exact.
        with_unnamed: Returns the header of the same image with further channels: samples of a pixel that are neither
            color nor transparency, such as near infrared, and that `decode` leaves out. None if there are none.
        palette: Returns red, green and blue of each number; nothing if the numbers are not those of a palette.
        num_others: Images in the file besides this one, such as a preview or a gain map.
    """

    height: int
    width: int
    channels: int
    dtype: np.dtype[Any]
    alpha: bool
    orientation: int
    decode: Callable[[], Pixels]
    decode_smaller: Callable[[int, int], Pixels] | None = None
    numbers: Callable[[], Pixels] | None = None
    with_unnamed: Callable[[], ImageHeader] | None = None
    palette: Callable[[], bytes] = bytes
    num_others: int = 0

    @property
    def upright(self) -> tuple[int, int]:
        """Rows and columns after the rotation."""
        return (self.height, self.width) if self.orientation < 5 else (self.width, self.height)


def find_orientation(exif: bytes | memoryview, xmp: bytes = b"") -> int:
    """Return the orientation (1 to 8) in an EXIF block, or in XMP if that has none, as Pillow's exif_transpose does.

    Damaged metadata are common in good photographs, so they are not an error: the orientation is 1.

    Args:
        exif: The block, with or without its leading ``Exif\\0\\0``.
        xmp: The text.

    >>> find_orientation(b"MM\\0*\\0\\0\\0\\x08" + b"\\0\\x01" + b"\\x01\\x12\\0\\x03\\0\\0\\0\\x01\\0\\x06\\0\\0")
    6
    >>> find_orientation(b"not EXIF"), find_orientation(b"", b'<rdf:Description tiff:Orientation="8"/>')
    (1, 8)
    """
    found = next(tiff_tags(exif[6 * (exif[:6] == b"Exif\0\0") :], ORIENTATION_TAG), None)
    value = xmp_orientation(xmp) if found is None else found[2]
    return value if value is not None and 1 <= value <= 8 else 1


def xmp_orientation(xmp: bytes) -> int:
    """Return the orientation that XMP gives, 1 if it gives none; it may be 0 or 9."""
    found = _XMP_ORIENTATION.search(xmp)
    return int(found[1]) if found else 1


def tiff_values(block: bytes | memoryview, tag: int) -> tuple[int, ...]:
    """Return all values of an integer tag in the first directory of a TIFF-structured block; () if there are none."""
    for position, form, value in tiff_tags(block, tag):
        order, offset = form[0], "Q" if 43 in block[2:4] else "I"
        room = struct.calcsize(offset)
        with suppress(struct.error, OverflowError):
            (count,) = struct.unpack_from(order + offset, block, position - room)
            values = f"{order}{min(count, 2**16)}{form[1]}"
            if struct.calcsize(values) > room:
                (position,) = struct.unpack_from(order + offset, block, position)
            return struct.unpack_from(values, block, position) if value is not None else ()
    return ()


def tiff_tags(block: bytes | memoryview, tag: int) -> Iterator[tuple[int, str, int | None]]:
    """Yield position, format and value of a tag in the first directory of a TIFF-structured block.

    The value is None, and the format that of an offset, if the tag is not of a type that Pillow reads as an integer.
    """
    order = {b"II": "<", b"MM": ">"}.get(bytes(block[:2]))
    if order is None:
        return
    try:
        (version,) = struct.unpack_from(order + "H", block, 2)
        # A block of EXIF may give any number.
        at, offset, number, count, entry_nbytes, value_at = _TIFF_FORMS[43 if version == 43 else 42]
        (directory,) = struct.unpack_from(order + offset, block, at)
        (num_entries,) = struct.unpack_from(order + number, block, directory)
        first = directory + struct.calcsize(order + number)
        for entry in range(first, min(first + entry_nbytes * num_entries, len(block)), entry_nbytes):
            found, kind, _ = struct.unpack_from(order + "HH" + count, block, entry)
            if found == tag:
                form = order + _INTEGER_FORMATS.get(kind, offset)
                (value,) = struct.unpack_from(form, block, entry + value_at)
                yield entry + value_at, form, int(value) if kind in _INTEGER_FORMATS else None
    except (struct.error, OverflowError):
        return
