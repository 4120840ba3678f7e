"""How each image of a conversion is stored: as pixels, as a JPEG that we encode, or as its own file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import number, optional, shown, whole
from lmdbloader.errors import ImageError, OptionError
from lmdbloader.format.codecs import Payloads, checksum, encode_image, encode_jpeg, pack_file, pack_jpeg
from lmdbloader.format.layout import MAX_PAYLOAD_NBYTES, TILE_SIZE, Field
from lmdbloader.images.decode import DecodePolicy, decode_image, image_info, inspect_image, is_jpeg

WriteMode = Literal["raw", "jpg", "proportion", "smart", "original"]
#: Those of images that come without a file.
PixelMode = Literal["raw", "jpg", "proportion", "smart"]
WRITE_MODES = get_args(WriteMode)
# What libjpeg writes at most; a JPEG's sides have 16 bits.
_MOST_JPEG_SIDE = 65500
_QUALITY, _PROBABILITY = 90, 0.5
Pixels = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Storage:
    """What becomes of images; what has no effect with a mode is None.

    Attributes:
        mode: One of WRITE_MODES; None keeps whole JPEG files as they are and stores the pixels of all others.
        max_resolution: Images whose longer side has more pixels are shrunk to it.
        jpeg_quality: Of the JPEGs that we encode, 1 to 100.
        compress_probability: The share of images that "proportion" stores as JPEG.
        smart_threshold: "smart" stores images of more bytes of pixels than this as JPEG.
        seed: Of what "proportion" draws.
    """

    mode: WriteMode | None = "raw"
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


def make_storage(
    mode: str | None,
    codec: str | None,
    *,
    is_cut: bool,
    max_resolution: int | None,
    jpeg_quality: int | None,
    compress_probability: float | None,
    smart_threshold: int | None,
    seed: int | None,
    seed_is_used: bool = False,
) -> tuple[Storage, str]:
    """Return how images are stored, and the codec of pixels.

    Args:
        mode: As given, None where it was not.
        codec: As given, None where it was not.
        is_cut: Whether patches are cut, or pairs made, so that pixels are needed.
        max_resolution, jpeg_quality, compress_probability, smart_threshold, seed: As given, None where they were not.
        seed_is_used: Whether something else depends on the seed too.

    Raises:
        OptionError: One of them is out of its range, or has no effect together with the others.
    """
    max_resolution = optional(whole, "max_resolution", max_resolution)
    jpeg_quality = optional(whole, "jpeg_quality", jpeg_quality)
    compress_probability = optional(number, "compress_probability", compress_probability)
    smart_threshold = optional(whole, "smart_threshold", smart_threshold)
    seed = optional(whole, "seed", seed)
    if mode is not None and mode not in WRITE_MODES:
        raise OptionError(f"write mode {mode!r}: expected one of {', '.join(WRITE_MODES)}")
    if is_cut and mode == "original":
        raise OptionError(
            "write mode 'original' keeps whole files: it does not go with patches, --scale or pairs. "
            "Leave them out, or use --write-mode raw or jpg."
        )
    chosen = _chosen(mode, codec, is_cut)
    encodes = chosen in ("jpg", "proportion", "smart") or (chosen in (None, "original") and max_resolution is not None)
    for name, given, has_effect, where in (
        ("--jpeg-quality", jpeg_quality, encodes, "jpg, proportion or smart, or original with --max-resolution"),
        ("--compress-probability", compress_probability, chosen == "proportion", "proportion"),
        ("--smart-threshold", smart_threshold, chosen == "smart", "smart"),
        ("--seed", seed, chosen == "proportion" or seed_is_used, "proportion, or --subset"),
    ):
        if given is not None and not has_effect:
            raise OptionError(f"{name} has no effect without --write-mode {where}")
    if mode == "smart" and smart_threshold is None:
        raise OptionError(
            "write mode 'smart' stores larger images as JPEG: say with --smart-threshold what is larger, in bytes of "
            "pixels (height x width x channels), for example 150528 for 224 x 224 RGB"
        )
    for name, least, most, value in (
        ("max_resolution", 1, _MOST_JPEG_SIDE, max_resolution),
        ("jpeg_quality", 1, 100, jpeg_quality),
        ("compress_probability", 0, 1, compress_probability),
        ("smart_threshold", 0, None, smart_threshold),
        ("seed", 0, 2**64 - 1, seed),
    ):
        if value is not None and not (least <= value and (most is None or value <= most)):
            raise OptionError(f"{name} {value}: expected {least} to {most}" if most else f"{name} {value}: negative")
    draws = chosen == "proportion"
    storage = Storage(
        mode=chosen,
        max_resolution=max_resolution,
        jpeg_quality=(jpeg_quality or _QUALITY) if encodes else None,
        compress_probability=(_PROBABILITY if compress_probability is None else compress_probability)
        if draws
        else None,
        smart_threshold=smart_threshold,
        seed=(seed or 0) if draws else None,
    )
    return storage, codec or ("raw" if mode in ("raw", "proportion", "smart") else "auto")


def choose_storages(
    names: Sequence[str],
    write_mode: str | Mapping[str, str] | None,
    codec: str | Mapping[str, str] | None,
    *,
    max_resolution: int | None,
    jpeg_quality: int | None,
    compress_probability: float | None,
    smart_threshold: int | None,
    seed: int | None,
) -> tuple[dict[str, Storage], str | Mapping[str, str]]:
    """Return how the images of each field are stored that are made in Python, and the codecs of pixels.

    Args:
        names: Of the image fields.
        write_mode: As given, for all of them or field by field.
        codec: As given, likewise.
        max_resolution, jpeg_quality, compress_probability, smart_threshold, seed: As given, None where they were not.

    Raises:
        OptionError: One of them is out of its range, or has no effect together with the others.
    """
    if codec is not None and not isinstance(codec, str | Mapping):
        raise OptionError(f"codec={shown(codec)}: expected the name of a codec, or names by field")
    modes = write_mode if isinstance(write_mode, Mapping) else dict.fromkeys(names, write_mode)
    for name, mode in modes.items():
        if name not in names:
            raise OptionError(f"write mode of {name!r}: expected one of the image fields: {', '.join(names) or 'none'}")
        if mode == "original":
            raise OptionError(
                "write mode 'original': images made in Python have no files of their own. Use jpg or raw."
            )
        if mode is not None and not isinstance(mode, str):
            raise OptionError(f"write_mode={shown(mode)}: expected one of {', '.join(WRITE_MODES)}")
    used = set(modes.values())
    if max_resolution is not None and not names:
        raise OptionError("max_resolution has no effect: there are no image fields")
    storages: dict[str, Storage] = {}
    codecs: dict[str, str] = {}
    for name in modes:
        # Each option is refused where it has no effect on any field, by the last one that could use it.
        storages[name], codecs[name] = make_storage(
            modes[name],
            codec if isinstance(codec, str) else None,
            is_cut=True,
            max_resolution=max_resolution,
            jpeg_quality=jpeg_quality if modes[name] not in (None, "raw") or used <= {None, "raw"} else None,
            compress_probability=compress_probability if _uses(modes[name], "proportion", used) else None,
            smart_threshold=smart_threshold if _uses(modes[name], "smart", used) else None,
            seed=seed if _uses(modes[name], "proportion", used) else None,
        )
    if isinstance(codec, str):
        return storages, codec
    codecs = {name: chosen for name, chosen in codecs.items() if chosen != "auto"} | dict(codec or {})
    return storages, codecs or "auto"


def _uses(mode: str | None, option_of: str, used: Set[str | None]) -> bool:
    """Return whether a mode is to be told an option of another: its own, and any where no field has that mode."""
    return mode == option_of or option_of not in used


def pixels_only(storage: Storage, mode: str | None) -> Storage:
    """Return how the images of pairs are stored.

    Raises:
        OptionError: What was asked for would change their pixels.
    """
    if mode not in (None, "raw") or storage.max_resolution is not None:
        what = "--max-resolution" if storage.max_resolution is not None else f"write mode {mode!r}"
        raise OptionError(f"{what} with pairs: the two images of a pair must keep their pixels. Leave it out.")
    return replace(storage, mode="raw")


def _chosen(mode: Any, codec: str | None, is_cut: bool) -> WriteMode | None:
    """Return the mode that is meant: a codec alone asks for pixels, and so do patches."""
    return "raw" if mode is None and (codec is not None or is_cut) else mode


def keep_file(
    storage: Storage, data: bytes, policy: DecodePolicy, name: str
) -> tuple[Payloads, tuple[int, ...]] | None:
    """Return a file's own bytes as a payload, and (height, width, channels, bits); None where pixels are to be stored.

    Args:
        storage: What becomes of images.
        data: The whole file.
        policy: For files that are not plain grey or RGB.
        name: What error messages call the image.

    Raises:
        ImageError: The file is damaged, or the policy refuses it.
    """
    if not storage.keeps_files or (storage.mode is None and not is_jpeg(data)):
        return None
    header = inspect_image(data, policy, name=name)
    sides = (header.height, header.width) if header.orientation < 5 else (header.width, header.height)
    shape = *sides, header.channels
    # Which policy there was for transparency is not known when the file is read.
    if header.alpha or fit_within(*sides, storage.max_resolution) != sides:
        return None
    raw_nbytes = math.prod(shape) * header.dtype.itemsize
    if max(raw_nbytes, len(data)) > MAX_PAYLOAD_NBYTES * 0.99:
        raise ImageError(name, f"{raw_nbytes} bytes of pixels in a file of {len(data)}: one payload has at most 2 GiB")
    payload = pack_jpeg(data, header.orientation, raw_nbytes) if is_jpeg(data) else None
    if payload is None:
        # What does not decode is no use, and its reader would be the first to know.
        decode_image(data, policy, name=name)
        payload = pack_file(data, raw_nbytes)
    return payload, (*shape, 8 * header.dtype.itemsize)


def encode_one(storage: Storage, f: Field, image: Pixels, key: str, *, was_jpeg: bool = False) -> Payloads:
    """Return an image (H, W, C) as a JPEG where the storage says so, else its pixels.

    Args:
        storage: What becomes of images.
        f: Their field, which says how pixels are stored.
        image: uint8 or uint16.
        key: Names the image; what is drawn depends on it and the seed.
        was_jpeg: Whether it comes from a JPEG file.
    """
    payload = _encode_as_jpeg(storage, image, key, was_jpeg)
    return payload or encode_image(image, f.codec or "raw", f.tile_size or TILE_SIZE)


def _encode_as_jpeg(storage: Storage, image: Pixels, key: str, was_jpeg: bool) -> Payloads | None:
    if image.dtype != np.uint8 or max(image.shape[:2]) > _MOST_JPEG_SIDE:
        return None
    if storage.mode == "proportion":
        wanted = draw(storage.seed or 0, key) < (storage.compress_probability or 0.0)
    elif storage.mode == "smart":
        wanted = image.nbytes > (storage.smart_threshold or 0)
    else:
        wanted = storage.mode == "jpg" or (storage.keeps_files and was_jpeg)
    return encode_jpeg(image, storage.jpeg_quality or _QUALITY) if wanted else None


def draw(seed: int, key: str) -> float:
    """Return a number in [0, 1) that depends on a seed and a key only.

    >>> 0 <= draw(0, "cat/1.jpg") < 1 and draw(0, "cat/1.jpg") != draw(1, "cat/1.jpg")
    True
    """
    return float(checksum(seed.to_bytes(8, "little") + key.encode("utf-8", "surrogatepass"))) / 2**64


def decode_to_size(storage: Storage, data: bytes, policy: DecodePolicy, name: str) -> Pixels:
    """Return a file's image (H, W, C), shrunk where the storage says so.

    Raises:
        ImageError: The file is damaged, or the policy refuses it.
    """
    if storage.max_resolution is None:
        return decode_image(data, policy, name=name)
    info = image_info(data, name=name)
    size = fit_within(info.height, info.width, storage.max_resolution)
    # From twice the size on, what the smaller decoding of a JPEG blurs is lost by shrinking anyway.
    return shrink(decode_image(data, policy, name=name, at_least=(2 * size[0], 2 * size[1])), *size)


def fit_within(height: int, width: int, max_resolution: int | None) -> tuple[int, int]:
    """Return the size of an image whose longer side may have so many pixels.

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
    from lmdbloader.kernels.patches import cut
    from lmdbloader.kernels.resize.antialias import resize_scratch, resize_window

    planes, out = np.empty(image.size, image.dtype), np.empty((channels, new_height, new_width), image.dtype)
    cut(image, 0, 0, height, width, planes)
    bounds, weights, line = resize_scratch(height, width, new_height, new_width, channels, True)
    resize_window(
        planes, 0, width, height * width, channels, height, width, 0.0, 0.0, float(height), float(width),
        out.reshape(-1), new_height, new_width, True, np.empty(bounds, np.int32), np.empty(weights, np.float32),
        np.empty(line, np.float32),
    )  # fmt: skip
    resized = np.empty((new_height, new_width, channels), image.dtype)
    for c in range(channels):  # channel by channel, NumPy takes a fifth of the time
        resized[:, :, c] = out[c]
    return resized
