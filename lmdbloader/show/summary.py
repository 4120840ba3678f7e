"""A dataset in numbers: its fields, sizes, classes and sources, and how it was made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.base.files import NotRegularError, open_regular
from lmdbloader.base.text import extent, first_of, plain
from lmdbloader.format.codecs import name_counts
from lmdbloader.format.layout import SKIPPED_FILE, Field, bits_text, channels_text
from lmdbloader.store import Reader, open_reader

# Bytes of a value, and what several are called.
_UNITS = {"boxes": (16, "boxes"), "labels": (8, "labels")}


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """One field over all samples; attributes that its kind lacks are None.

    Attributes:
        name: The field's.
        kind: image, array, int, float, text, bytes or json.
        codec: The codec that was asked for.
        codecs: Samples by the codec that stores them: raw, lz4, delta, tiles, delta tiles, jpeg or file.
        stored_nbytes: Bytes of its payloads as stored.
        raw_nbytes: Bytes of its payloads once decoded.
        height: (smallest, largest) in pixels; images and masks.
        width: (smallest, largest) in pixels; images and masks.
        channels: Samples by number of channels; images and masks.
        bits: Samples by bits a channel, 8 or 16, and 17 for float16, 33 for float32; images and masks.
        ignore_index: The label of pixels without one; masks.
        types: Samples by dtype and shape; arrays.
        values: (smallest, largest); ints, and floats that are finite.
        num_not_finite: How many are infinite or NaN; floats.
        length: (shortest, longest); text in characters, boxes and labels in their number, bytes, JSON and points in
            bytes.
    """

    name: str
    kind: str
    codec: str | None = None
    codecs: Mapping[str, int] | None = None
    stored_nbytes: int | None = None
    raw_nbytes: int | None = None
    height: tuple[int, int] | None = None
    width: tuple[int, int] | None = None
    channels: Mapping[int, int] | None = None
    bits: Mapping[int, int] | None = None
    ignore_index: int | None = None
    types: Mapping[str, int] | None = None
    values: tuple[float, float] | None = None
    num_not_finite: int | None = None
    length: tuple[int, int] | None = None

    def describe(self) -> str:
        """Describe the field's values in a few words.

        >>> FieldSummary("image", "image", height=(96, 96), width=(96, 96), channels={3: 9}, bits={8: 9}).describe()
        '96 x 96, RGB, 8-bit'
        """
        if self.height and self.width and self.channels and self.bits:
            size = f"{extent(self.width)} wide, {extent(self.height)} high"
            if self.height[0] == self.height[1] and self.width[0] == self.width[1]:
                size = f"{self.width[0]} x {self.height[0]}"
            bits = ", ".join(map(bits_text, self.bits))
            if self.ignore_index is not None:
                return f"{size}, {bits} labels, {self.ignore_index} is ignored"
            return f"{size}, {', '.join(map(channels_text, self.channels))}, {bits}"
        if self.types is not None:
            return first_of([plain(name) for name in self.types], 3)
        if self.length:
            # The characters of long text would have to be read.
            unit = "characters" if self.kind == "text" and self.codec is None else "bytes"
            unit = _UNITS.get(self.kind, (1, unit))[1]
            return f"{extent(self.length)} {unit.removesuffix('s') if self.length == (1, 1) else unit}"
        shown = f"{self.values[0]:,.6g} to {self.values[1]:,.6g}" if self.values else ""
        return f"{shown}, {self.num_not_finite:,} not finite".removeprefix(", ") if self.num_not_finite else shown


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole dataset.

    Attributes:
        path: As it was given.
        num_samples: Samples in it.
        fields: In the order of a sample.
        num_sources: Files or pairs that samples were made from; None for a dataset without sources.
        samples_per_source: (fewest, most); None likewise.
        num_skipped: Sources that could not be used and were left out.
        classes: For each label field its (name, samples) by label; None for the classes of boxes, as counting them
            would read all of the data.
        sizes: Bytes: raw_nbytes (decoded), payload_nbytes (stored), data_nbytes and index_nbytes (the files).
        compression_ratio: Decoded bytes divided by stored ones; 1 if there are none.
        waste_ratio: Size of the data files divided by stored payload; 1 if there is none.
        made_by: Release, layout, options and digests of the inputs, from the manifest.
        digests: Of the content, the index and the manifest.
        num_parts: None if the dataset has one.
    """

    path: str
    num_samples: int
    fields: tuple[FieldSummary, ...]
    num_sources: int | None
    samples_per_source: tuple[int, int] | None
    num_skipped: int
    classes: Mapping[str, tuple[tuple[str, int | None], ...]]
    sizes: Mapping[str, int]
    compression_ratio: float
    waste_ratio: float
    made_by: Mapping[str, Any]
    digests: Mapping[str, str]
    num_parts: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON types; attributes that a field lacks are left out."""
        whole = asdict(self)
        whole["fields"] = [{k: v for k, v in f.items() if v is not None} for f in whole["fields"]]
        return whole


def info(path: str | os.PathLike[str]) -> Summary:
    """Return a summary of a dataset, from its manifest and index; no pixel is read.

    Args:
        path: Of the dataset.

    Raises:
        NotFoundError: There is nothing at `path`.
        FormatError: Not a finished dataset of this format version.
        CorruptError: A file is cut short or damaged.

    >>> import tempfile, numpy, lmdbloader
    >>> path = tempfile.mkdtemp() + "/gray"
    >>> written = lmdbloader.write(({"image": numpy.zeros((8, 6 + i), "uint8")} for i in range(3)), path)
    >>> (image,) = info(path).fields
    >>> image.height, image.width, image.channels
    ((8, 8), (6, 8), {1: 3})
    """
    reader = open_reader(path)
    manifest, sizes = reader.manifest, reader.manifest.sizes
    per_source = np.bincount(reader.index.names["source"].codes) if manifest.with_source else None
    per_source = None if per_source is None else per_source[per_source > 0]
    return Summary(
        path=os.fspath(path),
        num_samples=len(reader),
        fields=tuple(_summarize_field(reader, f) for f in manifest.fields),
        num_sources=None if per_source is None else len(per_source),
        samples_per_source=None if per_source is None else _range(per_source),
        num_skipped=_count_skipped(reader.path),
        classes={name: _count_classes(reader, name, names) for name, names in manifest.classes.items()},
        sizes=sizes,
        compression_ratio=_ratio(sizes["raw_nbytes"], sizes["payload_nbytes"]),
        waste_ratio=_ratio(sizes["data_nbytes"], sizes["payload_nbytes"]),
        made_by=manifest.made_by,
        digests={
            "content": manifest.content_digest,
            "index": manifest.index_digest,
            "manifest": manifest.manifest_digest,
        },
        num_parts=len(manifest.parts) if len(manifest.parts) > 1 else None,
    )


def _summarize_field(reader: Reader, f: Field) -> FieldSummary:
    arrays = reader.index.arrays
    if not f.is_payload:
        return _summarize_column(reader, f)
    raw = arrays[f"{f.name}.raw_nbytes"]
    common: dict[str, Any] = {
        "name": f.name,
        "kind": f.kind,
        "codec": f.codec,
        "codecs": name_counts(np.bincount(arrays[f"{f.name}.codec"], minlength=256)),
        "stored_nbytes": int(arrays[f"{f.name}.stored_nbytes"].sum(dtype=np.int64)),
        "raw_nbytes": int(raw.sum(dtype=np.int64)),
    }
    if f.has_pixels:
        return FieldSummary(
            **common,
            height=_range(arrays[f"{f.name}.height"]),
            width=_range(arrays[f"{f.name}.width"]),
            channels=_counts(arrays[f"{f.name}.channels"]),
            bits=_counts(arrays[f"{f.name}.bits"]),
            ignore_index=f.ignore_index,
        )
    if f.kind == "array":
        types = reader.index.names[f"{f.name}.type"]
        names = types.texts.to_list()
        return FieldSummary(**common, types={names[code]: count for code, count in _counts(types.codes).items()})
    return FieldSummary(**common, length=_range(raw // _UNITS.get(f.kind, (1, ""))[0]))


def _summarize_column(reader: Reader, f: Field) -> FieldSummary:
    if f.kind == "text":
        lengths = np.array([len(text) for text in reader.index.texts[f.name].to_list()], np.int64)
        return FieldSummary(f.name, f.kind, length=_range(lengths))
    values = reader.index.arrays[f.name]
    if f.kind == "int":
        return FieldSummary(f.name, f.kind, values=_range(values))
    finite = values[np.isfinite(values)]
    extent = (float(finite.min()), float(finite.max())) if len(finite) else None
    return FieldSummary(f.name, f.kind, values=extent, num_not_finite=len(values) - len(finite))


def _count_classes(reader: Reader, field: str, names: tuple[str, ...]) -> tuple[tuple[str, int | None], ...]:
    if field not in reader.index.arrays:
        return tuple((name, None) for name in names)
    labels = reader.index.arrays[field]
    known = labels[(labels >= 0) & (labels < len(names))]
    return tuple(zip(names, np.bincount(known, minlength=len(names)).tolist(), strict=True))


def _count_skipped(path: Path) -> int:
    try:
        with open(open_regular(path / SKIPPED_FILE), "rb") as file:
            return max(0, sum(1 for _ in file) - 1)
    except (FileNotFoundError, IsADirectoryError, NotRegularError):
        return 0


def _range(values: Any) -> tuple[int, int] | None:
    return (int(values.min()), int(values.max())) if len(values) else None


def _counts(values: Any) -> dict[int, int]:
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _ratio(whole: int, part: int) -> float:
    return round(whole / part, 4) if part else 1.0
