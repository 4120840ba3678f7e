"""`lmdbloader.lab.tune`: finds the settings with which a dataset reads best on this machine, and remembers them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import chain
from statistics import median
from typing import Any

import numpy as np

from lmdbloader.base import system
from lmdbloader.base.arguments import number, optional, whole
from lmdbloader.base.cores import count_cores
from lmdbloader.base.progress import shown_steps, watched
from lmdbloader.base.stopwatch import BatchTimes
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.shared_memory import free_nbytes
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import CODEC_FILE, CODEC_JPEG
from lmdbloader.lab.arms import Arm, Feed, Material, open_arm, take_turn
from lmdbloader.lab.example_times import time_examples
from lmdbloader.lab.machine import describe
from lmdbloader.lab.profiling import rehearse
from lmdbloader.lab.stored import column, image_sizes
from lmdbloader.lab.tuning.results import StepTrial, Tuning, TuningRow
from lmdbloader.loader import Loader
from lmdbloader.loader.options import compiled_and_functions
from lmdbloader.loader.torch_loader import accelerator
from lmdbloader.loader.tuning_cache import Workers, case_of, remember_threads, remember_workers
from lmdbloader.transforms import RandomCrop, RandomResizedCrop, Transform

# Turns of each setting, and the longest that is worth it, in seconds.
_ROUNDS, _LONGEST_TURN = 5, 0.6
# Of the time, if there is a step to try afterwards; and for single examples, at most in seconds.
_TURNS_SHARE, _EXAMPLES_SHARE, _EXAMPLES_SECONDS = 0.6, 0.05, 1.0
# Enough for a 99th percentile that a single batch does not make.
_MOST_STEPS = 500
# A loader whose mean just suffices uses up what was read ahead.
_HEADROOM = 1.25
# A setting that costs less is taken if it reaches this much of the best one.
_NEAR = 0.96
# The DataLoader is recommended if it is faster by this factor: the Loader offers more and takes less memory.
_CLEARLY_BETTER = 1.05

Turns = dict[Arm, list[BatchTimes]]


def tune(
    dataset: str | os.PathLike[str] | LMDBDataset,
    batch_size: int,
    *,
    step_seconds: float | None = None,
    crop: int | None = None,
    transforms: Sequence[Transform | Callable[[Any], Any]] = (),
    seconds: float = 20.0,
) -> Tuning:
    """Find the threads of the Loader, and the workers of torch's DataLoader, with which a dataset reads best here.

    Every setting has five turns, one after the other, so other programs slow all of them down alike. Of those within
    4 % of the best, the cheapest is taken. It is remembered in the user's cache folder: `Loader(...,
    num_threads="auto")` and `lmdbloader.dataloader` use it for the same dataset, batch size and size of images on the
    same machine.

    Args:
        dataset: Its folder, or an LMDBDataset, also a view.
        batch_size: Samples in a batch.
        step_seconds: Time of a training step. Then the result says whether 99 % of the batches are ready within it,
            tried with a consumer of that speed.
        crop: Read windows of crop x crop pixels: RandomCrop, or RandomResizedCrop if single images are JPEG files or
            smaller than that.
        transforms: Further transforms, as for a Loader; functions at their end are not for the DataLoader,
            which then is not measured.
        seconds: About how long to measure, without the starts of worker processes.

    Returns:
        The settings, how each of them did, and one line of Python to paste.

    Raises:
        OptionError: A number is out of its range, there is less than one batch, or a transform does not suit images.
        CorruptError: A sample is damaged.
    """
    batch_size, crop = whole("batch_size", batch_size, 1), optional(_pixels, "crop", crop)
    for name, value in (("seconds", seconds), ("step_seconds", step_seconds)):
        if value is not None and not 0 < number(name, value) < float("inf"):
            raise OptionError(f"{name}={value}: expected seconds, more than 0")
    path = os.fspath(dataset) if isinstance(dataset, str | os.PathLike) else None
    ds = LMDBDataset(path) if path is not None else dataset
    if not isinstance(ds, LMDBDataset):
        raise OptionError(f"tune({type(ds).__name__}): expected a dataset's folder, or an LMDBDataset")
    if len(ds) < batch_size:
        raise OptionError(f"batch_size={batch_size}: {ds!r} has fewer samples than one batch")
    everything = [*([] if crop is None else [crop_of(ds, crop)]), *transforms]
    compiled, functions = compiled_and_functions(everything)
    material = Material(ds, None, everything, accelerator())
    _load(ds, batch_size, everything, crop)
    settings = _settings(material, batch_size, has_dataloader=not functions)
    left = seconds * (1.0 if step_seconds is None else _TURNS_SHARE)
    turns, note = _measure(material, settings, min(left / (_ROUNDS * len(settings)), _LONGEST_TURN))
    # Without reading ahead, each step waits for its batch.
    pause = 0.0 if step_seconds is None else step_seconds / batch_size
    rates = {s: 1 / (1 / _rate(found) + pause * (s.num_workers == 0)) for s, found in turns.items()}
    threads, workers = _pick(rates, "lmdbloader"), _pick(rates, "dataloader")
    assert threads is not None
    best = threads
    remember_threads(case_of(ds, batch_size, compiled, functions), threads.num_workers)
    if workers is not None:
        if rates[workers] >= _CLEARLY_BETTER * rates[threads]:
            best = workers
        pinned = workers.is_pinned if material.device is not None else None
        remember_workers(case_of(ds, batch_size, compiled), Workers(workers.num_workers, pinned))
    verdict = None
    if step_seconds is not None:
        with open_arm(material, best) as feed:
            verdict = try_steps(feed, step_seconds, seconds - left, _rate(turns[best]))
    return Tuning(
        dataset=ds.path,
        batch_size=batch_size,
        transforms=", ".join(map(repr, everything)) or "no transforms",
        cores=count_cores(),
        device=None if material.device is None else str(material.device),
        rows=tuple(_row(setting, found) for setting, found in turns.items()),
        threads=threads,
        workers=workers,
        best=best,
        line=line_of(material, best, path),
        verdict=verdict,
        examples=time_examples(
            ds, batch_size, transforms=compiled, seconds=min(_EXAMPLES_SECONDS, _EXAMPLES_SHARE * seconds)
        ),
        note=note,
        environment=describe(ds.path).as_json(),
    )


def _pixels(name: str, value: Any) -> int:
    return whole(name, value, 1)


def crop_of(dataset: LMDBDataset, crop: int) -> Transform:
    """Return the usual transform for windows of a size from such images."""
    images = [name for name, f in dataset.fields.items() if f.kind == "image"]
    if len(images) != 1:  # pairs are cut in step
        return RandomCrop(crop)
    is_small = int(image_sizes(dataset, images[0]).min()) < crop
    is_jpeg = bool(np.isin(column(dataset, images[0], "codec"), (CODEC_JPEG, CODEC_FILE)).any())
    return RandomResizedCrop(crop) if is_small or is_jpeg else RandomCrop(crop)


def _load(dataset: LMDBDataset, batch_size: int, transforms: Sequence[Any], crop: int | None) -> None:
    """Load the code of a Loader, so that loading is not timed.

    Raises:
        OptionError: The transforms do not suit the images.
    """
    try:
        loader = Loader(dataset, batch_size, order="random", transforms=transforms, num_threads=1, prefetch=0)
    except OptionError as error:
        raise OptionError(f"{error} tune(..., crop=N) adds a crop." if crop is None else str(error)) from error
    next(iter(loader))
    loader.close()


def counts(most: int) -> list[int]:
    """Return the numbers of threads or workers to try: all small ones, and ever fewer of the large.

    >>> counts(6), counts(40)
    ([1, 2, 3, 4, 6], [1, 2, 3, 4, 6, 8, 12, 16, 32, 40])
    """
    return sorted({n for n in (1, 2, 3, 4, 6, 8, 12, *(2**power for power in range(4, 20))) if n < most} | {most})


def _settings(material: Material, batch_size: int, *, has_dataloader: bool) -> list[Arm]:
    """Return the settings to measure; of each source those that cost less come first."""
    cores = count_cores()
    found = [Arm("lmdbloader", batch_size, n) for n in counts(cores)]
    if has_dataloader:
        has_room = not system.QUEUES_NEED_FILES or free_nbytes()  # for the queues of workers
        pinning = (False, True) if material.device is not None else (False,)
        workers = [0, *counts(cores)] if has_room else [0]
        found += [Arm("dataloader", batch_size, n, is_pinned=pinned) for n in workers for pinned in pinning]
    return found


def _measure(material: Material, settings: Sequence[Arm], seconds: float) -> tuple[Turns, str]:
    """Return the turns of each setting, and why the DataLoader was left out, if it was."""
    turns: Turns = {}
    note = ""
    numbered = [(number, setting) for number in range(_ROUNDS) for setting in settings]
    with shown_steps():
        for number, setting in watched("measuring each setting", numbered, len(numbered)):
            if note and setting.source == "dataloader":
                continue
            try:
                with open_arm(material, setting, seed=number) as feed:
                    turns.setdefault(setting, []).append(take_turn(feed, seconds))
            except OptionError as error:
                # Images that a Loader makes alike, and a DataLoader cannot put into one batch.
                if setting.source == "lmdbloader":
                    raise
                note = f"The DataLoader was not measured: {str(error).splitlines()[-1]}"
                turns = {measured: found for measured, found in turns.items() if measured.source == "lmdbloader"}
    return turns, note


def _rate(turns: Sequence[BatchTimes]) -> float:
    return median(turn.samples_per_s for turn in turns)


def _pick(rates: dict[Arm, float], source: str) -> Arm | None:
    """Return the cheapest setting of a source that is near the best, None if there is none."""
    of_source = [setting for setting in rates if setting.source == source]
    most = max((rates[setting] for setting in of_source), default=0.0)
    return next((setting for setting in of_source if rates[setting] >= _NEAR * most), None)


def _row(setting: Arm, turns: Sequence[BatchTimes]) -> TuningRow:
    p50, p99 = np.percentile(list(chain.from_iterable(turn.waits for turn in turns)), [50, 99])
    return TuningRow(setting, _rate(turns), float(p50), float(p99))


def try_steps(feed: Feed, step_seconds: float, seconds: float, samples_per_s: float) -> StepTrial:
    """Take batches as a training loop does whose steps take some time, in which the processor is free.

    Args:
        feed: Gives batches.
        step_seconds: Of each step.
        seconds: To use, for at most 500 steps; one is measured in any case, after those that are not.
        samples_per_s: Speed of the loader without steps.
    """
    needed = feed.batch_size / step_seconds
    steps = int(min(max(seconds / max(step_seconds, feed.batch_size / samples_per_s), 1), _MOST_STEPS))
    # If reading is slower than the step, batches that were read ahead must not hide it.
    skip = min(feed.ahead if samples_per_s < _HEADROOM * needed else 1, steps // 3)
    found = rehearse(feed.batches, step_seconds, steps=steps, warmup=skip)
    return StepTrial(step_seconds, found.phases["data"].p99, found.num_steps, samples_per_s, needed)


def line_of(material: Material, setting: Arm, path: str | None = None) -> str:
    """Return a line that makes a loader with a setting; it names the dataset by `dataset` if its path is not given."""
    source = "dataset" if path is None else f"lmdbloader.LMDBDataset({path!r})"
    described = ""
    if material.transforms:
        texts = ", ".join(f"lmdbloader.transforms.{t!r}" for t in material.transforms)
        described = f"[{texts}]" if all(isinstance(t, Transform) for t in material.transforms) else "transforms"
    if setting.source == "lmdbloader":
        name, more = "Loader", f"{f', transforms={described}' if described else ''}, num_threads={setting.num_workers}"
    else:
        source = f"{source}.transformed({described})" if described else source
        pinning = f", pin_memory={setting.is_pinned}" if material.device is not None else ""
        name, more = "dataloader", f", num_workers={setting.num_workers}{pinning}"
    imports = "lmdbloader, torch" if "torch." in described else "lmdbloader"
    made = f"lmdbloader.{name}({source}, batch_size={setting.batch_size}, shuffle=True{more})"
    return f"import {imports}; loader = {made}"
