"""The sweep: every batch size and crop, by every source, pinned and paged, in turns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lmdbloader.base.stage_times import STAGES
from lmdbloader.lab.study.feeds import Material, Setting, open_feed
from lmdbloader.lab.study.results import SweepRow
from lmdbloader.lab.study.training import Trainer, TrainingTurn, take_training_turn, training_of
from lmdbloader.lab.study.turns import Turn, latency_of, median_speed, take_turn


@dataclass(frozen=True, slots=True)
class Plan:
    """What all sections need to know.

    Attributes:
        material: What is read.
        batch_sizes: Samples in a batch.
        crops: Sides of windows; None: whole images.
        seconds: Of a turn.
        repeats: Turns of each setting.
        num_threads: Of the Loader.
        num_workers: Of torch's DataLoader.
        device: "cpu", "cuda".
        num_samples: Of the whole dataset, for the time of an epoch.
        progress: Gets a line when something begins.
    """

    material: Material
    batch_sizes: tuple[int, ...]
    crops: tuple[int | None, ...]
    seconds: float
    repeats: int
    num_threads: int
    num_workers: int
    device: str
    num_samples: int
    progress: Callable[[str], None]


def sweep(plan: Plan, trainer: Trainer | None) -> list[SweepRow]:
    """Return a row for every setting: all of them take turns, also those of other sizes.

    Args:
        plan: What to measure.
        trainer: What is trained after loading alone was measured; None: nothing.
    """
    settings = settings_of(plan)
    loading: list[list[Turn]] = [[] for _ in settings]
    training: list[list[TrainingTurn]] = [[] for _ in settings]
    for number in range(plan.repeats):
        for turns, setting in zip(loading, settings, strict=True):
            _tell(plan, "loads", number, setting)
            with open_feed(plan.material, _in_host_memory(setting)) as feed:
                turns.append(take_turn(feed, plan.seconds))
    if trainer is not None:
        for number in range(plan.repeats):
            for trained, setting in zip(training, settings, strict=True):
                _tell(plan, "trains", number, setting)
                with open_feed(plan.material, setting) as feed:
                    trained.append(take_training_turn(feed, trainer, plan.seconds, warm_up=number == 0))
    return [_row(plan, *found) for found in zip(settings, loading, training, strict=True)]


def settings_of(plan: Plan) -> list[Setting]:
    """Return all settings of the sweep, by crop, batch size, source and memory."""
    has_device = plan.device != "cpu"
    found = []
    for crop, size, source in itertools.product(plan.crops, plan.batch_sizes, plan.material.sources):
        # The Loader's memory is page-locked wherever there is a device.
        memories = (False,) if not has_device else (True,) if source == "lmdbloader" else (True, False)
        count = plan.num_threads if source == "lmdbloader" else plan.num_workers
        found += [Setting(source, size, crop, count, is_pinned, plan.device) for is_pinned in memories]
    return found


def _in_host_memory(setting: Setting) -> Setting:
    """Return a setting whose batches come as they are for everyone: pinned or paged, and not copied to a device."""
    return replace(setting, device=None)


def _tell(plan: Plan, what: str, number: int, setting: Setting) -> None:
    """Say once in a turn and for each size what is at work."""
    if setting.source == plan.material.sources[0]:
        window = "whole images" if setting.crop is None else f"crop {setting.crop}"
        plan.progress(f"sweep: {what}, turn {number + 1}/{plan.repeats}, {window}, batches of {setting.batch_size}")


def _row(plan: Plan, setting: Setting, turns: Sequence[Turn], trained: Sequence[TrainingTurn]) -> SweepRow:
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


def _stages(plan: Plan, setting: Setting) -> dict[str, float] | None:
    """Return seconds of thread time for each sample by stage, from a turn of its own: watching costs a little."""
    if setting.source != "lmdbloader":
        return None
    with open_feed(plan.material, _in_host_memory(setting)) as feed, feed.timed_stages() as found:
        take_turn(feed, plan.seconds / 2)
    times = found[0]
    return {name: getattr(times, name) / max(times.num_samples, 1) for name in STAGES}
