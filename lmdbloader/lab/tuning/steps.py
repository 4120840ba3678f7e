"""Whether batches are ready in time for a training step that takes some time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lmdbloader.lab.tuning.measuring import Opened

# Of the step: handing over a batch that is ready takes some microseconds, too.
ALLOWED_SHARE = 0.05
# Of the batches, so many must be ready.
SHARE_READY = 0.99
# Enough for a 99th percentile that a single batch does not make.
_MOST_STEPS = 500
# The system wakes a sleeping thread late by about so much: it looks at the clock for the rest.
_AWAKE_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a consumer saw that takes `step_seconds` for each batch.

    Attributes:
        step_seconds: Of its step.
        share_ready: Share of the batches for which it waited at most `allowed_seconds`.
        p99_wait_seconds: 99th percentile of its waiting for a batch.
        allowed_seconds: What counts as ready, 5 % of the step.
        num_steps: How many steps it took.
        samples_per_s: What the loader gives where nothing holds it up.
        needed_samples_per_s: What the step takes, its batch size over its time.
    """

    step_seconds: float
    share_ready: float
    p99_wait_seconds: float
    allowed_seconds: float
    num_steps: int
    samples_per_s: float
    needed_samples_per_s: float

    @property
    def passed(self) -> bool:
        """Whether 99 % of the batches were ready, and it could go on like that (rather than live on what was ahead)."""
        return self.share_ready >= SHARE_READY and self.samples_per_s >= self.needed_samples_per_s

    @property
    def margin(self) -> float:
        """How many times as much the loader gives as the step takes."""
        return self.samples_per_s / self.needed_samples_per_s

    def __str__(self) -> str:
        few = "" if self.num_steps >= 100 else " (few, for so long a step)"
        return (
            f"{'PASS' if self.passed else 'FAIL'}: {self.share_ready:.1%} of {self.num_steps} batches{few} were ready "
            f"within the step of {_milliseconds(self.step_seconds)} ms; 99 % must be. The p99 of waiting for a batch "
            f"was {_milliseconds(self.p99_wait_seconds)} ms; up to {_milliseconds(self.allowed_seconds)} ms, 5 % of "
            f"the step, count as ready. The step takes {self.needed_samples_per_s:,.0f} samples/s; "
            f"{self.samples_per_s:,.0f} can be read, {self.margin:.2f} x as many."
        )


def try_steps(
    opened: Opened,
    step_seconds: float,
    seconds: float,
    *,
    samples_per_s: float,
    needed_samples_per_s: float,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
) -> Verdict:
    """Take batches as a training loop does whose steps take some time.

    Args:
        opened: Gives batches.
        step_seconds: Of each step, in which nothing is taken, and the loader has the processor for itself.
        seconds: To use, for at most 500 steps; one is measured in any case, after those that are not.
        samples_per_s: What the loader gives where nothing holds it up.
        needed_samples_per_s: What the steps take.
        clock, sleep: Tell seconds, and let them pass.
    """
    steps = int(min(max(seconds / step_seconds, 1), _MOST_STEPS))
    # Where reading is slower than the step, what was read ahead at first must not hide it.
    is_slow = samples_per_s < 1.25 * needed_samples_per_s
    skip = min(opened.ahead, steps // 3) if is_slow else min(1, steps // 3)
    until = clock() + seconds
    next(opened.batches)
    waits: list[float] = []
    # Waiting takes time as well as the steps do.
    while len(waits) < skip + steps and (len(waits) <= skip or clock() < until):
        _work(step_seconds, clock, sleep)
        asked = clock()
        next(opened.batches)
        waits.append(clock() - asked)
    del waits[:skip]
    allowed = ALLOWED_SHARE * step_seconds
    return Verdict(
        step_seconds,
        float(np.mean(np.array(waits) <= allowed)),
        float(np.percentile(waits, 99)),
        allowed,
        len(waits),
        samples_per_s,
        needed_samples_per_s,
    )


def _work(seconds: float, clock: Callable[[], float], sleep: Callable[[float], object]) -> None:
    """Let time pass as an accelerator does: the processor is free."""
    until = clock() + seconds
    sleep(max(seconds - _AWAKE_SECONDS, 0))
    while clock() < until:
        pass


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
