"""Tests of AVIF, HEIC and JPEG XL as sources, with files that the libraries themselves write."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lmdbloader
from lmdbloader.errors import ImageError, OptionError
from lmdbloader.images.decode import DecodePolicy, decode_image, inspect_image, read_header
from lmdbloader.images.header import Pixels

codecs = pytest.importorskip("imagecodecs")

RNG = np.random.default_rng(0)
PICTURE = RNG.integers(0, 256, (20, 30, 3), np.uint8)


def jxl(pixels: npt.NDArray[Any], **options: Any) -> bytes:
    """Return a lossless JPEG XL file."""
    data: bytes = codecs.jpegxl_encode(pixels, lossless=True, **options)
    return data


def avif(pixels: npt.NDArray[Any], **options: Any) -> bytes:
    """Return an AVIF file, as good as it gets."""
    data: bytes = codecs.avif_encode(pixels, level=100, **options)
    return data


def heic(pixels: npt.NDArray[Any], mode: str = "RGB", **options: Any) -> bytes:
    """Return a HEIC file, as good as it gets."""
    heif, file = pytest.importorskip("pillow_heif"), io.BytesIO()
    heif.from_bytes(mode, pixels.shape[1::-1], pixels.tobytes()).save(file, quality=100, chroma=444, **options)
    return file.getvalue()


def with_turn(data: bytes, box: bytes, value: int) -> bytes:
    """Return an AVIF file of one image with another property: a turn (irot) or a mirror (imir)."""
    at = data.index(b"ipco") - 4
    nbytes = int.from_bytes(data[at : at + 4], "big")
    added = b"\0\0\0\x09" + box + bytes([value])
    out = bytearray(data[:at] + (nbytes + 9).to_bytes(4, "big") + data[at + 4 : at + nbytes] + added)
    rest = bytearray(data[at + nbytes :])
    count = rest.index(b"ipma") + 4 + 4 + 4 + 2  # flags, images, the first one's number
    rest[count] += 1
    rest[count + 1 : count + 1] = bytes([0x80 | int(out.count(b"\0\0\0\x09i")) + rest[count] - 1])
    start = rest.index(b"ipma") - 4
    rest[start : start + 4] = (int.from_bytes(rest[start : start + 4], "big") + 1).to_bytes(4, "big")
    out += rest
    for outer in (b"iprp", b"meta"):
        at = out.index(outer) - 4
        out[at : at + 4] = (int.from_bytes(out[at : at + 4], "big") + 10).to_bytes(4, "big")
    at = out.index(b"iloc") + 4  # the pixels have moved: the last four-byte numbers are offset and length
    offset = data.index(b"mdat") + 4
    where = out.index(offset.to_bytes(4, "big"), at)
    out[where : where + 4] = (offset + 10).to_bytes(4, "big")
    return bytes(out)


@pytest.mark.parametrize("shape", [(20, 30), (20, 30, 3), (7, 64, 3), (64, 64, 3), (300, 400), (1, 1, 3)])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_a_lossless_jpeg_xl_comes_back(shape: tuple[int, ...], dtype: str) -> None:
    pixels = RNG.integers(0, 256 if dtype == "uint8" else 65536, shape).astype(dtype)
    pixels = pixels / np.float32(65535) if dtype == "float32" else pixels
    header = read_header(jxl(pixels))
    assert (*header.upright, header.channels, header.dtype) == (*(*shape, 1)[:3], pixels.dtype)
    found = decode_image(jxl(pixels))
    assert found.dtype == pixels.dtype and np.array_equal(found, pixels.reshape(found.shape))


@pytest.mark.parametrize("bits", [10, 12])
@pytest.mark.parametrize("encode", [jxl, avif])
def test_values_of_10_and_12_bits_become_those_of_16(encode: Callable[..., bytes], bits: int) -> None:
    smooth = np.linspace(0, (1 << bits) - 1, 600).astype(np.uint16).reshape(20, 30)
    pixels = np.dstack([smooth] * 3)
    found = decode_image(encode(pixels, bitspersample=bits))
    expected = pixels.astype(np.float64) * 65535 / ((1 << bits) - 1)
    assert found.dtype == np.uint16 and found.max() > 65000
    assert np.abs(found - expected).max() < (0.51 if encode is jxl else 65535 >> (bits - 2))


def test_a_heic_of_10_bits_becomes_one_of_16() -> None:
    smooth = np.linspace(0, 65535, 64 * 96).astype(np.uint16).reshape(64, 96)
    found = decode_image(heic(np.dstack([smooth] * 3), "RGB;16"))
    assert found.dtype == np.uint16 and found.max() == 65535
    assert np.abs(found[:, :, 0].astype(int) - smooth).mean() < 500


@pytest.mark.parametrize("encode", [avif, heic])
def test_pixels_are_those_of_the_library(encode: Callable[..., bytes]) -> None:
    smooth = np.dstack([np.add.outer(np.arange(64), np.arange(96)).astype(np.uint8)] * 3)
    header = read_header(encode(smooth))
    assert (*header.upright, header.channels, header.dtype, header.alpha) == (64, 96, 3, np.uint8, False)
    assert np.abs(decode_image(encode(smooth)).astype(int) - smooth).mean() < 3


@pytest.mark.parametrize("channels", [2, 4])
@pytest.mark.parametrize("encode", [jxl, avif])
def test_alpha_is_refused_dropped_or_over_white(encode: Callable[..., bytes], channels: int) -> None:
    pixels = np.full((16, 16, channels), 100, np.uint8)
    pixels[:8, :, -1] = 0
    pixels[8:, :, -1] = 255
    data = encode(pixels)
    with pytest.raises(ImageError, match="alpha"):
        decode_image(data)
    assert decode_image(data, DecodePolicy("drop")).shape == (16, 16, channels - 1)
    white = decode_image(data, DecodePolicy("white"))
    assert (white[:8] == 255).all() and np.abs(white[8:].astype(int) - 100).max() < 4


@pytest.mark.parametrize(("box", "value", "expected"), [
    (b"irot", 1, lambda image: np.rot90(image)),
    (b"irot", 2, lambda image: np.rot90(image, 2)),
    (b"irot", 3, lambda image: np.rot90(image, 3)),
    (b"imir", 0, lambda image: image[::-1]),
    (b"imir", 1, lambda image: image[:, ::-1]),
])  # fmt: skip
def test_an_avif_is_turned_as_it_says(box: bytes, value: int, expected: Callable[[Pixels], Pixels]) -> None:
    plain = avif(PICTURE)
    assert np.array_equal(decode_image(with_turn(plain, box, value)), expected(decode_image(plain)))


def test_a_heic_is_turned_once() -> None:
    image = pytest.importorskip("PIL.Image")
    exif = image.Exif()
    exif[0x0112] = 6
    smooth = np.dstack([np.add.outer(3 * np.arange(32), np.arange(48)).astype(np.uint8)] * 3)
    header, found = read_header(data := heic(smooth, exif=exif.tobytes())), decode_image(heic(smooth))
    assert header.upright == (48, 32) and np.array_equal(decode_image(data), np.rot90(found, -1))


def test_sequences_animations_and_further_channels_are_refused() -> None:
    two = np.stack([PICTURE, PICTURE])
    for data in (avif(two), jxl(two), jxl(RNG.integers(0, 256, (20, 30, 5), np.uint8))):
        with pytest.raises(ImageError, match=r"sequence|animated|channels"):
            read_header(data)


def test_several_heic_images_are_refused() -> None:
    heif, file = pytest.importorskip("pillow_heif"), io.BytesIO()
    both = heif.from_bytes("RGB", (30, 20), PICTURE.tobytes())
    both.add_from_heif(both[0])
    both.save(file)
    with pytest.raises(ImageError, match="2 images"):
        read_header(file.getvalue())


@pytest.mark.parametrize("encode", [jxl, avif, heic])
def test_damaged_files_are_image_errors(encode: Callable[..., bytes]) -> None:
    data = encode(np.ascontiguousarray(np.resize(PICTURE, (64, 64, 3))))
    for end in (0, 3, 11, 16, 40, 100, len(data) // 2):
        with pytest.raises(ImageError):
            decode_image(data[:end])
    for _ in range(200):
        bad = bytearray(data)
        for at in RNG.integers(0, min(len(bad), 400), 3):
            bad[at] = RNG.integers(256)
        with contextlib.suppress(ImageError):
            inspect_image(bytes(bad))


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    for data in (jxl(PICTURE), avif(PICTURE), heic(PICTURE)):
        with pytest.raises(ImageError, match="limit"):
            inspect_image(data, DecodePolicy(max_pixels=100))


def test_a_missing_package_is_named_with_the_line_to_paste(monkeypatch: pytest.MonkeyPatch) -> None:
    data = avif(PICTURE)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(OptionError, match=r"pip install 'lmdbloader\[rasters\]'"):
        read_header(data)


def test_a_folder_of_them_is_converted(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.jxl").write_bytes(jxl(PICTURE))
    (folder / "b.avif").write_bytes(avif(PICTURE))
    (folder / "c.HEIC").write_bytes(heic(PICTURE))
    lmdbloader.convert(folder, tmp_path / "photos.lmdb", workers=1, progress=False)
    dataset = lmdbloader.LMDBDataset(tmp_path / "photos.lmdb")
    assert [dataset.reader.source(row) for row in range(3)] == ["a.jxl", "b.avif", "c.HEIC"]
    assert np.array_equal(dataset[0].image.numpy().transpose(1, 2, 0), PICTURE)
