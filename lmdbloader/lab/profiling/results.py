"""The profile of training steps: their phases, the loader's stages, the bottleneck, and the advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from lmdbloader.base.stage_times import STAGES, StageTimes
from lmdbloader.errors import OptionError
from lmdbloader.lab.example_times import ExampleTimes
from lmdbloader.lab.formatting import html_table, wrap
from lmdbloader.lab.machine.gpu import GpuUse
from lmdbloader.lab.profiling.bottleneck import BOTTLENECKS, Advice, Bottleneck
from lmdbloader.lab.profiling.threads import ThreadTimes
from lmdbloader.lab.profiling.typical_step import PhaseTimes

__all__ = ["Comparison", "Profile", "sentence"]

# A step may differ from the prediction by this share of it, both ways.
_HOLDS = 0.10
_JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """The effect of a change, compared with the prediction.

    Attributes:
        before_seconds: Length of a step when the prediction was made.
        predicted_seconds: Length of a step, as it was predicted.
        seconds: Length of a step now.
        held: Whether a step is within 10 % of the prediction, both ways. None if it was a bound ("at best"), which a
            longer step neither confirms nor contradicts; a step that is more than 10 % shorter contradicts it: False.
        text: In words.
    """

    before_seconds: float
    predicted_seconds: float
    seconds: float
    held: bool | None
    text: str

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the words."""
        return self.text


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of training steps went, and the change that would make them shorter.

    Attributes:
        bottleneck: The bottleneck: "storage", "verify", "decode", "transform" (compiled), "function" (Python),
            "cpu" (the loading threads wait for cores), "copy" (to the device), or "model": loading keeps up.
        advice: The change that would help most, with the length of a step that it should bring.
        step_seconds: A typical step: mean over the middle half of the run's stretches.
        stall: Share of a typical step that is spent waiting for data.
        phases: Phase ("data", "copy", "forward", "backward", "update", "compute") -> its time, those that occurred.
        step: All phases of a step together.
        stages: Time of the Loader's threads during the measured steps; None without a Loader.
        loading: How long the threads or processes that load had a core, and waited for one; None if the system does
            not report it.
        disk_wait: Seconds of the loading threads that neither ran nor waited for a core, as far as they were reading;
            None if it is not known.
        gpu: The use of the GPU; None if unknown.
        num_steps: Steps that were measured.
        num_samples: Samples in them, if all batches are as large as the first.
        seconds: All of them together.
        num_threads: Threads or processes that load.
        loader: The class of the loader.
        examples: The times of single examples, from `profile` and `rehearse` with an LMDBDataset that has no Python
            `transform` of its own; else None.
        warnings: What is wrong in the steps besides loading, in sentences, each with the line to paste; from `profile`.
        environment: All that reproduces it: `machine.describe_environment(path)`.
    """

    bottleneck: Bottleneck
    advice: Advice
    step_seconds: float
    stall: float
    phases: dict[str, PhaseTimes]
    step: PhaseTimes
    stages: StageTimes | None
    loading: ThreadTimes | None
    disk_wait: float | None
    gpu: GpuUse | None
    num_steps: int
    num_samples: int
    seconds: float
    num_threads: int
    loader: str
    examples: ExampleTimes | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether loading keeps up with the model."""
        return self.bottleneck == "model"

    @property
    def samples_per_s(self) -> float:
        """Samples a second, over all measured steps."""
        return self.num_samples / self.seconds if self.seconds else 0.0

    def compare(self, before: Profile) -> Comparison:
        """Return whether an earlier profile's prediction held, now that its advice was followed.

        Args:
            before: The profile that gave the advice.
        """
        old, predicted, new = before.step_seconds, before.advice.step_seconds, self.step_seconds
        is_bound = before.advice.is_bound
        held: bool | None = abs(new - predicted) <= _HOLDS * predicted
        if is_bound and new >= (1 - _HOLDS) * predicted:
            held = None
        verdicts = {
            True: "The prediction held",
            False: "The prediction did not hold",
            None: "The prediction was a bound",
        }
        text = (
            f"{verdicts[held]}: {1000 * new:.3g} ms a step; it was {1000 * old:.3g} ms, and "
            f"{'at best ' if is_bound else ''}{1000 * predicted:.3g} ms was predicted."
        )
        if self.bottleneck == before.bottleneck and not self.is_healthy:
            text += f" The bottleneck is still {self.bottleneck}."
        elif not self.is_healthy:
            text += f" The bottleneck is now {self.bottleneck}."
        return Comparison(old, predicted, new, held, text)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`; `from_json` reads them."""
        examples = None if self.examples is None else self.examples.as_json()
        values = {**asdict(self), "examples": examples}
        return {"version": _JSON_VERSION, **values, "samples_per_s": self.samples_per_s}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Profile:
        """Return the profile from the result of `as_json`.

        Args:
            values: Its result.

        Raises:
            OptionError: It is something else, or of another version.
        """
        version = values.get("version") if isinstance(values, Mapping) else None
        if version != _JSON_VERSION:
            raise OptionError(f"a profile of version {version!r}: this release reads {_JSON_VERSION}. Make a new one.")
        try:
            if values["bottleneck"] not in BOTTLENECKS:
                raise ValueError(f"bottleneck {values['bottleneck']!r}")
            kinds = {"stages": StageTimes, "loading": ThreadTimes, "gpu": GpuUse}
            parts = {name: values[name] and kind(**values[name]) for name, kind in kinds.items()}
            plain = {name: values[name] for name in _PLAIN}
            examples = values.get("examples")  # profiles of older releases have none
            return cls(
                advice=Advice(**values["advice"]),
                phases={name: PhaseTimes(**phase) for name, phase in values["phases"].items()},
                step=PhaseTimes(**values["step"]),
                examples=None if examples is None else ExampleTimes.from_json(examples),
                environment=dict(values.get("environment", {})),
                warnings=tuple(values.get("warnings", ())),
                **parts,
                **plain,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OptionError(f"not what Profile.as_json() returns: {error!r}. Make a new profile.") from error

    def __str__(self) -> str:
        """Return a sentence, a table and the advice."""
        return as_text(self)

    def _repr_html_(self) -> str:
        """Return the same for notebooks."""
        return as_html(self)


_PLAIN = ("bottleneck", "step_seconds", "stall", "disk_wait", "num_steps", "num_samples", "seconds", "num_threads",
          "loader")  # fmt: skip

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
# (name, share, cells)
Row = tuple[str, float, tuple[str, ...]]


def sentence(profile: Profile) -> str:
    """Return the result of a profile in one or two sentences."""
    if profile.is_healthy:
        return f"Loading keeps up: the loop waits for data {profile.stall:.1%} of the time."
    what = _HOLDS_UP[profile.bottleneck]
    if profile.bottleneck == "copy":
        return f"The loop waits for data {profile.stall:.0%} of the time; {what} takes longer."
    return f"The loop waits for data {profile.stall:.0%} of the time, and what holds it up is {what}."


def _phases(profile: Profile) -> list[Row]:
    """Return (name, share, cells) of the phases and of the whole step."""
    found: list[Row] = []
    for name, phase in [*profile.phases.items(), ("step", profile.step)]:
        if name == "step" or phase.share >= _NOT_WORTH_A_LINE:
            cells: tuple[str, ...] = (f"{1000 * phase.mean:.2f}", f"{1000 * phase.p50:.2f}", f"{1000 * phase.p99:.2f}")
            found.append((name, phase.share, (*cells, f"{phase.share:.1%}")))
    return found


def _stages(profile: Profile) -> list[Row]:
    """Return (name, share, cells) of the loader's stages."""
    stages = profile.stages
    if stages is None or not stages.total:
        return []
    found: list[Row] = []
    for name in STAGES:
        seconds = getattr(stages, name)
        share = seconds / stages.total
        if share >= _NOT_WORTH_A_LINE:
            found.append((name, share, (f"{1000 * seconds / profile.num_steps:.2f}", f"{share:.1%}")))
    return found


def _notes(profile: Profile) -> list[str]:
    """Return the lines below the tables."""
    notes = [
        f"{profile.num_steps:,} steps in {profile.seconds:.2f} s, {profile.samples_per_s:,.0f} samples/s; loaded by "
        f"{profile.loader}, {profile.num_threads} at a time"
    ]
    if profile.loading is not None:
        waits = f"loading took {1000 * profile.loading.running / profile.num_steps:.2f} ms of cores a step, waited "
        waits += f"{1000 * profile.loading.delayed / profile.num_steps:.2f} ms for one"
        if profile.disk_wait is not None:
            waits += f", and {1000 * profile.disk_wait / profile.num_steps:.2f} ms for storage"
        notes.append(waits)
    if profile.gpu is not None:
        use = profile.gpu
        figures = ((use.utilization_percent, "% busy"), (use.power_watts, "W"), (use.memory_mib, "MiB in use"))
        parts = [f"{value:,.0f} {what}" for value, what in figures if value is not None]
        notes.append(f"{use.name}: {', '.join(parts)}")
    if (found := profile.examples) is not None:
        times = (found.p50_seconds, found.p99_seconds, found.longest_seconds, found.slowest_seconds)
        p50, p99, longest, slowest = (f"{1000 * each:.2f} ms" for each in times)
        notes.append(
            f"single examples: p50 {p50}, p99 {p99}, the longest {longest}; the slowest by itself, sample "
            f"{found.slowest}, takes {slowest}, and a batch with it {1000 * found.batch_with_slowest_seconds:.2f} ms "
            f"on one thread instead of {1000 * found.batch_seconds:.2f} ms"
        )
    return notes


def as_text(profile: Profile) -> str:
    """Return a profile as plain text."""
    lines = [sentence(profile), str(profile.advice)]
    lines += [*(f"Warning: {warning}" for warning in profile.warnings), ""]
    lines.append(f"{'phase':10}{'mean ms':>10}{'p50':>10}{'p99':>10}{'share':>9}")
    for name, share, cells in _phases(profile):
        bar = "" if name == "step" else "  " + "#" * round(share * _BAR)
        lines.append(f"{name:10}" + "".join(f"{cell:>10}" for cell in cells[:-1]) + f"{cells[-1]:>9}{bar}")
    if stages := _stages(profile):
        lines += ["", f"{'loader':10}{'ms a step':>10}{'share':>9}   (of all its threads)"]
        for name, share, (seconds, percent) in stages:
            lines.append(f"{name:10}{seconds:>10}{percent:>9}  {'#' * round(share * _BAR)}".rstrip())
    return "\n".join([*lines, "", *(line for note in _notes(profile) for line in wrap(note))])


def as_html(profile: Profile) -> str:
    """Return a profile as HTML for notebooks, which bring their own style."""

    def table(header: tuple[str, ...], rows: list[Row]) -> str:
        shares = [0.0 if name == "step" else share for name, share, _ in rows]
        return html_table(header, [(name, *cells) for name, _, cells in rows], shares)

    parts = [f"<p><b>{escape(sentence(profile))}</b> {escape(str(profile.advice))}</p>"]
    parts += [f"<p><b>Warning:</b> {escape(warning)}</p>" for warning in profile.warnings]
    parts.append(table(("phase", "mean ms", "p50", "p99", "share"), _phases(profile)))
    if stages := _stages(profile):
        parts.append(table(("loader", "ms a step", "share"), stages))
    parts.append(f"<p>{'<br>'.join(escape(note) for note in _notes(profile))}</p>")
    return "".join(parts)
