"""The conversion of sources to encoded samples: decode, check, scale, cut, encode."""

from __future__ import annotations

import contextlib
import math
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.disk_errors import DISK_FAILED
from lmdbloader.base.option_names import for_file, option
from lmdbloader.conversion.degrading import degrade
from lmdbloader.conversion.mask_numbers import add_colors, colors_of, refuse_soft, to_binary
from lmdbloader.conversion.notes import FURTHER_IMAGES, TURNED_BOXES, TURNED_MASK, Notes, content_digest
from lmdbloader.conversion.options import ConvertOptions
from lmdbloader.conversion.pairs import check_alignment, common_text, fit_pair
from lmdbloader.conversion.sources.clips import place_in_clip
from lmdbloader.conversion.sources.listing import Annotation, File, Source, Span, as_text, name_of
from lmdbloader.conversion.sources.reading import Fetched, fetch, read, times_of
from lmdbloader.conversion.storage import PIXELS, Storage, decode_to_size, encode_one, keep_file, nearest
from lmdbloader.conversion.values import add_values, image_geometry, parse_attached
from lmdbloader.errors import ImageError
from lmdbloader.format.codecs import Payloads, checksum, encode_many, join, refuse_floats
from lmdbloader.format.layout import TILED_ABOVE_NBYTES, Field, bits_of
from lmdbloader.images.decode import DecodePolicy, decode_image, inspect_image, is_jpeg
from lmdbloader.images.downscale import crop_to_multiple, downscale
from lmdbloader.images.header import ImageHeader
from lmdbloader.kernels import entries
from lmdbloader.store import Block, Chunk, encode_blocks

