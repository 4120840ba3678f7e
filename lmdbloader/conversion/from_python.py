"""Samples made in Python: what their fields hold, how they are encoded, and `lmdbloader.write`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any, Protocol

import numpy as np

from lmdbloader import __version__
from lmdbloader.base.arguments import flag, function, ordered_texts, shown
from lmdbloader.conversion.destination import new_folder
from lmdbloader.conversion.provenance import digest_option
from lmdbloader.conversion.storage import PIXELS, PixelMode, Storage, choose_storages
from lmdbloader.conversion.values import PayloadColumn, scalar
from lmdbloader.errors import OptionError
from lmdbloader.fields import FieldType, kind_named, kind_of
from lmdbloader.format.codecs import Payloads, check_codec
from lmdbloader.format.digests import DEFAULT_DIGEST, DigestName, check_digest
from lmdbloader.format.layout import Field, make_field
from lmdbloader.store import Chunk, Written, check_destination, encode_blocks, estimate_map_nbytes, open_writer

_CHUNK_NBYTES = 8 * 2**20
_CHUNK_SAMPLES = 4096
# What a number counts for, beside the payloads of its sample.
_SCALAR_NBYTES = 16
# The map grows where it is too small. A length may be any number, and a process has 128 TiB for all of its maps.
_MOST_MAP_NBYTES = 2**40
_NOTHING = object()


class Indexable(Protocol):
    """What has a length and takes numbers as indices, as a torch Dataset does."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def write(
    samples: Iterable[Any] | Indexable,
    path: str | os.PathLike[str],
    *,
    codec: str | Mapping[str, str] | None = None,
    fields: Mapping[str, FieldType | None] | Sequence[str] | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    write_mode: PixelMode | Mapping[str, PixelMode] | None = None,
    max_resolution: int | None = None,
    jpeg_quality: int | None = None,
    compress_probability: float | None = None,
    smart_threshold: int | None = None,
    digest: DigestName = DEFAULT_DIGEST,
    seed: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Written:
    """Write samples made in Python into a dataset, in the order given.

    Args:
        samples: Any iterable, or anything with `len` and numbers as indices (a torch Dataset), of dicts, named tuples
            or tuples of NumPy arrays, torch tensors, PIL images, ints, floats, str, bytes or what JSON can hold.
            PIL images and uint8 or uint16 arrays (H, W), (H, W, 1) or (H, W, 3) are images, as are uint8 or uint16
            tensors (1, H, W) or (3, H, W); other arrays and tensors keep their shape. Each sample is copied or encoded
            before the next one is asked for, so that the same array, buffer or dict may be filled again and again.
        path: Of the new dataset.
        codec: "raw", "lz4" or "auto" (lz4 where it saves 10 % of the first samples), for all fields or field by field;
            of images it is that of their pixels. By default "auto", "raw" for images with a write mode that says so.
        fields: Names for tuples, in order; or a mapping from names to what they hold (`Image()`, `Array()` ...) where
            that should not be guessed.
        classes: By int field, the names of its values from 0 on, in a list or tuple: {"label": folder.classes} of an
            ImageFolder.
        write_mode: How images are stored, those of all fields or field by field: "raw", "jpg", "proportion" or "smart"
            as `convert` has them. By default, and for fields that are not named, pixels. A mask is an image too: name
            the fields where some must not lose anything.
        max_resolution: Shrink images whose longer side has more pixels than this, of the fields that `write_mode` names
            or else of all.
        jpeg_quality: Of JPEGs, 1 to 100; 90 by default.
        compress_probability: The share of images that "proportion" makes JPEGs, 0.5 by default.
        smart_threshold: Bytes of pixels above which "smart" makes a JPEG.
        digest: The algorithm of the dataset's digests, "xxh64", "sha256" or "blake3", as in `convert`.
        seed: Of "proportion", 0 by default; what is drawn depends on it and the number of the sample.
        overwrite: Whether to replace a dataset that is there already, once the new one is complete.
        progress: Called with the number of samples written since the last call.

    Returns:
        What was written.

    Raises:
        OptionError: A sample does not fit; the message names its number and field. Nothing is left behind. Or an option
            makes no sense, as names for a field that does not hold ints.
        DestinationError: `path` is taken, locked, has no parent folder, or a name of an unfinished conversion.
        DiskFullError: No room left.

    >>> import tempfile, numpy, lmdbloader
    >>> path = tempfile.mkdtemp() + "/numbers"
    >>> written = lmdbloader.write(({"image": numpy.full((8, 8), i, "uint8"), "label": i} for i in range(10)), path)
    >>> lmdbloader.LMDBDataset(path)[3].label
    3
    """
    out, name = new_folder(path), check_digest(digest)
    overwrite, progress = flag("overwrite", overwrite), function("progress", progress)
    check_destination(out, overwrite=overwrite)
    iterator = _iterate(samples)
    first = next(iterator, _NOTHING)
    if first is _NOTHING:
        raise OptionError(f"{out}: there is nothing to write: `samples` is empty")
    schema = _infer_fields(first, fields)
    names = _check_classes(schema, {} if classes is None else classes)
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
    rest = chain([first], iterator)
    del first
    chunk, schema = _take(rest, schema, _codecs_by_field(schema, codecs), storages, 0)
    nbytes = sum(int(p.stored_nbytes.sum()) for p in chunk.payloads.values())
    total = max(_length(samples) or 4 * chunk.num_samples, chunk.num_samples)
    options: dict[str, Any] = {"codec": codecs if isinstance(codecs, str) else dict(codecs)}
    if kept := {name: asdict(storage) for name, storage in storages.items() if storage != PIXELS}:
        options["storage"] = kept
    options |= digest_option(name)
    made_by = {"lmdbloader": __version__, "layout": "python", "options": options}
    map_nbytes = min(estimate_map_nbytes(nbytes / chunk.num_samples * total, total), _MOST_MAP_NBYTES)
    chosen = {f.name: f.codec for f in schema}
    with open_writer(out, schema, with_source=False, map_nbytes=map_nbytes) as writer:
        while chunk.num_samples:
            writer.add(chunk, encode_blocks(chunk, schema, with_source=False))
            progress(chunk.num_samples)
            chunk, _ = _take(rest, schema, chosen, storages, writer.num_samples)
        # Somebody else may have made it meanwhile.
        check_destination(out, overwrite=overwrite)
        return writer.finish(classes=names, made_by=made_by, digest=name)


