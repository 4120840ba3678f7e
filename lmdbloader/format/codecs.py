"""The codecs of payloads, in one table with their encoders, decoders and limits; and the checksums of payloads."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.option_names import option
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import (
    CODEC_DELTA,
    CODEC_DELTA_TILES,
    CODEC_FILE,
    CODEC_JPEG,
    CODEC_LZ4,
    CODEC_RAW,
    CODEC_TILES,
    MAX_PAYLOAD_NBYTES,
    TILED_ABOVE_NBYTES,
    bits_of,
)
from lmdbloader.kernels import entries
from lmdbloader.kernels.codec_numbers import (
    FIRST_START_NBYTES,
    GROUP_SUM_NBYTES,
    TILE_ENTRY_NBYTES,
    TILES_IN_GROUP,
)

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

# lz4 and delta must save at least this share of a payload to be used for it, and lz4 of a sample of the inputs for
# `auto` to choose it: decompression costs more time than reading fewer bytes saves.
LEAST_SAVING = 0.10
# lz4: a length byte adds up to 255 bytes to a match; the other bytes of a block add less.
_LZ4_RATIO = 255
# delta: two blocks of 64 differences that are all 0 have a code of 3 bits.
_DELTA_RATIO = 2 * 64 * 8 // 3 + 1
# The fewest bytes for its pixels has a recoded JPEG with 4:2:0: a full tile of 8 MCUs has 6,144 bytes of pixels, and at
# least 33 and 17 bits, in whole bytes, and the 4 bytes of their lengths.
_JPEG_RATIO = 512


@dataclass(frozen=True, slots=True)
class CodecEntry:
    """A row of the table of codecs.

    Attributes:
        number: In index and records, see `lmdbloader.kernels.codec_numbers`.
        name: In the manifest and in messages.
        only_kinds: The kinds of fields that it is for; empty for all kinds with payloads.
        encode: Encodes many payloads for codec=NAME. Takes (data, nbytes, shapes): payloads one after the other, uint8,
            the length of each (n,) int64, and of images (n, 4) int64 height, width, channels and bits, else None;
            returns (encoded data, its lengths, codec numbers (n,) uint8). None for a codec that is chosen in another
            way.
        decode: Decodes one payload in Python. Takes (data, shape, dtype) and returns an array of them: (C, H, W) for an
            image, else (bytes,) uint8. It raises ValueError for damaged data. None for a codec that kernels decode, see
            `lmdbloader.kernels.decode`.
        has_windows: Whether kernels decode a window of an image alone.
        source_file: Returns the image file in a payload; None for pixels and other values.
        max_ratio: Most raw bytes for a stored byte, which bounds the memory that a reader allocates for a dataset.
        tiled: The number of the codec of a large image in tiles of it; None if it does not come in tiles.
    """

    number: int
    name: str
    only_kinds: tuple[str, ...] = ()
    encode: Callable[[U8, I64, I64 | None], tuple[U8, I64, U8]] | None = None
    decode: Callable[[bytes, tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]] | None = None
    has_windows: bool = False
    source_file: Callable[[bytes], bytes] | None = None
    max_ratio: int = MAX_PAYLOAD_NBYTES
    tiled: int | None = None


def codec_of(number: int) -> CodecEntry:
    """Return the codec with a number.

    >>> codec_of(3).name
    'jpeg'

    Raises:
        KeyError: There is none.
    """
    return TABLE[number]


def named_codecs() -> dict[str, CodecEntry]:
    """Return the codecs that codec= can name.

    >>> list(named_codecs())
    ['raw', 'lz4', 'delta']
    """
    return {entry.name: entry for entry in TABLE.values() if entry.encode}


def _named(name: str) -> CodecEntry:
    """Return the codec with a name; quicker than `named_codecs`, as `write` asks for each image."""
    return next(entry for entry in TABLE.values() if entry.name == name)


def by_number(value: Callable[[CodecEntry], Any], unknown: Any) -> npt.NDArray[Any]:
    """Return an array (256,) with a value for each codec number; `unknown` for numbers without a codec.

    >>> by_number(lambda entry: entry.decode is not None, False)[:6].tolist()
    [False, False, False, False, True, False]
    """
    found = np.full(256, unknown)
    for entry in TABLE.values():
        found[entry.number] = value(entry)
    return found


def holds_pixels(numbers: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Return for codec numbers (n,) whether such payloads depend on codec=, unlike JPEG and other image files."""
    return by_number(lambda entry: entry.source_file is None, True)[numbers]


