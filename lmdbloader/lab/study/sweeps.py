"""The experiments in one process: the sweep of all settings, and the scaling by threads and workers."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from lmdbloader.base.stage_times import STAGES
from lmdbloader.base.stopwatch import BatchTimes
from lmdbloader.lab.study.endless_loader import LoaderSetting, latency_of, median_speed, open_endless, take_turn
from lmdbloader.lab.study.results import from_plain
from lmdbloader.lab.study.rows import LoaderKind, OversubscriptionRow, SweepRow, ThreadsRow
from lmdbloader.lab.study.setup import BenchSetup
from lmdbloader.lab.study.training import Trainer, TrainingTurn, read_training, take_training_turn, training_of

T = TypeVar("T")
_BATCH_SIZE = 32
PER_CORE = (1, 2, 3, 4)


def in_turns(
    plan: BenchSetup,
    section: str,
    settings: Sequence[LoaderSetting],
    measure: Callable[[LoaderSetting, int], T],
    read: Callable[[Any], T],
) -> list[list[T]]:
    """Return each setting's measurements: one turn of every setting, then the next turn of every setting.

    Args:
        plan: The settings of all experiments.
        section: The name of the experiment, for the turns that are kept.
        settings: To measure.
        measure: Measures one turn of a setting; gets the number of the turn.
        read: Makes a turn of what is kept of it.
    """
    found: list[list[T]] = [[] for _ in settings]
    for number in range(plan.repeats):
        for turns, setting in zip(found, settings, strict=True):
            name = f"{section}: {setting}, turn {number}"
            turns.append(plan.turns.take(name, functools.partial(measure, setting, number), read))
    return found


def read_times(value: Any) -> BatchTimes:
    """Return a turn of loading from what is kept of it."""
    return from_plain(BatchTimes, value, "turn")


def sweep(plan: BenchSetup, trainer: Trainer | None) -> list[SweepRow]:
    """Return a row for every setting: all of them take turns, also those of other sizes.

    Args:
        plan: The settings.
        trainer: Trains after loading alone was measured; None: no training.
    """
    settings = settings_of(plan)
    warm: set[LoaderSetting] = set()  # in this process: the first turns may have been kept

    def load(setting: LoaderSetting, number: int) -> BatchTimes:
        _report(plan, "loads", number, setting)
        with open_endless(plan.material, _in_host_memory(setting)) as loader:
            return take_turn(loader, plan.seconds)

    def train(setting: LoaderSetting, number: int) -> TrainingTurn:
        assert trainer is not None
        _report(plan, "trains", number, setting)
        with open_endless(plan.material, setting) as loader:
            is_first = setting not in warm
            warm.add(setting)
            return take_training_turn(loader, trainer, plan.seconds, warm_up=is_first)

    loading = in_turns(plan, "loads", settings, load, read_times)
    training: list[list[TrainingTurn]] = [[] for _ in settings]
    if trainer is not None:
        training = in_turns(plan, "trains", settings, train, read_training)
    return [_row(plan, *found) for found in zip(settings, loading, training, strict=True)]


def settings_of(plan: BenchSetup) -> list[LoaderSetting]:
    """Return all settings of the sweep, by crop, batch size, source and memory."""
    has_device = plan.device != "cpu"
    found = []
    for crop, size, source in itertools.product(plan.crops, plan.batch_sizes, plan.material.sources):
        # The Loader's memory is page-locked wherever there is a device.
        memories = (False,) if not has_device else (True,) if source == "lmdbloader" else (True, False)
        count = plan.num_threads if source == "lmdbloader" else plan.num_workers
        found += [LoaderSetting(source, size, crop, count, is_pinned, plan.device) for is_pinned in memories]
    return found


def _in_host_memory(setting: LoaderSetting) -> LoaderSetting:
    """Return a setting whose batches come as they are for everyone: pinned or paged, and not copied to a device."""
    return replace(setting, device=None)


def _report(plan: BenchSetup, activity: str, number: int, setting: LoaderSetting) -> None:
    """Report progress, once in a turn for each size."""
    if setting.source == plan.material.sources[0]:
        window = "whole images" if setting.crop is None else f"crop {setting.crop}"
        plan.tell(f"sweep: {activity}, turn {number + 1}/{plan.repeats}, {window}, batches of {setting.batch_size}")


def _row(
    plan: BenchSetup, setting: LoaderSetting, turns: Sequence[BatchTimes], trained: Sequence[TrainingTurn]
) -> SweepRow:
    speed = median_speed(turns)
    return SweepRow(
        source=setting.source,
        batch_size=setting.batch_size,
        crop=setting.crop,
        is_pinned=setting.is_pinned,
        samples_per_s=speed,
        turns=tuple(turn.samples_per_s for turn in turns),
        epoch_seconds=plan.num_samples / speed,
        latency=latency_of([wait for turn in turns for wait in turn.waits]),
        cpu_seconds_per_sample=sum(t.cpu_seconds for t in turns) / sum(t.num_samples for t in turns),
        stages=_stages(plan, setting),
        training=training_of(trained, plan.num_samples) if trained else None,
    )


def _stages(plan: BenchSetup, setting: LoaderSetting) -> dict[str, float] | None:
    """Return seconds of thread time for each sample by stage, from a turn of its own: watching costs a little."""
    if setting.source != "lmdbloader":
        return None

    def measure() -> dict[str, float]:
        with open_endless(plan.material, _in_host_memory(setting)) as loader, loader.timed_stages() as found:
            take_turn(loader, plan.seconds / 2)
        times = found[0]
        return {name: getattr(times, name) / max(times.num_samples, 1) for name in STAGES}

    return plan.turns.take(f"stages: {setting}", measure, lambda value: {name: float(value[name]) for name in STAGES})


def thread_counts(cores: int) -> list[int]:
    """Return the numbers of threads to measure.

    >>> thread_counts(6)
    [1, 2, 4, 6]
    """
    return sorted({*(2**k for k in range(cores.bit_length())), cores})


def scale_threads(plan: BenchSetup, cores: int) -> Iterator[ThreadsRow]:
    """Yield the speed of the Loader with one thread, two, four and so on, and one for each core."""
    counts = thread_counts(cores)
    plan.tell(f"threads: {', '.join(map(str, counts))}")
    size = middle_size(plan)
    for count, turns in zip(counts, _speeds(plan, "threads", [("lmdbloader", n) for n in counts]), strict=True):
        yield ThreadsRow(count, size, statistics.median(turns), turns)


def oversubscribe(plan: BenchSetup, cores: int) -> Iterator[OversubscriptionRow]:
    """Yield the speed of every source with one to four threads or worker processes for each core."""
    size = middle_size(plan)
    for source in plan.material.sources:
        plan.tell(f"oversubscription: {source}, {', '.join(str(n * cores) for n in PER_CORE)} on {cores} cores")
        found = _speeds(plan, "oversubscription", [(source, n * cores) for n in PER_CORE])
        speeds = [statistics.median(turns) for turns in found]
        for n, speed, turns in zip(PER_CORE, speeds, found, strict=True):
            yield OversubscriptionRow(source, n * cores, float(n), size, speed, speed / speeds[0], turns)


def middle_size(plan: BenchSetup) -> int:
    """Return the batch size of the sections that do not go through all: the one that is nearest to 32."""
    return min(plan.batch_sizes, key=lambda size: abs(size - _BATCH_SIZE))


def _speeds(plan: BenchSetup, section: str, ways: Sequence[tuple[LoaderKind, int]]) -> list[tuple[float, ...]]:
    """Return the samples a second of each turn, for each way."""

    def measure(setting: LoaderSetting, number: int) -> BatchTimes:
        with open_endless(plan.material, setting) as loader:
            return take_turn(loader, plan.seconds)

    settings = [LoaderSetting(source, middle_size(plan), plan.crops[-1], count) for source, count in ways]
    found = in_turns(plan, section, settings, measure, read_times)
    return [tuple(t.samples_per_s for t in turns) for turns in found]
