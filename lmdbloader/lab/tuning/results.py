"""The result of tuning: the settings, the best, and a line of Python that uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lmdbloader.base.text import plain
from lmdbloader.lab.arms import Arm
from lmdbloader.lab.example_times import ExampleTimes
from lmdbloader.lab.formatting import align

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
            f"Paste this:\n\n    {self.line}",
            f"Remembered for {' and '.join(users)}, with this dataset, batch size and size of images here.",
        ]
        return "\n\n".join(part for part in parts if part)
