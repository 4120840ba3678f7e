"""How payloads are encoded: raw, lz4 blocks, tiles; and their checksums."""

from __future__ import annotations

import ctypes
import io
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from lmdbloader.errors import FormatError, OptionError
from lmdbloader.format.layout import (
    CODEC_FILE,
    CODEC_JPEG,
    CODEC_RAW,
    CODEC_TILES,
    MAX_PAYLOAD_NBYTES,
    TILED_ABOVE_NBYTES,
    Codec,
)

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

CODECS = ("auto", "raw", "lz4")
# lz4 must save at least this share, of a payload to be used for it, and of a sample of the inputs for `auto` to choose
# it: below, decompressing costs more than reading the rest.
LEAST_SAVING = 0.10


@dataclass(frozen=True, slots=True)
class Payloads:
    """The encoded values of one payload field, one after the other.

    Attributes:
        data: (sum of stored_nbytes,) uint8.
        stored_nbytes: (n,) int64 length of each payload in `data`.
        raw_nbytes: (n,) int64 length of each once decoded.
        checksum: (n,) uint64, XXH64 of each stored payload; of its tile table where it is tiled.
        codec: (n,) uint8, CODEC_RAW, CODEC_LZ4 or CODEC_TILES.
    """

    data: U8
    stored_nbytes: I64
    raw_nbytes: I64
    checksum: npt.NDArray[np.uint64]
    codec: U8


@cache
def _xxhash() -> ctypes.CDLL:
    from lz4.frame import _frame

    library = ctypes.CDLL(_frame.__file__)
    state, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
    for name, arguments, result in (
        ("XXH64", (ctypes.c_void_p, size, number), number),
        ("XXH64_createState", (), state),
        ("XXH64_reset", (state, number), ctypes.c_int),
        ("XXH64_update", (state, ctypes.c_void_p, size), ctypes.c_int),
        ("XXH64_digest", (state,), number),
        ("XXH64_freeState", (state,), ctypes.c_int),
    ):
        getattr(library, name).argtypes = arguments
        getattr(library, name).restype = result
    return library


def checksum(data: Any) -> int:
    """Return XXH64 (seed 0) of a bytes-like object.

    >>> hex(checksum(b""))
    '0xef46db3751d8e999'
    """
    view = np.frombuffer(data, np.uint8)
    return int(_xxhash().XXH64(view.ctypes.data, view.nbytes, 0))


class RunningChecksum:
    """XXH64 (seed 0) of bytes that come piece by piece."""

    def __init__(self) -> None:
        library = _xxhash()
        self._state = library.XXH64_createState()
        if not self._state:
            raise MemoryError("no memory for the state of a checksum")
        weakref.finalize(self, library.XXH64_freeState, self._state)
        library.XXH64_reset(self._state, 0)

    def update(self, piece: Any) -> None:
        """Append a bytes-like object."""
        view = np.frombuffer(piece, np.uint8)
        _xxhash().XXH64_update(self._state, view.ctypes.data, view.nbytes)

    @property
    def value(self) -> int:
        """What `checksum` returns for everything appended so far."""
        return int(_xxhash().XXH64_digest(self._state))


def encode_many(data: U8, nbytes: I64, codec: Codec) -> Payloads:
    """Encode payloads that lie one after the other.

    Args:
        data: (sum of nbytes,) uint8; used as it is by the raw codec.
        nbytes: (n,) int64 length of each.
        codec: With "lz4", a payload that does not shrink by 10 % is kept raw.
    """
    from lmdbloader.kernels.gather import hash_many
    from lmdbloader.kernels.patches import compress_many

    start = np.cumsum(nbytes) - nbytes
    codes = np.full(len(nbytes), CODEC_RAW, np.uint8)
    stored, stored_nbytes = data, nbytes
    if codec == "lz4":
        packed = np.empty(data.size, np.uint8)
        stored_nbytes = np.empty_like(nbytes)
        stored = packed[: compress_many(data, start, nbytes, LEAST_SAVING, packed, stored_nbytes, codes)]
        start = np.cumsum(stored_nbytes) - stored_nbytes
    sums = np.empty(len(nbytes), np.uint64)
    hash_many(stored, start, stored_nbytes, sums)
    return Payloads(stored, stored_nbytes, nbytes, sums, codes)


def encode_image(image: npt.NDArray[Any], codec: Codec, tile_size: int) -> Payloads:
    """Encode one image (H, W, C) uint8 or uint16: in tiles where it is large, else as one (C, H, W) payload.

    Raises:
        OptionError: Its pixels exceed what one payload may hold.
    """
    from lmdbloader.kernels.decode import TILE_ENTRY_NBYTES
    from lmdbloader.kernels.patches import cut, cut_tiles

    if image.nbytes > MAX_PAYLOAD_NBYTES * 0.99:
        raise OptionError(
            f"an image of {image.shape} {image.dtype}: {image.nbytes} bytes exceed one payload's 2 GiB. Cut it."
        )
    flat = np.empty(image.size, image.dtype)
    if image.nbytes <= TILED_ABOVE_NBYTES:
        cut(image, 0, 0, image.shape[0], image.shape[1], flat)
        return encode_many(flat.view(np.uint8), np.array([image.nbytes]), codec)
    cut_tiles(image, tile_size, flat)
    tiles = encode_many(flat.view(np.uint8), tile_nbytes(image.shape, image.itemsize, tile_size), codec)
    ends = np.cumsum(tiles.stored_nbytes).astype("<u4")
    table = tiles.checksum.astype("<u8").tobytes() + ends.tobytes()
    if len(table) != TILE_ENTRY_NBYTES * len(ends):
        raise AssertionError("the tile table's entry size and its writer disagree")
    stored = np.concatenate([np.frombuffer(table, np.uint8), tiles.data])
    return Payloads(
        stored,
        np.array([stored.size]),
        np.array([image.nbytes]),
        np.array([checksum(table)], np.uint64),
        np.array([CODEC_TILES], np.uint8),
    )


