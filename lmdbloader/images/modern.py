"""AVIF, HEIC and JPEG XL files: what their headers say, and their pixels by optional packages."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np

from lmdbloader.errors import ImageError
from lmdbloader.images.header import ImageHeader, Pixels
from lmdbloader.images.rasters import explained, package

JXL_SIGNATURES = (b"\xff\x0a", b"\0\0\0\x0cJXL ")
_AVIF, _AVIF_SEQUENCE = b"avif", b"avis"
_HEIC = (b"heic", b"heix", b"heim", b"heis", b"mif1", b"hevc", b"hevx", b"msf1")
_ALPHA = b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha"
# The orientation after an anticlockwise turn by so many right angles: alone, and before a mirror of axis 0 or 1.
_ORIENTATIONS = {None: (1, 8, 3, 6), 0: (4, 5, 2, 7), 1: (2, 7, 4, 5)}
# JPEG XL: width for height, by the number of a ratio.
_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
_GRAY = 1


def is_box_file(start: bytes) -> bool:
    """Return whether a file with these first bytes is AVIF or HEIC."""
    return start[4:8] == b"ftyp" and start[8:12] in (_AVIF, _AVIF_SEQUENCE, *_HEIC)


def read_box_file(data: memoryview, name: str) -> ImageHeader:
    """Read the header of an AVIF or HEIC file; sequences and several images are refused."""
    with explained("AVIF or HEIC header", name):
        kind, brands = next(_boxes(data))
        is_avif = kind == b"ftyp" and any(bytes(brands[at : at + 4]) == _AVIF for at in range(0, len(brands), 4))
    if bytes(brands[:4]) in (_AVIF_SEQUENCE, b"hevc", b"hevx", b"msf1"):
        raise ImageError(name, "a sequence of images in an AVIF or HEIC file; only files with a single one can be used")
    return _read_avif(data, name) if is_avif else _read_heic(data, name)


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the type and the content of each box."""
    at = 0
    while at + 8 <= len(data):
        nbytes, kind, head = int.from_bytes(data[at : at + 4], "big"), bytes(data[at + 4 : at + 8]), 8
        if nbytes == 1:
            nbytes, head = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        end = at + nbytes if nbytes else len(data)
        if end < at + head or (end > len(data) and kind in (b"meta", b"iprp", b"ipco")):
            raise ValueError(f"box {kind!r} at byte {at} has {nbytes} bytes")
        yield kind, data[at + head : end]
        at = end


def _read_avif(data: memoryview, name: str) -> ImageHeader:
    with explained("AVIF header", name):
        inner = dict(_boxes(dict(_boxes(data))[b"meta"][4:]))
        properties = list(_boxes(dict(_boxes(inner[b"iprp"]))[b"ipco"]))
        sizes = [(int.from_bytes(p[4:8], "big"), int.from_bytes(p[8:12], "big")) for k, p in properties if k == b"ispe"]
        width, height = max(sizes, key=lambda size: size[0] * size[1])  # others are those of tiles
        flags = [int(p[2]) for k, p in properties if k == b"av1C"]
        bits = max(8 + 2 * (flag >> 6 & 1) + 2 * (flag >> 5 & 1 & flag >> 6) for flag in flags)
        turns = next((int(p[0]) & 3 for k, p in properties if k == b"irot"), 0)
        axis = next((int(p[0]) & 1 for k, p in properties if k == b"imir"), None)
        has_alpha = any(k == b"auxC" and bytes(p[4:]).startswith(_ALPHA) for k, p in properties)
    channels = 1 if all(flag >> 4 & 1 for flag in flags) else 3
    codecs = package("imagecodecs", "an AVIF file", name)

    def decode() -> Pixels:
        with explained("AVIF data", name):
            return _full(codecs.avif_decode(bytes(data), numthreads=1), bits)

    dtype = np.dtype(np.uint8 if bits == 8 else np.uint16)
    return ImageHeader(height, width, channels, dtype, has_alpha, _ORIENTATIONS[axis][turns], decode)


def _read_heic(data: memoryview, name: str) -> ImageHeader:
    heif = package("pillow_heif", "a HEIC file", name)
    with explained("HEIC header", name):
        file = heif.open_heif(io.BytesIO(data), convert_hdr_to_8bit=False)
        num_images, (width, height), mode, bits = len(file), file.size, file.mode.partition(";")[0], 8
        if file.mode != mode:
            bits = int(file.info["bit_depth"])
    if num_images != 1:
        raise ImageError(name, f"the HEIC file holds {num_images} images; only files with a single one can be used")

    def decode() -> Pixels:
        with explained("HEIC data", name):  # values of more than 8 bits come as the highest of 16
            return _full(np.asarray(file) >> (16 - bits if bits > 8 else 0), bits)

    channels, has_alpha = 1 if mode in ("L", "LA", "I") else 3, mode in ("LA", "RGBA")
    # It has been turned as the file says.
    return ImageHeader(
        height, width, channels, np.dtype(np.uint8 if bits == 8 else np.uint16), has_alpha, 1, decode
    )  # fmt: skip


