"""One image file's bytes to one array of pixels, under stated policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from lmdbloader.base.option_names import option
from lmdbloader.errors import ImageError, OptionError
from lmdbloader.images import jpeg, modern, pillow, png, pnm, rasters
from lmdbloader.images.header import ImageHeader, Pixels

__all__ = [
    "IMAGE_SUFFIXES",
    "RASTER_SUFFIXES",
    "AlphaPolicy",
    "DecodePolicy",
    "decode_image",
    "decode_labels",
    "glance",
    "inspect_image",
    "is_jpeg",
    "read_header",
]

AlphaPolicy: TypeAlias = Literal["refuse", "drop", "white"]

#: The suffixes (lower case, with the dot) of files that are read as images; the kind follows from a file's content.
IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".heic", ".heif", ".jpeg", ".jpg", ".jxl", ".pbm", ".pgm", ".png", ".pnm", ".ppm"}
    | {".tif", ".tiff", ".webp"}
)
#: Suffixes of files that are read as images only in folders without files of the other suffixes.
RASTER_SUFFIXES = frozenset({".dcm", ".exr", ".npy"})

_READERS: tuple[tuple[bytes, Callable[[memoryview, str], ImageHeader]], ...] = (
    (png.SIGNATURE, png.read_header),
    (jpeg.SIGNATURE, jpeg.read_header),
    *((signature, pnm.read_header) for signature in pnm.SIGNATURES),
    (b"BM", pillow.read_bmp),
    *((signature, pillow.read_gif) for signature in pillow.GIF_SIGNATURES),
    *((signature, rasters.read_tiff) for signature in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
    (b"RIFF", pillow.read_webp),
    *((signature, modern.read_jxl) for signature in modern.JXL_SIGNATURES),
    (rasters.NPY_SIGNATURE, rasters.read_npy),
    (rasters.EXR_SIGNATURE, rasters.read_exr),
)


@dataclass(frozen=True, slots=True)
class DecodePolicy:
    """How to treat image files that are not plain gray or RGB pixels.

    With every policy: the rotation of EXIF or XMP is applied, palette, CMYK and YCbCr become RGB, 1-bit becomes gray of
    0 and 255, 16-bit and floats stay what they are, several frames are refused, color profiles are ignored. Of a JPEG
    with further images, such as a preview or a gain map, the first is taken.

    Attributes:
        alpha: Transparency of any kind is refused, dropped, or composited over white. Samples besides red, green, blue
            and transparency are dropped with "drop", and further channels otherwise.
        max_pixels: An image of more pixels is refused before anything is decoded.

    Raises:
        OptionError: A value is not one of these.
    """

    alpha: AlphaPolicy = "refuse"
    max_pixels: int = 200_000_000

    def __post_init__(self) -> None:
        if self.alpha not in get_args(AlphaPolicy):
            raise OptionError(f"{option('alpha', self.alpha)}: expected one of {', '.join(get_args(AlphaPolicy))}")
        if self.max_pixels < 1:
            raise OptionError(f"{option('max_pixels', self.max_pixels)}: expected at least 1")


def read_header(data: bytes | bytearray | memoryview, name: str = "<bytes>") -> ImageHeader:
    """Return an image file's header; only it is read of a memory map.

    Raises:
        ImageError: The header is damaged, or no policy accepts such an image. Damaged pixels are not noticed.

    >>> header = read_header(b"P6 3 2 255 " + bytes(18))
    >>> header.upright, header.channels, header.dtype
    ((2, 3), 3, dtype('uint8'))
    """
    view = memoryview(data).cast("B")
    if not view:
        raise ImageError(name, "the file is empty")
    start = bytes(view[:12])
    for signature, read_header in _READERS:
        if start.startswith(signature):
            return read_header(view, name)
    if modern.is_box_file(start):
        return modern.read_box_file(view, name)
    if view[rasters.DICOM_AT :][:4] == rasters.DICOM_SIGNATURE:
        return rasters.read_dicom(view, name)
    kinds = "PNG, JPEG, BMP, GIF, TIFF, WebP, AVIF, HEIC, JPEG XL, PNM, NPY, EXR, DICOM"
    raise ImageError(name, f"not an image of a supported kind ({kinds}): {describe_start(start)}")


def glance(head: bytes) -> tuple[int, int, int, int] | None:
    """Return rows, columns, channels and bytes of a channel of an image, from the first bytes of its file.

    None if these do not say. Nothing else is checked. Rows and columns of a PNG are those before the rotation.

    >>> glance(b"\\x89PNG\\r\\n\\x1a\\n" + bytes.fromhex("0000000d 49484452 00000280000001e00802000000 bab34bb3"))
    (480, 640, 3, 1)
    """
    try:
        if head.startswith(png.SIGNATURE):
            return png.read_first_chunk(memoryview(head), "<head>")
        header = read_header(head, "<head>")
    except (ImageError, OptionError):  # an optional package is missing: the file itself is named later
        return None
    return *header.upright, header.channels, header.dtype.itemsize


def inspect_image(
    data: bytes | bytearray | memoryview, policy: DecodePolicy = DecodePolicy(), *, name: str = "<bytes>"
) -> ImageHeader:
    """Return an image file's header, after all checks of `decode_image` that need no pixels.

    Raises:
        ImageError: The header is damaged, or the policy refuses the image. Damaged pixels are not noticed.
    """
    header = read_header(data, name)
    if header.height * header.width > policy.max_pixels:
        raise ImageError(
            name,
            f"{header.width}x{header.height} is {header.width * header.height:,} pixels, "
            f"more than the limit of {policy.max_pixels:,}; raise {option('max_pixels')} if you trust the file",
        )
    if header.alpha and policy.alpha == "refuse":
        raise ImageError(
            name,
            "the image has an alpha channel or a transparent color; choose "
            f"{option('alpha', 'drop')} or {option('alpha', 'white')}",
        )
    if header.with_unnamed is not None and policy.alpha != "drop":
        header = header.with_unnamed()
    if header.alpha and policy.alpha == "white" and (header.dtype.kind == "f" or header.channels not in (1, 3)):
        raise ImageError(
            name,
            f"{header.channels} channels of {header.dtype} cannot be composited over white; use "
            f"{option('alpha', 'drop')}",
        )
    return header


def is_jpeg(data: bytes | bytearray | memoryview) -> bool:
    """Return whether a file begins as JPEG files do."""
    return bytes(data[: len(jpeg.SIGNATURE)]) == jpeg.SIGNATURE


def decode_image(
    data: bytes | bytearray | memoryview,
    policy: DecodePolicy = DecodePolicy(),
    *,
    name: str = "<bytes>",
    at_least: tuple[int, int] | None = None,
) -> Pixels:
    """Decode one image file's bytes, of one of the kinds in `read_header`.

    Args:
        data: The whole file's content.
        policy: How to treat transparency and very large images.
        name: The image's name in error messages.
        at_least: (height, width) that suffices; a larger JPEG may then be decoded to half its size or less.

    Returns:
        A new C-contiguous array (height, width, channels) of uint8, uint16, float16 or float32 with 1 (gray), 3 (RGB)
        or up to 64 channels.

    Raises:
        ImageError: The file is damaged or cut short, or the policy refuses it.
        OptionError: It needs an optional package that is not installed.

    >>> decode_image(b"P6 1 2 255 " + bytes([1, 2, 3, 4, 5, 6])).tolist()
    [[[1, 2, 3]], [[4, 5, 6]]]
    """
    header = inspect_image(data, policy, name=name)
    upright = header.upright
    sizes = {upright}
    try:
        if at_least is None or header.decode_smaller is None:
            pixels = header.decode()
        else:
            pixels = header.decode_smaller(*(at_least if header.orientation < 5 else at_least[::-1]))
            sizes |= {(-(-upright[0] * k // 8), -(-upright[1] * k // 8)) for k in range(1, 8)}
        if header.alpha:
            colors, alpha = pixels[:, :, :-1], pixels[:, :, -1:]
            pixels = over_white(colors, alpha) if policy.alpha == "white" else colors
        pixels = _rotate(pixels, header.orientation)
    except MemoryError as error:
        raise ImageError(name, f"not enough memory for {header.width}x{header.height} pixels") from error
    if pixels.shape[:2] not in sizes or pixels.shape[2] != header.channels or pixels.dtype != header.dtype:
        raise ImageError(
            name, f"decoded to {pixels.dtype} {pixels.shape}; its header promised {header.dtype} {upright}"
        )
    return pixels


def decode_labels(
    data: bytes | bytearray | memoryview, policy: DecodePolicy = DecodePolicy(), *, name: str = "<bytes>"
) -> Pixels:
    """Decode one mask file: its labels are the indices of a palette or the values of gray pixels, unchanged.

    Args:
        data: The whole file's content: PNG, BMP, GIF, TIFF, NPY, PGM or PBM, in which black is 0 and white is 1.
        policy: Its `max_pixels`; transparency does not count.
        name: The file's name in error messages.

    Returns:
        A new array (height, width, 1) of uint8 or uint16, after the rotation.

    Raises:
        ImageError: The file is damaged or too large, or holds colors or a JPEG, whose numbers are not exact.
    """
    header = inspect_image(data, DecodePolicy("drop", policy.max_pixels), name=name)
    if header.numbers is None:
        found = f"{header.channels} channel{'s' * (header.channels > 1)}{' and transparency' if header.alpha else ''}"
        what = "a JPEG, whose values are not exact" if is_jpeg(data) else f"{found} of {header.dtype} without labels"
        raise ImageError(
            name, f"{what}; expected one label for each pixel: save it as a PNG of gray pixels or with a palette"
        )
    try:
        return _rotate(header.numbers(), header.orientation)
    except MemoryError as error:
        raise ImageError(name, f"not enough memory for {header.width}x{header.height} pixels") from error


def palette_of(data: bytes | bytearray | memoryview) -> bytes:
    """Return red, green and blue of each number of a mask file with a palette; empty for one of gray pixels.

    Raises:
        ImageError: The file is damaged.
    """
    return read_header(data, "<bytes>").palette()


def is_image_start(start: bytes) -> bool:
    """Return whether a file with these first bytes may be an image of a supported kind.

    >>> is_image_start(b"P6 3 2 255 "), is_image_start(b"")
    (True, False)
    """
    return modern.is_box_file(start) or any(start.startswith(signature) for signature, _ in _READERS)


def describe_start(start: bytes) -> str:
    """Return a guess, from its first bytes, at the kind of a file that is not an image.

    >>> describe_start(bytes([128, 4, 149]))
    "a pickle, which is never loaded: it starts with b'\\\\x80\\\\x04\\\\x95'"
    """
    is_pickle = start[:1] == b"\x80" and start[1:2] in (b"\2", b"\3", b"\4", b"\5")
    return f"{'a pickle, which is never loaded: ' * is_pickle}it starts with {start[:12]!r}"


def over_white(colors: Pixels, alpha: Pixels) -> Pixels:
    """Composite colors over white, exactly rounded."""
    white = np.uint32(np.iinfo(colors.dtype).max)
    # One dtype throughout, as promotion depends on NumPy's version. white * white plus half of it stays below 2 ** 32
    # even for 16 bits.
    colors_32, alpha_32 = colors.astype(np.uint32), alpha.astype(np.uint32)
    total = colors_32 * alpha_32 + white * (white - alpha_32) + white // np.uint32(2)
    return (total // white).astype(colors.dtype)


def _rotate(pixels: Pixels, orientation: int) -> Pixels:
    """Apply an EXIF orientation (1 to 8) to (height, width, channels); the result is C-contiguous."""
    pixels = np.ascontiguousarray(pixels)
    if orientation == 1:
        return pixels
    # One item a pixel: NumPy moves whole items almost three times as fast as the samples one by one.
    channels = pixels.shape[2]
    items = pixels.view(np.dtype((np.void, channels * pixels.itemsize)))[:, :, 0]
    if orientation >= 5:
        items = items.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        items = items[::-1]
    if orientation in (2, 3, 6, 7):
        items = items[:, ::-1]
    return np.ascontiguousarray(items).view(pixels.dtype).reshape(*items.shape, channels)