def encode_jpeg(image: npt.NDArray[Any], quality: int) -> Payloads:
    """Encode one image (H, W, C) uint8 as a JPEG with restart markers and a seek table.

    Args:
        image: With 1 or 3 channels, neither side above 65,535 pixels.
        quality: 1 to 100, as libjpeg counts it.
    """
    file = io.BytesIO()
    plain = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    plain.save(file, "JPEG", quality=quality, restart_marker_rows=1)
    packed = pack_jpeg(file.getvalue(), 1, image.nbytes)
    return packed or pack_file(file.getvalue(), image.nbytes)


def pack_jpeg(data: bytes, orientation: int, raw_nbytes: int) -> Payloads | None:
    """Return a JPEG file's own bytes with a seek table behind them, None where our kernels do not decode such a file.

    Args:
        data: The whole file.
        orientation: As its EXIF data gives it, 1 to 8.
        raw_nbytes: Of its decoded pixels.
    """
    from lmdbloader.kernels.jpeg import seek as jpegseek
    from lmdbloader.kernels.jpeg.workspace import jpeg_room

    source = np.frombuffer(data, np.uint8)
    work = np.empty(jpeg_room(len(data), 0, 0), np.uint8)
    at = np.uint64(work.ctypes.data)
    expected, step = jpegseek.count_entries(source, at)
    entries = np.empty(expected * jpegseek.ENTRY_NBYTES, np.uint8)
    status, number, height, width, components = jpegseek.scan(source, step, at, entries)
    if status or height * width * components != raw_nbytes:
        return None
    footer = struct.pack("<IIHBx4s", len(data), number, step, orientation, jpegseek.SEEK_MAGIC)
    payload = np.concatenate([source, entries[: number * jpegseek.ENTRY_NBYTES], np.frombuffer(footer, np.uint8)])
    return Payloads(
        payload,
        np.array([payload.size]),
        np.array([raw_nbytes]),
        np.array([checksum(payload)], np.uint64),
        np.array([CODEC_JPEG], np.uint8),
    )


def unpack_jpeg(payload: bytes | memoryview) -> bytes:
    """Return the file in a JPEG payload, without its seek table.

    Raises:
        FormatError: It has no seek table.
    """
    from lmdbloader.kernels.jpeg import seek as jpegseek

    data = bytes(payload)
    if len(data) < jpegseek.FOOTER_NBYTES or not data.endswith(jpegseek.SEEK_MAGIC):
        raise FormatError(f"a JPEG payload of {len(data)} bytes: expected a seek table at its end")
    nbytes, number = struct.unpack_from("<II", data, len(data) - jpegseek.FOOTER_NBYTES)
    if nbytes + number * jpegseek.ENTRY_NBYTES + jpegseek.FOOTER_NBYTES != len(data):
        raise FormatError(f"a JPEG payload of {len(data)} bytes: its seek table says that the file has {nbytes}")
    return data[:nbytes]


def pack_file(data: bytes, raw_nbytes: int) -> Payloads:
    """Return an image file's own bytes as a payload that is decoded whole.

    Args:
        data: The whole file.
        raw_nbytes: Of its decoded pixels.
    """
    return Payloads(
        np.frombuffer(data, np.uint8),
        np.array([len(data)]),
        np.array([raw_nbytes]),
        np.array([checksum(data)], np.uint64),
        np.array([CODEC_FILE], np.uint8),
    )


def tile_nbytes(shape: Sequence[int], itemsize: int, tile_size: int) -> I64:
    """Return the decoded length of every tile of an image (H, W, C), row by row.

    >>> tile_nbytes((3, 5, 1), 1, 2).tolist()
    [4, 4, 2, 2, 2, 1]
    """
    heights = np.diff(np.append(np.arange(0, shape[0], tile_size), shape[0]))
    widths = np.diff(np.append(np.arange(0, shape[1], tile_size), shape[1]))
    return np.outer(heights, widths).ravel().astype(np.int64) * (shape[2] * itemsize)


def join(parts: Sequence[Payloads]) -> Payloads:
    """Return the payloads of several encodings, in order."""
    if len(parts) == 1:
        return parts[0]
    return Payloads(
        np.concatenate([p.data for p in parts]),
        np.concatenate([p.stored_nbytes for p in parts]),
        np.concatenate([p.raw_nbytes for p in parts]),
        np.concatenate([p.checksum for p in parts]),
        np.concatenate([p.codec for p in parts]),
    )


def saves_enough(stored_nbytes: int, raw_nbytes: int) -> bool:
    """Return whether lz4-encoded payloads are small enough for `auto` to choose lz4."""
    return raw_nbytes > 0 and stored_nbytes <= (1 - LEAST_SAVING) * raw_nbytes


def check_codec(name: str) -> None:
    """Raise OptionError unless `name` is one of CODECS."""
    if name not in CODECS:
        raise OptionError(f"codec {name!r}: expected one of {', '.join(CODECS)}")
