"""`lmdbloader.lab.tune`: finds the settings with which a dataset reads best on this machine, and remembers them."""

from __future__ import annotations

import functools
import numbers
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from lmdbloader.base import system
from lmdbloader.base.cores import count_cores
from lmdbloader.base.text import counted
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.shared_memory import free_nbytes
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import CODEC_FILE, CODEC_JPEG
from lmdbloader.lab.example_times import ExampleTimes, time_examples
from lmdbloader.lab.machine import describe_environment
from lmdbloader.lab.stored import column, image_sizes
from lmdbloader.lab.tuning.measuring import Measurer, StepTrial, try_steps
from lmdbloader.lab.tuning.race import Race, ReadKind, ReadSetting, counts
from lmdbloader.lab.tuning.results import Tuning, TuningRow, advise
from lmdbloader.loader import Loader
from lmdbloader.loader.options import compiled_and_functions
from lmdbloader.loader.torch_loader import accelerator
from lmdbloader.loader.tuning_cache import Workers, case_of, remember_threads, remember_workers
from lmdbloader.loader.views import view_of
from lmdbloader.transforms import RandomCrop, RandomResizedCrop, Transform

# Of the time, if there is a step to try afterwards.
_RACE_SHARE = 0.6
# Of the time, and in seconds: for single examples.
_SHARE_ALONE, _MOST_ALONE = 0.05, 1.0
# A loader whose mean just suffices is late for every second batch.
_HEADROOM = 1.25
# The DataLoader is recommended if it is faster by this factor: the Loader offers more and takes less memory.
_CLEARLY_BETTER = 1.05


def tune(
    dataset: str | os.PathLike[str] | Dataset[Any],
    batch_size: int,
    *,
    step_seconds: float | None = None,
    crop: int | None = None,
    transforms: Sequence[Transform | Callable[[Any], Any]] = (),
    seconds: float = 40.0,
    progress: Callable[[float], object] | None = None,
) -> Tuning:
    """Find the threads of the Loader, and the workers of torch's DataLoader, with which a dataset reads best here.

    All settings take short turns, again and again, so other programs slow all of them down alike. Settings that are
    clearly slower than the best are dropped, and tuning ends when the cheapest remaining one is clearly near the best.
    The first turns may read a dataset that is not in memory yet.

    A result that is clearly not chance is remembered in the user's cache folder: `Loader(..., num_threads="auto")` and
    `lmdbloader.dataloader` use it for the same dataset, batch size and size of images on the same machine. If no
    setting is clearly the best when the time is over, none is remembered.

    Args:
        dataset: Its folder, or a dataset: an LMDBDataset, a view of one, or any other with a length, for which only the
            DataLoader is measured.
        batch_size: Samples in a batch.
        step_seconds: Time of a training step. Then the result says whether 99 % of the batches are ready within it,
            tried with a consumer of that speed, and the best is the cheapest setting that keeps up; the fastest
            setting is remembered all the same.
        crop: Read windows of crop x crop pixels: RandomCrop, or RandomResizedCrop if single images are JPEG files or
            smaller than that.
        transforms: Further transforms, as for a Loader; functions at their end are not for the DataLoader,
            which then is not measured.
        seconds: The longest time to measure, without the very first batch, which loads code. A batch that is being
            read is finished, and so is a step, or two if the cheapest setting does not keep up. If there were few
            steps, the result says so.
        progress: Called with the seconds that passed since the last call.

    Returns:
        The settings, how each of them did, and one line of Python to paste.

    Raises:
        OptionError: A number is out of its range, there is less than one batch, or a transform does not suit images.
        CorruptError: A sample is damaged.
    """
    _check(batch_size, step_seconds, crop, seconds)
    if isinstance(dataset, DataLoader):
        raise OptionError("tune: expected a dataset, and this is a DataLoader. Write tune(loader.dataset, batch_size).")
    ds = LMDBDataset(os.fspath(dataset)) if isinstance(dataset, str | os.PathLike) else dataset
    length = len(ds)  # type: ignore[arg-type]
    if length < batch_size:
        raise OptionError(
            f"tune({ds!r}, {batch_size}): it has {counted(length, 'sample')}, fewer than one batch. "
            "Use smaller batches."
        )
    everything = [*([] if crop is None else [crop_of(ds, crop)]), *transforms]
    compiled, functions = compiled_and_functions(everything)
    if compiled and not isinstance(ds, LMDBDataset):
        raise OptionError(f"tune({type(ds).__name__}, transforms={compiled}): only an LMDBDataset has transforms")
    can_load = _can_load(ds, batch_size, everything, crop)
    mixed = _mixed_channels(ds) if can_load and isinstance(ds, LMDBDataset) and not compiled else ""
    settings = _settings(ds, can_load=can_load, has_dataloader=not functions and not mixed)
    began = time.perf_counter()  # everything that is loaded at first use is loaded by now
    measurer = Measurer(ds, batch_size, everything, accelerator())
    race = Race(settings)
    share = 1.0 if step_seconds is None else _RACE_SHARE
    race.run(measurer, seconds=seconds * share, clock=time.perf_counter, progress=progress)
    picks = {kind: pick for kind in ("threads", "workers") if (pick := race.pick(kind)) is not None}
    best = _better(race, picks)
    verdict = None
    if step_seconds is not None:
        # The fastest setting is remembered all the same: another loop's step may be shorter.
        fitting = race.seen_as(functools.partial(_worth, needed=batch_size / step_seconds))
        cheapest = {kind: pick for kind in picks if (pick := fitting.pick(kind)) is not None}
        left = max(seconds - (time.perf_counter() - began), 0.0)
        best, verdict = _try(race, _better(fitting, cheapest), measurer, step_seconds, left, progress)
    took = time.perf_counter() - began
    examples = time_examples(ds, batch_size, transforms=compiled, seconds=min(_MOST_ALONE, _SHARE_ALONE * seconds))
    found = _tuning(ds, measurer, race, picks, best, verdict, examples, took)
    return replace(found, advice=(mixed, *found.advice)) if mixed else found


