"""Bad and odd images, each with the policy that is stated for it."""

from __future__ import annotations

import io
import os
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

HEIGHT, WIDTH = 23, 37
# A photograph of this size is in the middle of all of them, larger in one direction than in the other.
Pixels = Any


@dataclass(frozen=True, slots=True)
class Beast:
    """One bad or odd image.

    Attributes:
        name: Of the file, in bytes as the file system has it.
        fate: Whether it is converted, refused (stops the conversion, or is skipped and named), or left out and named.
        make: Writes it to the path.
        expected: (H, W, C) pixels that must come out, None where it is not converted.
        reason: The error if it is not, or a part of it.
    """

    name: bytes
    fate: Literal["converted", "refused", "left out"]
    make: Callable[[bytes], None]
    expected: Pixels = None
    reason: str = ""

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return self.name.decode("utf-8", "backslashreplace")


def make_beasts() -> list[Beast]:
    """Return all of them that can be made with the installed Pillow."""
    return [*_png(), *_jpeg(), *_others(), *_names(), *_no_files()]


def photograph(height: int = HEIGHT, width: int = WIDTH) -> Pixels:
    """Return a piece of a real photograph, (H, W, 3) uint8."""
    import numpy as np
    import skimage.data

    return np.ascontiguousarray(skimage.data.astronaut()[100 : 100 + height, 200 : 200 + width])


def _converted(name: str | bytes, data: bytes, expected: Pixels) -> Beast:
    pixels = expected if expected.ndim == 3 else expected[:, :, None]
    return Beast(_bytes(name), "converted", _writes(data), pixels)


def _refused(name: str | bytes, data: bytes, reason: str) -> Beast:
    return Beast(_bytes(name), "refused", _writes(data), reason=reason)


def _bytes(name: str | bytes) -> bytes:
    return name if isinstance(name, bytes) else name.encode()


def _writes(data: bytes) -> Callable[[bytes], None]:
    def write(path: bytes) -> None:
        with open(path, "wb") as file:
            file.write(data)

    return write


def _saved(image: Any, kind: str, **options: Any) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **options)
    return file.getvalue()


def _image(mode: str) -> Any:
    from PIL import Image

    return Image.fromarray(photograph()).convert(mode)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _raw_png(
    height: int, width: int, bits: int, color: int, rows: bytes, *, interlaced: int = 0, more: bytes = b""
) -> bytes:
    """Return a PNG file of rows that are filtered already."""
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, interlaced)
    body = _chunk(b"IHDR", header) + more + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _unfiltered(samples: Any) -> bytes:
    return b"".join(b"\0" + row.tobytes() for row in samples)


def _interlaced(samples: Any) -> bytes:
    """Return the rows of Adam7's seven passes."""
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    return b"".join(_unfiltered(samples[top::down, left::right]) for top, left, down, right in passes)


def _png() -> Iterator[Beast]:
    import numpy as np

    rgb, grey = photograph(), np.asarray(_image("L"))
    plain = _saved(rgb, "PNG")
    bad = bytearray(plain)
    bad[len(bad) // 2] ^= 1
    yield _refused("crc.png", bytes(bad), "CRC|checksum|damaged")
    yield _refused("truncated.png", plain[: len(plain) // 2], "cut short")
    yield _refused("without_end.png", plain[:-12], "cut short|IEND")
    yield _refused("bomb.png", _raw_png(100_000, 100_000, 8, 2, bytes(10)), "pixels")
    yield _refused("zero_wide.png", _raw_png(5, 0, 8, 2, b""), "0x5|5x0")
    deep = (grey.astype(np.uint16) * 257).astype(">u2")
    yield _converted("deep.png", _raw_png(HEIGHT, WIDTH, 16, 0, _unfiltered(deep)), deep.astype(np.uint16))
    deep_rgb = (rgb.astype(np.uint16) * 256 + 7).astype(">u2")
    yield _converted("deep_rgb.png", _raw_png(HEIGHT, WIDTH, 16, 2, _unfiltered(deep_rgb)), deep_rgb.astype(np.uint16))
    yield _converted("one_bit.png", _saved(_image("1"), "PNG"), np.asarray(_image("1")).astype(np.uint8) * 255)
    palette = _image("P")
    yield _converted("palette.png", _saved(palette, "PNG"), np.asarray(palette.convert("RGB")))
    yield _refused("palette_transparent.png", _saved(palette, "PNG", transparency=3), "transparen|alpha")
    yield _refused("rgba.png", _saved(_image("RGBA"), "PNG"), "transparen|alpha")
    yield _refused("grey_alpha.png", _saved(_image("LA"), "PNG"), "transparen|alpha")
    color = _chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3))
    yield _refused(
        "transparent_color.png", _raw_png(HEIGHT, WIDTH, 8, 2, _unfiltered(rgb), more=color), "transparen|alpha"
    )
    yield _converted("interlaced.png", _raw_png(HEIGHT, WIDTH, 8, 2, _interlaced(rgb), interlaced=1), rgb)
    latin = _chunk(b"tEXt", "Author\0Mädchen für alles".encode("latin-1"))
    yield _converted("latin1.png", _raw_png(HEIGHT, WIDTH, 8, 2, _unfiltered(rgb), more=latin), rgb)
    text_bomb = _chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(10_000_000)))
    yield _converted("text_bomb.png", _raw_png(HEIGHT, WIDTH, 8, 2, _unfiltered(rgb), more=text_bomb), rgb)
    profile = _chunk(b"iCCP", b"none\0\0" + zlib.compress(b"no profile"))
    yield _converted("bad_profile.png", _raw_png(HEIGHT, WIDTH, 8, 2, _unfiltered(rgb), more=profile), rgb)
    frames = [_image("RGB"), _image("RGB").rotate(180)]
    yield _refused("animated.png", _saved(frames[0], "PNG", save_all=True, append_images=frames[1:]), "frame")
    yield _converted("one_pixel.png", _saved(rgb[:1, :1], "PNG"), rgb[:1, :1])
    long = np.ascontiguousarray(np.resize(rgb[0], (1, 70_000, 3)))
    yield _converted("wide.png", _saved(long, "PNG"), long)