def _iterate(samples: Iterable[Any] | Indexable) -> Iterator[Any]:
    # A torch Dataset has no __iter__; an IterableDataset has all three methods, but only __iter__ works.
    if isinstance(samples, Iterable):
        return iter(samples)
    if not (hasattr(samples, "__getitem__") and hasattr(samples, "__len__")):
        raise OptionError(
            f"samples of type {type(samples).__name__}: expected an iterable, or something with a length and numbers "
            "as indices, of dicts or tuples"
        )
    return (samples[i] for i in range(len(samples)))


def _length(samples: Any) -> int:
    """Return how many samples there seem to be, 0 where that is not known. It is a hint: the map grows where needed."""
    try:
        return len(samples)
    except Exception:  # a DataLoader over what has no length has a __len__, and whatever is in it may fail
        return 0


def _infer_fields(sample: Any, fields: Mapping[str, FieldType | None] | Sequence[str] | None) -> list[Field]:
    given: dict[str, FieldType | None] = {}
    if isinstance(fields, Mapping):
        given = dict(fields)
    elif fields is not None:
        given = dict.fromkeys(fields)
    for name, kind in given.items():
        if kind is not None and not isinstance(kind, FieldType):
            raise OptionError(
                f"fields[{name!r}] is {kind!r}: expected Image(), Array(), Int(), Float(), Text(), Bytes(), Json() "
                "or None"
            )
    values = _values(sample, None if fields is None else tuple(given), 0)
    if not values:
        raise OptionError("sample 0 has no fields: there is nothing to write")
    unknown = set(given) - set(values)
    if unknown:
        raise OptionError(f"fields names {', '.join(sorted(unknown))}, but the first sample has {', '.join(values)}")
    return [
        make_field(name, kind.kind if (kind := given.get(name)) else kind_of(value)) for name, value in values.items()
    ]


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
        raise OptionError(
            f"sample {number} is a plain tuple of {len(sample)} values: name them, "
            "for example fields=('image', 'label')"
        )
    if len(names) != len(sample):
        raise OptionError(
            f"sample {number} has {len(sample)} values, but fields names {len(names)}: {', '.join(names)}"
        )
    return dict(zip(names, sample, strict=True))


def _check_classes(fields: Sequence[Field], classes: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    labels = [f.name for f in fields if f.kind == "int"]
    if not isinstance(classes, Mapping):
        raise OptionError(
            f"classes={shown(classes)}: expected the names by int field, as {{{labels[0] if labels else 'label'!r}: "
            "['cat', 'dog']}"
        )
    given: dict[str, tuple[str, ...]] = {}
    for name, names in classes.items():
        if name not in labels:
            raise OptionError(f"classes of {name!r}: expected one of the int fields: {', '.join(labels) or 'none'}")
        given[name] = ordered_texts(f"classes[{name!r}]", names)
        try:
            "".join(given[name]).encode()
        except UnicodeEncodeError as error:
            raise OptionError(f"classes of {name!r}: a name that is not valid Unicode ({error})") from error
    return given


def _codecs_by_field(fields: Sequence[Field], codec: str | Mapping[str, str]) -> dict[str, str]:
    """Return the codec that was asked for of each field that has one, "auto" by default."""
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
) -> tuple[Chunk, list[Field]]:
    """Return the next samples encoded, about 8 MiB of them, and the fields with the codecs that were chosen.

    Args:
        samples: Where they come from.
        fields: Of every sample.
        codecs: By payload field, "raw", "lz4" or "auto".
        storages: By image field, what becomes of its images.
        first: The number of the first sample.

    Raises:
        OptionError: A sample does not fit.
    """
    group = _Group(fields, codecs, storages, first)
    # Each sample is taken over before the next one is asked for, which may come in the same memory.
    for sample in samples:
        group.add(sample)
        if group.is_full:
            break
    return group.encode()


class _Group:
    """Consecutive samples, about 8 MiB of them. Each is taken over when it is added: nothing refers to it any more."""

    def __init__(
        self, fields: Sequence[Field], codecs: Mapping[str, Any], storages: Mapping[str, Storage], first: int
    ) -> None:
        """Begin with no samples; see `_take`."""
        self._fields = tuple(fields)
        self._names = {f.name: None for f in fields}
        self._first = first
        self._num_samples = 0
        self._nbytes = 0
        self._payloads = {
            f.name: PayloadColumn(f, codecs[f.name], storages.get(f.name, PIXELS)) for f in fields if f.is_payload
        }
        self._plain: dict[str, list[Any]] = {f.name: [] for f in fields if not f.is_payload}

    def add(self, sample: Any) -> None:
        """Take a sample.

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
        """Return the samples encoded, and the fields with the codecs that were chosen."""
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