def _check(batch_size: int, step_seconds: float | None, crop: int | None, seconds: float) -> None:
    for name, number in (("batch_size", batch_size), ("crop", crop)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, numbers.Integral)):
            raise OptionError(f"tune: {name}={number!r}: expected a whole number")
    if batch_size < 1 or (crop is not None and crop < 1):
        raise OptionError(f"tune: batch_size={batch_size}, crop={crop}: expected at least 1")
    for name, value in (("step_seconds", step_seconds), ("seconds", seconds)):
        if value is not None and not 0 < value < float("inf"):
            raise OptionError(f"tune: {name}={value}: expected seconds, more than 0")


def crop_of(dataset: Any, crop: int) -> Transform:
    """Return the usual transform for windows of a size from such images.

    Raises:
        OptionError: It is not an LMDBDataset.
    """
    if not isinstance(dataset, LMDBDataset):
        raise OptionError(f"{type(dataset).__name__}, crop={crop}: only an LMDBDataset is cropped. Leave crop out.")
    images = [name for name, f in dataset.fields.items() if f.kind == "image"]
    if len(images) != 1:  # pairs are cut in step
        return RandomCrop(crop)
    is_small = int(image_sizes(dataset, images[0]).min()) < crop
    is_jpeg = bool(np.isin(column(dataset, images[0], "codec"), (CODEC_JPEG, CODEC_FILE)).any())
    return RandomResizedCrop(crop) if is_small or is_jpeg else RandomCrop(crop)


def _can_load(dataset: Any, batch_size: int, transforms: Sequence[Any], crop: int | None) -> bool:
    """Return whether a Loader reads the dataset; this loads the code for it, so that loading is not timed.

    Raises:
        OptionError: The transforms do not suit the images.
    """
    if not isinstance(dataset, LMDBDataset):
        return False
    try:
        view_of(dataset)
    except OptionError:
        return False
    try:
        loader = Loader(dataset, batch_size, order="random", transforms=transforms, num_threads=1, prefetch=0)
    except OptionError as error:
        raise OptionError(f"{error} tune(..., crop=N) adds a crop." if crop is None else str(error)) from error
    next(iter(loader))
    loader.close()
    return True


