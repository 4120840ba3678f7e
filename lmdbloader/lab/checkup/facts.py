"""Facts about one dataset on this machine, without opinion."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmdbloader.format.codecs import name_counts
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE
from lmdbloader.lab.machine import FileSystem, filesystem_of, residency
from lmdbloader.store import Reader

_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What matters of a dataset for reading it here.

    Attributes:
        path: Of the dataset.
        num_samples: In it.
        data_nbytes: Of its data and index files.
        sample_nbytes: Stored bytes of a sample, all fields, on average.
        codecs: Share of the stored bytes by how they are stored, the largest first.
        image_side: Median of the longer sides of the largest images of a sample; None without images.
        varies: Whether images of one field differ in size.
        filesystem: That it lies on.
        residency: Share of its data file that is in memory; None where the system does not tell.
    """

    path: str
    num_samples: int
    data_nbytes: int
    sample_nbytes: float
    codecs: dict[str, float]
    image_side: int | None
    varies: bool
    filesystem: FileSystem
    residency: float | None


def dataset_facts(path: str | os.PathLike[str], root: Path = _ROOT) -> DatasetFacts:
    """Return facts about a dataset; its pixels are not read.

    Args:
        path: Of the dataset.
        root: Where `proc` and `sys` lie, which tests plant.

    Raises:
        FileNotFoundError: There is nothing at `path`.
        FormatError: Not a finished dataset of this format version.
        CorruptError: A file is cut short or damaged.
    """
    reader = Reader(path)
    arrays = reader.index.arrays
    shares = np.zeros(256)
    sides: list[int] = []
    varies = False
    for name, field in reader.fields.items():
        if field.is_payload:
            codec, nbytes = arrays[f"{name}.codec"], arrays[f"{name}.stored_nbytes"]
            shares += np.bincount(codec, weights=nbytes, minlength=256)
        if field.kind == "image" and len(reader):
            height, width = arrays[f"{name}.height"], arrays[f"{name}.width"]
            sides.append(int(np.median(np.maximum(height, width))))
            varies |= bool(np.ptp(height) or np.ptp(width))
    total = float(shares.sum())
    ranked = sorted(name_counts(shares).items(), key=lambda item: -item[1])
    folder = Path(path)
    return DatasetFacts(
        os.fspath(path),
        len(reader),
        sum((folder / name).stat().st_size for name in (DATA_FILE, INDEX_FILE)),
        total / max(1, len(reader)),
        {name: nbytes / total for name, nbytes in ranked if nbytes},
        max(sides, default=None),
        varies,
        filesystem_of(folder / DATA_FILE, root),
        residency(folder / DATA_FILE),
    )
