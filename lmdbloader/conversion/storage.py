"""How each image of a conversion is stored: as pixels, as a new JPEG, or as its own file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lmdbloader.base.option_names import option
from lmdbloader.conversion.options import ConvertOptions, check_value
from lmdbloader.errors import ImageError, OptionError
from lmdbloader.format.codecs import Payloads, encode_image, encode_jpeg, pack_file, pack_jpeg, planes
from lmdbloader.format.layout import MAX_PAYLOAD_NBYTES, TILE_SIZE, Field, bits_of
from lmdbloader.images.decode import DecodePolicy, decode_image, inspect_image, is_jpeg, read_header
from lmdbloader.kernels import entries

WriteMode = Literal["raw", "jpg", "proportion", "smart", "original"]
# The most that libjpeg writes; a JPEG's sides have 16 bits.
_MOST_JPEG_SIDE = 65500
_QUALITY, _PROBABILITY = 90, 0.5
# The mode without which an option has no effect; None for one that needs new JPEGs.
_NEEDED: dict[str, str | None] = {
    "jpeg_quality": None,
    "compress_probability": "proportion",
    "smart_threshold": "smart",
    "seed": "proportion",
}
# About the bytes of a photograph's JPEG for each byte of its pixels.
_JPEG_SHARE = 0.15
Pixels = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Storage:
    """How images are stored; a setting that has no effect with the mode is None.

    Attributes:
        mode: A write mode; None stores whole JPEG files without loss and the pixels of all others.
        jpeg_code: "fast" recodes JPEGs, "file" keeps their bytes; None with a mode that stores none.
        max_resolution: Images whose longer side has more pixels are shrunk to it.
        jpeg_quality: The quality of new JPEGs, 1 to 100.
        compress_probability: The share of images that "proportion" stores as JPEG.
        smart_threshold: "smart" stores images of more bytes of pixels than this as JPEG.
        seed: The seed of "proportion".
    """

    mode: WriteMode | None = "raw"
    jpeg_code: Literal["fast", "file"] | None = None
    max_resolution: int | None = None
    jpeg_quality: int | None = None
    compress_probability: float | None = None
    smart_threshold: int | None = None
    seed: int | None = None

    @property
    def keeps_files(self) -> bool:
        """Whether some files are stored as they are."""
        return self.mode in (None, "original")


PIXELS = Storage()


def make_storage(given: ConvertOptions, *, is_cut: bool) -> tuple[Storage, str]:
    """Return how images are stored, and the codec of pixels.

    Args:
        given: The options, checked.
        is_cut: Whether patches are cut, or pairs made, so that pixels are needed.

    Raises:
        OptionError: One of them has no effect together with the others.
    """
    mode = given.write_mode
    if is_cut and mode == "original":
        raise OptionError(
            f"{option('write_mode', mode)} keeps whole files: it cannot be combined with patches, {option('scale')} or "
            f"pairs. Leave them out, or use {option('write_mode', 'raw')} or 'jpg'."
        )
    # A codec alone asks for pixels, and so do patches.
    chosen = "raw" if mode is None and (given.codec is not None or is_cut) else mode
    options = {name: getattr(given, name) for name in ("jpeg_code", "max_resolution", *_NEEDED)}
    _refuse_unused(options, {chosen}, draws=given.subset is not None or given.degradation is not None)
    return _storage(chosen, options), given.codec or _codec_of(mode)


def _storage(mode: WriteMode | None, given: Mapping[str, Any]) -> Storage:
    """Return how images are stored with a mode; options that have no effect with it are left out."""
    if mode == "smart" and given["smart_threshold"] is None:
        raise OptionError(
            f"{option('write_mode', mode)} stores larger images as JPEG: give the limit with "
            f"{option('smart_threshold')}, in bytes of pixels (height x width x channels), for example 150528 for "
            "224 x 224 RGB"
        )
    encodes, draws, probability = _encodes(mode, given), mode == "proportion", given["compress_probability"]
    return Storage(
        mode=mode,
        jpeg_code=None if mode == "raw" else given["jpeg_code"] or "fast",
        max_resolution=given["max_resolution"],
        jpeg_quality=(given["jpeg_quality"] or _QUALITY) if encodes else None,
        compress_probability=(_PROBABILITY if probability is None else probability) if draws else None,
        smart_threshold=given["smart_threshold"] if mode == "smart" else None,
        seed=(given["seed"] or 0) if draws else None,
    )


def _encodes(mode: str | None, given: Mapping[str, Any]) -> bool:
    """Return whether new JPEGs may be made."""
    return mode in ("jpg", "proportion", "smart") or (
        mode in (None, "original") and given["max_resolution"] is not None
    )


def _codec_of(mode: str | None) -> str:
    return "raw" if mode in ("raw", "proportion", "smart") else "auto"


def _refuse_unused(given: Mapping[str, Any], modes: Set[str | None], *, draws: bool = False) -> None:
    """Raise OptionError for an option that has no effect with any of the modes."""
    if given["jpeg_code"] is not None and modes <= {"raw"}:
        raise OptionError(f"{option('jpeg_code')} has no effect: all images are stored as pixels")
    for name, needed in _NEEDED.items():
        has_effect = any(_encodes(mode, given) for mode in modes) if needed is None else needed in modes
        if given[name] is None or has_effect or (name == "seed" and draws):
            continue
        what = f"{option('write_mode', 'jpg')}, proportion or smart, or original with {option('max_resolution')}"
        if needed is not None:
            what = option("write_mode", needed)
        raise OptionError(f"{option(name)} has no effect without {what}")


def choose_storages(
    names: Sequence[str],
    write_mode: str | Mapping[str, str] | None,
    codec: str | Mapping[str, str] | None,
    given: Mapping[str, Any],
) -> tuple[dict[str, Storage], str | Mapping[str, str]]:
    """Return how the images of each field are stored that are made in Python, and the codecs of pixels.

    Args:
        names: The image fields.
        write_mode: As given, for all of them or field by field.
        codec: As given, likewise.
        given: The other options of how images are stored, by name; None for one that was not given.

    Raises:
        OptionError: One of them is out of its range, or has no effect together with the others.
    """
    if codec is not None and not isinstance(codec, str | Mapping):
        raise OptionError(f"{option('codec', codec)}: expected the name of a codec, or names by field")
    modes = write_mode if isinstance(write_mode, Mapping) else dict.fromkeys(names, write_mode)
    if write_mode is not None and not modes:
        raise OptionError(
            f"{option('write_mode', write_mode)} has no effect: there are no image fields. If a field has encoded "
            "images, declare it: fields={'image': lmdbloader.fields.Image()}."
        )
    for name in modes:
        if name not in names:
            raise OptionError(
                f"{option('write_mode')} of {name!r}: expected one of the image fields: {', '.join(names) or 'none'}"
            )
    checked: dict[str, Any] = {name: check_value("write_mode", mode) for name, mode in modes.items()}
    given = {name: check_value(name, value) for name, value in given.items()}
    if given["max_resolution"] is not None and not names:
        raise OptionError(f"{option('max_resolution')} has no effect: there are no image fields")
    _refuse_unused(given, {mode or "raw" for mode in checked.values()})
    storages = {name: _storage(mode or "raw", given) for name, mode in checked.items()}
    if isinstance(codec, str):
        return storages, codec
    codecs = {name: "raw" for name, mode in checked.items() if _codec_of(mode) == "raw"} | dict(codec or {})
    return storages, codecs or "auto"


def pixels_only(storage: Storage, mode: str | None) -> Storage:
    """Return how the images of pairs are stored.

    Raises:
        OptionError: An option would change their pixels.
    """
    if mode not in (None, "raw") or storage.max_resolution is not None:
        found = option("write_mode", mode) if storage.max_resolution is None else option("max_resolution")
        raise OptionError(f"{found} with pairs: the two images of a pair must keep their pixels. Leave it out.")
    return replace(storage, mode="raw")


def keep_file(
    storage: Storage, data: bytes, policy: DecodePolicy, name: str
) -> tuple[Payloads, tuple[int, ...]] | None:
    """Return a file's own bytes as a payload, and (height, width, channels, bits); None if its pixels are stored.

    Raises:
        ImageError: The file is damaged, or the policy refuses it.
    """
    if not storage.keeps_files or (storage.mode is None and not is_jpeg(data)):
        return None
    header = inspect_image(data, policy, name=name)
    sides = header.upright
    shape = *sides, header.channels
    # A reader of the dataset does not know the policy for transparency.
    if header.alpha or header.with_unnamed or fit_within(*sides, storage.max_resolution) != sides:
        return None
    raw_nbytes = math.prod(shape) * header.dtype.itemsize
    if max(raw_nbytes, len(data)) > MAX_PAYLOAD_NBYTES * 0.99:
        raise ImageError(name, f"{raw_nbytes} bytes of pixels in a file of {len(data)}: one payload has at most 2 GiB")
    fast = storage.jpeg_code == "fast"
    payload = pack_jpeg(data, header.orientation, raw_nbytes, fast=fast) if is_jpeg(data) else None
    if payload is None:
        # Otherwise a damaged file would be found only when it is read.
        decode_image(data, policy, name=name)
        payload = pack_file(data, raw_nbytes)
    return payload, (*shape, bits_of(header.dtype))


def encode_one(storage: Storage, f: Field, image: Pixels, key: str, *, was_jpeg: bool = False) -> Payloads:
    """Return an image (H, W, C) as a JPEG, or its pixels.

    Args:
        storage: How images are stored.
        f: The field, with the codec of pixels.
        image: uint8 or uint16.
        key: The image's key for the random choice of "proportion".
        was_jpeg: Whether it comes from a JPEG file.
    """
    payload = encode_as_jpeg(storage, image, key, was_jpeg=was_jpeg)
    return payload or encode_image(image, f.codec or "raw", f.tile_size or TILE_SIZE)


def encode_as_jpeg(storage: Storage, image: Pixels, key: str, *, was_jpeg: bool = False) -> Payloads | None:
    """Return an image as a JPEG; None if its pixels are stored. The arguments are those of `encode_one`."""
    if image.dtype != np.uint8 or image.shape[2] not in (1, 3) or max(image.shape[:2]) > _MOST_JPEG_SIDE:
        return None
    wanted = _becomes_jpeg(storage, image.nbytes, key, was_jpeg=was_jpeg)
    if not wanted:
        return None
    return encode_jpeg(image, storage.jpeg_quality or _QUALITY, fast=storage.jpeg_code == "fast")


def _becomes_jpeg(storage: Storage, nbytes: int, key: str, *, was_jpeg: bool) -> bool:
    """Return whether an image of so many bytes of pixels becomes a JPEG, if its file is not kept."""
    if storage.mode == "proportion":
        return draw(storage.seed or 0, key) < (storage.compress_probability or 0.0)
    if storage.mode == "smart":
        return nbytes > (storage.smart_threshold or 0)
    return storage.mode == "jpg" or (storage.keeps_files and was_jpeg)


def guess_nbytes(storage: Storage, shape: tuple[int, int, int, int], *, nbytes: int, was_jpeg: bool, key: str) -> float:
    """Return about how many bytes an image will have as a payload, from its header.

    Args:
        storage: How images are stored.
        shape: Rows, columns, channels and bytes of a channel.
        nbytes: The size of its file.
        was_jpeg: Whether that is a JPEG.
        key: As in `encode_one`.

    >>> guess_nbytes(PIXELS, (3000, 4000, 3, 1), nbytes=5_000_000, was_jpeg=True, key="a.jpg")
    36000000.0
    """
    height, width = fit_within(*shape[:2], storage.max_resolution)
    pixels = height * width * shape[2] * shape[3]
    share = height * width / (shape[0] * shape[1])
    if storage.mode == "original" and share == 1:
        return float(nbytes)
    if shape[3] == 1 and shape[2] in (1, 3) and _becomes_jpeg(storage, pixels, key, was_jpeg=was_jpeg):
        return nbytes * share if was_jpeg else pixels * _JPEG_SHARE
    return float(pixels)


def draw(seed: int, key: str) -> float:
    """Return a number in [0, 1) that depends only on a seed and a key.

    >>> 0 <= draw(0, "cat/1.jpg") < 1 and draw(0, "cat/1.jpg") != draw(1, "cat/1.jpg")
    True
    """
    data = np.frombuffer(seed.to_bytes(8, "little") + key.encode("utf-8", "surrogatepass"), np.uint8)
    found = np.empty(1, np.uint64)
    entries.xxh64_many(data, np.zeros(1, np.int64), np.array([data.nbytes]), found)
    return float(found[0]) / 2**64


def decode_to_size(storage: Storage, data: bytes, policy: DecodePolicy, name: str) -> Pixels:
    """Return a file's image (H, W, C), shrunk to the maximal resolution.

    Raises:
        ImageError: The file is damaged, or the policy refuses it.
    """
    if storage.max_resolution is None:
        return decode_image(data, policy, name=name)
    size = fit_within(*read_header(data, name).upright, storage.max_resolution)
    # From twice the size on, shrinking removes the detail that a reduced decoding of a JPEG blurs.
    return shrink(decode_image(data, policy, name=name, at_least=(2 * size[0], 2 * size[1])), *size)


def fit_within(height: int, width: int, max_resolution: int | None) -> tuple[int, int]:
    """Return (height, width) of an image after its longer side is limited to some pixels.

    >>> fit_within(2848, 4288, 384), fit_within(30, 40, 384)
    ((255, 384), (30, 40))
    """
    longest = max(height, width)
    if max_resolution is None or longest <= max_resolution:
        return height, width
    return max(1, round(height * max_resolution / longest)), max(1, round(width * max_resolution / longest))


def shrink(image: Pixels, new_height: int, new_width: int) -> Pixels:
    """Return an image (H, W, C) of another size, antialiased and bicubic.

    >>> shrink(np.zeros((30, 90, 3), np.uint8), 10, 30).shape
    (10, 30, 3)
    """
    height, width, channels = image.shape
    if (height, width) == (new_height, new_width):
        return image
    given, image = image, image.astype(np.float32) if image.dtype == np.float16 else image
    source, out = planes(image).view(image.dtype), np.empty((channels, new_height, new_width), image.dtype)
    between = height * max(width, new_width)
    bounds, weights, line = entries.resize_scratch(height, width, new_height, new_width, channels, True, between)
    entries.resize_window(
        source, 0, width, height * width, channels, height, width, 0.0, 0.0, float(height), float(width),
        out.reshape(-1), new_height, new_width, True, np.empty(bounds, np.int32), np.empty(weights, np.float32),
        np.empty(line, np.float32),
    )  # fmt: skip
    resized = np.empty((new_height, new_width, channels), given.dtype)
    for c in range(channels):  # channel by channel: a fifth of the time
        resized[:, :, c] = out[c]
    return resized


def nearest(mask: Pixels, new_height: int, new_width: int) -> Pixels:
    """Return a mask (H, W, 1) of another size: each label is the one at the center of the new pixel.

    So a mask stays in place with its image, as with Pillow's NEAREST; of a center between two labels, it is the second.
    torchvision's NEAREST, which the kernels follow, takes the label at the corner, half a new pixel off.

    >>> nearest(np.arange(6, dtype=np.uint8).reshape(1, 6, 1), 1, 2).ravel().tolist()
    [1, 4]
    """
    height, width, _ = mask.shape
    if (height, width) == (new_height, new_width):
        return mask
    rows, columns = (
        (2 * np.arange(new) + 1) * old // (2 * new) for new, old in ((new_height, height), (new_width, width))
    )
    return np.ascontiguousarray(mask[rows][:, columns])