class _Bits:
    """Reads a JPEG XL header, from the lowest bit of its first byte on."""

    def __init__(self, data: bytes) -> None:
        self._number, self._left = int.from_bytes(data, "little"), 8 * len(data)

    def take(self, count: int) -> int:
        """Return the next bits as a number."""
        if count > self._left:
            raise ValueError("it ends too early")
        found, self._number, self._left = self._number & ((1 << count) - 1), self._number >> count, self._left - count
        return found

    def choose(self, *options: tuple[int, int]) -> int:
        """Return one of four numbers, each given as what is added to so many bits."""
        base, count = options[self.take(2)]
        return base + self.take(count)

    def size(self) -> tuple[int, int]:
        """Return (height, width)."""
        sides, is_small = list[int](), self.take(1)
        for number in range(2):
            if number and (ratio := self.take(3)):
                return sides[0], sides[0] * _RATIOS[ratio - 1][0] // _RATIOS[ratio - 1][1]
            sides.append(8 + 8 * self.take(5) if is_small else self.choose((1, 9), (1, 13), (1, 18), (1, 30)))
        return sides[0], sides[1]

    def depth(self) -> tuple[bool, int]:
        """Return whether values are floats, and their bits."""
        if self.take(1):
            bits = self.choose((32, 0), (16, 0), (24, 0), (1, 6))
            self.take(4)
            return True, bits
        return False, self.choose((8, 0), (10, 0), (12, 0), (1, 6))

    def enum(self) -> int:
        """Return the number of a kind."""
        return self.choose((0, 0), (1, 0), (2, 4), (18, 6))


def read_jxl(data: memoryview, name: str) -> ImageHeader:
    """Read the header of a JPEG XL file; animations, previews, and channels besides colors and alpha are refused."""
    codecs = package("imagecodecs", "a JPEG XL file", name)
    with explained("JPEG XL header", name):
        start = data
        if data[0] == 0:
            kind, start = next((k, content) for k, content in _boxes(data) if k in (b"jxlc", b"jxlp"))
            start = start[4:] if kind == b"jxlp" else start  # after its number
        bits = _Bits(bytes(start[2:1024]))
        (height, width), orientation, is_odd, (is_float, depth) = bits.size(), 1, False, (False, 8)
        num_more, has_alpha, is_gray = 0, False, False
        if not bits.take(1):
            if bits.take(1):
                orientation = 1 + bits.take(3)
                if bits.take(1):
                    bits.size()
                is_odd = bool(bits.take(1) or bits.take(1))
            if not is_odd:
                is_float, depth = bits.depth()
                bits.take(1)
                num_more = bits.choose((0, 0), (1, 0), (2, 4), (1, 12))
            if num_more == 1:
                has_alpha = bool(bits.take(1))
                if not has_alpha:
                    has_alpha = bits.enum() == 0
                    bits.depth()
                    bits.choose((0, 0), (3, 0), (4, 0), (1, 3))
                    bits.take(8 * bits.choose((0, 0), (0, 4), (16, 5), (48, 10)))
                    has_alpha &= not bits.take(1)  # colors times alpha
            if not is_odd and num_more == has_alpha:
                bits.take(1)
                if not bits.take(1):
                    bits.take(1)
                    is_gray = bits.enum() == _GRAY
    if is_odd:
        raise ImageError(name, "an animated JPEG XL file, or one with a preview; save it as a single image")
    if num_more != has_alpha:
        raise ImageError(name, "a JPEG XL file with channels besides colors and transparency; save it as TIFF")

    def decode() -> Pixels:
        with explained("JPEG XL data", name):
            return _full(codecs.jpegxl_decode(bytes(data), numthreads=1), 0 if is_float else depth)

    dtype = np.dtype(np.float32 if depth > 16 else np.float16) if is_float else np.dtype(f"u{1 + (depth > 8)}")
    height, width = (height, width) if orientation < 5 else (width, height)  # the decoder turns it
    return ImageHeader(height, width, 1 if is_gray else 3, dtype, has_alpha, 1, decode)


def _full(values: Pixels, bits: int) -> Pixels:
    """Return pixels (H, W, C) with the values of 9 to 15 bits in the whole range of 16; floats have 0 bits."""
    values = values if values.ndim == 3 else values[:, :, None]
    if values.ndim != 3:
        raise ValueError("it holds several images")
    if not 8 < bits < 16:
        return values
    most = np.uint32((1 << bits) - 1)
    return ((values.astype(np.uint32) * np.uint32(65535) + most // np.uint32(2)) // most).astype(np.uint16)
