"""JPEG files as payloads, with a seek table or recoded so that they decode faster; and the files given back."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import FormatError
from lmdbloader.kernels import entries
from lmdbloader.kernels.codec_numbers import (
    FAST_MAGIC,
    SEEK_ENTRY_NBYTES,
    SEEK_FOOTER_NBYTES,
    SEEK_MAGIC,
)

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]

_FOOTER = struct.Struct("<IIHBx4s")
# Extra room, so that a small file does not fail for lack of it.
_SLACK = 1 << 16
# Files of more blocks, of about 90 megapixels, are not recoded: it takes 128 bytes for each.
_MOST_BLOCKS = 1 << 21
# A progressive file whose payload has more times as many bytes is not recoded.
_MOST_RATIO = 2


def pack(data: bytes, orientation: int, *, fast: bool) -> tuple[U8, int] | None:
    """Return the payload of a JPEG file, and the bytes of its pixels; None if the kernels cannot decode the file.

    A progressive file is recoded, or it is none of these.

    Args:
        data: The whole file.
        orientation: Of EXIF or XMP, 1 to 8.
        fast: Whether it is recoded, if that makes it no longer than with a seek table, and gives back the very file.
    """
    source = np.frombuffer(data, np.uint8)
    work = np.empty(entries.jpeg_room(len(data), 0, 0), np.uint8)
    at = work.ctypes.data
    expected, step = entries.count_entries(source, at)
    if not expected:
        return None
    table = np.empty(expected * SEEK_ENTRY_NBYTES, np.uint8)
    # A block has a bit at least; other files are damaged.
    fast = fast and (num_blocks := entries.count_blocks(at)) <= min(_MOST_BLOCKS, 8 * len(data))
    num_values = 64 * (num_blocks + 1) if fast else 0
    # One array: the allocator would give two back to the system, and clear their pages for the next file.
    room = np.empty(num_values + (8 * len(data) + _SLACK if fast else 0), np.uint16)
    blocks, tokens = room[:num_values], room[num_values:]
    blocks.fill(0)
    status, number, height, width, components = entries.scan(source, step, at, table, blocks.ctypes.data if fast else 0)
    if status:
        return None
    nbytes = height * width * components
    # A progressive file is shorter than our code; one that is much shorter is nearly empty.
    wanted, most = (len(data), len(data) + table.size) if number else (_MOST_RATIO * len(data),) * 2
    if fast and (recoded := _recode(data, orientation, blocks, tokens, work, wanted, most)) is not None:
        return recoded, nbytes
    if not number:
        return None
    table = table[: number * SEEK_ENTRY_NBYTES]
    footer = _FOOTER.pack(len(data), number, step, orientation, SEEK_MAGIC)
    return np.concatenate([source, table, np.frombuffer(footer, np.uint8)]), nbytes


def _recode(data: bytes, orientation: int, blocks: U16, tokens: U16, work: U8, wanted: int, most: int) -> U8 | None:
    """Return the recoded payload of a file; None if it is longer than `most`, or does not give it back.

    wanted: Bytes from which on wider tiles are tried.
    """
    out = np.empty(most + _SLACK, np.uint8)
    source, at = np.frombuffer(data, np.uint8), work.ctypes.data
    for widening in (1, 2):  # wider tiles take fewer bytes
        nbytes, behind, step = entries.encode_tokens(source, blocks.ctypes.data, at, widening, tokens, out)
        if 0 <= nbytes <= wanted:
            break
    if not 0 <= nbytes <= most:
        return None
    footer = _FOOTER.pack(len(data), behind, step, orientation, FAST_MAGIC)
    stored = np.concatenate([out[:nbytes], np.frombuffer(footer, np.uint8)])
    try:
        return stored if unpack(stored.data) == data else None
    except FormatError:
        return None


def find_orientation(payload: bytes | memoryview) -> int:
    """Return the orientation in a JPEG payload, 1 to 8."""
    return int(_FOOTER.unpack(payload[-SEEK_FOOTER_NBYTES:])[3])


def is_recoded(payload: bytes | memoryview) -> bool:
    """Return whether a JPEG payload is recoded, and not the file itself."""
    return payload[-len(FAST_MAGIC) :] == FAST_MAGIC


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
        raise FormatError(f"a JPEG payload of {stored.size} bytes: expected b'SEEK' or b'FAST' at its end")
    if nbytes + number * SEEK_ENTRY_NBYTES + SEEK_FOOTER_NBYTES != stored.size:
        raise FormatError(f"a JPEG payload of {stored.size} bytes: its seek table says that the file has {nbytes}")
    return stored[:nbytes].tobytes()


def _restore(stored: U8, nbytes: int) -> bytes:
    at = stored.ctypes.data
    # Before memory is allocated for it.
    if entries.restored_nbytes(at, stored.size) != nbytes:
        raise FormatError(f"a recoded JPEG of {stored.size} bytes: its footer says that the file has {nbytes}")
    out = np.empty(nbytes, np.uint8)
    room = np.empty(entries.jpeg_room(max(stored.size, nbytes), 0, 0), np.uint8)
    work, num_blocks = room.ctypes.data, entries.count_restored(at, stored.size, room.ctypes.data)
    if num_blocks:
        is_fine = num_blocks <= min(_MOST_BLOCKS, 8 * stored.size)
        blocks = np.empty(64 * num_blocks if is_fine else 0, np.uint16)
        is_fine = is_fine and entries.restore_scans(at, stored.size, work, blocks, out)
    else:
        is_fine = entries.restore(at, stored.size, work, out)
    if not is_fine:
        raise FormatError(
            f"a recoded JPEG of {stored.size} bytes: it is damaged: the file of {nbytes} bytes cannot be restored"
        )
    return out.tobytes()