def _mixed_channels(dataset: LMDBDataset) -> str:
    """Return why a DataLoader cannot read batches: images of one field that differ in channels only; "" if it can."""
    if dataset.all_transforms:
        return ""
    for name in (name for name, f in dataset.fields.items() if f.kind == "image"):
        channels = column(dataset, name, "channels")
        is_grey = channels == 1
        if is_grey.any() and not is_grey.all():
            grey, colour = int(np.argmax(is_grey)), int(np.argmin(is_grey))
            return (
                f"The DataLoader was not measured: of field {name!r}, {int(is_grey.sum()):,} images are grey, such as "
                f"sample {grey}, and {int((~is_grey).sum()):,} are in colour, such as sample {colour}. Its batches "
                "cannot hold both. A Loader gives grey images three equal channels, and so does a DataLoader with "
                "transforms: tune(..., crop=N)."
            )
    return ""


def _settings(dataset: Any, *, can_load: bool, has_dataloader: bool) -> list[ReadSetting]:
    """Return the settings to measure."""
    cores = count_cores()
    found = [ReadSetting("threads", n) for n in counts(cores)] if can_load else []
    if has_dataloader:
        has_room = not system.QUEUES_NEED_FILES or free_nbytes()  # for the queues of workers
        workers = [0, *counts(cores)] if has_room else [0]
        pinning = (False, True) if accelerator() is not None else (False,)
        found += [ReadSetting("workers", n, pinned) for n in workers for pinned in pinning]
    if not found:
        raise OptionError(
            f"tune({type(dataset).__name__}): a Loader cannot read it, and a DataLoader does not call functions with "
            "whole batches. Leave the functions out."
        )
    return found


def _worth(setting: ReadSetting, samples_per_s: float, *, needed: float) -> float:
    """Return the value of a setting for a training loop whose steps take `needed` samples a second.

    It is at most the speed of the step. With reading ahead, a loader must be a little faster than the step; without,
    the step waits for each batch.
    """
    if setting == ReadSetting("workers", 0, setting.pinned):
        return 1 / (1 / needed + 1 / samples_per_s)
    return min(samples_per_s / _HEADROOM, needed)


def _better(race: Race, picks: dict[str, ReadSetting]) -> ReadSetting:
    """Return the better of the kinds' best."""
    if len(picks) == 1:
        return next(iter(picks.values()))
    loader, dataloader = (race.worth(s, race.samples_per_s(s)) for s in (picks["threads"], picks["workers"]))
    return picks["workers" if dataloader >= _CLEARLY_BETTER * loader else "threads"]


def _try(
    race: Race,
    best: ReadSetting,
    measurer: Measurer,
    step_seconds: float,
    seconds: float,
    progress: Callable[[float], object] | None,
) -> tuple[ReadSetting, StepTrial]:
    """Try a step time with the best setting and, if that fails, with the fastest of its kind; return the better."""
    fastest = max((s for s in race.turns if s.kind == best.kind and race.turns[s]), key=race.samples_per_s)
    tried: list[tuple[ReadSetting, StepTrial]] = []
    for setting in dict.fromkeys((best, fastest)):
        before = time.perf_counter()
        with measurer.open(setting, len(tried)) as opened:
            verdict = try_steps(
                opened,
                step_seconds,
                seconds / (1 if best == fastest else 2),
                samples_per_s=race.samples_per_s(setting),
                needed_samples_per_s=measurer.batch_size / step_seconds,
            )
        tried.append((setting, verdict))
        if progress is not None:
            progress(time.perf_counter() - before)
        if verdict.passed:
            return setting, verdict
    return min(tried, key=lambda one: -one[1].share_ready)


