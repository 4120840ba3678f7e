"""The runs and turns of a comparison, fitted into the time that there is, in an order that suits an early end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from comparison.settings import ARMS, SWEEPS, Arm, Setting, Sweep
from lmdbloader.base.text import counted

# Shares of the time, the rest is reserve.
_RUNS_SHARE, _TURNS_SHARE = 0.55, 0.35
_LEAST_EPOCHS, _MOST_EPOCHS = 2, 40
_LEAST_SECONDS, _MOST_SECONDS = 0.5, 5.0
REPEATS = 2


@dataclass(frozen=True, slots=True)
class Run:
    """A model trained from one arm with one seed, and scored."""

    model: str
    arm: Arm
    seed: int

    @property
    def key(self) -> str:
        """Its name among the results."""
        return f"run {self.model} {self.arm} {self.seed}"


@dataclass(frozen=True, slots=True)
class TurnOf:
    """Some seconds of training with one value of a sweep."""

    model: str
    arm: Arm
    sweep: str
    place: int
    number: int

    @property
    def key(self) -> str:
        """Its name among the results."""
        return f"turn {self.model} {self.arm} {self.sweep} {self.place} {self.number}"


@dataclass(frozen=True, slots=True)
class Speed:
    """What a model's training from one arm took in a first try.

    Attributes:
        samples_per_s: Of the loop.
        overhead: Seconds of a turn that are not its own: the model, workers, the first steps.
    """

    samples_per_s: float
    overhead: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be run.

    Attributes:
        base: Model -> the setting that everything else keeps.
        seeds: Of the runs.
        epochs: Model -> epochs of a run.
        sweeps: Model -> names of its sweeps.
        turn_seconds: Of a turn.
        left_out: Sentences about what there is no time for.
        seconds: What it all takes, estimated.
    """

    base: Mapping[str, Setting]
    seeds: tuple[int, ...]
    epochs: Mapping[str, int]
    sweeps: Mapping[str, tuple[str, ...]]
    turn_seconds: float
    left_out: tuple[str, ...]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """Return the plan of plain values."""
        return cls(
            base={name: Setting(**setting) for name, setting in value["base"].items()},
            seeds=tuple(value["seeds"]),
            epochs=dict(value["epochs"]),
            sweeps={name: tuple(names) for name, names in value["sweeps"].items()},
            turn_seconds=value["turn_seconds"],
            left_out=tuple(value["left_out"]),
            seconds=value["seconds"],
        )

    def items(self, cores: int) -> Iterator[Run | TurnOf]:
        """Yield everything: a seed of each model and each arm, then a turn of every value, and so on in rounds."""
        for number in range(max(len(self.seeds), REPEATS)):
            for model in self.base:
                if number < len(self.seeds):
                    yield from (Run(model, arm, self.seeds[number]) for arm in ARMS)
                if number < REPEATS:
                    yield from self._turns(model, cores, number)

    def _turns(self, model: str, cores: int, number: int) -> Iterator[TurnOf]:
        for name in self.sweeps[model]:
            yield from turns_of(self.base[model], SWEEPS[name], cores, number)


def turns_of(base: Setting, sweep: Sweep, cores: int, number: int) -> Iterator[TurnOf]:
    """Yield the turns of a sweep, arm after arm for each value, so that other load on the machine meets all alike."""
    for place, value in enumerate(sweep.values(base, cores)):
        for arm in sweep.arms:
            # Loader has a thread at least.
            if not (arm == "lmdbloader" and sweep.change(base, value).workers == 0):
                yield TurnOf(base.model, arm, sweep.name, place, number)


