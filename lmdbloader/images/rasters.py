"""The kinds of image file with 1 to 64 channels of 8 bits, 16 bits or floats: TIFF, EXR, NPY and DICOM."""

from __future__ import annotations

import importlib
import io
import logging
import math
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from lmdbloader.errors import ImageError, OptionError
from lmdbloader.images import pillow
from lmdbloader.images.header import PIXEL_TYPES, ImageHeader, Pixels, find_orientation, tiff_values

NPY_SIGNATURE, EXR_SIGNATURE, DICOM_SIGNATURE, DICOM_AT = b"\x93NUMPY", b"v/1\x01", b"DICM", 128
_MOST_CHANNELS = 64
_BITS, _PHOTOMETRIC, _NUM_SAMPLES, _EXTRA_SAMPLES, _SAMPLE_FORMAT, _IMAGE_DEPTH = 258, 262, 277, 338, 339, 32997
_SAMPLE_FORMATS = {1: "uint", 2: "int", 3: "float", 4: "uint", 5: "complex", 6: "complex"}
_GRAYS, _BLACK_IS_ZERO, _RGB, _UNNAMED, _ALPHAS = (0, 1), 1, 2, 0, (1, 2)
# Pillow opens TIFFs of at most six samples.
_MOST_OF_PILLOW = 6
_EXR_DEEP_OR_PARTS, _EXR_HALF, _EXR_FLOAT = 0x1800, 1, 2
# Its name, and 16 bytes: type, linear or not, and the distances of its pixels.
_EXR_CHANNEL = re.compile(rb"([^\0]+)\0(.{16})", re.DOTALL)
# Without a handler Python prints what tifffile logs: of a header alone, that later pages are not there.
logging.getLogger("tifffile").addHandler(logging.NullHandler())
# Headers of NPY and EXR are longer only if they are damaged, or hold previews.
_MOST_HEADER = 2**16
_TIFF_LINE = 'tifffile.imwrite(path, tifffile.imread(path).astype("{}"))'
_NPY_LINE = 'np.save(path, np.load(path).astype("{}"))'

_IMAGE_FIELD = '{"image": lmdbloader.fields.Image()}'
# How Python reads a file, by the package that `convert` needs for it.
_LOADS = {
    "numpy": "numpy.load(path)",
    "tifffile": "tifffile.imread(path)",
    "pydicom": "pydicom.dcmread(path).pixel_array",
}


def read_tiff(data: memoryview, name: str) -> ImageHeader:
    """Read the header of a TIFF or BigTIFF file: Pillow that of 8 bits, or 16 bits gray, and tifffile all others."""
    bits, (photometric, *_) = tiff_values(data, _BITS) or (1,), tiff_values(data, _PHOTOMETRIC) or (None,)
    extra, formats = tiff_values(data, _EXTRA_SAMPLES), tiff_values(data, _SAMPLE_FORMAT)
    num_samples = (tiff_values(data, _NUM_SAMPLES) or (1,))[0]
    if (tiff_values(data, _IMAGE_DEPTH) or (1,))[0] > 1:
        raise ImageError(name, "the TIFF file holds a volume; only images can be used")
    is_wide = max(bits) > 8 and (num_samples > 1 or bits[0] != 16)
    are_bands = photometric in _GRAYS and num_samples > 1 and not set(extra) & set(_ALPHAS)
    if not is_wide and not are_bands and num_samples <= _MOST_OF_PILLOW and set(formats) <= {1, 4}:
        header = pillow.read_tiff(data, name)
        if _UNNAMED not in extra:
            return header
        return replace(header, numbers=None, with_unnamed=lambda: _read_tiff(data, name, keep_unnamed=True))
    if photometric is not None and len({*bits}) == 1 and len({*formats}) <= 1:
        _check(_SAMPLE_FORMATS.get(formats[0] if formats else 1, "?") + str(bits[0]), num_samples, _TIFF_LINE, name)
    return _read_tiff(data, name, keep_unnamed=False)