def _jpeg() -> Iterator[Beast]:
    import numpy as np
    from PIL import Image, ImageOps

    rgb = photograph()
    plain = _saved(rgb, "JPEG", quality=90)
    pixels = _decoded(plain)
    yield _refused("truncated.jpg", plain[: len(plain) * 2 // 3], "damaged|cut short")
    yield _refused("without_end.jpg", plain[:-2], "damaged|cut short")
    scan = plain.index(b"\xff\xda") + 14
    yield _refused("damaged_data.jpg", plain[: scan + 20] + b"\xff\xd9" + plain[scan + 22 :], "damaged")
    yield _converted("garbage_behind.jpg", plain + b"\0garbage" * 50, pixels)
    progressive = _saved(rgb, "JPEG", quality=90, progressive=True)
    yield _converted("progressive.jpg", progressive, _decoded(progressive))
    grey = _saved(_image("L"), "JPEG")
    yield _converted("grey.jpg", grey, np.asarray(Image.open(io.BytesIO(grey))))
    frame = plain.index(b"\xff\xc0")
    yield _refused("arithmetic.jpg", plain[: frame + 1] + b"\xc9" + plain[frame + 2 :], "damaged|arithmetic|support")
    yield _refused("lossless.jpg", plain[: frame + 1] + b"\xc3" + plain[frame + 2 :], "damaged|support")
    yield _refused("twelve_bits.jpg", plain[: frame + 4] + b"\x0c" + plain[frame + 5 :], "12 bits")
    yield _refused("zero_high.jpg", plain[: frame + 5] + b"\0\0" + plain[frame + 7 :], "37x0|0 pixels")
    yield _refused("huge.jpg", plain[: frame + 5] + b"\xff\xff\xff\xff" + plain[frame + 9 :], "pixels")
    for name, data in (("cmyk", _saved(_image("CMYK"), "JPEG")), ("ycck", _ycck(_saved(_image("CMYK"), "JPEG")))):
        yield _converted(f"{name}.jpg", data, _decoded(data))
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = _saved(rgb, "JPEG", quality=90, exif=exif.tobytes())
        turned = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        yield _converted(f"exif{orientation}.jpg", data, np.asarray(turned))
    signed = b"Exif\0\0MM\0*" + struct.pack(">IHHHIiI", 8, 1, 0x0112, 9, 1, 6, 0)
    data = _saved(rgb, "JPEG", quality=90, exif=signed)
    yield _converted("exif6_signed.jpg", data, np.ascontiguousarray(np.rot90(_decoded(data), -1)))


def _decoded(data: bytes) -> Any:
    """Return a JPEG's pixels as libjpeg gives them, by way of Pillow."""
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def _ycck(data: bytes) -> bytes:
    """Return a CMYK JPEG that says its colors are YCCK."""
    at = data.index(b"Adobe") + 11
    return data[:at] + b"\x02" + data[at + 1 :]


def _others() -> Iterator[Beast]:
    import numpy as np
    from PIL import Image, features

    rgb, grey = photograph(), np.asarray(_image("L"))
    frames = [_image("P"), _image("P").rotate(180)]
    yield _refused("empty.png", b"", "empty|0 bytes|no image")
    yield _refused("text.png", b"this is a text, and no picture at all", "")
    yield _refused("pickle.png", b"\x80\x04\x95", "pickle")
    yield _refused("html.jpg", b"<!DOCTYPE html><title>404</title>", "")
    yield _refused("cut.bmp", _saved(rgb, "BMP")[:-20], "cut short")
    yield _converted("plain.bmp", _saved(rgb, "BMP"), rgb)
    yield _converted("plain.ppm", _saved(rgb, "PPM"), rgb)
    yield _refused("decimal.ppm", b"P3 2 1 255\n1 2 3  4 5 6\n", "decimal numbers")
    deep = np.array([[[1, 999, 3], [0, 5, 1000]]], np.uint16)
    yield _converted("binary16.ppm", b"P6 2 1 1000\n" + deep.astype(">u2").tobytes(), deep)
    yield _refused("above.pgm", b"P5 1 1 1000\n\x03\xe9", "the maximum is 1000")
    yield _refused("cut.ppm", _saved(rgb, "PPM")[:-1], "cut short")
    yield _converted("plain.tif", _saved(rgb, "TIFF"), rgb)
    yield _converted("grey.tif", _saved(grey, "TIFF"), grey)
    yield _refused("pages.tif", _saved(frames[0], "TIFF", save_all=True, append_images=frames[1:]), "2 frames or pages")
    one_frame = _saved(frames[0], "GIF")
    yield _converted("still.gif", one_frame, np.asarray(Image.open(io.BytesIO(one_frame)).convert("RGB")))
    yield _refused("animated.gif", _saved(frames[0], "GIF", save_all=True, append_images=frames[1:]), "frame")
    if features.check("webp"):
        lossless = _saved(rgb, "WEBP", lossless=True)
        yield _converted("plain.webp", lossless, rgb)
        yield _refused("cut.webp", lossless[:-30], "cut short")
        color_frames = [frame.convert("RGB") for frame in frames]
        data = _saved(color_frames[0], "WEBP", save_all=True, append_images=color_frames[1:])
        yield _refused("animated.webp", data, "frame")


def _names() -> Iterator[Beast]:
    rgb = photograph()
    png, jpg = _saved(rgb, "PNG"), _saved(rgb, "JPEG")
    yield _converted(b"caf\xe9 (Latin-1).png", png, rgb)
    yield _converted(b"two\nlines and a\ttab.png", png, rgb)
    yield _refused(b"bad,\ntwo lines and a\ttab.png", b"", "")
    yield _refused(b"bad caf\xe9 (Latin-1).png", png[:50], "")
    yield _converted(b"\x1b[2J\x1b]0;gone\x07\xc2\x9b1m.png", png, rgb)
    yield _refused(b"bad \x1b[2J\x1b]0;gone\x07\xc2\x9b1m\r.png", b"\x89PNG\r\n\x1a\n\0\0\0\1\x1b[2J" + bytes(9), "PNG")
    yield _converted("UPPER.PNG", png, rgb)
    yield _converted("twin.png", png, rgb)
    yield _converted("twin.jpg", jpg, _decoded(jpg))
    yield _converted("a_jpeg.png", jpg, _decoded(jpg))
    yield _converted("a_png.jpg", png, rgb)
    yield _converted("x" * 200 + ".png", png, rgb)
    yield Beast(b"folder.png/inside.png", "converted", _in_folder(png), rgb)
    yield Beast(b"linked.png", "converted", lambda path: os.symlink(b"twin.png", path), rgb)


def _in_folder(data: bytes) -> Callable[[bytes], None]:
    def make(path: bytes) -> None:
        os.mkdir(os.path.dirname(path))
        _writes(data)(path)

    return make


def _socket(path: bytes) -> None:
    bound = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(os.path.dirname(path))  # the name of a socket may not be long
    try:
        bound.bind(os.path.basename(path))
    finally:
        os.chdir(here)
        bound.close()


def _forbidden(data: bytes) -> Callable[[bytes], None]:
    def make(path: bytes) -> None:
        _writes(data)(path)
        os.chmod(path, 0)

    return make


def _no_files() -> Iterator[Beast]:
    def left_out(name: str, make: Callable[[bytes], None], reason: str) -> Beast:
        return Beast(name.encode(), "left out", make, reason=reason)

    yield left_out("fifo.png", os.mkfifo, "not a regular file")
    yield left_out("socket.png", _socket, "not a regular file")
    yield left_out("device.png", lambda path: os.symlink("/dev/zero", path), "not a regular file")
    yield left_out("link_to_fifo.png", lambda path: os.symlink(b"fifo.png", path), "not a regular file")
    yield left_out("broken_link.png", lambda path: os.symlink(b"nowhere.png", path), "a broken link")
    yield left_out("link_loop.png", lambda path: os.symlink(b"link_loop.png", path), "symbolic links")
    png = _saved(photograph(), "PNG")
    if os.geteuid():
        yield Beast(b"forbidden.png", "refused", _forbidden(png), reason="ermission")
    else:  # nothing is forbidden to root, but this cannot be read by anybody
        yield Beast(b"forbidden.png", "converted", _forbidden(png), photograph())
        if Path("/proc/self/mem").exists():
            link = "/proc/self/mem"
            yield Beast(b"unreadable.png", "refused", lambda path: os.symlink(link, path), reason="I/O|Input/output")
