"""PNG files, decoded and encoded without Pillow: checksums are verified, and RGB of 16 bits is possible."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import ImageError, OptionError
from lmdbloader.images.header import ImageHeader, Pixels, find_orientation
from lmdbloader.kernels import entries

SIGNATURE = b"\x89PNG\r\n\x1a\n"

_GRAY, _RGB, _PALETTE, _GRAY_ALPHA, _RGB_ALPHA = 0, 2, 3, 4, 6
_SAMPLES = {_GRAY: 1, _RGB: 3, _PALETTE: 1, _GRAY_ALPHA: 2, _RGB_ALPHA: 4}
_BIT_DEPTHS = {
    _GRAY: (1, 2, 4, 8, 16),
    _RGB: (8, 16),
    _PALETTE: (1, 2, 4, 8),
    _GRAY_ALPHA: (8, 16),
    _RGB_ALPHA: (8, 16),
}
# Adam7: the first row, the first column, and the steps between rows and columns of each pass.
_WHOLE = ((0, 0, 1, 1),)
_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
# Deflate cannot shrink further than this, so a header that promises more than the data could hold is caught early.
_DEFLATE_MAX_RATIO = 1032
# Texts that may say which side is up, and as much of them as Pillow reads.
_XMP, _RAW_EXIF = b"XML:com.adobe.xmp", b"Raw profile type exif"
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_MOST_TEXT_NBYTES = 2**20
# If rows and filtered rows share one memory, so many rows fit in before the filtered ones: the kernel does 8 at once.
_ROWS_AHEAD = 8
# Writing: the color type by the number of channels.
_COLOR_TYPES = {1: _GRAY, 3: _RGB}
_MAX_SIDE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Png:
    """The chunks of a PNG file that describe its pixels."""

    name: str
    data: memoryview
    height: int
    width: int
    bit_depth: int
    color_type: int
    interlaced: bool
    palette: bytes
    transparency: bytes | None
    orientation: int
    image_chunks: tuple[slice, ...]


def read_header(data: memoryview, name: str) -> ImageHeader:
    """Read a PNG file's header chunks.

    Raises:
        ImageError: It is cut short, animated or not valid PNG.
    """
    png = _read_chunks(data, name)
    gray = png.color_type in (_GRAY, _GRAY_ALPHA)
    return ImageHeader(
        height=png.height,
        width=png.width,
        channels=1 if gray else 3,
        dtype=np.dtype(np.uint16) if png.bit_depth == 16 else np.dtype(np.uint8),
        alpha=png.color_type in (_GRAY_ALPHA, _RGB_ALPHA) or png.transparency is not None,
        orientation=png.orientation,
        decode=lambda: _finish(png, _decode(png)),
        numbers=(lambda: _decode(png)) if png.color_type in (_GRAY, _PALETTE) else None,
        palette=lambda: png.palette if png.color_type == _PALETTE else b"",
    )


def read_first_chunk(data: memoryview, name: str) -> tuple[int, int, int, int]:
    """Return height, width, channels without alpha, and bytes of a channel of a PNG file, from its first 29 bytes.

    Raises:
        ImageError: They are not valid PNG.
    """
    if len(data) < 29 or bytes(data[12:16]) != b"IHDR":
        raise ImageError(name, "the PNG file starts without an IHDR")
    width, height, bit_depth, color_type, _ = _read_ihdr(data[16:29], name)
    channels = 1 if color_type in (_GRAY, _GRAY_ALPHA) else 3
    return height, width, channels, 2 if bit_depth == 16 else 1


def _chunks(data: memoryview, name: str) -> Iterator[tuple[bytes, slice]]:
    """Yield every chunk's type and the place of its body, up to and with IEND."""
    position = len(SIGNATURE)
    while True:
        if position + 12 > len(data):
            raise ImageError(name, f"the PNG file is cut short: it ends at byte {len(data)}, without an IEND chunk")
        length, kind = struct.unpack_from(">I4s", data, position)
        body = slice(position + 8, position + 8 + length)
        if body.stop + 4 > len(data):
            raise ImageError(
                name,
                f"the PNG file is cut short: chunk {_show(kind)} at byte {position} needs {length} bytes, "
                f"the file ends at byte {len(data)}",
            )
        yield kind, body
        if kind == b"IEND":
            return
        position = body.stop + 4


