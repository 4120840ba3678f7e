"""The profile of training steps: their phases, the loader's stages, the bottleneck, and the advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.stage_times import STAGES, StageTimes
from lmdbloader.lab.example_times import ExampleTimes
from lmdbloader.lab.formatting import align, wrap
from lmdbloader.lab.machine.gpu import GpuUse
from lmdbloader.lab.profiling.bottleneck import Advice, Bottleneck
from lmdbloader.lab.profiling.threads import ThreadTimes

# A step may differ from the prediction by this share of it, both ways.
_HOLDS = 0.10
_HOLDS_UP = {
    "storage": "reading from storage",
    "verify": "verifying checksums",
    "decode": "decoding",
    "transform": "the compiled transforms",
    "function": "Python code",
    "cpu": "too little time on the cores",
    "copy": "copying to the device",
}
# A phase or stage that takes less than this share is left out of tables.
_NOT_WORTH_A_LINE = 0.0005
_BAR = 24


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


def measure_phase(rows: npt.NDArray[np.float64], total: float) -> PhaseTimes:
    """Return one phase's figures from its times in every step (steps,) and the time of all steps and phases."""
    p50, p99 = np.percentile(rows, [50, 99]).tolist()
    return PhaseTimes(float(rows.mean()), p50, p99, float(rows.sum()) / total if total else 0.0)


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of training steps went, and the change that would make them shorter.

    Attributes:
        bottleneck: The bottleneck: "storage", "verify", "decode", "transform" (compiled), "function" (Python),
            "cpu" (the loading threads wait for cores), "copy" (to the device), or "model": loading keeps up.
        advice: The change that would help most, with the length of a step that it should bring.
        step_seconds: Mean time of a step.
        stall: Share of it that is spent waiting for data.
        phases: Phase ("data", "copy", "forward", "backward", "update", "compute") -> its time, those that occurred.
        step: All phases of a step together.
        stages: Time of the Loader's threads during the measured steps; None without a Loader.
        loading: How long the threads or processes that load had a core, and waited for one; None if the system does
            not report it.
        gpu: The use of the GPU; None if unknown.
        num_steps: Steps that were measured.
        num_samples: Samples in them, if all batches are as large as the first.
        seconds: All of them together.
        num_threads: Threads or processes that load.
        loader: The class of the loader.
        examples: The times of single examples, from `profile` and `rehearse` with an LMDBDataset that has no Python
            `transform` of its own; else None.
        environment: All that reproduces it: `machine.describe(path).as_json()`.
    """

    bottleneck: Bottleneck
    advice: Advice
    step_seconds: float
    stall: float
    phases: dict[str, PhaseTimes]
    step: PhaseTimes
    stages: StageTimes | None
    loading: ThreadTimes | None
    gpu: GpuUse | None
    num_steps: int
    num_samples: int
    seconds: float
    num_threads: int
    loader: str
    examples: ExampleTimes | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_healthy(self) -> bool:
        """Whether loading keeps up with the model."""
        return self.bottleneck == "model"

    @property
    def samples_per_s(self) -> float:
        """Samples a second, over all measured steps."""
        return self.num_samples / self.seconds if self.seconds else 0.0

    def compare(self, before: Profile | Mapping[str, Any]) -> str:
        """Return whether an earlier profile's prediction held, now that its advice was followed, as a sentence.

        Args:
            before: The profile that gave the advice, or what its `as_json` returned.
        """
        old = before.as_json() if isinstance(before, Profile) else before
        predicted, is_bound, new = old["advice"]["step_seconds"], old["advice"]["is_bound"], self.step_seconds
        if is_bound and new >= (1 - _HOLDS) * predicted:
            verdict = "The prediction was a bound"
        else:
            has_held = abs(new - predicted) <= _HOLDS * predicted
            verdict = "The prediction held" if has_held else "The prediction did not hold"
        still = "still" if self.bottleneck == old["bottleneck"] else "now"
        more = "" if self.is_healthy else f" The bottleneck is {still} {self.bottleneck}."
        return (
            f"{verdict}: {1000 * new:.3g} ms a step; it was {1000 * old['step_seconds']:.3g} ms, and "
            f"{'at best ' if is_bound else ''}{1000 * predicted:.3g} ms was predicted.{more}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return {**asdict(self), "samples_per_s": self.samples_per_s}

    def summary(self) -> str:
        """Return the result in one or two sentences."""
        if self.is_healthy:
            return f"Loading keeps up: the loop waits for data {self.stall:.1%} of the time."
        what = _HOLDS_UP[self.bottleneck]
        if self.bottleneck == "copy":
            return f"The loop waits for data {self.stall:.0%} of the time; {what} takes longer."
        return f"The loop waits for data {self.stall:.0%} of the time, and what holds it up is {what}."

    def __str__(self) -> str:
        """Return a sentence, the advice, and tables."""
        lines = [self.summary(), str(self.advice), "", *align(_phases(self), (0, 5))]
        if self.stages is not None and self.stages.total:
            lines += ["", *align(_stages(self.stages, self.num_steps), (0, 3))]
        return "\n".join([*lines, "", *(line for note in _notes(self) for line in wrap(note))])


def _bar(share: float) -> str:
    return "#" * round(share * _BAR)


def _phases(profile: Profile) -> list[list[str]]:
    """Return the table of the phases and of the whole step."""
    rows = [["phase", "mean ms", "p50", "p99", "share", ""]]
    for name, phase in [*profile.phases.items(), ("step", profile.step)]:
        if phase.share >= _NOT_WORTH_A_LINE:
            times = [f"{1000 * value:.2f}" for value in (phase.mean, phase.p50, phase.p99)]
            rows.append([name, *times, f"{phase.share:.1%}", "" if name == "step" else _bar(phase.share)])
    return rows


def _stages(stages: StageTimes, num_steps: int) -> list[list[str]]:
    """Return the table of the loader's stages."""
    rows = [["loader", "ms a step", "share", "(of all its threads)"]]
    for name in STAGES:
        seconds: float = getattr(stages, name)
        share = seconds / stages.total
        if share >= _NOT_WORTH_A_LINE:
            rows.append([name, f"{1000 * seconds / num_steps:.2f}", f"{share:.1%}", _bar(share)])
    return rows


def _notes(profile: Profile) -> list[str]:
    """Return the lines below the tables."""
    notes = [
        f"{profile.num_steps:,} steps in {profile.seconds:.2f} s, {profile.samples_per_s:,.0f} samples/s; loaded by "
        f"{profile.loader}, {profile.num_threads} at a time"
    ]
    if profile.loading is not None:
        running, delayed = (1000 * t / profile.num_steps for t in (profile.loading.running, profile.loading.delayed))
        notes.append(f"loading took {running:.2f} ms of cores a step, and waited {delayed:.2f} ms for one")
    if (use := profile.gpu) is not None:
        figures = ((use.utilization_percent, "% busy"), (use.power_watts, "W"), (use.memory_mib, "MiB in use"))
        parts = [f"{value:,.0f} {what}" for value, what in figures if value is not None]
        notes.append(f"{use.name}: {', '.join(parts)}")
    return notes if profile.examples is None else [*notes, str(profile.examples)]