def _tuning(
    dataset: Any,
    measurer: Measurer,
    race: Race,
    picks: dict[str, ReadSetting],
    best: ReadSetting,
    verdict: StepTrial | None,
    examples: ExampleTimes,
    seconds: float,
) -> Tuning:
    """Remember the best settings, and return the result."""
    compiled, functions = compiled_and_functions(measurer.transforms)
    stored: list[ReadKind] = []
    num_threads = workers = None
    if "threads" in picks:
        num_threads = picks["threads"].count
        case = case_of(dataset, measurer.batch_size, compiled, functions)
        rate = race.samples_per_s(picks["threads"])
        if race.is_clear("threads") and remember_threads(case, num_threads, rate):
            stored.append("threads")
    if "workers" in picks:
        pick = picks["workers"]
        workers = Workers(pick.count, pick.pinned if measurer.device is not None else None)
        case = case_of(dataset, measurer.batch_size, compiled)
        rate = race.samples_per_s(pick)
        if race.is_clear("workers") and remember_workers(case, workers, rate):
            stored.append("workers")
    rows = tuple(_row(race, setting) for setting in sorted(race.turns) if race.turns[setting])
    advice = [*race.doubts(), *advise(rows, picks, measurer.batch_size, has_accelerator=measurer.device is not None)]
    return Tuning(
        dataset=dataset.path if isinstance(dataset, LMDBDataset) else type(dataset).__name__,
        batch_size=measurer.batch_size,
        transforms=", ".join(map(repr, measurer.transforms)) or "no transforms",
        cores=count_cores(),
        device=None if measurer.device is None else str(measurer.device),
        rows=rows,
        num_threads=num_threads,
        workers=workers,
        best=best,
        line=line_of(dataset, measurer.batch_size, measurer.transforms, best, has_pinned=measurer.device is not None),
        verdict=verdict,
        examples=examples,
        advice=tuple(advice),
        seconds=seconds,
        stored=tuple(stored),
        environment=describe_environment(dataset.path if isinstance(dataset, LMDBDataset) else None),
    )


def _row(race: Race, setting: ReadSetting) -> TuningRow:
    turns = race.turns[setting].values()
    latencies = list(chain.from_iterable(turn.waits for turn in turns))
    p50, p99 = np.percentile(latencies, [50, 99])
    return TuningRow(setting, race.samples_per_s(setting), float(p50), float(p99), len(latencies), len(turns))


def line_of(
    dataset: Any, batch_size: int, transforms: Sequence[Any], setting: ReadSetting, *, has_pinned: bool = False
) -> str:
    """Return a line that makes a loader with a setting.

    It names a dataset or transforms by variables, `dataset` and `transforms`, where text cannot make them: a view, a
    subclass, functions.

    Args:
        dataset: The dataset.
        batch_size: Samples in a batch.
        transforms: Of the Loader.
        setting: Threads or workers.
        has_pinned: Whether it says if the DataLoader pins memory, too.
    """
    imports = ["lmdbloader"]
    source = f"lmdbloader.LMDBDataset({dataset.path!r})" if _is_plain(dataset) else "dataset"
    described = ""
    if transforms:
        if all(isinstance(t, Transform) for t in transforms):
            described = f"[{', '.join(f'lmdbloader.transforms.{t!r}' for t in transforms)}]"
        else:
            described = "transforms"
    if "torch." in described:
        imports.append("torch")
    if setting.kind == "threads":
        more = f", transforms={described}" if described else ""
        made = f"lmdbloader.Loader({source}, batch_size={batch_size}, shuffle=True{more}, num_threads={setting.count})"
    else:
        read = f"{source}.transformed({described})" if described else source
        more = f", pin_memory={setting.pinned}" if has_pinned else ""
        made = (
            f"lmdbloader.dataloader({read}, batch_size={batch_size}, shuffle=True, num_workers={setting.count}{more})"
        )
    return f"import {', '.join(imports)}; loader = {made}"


def _is_plain(dataset: Any) -> bool:
    """Return whether a dataset is all that its path is."""
    return (
        type(dataset) is LMDBDataset
        and dataset._rows is None
        and not dataset.has_own_transform
        and not dataset.all_transforms
        and dataset.reader.io == "mmap"
        and list(dataset.fields) == list(dataset.reader.fields)
    )
