"""The settings of a study: the dataset, crops and batch sizes that were requested and are possible."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmdbloader.base.text import counted
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.lab.machine import describe
from lmdbloader.lab.stored import column, image_sizes
from lmdbloader.lab.study.endless_loader import BenchData, random_crop
from lmdbloader.lab.study.turns import Turns
from lmdbloader.loader import Loader

# Share of the free memory that batches which are ready may take together.
_MEMORY_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class BenchSetup:
    """The settings that all experiments share.

    Attributes:
        material: The data.
        batch_sizes: Samples in a batch.
        crops: Sides of windows; None: whole images.
        seconds: Of a turn.
        repeats: Turns of each setting.
        num_threads: Of the Loader.
        num_workers: Of torch's DataLoader.
        device: "cpu", "cuda".
        num_samples: Of the whole dataset, for the time of an epoch.
        progress: Gets a line when something begins.
        turns: Measures every turn, or has it from an interrupted study.
    """

    material: BenchData
    batch_sizes: tuple[int, ...]
    crops: tuple[int | None, ...]
    seconds: float
    repeats: int
    num_threads: int
    num_workers: int
    device: str
    num_samples: int
    progress: Callable[[str], None]
    turns: Turns = field(default_factory=Turns)

    def tell(self, line: str) -> None:
        """Report what begins, and the time that is left for all."""
        left = self.turns.left()
        self.progress(f"{line}; {left}" if left else line)


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
        notes: Gets sentences about crops that are left out or chosen.

    Raises:
        OptionError: One is not a size, or no crop suits the images.
    """
    if not crops or any(crop is not None and crop < 1 for crop in crops):
        raise OptionError(f"crops={list(crops)}: expected sizes of at least 1, or None for whole images")
    if not has_images(dataset):
        return (None,)
    wanted = sorted({crop for crop in crops if crop is not None})
    found: list[int | None] = []
    reasons: dict[str, list[str]] = {}
    for crop in [*wanted, *([None] if None in crops else [])]:
        reason = _objection(dataset, crop)
        if reason is None:
            found.append(crop)
        else:
            reasons.setdefault(reason, []).append("whole images" if crop is None else f"crop {crop}")
    notes += [f"Left out: {' and '.join(names)}: {reason}." for reason, names in reasons.items()]
    if found:
        return tuple(found)
    chosen = None if _objection(dataset, None) is None else _largest_power(smallest_side(dataset))
    reason = _objection(dataset, chosen)
    if reason is not None:
        raise OptionError(f"{dataset.path}: none of the crops {list(crops)} suits its images: {reason}. Give --crops.")
    notes.append(f"Chosen instead: {'whole images' if chosen is None else f'crop {chosen}'}.")
    return (chosen,)


def choose_batch_sizes(
    dataset: LMDBDataset, sizes: Sequence[int], crops: Sequence[int | None], num_workers: int, notes: list[str]
) -> tuple[int, ...]:
    """Return the batch sizes, ascending, that there are enough samples and memory for.

    Args:
        dataset: The dataset.
        sizes: Asked for.
        crops: That are measured.
        num_workers: Threads or worker processes, each with batches of its own.
        notes: Gets sentences about sizes that are left out.

    Raises:
        OptionError: One is below 1, or none is left.
    """
    if not sizes or any(size < 1 for size in sizes):
        raise OptionError(f"batch_sizes={list(sizes)}: expected sizes of at least 1")
    wanted = sorted(set(sizes))
    found = [size for size in wanted if size <= len(dataset)]
    if not found:
        raise OptionError(
            f"{dataset.path}: it has {counted(len(dataset), 'sample')}, fewer than the smallest batch size, "
            f"{wanted[0]}. Give smaller batch sizes (--batch-sizes)."
        )
    if found != wanted:
        notes.append(
            f"Left out: batches of {_listed(wanted[len(found) :])}: the dataset has {counted(len(dataset), 'sample')}."
        )
    each = max(_sample_nbytes(dataset, crop) for crop in crops)
    # Of every worker: one in the making, two ready; and a few with the loop.
    room = describe().memory.free_nbytes * _MEMORY_SHARE
    fitting = [size for size in found if size * each * (3 * num_workers + 4) <= room]
    if room and fitting != found:
        notes.append(
            f"Left out: batches of {_listed(found[len(fitting) :])}: the free memory does not hold enough of them."
        )
        if not fitting:
            raise OptionError(
                f"{dataset.path}: the free memory does not hold enough batches of {found[0]} samples; give smaller "
                "ones (--batch-sizes) or a crop (--crops)."
            )
        found = fitting
    return tuple(found)


def smallest_side(dataset: LMDBDataset) -> int:
    """Return the shortest side, over all samples, of each sample's largest image."""
    return int(np.max([sides.min(axis=1) for sides in _sides(dataset)], axis=0).min())


def _sides(dataset: LMDBDataset) -> list[Any]:
    """Return (samples, 2) heights and widths of every image field."""
    return [image_sizes(dataset, name) for name in dataset.fields]


def _objection(dataset: LMDBDataset, crop: int | None) -> str | None:
    """Return why images cannot be cut to a size, None if they can."""
    side = smallest_side(dataset)
    if crop is not None and crop > side:
        return f"the smallest image has a side of {side} pixels"
    if crop is None and any((sides != sides[0]).any() for sides in _sides(dataset)):
        return "the images differ in size, so whole ones do not fit in one batch"
    try:
        Loader(dataset, 1, order="random", num_threads=1, transforms=random_crop(crop)).close()
    except OptionError as error:
        return str(error).rstrip(".")
    return None


def _largest_power(side: int) -> int:
    """Return the largest power of two up to a side: it divides by the usual scales."""
    return 1 << (side.bit_length() - 1)


def _sample_nbytes(dataset: LMDBDataset, crop: int | None) -> float:
    """Return the decoded bytes of a sample, the largest of all for whole images."""
    names = [name for name, f in dataset.fields.items() if f.is_payload]
    whole = sum(column(dataset, name, "raw_nbytes").astype(np.int64) for name in names)
    nbytes = float(np.max(whole)) if names else 8.0
    if crop is None:
        return nbytes
    areas = np.max([sides.prod(axis=1) for sides in _sides(dataset)], axis=0)
    return float(np.max(whole / areas)) * crop * crop


def _listed(sizes: Sequence[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, sizes[:-1])), str(sizes[-1])]))
