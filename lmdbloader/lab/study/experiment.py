"""`bench`: the experiments that a dataset and this machine allow, one after the other."""

from __future__ import annotations

import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from lmdbloader import __version__
from lmdbloader.base import system
from lmdbloader.base.cores import count_cores
from lmdbloader.base.foreign_names import understands
from lmdbloader.base.text import counted
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import DATA_FILE
from lmdbloader.lab.machine import describe, describe_environment, environment_rows, residency_of_all
from lmdbloader.lab.study.cold import read_cold
from lmdbloader.lab.study.endless_loader import BenchData
from lmdbloader.lab.study.image_files import extract_files, find_files
from lmdbloader.lab.study.interrupts import check, interruptible
from lmdbloader.lab.study.isolation import isolate, sizes_of
from lmdbloader.lab.study.results import Study
from lmdbloader.lab.study.rows import AUTO, BaselineFolder, StudiedDataset, StudiedField, StudySettings
from lmdbloader.lab.study.setup import BenchSetup, choose_batch_sizes, choose_crops, choose_dataset, has_images
from lmdbloader.lab.study.sweeps import PER_CORE, oversubscribe, scale_threads, settings_of, sweep, thread_counts
from lmdbloader.lab.study.training import MODEL_NAMES, ModelName, Trainer, why_unknown
from lmdbloader.lab.study.turns import Turns, file_of
from lmdbloader.show import info

Section = Literal["sweep", "threads", "oversubscription", "isolation", "cold"]
ALL_SECTIONS: tuple[Section, ...] = get_args(Section)
# Dropping the page cache slows down whoever reads the same files, so it has to be asked for.
SECTIONS: tuple[Section, ...] = ("sweep", "threads", "oversubscription", "isolation")
BATCH_SIZES, CROPS = (8, 16, 32, 64, 128), (16, 64)
SECONDS, REPEATS = 0.2, 3
# The study had 16 worker processes; more than there are cores would only take turns.
_MOST_WORKERS = 16


