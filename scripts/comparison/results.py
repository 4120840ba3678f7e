"""The results of a comparison in one JSON file, which is written after every run and every turn, and gone on with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from comparison.plan import REPEATS, Plan, Run, TurnOf
from comparison.settings import Arm, Setting
from comparison.training import Epoch, Turn
from lmdbloader.base.files import replacing
from lmdbloader.errors import FormatError, OptionError

_FORMAT = 1


@dataclass(slots=True)
class Results:
    """Everything that was measured.

    Attributes:
        wanted: The options that a second call must share.
        facts: Names and values about the data and the machine.
        environment: All that reproduces it: `describe` of the package.
        created: When it was begun, in ISO 8601's format.
        release: Of lmdbloader.
        cores: Of the machine.
        device: That trained: "cpu" or "cuda".
        num_samples: Model -> samples of an epoch.
        plan: What is run.
        scores_before: Model -> the score without a model, bicubic's; none for classes.
        runs: Key of a Run -> its epochs.
        turns: Key of a TurnOf -> its turn.
    """

    wanted: dict[str, Any]
    facts: list[tuple[str, str]]
    created: str
    release: str
    cores: int
    device: str
    num_samples: dict[str, int]
    plan: Plan
    scores_before: dict[str, float] = field(default_factory=dict)
    runs: dict[str, list[Epoch]] = field(default_factory=dict)
    turns: dict[str, Turn] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    def runs_of(self, model: str, arm: Arm) -> list[list[Epoch]]:
        """Return the runs of a model from an arm that are done, by seed."""
        keys = (Run(model, arm, seed).key for seed in self.plan.seeds)
        return [self.runs[key] for key in keys if key in self.runs]

    def turns_of(self, model: str, arm: Arm, sweep: str, place: int) -> list[Turn]:
        """Return the turns with a value of a sweep that are done."""
        keys = (TurnOf(model, arm, sweep, place, number).key for number in range(REPEATS))
        return [self.turns[key] for key in keys if key in self.turns]

    @property
    def num_missing(self) -> int:
        """Runs and turns of the plan that are not done."""
        return sum(item.key not in self.runs and item.key not in self.turns for item in self.plan.items(self.cores))

    def setting(self, model: str) -> Setting:
        """Return the setting that a model's runs have."""
        return self.plan.base[model]

    def save(self, path: Path) -> None:
        """Write the file; the one before is replaced once the new one is complete."""
        value = {name: getattr(self, name) for name in self.__slots__ if name not in ("plan", "runs", "turns")}
        value |= {
            "format": _FORMAT,
            "plan": self.plan.as_json(),
            "runs": {key: [asdict(epoch) for epoch in epochs] for key, epochs in self.runs.items()},
            "turns": {key: asdict(turn) for key, turn in self.turns.items()},
        }
        with replacing(path) as hidden:
            hidden.write_text(json.dumps(value, indent=1), "utf-8")


def read(value: Any) -> Results:
    """Return the results from what `save` writes, as parsed JSON.

    Raises:
        FormatError: It is something else.
    """
    try:
        rest = dict(value)
        if rest.pop("format") != _FORMAT:
            raise ValueError("format")
        plan, runs, turns = (rest.pop(name) for name in ("plan", "runs", "turns"))
        found = Results(**rest, plan=Plan.from_json(plan))
        found.facts = [(name, text) for name, text in found.facts]
        found.runs = {key: [Epoch(**epoch) for epoch in epochs] for key, epochs in runs.items()}
        found.turns = {key: Turn(**turn) for key, turn in turns.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"these are not results of compare_training.py ({error}).") from error
    return found


def load(path: Path, wanted: Mapping[str, Any] | None = None) -> Results | None:
    """Return the results of an earlier call, None if there are none.

    Args:
        path: Of the file.
        wanted: The options of the call that goes on with them; None to look at them only.

    Raises:
        OptionError: They are of other options.
        FormatError: The file is something else.
    """
    if not path.exists():
        return None
    try:
        found = read(json.loads(path.read_text("utf-8")))
    except (ValueError, FormatError) as error:
        raise FormatError(f"{path}: {error} Name another folder with --out.") from error
    before = found.wanted
    wanted = before if wanted is None else wanted
    differing = sorted(name for name in {*before, *wanted} if before.get(name) != wanted.get(name))
    if differing:
        parts = ", ".join(f"--{name.replace('_', '-')} {before.get(name)}" for name in differing)
        raise OptionError(
            f"{path}: was begun with {parts}. Repeat that to go on with it, or name another folder with --out."
        )
    return found
