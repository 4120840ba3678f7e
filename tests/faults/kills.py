"""Conversions that are killed, at random times and at each step, and run again until they are done."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from . import shim
from .converting import Deck, Place, Whole, Wrong, drawn_change, expect
from .nursery import Ended, Interruption, Nursery
from .outcome import Outcome
from .scenarios import SCENARIOS, Scenario, make_sources

# Of nine interruptions: those after a change of files, at a random time, and those of other kinds.
_KINDS = ("step", "step", "step", "step", "step", "step", "time", "time", "other")
_OTHERS = ("term", "int", "worker")
_INTERRUPTED = 130
_ENOUGH_FAILURES = 20


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Kill conversions `count` times, and interrupt some more of them otherwise."""
    library = shim.build(folder)
    if library is None:
        return Outcome({f"left out, {shim.NO_COMPILER}": count}, [])
    rng = random.Random(seed)
    sources = make_sources(folder / "sources")
    failures: list[str] = []
    with Nursery(library) as nursery:
        place = Place(nursery, sources, folder, folder / "log")
        kills = Kills(place, rng)
        scenarios = Deck(SCENARIOS, rng)
        while kills.counts["kills"] < count and len(failures) < _ENOUGH_FAILURES:
            scenario = scenarios.draw()
            befell: list[str] = []
            try:
                place.whole(scenario)
                place.begin(scenario)
                for _ in range(min(rng.choice((1, 1, 1, 2, 3)), count - kills.counts["kills"])):
                    if not kills.interrupt(scenario, befell):
                        break
                place.finish(scenario)
                if rng.random() < 0.3:
                    place.check_again(scenario)
            except Wrong as error:
                failures.append(f"{scenario.name}, {' then '.join(befell)}: {error}")
    steps = {change for whole in place.wholes for change in whole.changes}
    counts = kills.counts + place.counts
    counts.update({"steps": len(steps), "steps killed at": len(kills.killed_at)})
    names = ("kills", "other interruptions", "steps", "steps killed at", "conversions")
    return Outcome({name: counts[name] for name in (*names, "same digest", "lost")}, failures)


class Kills:
    """Interrupts conversions at one place.

    Attributes:
        counts: Kills, and other interruptions.
        killed_at: How often after each kind of change.
    """

    def __init__(self, place: Place, rng: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self.killed_at: Counter[tuple[str, str]] = Counter()
        self._place, self._rng = place, rng
        self._kinds = Deck(_KINDS, rng)

    def interrupt(self, scenario: Scenario, befell: list[str]) -> bool:
        """Run a conversion until something befalls it; return whether that happened."""
        place = self._place
        whole = place.whole(scenario)
        interruption = self._choose(scenario, whole)
        befell.append(str(interruption))
        before = place.committed()
        ended = place.convert(scenario, interruption)
        if not ended.was_interrupted:
            expect(ended.status == 0, f"exit status {ended.status}", ended)
            return False
        if interruption.number:
            self.killed_at[whole.changes[interruption.number - 1]] += 1
        self._check_status(interruption, ended)
        after = place.committed()
        place.check_work(whole, before, after, ended)
        place.check_moment(whole, scenario, ended)
        return True

    def _choose(self, scenario: Scenario, whole: Whole) -> Interruption:
        rng = self._rng
        kind = self._kinds.draw()
        if kind == "time":
            return Interruption("kill", seconds=rng.uniform(0, whole.seconds))
        number = drawn_change(whole.changes, self.killed_at, rng)
        others = _OTHERS if scenario.workers > 1 else _OTHERS[:2]
        what: Any = "kill" if kind == "step" else rng.choice(others)
        return Interruption(what, number, seed=rng.randrange(2**32))

    def _check_status(self, interruption: Interruption, ended: Ended) -> None:
        if interruption.kind == "kill":
            self.counts["kills"] += 1
            expect(ended.status == -9, f"exit status {ended.status}", ended)
            return
        self.counts["other interruptions"] += 1
        expected, says = (1, "killed by SIGKILL") if interruption.kind == "worker" else (_INTERRUPTED, "interrupted")
        # One line with the error; another one where something of the conversion is kept.
        said = ended.status == expected and ended.error.count("\n") <= 2 and says in ended.error
        expect(ended.status == 0 or said, f"exit status {ended.status}", ended)
