"""Makes the image files beside it, each of a kind that releases of Pillow or NumPy have read differently.

They are kept as files because releases of Pillow write them differently, too; tests/test_versions.py says what is in
them.
From the root of the repository, with a Pillow that has libtiff and WebP: python tests/data/versions/make_versions.py
"""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
HEIGHT, WIDTH = 20, 28


def pixels(channels: int, dtype: Any = np.uint8) -> np.ndarray:
    """Return an image (20, 28, C) of smooth shades."""
    y, x, c = np.ogrid[:HEIGHT, :WIDTH, :channels]
    return (y * (9 - c) + x * (3 + 2 * c) + x * y // 7 + c * 60).astype(dtype) * (250 if dtype == np.uint16 else 1)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return the file that Pillow writes."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned(orientation: int) -> Image.Exif:
    """Return EXIF data with nothing but an orientation."""
    block = Image.Exif()
    block[0x0112] = orientation
    return block


def png16(samples: np.ndarray) -> bytes:
    """Return a PNG file of 16-bit RGBA, which Pillow does not write."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    header = struct.pack(">IIBBBBB", samples.shape[1], samples.shape[0], 16, 6, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def bmp(header_nbytes: int, bits: int, body: bytes, masks: tuple[int, ...] = (), compression: int = 0) -> bytes:
    """Return a BMP file with a second header of so many bytes."""
    header = struct.pack("<IiiHHIIiiII", header_nbytes, WIDTH, HEIGHT, 1, bits, compression, 0, 0, 0, 0, 0)
    header = (header + struct.pack(f"<{len(masks)}I", *masks)).ljust(header_nbytes, b"\0")
    offset = 14 + header_nbytes + (4 << bits if bits <= 8 else 0)
    return b"BM" + struct.pack("<IHHI", 14 + len(header) + len(body), 0, 0, offset) + header + body


def files() -> dict[str, bytes]:
    """Return every file's content by its name."""
    rgb, rgba, grey = (Image.fromarray(pixels(c).squeeze()) for c in (3, 4, 1))
    palette = rgb.quantize(16)
    wide = Image.fromarray(pixels(1, np.uint16)[:, :, 0])
    return {
        "alpha.png": saved(rgba, "PNG"),
        "alpha_16_bit.png": png16(pixels(4, np.uint16)),
        "alpha_grey.png": saved(rgba.convert("LA"), "PNG"),
        "alpha_palette.png": saved(palette, "PNG", transparency=bytes(range(0, 160, 10))),
        "bits_16.tif": saved(wide, "TIFF", exif=turned(8)),
        "bits_32.bmp": bmp(56, 32, pixels(4).tobytes(), (0xFF0000, 0xFF00, 0xFF, 0xFF000000), 3),
        "bitmap.pbm": saved(grey.convert("1"), "PPM"),
        "cmyk.jpg": saved(rgb.convert("CMYK"), "JPEG", quality=90),
        "cmyk.tif": saved(rgb.convert("CMYK"), "TIFF"),
        "grey.tif": saved(grey, "TIFF", exif=turned(3)),
        "palette.bmp": saved(palette, "BMP"),
        "palette.gif": saved(palette, "GIF"),
        "palette.tif": saved(palette, "TIFF", exif=turned(5)),
        "rgb.bmp": saved(rgb, "BMP"),
        "transparent.gif": saved(palette, "GIF", transparency=3),
        "turned.jpg": saved(rgb, "JPEG", quality=85, exif=turned(6)),
        "turned.png": saved(rgb, "PNG", exif=turned(7)),
        "turned.tif": saved(rgb, "TIFF", exif=turned(6)),
        "needs_libtiff.tif": saved(rgb, "TIFF", compression="tiff_lzw", exif=turned(8)),
        "needs_libtiff_ycbcr.tif": saved(rgb.convert("YCbCr"), "TIFF", compression="tiff_deflate", exif=turned(2)),
        "needs_webp.webp": saved(rgba, "WEBP", quality=80),
    }


def main() -> None:
    """Write them."""
    for name, content in files().items():
        (HERE / name).write_bytes(content)


if __name__ == "__main__":
    main()
