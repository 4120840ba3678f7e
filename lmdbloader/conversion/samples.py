"""The samples of `write` on their way into records: checked, copied, and encoded in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from lmdbloader.conversion.foreign_datasets import Adapted
from lmdbloader.conversion.image_file import opened
from lmdbloader.conversion.notes import Notes
from lmdbloader.conversion.storage import PIXELS, Storage
from lmdbloader.conversion.tasks import Part
from lmdbloader.conversion.values import PayloadColumn, scalar, source_name
from lmdbloader.errors import LmdbloaderError, OptionError
from lmdbloader.fields import FieldType, as_boxes, image_size, is_whole_number, kind_named, why_shares
from lmdbloader.format.codecs import Payloads
from lmdbloader.format.labels import LabelWatch
from lmdbloader.format.layout import SOURCE, SOURCE_COLUMNS, Field, look_text, looks_of
from lmdbloader.images.decode import DecodePolicy
from lmdbloader.store import Chunk, encode_blocks

_LABEL = "label"
# Fields of these names, which detectors need, have a label for each box.
_BOXES, _LABELS = "boxes", "labels"
# A group ends with the sample that fills it, by the bytes of its values or their number.
GROUP_NBYTES = 8 * 2**20
GROUP_SAMPLES = 1024
_FEW_SAMPLES = 64
# The bytes that a number counts for in a group.
_SCALAR_NBYTES = 16
# Types that are neither image files nor Pillow's images, for undeclared fields; and for declared ones.
_PLAIN = frozenset({np.ndarray, int, float, str, bytes, bool, type(None)})
_PLAIN_DECLARED = frozenset({np.ndarray})


@dataclass(frozen=True, slots=True)
class SampleRecipe:
    """The settings that the records of samples depend on.

    Attributes:
        adapted: What is known about the dataset: the names of the values of tuples, and of classes. Its samples are not
            used.
        declared: The fields whose types were given.
        policy: How to treat transparent and very large images.
        prepare: Returns the sample to store for each sample; None stores them unchanged.
        fields: The fields of the dataset, with their codecs; empty until they are settled.
        storages: How the images of each field are stored, if not as pixels.
        with_source: Whether samples have the name of what they were made from, as `source`.
        num_classes: By field of labels, how many classes have a name.
    """

    adapted: Adapted
    declared: Mapping[str, FieldType]
    policy: DecodePolicy
    prepare: Callable[[Any], Any] | None = None
    fields: tuple[Field, ...] = ()
    storages: Mapping[str, Storage] = field(default_factory=dict)
    with_source: bool = False
    num_classes: Mapping[str, int] = field(default_factory=dict)

    @property
    def codecs(self) -> dict[str, str | None]:
        """The codec of each field."""
        return {f.name: f.codec for f in self.fields}

    def prepared(self, sample: Any, number: int) -> Any:
        """Return a sample as `prepare` makes it.

        Raises:
            OptionError: It returns None, or another label than the dataset, whose names of classes are stored.
        """
        if self.prepare is None:
            return sample
        if (made := self.prepare(sample)) is None:
            raise OptionError(
                f"sample {number}: prepare returned None: expected the sample to store, a dict, a named tuple or a "
                "tuple. Is a `return` missing?"
            )
        for name in self.adapted.classes:
            before, after = (_number_of(each, name, self.adapted.names) for each in (sample, made))
            if None not in (before, after) and before != after:
                raise OptionError(
                    f"sample {number}: prepare changed its {name} from {before} to {after}, but the names of classes "
                    f"are those of the dataset. Give the names of the new labels, as classes={{{name!r}: [...]}}, or "
                    "none: classes={}."
                )
        return made

    def named(self, prepared: Any, number: int) -> dict[str, Any]:
        """Return the values of a prepared sample by name, encoded images as image files.

        Raises:
            OptionError: It is not a sample, or an encoded image cannot be used.
        """
        values = named_values(prepared, self.adapted.names, number)
        if type(prepared) in (tuple, list) and _LABEL not in self.declared and is_whole_number(values.get(_LABEL)):
            values[_LABEL] = int(values[_LABEL])  # many datasets return a tensor
        for name, value in values.items():
            kind = self.declared.get(name)
            if type(value) in (_PLAIN if kind is None else _PLAIN_DECLARED) or name == SOURCE:
                continue
            if kind is None:
                values[name] = opened(value, None, self.policy, name, number)
            elif kind_named(kind.kind).has_pixels:
                values[name] = opened(value, kind, self.policy, name, number)
        return values

    def values(self, samples: Iterable[Any], first: int) -> Iterator[dict[str, Any]]:
        """Yield the values of consecutive samples by name; an exception of the dataset or `prepare` gets their number.

        Raises:
            OptionError: A sample does not fit.
        """
        number = first
        try:
            for sample in samples:
                yield self.named(sample if self.prepare is None else self.prepared(sample, number), number)
                number += 1
        except Exception as error:
            if not isinstance(error, LmdbloaderError):
                add_note(error, f"lmdbloader.write was at sample {number}.")
            raise

    def group(self, first: int) -> Group:
        """Return a group without samples, the first of which will have the number `first`."""
        return Group(
            self.fields, self.codecs, self.storages, first, num_classes=self.num_classes, with_source=self.with_source
        )

    def encode(self, samples: Iterable[Any], first: int) -> Iterator[Part]:
        """Yield consecutive samples, the first of which has the number `first`, as encoded parts.

        Each sample is copied or encoded before the next one is requested, which may be in the same memory.

        Raises:
            OptionError: A sample does not fit.
        """
        group = self.group(first)
        for values in self.values(samples, first):
            group.add(values)
            if group.is_full:
                yield make_part(group.encode()[0], self.fields)
                group = self.group(group.end)
        if group.end > group.first:
            yield make_part(group.encode()[0], self.fields)


def add_note(error: BaseException, note: str) -> None:
    """Add a line to what Python prints of an error, from Python 3.11 on."""
    if hasattr(error, "add_note"):
        error.add_note(note)


def make_part(chunk: Chunk, fields: Sequence[Field]) -> Part:
    """Return encoded samples packed into LMDB values."""
    nbytes = sum(int(p.stored_nbytes.sum()) for p in chunk.payloads.values())
    blocks = encode_blocks(chunk, fields, with_source=SOURCE in chunk.columns)
    return Part(chunk.without_bytes(), tuple(blocks), Notes(chunk.num_samples), nbytes)


class Group:
    """Consecutive samples, about 8 MiB. Each is copied or encoded when it is added.

    Attributes:
        first: The number of the first sample.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        codecs: Mapping[str, Any],
        storages: Mapping[str, Storage],
        first: int,
        watches: Mapping[str, LabelWatch] | None = None,
        *,
        num_classes: Mapping[str, int],
        with_source: bool = False,
        is_small: bool = False,
    ) -> None:
        """Start without samples.

        Args:
            fields: Of every sample.
            codecs: By payload field, a codec, "auto" or SMALLEST.
            storages: How the images of each field are stored, if not as pixels.
            first: The number of the first sample.
            watches: By field, the watch that looks at each of its images.
            num_classes: By field of labels, how many classes have a name.
            with_source: Whether samples have a `source`.
            is_small: Whether it is full after fewer samples.
        """
        self._fields = tuple(fields)
        self._most = _FEW_SAMPLES if is_small else GROUP_SAMPLES
        self.first = first
        self._num_samples = 0
        self._nbytes = 0
        self._payloads = {
            f.name: PayloadColumn(
                f, codecs[f.name], storages.get(f.name, PIXELS), (watches or {}).get(f.name), GROUP_NBYTES
            )
            for f in fields
            if f.is_payload
        }
        self._names = {f.name: self._payloads.get(f.name) for f in fields} | ({SOURCE: None} if with_source else {})
        self._sources: list[str] = []
        self._plain: dict[str, list[Any]] = {f.name: [] for f in fields if not f.is_payload}
        self._boxes = [f.name for f in fields if f.kind == "boxes"]
        self._has_detections = {(_BOXES, "boxes"), (_LABELS, "labels")} <= {(f.name, f.kind) for f in fields}
        images = [f.name for f in fields if f.kind == "image"]
        self._masks = [(f.name, *images) for f in fields if f.kind == "mask" and len(images) == 1]
        self._num_classes = num_classes

    @property
    def end(self) -> int:
        """The number of the sample after the last one."""
        return self.first + self._num_samples

    @property
    def is_full(self) -> bool:
        """Whether there are enough samples."""
        return self._nbytes >= GROUP_NBYTES or self._num_samples >= self._most

    def add(self, values: Mapping[str, Any]) -> None:
        """Add the values of a sample by field name.

        Raises:
            OptionError: It does not fit.
        """
        number = self.first + self._num_samples
        if values.keys() != self._names.keys():
            raise OptionError(
                f"sample {number} has the fields {', '.join(values)}; the first one had {', '.join(self._names)}. "
                "All samples need the same fields."
            )
        for name in self._boxes:
            _refuse_shares(name, values[name], number)
        nbytes = 0
        for f in self._fields:
            value = values[f.name]
            if (column := self._names[f.name]) is not None:
                nbytes += column.add(value, number)
            else:
                self._plain[f.name].append(scalar(f, value, number))
                nbytes += len(value) if isinstance(value, str) else _SCALAR_NBYTES
        for name, image in self._masks:
            _refuse_turned(name, values[name], image, values[image], number)
        if self._has_detections and (sizes := (len(values[_BOXES]), len(values[_LABELS])))[0] != sizes[1]:
            raise OptionError(
                f"sample {number}: {sizes[0]} {_BOXES} and {sizes[1]} {_LABELS}; expected a label for each box. If "
                "the labels are of something else, give the field another name."
            )
        for name, num_classes in self._num_classes.items():
            _check_labels(name, values[name], num_classes, number)
        if SOURCE in self._names:
            self._sources.append(source_name(values[SOURCE], number))
        self._nbytes += nbytes
        self._num_samples += 1

    def encode(self) -> tuple[Chunk, list[Field]]:
        """Return the encoded samples, and the fields with their codecs."""
        payloads: dict[str, Payloads] = {}
        columns: dict[str, Any] = {}
        chosen = []
        if SOURCE in self._names:
            corner = np.zeros(self._num_samples, np.uint32)
            columns = dict(zip(SOURCE_COLUMNS, (self._sources, corner, corner), strict=True))
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


