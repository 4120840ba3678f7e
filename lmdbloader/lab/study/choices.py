"""What a study can measure of what was asked: the dataset, crops, batch sizes and the device."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch

from lmdbloader.base.text import counted
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.lab.stored import image_sizes
from lmdbloader.lab.study.arms import random_crop
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
    objections = {crop: _objection(dataset, crop) for crop in sorted(set(crops), key=lambda crop: crop or np.inf)}
    notes += [f"{_named(crop)}: left out, {reason}." for crop, reason in objections.items() if reason]
    found = tuple(crop for crop, reason in objections.items() if not reason)
    if found:
        return found
    raise OptionError(f"{dataset.path}: no crop suits its images. {' '.join(notes)} Give --crops.")


def choose_batch_sizes(dataset: LMDBDataset, sizes: Sequence[int], notes: list[str]) -> tuple[int, ...]:
    """Return the batch sizes, ascending, that there are enough samples for.

    Args:
        dataset: The dataset.
        sizes: Asked for.
        notes: Gets a sentence if some are left out.

    Raises:
        OptionError: One is below 1, or none is left.
    """
    if not sizes or any(size < 1 for size in sizes):
        raise OptionError(f"batch_sizes={list(sizes)}: expected sizes of at least 1")
    found = tuple(size for size in sorted(set(sizes)) if size <= len(dataset))
    if not found:
        raise OptionError(
            f"{dataset.path}: it has {counted(len(dataset), 'sample')}, fewer than the smallest batch size, "
            f"{min(sizes)}. Give smaller batch sizes (--batch-sizes)."
        )
    if max(sizes) > found[-1]:
        notes.append(f"Batches above {found[-1]}: left out, the dataset has {counted(len(dataset), 'sample')}.")
    return found


def choose_device(name: str | None) -> torch.device:
    """Return the device that trains: CUDA's if there is one and none was asked for.

    Raises:
        OptionError: It is not a device of torch's here.
    """
    try:
        found = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        return torch.zeros(1, device=found).device  # with its number
    except (RuntimeError, AssertionError) as error:
        raise OptionError(
            f"device={name!r}: torch cannot use it here ({error}). Use 'cpu', 'cuda' or 'cuda:1'."
        ) from error


def _smallest_side(dataset: LMDBDataset) -> int:
    """Return the shortest side, over all samples, of each sample's largest image."""
    return int(np.max([image_sizes(dataset, name).min(axis=1) for name in dataset.fields], axis=0).min())


def _objection(dataset: LMDBDataset, crop: int | None) -> str:
    """Return why images cannot be cut to a size; "" if they can."""
    side = _smallest_side(dataset)
    if crop is not None and crop > side:
        return f"the smallest image has a side of {side} pixels"
    sizes = [image_sizes(dataset, name) for name in dataset.fields]
    if crop is None and any((each != each[0]).any() for each in sizes):
        return "the images differ in size, so whole ones do not fit in one batch"
    try:
        Loader(dataset, 1, order="random", num_threads=1, transforms=random_crop(crop)).close()
    except OptionError as error:
        return str(error).rstrip(".")
    return ""


def _named(crop: int | None) -> str:
    return "Whole images" if crop is None else f"Crop {crop}"
