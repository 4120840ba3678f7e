"""`lmdbloader.write`: samples made in Python to one dataset."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any, Protocol

import numpy as np

from lmdbloader import __version__
from lmdbloader.base.arguments import flag, function, ordered_texts, shown
from lmdbloader.base.foreign_names import WRITE, understands
from lmdbloader.base.option_names import option
from lmdbloader.conversion.destination import new_folder
from lmdbloader.conversion.foreign_datasets import Adapted, adapt, names_of
from lmdbloader.conversion.image_file import opened
from lmdbloader.conversion.options import check_value
from lmdbloader.conversion.provenance import digest_option
from lmdbloader.conversion.storage import PIXELS, Storage, WriteMode, choose_storages
from lmdbloader.conversion.values import PayloadColumn, scalar
from lmdbloader.errors import OptionError
from lmdbloader.fields import (
    IGNORED,
    FieldType,
    Image,
    Mask,
    as_boxes,
    image_size,
    is_plane_of,
    kind_named,
    kind_of,
    likeness,
    likeness_of_places,
)
from lmdbloader.format.codecs import Payloads, check_codec
from lmdbloader.format.digests import DEFAULT_DIGEST, DigestName
from lmdbloader.format.labels import LabelWatch
from lmdbloader.format.layout import Field, make_field
from lmdbloader.images.decode import AlphaPolicy, DecodePolicy
from lmdbloader.store import Chunk, Written, check_destination, encode_blocks, estimate_map_nbytes, open_writer

_CHUNK_NBYTES = 8 * 2**20
_CHUNK_SAMPLES = 4096
# The bytes that a number counts for in a chunk.
_SCALAR_NBYTES = 16
# The map grows if it is too small. A length may be any number, and a process has 128 TiB for all of its maps.
_MOST_MAP_NBYTES = 2**40
_NOTHING = object()


class Indexable(Protocol):
    """A sequence with a length and integer indices, as a torch Dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@understands(WRITE)