def _check_labels(name: str, labels: Any, num_classes: int, number: int) -> None:
    """Refuse a label, or one of an array of them, that is at least the number of classes; below 0 it stands for none.

    Raises:
        OptionError: There is one.
    """
    found = [labels] if isinstance(labels, int | np.integer) else np.unique(np.asarray(labels)).tolist()
    if wrong := [label for label in found if label >= num_classes]:
        raise OptionError(
            f"sample {number}, field {name!r}: {wrong[0]}, but there are names of {num_classes} classes; expected 0 "
            f"to {num_classes - 1}, or a number below 0 for none. Name all, as "
            f"classes={{{name!r}: [...]}}, or none: classes={{}}."
        )


def _refuse_turned(name: str, mask: Any, image_name: str, image: Any, number: int) -> None:
    """Refuse a mask whose height is the image's width, and whose width is its height.

    Raises:
        OptionError: It is turned.
    """
    (height, width), (rows, columns) = cast("list[tuple[int, int]]", [image_size(mask), image_size(image)])
    if (height, width) == (columns, rows) != (rows, columns):
        raise OptionError(
            f"sample {number}, field {name!r}: the mask has {width}x{height} pixels, and {image_name!r} has "
            f"{columns}x{rows}. Are the axes of the mask swapped, or did EXIF data turn the image upright?"
        )


