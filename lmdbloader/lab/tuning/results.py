"""What tuning found: the grid of settings, the best, and a line of Python that uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmdbloader.base.text import plain
from lmdbloader.lab.tuning.race import Kind, Setting
from lmdbloader.lab.tuning.steps import Verdict
from lmdbloader.loader.tuning_cache import Workers


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one setting.

    Attributes:
        setting: The setting.
        samples_per_s: Samples a second, made comparable with the others' by what was measured in the same rounds.
        p50_seconds, p99_seconds: Median and 99th percentile of the time from asking for a batch to having it, when
            batches are taken as fast as they come.
        num_batches: How many batches were timed.
        num_turns: In how many turns; few where the setting was soon seen not to be near the best.
    """

    setting: Setting
    samples_per_s: float
    p50_seconds: float
    p99_seconds: float
    num_batches: int
    num_turns: int

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "kind": self.setting.kind, "count": self.setting.count, "pinned": self.setting.pinned,
            "samples_per_s": self.samples_per_s, "p50_seconds": self.p50_seconds, "p99_seconds": self.p99_seconds,
            "num_batches": self.num_batches, "num_turns": self.num_turns,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `lmdbloader.lab.tune` found; `print` it.

    Attributes:
        dataset: What was read, for people.
        batch_size: Samples in a batch.
        transforms: What was done to images, for people.
        cores: That this process may use.
        device: Where batches were copied to, None where there is no accelerator.
        rows: All settings that were measured, by kind and cost.
        num_threads: Best for a Loader of this dataset, batch size and size of images; None where it was not measured.
        workers: Best for torch's DataLoader; None where none was measured.
        best: The better of both; with a step time, the cheapest that keeps up with it.
        line: One line of Python that makes the best loader.
        verdict: Whether the best one feeds a step of the time that was given; None where none was.
        advice: What else there is to know, a sentence or two each.
        seconds: How long tuning took.
        stored: The kinds of which what was found is remembered: `num_threads="auto"` uses that of "threads",
            `lmdbloader.dataloader` that of "workers". Not where there was no time for all settings of a kind, or the
            user's cache folder cannot be written to.
    """

    dataset: str
    batch_size: int
    transforms: str
    cores: int
    device: str | None
    rows: tuple[Row, ...]
    num_threads: int | None
    workers: Workers | None
    best: Setting
    line: str
    verdict: Verdict | None
    advice: tuple[str, ...]
    seconds: float
    stored: tuple[Kind, ...]

    @property
    def is_stored(self) -> bool:
        """Whether all that was found is remembered."""
        return len(self.stored) == (self.num_threads is not None) + (self.workers is not None)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        verdict = self.verdict
        return {
            "dataset": self.dataset, "batch_size": self.batch_size, "transforms": self.transforms,
            "cores": self.cores, "device": self.device, "rows": [row.as_json() for row in self.rows],
            "num_threads": self.num_threads, "num_workers": self.workers and self.workers.num_workers,
            "pin_memory": self.workers and self.workers.pin_memory,
            "best": {"kind": self.best.kind, "count": self.best.count, "pinned": self.best.pinned},
            "line": self.line, "advice": list(self.advice), "seconds": self.seconds, "is_stored": self.is_stored,
            "stored": list(self.stored),
            "verdict": None if verdict is None else {
                "passed": verdict.passed, "step_seconds": verdict.step_seconds, "share_ready": verdict.share_ready,
                "p99_wait_seconds": verdict.p99_wait_seconds, "allowed_seconds": verdict.allowed_seconds,
                "num_steps": verdict.num_steps, "samples_per_s": verdict.samples_per_s,
                "needed_samples_per_s": verdict.needed_samples_per_s, "margin": verdict.margin,
            },
        }  # fmt: skip

    def __str__(self) -> str:
        about = f"{plain(self.dataset)}: batches of {self.batch_size}, {self.transforms}, {self.cores} cores"
        parts = [
            f"{about}, {self.device or 'no accelerator'}; {self.seconds:.1f} s",
            _table(self),
            *([str(self.verdict)] if self.verdict else []),
            *([] if not self.advice else ["\n".join(f"- {sentence}" for sentence in self.advice)]),
            f"Paste this:\n\n    {self.line}",
            _stored(self),
        ]
        return "\n\n".join(parts)


def _stored(tuning: Tuning) -> str:
    users = {"threads": 'num_threads="auto"', "workers": "lmdbloader.dataloader"}
    found = [users[kind] for kind in tuning.stored]
    fastest = ", which reads fastest whatever the step," if tuning.verdict else ""
    told = [
        f"Remembered: {' and '.join(found)} {'use' if len(found) > 1 else 'uses'} what was found{fastest} for this "
        "dataset, batch size and size of images on this machine."
    ]  # fmt: skip
    if tuning.is_stored:
        return told[0]
    why = (
        "Not all of it is remembered: there was no time to measure it, or the user's cache folder cannot be written "
        "to. Give the numbers as above."
    )
    return " ".join([*(told if found else []), why])


def _table(tuning: Tuning) -> str:
    chosen = {Setting("threads", tuning.num_threads)} if tuning.num_threads is not None else set()
    if tuning.workers is not None:
        chosen.add(Setting("workers", tuning.workers.num_workers, bool(tuning.workers.pin_memory)))
    most = max(row.samples_per_s for row in tuning.rows)
    header = ["", "samples/s", "of the best", "p50 ms", "p99 ms", "turns", ""]
    lines: list[Sequence[str]] = [header]
    for row in tuning.rows:
        mark = "<== best" if row.setting == tuning.best else "<-- of its kind" if row.setting in chosen else ""
        lines.append([
            str(row.setting), f"{row.samples_per_s:,.0f}", f"{row.samples_per_s / most:.2f}",
            f"{row.p50_seconds * 1e3:.2f}", f"{row.p99_seconds * 1e3:.2f}", str(row.num_turns), mark,
        ])  # fmt: skip
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    padded = (
        "  ".join(
            cell.ljust(width) if k in (0, len(header) - 1) else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
    return "\n".join(padded)