def make_plan(
    base: Mapping[str, Setting],
    speeds: Mapping[tuple[str, Arm], Speed],
    *,
    num_samples: Mapping[str, int],
    score_seconds: Mapping[str, float],
    sweeps: Sequence[str],
    num_seeds: int,
    seconds: float,
    device: str,
    cores: int,
) -> Plan:
    """Return a plan that fits into the time.

    Args:
        base: Model -> its setting.
        speeds: What first tries took.
        num_samples: Model -> samples of an epoch.
        score_seconds: Model -> seconds that scoring takes.
        sweeps: Names of those that are wanted.
        num_seeds: Runs of each arm.
        seconds: That are left.
        device: "cpu" or "cuda".
        cores: Of this machine.
    """
    left_out = []
    fixed = {model: num_seeds * sum(speeds[model, arm].overhead for arm in ARMS) for model in base}
    epoch = {
        model: num_seeds
        * sum(num_samples[model] / speeds[model, arm].samples_per_s + score_seconds[model] for arm in ARMS)
        for model in base
    }

    def fitting(share: float) -> dict[str, int]:
        return {model: math.floor((share * seconds / len(base) - fixed[model]) / epoch[model]) for model in base}

    def bounded(epochs: Mapping[str, int]) -> dict[str, int]:
        return {model: min(max(number, _LEAST_EPOCHS), _MOST_EPOCHS) for model, number in epochs.items()}

    def runs_take(epochs: Mapping[str, int]) -> float:
        return sum(fixed[model] + number * epoch[model] for model, number in epochs.items())

    possible = fitting(_RUNS_SHARE)
    epochs = bounded(possible)
    for model, number in possible.items():
        if number < _LEAST_EPOCHS:
            fewer = "images" if base[model].is_classifier else "samples (--samples)"
            left_out.append(
                f"{model}: only {_LEAST_EPOCHS} epochs of each run, the fewest, and they take more than their share of "
                f"the time. Give more minutes, or fewer {fewer}."
            )
    # What the runs leave of their share goes to the turns.
    for_turns = (_RUNS_SHARE + _TURNS_SHARE) * seconds - runs_take(epochs)
    chosen = {
        model: tuple(name for name in sweeps if SWEEPS[name].concerns(setting, device))
        for model, setting in base.items()
    }
    turn_seconds = 0.0
    while True:
        turns = [
            turn
            for model, names in chosen.items()
            for name in names
            for turn in turns_of(base[model], SWEEPS[name], cores, 0)
        ]
        overhead = REPEATS * sum(speeds[turn.model, turn.arm].overhead for turn in turns)
        if not turns:
            break
        turn_seconds = (for_turns - overhead) / (REPEATS * len(turns))
        if turn_seconds >= _LEAST_SECONDS:
            break
        # The last sweep of the model that has most goes first.
        model = max(chosen, key=lambda name: len(chosen[name]))
        left_out.append(f"{model}: no time for the sweep {chosen[model][-1]!r}.")
        chosen[model] = chosen[model][:-1]
    turn_seconds = min(max(turn_seconds, _LEAST_SECONDS), _MOST_SECONDS)
    if not turns:
        epochs = bounded(fitting(_RUNS_SHARE + _TURNS_SHARE))
    takes = runs_take(epochs)
    takes += overhead + REPEATS * len(turns) * turn_seconds
    if takes > seconds:
        left_out.append("It takes longer than was asked for.")
    return Plan(dict(base), tuple(range(num_seeds)), epochs, chosen, turn_seconds, tuple(left_out), takes)


def describe(plan: Plan, cores: int) -> list[str]:
    """Return lines about what will be run."""
    lines = []
    for model, setting in plan.base.items():
        arms, seeds = len(ARMS) * len(plan.seeds), counted(len(plan.seeds), "seed")
        lines.append(
            f"{model}: {arms} runs ({len(ARMS)} sources, {seeds}) of {plan.epochs[model]} epochs, "
            f"batches of {setting.batch_size}, {setting.size} x {setting.size} pixels"
        )
        for name in plan.sweeps[model]:
            sweep = SWEEPS[name]
            values = ", ".join(sweep.show(value) for value in sweep.values(setting, cores))
            lines.append(f"  {sweep.title.lower()}: {values}; turns of {plan.turn_seconds:.1f} s, each {REPEATS} times")
    return [*lines, *plan.left_out, f"about {counted(max(round(plan.seconds / 60), 1), 'minute')} in all"]