def name_counts(counts: npt.NDArray[Any]) -> dict[str, Any]:
    """Return the counts (256,) of codec numbers, or sums of bytes, by the name of the codec; without zeros.

    >>> name_counts(np.bincount([0, 3, 3], minlength=256))
    {'raw': 1, 'jpeg': 2}
    """
    named: dict[str, Any] = {}
    for entry in TABLE.values():
        if count := counts[entry.number].item():
            named[entry.name] = named.get(entry.name, 0) + count
    return named


@dataclass(frozen=True, slots=True)
class Payloads:
    """The encoded values of one payload field, one after the other.

    Attributes:
        data: (sum of stored_nbytes,) uint8.
        stored_nbytes: (n,) int64 length of each payload in `data`.
        raw_nbytes: (n,) int64 length of each when decoded.
        checksum: (n,) uint64, XXH3 of each stored payload; of one in tiles, of the first bytes of its table.
        codec: (n,) uint8 number of each payload's codec.
    """

    data: U8
    stored_nbytes: I64
    raw_nbytes: I64
    checksum: npt.NDArray[np.uint64]
    codec: U8


def checksum(data: Any) -> int:
    """Return XXH3 of a bytes-like object.

    >>> hex(checksum(b""))
    '0x2d06800538d394c2'
    """
    view = np.frombuffer(data, np.uint8)
    return int(entries.xxh3(view.ctypes.data, view.nbytes))


def encode_many(data: U8, nbytes: I64, codec: str, shapes: npt.ArrayLike | None = None) -> Payloads:
    """Encode payloads.

    Args:
        data: (sum of nbytes,) uint8, one payload after the other; the raw codec uses it without a copy.
        nbytes: (n,) int64 length of each.
        codec: With "lz4" and "delta", a payload that does not shrink by 10 % is stored raw.
        shapes: Of images, (n, 4) height, width, channels and bits; "delta" encodes other values, and floats, as "lz4".
    """
    encode = _named(codec).encode or _encode_raw
    of_images = None if shapes is None else np.asarray(shapes, np.int64).reshape(-1, 4)
    stored, stored_nbytes, numbers = encode(data, nbytes, of_images)
    sums = np.empty(len(nbytes), np.uint64)
    entries.hash_many(stored, np.cumsum(stored_nbytes) - stored_nbytes, stored_nbytes, sums)
    return Payloads(stored, stored_nbytes, nbytes, sums, numbers)


def _encode_raw(data: U8, nbytes: I64, shapes: I64 | None) -> tuple[U8, I64, U8]:
    return data, nbytes, np.full(len(nbytes), CODEC_RAW, np.uint8)


def _encode_lz4(data: U8, nbytes: I64, shapes: I64 | None) -> tuple[U8, I64, U8]:
    import lz4.block  # readers do not need it

    stops, whole, stored = np.cumsum(nbytes), np.ascontiguousarray(data).data, []
    numbers = np.full(len(nbytes), CODEC_RAW, np.uint8)
    for number, (start, stop) in enumerate(zip((stops - nbytes).tolist(), stops.tolist(), strict=True)):
        payload = whole[start:stop]
        block = lz4.block.compress(payload, store_size=False)
        if len(block) <= (1 - LEAST_SAVING) * len(payload):
            numbers[number] = CODEC_LZ4
            payload = block
        stored.append(payload)
    return np.frombuffer(b"".join(stored), np.uint8), np.array([len(payload) for payload in stored], np.int64), numbers