def _read_tiff(data: memoryview, name: str, *, keep_unnamed: bool) -> ImageHeader:
    tifffile = package("tifffile", "a TIFF file of this kind", name)
    with explained("TIFF header", name):
        file = tifffile.TiffFile(io.BytesIO(data), is_ome=False)  # which may name other files
        page = file.pages.first
        num_images = sum(series.size for series in file.series) // max(1, page.size)
        num_pages = max(num_images, len(file.pages), 1 + len(page.subifds or ()))
        sides = (page.imagelength, page.imagewidth, page.samplesperpixel, page.tilewidth * page.tilelength)
        height, width, samples, tile = map(int, sides)  # a damaged tag may have several values
        extra, photometric = tuple(map(int, page.extrasamples)), tifffile.PHOTOMETRIC(int(page.photometric))
        found = np.dtype(page.dtype).name
    if num_pages != 1:
        raise ImageError(name, pillow.several_frames("TIFF", num_pages))
    if photometric not in (_BLACK_IS_ZERO, _RGB):
        raise ImageError(name, f"a TIFF file of {found} as {photometric.name}; expected MINISBLACK or RGB. Save it so")
    if pillow.is_large_tile(tile, width, height):
        raise ImageError(name, f"{width}x{height} pixels in much larger tiles; save the TIFF file without tiles")
    num_colors = 3 if photometric == _RGB else samples - len(extra)
    if samples == 4 and photometric == _RGB and not extra:
        extra = (_ALPHAS[0],)  # as Pillow reads it
    extra = (_UNNAMED,) * (samples - num_colors - len(extra)) + extra
    alphas = [number for number, kind in enumerate(extra, num_colors) if kind in _ALPHAS]
    num_unnamed = 0 if keep_unnamed or photometric != _RGB else len(extra) - len(alphas)
    taken = [number for number in range(samples) if number not in alphas][: samples - len(alphas) - num_unnamed]

    def decode() -> Pixels:
        with explained("TIFF data", name):
            parts = list(zip(page.dataoffsets, page.databytecounts, strict=True))
            if len(parts) < math.prod(page.chunked) or not all(0 < at < at + n <= len(data) for at, n in parts):
                raise ImageError(name, "the TIFF file is cut short, or some of its tiles or strips are missing")
            planes = page.asarray(squeeze=False, maxworkers=1)[:, 0]
            pixels = planes[0] if len(planes) == 1 else np.moveaxis(planes[..., 0], 0, 2)
            return np.asarray(pixels if (order := [*taken, *alphas]) == [*range(samples)] else pixels[:, :, order])

    return replace(
        _header(name, (height, width, len(taken)), found, decode, _TIFF_LINE),
        alpha=bool(alphas),
        orientation=find_orientation(data),
        with_unnamed=(lambda: _read_tiff(data, name, keep_unnamed=True)) if num_unnamed else None,
    )


def read_npy(data: memoryview, name: str) -> ImageHeader:
    """Read the header of an array (H, W) or (H, W, C) in NumPy's format; pickled ones are refused."""
    file = io.BytesIO(data[:_MOST_HEADER])
    with explained("NPY header", name):
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, is_fortran, dtype = readers[np.lib.format.read_magic(file)](file)
    if len(shape) not in (2, 3):
        write = 'lmdbloader.write(({"array": numpy.load(path)} for path in paths), OUT)'
        raise ImageError(
            name, f"an array of shape {shape}; expected an image (H, W) or (H, W, channels). As an array: {write}"
        )
    height, width, channels = (*shape, 1)[:3]
    # Two equal sides that come last, or more channels than rows, are hardly an image (H, W, C).
    is_moved = channels not in (1, 3) and height != width and (channels > height or channels == width)
    if is_moved or (channels > _MOST_CHANNELS and height <= _MOST_CHANNELS):
        line = "np.save(path, np.moveaxis(np.load(path), 0, 2))"
        write = _or_write("numpy", ".transpose(1, 2, 0)")
        raise ImageError(
            name, f"{shape} looks like (channels, H, W); expected (H, W, channels). Save it again: {line}{write}"
        )
    start = file.tell()

    def decode() -> Pixels:
        if len(data) < start + math.prod(shape) * dtype.itemsize:
            raise ImageError(name, f"the NPY file is cut short: {len(data)} bytes")
        array = np.frombuffer(data, dtype, math.prod(shape), start).reshape(shape, order="F" if is_fortran else "C")
        return array.astype(dtype.newbyteorder("="), order="C").reshape(height, width, channels)

    header = _header(name, (height, width, channels), dtype.name, decode, _NPY_LINE)
    return replace(header, numbers=decode if channels == 1 and dtype.kind == "u" else None)