def _number_of(sample: Any, name: str, names: tuple[str, ...] | None) -> int | None:
    """Return the whole number in a field of a sample; None if there is none."""
    if isinstance(sample, Mapping):
        value = sample.get(name)
    elif isinstance(sample, tuple | list) and not hasattr(sample, "_fields"):
        at = -1 if names is None else names.index(name)  # (image, label)
        value = sample[at] if len(sample) == (2 if names is None else len(names)) else None
    else:
        value = getattr(sample, name, None)
    return int(value) if value is not None and is_whole_number(value) else None


def named_values(sample: Any, names: tuple[str, ...] | None, number: int) -> dict[str, Any]:
    """Return a sample's values by field name, in a dict of its own.

    Raises:
        OptionError: It is neither a dict nor a tuple, or the number of its values is not that of the names.
    """
    if isinstance(sample, dict | Mapping):  # the check for dict is fast
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
            f"sample {number} is a plain tuple of {len(sample)} values: name them, for example "
            "fields=('image', 'label')"
        )
    if len(names) != len(sample):
        raise OptionError(
            f"sample {number} has {len(sample)} values, but fields names {len(names)}: {', '.join(names)}"
        )
    return dict(zip(names, sample, strict=True))


def _refuse_shares(name: str, value: Any, number: int) -> None:
    """Raise OptionError if the boxes of a sample are probably shares of its image's sides, not pixels."""
    try:
        boxes = as_boxes(value)
    except (TypeError, ValueError):  # the sample is refused when it is encoded
        return
    if why := why_shares(boxes, "left, top, right, bottom"):
        raise OptionError(f"sample {number}, field {name!r}: {why}")


def check_looks(chunk: Chunk, fields: Sequence[Field], first: int, known: Mapping[str, int]) -> dict[str, int]:
    """Return what all images of each field of images or masks have in common (`looks_of`).

    Raises:
        OptionError: A sample has labels or pixels of another type, which cannot be in one batch with those of the first
            one.
    """
    found: dict[str, int] = dict(known)
    for f in fields:
        if not f.has_pixels or not chunk.num_samples:
            continue
        looks = looks_of(f.kind, *(np.asarray(chunk.columns[f"{f.name}.{part}"]) for part in ("bits", "channels")))
        expected = found.setdefault(f.name, int(looks[0]))
        if (differs := looks != expected).any():
            at = int(np.flatnonzero(differs)[0])
            what, line = "a mask", "A batch needs one dtype. Write all masks as mask.astype('uint16')."
            if f.kind == "image":
                what, line = (
                    "an image",
                    (
                        "All images of a field need one type and number of channels; only gray images and images in "
                        "color, and uint8 and uint16, can be mixed."
                    ),
                )
            raise OptionError(
                f"sample {first + at}, field {f.name!r}: {what} of {look_text(int(looks[at]))}, and the first sample "
                f"has one of {look_text(expected)}. {line}"
            )
    return found