@understands({})
def bench(
    dataset: str | os.PathLike[str] | LMDBDataset,
    *,
    baseline: str | os.PathLike[str] | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    crops: Sequence[int | None] = CROPS,
    model: ModelName | None = "srcnn915",
    only: Sequence[Section] = SECTIONS,
    seconds: float = SECONDS,
    repeats: int = REPEATS,
    processes: Sequence[int] | None = None,
    num_workers: int | None = None,
    device: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Study:
    """Measure how fast a dataset is loaded on this machine, compared with other ways to load the same images.

    Batches of the image fields as they are stored, in random order: from `Loader`, from `lmdbloader.dataloader`, and
    from torch's DataLoader over the same images as files. The loaders take turns; the figures are medians.

    Every turn is kept in the user's cache folder. If the study is interrupted, the same call on the same machine goes
    on within a day; a note in the study says so. The cold passes are measured again.

    Args:
        dataset: A dataset's folder, or an open dataset; a view's own fields and samples are read.
        baseline: A folder with the same images as files: one that `lmdbloader extract` wrote, or any for one image
            field, or one with a folder for each image field whose files pair up by name. "auto" extracts samples as PNG
            files into a temporary folder; all sources then read these samples.
        batch_sizes: Samples in a batch; sizes above the number of samples are left out.
        crops: Sides of a random window in pixels of each sample's largest image; None stands for whole images. Sizes
            that do not fit are left out; if none fits, one is chosen.
        model: Network that is trained on the batches, to restore the larger image of a pair from the smaller one, or
            a single image from its half-size copy; None: batches are only loaded.
        only: The sections to measure; "cold" only if it is named, because dropping files from the page cache slows
            down whoever else reads them.
        seconds: Length of one turn of one setting.
        repeats: Turns of each setting.
        processes: How many processes load at the same time in the isolation test, one number after the other; by
            default 1, and as many as cores, from 2 to 8.
        num_workers: Worker processes of torch's DataLoader; by default one for each core, 16 at most.
        device: Where to train: "cuda", "cuda:1", "cpu"; by default CUDA if there is a device.
        progress: Called with a line of text when a part of the study begins, with the time that is left, and with a
            sentence on what is kept if the study is interrupted.

    Returns:
        All figures; `print` shows them as tables and sentences.

    Raises:
        OptionError: An option is out of its range, or does not suit the dataset.
        WorkerError: A process of the isolation test ended.
    """
    began = time.perf_counter()
    cores = count_cores()
    counts = tuple(processes) if processes is not None else (1, max(2, min(8, cores)))
    workers = num_workers if num_workers is not None else min(cores, _MOST_WORKERS)
    _check(only, seconds, repeats, counts, workers, model)
    where = _device(device)
    notes: list[str] = []
    chosen = choose_dataset(dataset)
    with ExitStack() as stack:
        stack.enter_context(interruptible())
        material, compared = _material(chosen, baseline, notes, stack, progress)
        command = _command(
            chosen.path, baseline, batch_sizes, crops, model, only, seconds, repeats, processes, num_workers, device
        )
        turns = stack.enter_context(_kept_turns(chosen, command, progress))
        windows = choose_crops(material.dataset, crops, notes)
        if material.files is not None and baseline is not None and os.fspath(baseline) != AUTO:
            progress("baseline: reading the files")
            material.files.check(windows)
        plan = BenchSetup(
            material=material,
            batch_sizes=choose_batch_sizes(material.dataset, batch_sizes, windows, max(workers, cores), notes),
            crops=windows,
            seconds=seconds,
            repeats=repeats,
            num_threads=cores,
            num_workers=workers,
            device=str(where),
            num_samples=len(chosen),
            progress=progress,
            turns=turns,
        )
        environment, machine = _machine(chosen)
        # First, as long as nothing in this process has touched the data.
        cold = tuple(read_cold(plan, notes)) if "cold" in only else ()
        trainer = None
        if model is not None and "sweep" in only and has_images(chosen):
            trainer = Trainer(model, material.dataset, where)
        settings = StudySettings(
            seconds=seconds,
            repeats=repeats,
            batch_sizes=plan.batch_sizes,
            crops=plan.crops,
            model=model if trainer is not None else None,
            device=_named(where),
            num_threads=cores,
            num_workers=workers,
            command=command,
        )
        turns.expect(_count_turns(plan, only, counts, trains=trainer is not None))
        rows = tuple(sweep(plan, trainer)) if "sweep" in only else ()
        threads = tuple(scale_threads(plan, cores)) if "threads" in only else ()
        oversubscription = tuple(oversubscribe(plan, cores)) if "oversubscription" in only else ()
        isolation = tuple(isolate(plan, counts, cores)) if "isolation" in only else ()
    if turns.num_reused:
        notes.append(f"The study was interrupted and went on: {counted(turns.num_reused, 'turn')} had been measured.")
    _note_what_lacks(notes, where, trainer, rows, has_images(chosen))
    return Study(
        release=__version__,
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=time.perf_counter() - began,
        environment=environment,
        machine=machine,
        cores=cores,
        dataset=_facts(chosen, material.dataset),
        baseline=compared,
        settings=settings,
        sweep=rows,
        threads=threads,
        oversubscription=oversubscription,
        isolation=isolation,
        notes=tuple(notes),
        cold=cold,
    )


@contextmanager
def _kept_turns(dataset: LMDBDataset, command: str, progress: Callable[[str], None]) -> Iterator[Turns]:
    """Yield the turns of a study, which are kept if it is interrupted or fails."""
    turns = Turns(file_of(dataset, command))
    if found := turns.describe_found():
        progress(found)
    try:
        yield turns
        check()
    except BaseException:
        turns.close(is_done=False)
        if kept := turns.describe_kept():
            progress(kept)
        raise
    turns.close(is_done=True)


def _count_turns(plan: BenchSetup, only: Sequence[str], processes: Sequence[int], *, trains: bool) -> int:
    """Return the number of turns of all sections but the cold one."""
    settings, sources = settings_of(plan), len(plan.material.sources)
    in_sections = {
        "sweep": len(settings) * (1 + trains) * plan.repeats + sum(s.source == "lmdbloader" for s in settings),
        "threads": len(thread_counts(plan.num_threads)) * plan.repeats,
        "oversubscription": len(PER_CORE) * sources * plan.repeats,
        "isolation": len(processes) * len(sizes_of(plan)) * sources * plan.repeats,
    }
    return sum(number for section, number in in_sections.items() if section in only)


def _check(
    only: Sequence[str], seconds: float, repeats: int, processes: Sequence[int], workers: int, model: str | None
) -> None:
    for name in only:
        if name not in ALL_SECTIONS:
            raise OptionError(f"only={name!r}: expected some of {', '.join(ALL_SECTIONS)}")
    if not only or not processes:
        raise OptionError(f"only={list(only)}, processes={list(processes)}: expected at least one of each")
    if not 0 < seconds < 3600 or repeats < 1 or min(processes) < 1 or workers < 0:
        raise OptionError(
            f"seconds={seconds}, repeats={repeats}, processes={list(processes)}, num_workers={workers}: expected more "
            "than 0 seconds and less than an hour, at least 1 turn, at least 1 process, at least 0 workers"
        )
    if model is not None and model not in MODEL_NAMES:
        raise OptionError(f"model={model!r}: expected one of {', '.join(MODEL_NAMES)}, or None to load only")


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        found = torch.device(name)
    except RuntimeError as error:
        raise OptionError(f"device={name!r}: expected 'cpu', 'cuda' or 'cuda:1'") from error
    if found.type not in ("cpu", "cuda"):
        raise OptionError(f"device={name!r}: expected 'cpu', 'cuda' or 'cuda:1'")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise OptionError(f"device={name!r}: torch sees {torch.cuda.device_count()} CUDA devices here. Use 'cpu'.")
    return torch.device("cuda", torch.cuda.current_device()) if found == torch.device("cuda") else found


def _named(device: torch.device) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def _material(
    dataset: LMDBDataset, baseline: str | os.PathLike[str] | None, notes: list[str], stack: ExitStack,
    progress: Callable[[str], None],
) -> tuple[BenchData, BaselineFolder | None]:  # fmt: skip
    """Return the data and the facts about its files; the stack removes files that were made."""
    if baseline is None:
        if has_images(dataset):
            notes.append("No files were compared with: --baseline DIR names them, --baseline auto makes them.")
        return BenchData(dataset, None), None
    if not has_images(dataset):
        raise OptionError(f"baseline={os.fspath(baseline)!r}: {dataset.path} has no image field to compare")
    fields = list(dataset.fields)
    if os.fspath(baseline) != AUTO:
        files = find_files(baseline, fields).like(dataset)
        return BenchData(dataset, files), files.facts(os.fspath(baseline))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lmdbloader-bench-")))
    progress("baseline: writing the images as PNG files")
    files, samples = extract_files(dataset, fields, folder / "files")
    if len(samples) < len(dataset):
        notes.append(
            f"All sources read {len(samples):,} samples drawn at random, as many as were written as PNG files; the "
            f"times of epochs are those of all {len(dataset):,}."
        )
        dataset = dataset.select(samples)
    return BenchData(dataset, files), files.facts(AUTO)


def _facts(dataset: LMDBDataset, read: LMDBDataset) -> StudiedDataset:
    summary = info(dataset.path)
    return StudiedDataset(
        path=dataset.path,
        num_samples=len(dataset),
        fields=tuple(StudiedField(f.name, f.kind, f.describe()) for f in summary.fields),
        fields_read=tuple(read.fields),
        raw_nbytes=summary.sizes["raw_nbytes"],
        stored_nbytes=summary.sizes["payload_nbytes"],
        content_digest=summary.digests["content"],
    )


def _machine(dataset: LMDBDataset) -> tuple[dict[str, Any], tuple[tuple[str, ...], ...]]:
    """Return the machine as it is before anything is measured, and the same as text to show."""
    environment = describe_environment(dataset.path)
    files = dataset.reader.on_disk
    share = residency_of_all(files)
    rows: list[tuple[str, ...]] = [*describe().rows(), *environment_rows(environment)]
    if share is not None:
        held = DATA_FILE if len(files) == 1 else "the data files"
        rows.append(("page cache", f"held {share:.0%} of {held} before the first turn"))
    if (load := system.load_average()) is not None:
        rows.append(("load", f"{load:.1f} (average of the minute before)"))
    return environment, tuple(rows)


def _note_what_lacks(
    notes: list[str], device: torch.device, trainer: Trainer | None, rows: Sequence[Any], images: bool
) -> None:
    """Add a sentence for each part that could not be measured."""
    if not rows:
        return
    if device.type == "cpu":
        notes.append(
            "Pinned memory was not compared with paged memory: there is no accelerator, or it was not asked for."
        )
    else:
        notes.append("The Loader's memory is pinned, as by default if there is a GPU: it has no row for paged memory.")
    if trainer is None:
        notes.append("No model was trained: " + ("it was not asked for." if images else "the dataset has no images."))
    elif device.type == "cuda" and not any(row.training is not None and row.training.gpu for row in rows):
        notes.append(f"The GPU's use is not known: {why_unknown()}.")


def _command(
    path: str, baseline: Any, batch_sizes: Sequence[int], crops: Sequence[int | None], model: str | None,
    only: Sequence[str], seconds: float, repeats: int, processes: Sequence[int] | None, num_workers: int | None,
    device: str | None,
) -> str:  # fmt: skip
    """Return the command line that does the same."""
    words = ["lmdbloader", "bench", path]
    given: list[tuple[str, Sequence[Any]]] = [
        ("--baseline", [] if baseline is None else [os.fspath(baseline)]),
        ("--batch-sizes", [] if tuple(batch_sizes) == BATCH_SIZES else batch_sizes),
        ("--crops", [] if tuple(crops) == CROPS else ["whole" if crop is None else crop for crop in crops]),
        ("--model", [] if model == "srcnn915" else [model or "none"]),
        ("--only", [] if tuple(only) == SECTIONS else only),
        ("--seconds", [] if seconds == SECONDS else [seconds]),
        ("--repeats", [] if repeats == REPEATS else [repeats]),
        ("--processes", processes or []),
        ("--num-workers", [] if num_workers is None else [num_workers]),
        ("--device", [] if device is None else [device]),
    ]
    for name, values in given:
        words += [name, *map(str, values)] if values else []
    return shlex.join(words)