def write(
    samples: Iterable[Any] | Indexable,
    path: str | os.PathLike[str],
    *,
    codec: str | Mapping[str, str] | None = None,
    fields: Mapping[str, FieldType | None] | Sequence[str] | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    write_mode: WriteMode | Mapping[str, WriteMode] | None = None,
    max_resolution: int | None = None,
    jpeg_quality: int | None = None,
    compress_probability: float | None = None,
    smart_threshold: int | None = None,
    digest: DigestName = DEFAULT_DIGEST,
    seed: int | None = None,
    alpha: AlphaPolicy = "refuse",
    max_pixels: int = 200_000_000,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Written:
    """Write samples made in Python into a dataset, in the order given.

    Args:
        samples: An iterable, or an object with `len` and integer indices (a torch Dataset), of dicts, named tuples or
            tuples of NumPy arrays, torch tensors, PIL images, ints, floats, str, bytes or JSON values. PIL images and
            uint8 or uint16 arrays (H, W), (H, W, 1) or (H, W, 3) are images, as are uint8 or uint16 tensors (1, H, W)
            or (3, H, W); other arrays and tensors keep their shape, and masks are declared in `fields`. Each sample is
            copied or encoded before the next one is requested, so the same array, buffer or dict may be filled again.
            Encoded images: a dict {"bytes": ..., "path": ...} is an image, and so are bytes or a path in a field that
            `fields` declares as Image(). Datasets of Hugging Face and torchvision bring the names of their classes.
        path: The new dataset.
        codec: "raw", "lz4" or "auto" (lz4 if it saves 10 % on the first samples), for all fields or field by field. For
            images it is the codec of pixels. By default "auto", or "raw" for images with some write modes.
        fields: The names of all values, for tuples in their order; or a mapping from names to types (`Image()`,
            `Array()` ...), to set types that should not be guessed: {"mask": Mask()}. A field that is named like a mask
            (mask, label, seg ...) and has at most 64 values must be declared, as Mask() or Image().
        classes: By field of ints or Labels(), the names of its values from 0 on, in a list or tuple; by default those
            that a dataset of Hugging Face or torchvision has, in `features` or `classes`.
        write_mode: How images are stored, in all or field by field, "raw", "jpg", "proportion", "smart" or "original",
            as in `convert`. The default, also for fields that are not named, is pixels. Masks are always stored without
            loss.
        max_resolution: Shrink images whose longer side has more pixels than this, in the fields that `write_mode` names
            or else in all. Masks are resized too, to their nearest labels.
        jpeg_quality: The quality of JPEGs, 1 to 100; 90 by default.
        compress_probability: The share of images that "proportion" stores as JPEG, 0.5 by default.
        smart_threshold: Bytes of pixels above which "smart" stores a JPEG.
        digest: The algorithm of the dataset's digests, "xxh64", "sha256" or "blake3", as in `convert`.
        seed: The seed of "proportion", 0 by default; the choice depends on it and the number of the sample.
        alpha: How to treat transparent images, encoded or of Pillow: "refuse", "drop" or "white", as in `convert`.
        max_pixels: Encoded images of more pixels are refused.
        overwrite: Replace an existing dataset, once the new one is complete.
        progress: Called with the number of samples written since the last call.

    Returns:
        A summary of the dataset.

    Raises:
        OptionError: A sample does not fit (the message names its number and field), or an option is out of its range
            or contradicts another. Nothing is left behind.
        DestinationError: `path` is taken, locked, has no parent folder, or a name of an unfinished conversion.
        DiskFullError: No room left.

    >>> import tempfile, numpy, lmdbloader
    >>> path = tempfile.mkdtemp() + "/numbers"
    >>> written = lmdbloader.write(({"image": numpy.full((8, 8), i, "uint8"), "label": i} for i in range(10)), path)
    >>> lmdbloader.LMDBDataset(path)[3].label
    3
    """
    out, name = new_folder(path), check_value("digest", digest)
    overwrite, progress = flag("overwrite", overwrite), function("progress", progress)
    check_destination(out, overwrite=overwrite)
    adapted = adapt(samples, fields, classes)
    policy = DecodePolicy(check_value("alpha", alpha), check_value("max_pixels", max_pixels))
    iterator = _dicts(_iterate(adapted.samples), adapted, fields, policy)
    first = next(iterator, _NOTHING)
    if first is _NOTHING:
        raise OptionError(f"{out}: there is nothing to write: `samples` is empty")
    schema, first_values = _infer_fields(first, fields)
    if classes is None:
        have_labels = _fields_of_labels(schema)
        classes = {field: names for field, names in adapted.classes.items() if field in have_labels}
    names = _check_classes(schema, classes)
    storages, codecs = choose_storages(
        [f.name for f in schema if f.kind == "image"],
        write_mode,
        codec,
        {
            "max_resolution": max_resolution,
            "jpeg_quality": jpeg_quality,
            "compress_probability": compress_probability,
            "smart_threshold": smart_threshold,
            "seed": seed,
        },
    )
    rest = _boxes_in_pixels(chain([first], iterator), [f.name for f in schema if f.kind == "boxes"])
    del first
    if max_resolution is not None and not isinstance(write_mode, Mapping):  # masks stay in step with their images
        shrunk = replace(PIXELS, max_resolution=check_value("max_resolution", max_resolution))
        storages |= {f.name: shrunk for f in schema if f.kind == "mask"}
    placed = [f.name for f in schema if f.kind in ("boxes", "points")]
    if max_resolution is not None and placed:
        raise OptionError(
            f"{option('max_resolution', max_resolution)} with {', '.join(placed)}: only the images would shrink. "
            "Resize both before you write them, or when they are loaded."
        )
    _settle_places(schema, first_values, fields)
    watches = _watch(schema, first_values, fields)
    del first_values
    chunk, schema = _take(rest, schema, _codecs_by_field(schema, codecs), storages, 0, watches)
    _settle_masks(watches, schema, fields)
    bits = _mask_bits(chunk, schema, 0, {})
    nbytes = sum(int(p.stored_nbytes.sum()) for p in chunk.payloads.values())
    total = max(_length(samples) or 4 * chunk.num_samples, chunk.num_samples)
    options: dict[str, Any] = {"codec": codecs if isinstance(codecs, str) else dict(codecs)}
    if kept := {name: asdict(storage) for name, storage in storages.items() if storage != PIXELS}:
        options["storage"] = kept
    if declared := _declared_images(fields):
        options["fields"] = declared
    options |= digest_option(name)
    made_by = {"lmdbloader": __version__, "layout": "python", "options": options}
    map_nbytes = min(estimate_map_nbytes(nbytes / chunk.num_samples * total, total), _MOST_MAP_NBYTES)
    chosen = {f.name: f.codec for f in schema}
    with open_writer(out, schema, with_source=False, map_nbytes=map_nbytes) as writer:
        while chunk.num_samples:
            writer.add(chunk, encode_blocks(chunk, schema, with_source=False))
            progress(chunk.num_samples)
            chunk, _ = _take(rest, schema, chosen, storages, writer.num_samples)
            _mask_bits(chunk, schema, writer.num_samples, bits)
        # Another process may have made it meanwhile.
        check_destination(out, overwrite=overwrite)
        return writer.finish(classes=names, made_by=made_by, digest=name)


def _iterate(samples: Iterable[Any] | Indexable) -> Iterator[Any]:
    # A torch Dataset has no __iter__; an IterableDataset has all three methods, but only __iter__ works.
    if isinstance(samples, Iterable):
        return iter(samples)
    if not (hasattr(samples, "__getitem__") and hasattr(samples, "__len__")):
        raise OptionError(
            f"samples of type {type(samples).__name__}: expected an iterable, or an object with a length and integer "
            "indices, of dicts or tuples"
        )
    return (samples[i] for i in range(len(samples)))


def _dicts(
    samples: Iterable[Any],
    adapted: Adapted,
    fields: Mapping[str, FieldType | None] | Sequence[str] | None,
    policy: DecodePolicy,
) -> Iterator[dict[str, Any]]:
    """Yield the values of each sample by name, encoded images as image files."""
    given = fields.items() if isinstance(fields, Mapping) else ()
    declared = {name: kind for name, kind in given if isinstance(kind, FieldType)}
    images = {name: kind for name, kind in declared.items() if kind_named(kind.kind).has_pixels}
    names = adapted.names
    for number, sample in enumerate(samples):
        if names is None and not number:
            names = names_of(sample)
        values = _values(sample, names, number)
        adapted.check_labels(values, number)
        for name, value in values.items():
            if name in images or name not in declared:
                values[name] = opened(value, images.get(name), policy, name, number)
        yield values


def _length(samples: Any) -> int:
    """Return the length of the samples, 0 if it is unknown. It is a hint for the size of the map, which can grow."""
    try:
        return len(samples)
    except Exception:  # a DataLoader has a __len__ that fails for an IterableDataset without one
        return 0


def _infer_fields(
    sample: Any, fields: Mapping[str, FieldType | None] | Sequence[str] | None
) -> tuple[list[Field], dict[str, Any]]:
    """Return the fields of a sample, and its values."""
    given: dict[str, FieldType | None] = {}
    if isinstance(fields, Mapping):
        given = dict(fields)
    elif fields is not None:
        given = dict.fromkeys(fields)
    for name, kind in given.items():
        if kind is not None and not isinstance(kind, FieldType):
            raise OptionError(
                f"fields[{name!r}] is {kind!r}: expected Image(), Mask(), Boxes(), Points(), Labels(), Array(), Int(), "
                "Float(), Text(), Bytes(), Json() or None"
            )
    values = _values(sample, None if fields is None else tuple(given), 0)
    if not values:
        raise OptionError("sample 0 has no fields: there is nothing to write")
    unknown = set(given) - set(values)
    if unknown:
        raise OptionError(f"fields names {', '.join(sorted(unknown))}, but the first sample has {', '.join(values)}")
    if fields is not None and not isinstance(fields, Mapping) and len(given) < len(values):
        raise OptionError(
            f"fields names {', '.join(given)}, but the first sample has {', '.join(values)} too. To leave values out, "
            f"write lmdbloader.write(({{name: sample[name] for name in {tuple(given)!r}}} for sample in samples), out)."
        )
    found = [
        make_field(
            name,
            kind.kind if (kind := given.get(name)) else kind_of(value),
            ignore_index=kind.ignore_index if isinstance(kind, Mask) else None,
        )
        for name, value in values.items()
    ]
    return found, values


def _watch(
    fields: Sequence[Field], values: Mapping[str, Any], given: Mapping[str, FieldType | None] | Sequence[str] | None
) -> dict[str, LabelWatch]:
    """Return a watch for each field of masks, and for each that may hold some: images, and arrays of their size."""
    declared = {name for name, kind in given.items() if kind} if isinstance(given, Mapping) else set()
    sizes = {image_size(values[f.name]) for f in fields if f.kind == "image"}
    return {
        f.name: LabelWatch(f.name)
        for f in fields
        if (f.kind == "mask" and f.ignore_index == IGNORED)
        or (f.name not in declared and f.kind == "image")
        or (f.name not in declared and f.kind == "array" and _is_mask_array(f.name, values[f.name], sizes))
    }


def _is_mask_array(name: str, value: Any, sizes: set[Any]) -> bool:
    return likeness(name) == "mask" and is_plane_of(value, sizes)


def _settle_places(
    schema: Sequence[Field],
    values: Mapping[str, Any],
    given: Mapping[str, FieldType | None] | Sequence[str] | None,
) -> None:
    """Refuse boxes and points next to an image that were not declared, and would stay where they are.

    Raises:
        OptionError: A field of arrays or JSON has the name and the shape of boxes or points.
    """
    kinds = {f.name: f.kind for f in schema}
    known = {name: type(kind).__name__ for name, kind in given.items() if kind} if isinstance(given, Mapping) else {}
    others = {name: kind for name, kind in kinds.items() if name not in known and kind in ("array", "json")}
    found = {name: kind for name in others if (kind := likeness_of_places(name, values[name]))}
    if not found or "image" not in kinds.values():
        return
    name, kind = next(iter(found.items()))
    lengths = {len(values[name]) for name in found}
    labels = {other: "Labels" for other in others if other not in found and _is_labels(values[other], lengths)}
    line = ", ".join(f'"{key}": fields.{value}()' for key, value in {**known, **found, **labels}.items())
    form = ", of (left, top, right, bottom) in pixels, (n, 4)" if kind == "Boxes" else ", (n, 2) in pixels"
    raise OptionError(
        f"field {name!r} looks like {kind.lower()} by its name and shape, and as {kinds[name]} crops and flips would "
        f"not move it. Declare it: write(..., fields={{{line}}}), with `from lmdbloader import fields`{form}; if "
        f"nothing should move it, as fields.{kinds[name].capitalize()}()."
    )


def _is_labels(value: Any, lengths: set[int]) -> bool:
    """Return whether a value is a list or array of whole numbers, one for each box of a sample."""
    if not (isinstance(value, list) or hasattr(value, "ndim")):
        return False
    try:
        numbers = np.asarray(value)
    except ValueError:  # lists of several lengths
        return False
    return numbers.ndim == 1 and len(numbers) in lengths and (numbers.dtype.kind in "iu" or not numbers.size)


def _boxes_in_pixels(samples: Iterator[Any], names: Sequence[str]) -> Iterator[Any]:
    """Yield samples; until a box reaches beyond the first pixels of an image, boxes may be shares of its sides.

    Raises:
        OptionError: The first boxes of a field are fractions from 0 to 1. Later ones may be: objects at a corner that
            are smaller than a pixel.
    """
    unsettled = list(names)
    for number, values in enumerate(samples):
        for name in list(unsettled):
            try:
                boxes = as_boxes(values.get(name))
            except (TypeError, ValueError):  # the sample is refused when it is encoded
                continue
            if boxes.max(initial=0) > 2:
                unsettled.remove(name)
            elif boxes.min(initial=0) >= 0 and boxes.max(initial=0) <= 1 and (boxes % 1).any():
                raise OptionError(
                    f"sample {number}, field {name!r}: the boxes up to here, such as {boxes[0].tolist()}, are within "
                    "one pixel. If they are shares of the image's sides, multiply them by (width, height, width, "
                    "height), and give left, top, right and bottom. If they are pixels, leave such small boxes out."
                )
        yield values
        if not unsettled:
            break
    yield from samples


def _settle_masks(
    watches: Mapping[str, LabelWatch],
    schema: Sequence[Field],
    given: Mapping[str, FieldType | None] | Sequence[str] | None,
) -> None:
    """Refuse undeclared fields that look like masks; warn about those that may be masks.

    Raises:
        OptionError: A field has few values, and the name of a mask.
    """
    others = {} if given is None or isinstance(given, Mapping) else dict.fromkeys(given, "None")
    if isinstance(given, Mapping):
        others = {name: f"fields.{type(kind).__name__}()" if kind else "None" for name, kind in given.items()}
    kinds = {f.name: f.kind for f in schema}
    for name, watch in watches.items():
        if kinds[name] == "mask":
            if watch.values is not None and watch.values.tolist() == [0, IGNORED]:
                warnings.warn(
                    f"field {name!r}: masks of 0 and {IGNORED} only, and {IGNORED} is their ignore_index, the label of "
                    f"pixels that have none, which losses leave out. For labels 0 and 1 write mask > 0.",
                    stacklevel=4,
                )
            continue
        if not (watch.looks_like_labels or watch.may_be_labels):
            continue
        line = ", ".join(f'"{key}": {value}' for key, value in {**others, name: "fields.Mask()"}.items())
        kind, why = "Image", "a resize of images mixes labels"
        if kinds[name] == "array":
            kind, why = "Array", "crops and flips do not move arrays"
        declare = (
            f"Declare it: write(..., fields={{{line}}}), after `from lmdbloader import fields`. If it is not a "
            f"mask, declare it as fields.{kind}()."
        )
        if watch.looks_like_labels:
            raise OptionError(
                f"field {name!r} looks like a mask by its name and values ({watch.describe()}), and {why}. {declare}"
            )
        warnings.warn(
            f"field {name!r} may be a mask ({watch.describe()}), and {why}. {declare}",
            stacklevel=4,
        )


def _declared_images(given: Mapping[str, FieldType | None] | Sequence[str] | None) -> dict[str, str]:
    """Return the fields that are named like masks but declared as images, for the manifest: readers accept them."""
    if not isinstance(given, Mapping):
        return {}
    return {name: "image" for name, kind in given.items() if isinstance(kind, Image) and likeness(name) == "mask"}


def _mask_bits(chunk: Chunk, fields: Sequence[Field], first: int, known: Mapping[str, int]) -> dict[str, int]:
    """Return the bits of the labels of each mask field, which must be those of the first sample.

    Raises:
        OptionError: A sample has labels of another type, which would not fit in one batch.
    """
    found: dict[str, int] = dict(known)
    for f in fields:
        if f.kind != "mask" or not chunk.num_samples:
            continue
        bits = np.asarray(chunk.columns[f"{f.name}.bits"])
        expected = found.setdefault(f.name, int(bits[0]))
        if (differs := bits != expected).any():
            at = int(np.flatnonzero(differs)[0])
            raise OptionError(
                f"sample {first + at}, field {f.name!r}: its labels have {bits[at]} bits, those of the first sample "
                f"{expected}. A batch needs one dtype. Write all masks as mask.astype('uint16')."
            )
    return found


def _values(sample: Any, names: tuple[str, ...] | None, number: int) -> dict[str, Any]:
    """Return a sample's values by field name."""
    if isinstance(sample, Mapping):
        for name in sample:
            if not isinstance(name, str):
                raise OptionError(f"sample {number} has a key {name!r} of type {type(name).__name__}: expected str")
        return dict(sample)
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return dict(zip(sample._fields, sample, strict=True))
    if not isinstance(sample, tuple | list):
        raise OptionError(
            f"sample {number} is of type {type(sample).__name__}: expected a dict, a named tuple or a tuple"
        )
    if names is None:
        raise OptionError(f"sample {number} is a plain tuple of {len(sample)} values: {_line_for_names(sample)}")
    if len(names) != len(sample):
        raise OptionError(
            f"sample {number} has {len(sample)} values, but fields names {len(names)}: {', '.join(names)}"
        )
    return dict(zip(names, sample, strict=True))


def _line_for_names(sample: Sequence[Any]) -> str:
    """Return what to write for a plain tuple, as torchvision's datasets for detection and segmentation have it."""
    if len(sample) == 2 and isinstance(sample[1], Mapping):
        keys = [name for name in sample[1] if likeness_of_places(str(name), sample[1][name])]
        kinds = [f"{name!r}: fields.{likeness_of_places(name, sample[1][name])}()" for name in keys]
        kinds += ["'labels': fields.Labels()"] * ("labels" in sample[1])
        more = f", fields={{{', '.join(kinds)}}}" if kinds else ""
        with_ = ", with `from lmdbloader import fields`" * bool(kinds)
        return (
            "make one dict of the image and its targets. Write lmdbloader.write(({'image': image, **target} for image, "
            f"target in samples), out{more}){with_}."
        )
    if len(sample) == 2 and image_size(sample[0]) is not None and image_size(sample[0]) == image_size(sample[1]):
        return (
            "name them. For an image and its mask write fields={'image': fields.Image(), 'mask': fields.Mask()}, with "
            "`from lmdbloader import fields`; for two images fields=('lr', 'hr')."
        )
    return "name them, for example fields=('image', 'label')"


def _fields_of_labels(fields: Sequence[Field]) -> list[str]:
    """Return the fields whose values can have the names of classes."""
    return [f.name for f in fields if f.kind in ("int", "labels")]


def _check_classes(fields: Sequence[Field], classes: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    labels = _fields_of_labels(fields)
    if not isinstance(classes, Mapping):
        raise OptionError(
            f"classes={shown(classes)}: expected the names by field, as {{{labels[0] if labels else 'label'!r}: "
            "['cat', 'dog']}"
        )
    given: dict[str, tuple[str, ...]] = {}
    for name, names in classes.items():
        if name not in labels:
            raise OptionError(
                f"classes of {name!r}: expected one of the fields of ints or Labels(): {', '.join(labels) or 'none'}"
            )
        given[name] = ordered_texts(f"classes[{name!r}]", names)
        try:
            "".join(given[name]).encode()
        except UnicodeEncodeError as error:
            raise OptionError(f"classes of {name!r}: a name that is not valid Unicode ({error})") from error
    return given


def _codecs_by_field(fields: Sequence[Field], codec: str | Mapping[str, str]) -> dict[str, str]:
    """Return the requested codec of each field that has one, "auto" by default."""
    names = [f.name for f in fields if f.is_payload]
    if isinstance(codec, str):
        check_codec(codec)
    asked = dict.fromkeys(names, codec) if isinstance(codec, str) else dict.fromkeys(names, "auto") | dict(codec)
    for name, value in asked.items():
        if name not in names:
            raise OptionError(f"codec for {name!r}: expected one of the fields with a codec: {', '.join(names)}")
        check_codec(value)
    return asked


def _take(
    samples: Iterator[Any],
    fields: Sequence[Field],
    codecs: Mapping[str, Any],
    storages: Mapping[str, Storage],
    first: int,
    watches: Mapping[str, LabelWatch] | None = None,
) -> tuple[Chunk, list[Field]]:
    """Return the next samples, about 8 MiB, encoded, and the fields with their codecs; see `_Group`."""
    group = _Group(fields, codecs, storages, first, watches or {})
    # Each sample is taken over before the next one is asked for, which may come in the same memory.
    for sample in samples:
        group.add(sample)
        if group.is_full:
            break
    return group.encode()


class _Group:
    """Consecutive samples, about 8 MiB. Each is copied or encoded when it is added."""

    def __init__(
        self,
        fields: Sequence[Field],
        codecs: Mapping[str, Any],
        storages: Mapping[str, Storage],
        first: int,
        watches: Mapping[str, LabelWatch],
    ) -> None:
        """Start without samples; see `_take`."""
        self._fields = tuple(fields)
        self._names = {f.name: None for f in fields}
        self._first = first
        self._num_samples = 0
        self._nbytes = 0
        self._payloads = {
            f.name: PayloadColumn(f, codecs[f.name], storages.get(f.name, PIXELS), watches.get(f.name))
            for f in fields
            if f.is_payload
        }
        self._plain: dict[str, list[Any]] = {f.name: [] for f in fields if not f.is_payload}

    def add(self, sample: Any) -> None:
        """Add a sample.

        Raises:
            OptionError: It does not fit.
        """
        number = self._first + self._num_samples
        values = _values(sample, tuple(self._names), number)
        if values.keys() != self._names.keys():
            raise OptionError(
                f"sample {number} has the fields {', '.join(values)}; the first one had {', '.join(self._names)}"
            )
        for f in self._fields:
            value = values[f.name]
            if f.is_payload:
                self._nbytes += self._payloads[f.name].add(value, number)
            else:
                self._plain[f.name].append(scalar(f, value, number))
                self._nbytes += len(value) if isinstance(value, str) else _SCALAR_NBYTES
        self._num_samples += 1

    @property
    def is_full(self) -> bool:
        """Whether there are enough samples."""
        return self._nbytes >= _CHUNK_NBYTES or self._num_samples >= _CHUNK_SAMPLES

    def encode(self) -> tuple[Chunk, list[Field]]:
        """Return the encoded samples, and the fields with their codecs."""
        payloads: dict[str, Payloads] = {}
        columns: dict[str, Any] = {}
        chosen = []
        for f in self._fields:
            codec = f.codec
            if not f.is_payload:
                column: Any = self._plain[f.name]
                if (column_type := kind_named(f.kind).column) != "text":
                    column = np.array(column, column_type)
                columns[f.name] = column
            elif self._num_samples:
                payloads[f.name], more, codec = self._payloads[f.name].encode()
                columns.update(more)
            chosen.append(replace(f, codec=codec))
        return Chunk(self._num_samples, payloads, columns), chosen