def _encode_delta(data: U8, nbytes: I64, shapes: I64 | None) -> tuple[U8, I64, U8]:
    if shapes is None or (shapes[:, 3] % 2).any():
        return _encode_lz4(data, nbytes, shapes)
    numbers, stored = np.full(len(nbytes), CODEC_RAW, np.uint8), np.empty(int(nbytes.sum()) + 16, np.uint8)
    stored_nbytes, start, at = nbytes.copy(), 0, 0
    planes_of = shapes[:, 2] * shapes[:, 3] // 8
    room = entries.delta_room(int(nbytes.max(initial=0)), int(planes_of.max(initial=0)))
    work = np.empty(room if len(nbytes) else 0, np.uint8)
    for number, (length, shape) in enumerate(zip(nbytes.tolist(), shapes.tolist(), strict=True)):
        height, width, channels, bits = shape
        payload, most = data[start : start + length], int((1 - LEAST_SAVING) * length)
        found = entries.delta_compress(payload, channels, height, width, bits // 8, stored[at:], most, work)
        if found:
            numbers[number], stored_nbytes[number] = CODEC_DELTA, found
        else:
            stored[at : at + length] = payload
        start, at = start + length, at + int(stored_nbytes[number])
    return stored[:at], stored_nbytes, numbers


def encode_image(image: npt.NDArray[Any], codec: str, tile_size: int) -> Payloads:
    """Encode one image (H, W, C): a large one in tiles, a small one as one (C, H, W) payload.

    Raises:
        OptionError: It has more bytes than a payload can have.
    """
    codec = "lz4" if codec == "delta" and image.dtype.kind == "f" else codec
    if not is_tiled(image, codec):
        return encode_many(planes(image), np.array([image.nbytes]), codec, (*image.shape, bits_of(image.dtype)))
    _check_size(image)
    words = _words(image)
    flat = np.empty(image.size, words.dtype)
    entries.cut_tiles(words, tile_size, flat)
    shapes = tile_shapes(image.shape, bits_of(image.dtype), tile_size)
    tiles = encode_many(flat.view(np.uint8), shapes[:, :3].prod(1) * image.itemsize, codec, shapes)
    ends = np.cumsum(tiles.stored_nbytes).astype("<u4")
    entry = np.dtype([("checksum", "<u8"), ("end", "<u4")])
    table = np.empty(len(ends), entry)
    table["checksum"], table["end"] = tiles.checksum, ends
    rows = np.concatenate([np.zeros(FIRST_START_NBYTES, np.uint8), table.view(np.uint8)])
    first = np.arange(0, len(ends), TILES_IN_GROUP) * TILE_ENTRY_NBYTES
    nbytes = np.minimum(TILES_IN_GROUP * TILE_ENTRY_NBYTES + FIRST_START_NBYTES, rows.size - first)
    sums = np.empty(len(first), np.uint64)
    entries.hash_many(rows, first, nbytes, sums)
    head = sums.astype("<u8").view(np.uint8)
    stored = np.concatenate([head, rows, tiles.data])
    return _one_payload(stored, image.nbytes, _named(codec).tiled or CODEC_TILES, checksum(head))


def tile_table_nbytes(num_tiles: npt.NDArray[Any]) -> tuple[Any, Any]:
    """Return the bytes (n,) of tables of tiles, and how many of them, from the first on, the index's checksum covers.

    >>> [sizes.tolist() for sizes in tile_table_nbytes(np.array([64, 65]))]
    [[780, 800], [8, 16]]
    """
    sums_nbytes = -(-num_tiles // TILES_IN_GROUP) * GROUP_SUM_NBYTES
    return sums_nbytes + FIRST_START_NBYTES + num_tiles * TILE_ENTRY_NBYTES, sums_nbytes


def is_tiled(image: npt.NDArray[Any], codec: str) -> bool:
    """Return whether an image (H, W, C) is encoded in tiles rather than as one (C, H, W) payload."""
    return image.nbytes > TILED_ABOVE_NBYTES and _named(codec).tiled is not None


def planes(image: npt.NDArray[Any]) -> U8:
    """Return an image (H, W, C) as the bytes of a (C, H, W) array, which `encode_many` takes.

    Raises:
        OptionError: It has more bytes than a payload can have.
    """
    _check_size(image)
    words = _words(image)
    flat = np.empty(image.size, words.dtype)
    entries.cut(words, 0, 0, image.shape[0], image.shape[1], flat)
    return flat.view(np.uint8)


def _words(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return pixels as the whole numbers with their bits, which kernels move, C-contiguous."""
    return np.ascontiguousarray(image).view(f"u{image.itemsize}")


def _check_size(image: npt.NDArray[Any]) -> None:
    if image.nbytes > MAX_PAYLOAD_NBYTES * 0.99:
        raise OptionError(
            f"an image of {image.shape} {image.dtype}: {image.nbytes} bytes exceed one payload's 2 GiB. Cut it."
        )


def encode_jpeg(image: npt.NDArray[Any], quality: int, *, fast: bool = False) -> Payloads:
    """Encode one image (H, W, C) uint8 as a JPEG with restart markers.

    Args:
        image: With 1 or 3 channels, neither side above 65,535 pixels.
        quality: 1 to 100, as in libjpeg.
        fast: As in `pack_jpeg`.
    """
    from PIL import Image  # reading needs it for few files

    file = io.BytesIO()
    plain = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    plain.save(file, "JPEG", quality=quality, restart_marker_rows=1)
    packed = pack_jpeg(file.getvalue(), 1, image.nbytes, fast=fast)
    return packed or pack_file(file.getvalue(), image.nbytes)


def pack_jpeg(data: bytes, orientation: int, raw_nbytes: int, *, fast: bool = False) -> Payloads | None:
    """Return a JPEG file as a payload; None if the kernels cannot decode the file.

    Args:
        data: The whole file.
        orientation: From its EXIF data, 1 to 8.
        raw_nbytes: Of its decoded pixels.
        fast: Whether it is recoded, see `jpeg_payload.pack`.
    """
    from lmdbloader.format import jpeg_payload  # reading batches does not need it

    found = jpeg_payload.pack(data, orientation, fast=fast)
    if found is None or found[1] != raw_nbytes:
        return None
    return _one_payload(found[0], raw_nbytes, CODEC_JPEG, checksum(found[0]))


def unpack_jpeg(payload: bytes | memoryview) -> bytes:
    """Return the file in a JPEG payload.

    Raises:
        FormatError: The payload is damaged.
    """
    from lmdbloader.format import jpeg_payload

    return jpeg_payload.unpack(payload)


def pack_file(data: bytes, raw_nbytes: int) -> Payloads:
    """Return an image file's own bytes as a payload.

    Args:
        data: The whole file.
        raw_nbytes: Of its decoded pixels.
    """
    return _one_payload(np.frombuffer(data, np.uint8), raw_nbytes, CODEC_FILE, checksum(data))


def _decode_file(data: bytes, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    from lmdbloader.images.decode import DecodePolicy, decode_image

    pixels = decode_image(data, DecodePolicy(max_pixels=math.prod(shape[1:])), name="the file").transpose(2, 0, 1)
    if pixels.shape != shape or pixels.dtype != dtype:
        found, expected = (f"{kind} {(h, w, c)}" for kind, (c, h, w) in ((pixels.dtype, pixels.shape), (dtype, shape)))
        raise ValueError(f"its file decodes to {found}; the index says {expected}")
    return np.ascontiguousarray(pixels)


def _one_payload(stored: U8, raw_nbytes: int, number: int, xxh3: int) -> Payloads:
    sizes = np.array([stored.size]), np.array([raw_nbytes])
    return Payloads(stored, *sizes, np.array([xxh3], np.uint64), np.array([number], np.uint8))


def tile_shapes(shape: Sequence[int], bits: int, tile_size: int) -> I64:
    """Return (height, width, channels, bits) of every tile of an image (H, W, C), row by row.

    >>> tile_shapes((3, 3, 1), 8, 2).tolist()
    [[2, 2, 1, 8], [2, 1, 1, 8], [1, 2, 1, 8], [1, 1, 1, 8]]
    """
    heights = np.diff(np.append(np.arange(0, shape[0], tile_size), shape[0]))
    widths = np.diff(np.append(np.arange(0, shape[1], tile_size), shape[1]))
    down, across = np.repeat(heights, len(widths)), np.tile(widths, len(heights))
    return np.stack(np.broadcast_arrays(down, across, shape[2], bits), 1).astype(np.int64)


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


def codec_for(kind: str, name: str) -> str:
    """Return the codec of a field of some kind for codec=NAME: lz4 instead of one that is for other kinds.

    >>> codec_for("image", "delta"), codec_for("mask", "delta"), codec_for("mask", "auto")
    ('delta', 'lz4', 'auto')
    """
    entry = named_codecs().get(name)
    return "lz4" if entry is not None and entry.only_kinds and kind not in entry.only_kinds else name


def check_codec(name: str) -> None:
    """Raise OptionError unless codec= can have this name, or it is "auto"."""
    if name not in (names := ("auto", *named_codecs())):
        raise OptionError(f"{option('codec', name)}: expected one of {', '.join(names)}")


def refuse_floats(codec: str | None, bits: int, where: str) -> None:
    """Raise OptionError if delta is asked to code floats, known by their `bits`, of an image at `where`."""
    if codec == "delta" and bits % 2:
        line = f"Write {option('codec', 'lz4')}, or leave it out"
        raise OptionError(f"{where}: holds floats, and {option('codec', 'delta')} encodes integers only. {line}.")


def check_prefer(prefer: str, codecs: Iterable[str]) -> None:
    """Raise OptionError unless prefer= can have this value; what auto chooses by needs a codec that is auto."""
    if prefer not in ("speed", "size"):
        raise OptionError(f"{option('prefer', prefer)}: expected 'speed' or 'size'")
    if prefer == "size" and "auto" not in codecs:
        raise OptionError(
            f"{option('prefer', prefer)} has no effect: it is for {option('codec', 'auto')}. Leave one out."
        )


#: Every codec by number. A new one gets its row here, its number in `lmdbloader.kernels.codec_numbers` and, if kernels
#: decode it, its branch in `lmdbloader.kernels.decode`. Image files have no `max_ratio`: a single color of any size is
#: some dozens of bytes in WebP and TIFF.
TABLE: Mapping[int, CodecEntry] = {
    entry.number: entry
    for entry in (
        CodecEntry(CODEC_RAW, "raw", encode=_encode_raw, max_ratio=1, tiled=CODEC_TILES),
        CodecEntry(CODEC_LZ4, "lz4", encode=_encode_lz4, max_ratio=_LZ4_RATIO, tiled=CODEC_TILES),
        CodecEntry(CODEC_TILES, "tiles", ("image", "mask"), has_windows=True, max_ratio=_LZ4_RATIO),
        CodecEntry(CODEC_JPEG, "jpeg", ("image",), has_windows=True, source_file=unpack_jpeg, max_ratio=_JPEG_RATIO),
        CodecEntry(CODEC_FILE, "file", ("image",), decode=_decode_file, source_file=bytes),
        CodecEntry(
            CODEC_DELTA, "delta", ("image",), encode=_encode_delta, max_ratio=_DELTA_RATIO, tiled=CODEC_DELTA_TILES
        ),
        CodecEntry(CODEC_DELTA_TILES, "delta tiles", ("image",), has_windows=True, max_ratio=_DELTA_RATIO),
    )
}
