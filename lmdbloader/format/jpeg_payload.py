"""JPEG files as payloads, with a seek table or recoded so that they decode faster; and the files given back."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import FormatError
from lmdbloader.images.jpeg import Scan, scan
from lmdbloader.kernels import entries
from lmdbloader.kernels.codec_numbers import (
    FAST_MAGIC,
    RECODING_SLACK,
    SEEK_ENTRY_NBYTES,
    SEEK_FOOTER_NBYTES,
    SEEK_MAGIC,
    TILE_ENTRIES,
)

U8 = npt.NDArray[np.uint8]

_FOOTER = struct.Struct("<IIHBx4s")


def pack(data: bytes, orientation: int, *, fast: bool) -> tuple[U8, int] | None:
    """Return the payload of a JPEG file, and the bytes of its pixels; None if the kernels cannot decode the file.

    Args:
        data: The whole file.
        orientation: From its EXIF data, 1 to 8.
        fast: Whether it is recoded, if that makes it no longer than the file, and gives back the very file.
    """
    found = scan(data)
    if found.status:
        return None
    if fast and (recoded := _recode(data, orientation, found)) is not None:
        return recoded, found.nbytes
    footer = _FOOTER.pack(len(data), found.table.size // SEEK_ENTRY_NBYTES, found.step, orientation, SEEK_MAGIC)
    return np.concatenate([found.source, found.table, np.frombuffer(footer, np.uint8)]), found.nbytes


def _recode(data: bytes, orientation: int, found: Scan) -> U8 | None:
    """Return the recoded payload of a file; None if it is longer than the file, or does not give it back."""
    out = np.empty(len(data) + RECODING_SLACK, np.uint8)
    nbytes, behind = entries.encode_tokens(found.source, found.step, found.work.ctypes.data, found.tokens, out)
    if not 0 <= nbytes <= len(data) + found.table.size:
        return None
    footer = _FOOTER.pack(len(data), behind, TILE_ENTRIES * found.step, orientation, FAST_MAGIC)
    stored = np.concatenate([out[:nbytes], np.frombuffer(footer, np.uint8)])
    try:
        return stored if unpack(stored.data) == data else None
    except FormatError:
        return None


def unpack(payload: bytes | memoryview) -> bytes:
    """Return the file in a JPEG payload.

    Raises:
        FormatError: It has no footer, or one that contradicts it; or a recoded file is damaged.
    """
    stored = np.frombuffer(payload, np.uint8)
    nbytes, number, magic = 0, 0, b""
    if stored.size >= SEEK_FOOTER_NBYTES:
        nbytes, number, _, _, magic = _FOOTER.unpack(stored[-SEEK_FOOTER_NBYTES:].tobytes())
    if magic == FAST_MAGIC:
        return _restore(stored, nbytes)
    if magic != SEEK_MAGIC:
        raise FormatError(f"a JPEG payload of {stored.size} bytes: expected a seek table at its end")
    if nbytes + number * SEEK_ENTRY_NBYTES + SEEK_FOOTER_NBYTES != stored.size:
        raise FormatError(f"a JPEG payload of {stored.size} bytes: its seek table says that the file has {nbytes}")
    return stored[:nbytes].tobytes()


def _restore(stored: U8, nbytes: int) -> bytes:
    at = stored.ctypes.data
    # Before memory is allocated for it.
    if entries.restored_nbytes(at, stored.size) != nbytes:
        raise FormatError(f"a recoded JPEG of {stored.size} bytes: its footer says that the file has {nbytes}")
    out = np.empty(nbytes, np.uint8)
    work = np.empty(entries.jpeg_room(stored.size, 0, 0), np.uint8)
    if not entries.restore(at, stored.size, work.ctypes.data, out):
        raise FormatError(f"a recoded JPEG of {stored.size} bytes: its tokens do not give back a file of {nbytes}")
    return out.tobytes()
