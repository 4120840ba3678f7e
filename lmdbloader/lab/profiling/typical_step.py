"""A typical step, from the recorded times: means over the stretches of a run that were not disturbed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from lmdbloader.base.stage_times import STAGES, StageTimes
from lmdbloader.base.stopwatch import PHASES
from lmdbloader.lab.profiling.threads import ThreadTimes

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CounterReading:
    """The counters at the beginning of a step.

    Attributes:
        step: Its number, counted from the first that is measured.
        stages: Of the Loader's threads; None without a Loader.
        loading: Of the threads or processes that load; None if unknown.
        loop: Of the thread of the training loop, likewise.
        waiting: Seconds of a core that it took while it asked for batches.
        is_broken: Whether threads that load have ended since the moment before: a stretch that ends here lacks theirs.
    """

    step: int
    stages: StageTimes | None
    loading: ThreadTimes | None
    loop: ThreadTimes | None
    waiting: float
    is_broken: bool = False


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """One phase of all measured steps, in seconds.

    Attributes:
        mean, p50, p99: Of the time in a step.
        share: Of the time of all steps.
    """

    mean: float
    p50: float
    p99: float
    share: float


@dataclass(frozen=True, slots=True)
class TypicalStep:
    """A typical step: means over the middle half of the run's stretches, by how long their steps took.

    On a shared machine the slowest stretches show other programs' work, and the fastest are luck.

    Attributes:
        step: Seconds of a step.
        data: Of these, waiting for data.
        copy: Of these, copying to the device.
        stages: Seconds of the Loader's threads for a step, None if there are none; counts are of all these steps.
        loading: Of the threads that load, for a step.
        loop: Of the thread of the training loop, for a step.
        waiting: Seconds of a core that it took in `data`.
        num_steps: How many steps these are the means of.
    """

    step: float
    data: float
    copy: float
    stages: StageTimes | None
    loading: ThreadTimes | None
    loop: ThreadTimes | None
    waiting: float
    num_steps: int

    @property
    def busy(self) -> float:
        """Seconds of a step that are not spent waiting for data."""
        return self.step - self.data

    @property
    def stall(self) -> float:
        """Share of the time that is spent waiting for data."""
        return self.data / self.step if self.step else 0.0


def measure_phase(rows: F64, total: float) -> PhaseTimes:
    """Return one phase's figures from its times in every step (steps,) and the time of all steps and phases."""
    p50, p99 = np.percentile(rows, [50, 99]).tolist()
    return PhaseTimes(float(rows.mean()), p50, p99, float(rows.sum()) / total if total else 0.0)


def every_second(moments: Sequence[CounterReading]) -> list[CounterReading]:
    """Return the first of an odd number of moments, the third and so on: stretches that are twice as long."""
    pairs = zip(moments[1::2], moments[2::2], strict=True)
    return [moments[0], *(replace(after, is_broken=skipped.is_broken or after.is_broken) for skipped, after in pairs)]


def typical_step(rows: F64, moments: Sequence[CounterReading]) -> TypicalStep:
    """Return the typical step of a run.

    Args:
        rows: (steps, phases) seconds, at least one step.
        moments: In the order in which they came, at least two; their steps ascend.
    """
    stretches = [(a, b) for a, b in pairwise(moments) if a.step < min(b.step, len(rows))]
    stretches = [(a, b) for a, b in stretches if not b.is_broken] or stretches
    means = [float(rows[a.step : b.step].sum(axis=1).mean()) for a, b in stretches]
    order = sorted(range(len(stretches)), key=means.__getitem__)
    aside = len(order) // 4
    chosen = [stretches[number] for number in order[aside : len(order) - aside]]
    steps = np.concatenate([rows[a.step : b.step] for a, b in chosen])
    number = len(steps)
    seconds = steps.mean(axis=0)
    return TypicalStep(
        step=float(seconds.sum()),
        data=float(seconds[PHASES.index("data")]),
        copy=float(seconds[PHASES.index("copy")]),
        stages=_stages([(a.stages, b.stages) for a, b in chosen], number),
        loading=_threads([(a.loading, None if b.is_broken else b.loading) for a, b in chosen], number),
        loop=_threads([(a.loop, b.loop) for a, b in chosen], number),
        waiting=sum(b.waiting - a.waiting for a, b in chosen) / number,
        num_steps=number,
    )


def _stages(pairs: Sequence[tuple[StageTimes | None, StageTimes | None]], number: int) -> StageTimes | None:
    total = StageTimes()
    for before, after in pairs:
        if before is None or after is None:
            return None
        total += after - before
    if not total.total:
        return None
    return replace(total, **{name: getattr(total, name) / number for name in STAGES})


def _threads(pairs: Sequence[tuple[ThreadTimes | None, ThreadTimes | None]], number: int) -> ThreadTimes | None:
    running = delayed = 0.0
    for before, after in pairs:
        if before is None or after is None:
            return None
        running += after.running - before.running
        delayed += after.delayed - before.delayed
    return ThreadTimes(running / number, delayed / number)
