"""`lmdbloader.lab.tune`: finds the settings with which a dataset reads best on this machine, and remembers them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from statistics import median
from typing import Any

import numpy as np

from lmdbloader.base import system
from lmdbloader.base.arguments import number, optional, whole
from lmdbloader.base.cores import count_cores
from lmdbloader.base.option_names import option
from lmdbloader.base.progress import shown_steps, watched
from lmdbloader.base.stopwatch import BatchTimes
from lmdbloader.base.text import plain
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.shared_memory import free_nbytes
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import CODEC_FILE, CODEC_JPEG
from lmdbloader.lab.arms import Arm, Feed, Material, open_arm, take_turn
from lmdbloader.lab.example_times import ExampleTimes, time_examples
from lmdbloader.lab.formatting import align
from lmdbloader.lab.machine import describe
from lmdbloader.lab.profiling import rehearse
from lmdbloader.lab.profiling.bottleneck import other_codec
from lmdbloader.lab.profiling.loader_facts import facts_of
from lmdbloader.lab.stored import column, image_sizes
from lmdbloader.loader import Loader
from lmdbloader.loader.options import compiled_and_functions
from lmdbloader.loader.torch_loader import accelerator
from lmdbloader.loader.tuning_cache import Workers, case_of, remember_threads, remember_workers
from lmdbloader.transforms import RandomCrop, RandomResizedCrop, Transform

# Of the step: handing over a batch that is ready takes some microseconds, too.
_ALLOWED_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class StepTrial:
    """The waits of a consumer whose steps take `step_seconds`, and whether the loader keeps up.

    Attributes:
        step_seconds: Of its step.
        p99_wait_seconds: 99th percentile of its waiting for a batch.
        num_steps: Steps that were measured.
        samples_per_s: Speed of the loader without steps.
        needed_samples_per_s: Speed of the steps: batch size over time.
    """

    step_seconds: float
    p99_wait_seconds: float
    num_steps: int
    samples_per_s: float
    needed_samples_per_s: float

    @property
    def passed(self) -> bool:
        """Whether 99 % of the batches were ready within 5 % of the step, and not only because some were read ahead."""
        is_ready = self.p99_wait_seconds <= _ALLOWED_SHARE * self.step_seconds
        return is_ready and self.samples_per_s >= self.needed_samples_per_s

    def __str__(self) -> str:
        few = "" if self.num_steps >= 100 else " (few, for so long a step)"
        margin = self.samples_per_s / self.needed_samples_per_s
        return (
            f"{'PASS' if self.passed else 'FAIL'}: with steps of {1e3 * self.step_seconds:.3g} ms, 99 % of "
            f"{self.num_steps} batches{few} were ready within {1e3 * self.p99_wait_seconds:.3g} ms; a wait of 5 % of "
            f"the step is allowed. The steps take {self.needed_samples_per_s:,.0f} samples/s; "
            f"{self.samples_per_s:,.0f} can be read: {margin:.2f} x that."
        )


@dataclass(frozen=True, slots=True)
class TuningRow:
    """The measurements of one setting.

    Attributes:
        setting: The setting.
        samples_per_s: Samples a second, the median of its turns.
        p50_seconds, p99_seconds: Median and 99th percentile of the time from asking for a batch to having it, when
            batches are taken as fast as they come.
    """

    setting: Arm
    samples_per_s: float
    p50_seconds: float
    p99_seconds: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of `lmdbloader.lab.tune`; `print` it.

    Attributes:
        dataset: The dataset, as text to show.
        batch_size: Samples in a batch.
        transforms: The transforms, as text to show.
        cores: That this process may use.
        device: Where batches were copied to; None without an accelerator.
        rows: All settings that were measured, by source and cost.
        threads: Best for a Loader of this dataset, batch size and size of images.
        workers: Best for torch's DataLoader; None if none was measured.
        best: The better of both.
        line: One line of Python that makes the best loader.
        verdict: Whether the best one feeds a step of the given time; None without one.
        examples: The times of single examples, the longest of which holds up its batch.
        note: Why the DataLoader was not measured; empty if it was.
        advice: The line that stores the images so that they are read faster; empty if none is known to help.
        environment: All that reproduces it: `machine.describe(path).as_json()`.
    """

    dataset: str
    batch_size: int
    transforms: str
    cores: int
    device: str | None
    rows: tuple[TuningRow, ...]
    threads: Arm
    workers: Arm | None
    best: Arm
    line: str
    verdict: StepTrial | None
    examples: ExampleTimes
    note: str = ""
    advice: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        verdict = None if self.verdict is None else {**asdict(self.verdict), "passed": self.verdict.passed}
        return {**asdict(self), "verdict": verdict}

    def __str__(self) -> str:
        about = f"{plain(self.dataset)}: batches of {self.batch_size}, {self.transforms}, {self.cores} cores"
        rows = [["", "samples/s", "p50 ms", "p99 ms", ""]]
        for row in self.rows:
            is_pick = row.setting in (self.threads, self.workers)
            mark = "<== best" if row.setting == self.best else "<-- of its kind" if is_pick else ""
            times = [f"{1e3 * value:.2f}" for value in (row.p50_seconds, row.p99_seconds)]
            rows.append([str(row.setting), f"{row.samples_per_s:,.0f}", *times, mark])
        users = ['num_threads="auto"', *["lmdbloader.dataloader"] * bool(self.workers)]
        parts = [
            f"{about}, {self.device or 'no accelerator'}",
            "\n".join(align(rows, (0, 4))),
            str(self.verdict or ""),
            str(self.examples),
            self.note,
            self.advice,
            f"Paste this:\n\n    {self.line}",
            f"Remembered for {' and '.join(users)}, with this dataset, batch size and size of images here.",
        ]
        return "\n\n".join(part for part in parts if part)


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
        advice="" if verdict is not None and verdict.passed else _advise(material, threads),
        environment=describe(ds.path).as_json(),
    )


def _advise(material: Material, setting: Arm) -> str:
    with open_arm(material, setting) as feed:
        feed.loader.time_stages()
        take_turn(feed, _LONGEST_TURN)
        return other_codec(feed.loader.stage_times(), facts_of(feed.loader))


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
        raise OptionError(f"{error} {option('crop', 96)} adds a crop." if crop is None else str(error)) from error
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
        texts = re.sub(r"(?<![\w.])(?=[A-Z]\w+\()", "lmdbloader.transforms.", ", ".join(map(repr, material.transforms)))
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
