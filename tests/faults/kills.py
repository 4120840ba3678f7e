"""Conversions that are killed, at random times and at each step, and run again until they are done."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from .converting import Deck, Place, Whole, Wrong, expect, kind_of
from .nursery import Ended, Interruption, Nursery
from .outcome import Outcome
from .power import put_back
from .scenarios import SCENARIOS, Scenario, make_sources

_MUST_HOLD = "same digest, 0 lost"
# Of ten interruptions: those at a step, at a random time, by a power cut, and those of other kinds.
_KINDS = ("step", "step", "step", "step", "step", "step", "time", "time", "cut", "other")
_OTHERS = ("term", "int", "worker")
_INTERRUPTED = 130
_NEW_NAME = ("after rename out.lmdb.partial/part-", "before fsync out.lmdb.partial ")
_ENOUGH_FAILURES = 20


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Kill conversions `count` times, and interrupt some more of them otherwise."""
    rng = random.Random(seed)
    sources = make_sources(folder / "sources")
    failures: list[str] = []
    with Nursery() as nursery:
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
    steps = {kind_of(step) for whole in place.wholes for step in whole.steps}
    counts = kills.counts + place.counts
    counts.update({"steps": len(steps), "steps killed at": len(kills.killed_at)})
    names = ("kills", "by a power cut", "other interruptions", "steps", "steps killed at", "conversions")
    return Outcome("kills", _MUST_HOLD, {name: counts[name] for name in (*names, "same digest", "lost")}, failures)


class Kills:
    """Interrupts conversions at one place.

    Attributes:
        counts: Kills, those by a power cut, and other interruptions.
        killed_at: How often at each kind of step.
    """

    def __init__(self, place: Place, rng: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self.killed_at: Counter[tuple[str, str, bool]] = Counter()
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
        if interruption.step:
            self.killed_at[kind_of(interruption.step)] += 1
        self._check_status(interruption, ended)
        after = place.committed()
        if interruption.kind == "cut":
            put_back(place.log / "cut", place.folder)
            kept = place.committed()
            # A part that has just got its name may lose it.
            if f"{interruption.step} ".startswith(_NEW_NAME):
                after = before
            expect(kept >= after or place.out.exists(), f"the power cut left {len(kept)} of {len(after)}", ended)
            after |= kept  # the cut may have taken back the name that the dataset had got just then
        place.check_work(whole, before, after, ended)
        place.check_moment(whole, scenario, ended)
        return True

    def _choose(self, scenario: Scenario, whole: Whole) -> Interruption:
        rng = self._rng
        kind = self._kinds.draw()
        if kind == "time":
            return Interruption("kill", seconds=rng.uniform(0, whole.seconds))
        # A step of the kind at which the fewest were killed; any of those that a conversion has of it.
        fewest = min(self.killed_at[kind_of(step)] for step in whole.steps)
        wanted = rng.choice(sorted({kind_of(s) for s in whole.steps if self.killed_at[kind_of(s)] == fewest}))
        at = rng.choice([i for i, step in enumerate(whole.steps) if kind_of(step) == wanted])
        nth = whole.steps[: at + 1].count(whole.steps[at])
        if scenario.workers > 1 and kind == "cut":
            kind = "step"  # only the flushes of this process are known
        others = _OTHERS if scenario.workers > 1 else _OTHERS[:2]
        what: Any = {"step": "kill", "cut": "cut"}.get(kind) or rng.choice(others)
        return Interruption(what, whole.steps[at], nth, seed=rng.randrange(2**32))

    def _check_status(self, interruption: Interruption, ended: Ended) -> None:
        if interruption.kind in ("kill", "cut"):
            self.counts["kills"] += 1
            self.counts["by a power cut"] += interruption.kind == "cut"
            expect(ended.status == -9, f"exit status {ended.status}", ended)
            return
        self.counts["other interruptions"] += 1
        expected, says = (1, "killed by SIGKILL") if interruption.kind == "worker" else (_INTERRUPTED, "interrupted")
        # One line with the error; another one where something of the conversion is kept.
        said = ended.status == expected and ended.error.count("\n") <= 2 and says in ended.error
        expect(ended.status == 0 or said, f"exit status {ended.status}", ended)
