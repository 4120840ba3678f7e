"""`bench`: every setting that a dataset and this machine allow, in turns."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import numpy as np
import torch

from lmdbloader.base import system
from lmdbloader.base.arguments import number, whole
from lmdbloader.base.cores import count_cores
from lmdbloader.base.stage_times import STAGES
from lmdbloader.base.stopwatch import BatchTimes
from lmdbloader.base.text import counted
from lmdbloader.base.units import show_nbytes
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.lab.arms import Arm, LoaderKind, Material, open_arm, random_crop, take_turn, take_turns
from lmdbloader.lab.image_files import extract_files, find_files
from lmdbloader.lab.machine import Machine, describe, residency_of_all
from lmdbloader.lab.study.cold import read_cold
from lmdbloader.lab.study.processes import load_together
from lmdbloader.lab.study.results import Study, StudyRow, row_of
from lmdbloader.loader import Loader
from lmdbloader.show import info

BATCH_SIZES, CROPS = (8, 16, 32, 64, 128), (16, 64)
# As the folder of files: files that are extracted from the dataset for the study.
AUTO = "auto"
# As many as the study of 2019 had; more than there are cores would only take turns.
_MOST_WORKERS = 16
# Cold reads take long: of the batch sizes the one that is nearest to this.
_COLD_BATCH_SIZE = 32


def bench(
    dataset: str | os.PathLike[str] | LMDBDataset,
    *,
    baseline: str | os.PathLike[str] | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    crops: Sequence[int | None] = CROPS,
    num_workers: Sequence[int] | None = None,
    processes: Sequence[int] = (1,),
    cold: bool = False,
    seconds: float = 0.2,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda line: None,
) -> Study:
    """Measure how fast a dataset is loaded on this machine, compared with other ways to load the same images.

    Batches of the image fields as they are stored, in random order: from `Loader`, from `lmdbloader.dataloader`, and
    from torch's DataLoader over the same images as files. The loaders take turns; the figures are medians.

    Args:
        dataset: A dataset's folder, or an open dataset; a view's own fields and samples are read.
        baseline: A folder with the same images as files; for several image fields with a folder for each, as
            `lmdbloader extract` writes them, whose files pair up by name. "auto" extracts samples as PNG
            files into a temporary folder; all sources then read these samples.
        batch_sizes: Samples in a batch.
        crops: Sides of a random window in pixels of each sample's largest image; None stands for whole images. Sizes
            that do not fit are left out.
        num_workers: Worker processes of torch's DataLoader; by default one for each core, 16 at most. The Loader has a
            thread for each core.
        processes: How many processes load at the same time, with the threads and workers shared out among them.
        cold: Measure the first epoch from storage instead, in middle batches of the largest windows: the page cache is
            dropped for the files that are read, which slows down whoever else reads them.
        seconds: Length of one turn of one setting.
        repeats: Turns of each setting.
        progress: Called with a line of text when a part of the study begins.

    Returns:
        All figures; `print` shows them as tables.

    Raises:
        OptionError: An option is out of its range, or does not suit the dataset.
        WorkerError: One of several processes ended.
    """
    cores = count_cores()
    workers = (min(cores, _MOST_WORKERS),) if num_workers is None else tuple(num_workers)
    whole("repeats", repeats, 1)
    if not 0 < number("seconds", seconds) < 3600:
        raise OptionError(f"seconds={seconds}: expected more than 0, and less than an hour")
    for name, numbers, least in (
        ("batch_sizes", batch_sizes, 1), ("processes", processes, 1), ("num_workers", workers, 0),
    ):  # fmt: skip
        if not numbers or min(numbers) < least:
            raise OptionError(f"{name}={list(numbers)}: expected numbers of at least {least}")
    notes: list[str] = []
    chosen = choose_dataset(dataset)
    rows: list[StudyRow] = []
    with ExitStack() as stack:
        material = _material(chosen, baseline, notes, stack, progress)
        windows, sizes = choose_crops(material.dataset, crops, notes), sorted(set(batch_sizes))
        machine = describe(chosen.path)
        facts = _facts(chosen, material, machine)
        threads: dict[LoaderKind, Sequence[int]] = dict.fromkeys(material.sources, workers)
        threads["lmdbloader"] = (cores,)
        if cold:
            progress("cold: begins")
            size = min(sizes, key=lambda size: abs(size - _COLD_BATCH_SIZE))
            arms = [_arm(source, size, found[0], windows[-1], 1) for source, found in threads.items()]
            rows += read_cold(material, arms, repeats, seconds, notes)
        else:
            for count in processes:
                progress(f"loading, {count} at once: begins")
                ways = itertools.product(windows, sizes, threads)
                arms = [_arm(source, size, n, crop, count) for crop, size, source in ways for n in threads[source]]
                measure = _load if count == 1 else partial(load_together, count)
                rows += measure(material, arms, repeats, seconds)
    return Study(
        facts={
            **facts,
            "measured": f"{datetime.now(timezone.utc):%Y-%m-%d}, {counted(repeats, 'turn')} of {seconds:g} s each",
            "lmdbloader": machine.lmdbloader,
        },
        environment=machine.as_json(),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _arm(source: LoaderKind, batch_size: int, num_workers: int, crop: int | None, processes: int) -> Arm:
    """Return the arm of one of some processes, among which threads and workers are shared out."""
    each = max(num_workers // processes, min(num_workers, 1))
    return Arm(source, batch_size, each, crop, is_pinned=torch.cuda.is_available())


def _material(
    dataset: LMDBDataset, baseline: str | os.PathLike[str] | None, notes: list[str], stack: ExitStack,
    progress: Callable[[str], None],
) -> Material:  # fmt: skip
    """Return what is read; the stack removes files that were made."""
    if baseline is None:
        return Material(dataset, None)
    if not has_images(dataset):
        raise OptionError(f"baseline={os.fspath(baseline)!r}: {dataset.path} has no image field to compare")
    if os.fspath(baseline) != AUTO:
        files = find_files(baseline, dataset)
        if len(files) != len(dataset):
            notes.append(
                f"The files are other images: {counted(len(files), 'sample')}, {len(dataset):,} in the dataset."
            )
        return Material(dataset, files)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lmdbloader-bench-")))
    progress("baseline: writing the images as PNG files")
    files, samples = extract_files(dataset, folder / "files")
    if len(samples) < len(dataset):
        notes.append(
            f"All sources read {len(samples):,} samples drawn at random, those that were written as PNG files."
        )
    return Material(dataset.select(samples), files)


def _load(material: Material, arms: Sequence[Arm], repeats: int, seconds: float) -> Iterator[StudyRow]:
    """Yield a row for each arm; all of them take turns."""

    def measure(arm: Arm) -> BatchTimes:
        with open_arm(material, arm) as feed:
            return take_turn(feed, seconds)

    for arm, turns in zip(arms, take_turns(arms, repeats, measure), strict=True):
        p50, p99 = np.percentile([wait for turn in turns for wait in turn.waits], [50, 99])
        figures = {
            "wait_p50_seconds": float(p50),
            "wait_p99_seconds": float(p99),
            "cpu_seconds_per_sample": sum(t.cpu_seconds for t in turns) / sum(t.num_samples for t in turns),
        }
        if arm.source == "lmdbloader":
            figures |= _stages(material, arm, seconds)
        yield row_of("loading", arm, [turn.samples_per_s for turn in turns], figures)


def _stages(material: Material, arm: Arm, seconds: float) -> dict[str, float]:
    """Return seconds of thread time for each sample by stage, from a turn of its own: watching costs a little."""
    with open_arm(material, arm) as feed:
        assert isinstance(feed.loader, Loader)
        feed.loader.time_stages()
        take_turn(feed, seconds / 2)
        times = feed.loader.stage_times()
    return {f"{name}_seconds": getattr(times, name) / max(times.num_samples, 1) for name in STAGES}


def _facts(dataset: LMDBDataset, material: Material, machine: Machine) -> dict[str, str]:
    """Return what is measured on what, as it is before anything is measured."""
    summary = info(dataset.path)
    read = [f"{f.name} ({f.describe()})" for f in summary.fields if f.name in dataset.fields]
    stored, raw = summary.sizes["payload_nbytes"], summary.sizes["raw_nbytes"]
    facts = {
        "dataset": f"{dataset.path}: {counted(len(dataset), 'sample')}",
        "read": "; ".join(read),
        "stored": f"{show_nbytes(stored)}, decoded {show_nbytes(raw)}, manifest {summary.digests['manifest']}",
        "files": "none, --baseline names or makes them" if material.files is None else material.files.describe(),
        **dict(machine.rows()),
    }
    if (share := residency_of_all(dataset.reader.on_disk)) is not None:
        facts["page cache"] = f"held {share:.0%} of the dataset before the first turn"
    if (load := system.load_average()) is not None:
        facts["load"] = f"{load:.1f} (average of the minute before)"
    return facts


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