# A part of this size is yielded before the next image is decoded, which bounds memory.
PART_NBYTES = 16 * 2**20
# The most for a label, JSON or text of a sample in a tar.
_MOST_ATTACHED_NBYTES = 64 * 2**20
Pixels = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of a conversion that its samples depend on.

    Attributes:
        fields: The fields of the dataset, with their codecs.
        options: The options, with the scale of given pairs.
        storage: How images are stored; pairs and scaled images are stored as pixels.
    """

    fields: tuple[Field, ...]
    options: ConvertOptions = field(default_factory=ConvertOptions)
    storage: Storage = field(default_factory=Storage)

    @property
    def policy(self) -> DecodePolicy:
        """The policy for files that are not plain gray or RGB."""
        return DecodePolicy(self.options.alpha, self.options.max_pixels)

    @property
    def stride(self) -> int:
        """The distance between patches in pixels; 1 for whole images."""
        return self.options.stride or self.options.patch_size or 1

    def changed(self, **options: Any) -> Recipe:
        """Return the recipe with other values of some options."""
        return replace(self, options=replace(self.options, **options))


@dataclass(frozen=True, slots=True)
class Part:
    """Some sources, encoded.

    Attributes:
        chunk: Their samples; None if no source could be used.
        blocks: The samples packed into LMDB values.
        notes: On the sources.
        nbytes: Total size of their files.
        seconds: Time of the work in its process.
    """

    chunk: Chunk | None
    blocks: tuple[Block, ...]
    notes: Notes
    nbytes: int
    seconds: float = 0.0

    @property
    def num_sources(self) -> int:
        """Sources that are done, including skipped ones."""
        return self.notes.num_sources


def convert_sources(
    recipe: Recipe, sources: Sequence[Source], *, at: Callable[[int], None] = lambda number: None
) -> Iterator[Part]:
    """Encode sources in order, in parts of about 16 MiB; `at` is called with the index of each before it is read.

    A source whose patches need several parts starts a new part, so every part that counts sources ends with a source.

    Raises:
        ImageError: A source cannot be used, with on_error="stop".
        SourceError: The palettes of two masks differ.
    """
    gathered: list[_Encoded] = []
    notes, nbytes, room, began = Notes(), 0, 0, time.perf_counter()
    fetched = fetch(sources)
    for number, source in enumerate(sources):
        at(number)
        notes.times.extend(times_of(source))
        doubts: list[str] = []
        try:
            with for_file(recipe.options.on_error == "skip"):
                files = read_files(source, notes.hashes, fetched)
                values = parse_attached(source, files[source.num_images :])
                if recipe.options.layout == "clips":
                    values |= place_in_clip(source.name)
                kept = (
                    None if source.num_images > 1 else keep_file(recipe.storage, files[0], recipe.policy, source.name)
                )
                images, places = dict[str, Pixels](), [patch_positions(0, 0, None, 1)]
                if kept is None:
                    images = _decode(recipe, source, *files[: source.num_images])
                    places = _places(recipe, source, images)
                image = next(iter(images.values()), np.empty(0))
                stored = (*image.shape, bits_of(image.dtype)) if kept is None else kept[1]
                refuse_floats(recipe.options.codec, stored[3], source.name)
                notes.add_look("image", stored[3], stored[2], source.name)
                doubts = _fit_values(recipe, source, files, values, stored, notes)
        except ImageError as error:
            if recipe.options.on_error == "stop":
                raise
            notes.skipped.append((error.name, error.reason))
            places = []
        for tops, lefts in places:
            if room >= PART_NBYTES or (notes.num_sources and len(places) > 1):
                yield _pack(recipe, gathered, notes, nbytes, began)
                gathered, notes, nbytes, room, began = [], Notes(), 0, 0, time.perf_counter()
            was_jpeg = is_jpeg(files[0])
            gathered.append(_encode(recipe, source, images, values, kept, tops, lefts, was_jpeg=was_jpeg))
            room += sum(int(p.stored_nbytes.sum()) for p in gathered[-1].payloads.values())
        notes.num_sources, nbytes = notes.num_sources + 1, nbytes + source.nbytes
        for kind in doubts:
            notes.doubt(kind, source.name)
    if notes.num_sources:
        yield _pack(recipe, gathered, notes, nbytes, began)


def _fit_values(
    recipe: Recipe,
    source: Source,
    files: Sequence[bytes],
    values: dict[str, Any],
    stored: tuple[int, ...],
    notes: Notes,
) -> list[str]:
    """Fit the boxes and the mask of an image of shape `stored` to it, and return its kinds of `Notes.doubts`.

    Raises:
        ImageError: They are not for such an image, or the mask has no labels.
        SourceError: The palette or the bits of the mask are others than in `notes`, to which they are added.
    """
    if source.annotation is None and "mask" not in values and not is_jpeg(files[0]):
        return []
    header = inspect_image(files[0], recipe.policy, name=source.name)
    doubts = [FURTHER_IMAGES] if header.num_others else []
    if source.annotation is not None:
        values |= _place_boxes(source, source.annotation, header, stored)
        if header.orientation != 1 and source.annotation.size in (None, (header.height, header.width)):
            doubts.append(TURNED_BOXES)  # they fit before and after the turn
    if "mask" in values:
        mask = values["mask"]
        add_colors(notes.colors, colors_of(source, files[-1], mask))
        if recipe.options.binary_masks:
            mask = to_binary(source, mask)
        else:
            refuse_soft(source, mask)
        values["mask"] = _fit_mask(source, header, mask, stored)
        notes.add_look("mask", bits_of(mask.dtype), 1, source.name)
        if _may_be_unturned(header, mask, files[-1], recipe.options.max_pixels):
            doubts.append(TURNED_MASK)
    return doubts


def hash_files(sources: Sequence[Source]) -> array[int]:
    """Return `Notes.hashes` of sources; 0 for a source that cannot be read."""
    hashes = array("Q")
    fetched = fetch(sources)
    for source in sources:
        with contextlib.suppress(ImageError):
            read_files(source, hashes, fetched)
    return hashes


def content_of(tasks: Iterable[Sequence[Source]]) -> str:
    """Return the digest of the content of the sources of tasks, which are read for it."""
    hashes = array("Q")
    for task in tasks:
        hashes.extend(hash_files(task))
    return content_digest(hashes)


@dataclass(frozen=True, slots=True)
class _Encoded:
    num_samples: int
    payloads: dict[str, Payloads]
    columns: dict[str, Any]


def read_files(source: Source, hashes: array[int] | None = None, fetched: Fetched | None = None) -> list[bytes]:
    """Return the content of a source's files, in the order of `Source.files`, and append their hash to `hashes`.

    Raises:
        ImageError: A file cannot be read.
    """
    files, digest = [], 0
    fetched = fetch([source]) if fetched is None else fetched
    try:
        for number, file in enumerate(source.files):
            try:
                if number >= source.num_images and isinstance(file, Span) and file.nbytes > _MOST_ATTACHED_NBYTES:
                    raise OSError(f"{file.nbytes} bytes; expected at most {_MOST_ATTACHED_NBYTES}")
                files.append(read(file, fetched))
            except (OSError, MemoryError) as error:
                why = "not enough memory" if isinstance(error, MemoryError) else error.strerror or error
                reason = f"{_which(source, file)}cannot be read ({why})"
                if getattr(error, "errno", None) in DISK_FAILED:
                    skip = option("on_error", "skip")
                    reason += f": the disk failed. Put a copy in its place, or leave it out ({skip})"
                raise ImageError(source.name, reason) from error
            digest = checksum(digest.to_bytes(8, "little") + checksum(files[-1]).to_bytes(8, "little"))
        if source.annotation is not None:
            digest = checksum(digest.to_bytes(8, "little") + source.annotation.digest().to_bytes(8, "little"))
    finally:
        if hashes is not None:
            hashes.append(digest)
    return files


def _which(source: Source, file: File | None) -> str:
    """Return the prefix of a message about a file of a source, unless it is the main image."""
    if file in source.lr_files:
        return f"its LR image {as_text(name_of(file))}".rstrip() + ": "
    return next((f"its {name}: " for name, attached in source.attached if attached == file), "")


def decode_pairs(recipe: Recipe, source: Source, hr_data: bytes, *low_data: bytes) -> tuple[Pixels, list[Pixels]]:
    """Return the HR image and the LR images of a pair.

    Raises:
        ImageError: One of them cannot be used; the message names the HR image.
    """
    hr, lows = decode_image(hr_data, recipe.policy, name=source.name), []
    for file, data in zip(source.lr_files, low_data, strict=True):
        try:
            lows.append(decode_image(data, recipe.policy, name=source.name))
        except ImageError as error:
            raise ImageError(source.name, _which(source, file) + error.reason) from error
    return hr, lows


def _decode(recipe: Recipe, source: Source, data: bytes, *low_data: bytes) -> dict[str, Pixels]:
    """Return whole images by field."""
    if low_data:
        return _decode_checked_pairs(recipe, source, data, *low_data)
    scales, bicubic = recipe.options.low_scales, recipe.options.bicubic
    if not scales:
        return {"image": decode_to_size(recipe.storage, data, recipe.policy, source.name)}
    image = decode_image(data, recipe.policy, name=source.name)
    if bicubic == "pillow" and (image.dtype != np.uint8 or image.shape[2] not in (1, 3)):
        found, matlab = f"{image.shape[2]} channels of {image.dtype}", option("bicubic", "matlab")
        raise ImageError(source.name, f"{found} cannot be scaled by Pillow's bicubic; use {matlab}")
    hr = _cropped(image, scales, source.name)
    if recipe.options.degradation is not None:
        return degrade(str(recipe.options.degradation), scales["lr"], hr, source.name, recipe.options.seed or 0)
    return {**{name: downscale(hr, scale, method=bicubic) for name, scale in scales.items()}, "hr": hr}


def _cropped(hr: Pixels, scales: Mapping[str, int], name: str) -> Pixels:
    """Return an HR image cropped to a multiple of all scales."""
    common, size = math.lcm(*scales.values()), f"{hr.shape[1]}x{hr.shape[0]} pixels"
    if min(hr.shape[:2]) < common:
        if len(scales) > 1:
            raise ImageError(name, f"{size}: expected at least {common_text(scales.values())}, both ways")
        raise ImageError(name, f"{size} are less than one pixel at scale {common}")
    return crop_to_multiple(hr, common)


def _decode_checked_pairs(recipe: Recipe, source: Source, hr_data: bytes, *low_data: bytes) -> dict[str, Pixels]:
    hr, lows = decode_pairs(recipe, source, hr_data, *low_data)
    options, scales = recipe.options, recipe.options.low_scales
    for scale, low in zip(scales.values(), lows, strict=True):
        fitting, _ = fit_pair(hr, low, replace(options, scale=scale), source.name)
        check_alignment(fitting, low, scale, options.min_pair_psnr, source.name)
    hr = _cropped(hr, scales, source.name)  # only with crop_to_scale does this change anything
    height, width = hr.shape[:2]
    fitted = ((n, low[: height // s, : width // s]) for (n, s), low in zip(scales.items(), lows, strict=True))
    return {**dict(fitted), "hr": hr}


def _fit_mask(source: Source, header: ImageHeader, mask: Pixels, stored: tuple[int, ...]) -> Pixels:
    """Return a mask (H, W, 1) in the size in which its image is stored.

    Raises:
        ImageError: It has another size than the image in the file, once that is upright.
    """
    upright = header.upright
    height, width = mask.shape[:2]
    if (height, width) != upright:
        why = " Height and width are swapped: turn or transpose the mask, as its image is."
        if header.orientation >= 5:
            why = " The image is turned by its EXIF or XMP data, and the mask is not."
        if (width, height) != upright:
            why = ""
        raise ImageError(
            source.name,
            f"its mask has {width}x{height} pixels, the image {upright[1]}x{upright[0]}; expected the same.{why}",
        )
    return nearest(mask, stored[0], stored[1])


def _may_be_unturned(header: ImageHeader, mask: Pixels, data: bytes, max_pixels: int) -> bool:
    """Return whether a mask fits an image that is turned both before and after: its size does not tell which."""
    if header.orientation == 1 or mask.shape[:2] != (header.height, header.width):
        return False
    return inspect_image(data, DecodePolicy("drop", max_pixels)).orientation == 1


def _place_boxes(
    source: Source, annotation: Annotation, header: ImageHeader, stored: tuple[int, ...]
) -> dict[str, Pixels]:
    """Return the boxes of an image in pixels, and their labels.

    Args:
        source: The image.
        annotation: Its boxes.
        header: Of the image.
        stored: (height, width ...) of the upright image, which is never shrunk.

    Raises:
        ImageError: The image has another size than its annotations say.
    """
    image = stored[:2]
    boxes = np.frombuffer(annotation.boxes, np.float64).reshape(-1, 4)
    if annotation.size is None:
        boxes = boxes * np.array([*image[::-1]] * 2, np.float64)
    elif annotation.size != image:
        height, width = annotation.size
        why = ""
        if (width, height) == image:
            why = " It is turned by its EXIF or XMP data, and the boxes are not."
            if header.orientation < 5:
                why = " Width and height are swapped in the annotations."
        raise ImageError(
            source.name,
            f"its annotations are for {width}x{height} pixels, and it has {image[1]}x{image[0]}.{why} Boxes of "
            "another size would be in the wrong place.",
        )
    return {"boxes": boxes, "labels": np.frombuffer(annotation.labels, np.int64)}


def _places(recipe: Recipe, source: Source, images: dict[str, Pixels]) -> list[tuple[Any, Any]]:
    """Return the rows and columns of a source's patches, in groups of at most about 16 MiB of pixels."""
    full = images["hr" if "hr" in images else "image"]
    side = recipe.options.patch_size or 0
    tops, lefts = patch_positions(full.shape[0], full.shape[1], recipe.options.patch_size, recipe.stride)
    if not len(tops):
        size = f"{full.shape[1]}x{full.shape[0]}"
        raise ImageError(source.name, f"{size} pixels are smaller than a patch of {side}")
    cuts = range(0, len(tops), max(1, PART_NBYTES // max(1, side * side * full.shape[2] * full.itemsize)))
    return [(tops[c : c + cuts.step], lefts[c : c + cuts.step]) for c in cuts]


def _encode(
    recipe: Recipe,
    source: Source,
    images: dict[str, Pixels],
    values: dict[str, Any],
    kept: tuple[Payloads, tuple[int, ...]] | None,
    tops: Any,
    lefts: Any,
    *,
    was_jpeg: bool,
) -> _Encoded:
    """Return the samples of a source: patches at some places, the whole image, or its file, if that is kept."""
    side = recipe.options.patch_size
    payloads: dict[str, Payloads] = {}
    columns: dict[str, Any] = {"source": [source.name] * len(tops), "top": tops, "left": lefts}
    for f in recipe.fields:
        if f.kind != "image" and (f.kind != "mask" or side is None):
            add_values(f, values[f.name], len(tops), payloads, columns)
            continue
        if kept is not None:
            payloads[f.name], shape = kept
        else:
            image: Pixels = images[f.name] if f.kind == "image" else values[f.name]
            height, width, channels = image.shape
            if side is None:
                payloads[f.name] = encode_one(recipe.storage, f, image, source.name, was_jpeg=was_jpeg)
            else:
                part = recipe.options.low_scales.get(f.name, 1)
                height = width = side // part
                storage = recipe.storage if f.kind == "image" else PIXELS
                payloads[f.name] = _encode_patches(storage, f, image, tops // part, lefts // part, height, source.name)
            shape = (height, width, channels, bits_of(image.dtype))
        geometry = image_geometry(f.name, [shape])
        columns.update({name: np.repeat(column, len(tops)) for name, column in geometry.items()})
    return _Encoded(len(tops), payloads, columns)


def _encode_patches(storage: Storage, f: Field, image: Pixels, tops: Any, lefts: Any, side: int, name: str) -> Payloads:
    nbytes = side * side * image.shape[2] * image.itemsize
    if nbytes > TILED_ABOVE_NBYTES or storage.mode not in (None, "raw") or image.itemsize > 2:
        return join([
            encode_one(storage, f, np.ascontiguousarray(image[t : t + side, x : x + side]), f"{name}\0{t}\0{x}")
            for t, x in zip(tops.tolist(), lefts.tolist(), strict=True)
        ])  # fmt: skip
    words = np.ascontiguousarray(image).view(f"u{image.itemsize}")
    cut = np.empty((len(tops), side * side * image.shape[2]), words.dtype)
    corners = (np.ascontiguousarray(numbers, np.int64) for numbers in (tops, lefts))
    entries.cut_many(words, *corners, side, side, cut)
    shapes = np.tile((side, side, image.shape[2], bits_of(image.dtype)), (len(tops), 1))
    return encode_many(cut.reshape(-1).view(np.uint8), np.full(len(tops), nbytes, np.int64), f.codec or "raw", shapes)


def patch_positions(height: int, width: int, size: int | None, stride: int) -> tuple[Any, Any]:
    """Return rows and columns (n,) of the patches that fit into an image, from the top left, row by row.

    >>> [p.tolist() for p in patch_positions(5, 7, 4, 3)]
    [[0, 0], [0, 3]]
    """
    if size is None:
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    tops, lefts = np.arange(0, height - size + 1, stride), np.arange(0, width - size + 1, stride)
    return np.repeat(tops, len(lefts)), np.tile(lefts, len(tops))


def _pack(recipe: Recipe, gathered: Sequence[_Encoded], notes: Notes, nbytes: int, began: float) -> Part:
    chunk: Chunk | None = None
    blocks: list[Block] = []
    if gathered:
        payloads = {name: join([e.payloads[name] for e in gathered]) for name in gathered[0].payloads}
        columns = {name: _concatenate([e.columns[name] for e in gathered]) for name in gathered[0].columns}
        chunk = Chunk(sum(e.num_samples for e in gathered), payloads, columns)
        blocks = encode_blocks(chunk, recipe.fields, with_source=True)
    return Part(chunk, tuple(blocks), notes, nbytes, time.perf_counter() - began)


def _concatenate(values: Sequence[Any]) -> Any:
    if isinstance(values[0], list):
        return [item for value in values for item in value]
    return np.concatenate(values)
