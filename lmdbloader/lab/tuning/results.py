"""The result of tuning: the grid of settings, the best, a line of Python that uses it, and advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmdbloader.base.text import plain
from lmdbloader.lab.example_times import ExampleTimes
from lmdbloader.lab.formatting import align, percent, seconds
from lmdbloader.lab.tuning.measuring import StepTrial
from lmdbloader.lab.tuning.race import ReadKind, ReadSetting
from lmdbloader.loader.tuning_cache import Workers


@dataclass(frozen=True, slots=True)
class TuningRow:
    """The measurements of one setting.

    Attributes:
        setting: The setting.
        samples_per_s: Samples a second, made comparable with the others' through the rounds that they share.
        p50_seconds, p99_seconds: Median and 99th percentile of the time from asking for a batch to having it, when
            batches are taken as fast as they come.
        num_batches: How many batches were timed.
        num_turns: In how many turns; few if the setting was soon seen not to be near the best.
    """

    setting: ReadSetting
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
    """The result of `lmdbloader.lab.tune`; `print` it.

    Attributes:
        dataset: The dataset, as text to show.
        batch_size: Samples in a batch.
        transforms: The transforms, as text to show.
        cores: That this process may use.
        device: Where batches were copied to; None without an accelerator.
        rows: All settings that were measured, by kind and cost.
        num_threads: Best for a Loader of this dataset, batch size and size of images; None if it was not measured.
        workers: Best for torch's DataLoader; None if none was measured.
        best: The better of both; with a step time, the cheapest that keeps up with it.
        line: One line of Python that makes the best loader.
        verdict: Whether the best one feeds a step of the given time; None without one.
        examples: The times of single examples, the longest of which holds up its batch.
        advice: Further advice, a sentence or two each.
        seconds: How long tuning took.
        stored: The kinds whose best setting is remembered: `num_threads="auto"` uses that of "threads",
            `lmdbloader.dataloader` that of "workers". A kind is missing if its best setting was not clear in the time,
            or the user's cache folder cannot be written to.
        environment: All that reproduces it: `machine.describe_environment(path)`.
    """

    dataset: str
    batch_size: int
    transforms: str
    cores: int
    device: str | None
    rows: tuple[TuningRow, ...]
    num_threads: int | None
    workers: Workers | None
    best: ReadSetting
    line: str
    verdict: StepTrial | None
    examples: ExampleTimes
    advice: tuple[str, ...]
    seconds: float
    stored: tuple[ReadKind, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)

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
            "stored": list(self.stored), "examples": self.examples.as_json(),
            "verdict": None if verdict is None else {
                "passed": verdict.passed, "step_seconds": verdict.step_seconds, "share_ready": verdict.share_ready,
                "p99_wait_seconds": verdict.p99_wait_seconds, "allowed_seconds": verdict.allowed_seconds,
                "num_steps": verdict.num_steps, "samples_per_s": verdict.samples_per_s,
                "needed_samples_per_s": verdict.needed_samples_per_s, "margin": verdict.margin,
            },
            "environment": dict(self.environment),
        }  # fmt: skip

    def __str__(self) -> str:
        about = f"{plain(self.dataset)}: batches of {self.batch_size}, {self.transforms}, {self.cores} cores"
        parts = [
            f"{about}, {self.device or 'no accelerator'}; {self.seconds:.1f} s",
            _table(self),
            *([str(self.verdict)] if self.verdict else []),
            str(self.examples) + _within(self),
            *([] if not self.advice else ["\n".join(f"- {sentence}" for sentence in self.advice)]),
            f"Paste this:\n\n    {self.line}",
            _stored(self),
        ]
        return "\n\n".join(parts)


def _within(tuning: Tuning) -> str:
    """Return the end of the sentences about single examples: whether the slowest fits into the step."""
    if tuning.verdict is None:
        return ""
    step, slowest = tuning.verdict.step_seconds, tuning.examples.slowest_seconds
    if slowest <= step:
        return f" The slowest takes {percent(slowest / step)} of the step."
    return f" The slowest takes longer than the step of {seconds(step)}: only batches that are read ahead can hide it."


def _stored(tuning: Tuning) -> str:
    users = {"threads": 'num_threads="auto"', "workers": "lmdbloader.dataloader"}
    found = [users[kind] for kind in tuning.stored]
    fastest = ", which reads fastest whatever the step," if tuning.verdict else ""
    remembered = [
        f"Remembered: {' and '.join(found)} {'use' if len(found) > 1 else 'uses'} what was found{fastest} for this "
        "dataset, batch size and size of images on this machine."
    ]  # fmt: skip
    if tuning.is_stored:
        return remembered[0]
    why = (
        "Not every result is remembered: the best setting was not clear in the time, or the user's cache folder cannot "
        "be written. Give more seconds, or write the numbers as above."
    )
    return " ".join([*(remembered if found else []), why])


def _table(tuning: Tuning) -> str:
    chosen = {ReadSetting("threads", tuning.num_threads)} if tuning.num_threads is not None else set()
    if tuning.workers is not None:
        chosen.add(ReadSetting("workers", tuning.workers.num_workers, bool(tuning.workers.pin_memory)))
    most = max(row.samples_per_s for row in tuning.rows)
    header = ["", "samples/s", "of the best", "p50 ms", "p99 ms", "turns", ""]
    lines: list[Sequence[str]] = [header]
    for row in tuning.rows:
        mark = "<== best" if row.setting == tuning.best else "<-- of its kind" if row.setting in chosen else ""
        lines.append([
            str(row.setting), f"{row.samples_per_s:,.0f}", f"{row.samples_per_s / most:.2f}",
            f"{row.p50_seconds * 1e3:.2f}", f"{row.p99_seconds * 1e3:.2f}", str(row.num_turns), mark,
        ])  # fmt: skip
    return "\n".join(align(lines, (0, len(header) - 1)))


# Batches of fewer samples are small.
_SMALL_BATCH = 64
_NOTABLY = 1.05


def advise(
    rows: Sequence[TuningRow], picks: Mapping[str, ReadSetting], batch_size: int, *, has_accelerator: bool
) -> Iterator[str]:
    """Yield advice that follows from a grid.

    Args:
        rows: The measurements.
        picks: The setting that was chosen, by kind.
        batch_size: Samples in a batch.
        has_accelerator: Whether pinned memory was measured.
    """
    speed = {row.setting: row.samples_per_s for row in rows}
    workers = [setting for setting in speed if setting.kind == "workers"]
    pick = picks.get("workers")
    if pick is not None:
        most = max(s for s in workers if s.pinned == pick.pinned)
        if most.count > pick.count and speed[pick] > _NOTABLY * speed[most]:
            yield (
                f"More workers do not help here: with {most.count} the DataLoader reads "
                f"{speed[most] / speed[pick]:.2f} x as much as with {pick.count}."
            )
        yield from _about_pinning(speed, pick, has_accelerator)
        if "threads" in picks:
            ratio = f"The Loader reads {speed[picks['threads']] / speed[pick]:.2f} x as much as the DataLoader"
            yield (
                f"{ratio}, whose workers send every batch to this process."
                if pick.count
                else f"{ratio}, which reads fastest here without workers, so each step waits for its batch."
            )
    if batch_size < _SMALL_BATCH:
        yield _about_small_batches(batch_size, "threads" in picks)


def _about_pinning(speed: Mapping[ReadSetting, float], pick: ReadSetting, has_accelerator: bool) -> Iterator[str]:
    if not has_accelerator:
        yield "No accelerator: pinned memory was not measured and is off: it speeds up only copies to an accelerator."
        return
    pinned, paged = (ReadSetting("workers", pick.count, is_pinned) for is_pinned in (True, False))
    if pinned in speed and paged in speed:
        ratio = speed[pinned] / speed[paged]
        yield f"With {pick.count} workers, pinned memory gives {ratio:.2f} x the samples/s of paged."


def _about_small_batches(batch_size: int, has_loader: bool) -> str:
    text = (
        f"Batches of {batch_size} are small: the fixed cost of a DataLoader's batch (sending it, pinning it) is shared "
        "by few samples, so fewer workers and paged memory are often best. Tune each size by itself."
    )
    return f"{text} The Loader's threads read several of them at once." if has_loader else text