def read_exr(data: memoryview, name: str) -> ImageHeader:
    """Read the header of an OpenEXR file: channels in `_exr_order`, and A as alpha."""
    if int.from_bytes(data[4:8], "little") & _EXR_DEEP_OR_PARTS:
        raise ImageError(name, "an EXR file with several parts or deep pixels; expected a single flat image")
    with explained("EXR header", name):
        values = _exr_attributes(data)
        window, shown = (struct.unpack("<4i", values[f"{kind}Window"]) for kind in ("data", "display"))
        channels = [(c.decode(), *struct.unpack("<4i", v)) for c, v in _EXR_CHANNEL.findall(values["channels"])]
        found = {channel: kind for channel, kind, *_ in channels}
        across, down, levels = struct.unpack("<IIB", values.get("tiles", bytes(9)))
    height, width = window[3] - window[1] + 1, window[2] - window[0] + 1
    if levels & 15 or pillow.is_large_tile(across * down, width, height):
        raise ImageError(name, "an EXR file with mipmaps or with tiles larger than the image; save it without tiles")
    if window != shown:
        line = "oiiotool in.exr --croptofull -o out.exr"
        raise ImageError(name, f"an EXR file of data window {window}; expected the display window {shown}: {line}")
    if any(steps != [1, 1] for _, _, _, *steps in channels):
        raise ImageError(name, "an EXR file with subsampled channels; expected channels of equal size. Save it as RGB")
    names = sorted((c for c in found if c != "A"), key=_exr_order) or ["A"]
    has_alpha = "A" in found and names != ["A"]
    types = set(found.values())
    dtype = "float16" if types == {_EXR_HALF} else "float32" if types <= {_EXR_HALF, _EXR_FLOAT} else "uint32"
    openexr = package("OpenEXR", "an EXR file", name)

    def decode() -> Pixels:
        with explained("EXR data", name):
            # Only `header()` and `File` crash on damaged attributes.
            kind = importlib.import_module("Imath").PixelType(_EXR_HALF if dtype == "float16" else _EXR_FLOAT)
            planes = openexr.InputFile(io.BytesIO(data)).channels([*names, *["A"] * has_alpha], kind)
            return np.stack([np.frombuffer(plane, dtype).reshape(height, width) for plane in planes], axis=2)

    return replace(_header(name, (height, width, len(names)), dtype, decode), alpha=has_alpha)


def _exr_order(channel: str) -> tuple[str, int, str]:
    """Return what sorts channels: those without a layer, then layer by layer; R, G, B, A of each, then the others."""
    layer, _, name = channel.rpartition(".")
    return layer, ("R", "G", "B", "A", name).index(name), name


def _exr_attributes(data: memoryview) -> dict[str, bytes]:
    """Return the attributes in the header of an EXR file, by name: OpenEXR itself crashes on damaged ones."""
    found, at, head = dict[str, bytes](), 8, bytes(data[:_MOST_HEADER])
    while head[at]:
        name, _, rest = head[at:].split(b"\0", 2)
        (size,) = struct.unpack_from("<I", rest)
        found[name.decode()] = rest[4 : 4 + size]
        at = len(head) - len(rest) + 4 + size
    return found