def _read_chunks(data: memoryview, name: str) -> _Png:
    first: tuple[int, int, int, int, int] | None = None
    found: dict[bytes, bytes] = {}
    image_chunks: list[slice] = []
    for kind, body in _chunks(data, name):
        if first is None:
            if kind != b"IHDR" or body.stop - body.start != 13:
                raise ImageError(name, f"the PNG file starts with chunk {_show(kind)} instead of a 13-byte IHDR")
            _check_crc(data, body, name)
            first = _read_ihdr(data[body], name)
        elif kind == b"IDAT":
            image_chunks.append(body)
        elif kind in (b"PLTE", b"tRNS", b"eXIf", b"acTL"):
            _check_crc(data, body, name)
            found[kind] = bytes(data[body])
        elif kind in _TEXTS:
            start = bytes(data[body][: len(_RAW_EXIF) + 1])
            if start.startswith((_XMP + b"\0", _RAW_EXIF + b"\0")):
                found[start.partition(b"\0")[0]] = _read_text(kind, bytes(data[body]))
        elif kind == b"IHDR" or (kind != b"IEND" and not kind[0] & 0x20):
            raise ImageError(name, f"unexpected critical PNG chunk {_show(kind)}")
    if first is None or not image_chunks:
        raise ImageError(name, "the PNG file holds no image data")
    if int.from_bytes(found.get(b"acTL", b"")[:4], "big") > 1:
        raise ImageError(name, "animated PNG; only files with a single frame can be used")
    width, height, bit_depth, color_type, interlace = first
    palette = found.get(b"PLTE", b"")
    if color_type == _PALETTE and (not palette or len(palette) % 3 or len(palette) > 768):
        raise ImageError(name, f"the PNG palette has {len(palette)} bytes; expected a multiple of 3, from 3 to 768")
    transparency = found.get(b"tRNS")
    if transparency is not None and len(transparency) < {_GRAY: 2, _RGB: 6}.get(color_type, 0):
        raise ImageError(name, f"the PNG tRNS chunk has only {len(transparency)} bytes")
    return _Png(
        name=name,
        data=data,
        height=height,
        width=width,
        bit_depth=bit_depth,
        color_type=color_type,
        interlaced=bool(interlace),
        palette=palette,
        transparency=transparency if color_type in (_GRAY, _RGB, _PALETTE) else None,
        orientation=find_orientation(_exif_of(found), found.get(_XMP, b"")),
        image_chunks=tuple(image_chunks),
    )


def _read_text(kind: bytes, body: bytes) -> bytes:
    """Return the text of a chunk, "" if it is damaged."""
    _, _, text = body.partition(b"\0")
    is_packed = kind == b"zTXt"
    if kind == b"iTXt":
        is_packed = text[:1] == b"\1"
        text = text[2:].partition(b"\0")[2].partition(b"\0")[2]
    else:
        text = text[1 if is_packed else 0 :]
    try:
        return zlib.decompressobj().decompress(text, _MOST_TEXT_NBYTES) if is_packed else text
    except zlib.error:
        return b""


def _exif_of(found: dict[bytes, bytes]) -> bytes:
    """Return the EXIF block of a file: a chunk, or ImageMagick's text of hexadecimal digits."""
    if b"eXIf" in found:
        return found[b"eXIf"]
    try:
        return bytes.fromhex(b"".join(found.get(_RAW_EXIF, b"").split(b"\n")[3:]).decode("ascii"))
    except ValueError:
        return b""


