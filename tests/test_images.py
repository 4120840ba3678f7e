"""Decoding image files: right pixels for every kind, every policy, and an ImageError for everything else."""

from __future__ import annotations

import io
import struct
import zlib
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, features

import lmdbloader
from lmdbloader.errors import ImageError
from lmdbloader.images.decode import (
    DecodePolicy,
    decode_image,
    decode_labels,
    inspect_image,
    palette_of,
    read_header,
)

REFUSE, DROP, WHITE = DecodePolicy(), DecodePolicy(alpha="drop"), DecodePolicy(alpha="white")
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of PNG's color types
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))

needs_webp = pytest.mark.skipif(not features.check("webp"), reason="this Pillow was built without WebP")
needs_libtiff = pytest.mark.skipif(not features.check("libtiff"), reason="this Pillow was built without libtiff")


def noise(height, width, channels, dtype=np.uint8, seed=0):
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max + 1, (height, width, channels), dtype)


def saved(image, kind, **options):
    """The file's bytes that Pillow writes for an array or a Pillow image."""
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image.squeeze())
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def promised(data):
    """The shape and the dtype that a file's header promises."""
    header = read_header(data)
    return *header.upright, header.channels, header.dtype


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def filtered(row, above, step, kind):
    """One PNG row as the specification filters it, byte by byte."""
    out = bytearray([kind])
    for i, value in enumerate(row):
        a = row[i - step] if i >= step else 0
        b = above[i]
        c = above[i - step] if i >= step else 0
        p = a + b - c
        paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
        out.append((value - (0, a, b, (a + b) // 2, paeth)[kind]) % 256)
    return bytes(out)


def packed_rows(samples, bit_depth, filters):
    """The filtered bytes of (height, width, channels) samples, one filter a row in turn."""
    height, width, channels = samples.shape
    if bit_depth == 16:
        rows = samples.astype(">u2").view(np.uint8).reshape(height, -1)
    elif bit_depth == 8:
        rows = samples.astype(np.uint8).reshape(height, -1)
    else:
        bits = (samples.reshape(height, width, 1) >> np.arange(bit_depth - 1, -1, -1)) & 1
        rows = np.packbits(bits.reshape(height, -1).astype(np.uint8), axis=1)
    step = max(1, bit_depth * channels // 8)
    above, out = bytes(rows.shape[1]), b""
    for y, row in enumerate(rows):
        out += filtered(row.tolist(), above, step, filters[y % len(filters)])
        above = row.tolist()
    return out


def png(samples, bit_depth=8, color_type=None, *, filters=(0,), interlaced=False, before=b"", after=b""):
    """A PNG file of the given samples, of any kind."""
    height, width, channels = samples.shape
    if color_type is None:
        color_type = {1: 0, 3: 2, 2: 4, 4: 6}[channels]
    parts = [samples[top::down, left::right] for top, left, down, right in ADAM7] if interlaced else [samples]
    raw = b"".join(packed_rows(part, bit_depth, filters) for part in parts if part.size)
    packed = zlib.compress(raw)
    header = struct.pack(">IIBBBBB", width, height, bit_depth, color_type, 0, 0, int(interlaced))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + before
        + chunk(b"IDAT", packed[:7])
        + chunk(b"IDAT", packed[7:])
        + after
        + chunk(b"IEND", b"")
    )


def exif(orientation):
    block = Image.Exif()
    block[0x0112] = orientation
    return block.tobytes()


def check(data, expected, policy=REFUSE):
    """Decode, and compare with the expected (height, width, channels) array and with the header."""
    pixels = decode_image(data, policy)
    assert pixels.dtype == expected.dtype and pixels.shape == expected.shape
    assert np.array_equal(pixels, expected)
    assert pixels.flags.c_contiguous and pixels.flags.writeable
    assert promised(data) == (*pixels.shape, pixels.dtype)


def refusal(data, policy=REFUSE):
    """The reason why a file is refused."""
    with pytest.raises(ImageError, match=r"^photos/a\.png: ") as caught:
        decode_image(data, policy, name="photos/a.png")
    assert str(caught.value) == f"photos/a.png: {caught.value.reason}"
    return caught.value.reason


# Every kind of file


def pictures():
    """Files that are decoded as Pillow decodes them: the picture, the kind, and its options."""
    color, grey = (Image.fromarray(noise(13, 17, channels).squeeze()) for channels in (3, 1))
    smooth = Image.fromarray(noise(6, 7, 3)).resize((61, 45))
    for kind in ("PNG", "BMP", "TIFF", "PPM"):
        yield color, kind, {}
        yield grey, kind, {}
        yield grey.point(lambda value: value > 127, "1"), kind, {}
    for kind in ("PNG", "BMP", "TIFF", "GIF"):
        yield color.quantize(16), kind, {}
    for subsampling in (0, 1, 2):
        yield smooth, "JPEG", {"subsampling": subsampling}
        yield smooth, "JPEG", {"subsampling": subsampling, "progressive": True}
    yield smooth.convert("CMYK"), "JPEG", {}
    yield smooth.convert("CMYK"), "TIFF", {}
    if features.check("webp"):
        yield smooth, "WEBP", {"quality": 80}
        yield smooth, "WEBP", {"lossless": True}
    for compression in ("tiff_lzw", "tiff_deflate", "packbits") if features.check("libtiff") else ():
        yield color, "TIFF", {"compression": compression}


def test_every_kind_of_file_has_the_pixels_that_pillow_gives():
    for picture, kind, options in pictures():
        data = saved(picture, kind, **options)
        shown = Image.open(io.BytesIO(data)).convert("L" if picture.mode in ("L", "1") else "RGB")
        check(data, np.asarray(shown).reshape(*shown.size[::-1], -1))
    for maximum in (1, 20, 255):
        data = pnm(np.minimum(noise(5, 7, 3), maximum), maximum, comment=b"# a comment\n")
        check(data, np.asarray(Image.open(io.BytesIO(data))))


@needs_libtiff
def test_ycbcr_tiff_becomes_rgb():
    picture = Image.fromarray(noise(8, 9, 3)).convert("YCbCr")
    pixels = decode_image(saved(picture, "TIFF", compression="tiff_deflate"))
    # libtiff computes RGB with other roundings than Pillow.
    assert np.abs(pixels.astype(int) - np.asarray(picture.convert("RGB"))).max() <= 2
    assert "uncompressed TIFF file of YCbCr" in refusal(saved(picture, "TIFF"))


def bmp(header_nbytes, bits, rest, *, compression=0, offset=None):
    """A BMP file of 4x3 pixels of `bits` bits, its palette and pixels in `rest`."""
    if header_nbytes == 12:
        header = struct.pack("<IHHHH", 12, 4, 3, 1, bits)
    else:
        header = struct.pack("<IiiHHIIiiII", header_nbytes, 4, 3, 1, bits, compression, 0, 0, 0, 0, 0)
    offset = offset or 14 + header_nbytes + (1 << bits) * (3 if header_nbytes == 12 else 4)
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, offset) + header.ljust(header_nbytes, b"\0") + rest


@pytest.mark.parametrize("colors", [[0, 255], [0, 1], [*range(16)]], ids=["black and white", "dark", "greys"])
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_a_bmp_has_as_many_bits_as_its_header_says(bits, colors):
    """Or it is refused: Pillow reads a palette of black and white as one bit a pixel, whatever the header says."""
    colors = colors[:2] if bits == 1 else colors
    numbers = np.arange(12).reshape(3, 4) * 5 % len(colors)
    rows = [np.packbits(np.unpackbits(row[:, None].astype(np.uint8), axis=1)[:, 8 - bits :]) for row in numbers[::-1]]
    body = b"".join(row.tobytes().ljust(4, b"\0") for row in rows)
    palette = b"".join(bytes([value] * 3 + [0]) for value in colors)
    data = bytearray(bmp(40, bits, palette + body, offset=54 + len(palette)))
    data[46:50] = struct.pack("<I", len(colors))
    grey = np.array(colors, np.uint8)[numbers][:, :, None]
    if (bits != 1 and colors == [0, 255]) or (bits != 8 and colors == [*range(16)]):
        assert "palette of grays" in refusal(bytes(data))
        return
    pixels = decode_image(bytes(data))
    assert pixels.shape[:2] == (3, 4) and (pixels == grey).all()
    assert promised(bytes(data)) == (*pixels.shape, pixels.dtype)
    assert np.array_equal(decode_labels(bytes(data))[:, :, 0], numbers)
    assert "run-length" in refusal(bmp(40, 8, bytes(1024) + b"\4\7\0\0" * 3 + b"\0\1", compression=1))


def test_a_bmp_whose_palette_is_its_pixels_is_refused():
    colors = noise(256, 3, 1).tobytes()
    pixels = bytes(range(12))
    palette = np.frombuffer(colors, np.uint8).reshape(256, 3)[:, ::-1]
    check(bmp(12, 8, colors + pixels), palette[np.arange(12).reshape(3, 4)[::-1]])
    assert "where its palette does" in refusal(bmp(12, 8, colors + pixels + bytes(300), offset=26))


def test_16_bits_stay_16_bits():
    for channels in (1, 3):
        image = noise(7, 5, channels, np.uint16)
        check(png(image, 16), image)
        check(b"P%d\n# made here\n5 7\n65535\n" % (5 if channels == 1 else 6) + image.astype(">u2").tobytes(), image)
    grey = noise(7, 5, 1, np.uint16)
    check(saved(grey, "TIFF"), grey)
    check(saved(grey, "PNG"), grey)


# PNG, which is decoded here


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from([(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (2, 8), (2, 16), (4, 8), (4, 16), (6, 8), (6, 16)]),
    height=st.integers(1, 11),
    width=st.integers(1, 11),
    filters=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    interlaced=st.booleans(),
    smooth=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_png_of_every_type_depth_filter_and_interlacing(kind, height, width, filters, interlaced, smooth, seed):
    color_type, bit_depth = kind
    rng = np.random.default_rng(seed)
    shape = (height, width, CHANNELS[color_type])
    samples = rng.integers(0, 1 << bit_depth, shape)
    if smooth:
        samples = (rng.integers(0, 4, shape).cumsum(axis=0).cumsum(axis=1)) % (1 << bit_depth)
    data = png(samples, bit_depth, color_type, filters=filters, interlaced=interlaced)
    dtype = np.uint16 if bit_depth == 16 else np.uint8
    expected = samples * (np.iinfo(dtype).max // ((1 << bit_depth) - 1))
    check(data, expected[:, :, : 3 if color_type in (2, 6) else 1].astype(dtype), DROP)


@settings(max_examples=30, deadline=None)
@given(
    bit_depth=st.sampled_from([1, 2, 4, 8]),
    interlaced=st.booleans(),
    sides=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    num_known=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_palette_png_with_and_without_transparency(bit_depth, interlaced, sides, num_known, seed):
    rng = np.random.default_rng(seed)
    palette = rng.integers(0, 256, (1 << bit_depth, 3), np.uint8)
    alphas = rng.integers(0, 256, num_known, np.uint8)[: 1 << bit_depth]
    numbers = rng.integers(0, 1 << bit_depth, (*sides, 1))
    before = chunk(b"PLTE", palette.tobytes()) + (chunk(b"tRNS", alphas.tobytes()) if len(alphas) else b"")
    data = png(numbers, bit_depth, 3, interlaced=interlaced, before=before)
    check(data, palette[numbers[:, :, 0]], DROP)
    table = np.concatenate([alphas, np.full((1 << bit_depth) - len(alphas), 255)])
    weight = table[numbers] / 255
    blended = np.floor(palette[numbers[:, :, 0]] * weight + 255 * (1 - weight) + 0.5 + 1e-9)
    check(data, blended.astype(np.uint8), WHITE)


@pytest.mark.parametrize("bit_depth", [8, 16])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_transparent_color_is_alpha(channels, bit_depth):
    dtype = np.uint8 if bit_depth == 8 else np.uint16
    image = noise(3, 4, channels, dtype)
    key = image[1, 2].astype(">u2").tobytes()
    data = png(image, bit_depth, before=chunk(b"tRNS", key))
    assert "alpha" in refusal(data)
    check(data, image, DROP)
    shown = image.copy()
    shown[(image == image[1, 2]).all(axis=2)] = np.iinfo(dtype).max
    assert not np.array_equal(shown, image)
    check(data, shown, WHITE)


def test_every_bit_of_a_png_is_covered_by_a_check():
    """After the signature, a change of any byte is noticed."""
    data = png(noise(4, 5, 3), filters=(0, 1, 2, 3, 4), before=chunk(b"tEXt", b"Title\0x"))
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        refusal(bytes(damaged))


def header_png(width, height, bit_depth, color_type, raw, before=b"", cut=0):
    header, packed = struct.pack(">IIBBBBB", width, height, bit_depth, color_type, 0, 0, 0), zlib.compress(raw)
    body = chunk(b"IHDR", header) + before + chunk(b"IDAT", packed[: len(packed) - cut]) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("cut", [2, 4])
def test_a_png_whose_data_have_no_sum_at_the_end_is_read_as_by_pillow(cut):
    data = header_png(3, 2, 8, 0, b"\0abc\0def", cut=cut)
    check(data, np.asarray(Image.open(io.BytesIO(data)))[:, :, None])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header_png(2, 2, 8, 0, bytes(5)), "holds 5 bytes; 2x2 pixels take exactly 6"),
        (header_png(2, 2, 8, 0, bytes(7)), "holds more than 6 bytes"),
        (header_png(2, 2, 8, 0, b"\0\0\0\7\0\0"), "row 1 names a filter that does not exist"),
        (header_png(9000, 9000, 16, 6, bytes(99)), "cannot hold 9000x9000 pixels"),
        (header_png(0, 2, 8, 0, b""), "gives 0x2 pixels"),
        (header_png(2, 2, 4, 2, bytes(6)), "bit depth 4 with color type 2"),
        (header_png(2, 2, 8, 5, bytes(6)), "color type 5"),
        (header_png(2, 2, 8, 3, bytes(6)), "palette has 0 bytes"),
        (
            header_png(2, 1, 8, 3, b"\0\0\2", chunk(b"PLTE", bytes(6))),
            "palette number 2; the PNG palette has 2",
        ),
        (header_png(2, 2, 8, 0, bytes(6), chunk(b"tRNS", b"\0")), "tRNS chunk has only 1 bytes"),
    ],
)
def test_a_png_whose_parts_contradict_each_other_is_refused(data, reason):
    assert reason in refusal(data, DROP)


# Policies


def turned(image, orientation):
    """An image rotated by its orientation."""
    if orientation in (3, 4, 7, 8):
        image = image[:, ::-1] if orientation in (7, 8) else image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[::-1] if orientation in (6, 7) else image[:, ::-1]
    return image.swapaxes(0, 1) if orientation >= 5 else image


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", pytest.param("WEBP", marks=needs_webp)])
def test_exif_rotation_is_applied(kind, orientation):
    data = saved(noise(10, 14, 3), kind, exif=exif(orientation), **({"lossless": True} if kind == "WEBP" else {}))
    picture = Image.open(io.BytesIO(data))
    check(data, np.asarray(ImageOps.exif_transpose(picture)))
    check(data, turned(np.asarray(picture), orientation))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("compression", [None, pytest.param("tiff_lzw", marks=needs_libtiff)])
@pytest.mark.parametrize("mode", ["L", "RGB", "YCbCr"])
def test_a_tiff_is_rotated(mode, compression, orientation):
    if mode == "YCbCr" and compression is None:
        return
    picture = Image.fromarray(noise(10, 14, 3)).convert(mode)
    upright = decode_image(saved(picture, "TIFF", compression=compression))
    check(saved(picture, "TIFF", compression=compression, exif=exif(orientation)), turned(upright, orientation))


XMP_6 = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
XMP_ELEMENT_6 = b"<x:xmpmeta><rdf:Description><tiff:Orientation>6</tiff:Orientation></rdf:Description></x:xmpmeta>"


def segment(marker, body):
    """A JPEG's marker segment."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def with_xmp(kind, image, xmp, **options):
    """A file with XMP."""
    if kind == "JPEG":
        data = saved(image, kind, **options)
        return data[:2] + segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + xmp) + data[2:]
    if kind == "PNG":
        block = options["exif"].removeprefix(b"Exif\0\0") if options else b""
        before = chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp) + (chunk(b"eXIf", block) if block else b"")
        return png(image, before=before)
    if kind == "TIFF":
        return saved(image, kind, tiffinfo={700: xmp}, **options)
    return saved(image, kind, xmp=xmp, lossless=True, **options)


@pytest.mark.parametrize("xmp", [XMP_6, XMP_ELEMENT_6], ids=["attribute", "element"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", pytest.param("WEBP", marks=needs_webp)])
def test_the_orientation_of_xmp_counts_where_exif_has_none(kind, xmp):
    image = noise(10, 14, 3)
    stored = decode_image(saved(image, kind, **({"lossless": True} if kind == "WEBP" else {})))
    check(with_xmp(kind, image, xmp), turned(stored, 6))
    if kind != "TIFF":
        check(with_xmp(kind, image, xmp, exif=exif(3)), turned(stored, 3))
        check(with_xmp(kind, image, xmp, exif=exif(1)), stored)
    check(with_xmp(kind, image, xmp.replace(b"6", b"9")), stored)


@pytest.mark.parametrize("is_packed", [False, True])
def test_the_exif_of_imagemagick_in_a_png_counts(is_packed):
    image = noise(4, 7, 3)
    text = b"\nexif\n%8d\n%s\n" % (len(exif(6)), exif(6).hex().encode())
    kind, body = (b"zTXt", b"\0" + zlib.compress(text)) if is_packed else (b"tEXt", text)
    data = png(image, before=chunk(kind, b"Raw profile type exif\0" + body))
    check(data, np.rot90(image, -1))
    check(data, np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))))
    for damaged in (b"\0", b"\0\0x", b"\0\nexif\n 9\n0g", b"\0" + body[:9]):
        check(png(image, before=chunk(kind, b"Raw profile type exif" + damaged)), image)


# Pillow reads SHORT, LONG, SBYTE, SSHORT and SLONG as integers; BYTE (1) and UNDEFINED (7) as text.
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    ("kind", "form", "obeyed"),
    [(3, "H", 1), (4, "I", 1), (6, "b", 1), (8, "h", 1), (9, "i", 1), (1, "B", 0), (7, "B", 0), (99, "I", 0)],
)
@pytest.mark.parametrize("value", [1, 3, 6, 8])
def test_an_orientation_may_be_of_any_integer_type_that_pillow_obeys(kind, form, obeyed, order, value):
    start = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(f"{order}HHI{form}", 0x0112, kind, 1, value).ljust(12, b"\0")
    block = start + struct.pack(f"{order}IH", 8, 1) + entry + bytes(4)
    data = saved(noise(10, 14, 3), "JPEG", exif=b"Exif\0\0" + block)
    check(data, np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))))
    image = noise(4, 7, 3)
    shown = {1: image, 3: image[::-1, ::-1], 6: np.rot90(image, -1), 8: np.rot90(image)}
    check(png(image, before=chunk(b"eXIf", block)), shown[value] if obeyed else image)


@settings(max_examples=60, deadline=None)
@given(block=st.binary(max_size=40) | st.binary(max_size=30).map(lambda tail: b"II*\0\x08\0\0\0\x01\0\x12\x01" + tail))
def test_a_damaged_exif_block_never_stops_a_good_image(block):
    image = noise(3, 3, 1)
    assert decode_image(png(image, before=chunk(b"eXIf", block))).shape == (3, 3, 1)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("PNG", "RGBA"),
        ("PNG", "LA"),
        ("TIFF", "RGBA"),
        ("TIFF", "LA"),
        ("TIFF", "PA"),
        pytest.param("WEBP", "RGBA", marks=needs_webp),
    ],
)
def test_alpha_is_refused_dropped_or_put_over_white(kind, mode):
    image = noise(6, 7, {"RGBA": 4, "LA": 2, "PA": 4}[mode])
    picture = Image.fromarray(image[:, :, :3]).quantize(16) if mode == "PA" else Image.fromarray(image)
    if mode == "PA":
        picture = picture.convert("PA")
        picture.putalpha(Image.fromarray(image[:, :, 3]))
    data = saved(picture, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))
    shown = np.asarray(picture.convert("RGBA") if mode == "PA" else picture)
    colors, alpha = shown[:, :, :-1], shown[:, :, -1:] / 255
    assert "choose alpha='drop' or alpha='white'" in refusal(data)
    check(data, colors, DROP)
    check(data, np.floor(colors * alpha + 255 * (1 - alpha) + 0.5 + 1e-9).astype(np.uint8), WHITE)


def test_alpha_of_16_bits_is_exact():
    image = noise(40, 40, 4, np.uint16)
    image[:2, :, 3] = [[0], [65535]]
    colors, alpha = image[:, :, :3].astype(object), image[:, :, 3:].astype(object)
    expected = (2 * (colors * alpha + 65535 * (65535 - alpha)) + 65535) // (2 * 65535)
    check(png(image, 16), expected.astype(np.uint16), WHITE)


def test_transparent_gif_is_alpha():
    picture = Image.fromarray(noise(5, 6, 3)).quantize(8)
    data = saved(picture, "GIF", transparency=picture.getpixel((2, 3)))
    assert "alpha" in refusal(data)
    expected = np.array(picture.convert("RGB"))
    check(data, expected, DROP)
    expected[np.asarray(picture) == picture.getpixel((2, 3))] = 255
    check(data, expected, WHITE)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF", pytest.param("WEBP", marks=needs_webp)])
def test_several_frames_are_refused(kind):
    frames = [Image.fromarray(noise(8, 8, 3, seed=seed)) for seed in range(2)]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:])
    assert "only files with a single" in refusal(data)
    with pytest.raises(ImageError):
        promised(data)


def test_of_a_jpeg_with_further_images_the_first_is_taken():
    # Two: Pillow before 11 writes an MPO file of more over its own first image.
    frames = [Image.fromarray(noise(8, 8, 3, seed=seed)) for seed in range(2)]
    data = saved(frames[0], "MPO", save_all=True, append_images=frames[1:])
    first = np.asarray(Image.open(io.BytesIO(saved(frames[0], "JPEG"))))
    end = data.index(b"\xff\xd9") + 2
    for file, others in ((data, 1), (data[:end], 0), (saved(frames[0], "JPEG"), 0)):
        check(file, first)
        assert inspect_image(file).num_others == others
    check(with_xmp("JPEG", noise(8, 8, 3), b'<x hdrgm:Version="1.0"/>'), first)


def tiff(bits, photometric, samples, *, order="<", big=False, extra=()):
    """An uncompressed TIFF or BigTIFF file of (height, width, channels); `extra` tags are (tag, type, values)."""
    height, width, channels = samples.shape
    tags = [(256, 3, [width]), (257, 3, [height]), (258, 3, [bits] * channels), (259, 3, [1]), (262, 3, [photometric])]
    tags += [(273, 4, [16]), (277, 3, [channels]), (278, 3, [height]), (279, 4, [samples.nbytes]), *extra]
    tags = sorted((tag for tag in tags if tag[2] != [None]), key=lambda tag: tag[0])
    pixels = samples.astype(samples.dtype.newbyteorder(order)).tobytes()
    count, room = ("Q", 8) if big else ("I", 4)
    at = 16 + len(pixels)
    far = at + (8 if big else 2) + (4 + 2 * room) * len(tags) + room
    entries, after = b"", b""
    for tag, kind, values in tags:
        body = struct.pack(f"{order}{len(values)}{'H' if kind == 3 else 'I'}", *values)
        if len(body) > room:
            body, after = struct.pack(order + count, far + len(after)), after + body
        entries += struct.pack(order + "HH" + count, tag, kind, len(values)) + body.ljust(room, b"\0")
    start = b"II" if order == "<" else b"MM"
    start += struct.pack(order + "HHHQ", 43, 8, 0, at) if big else struct.pack(order + "HI", 42, at).ljust(14, b"\0")
    directory = struct.pack(order + ("Q" if big else "H"), len(tags)) + entries + bytes(room)
    return start + pixels + directory + after


def test_tiff_that_pillow_would_change_silently_is_refused():
    assert "zero is white" in refusal(tiff(16, 0, noise(3, 4, 1, np.uint16)))
    assert "PhotometricInterpretation" in refusal(tiff(8, None, noise(3, 4, 1)))
    assert "values of int8" in refusal(tiff(8, 1, noise(3, 4, 1), extra=[(339, 3, [2])]))
    assert "other than CMYK" in refusal(tiff(8, 5, noise(3, 4, 4), extra=[(332, 3, [2])]))
    grey = noise(3, 4, 1, np.uint16)
    check(tiff(16, 1, grey), grey)
    check(tiff(8, 1, noise(3, 4, 1)), noise(3, 4, 1))


def test_a_bigtiff_is_read_and_turned():
    image = noise(5, 8, 3)
    check(tiff(8, 2, image, big=True), image)
    check(tiff(8, 2, image, big=True, extra=[(274, 3, [6])]), np.rot90(image, -1))
    check(tiff(8, 2, image, order=">", extra=[(274, 3, [6])]), np.rot90(image, -1))
    check(tiff(16, 1, noise(5, 8, 1, np.uint16), big=True), noise(5, 8, 1, np.uint16))
    assert "big-endian BigTIFF" in refusal(tiff(8, 2, image, order=">", big=True))


@pytest.mark.parametrize("most", [255, 1, 65535])
def test_a_tiff_whose_colors_have_8_bits_keeps_them(most):
    colors = np.random.default_rng(0).integers(0, most + 1, (3, 256))
    colors[0, 0] = most
    numbers = noise(5, 8, 1)
    data = tiff(8, 3, numbers, extra=[(320, 3, colors.ravel().tolist())])
    check(data, (colors if most < 256 else colors // 256).T[numbers[:, :, 0]].astype(np.uint8))
    assert np.array_equal(decode_labels(data), numbers)


def test_samples_besides_the_colors_are_no_labels():
    with pytest.raises(ImageError, match="without labels"):
        decode_labels(tiff(8, 2, noise(5, 8, 4), extra=[(338, 3, [0])]))


def test_more_than_max_pixels_is_refused_before_decoding():
    assert refusal(saved(noise(10, 11, 3), "PNG"), DecodePolicy(max_pixels=109)).startswith("11x10 is 110 pixels")
    check(saved(noise(10, 11, 3), "PNG"), noise(10, 11, 3), DecodePolicy(max_pixels=110))
    huge = header_png(20_000, 10_001, 8, 2, b"not even pixels")
    assert "20000x10001 is 200,020,000 pixels, more than the limit of 200,000,000" in refusal(huge)
    assert promised(huge) == (10_001, 20_000, 3, np.uint8)


# Damage


@cache
def samples_of_every_kind():
    picture = Image.fromarray(noise(4, 5, 3)).resize((19, 14), Image.Resampling.BILINEAR)
    files = {
        "png": saved(picture, "PNG"),
        "png of 16 bits": png(noise(4, 5, 3, np.uint16), 16, filters=(1, 4, 3)),
        "png interlaced": png(noise(9, 9, 3), interlaced=True),
        "png palette": saved(picture.quantize(), "PNG"),
        "jpeg": saved(picture, "JPEG", exif=exif(6)),
        "jpeg progressive": saved(picture, "JPEG", progressive=True),
        "jpeg cmyk": saved(picture.convert("CMYK"), "JPEG"),
        "bmp": saved(picture, "BMP"),
        "bmp palette": saved(picture.quantize(), "BMP"),
        "gif": saved(picture, "GIF"),
        "tiff": saved(picture, "TIFF"),
        "ppm": saved(picture, "PPM"),
        "pgm": saved(picture.convert("L"), "PPM"),
    }
    if features.check("webp"):
        files["webp"] = saved(picture, "WEBP")
        files["webp lossless"] = saved(picture, "WEBP", lossless=True)
    return files


@pytest.mark.parametrize("kind", samples_of_every_kind())
def test_a_file_cut_anywhere_is_refused(kind):
    data = samples_of_every_kind()[kind]
    decode_image(data)
    for length in {*range(0, len(data), 7), *range(len(data) - 20, len(data))}:
        refusal(data[:length])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_bytes_decode_or_raise_image_error(data):
    kind = data.draw(st.sampled_from(sorted(samples_of_every_kind())))
    damaged = bytearray(samples_of_every_kind()[kind])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    policy = DecodePolicy(alpha="white", max_pixels=1_000_000)
    try:
        pixels = decode_image(bytes(damaged), policy)
    except ImageError:
        return
    assert pixels.dtype in (np.uint8, np.uint16) and pixels.ndim == 3 and pixels.shape[2] in (1, 3)
    assert promised(bytes(damaged)) == (*pixels.shape, pixels.dtype)


@settings(max_examples=150, deadline=None)
@given(
    start=st.sampled_from(
        [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM", b"GIF89a", b"II*\0", b"MM\0*", b"RIFF\xff\0\0\0WEBPVP8 "]
        + [b"P%d " % kind for kind in range(1, 7)]
    ),
    tail=st.binary(max_size=60),
)
def test_arbitrary_bytes_raise_image_error(start, tail):
    try:
        decode_image(start + tail, DecodePolicy(max_pixels=10_000))
    except ImageError:
        return
    assert start.startswith((b"P", b"BM", b"GIF"))  # kinds without any checksum, where a few bytes can be an image


def test_a_damaged_jpeg_that_libjpeg_would_only_warn_about_is_refused():
    data = saved(noise(40, 40, 3), "JPEG")
    start = data.index(b"\xff\xda") + 40
    damaged = data[:start] + b"\xff\xd3" + data[start + 2 :]  # a restart marker where none belongs
    np.asarray(Image.open(io.BytesIO(damaged)))  # Pillow shows something
    assert "the JPEG data is damaged" in refusal(damaged)


def test_a_gif_with_damaged_pixels_shows_its_size_and_is_refused_when_decoded():
    data = bytearray(samples_of_every_kind()["gif"])
    start = data.index(b",", 13 + 3 * 256) + 10  # after the image's descriptor: the bits of a code, then the codes
    data[start + 2 : start + 12] = b"\xff" * 10
    assert promised(bytes(data)) == promised(samples_of_every_kind()["gif"])
    for read in (decode_image, decode_labels, palette_of):
        with pytest.raises(ImageError, match="the GIF data is damaged"):
            read(bytes(data))


# PGM and PPM


def pnm(samples, maximum, *, comment=b""):
    height, width, channels = samples.shape
    header = (b"P5" if channels == 1 else b"P6") + b"\n" + comment + b"%d %d\n%d\n" % (width, height, maximum)
    return header + samples.astype(">u2" if maximum > 255 else "u1").tobytes()


@given(
    maximum=st.integers(256, 65535) | st.sampled_from([256, 1000, 1023, 4095, 65534, 65535]),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3])),
    seed=st.integers(0, 9),
    comment=st.sampled_from([b"", b"# 9 9\n", b"#\r"]),
)
def test_a_pnm_of_more_than_8_bits_keeps_its_values(maximum, shape, seed, comment):
    samples = np.random.default_rng(seed).integers(0, maximum + 1, shape).astype(np.uint16)
    samples[-1, -1, -1] = maximum
    check(pnm(samples, maximum, comment=comment), samples)


def test_of_a_pbm_a_bit_of_1_is_black():
    data = b"P4\n3 2\n\xbf\x40"
    expected = np.array([[0, 255, 0], [255, 0, 255]], np.uint8)[:, :, None]
    check(data, expected)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), expected[:, :, 0] > 0)
    assert np.array_equal(decode_labels(data), expected // 255)  # as np.asarray of the PIL image has them


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"P5 1 1 1000 \x03\xe9", "a sample of 1001, and the maximum is 1000"),
        (b"P6 1 1 0 \0\0\0", "maximum 0; expected at most 65535"),
        (b"P5 1 1 65536 1", "maximum 65536; expected at most 65535"),
        (b"P5 1 1 15 \x10", "a sample of 16, and the maximum is 15"),
        (b"P4 9 2 \xff\xff\xff", "cut short"),
        (b"P5 1 1 9 \1P5 1 1 9 \1", "holds several images"),
        *((b"P%d 1 1 1 1" % kind, "of decimal numbers") for kind in (1, 2, 3)),
    ],
)
def test_a_pnm_that_contradicts_its_header_is_refused(data, reason):
    assert reason in refusal(data)


# JPEGs of cameras and old programs


def jpeg_of_blocks(sampling, height, width, *, restart=0, strays=b"", se=63):
    """A baseline JPEG whose blocks of 8 x 8 samples are flat, with components of any sampling (across, down)."""
    rng = np.random.default_rng(3)
    # Seven codes of three bits for the size of a difference; one of a bit for the end of a block.
    tables = segment(0xC4, bytes([0, 0, 0, 7, *[0] * 13, *range(7)])) + segment(0xC4, bytes([0x10, 1, *[0] * 15, 0]))
    parts = b"".join(bytes([c, across << 4 | down, 0]) for c, (across, down) in enumerate(sampling, 1))
    scan = bytes([len(sampling), *(byte for c in range(1, len(sampling) + 1) for byte in (c, 0)), 0, se, 0])
    most = [max(sides) for sides in zip(*sampling, strict=True)]
    if len(sampling) == 1:
        sampling, most = [(1, 1)], [1, 1]
    units = -(-width // (8 * most[0])) * -(-height // (8 * most[1]))
    body, bits, number = b"", "", 0

    def padded(bits):
        bits += "1" * (-len(bits) % 8)
        return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)).replace(b"\xff", b"\xff\0")

    for unit in range(units):
        if restart and unit and unit % restart == 0:
            body += padded(bits) + strays + bytes([0xFF, 0xD0 + number % 8])
            bits, number = "", number + 1
        for _ in range(sum(across * down for across, down in sampling)):
            value = int(rng.integers(-15, 16))
            size = abs(value).bit_length()
            bits += (
                f"{size:03b}" + (f"{value if value > 0 else value + (1 << size) - 1:0{size}b}" if size else "") + "0"
            )
    body += padded(bits)
    frame = struct.pack(">BHHB", 8, height, width, len(sampling)) + parts
    head = segment(0xDB, bytes([0] + [40] * 64)) + segment(0xC0, frame) + tables
    restarts = segment(0xDD, struct.pack(">H", restart)) if restart else b""
    return b"\xff\xd8" + head + restarts + segment(0xDA, scan) + body + b"\xff\xd9"


@pytest.mark.parametrize("kind", ["TIFF", "BMP", "GIF"])
def test_pillows_own_limit_on_pixels_does_not_count(kind, monkeypatch):
    data = saved(np.zeros((40, 40, 1), np.uint8), kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow checks TIFFs when it decodes them
    assert decode_image(data).shape[:2] == (40, 40)
    assert Image.MAX_IMAGE_PIXELS == 100


def pillows(data):
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


SAMPLINGS = {
    "4:4:4": [(1, 1), (1, 1), (1, 1)],
    "4:2:0": [(2, 2), (1, 1), (1, 1)],
    "4:4:0": [(1, 2), (1, 1), (1, 1)],
    "4:1:1": [(4, 1), (1, 1), (1, 1)],
    "4:1:0": [(4, 2), (1, 1), (1, 1)],
    "3x1": [(3, 1), (1, 1), (1, 1)],
    "1x3": [(1, 3), (1, 1), (1, 1)],
    "1x4": [(1, 4), (1, 2), (1, 2)],
    "finer colors": [(1, 1), (2, 1), (1, 1)],
    "colors of two kinds": [(2, 2), (2, 1), (1, 2)],
    "twice as many of all": [(2, 1), (2, 1), (2, 1)],
    "grey of 2x2": [(2, 2)],
}


@pytest.mark.parametrize("restart", [0, 3])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_jpeg_of_any_chroma_sampling_equals_pillows(sampling, restart):
    data = jpeg_of_blocks(sampling, 37, 83, restart=restart)
    assert len(np.unique(pillows(data))) > 8
    check(data, pillows(data))
    damaged = data[:-10] + data[-9:]
    assert "save it again" in refusal(damaged) or "damaged" in refusal(damaged)


def test_a_jpeg_with_odd_bytes_in_its_scan_header_is_sound():
    sound = saved(noise(20, 30, 3), "JPEG")
    at = sound.index(b"\xff\xda") + 11
    assert sound[at : at + 3] == b"\0\x3f\0"
    for odd in (b"\0\0\0", b"\0\x3f\1", b"\1\x3f\0"):
        check(sound[:at] + odd + sound[at + 3 :], pillows(sound))
    check(jpeg_of_blocks(SAMPLINGS["4:1:0"], 37, 83, se=0), pillows(jpeg_of_blocks(SAMPLINGS["4:1:0"], 37, 83)))


def test_stray_bytes_before_the_restart_markers_of_a_jpeg_are_skipped():
    for sampling in (SAMPLINGS["4:2:0"], SAMPLINGS["3x1"], [(1, 1)]):
        sound = jpeg_of_blocks(sampling, 37, 83, restart=2)
        check(jpeg_of_blocks(sampling, 37, 83, restart=2, strays=b"\x15" * 12), pillows(sound))
        # Once alone, they are what is left of damaged codes.
        at = sound.index(b"\xff\xd1")
        assert "damaged" in refusal(sound[:at] + b"\x15" * 12 + sound[at:])


# Converted and loaded


def unusual_files():
    """Files of kinds that readers differ about: the bytes, and the pixels."""
    image = noise(24, 40, 3)
    flat = jpeg_of_blocks(SAMPLINGS["4:2:0"], 24, 40, restart=1)
    frames = [Image.fromarray(image), Image.fromarray(image[::2, ::2])]
    jpeg = saved(image, "JPEG")
    colors = np.random.default_rng(0).integers(1, 256, (3, 256))
    return {
        "colors_of_8_bits.tif": (
            tiff(8, 3, image[:, :, :1], extra=[(320, 3, colors.ravel().tolist())]),
            colors.T[image[:, :, 0]].astype(np.uint8),
        ),
        "big.tif": (tiff(8, 2, image, big=True), image),
        "turned.jpg": (with_xmp("JPEG", image, XMP_6), np.rot90(pillows(jpeg), -1)),
        "turned.png": (with_xmp("PNG", image, XMP_6), np.rot90(image, -1)),
        "phone.jpg": (saved(frames[0], "MPO", save_all=True, append_images=frames[1:]), pillows(jpeg)),
        "camera.jpg": (jpeg_of_blocks(SAMPLINGS["4:2:0"], 24, 40, restart=1, strays=b"\7\7", se=0), pillows(flat)),
        "3x1.jpg": (data := jpeg_of_blocks(SAMPLINGS["3x1"], 24, 40), pillows(data)),
        "4x2.jpg": (data := jpeg_of_blocks(SAMPLINGS["4:1:0"], 24, 40, restart=2), pillows(data)),
    }


@pytest.mark.parametrize("write_mode", [None, "original"])
def test_unusual_files_are_converted_and_loaded_as_others_read_them(tmp_path, write_mode):
    files = unusual_files()
    (tmp_path / "src").mkdir()
    for name, (data, _) in files.items():
        (tmp_path / "src" / name).write_bytes(data)
    lmdbloader.convert(tmp_path / "src", tmp_path / "out", write_mode=write_mode, workers=0)
    dataset = lmdbloader.LMDBDataset(tmp_path / "out")
    assert len(dataset) == len(files)
    for number, name in enumerate(sorted(files)):
        expected = files[name][1].transpose(2, 0, 1)
        batch = next(iter(lmdbloader.Loader(dataset.select([number]), 1, shuffle=False)))
        for image in (dataset[number].image, batch.image[0]):
            assert np.array_equal(np.broadcast_to(image.numpy(), expected.shape), expected), name


def test_a_conversion_notes_jpegs_with_further_images(tmp_path):
    (tmp_path / "src").mkdir()
    picture = Image.fromarray(noise(8, 8, 3))
    (tmp_path / "src" / "phone.jpg").write_bytes(saved(picture, "MPO", save_all=True, append_images=[picture]))
    picture.save(tmp_path / "src" / "plain.jpg")
    report = lmdbloader.convert(tmp_path / "src", tmp_path / "out", workers=1, progress=False)
    further = "phone.jpg is followed by others in its file, such as a preview or a gain map, which are not stored"
    assert further in "\n".join(report.notes)
