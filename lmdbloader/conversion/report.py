"""The report of a conversion, and the counts in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lmdbloader.base.text import counted, first_of
from lmdbloader.conversion.sources.listing import Listing
from lmdbloader.format.codecs import name_counts
from lmdbloader.format.layout import Field
from lmdbloader.store import Reader

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a conversion.

    Attributes:
        path: The dataset.
        layout: The layout of the source.
        num_sources: Images or pairs in the source.
        num_samples: Samples in the dataset.
        codecs: The codec of each image field.
        sizes: Bytes: payload_nbytes (stored), raw_nbytes (decoded), data_nbytes, index_nbytes.
        map_nbytes: The map size estimated before the first write.
        skipped: (name, reason) of sources left out (on_error="skip").
        ignored: (name, reason) of files that are not inputs: image files that are not regular files, links to folders,
            and the number of other files by suffix.
        was_finished: Whether the dataset was complete already, and nothing was done.
        seconds: The time of the conversion.
        stored_as: The number of images of all fields by storage: raw, lz4, delta, tiles, delta tiles, jpeg or file.
        classes: The number of images in the source, or of boxes, by the name of their class, in the order of the
            labels; empty without class folders or named classes of boxes.
        notes: Sentences about what the source has and the dataset lacks, and about masks that may not fit.
        source_nbytes: Bytes of the files of the source; 0 if they are not known.
    """

    path: str
    layout: str
    num_sources: int
    num_samples: int
    codecs: Mapping[str, str]
    sizes: Mapping[str, int]
    map_nbytes: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
    ignored: tuple[tuple[str, str], ...] = ()
    was_finished: bool = False
    seconds: float = 0.0
    stored_as: Mapping[str, int] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict, repr=False)  # which can be thousands
    notes: tuple[str, ...] = ()
    source_nbytes: int = 0


def count_classes(listing: Listing) -> dict[str, int]:
    """Return `Report.classes`."""
    boxes = listing.sources.annotations
    labels = listing.sources.labels if boxes is None else boxes.labels
    if labels is None or not listing.classes:
        return {}
    counts = np.bincount(labels, minlength=len(listing.classes))
    return dict(zip(listing.classes, counts.tolist(), strict=True))


def describe_classes(images_of: Mapping[str, int]) -> str:
    """Return the classes, each with its number of images or boxes; of many classes, the first.

    >>> describe_classes({"cat": 1200, "dog": 31})
    '2 classes: cat (1,200), dog (31)'
    """
    parts = [f"{name} ({count:,})" for name, count in images_of.items()]
    return f"{counted(len(parts), 'class', 'classes')}: {first_of(parts)}"


def count_images(fields: Sequence[Field], reader: Reader) -> dict[str, int]:
    """Return `Report.stored_as` of a dataset, from its index."""
    codes = np.zeros(256, np.int64)
    for first in range(0, len(reader), _ROWS_AT_ONCE):
        rows = range(first, min(first + _ROWS_AT_ONCE, len(reader)))
        for f in fields:
            if f.kind == "image":
                codes += np.bincount(reader.index.take(f"{f.name}.codec", rows), minlength=256)
    return name_counts(codes)