def _read_ihdr(body: memoryview, name: str) -> tuple[int, int, int, int, int]:
    width, height, bit_depth, color_type, compression, filtering, interlace = struct.unpack(">IIBBBBB", body)
    if not (0 < width < 1 << 31 and 0 < height < 1 << 31):
        raise ImageError(name, f"the PNG header gives {width}x{height} pixels")
    if bit_depth not in _BIT_DEPTHS.get(color_type, ()):
        raise ImageError(name, f"the PNG header gives bit depth {bit_depth} with color type {color_type}")
    if compression or filtering or interlace > 1:
        raise ImageError(
            name, f"the PNG header gives unknown methods: compression {compression}, filter {filtering}, {interlace=}"
        )
    return width, height, bit_depth, color_type, interlace


def _check_crc(data: memoryview, body: slice, name: str) -> None:
    (expected,) = struct.unpack_from(">I", data, body.stop)
    found = zlib.crc32(data[body.start - 4 : body.stop])
    if found != expected:
        kind = _show(bytes(data[body.start - 4 : body.start]))
        raise ImageError(
            name,
            f"the PNG is damaged: chunk {kind} at byte {body.start - 8} has CRC {found:08x}, not {expected:08x}",
        )


def _decode(png: _Png) -> Pixels:
    """Return the samples as they are in the file, (height, width, samples), uint8 or uint16."""
    for _, body in _chunks(png.data, png.name):
        _check_crc(png.data, body, png.name)
    samples_a_pixel = _SAMPLES[png.color_type]
    passes = []
    for top, left, down, right in _ADAM7 if png.interlaced else _WHOLE:
        height, width = -(-(png.height - top) // down), -(-(png.width - left) // right)
        if height > 0 and width > 0:
            row_nbytes = (width * samples_a_pixel * png.bit_depth + 7) // 8
            passes.append((slice(top, None, down), slice(left, None, right), height, width, row_nbytes))
    expected = sum(height * (1 + row_nbytes) for _, _, height, _, row_nbytes in passes)
    if not png.interlaced:
        # One memory for both: every row is written where a row that has been read was.
        _, _, height, width, row_nbytes = passes[0]
        ahead = _ROWS_AHEAD * row_nbytes
        memory = _inflate(png, expected, ahead)
        return _samples(png, memory[ahead:], height, width, memory[: height * row_nbytes].reshape(height, row_nbytes))
    raw = _inflate(png, expected)
    dtype = np.uint16 if png.bit_depth == 16 else np.uint8
    samples = np.empty((png.height, png.width, samples_a_pixel), dtype)
    position = 0
    for rows, columns, height, width, row_nbytes in passes:
        stop = position + height * (1 + row_nbytes)
        unfiltered = np.empty((height, row_nbytes), np.uint8)
        samples[rows, columns] = _samples(png, raw[position:stop], height, width, unfiltered)
        position = stop
    return samples


def _inflate(png: _Png, expected: int, ahead: int = 0) -> npt.NDArray[np.uint8]:
    """Return the image's decompressed bytes, exactly as many as expected, with this room ahead of them."""
    nbytes = sum(body.stop - body.start for body in png.image_chunks)
    if expected > _DEFLATE_MAX_RATIO * nbytes:
        raise ImageError(png.name, f"{nbytes} bytes of PNG image data cannot hold {png.width}x{png.height} pixels")
    slack, num_words = entries.inflate_room()
    packed = b"".join([*(png.data[body] for body in png.image_chunks), bytes(slack)])
    memory = np.empty(ahead + expected + slack, np.uint8)
    source, work = np.frombuffer(packed, np.uint8), np.empty(num_words, np.uint32)
    if not entries.inflate(source, nbytes, memory[ahead:], expected, work):
        memory[ahead : ahead + expected] = _inflate_by_zlib(png, packed[:nbytes], expected)
    return memory[: ahead + expected]


def _inflate_by_zlib(png: _Png, packed: bytes, expected: int) -> npt.NDArray[np.uint8]:
    """Decompress data that the kernel refuses: zlib has the last word, and says what is wrong with them."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(packed, expected + 1)
    except zlib.error as error:
        raise ImageError(png.name, f"the PNG image data is damaged: {error}") from error
    if len(raw) != expected:  # the sum at the end may be missing, as for Pillow
        found = f"more than {expected}" if len(raw) > expected else str(len(raw))
        raise ImageError(
            png.name, f"the PNG image data holds {found} bytes; {png.width}x{png.height} pixels take exactly {expected}"
        )
    return np.frombuffer(raw, np.uint8)


def _samples(png: _Png, raw: npt.NDArray[np.uint8], height: int, width: int, rows: npt.NDArray[np.uint8]) -> Pixels:
    """Undo the filters of one pass and return its samples, unscaled, as (height, width, samples).

    Args:
        png: The file.
        raw: The filtered bytes of the pass.
        height: Rows of the pass.
        width: Its columns.
        rows: (height, bytes of a row), filled; may be the returned samples.
    """
    samples_a_pixel = _SAMPLES[png.color_type]
    row_nbytes = rows.shape[1]
    step = max(1, samples_a_pixel * png.bit_depth // 8)
    bad_row = entries.unfilter_png(raw.reshape(height, 1 + row_nbytes), np.zeros(row_nbytes, np.uint8), rows, step)
    if bad_row >= 0:
        raise ImageError(png.name, f"the PNG image data is damaged: row {bad_row} names a filter that does not exist")
    if png.bit_depth == 16:
        return rows.view(">u2").astype(np.uint16).reshape(height, width, samples_a_pixel)
    if png.bit_depth < 8:
        bits = np.unpackbits(rows, axis=1).reshape(height, -1, png.bit_depth)
        weights = (1 << np.arange(png.bit_depth - 1, -1, -1)).astype(np.uint8)
        rows = (bits @ weights)[:, :width]
    return np.ascontiguousarray(rows).reshape(height, width, samples_a_pixel)


def _finish(png: _Png, samples: Pixels) -> Pixels:
    """Turn palette numbers into colors, a transparent color into alpha, and gray of 1, 2 or 4 bits into 8.

    Alpha, if any, is the last sample.
    """
    if png.color_type == _PALETTE:
        return _look_up(png, samples[:, :, 0])
    opaque = None
    if png.transparency is not None:
        key = np.frombuffer(png.transparency, ">u2", count=samples.shape[2])
        opaque = (samples != key).any(axis=2, keepdims=True)
    if png.bit_depth < 8:
        samples = samples * np.uint8(255 // ((1 << png.bit_depth) - 1))
    if opaque is None:
        return samples
    alpha = opaque.astype(samples.dtype) * np.iinfo(samples.dtype).max
    return np.concatenate((samples, alpha), axis=2)


def _look_up(png: _Png, numbers: Pixels) -> Pixels:
    palette = np.frombuffer(png.palette, np.uint8).reshape(-1, 3)
    highest = int(numbers.max())
    if highest >= len(palette):
        raise ImageError(png.name, f"a pixel has palette number {highest}; the PNG palette has {len(palette)} colors")
    if png.transparency is not None:
        alpha = np.full((len(palette), 1), 255, np.uint8)
        known = png.transparency[: len(palette)]
        alpha[: len(known), 0] = np.frombuffer(known, np.uint8)
        palette = np.concatenate((palette, alpha), axis=1)
    return palette.take(numbers, axis=0)


def _show(kind: bytes) -> str:
    """Return a chunk's type as a message shows it."""
    return kind.decode("ascii", "backslashreplace")


def encode_png(image: npt.NDArray[Any], *, level: int = 6) -> bytes:
    """Return a PNG file with exactly these pixels.

    Args:
        image: (H, W, C) uint8 or uint16 with 1 (gray) or 3 (RGB) channels; need not be contiguous.
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
        (SIGNATURE, _chunk(b"IHDR", header), _chunk(b"IDAT", _compress(image, level)), _chunk(b"IEND", b""))
    )


def _compress(image: npt.NDArray[Any], level: int) -> bytes:
    rows = np.ascontiguousarray(image, f">u{image.itemsize}").reshape(len(image), -1).view(np.uint8)
    # Every row is stored as the differences from the one above, which wrap around: the filter "Up".
    out = np.full((len(rows), 1 + rows.shape[1]), 2, np.uint8)
    out[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=out[1:, 1:])
    return zlib.compress(out.data, level)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(body, zlib.crc32(kind)))