def read_dicom(data: memoryview, name: str) -> ImageHeader:
    """Read the header of a DICOM file with one frame; see `docs/how-to/scientific.md` for what pixels become."""
    pydicom = package("pydicom", "a DICOM file", name)
    with explained("DICOM header", name):
        file = pydicom.dcmread(io.BytesIO(data), stop_before_pixels=True)
        height, width, channels = int(file.Rows), int(file.Columns), int(file.get("SamplesPerPixel", 1))
        bits, stored, kind = int(file.BitsAllocated), int(file.BitsStored), str(file.PhotometricInterpretation)
        is_signed, num_frames = int(file.PixelRepresentation) == 1, int(file.get("NumberOfFrames") or 1)
        slope, intercept = float(file.get("RescaleSlope", 1)), float(file.get("RescaleIntercept", 0))
        has_table = "ModalityLUTSequence" in file
    if num_frames != 1:
        of_frames = f"for path in paths for frame in {_LOADS['pydicom']}), OUT, fields={_IMAGE_FIELD})"
        write = f'. Their stored values: lmdbloader.write(({{"image": frame}} {of_frames}'
        raise ImageError(name, f"{pillow.several_frames('DICOM', num_frames)}{write}")
    write = _or_write("pydicom", '.astype("float32")').replace(". Or", "Its stored values as they are")
    is_color = channels == 3 and (kind == "RGB" or kind.startswith("YBR"))
    if not is_color and (channels != 1 or kind not in ("MONOCHROME1", "MONOCHROME2")):
        what = f"a DICOM file of {kind} with {channels} samples; expected MONOCHROME1 or 2, or RGB"
        raise ImageError(name, f"{what}. {write}")
    is_scaled, is_inverse = is_signed or (slope, intercept) != (1, 0), kind == "MONOCHROME1"
    if has_table or (is_scaled and (is_inverse or is_color)):
        what = "ModalityLUTSequence" if has_table else f"rescaled values of {kind}"
        raise ImageError(name, f"a DICOM file with {what} could mean several things; save its pixels as .npy. {write}")
    dtype = "float32" if is_scaled and bits in (8, 16) else f"uint{bits}"

    def decode() -> Pixels:
        with explained("DICOM data", name):
            array = pydicom.pixels.pixel_array(pydicom.dcmread(io.BytesIO(data))).reshape(height, width, channels)
            if is_inverse and int(array.max()) >= 2**stored:
                raise ImageError(name, f"the DICOM file has values of more than its {stored} bits")
            values = array * slope + intercept if is_scaled else 2**stored - 1 - array if is_inverse else array
            return np.asarray(values, dtype)

    return _header(name, (height, width, channels), dtype, decode)


def _header(
    name: str, shape: tuple[int, int, int], dtype: str, decode: Callable[[], Pixels], line: str = ""
) -> ImageHeader:
    """Return the header of an image without alpha and rotation, after a check of its type and its shape (H, W, C)."""
    height, width, channels = shape
    _check(dtype, channels, line, name)
    if min(height, width) < 1:
        raise ImageError(name, f"{width}x{height} pixels; expected at least one")
    return ImageHeader(height, width, channels, np.dtype(dtype), False, 1, decode)


def package(module: str, what: str, name: str) -> Any:
    """Import an optional package. If it is missing, no policy leaves a whole folder out: that is an OptionError."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        line = "pip install 'lmdbloader[rasters]'"
        raise OptionError(
            f"{name}: {what} needs the package {module.lower()} ({error}): {line}{_or_write(module)}"
        ) from error


def _or_write(module: str, change: str = "") -> str:
    """Return the line that stores what a package reads, changed by a method; "" for other packages."""
    if (load := _LOADS.get(module)) is None:
        return ""
    samples = f'({{"image": {load}{change}}} for path in paths)'
    return f". Or: lmdbloader.write({samples}, OUT, fields={_IMAGE_FIELD})"


@contextmanager
def explained(what: str, name: str) -> Iterator[None]:
    """Raise nearly anything that hostile bytes make a parser raise as ImageError."""
    try:
        yield
    except (ImageError, MemoryError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        if "requires the 'imagecodecs'" in why:
            raise OptionError(f"{name}: {why}: pip install 'lmdbloader[rasters]'") from error
        raise ImageError(name, f"the {what} is damaged or of an unsupported kind: {why}") from error


def _check(dtype: str, channels: int, line: str, name: str) -> None:
    """Refuse other types of values, with the line that converts them, and too many channels."""
    if dtype not in PIXEL_TYPES:
        usable = {"bool": "uint8", "uint12": "uint16"}.get(dtype, "float32")
        how = f", as {line.format(usable)}" if line and dtype.startswith(("int", "uint", "float", "bool")) else ""
        mask = " (a mask as uint8 or uint16)" if how and "int" in dtype else ""
        module = {_TIFF_LINE: "tifffile", _NPY_LINE: "numpy"}.get(line, "")
        write = _or_write(module, f'.astype("{usable}")') if how else ""
        raise ImageError(name, f"values of {dtype}; expected {', '.join(PIXEL_TYPES)}. Save it again{how}{mask}{write}")
    if not 1 <= channels <= _MOST_CHANNELS:
        raise ImageError(name, f"{channels} channels; expected 1 to {_MOST_CHANNELS}. Save fewer")
