"""What a study can measure of what was asked: the dataset, and the crops."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.lab.arms import random_crop
from lmdbloader.loader import Loader


def choose_dataset(given: str | os.PathLike[str] | LMDBDataset) -> LMDBDataset:
    """Return the dataset with its image fields only, or with all fields if it has no images.

    Raises:
        OptionError: It has no samples, or transforms of its own, which files would not go through.
    """
    dataset = given if isinstance(given, LMDBDataset) else LMDBDataset(given)
    if dataset.has_own_transform or dataset.all_transforms:
        raise OptionError(
            f"bench({dataset!r}): it has transforms of its own, but a study compares the loading of stored images. "
            "Give the dataset's folder; lmdbloader.lab.profile times a loader as you use it."
        )
    if not len(dataset):
        raise OptionError(f"{dataset.path}: the dataset has no samples; there is nothing to measure")
    names = [name for name, f in dataset.fields.items() if f.kind == "image"] or list(dataset.fields)
    return LMDBDataset(dataset.path, fields=names).with_rows(dataset.stored_rows)


def has_images(dataset: LMDBDataset) -> bool:
    """Return whether there are image fields; `choose_dataset` has left only those, then."""
    return any(f.kind == "image" for f in dataset.fields.values())


def choose_crops(dataset: LMDBDataset, crops: Sequence[int | None], notes: list[str]) -> tuple[int | None, ...]:
    """Return the windows that the images allow, smallest first, whole images last.

    Args:
        dataset: Of image fields.
        crops: Asked for.
        notes: Gets a sentence for each that is left out.

    Raises:
        OptionError: One is not a size, or none suits the images.
    """
    if not crops or any(crop is not None and crop < 1 for crop in crops):
        raise OptionError(f"crops={list(crops)}: expected sizes of at least 1, or None for whole images")
    if not has_images(dataset):
        return (None,)
    found = []
    for crop in sorted(set(crops), key=lambda crop: crop or np.inf):
        try:
            Loader(dataset, 2, order="random", num_threads=1, transforms=random_crop(crop)).close()
        except OptionError as error:
            named = "Whole images" if crop is None else f"Crop {crop}"
            notes.append(f"{named}: left out. {error}")
        else:
            found.append(crop)
    if not found:
        raise OptionError(f"{dataset.path}: no crop suits its images. {' '.join(notes)} Give --crops.")
    return tuple(found)
