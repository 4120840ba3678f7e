"""`bench`: the experiments that a dataset and this machine allow, one after the other."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from lmdbloader.base import system
from lmdbloader.base.arguments import number, whole
from lmdbloader.base.cores import count_cores
from lmdbloader.base.stage_times import STAGES
from lmdbloader.base.stopwatch import BatchTimes
from lmdbloader.base.text import counted
from lmdbloader.base.units import show_nbytes
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.lab.arms import Arm, Material, open_arm, take_turn, take_turns
from lmdbloader.lab.image_files import extract_files, find_files
from lmdbloader.lab.machine import Machine, describe, residency_of_all
from lmdbloader.lab.study.choices import choose_crops, choose_dataset, has_images
from lmdbloader.lab.study.cold import read_cold
from lmdbloader.lab.study.isolation import isolate
from lmdbloader.lab.study.plan import Plan
from lmdbloader.lab.study.results import Study
from lmdbloader.lab.study.rows import StudyRow, row_of
from lmdbloader.loader import Loader
from lmdbloader.show import info

Section = Literal["sweep", "oversubscription", "isolation", "cold"]
ALL_SECTIONS: tuple[Section, ...] = get_args(Section)
# Dropping the page cache slows down whoever reads the same files, so it has to be asked for.
SECTIONS: tuple[Section, ...] = ("sweep", "oversubscription", "isolation")
BATCH_SIZES, CROPS = (8, 16, 32, 64, 128), (16, 64)
# As the folder of files: files that are extracted from the dataset for the study.
AUTO = "auto"
_PER_CORE = (1, 2, 3, 4)
# As many as the study of 2019 had; more than there are cores would only take turns.
_MOST_WORKERS = 16


def bench(
    dataset: str | os.PathLike[str] | LMDBDataset,
    *,
    baseline: str | os.PathLike[str] | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    crops: Sequence[int | None] = CROPS,
    only: Sequence[Section] = SECTIONS,
    seconds: float = 0.2,
    repeats: int = 3,
    processes: Sequence[int] | None = None,
    num_workers: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Study:
    """Measure how fast a dataset is loaded on this machine, compared with other ways to load the same images.

    Batches of the image fields as they are stored, in random order: from `Loader`, from `lmdbloader.dataloader`, and
    from torch's DataLoader over the same images as files. The loaders take turns; the figures are medians.

    Args:
        dataset: A dataset's folder, or an open dataset; a view's own fields and samples are read.
        baseline: A folder with the same images as files: one that `lmdbloader extract` wrote, or any for one image
            field, or one with a folder for each image field whose files pair up by name. "auto" extracts samples as PNG
            files into a temporary folder; all sources then read these samples.
        batch_sizes: Samples in a batch.
        crops: Sides of a random window in pixels of each sample's largest image; None stands for whole images. Sizes
            that do not fit are left out.
        only: The sections to measure; "cold" only if it is named, because dropping files from the page cache slows
            down whoever else reads them.
        seconds: Length of one turn of one setting.
        repeats: Turns of each setting.
        processes: How many processes load at the same time in the isolation test, one number after the other; by
            default 1, and as many as cores, from 2 to 8.
        num_workers: Worker processes of torch's DataLoader; by default one for each core, 16 at most.
        progress: Called with a line of text when a part of the study begins.

    Returns:
        All figures; `print` shows them as tables.

    Raises:
        OptionError: An option is out of its range, or does not suit the dataset.
        WorkerError: A process of the isolation test ended.
    """
    cores = count_cores()
    counts = tuple(processes) if processes is not None else (1, max(2, min(8, cores)))
    workers = num_workers if num_workers is not None else min(cores, _MOST_WORKERS)
    if not only or not set(only) <= set(ALL_SECTIONS):
        raise OptionError(f"only={list(only)}: expected some of {', '.join(ALL_SECTIONS)}")
    whole("repeats", repeats, 1)
    whole("num_workers", workers, 0)
    if not 0 < number("seconds", seconds) < 3600:
        raise OptionError(f"seconds={seconds}: expected more than 0, and less than an hour")
    for name, numbers in (("batch_sizes", batch_sizes), ("processes", counts)):
        if not numbers or min(numbers) < 1:
            raise OptionError(f"{name}={list(numbers)}: expected numbers of at least 1")
    notes: list[str] = []
    chosen = choose_dataset(dataset)
    with ExitStack() as stack:
        material = _material(chosen, baseline, notes, stack, progress)
        windows = choose_crops(material.dataset, crops, notes)
        machine = describe(chosen.path)
        facts = _facts(chosen, material, machine)
        sizes = sorted(set(batch_sizes))
        plan = Plan(material, len(chosen), sizes, windows, seconds, repeats, counts, cores, workers, notes)
        rows: list[StudyRow] = []
        # Cold reads first, as long as nothing in this process has touched the data.
        for section in sorted(only, key=lambda section: section != "cold"):
            progress(f"{section}: begins")
            rows += _MEASURES[section](plan)
    return Study(
        facts={
            **facts,
            "loaders": f"{counted(cores, 'thread')} of the Loader, {counted(workers, 'worker')} of the DataLoader",
            "measured": f"{datetime.now(timezone.utc):%Y-%m-%d}, {counted(repeats, 'turn')} of {seconds:g} s each",
            "lmdbloader": machine.lmdbloader,
        },
        environment=machine.as_json(),
        rows=tuple(rows),
        notes=tuple(notes),
    )


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


def _sweep(plan: Plan) -> Iterator[StudyRow]:
    """Yield a row for every setting."""
    ways = itertools.product(plan.crops, plan.batch_sizes, plan.material.sources)
    yield from _load(plan, "loading", [plan.arm(source, batch_size=size, crop=crop) for crop, size, source in ways])


def _oversubscribe(plan: Plan) -> Iterator[StudyRow]:
    """Yield the speed of every source with one to four threads or worker processes for each core."""
    ways = itertools.product(plan.material.sources, _PER_CORE)
    arms = [plan.arm(source, num_workers=each * plan.cores) for source, each in ways]
    yield from _load(plan, "oversubscription", arms)


_MEASURES: dict[str, Callable[[Plan], Iterator[StudyRow]]] = {
    "sweep": _sweep, "oversubscription": _oversubscribe, "isolation": isolate, "cold": read_cold,
}  # fmt: skip


def _load(plan: Plan, section: str, arms: Sequence[Arm]) -> Iterator[StudyRow]:
    """Yield a row of loading alone for each arm; all of them take turns."""

    def measure(arm: Arm) -> BatchTimes:
        with open_arm(plan.material, arm) as feed:
            return take_turn(feed, plan.seconds)

    for arm, turns in zip(arms, take_turns(arms, plan.repeats, measure), strict=True):
        p50, p99 = np.percentile([wait for turn in turns for wait in turn.waits], [50, 99])
        speeds = [turn.samples_per_s for turn in turns]
        figures = {
            "wait_p50_seconds": float(p50),
            "wait_p99_seconds": float(p99),
            "cpu_seconds_per_sample": sum(t.cpu_seconds for t in turns) / sum(t.num_samples for t in turns),
            "epoch_seconds": plan.num_samples / float(np.median(speeds)),
        }
        if section == "loading" and arm.source == "lmdbloader":
            figures |= _stages(plan, arm)
        yield row_of(section, arm, speeds, figures)


def _stages(plan: Plan, arm: Arm) -> dict[str, float]:
    """Return seconds of thread time for each sample by stage, from a turn of its own: watching costs a little."""
    with open_arm(plan.material, arm) as feed:
        assert isinstance(feed.loader, Loader)
        feed.loader.time_stages()
        take_turn(feed, plan.seconds / 2)
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
