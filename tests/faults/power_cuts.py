"""Power cuts at every call of a conversion: lengths, sectors and names that were not flushed are there or not."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from . import shim
from .converting import Deck, Place, Wrong, manifest_of
from .nursery import Nursery
from .outcome import Outcome
from .replay import Disk, moments
from .scenarios import FEW, SCENARIOS, Scenario, make_sources
from .shim import Call

_ENOUGH_FAILURES = 20
# Of one conversion that was written down.
_STATES = 60
_SCENARIOS = (FEW, FEW, FEW, next(s for s in SCENARIOS if s.replaces))


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a conversion.

    Attributes:
        number: Of the call in which the power goes.
        call: That call.
        disk: The flushed and the unflushed writes until then.
        committed: The sources that were committed before, so that none of them may be lost.
        window: How often something had been flushed.
    """

    number: int
    call: Call
    disk: Disk
    committed: set[int]
    window: int


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Cut the power `count` times, and let every conversion go on."""
    library = shim.build(folder)
    if library is None:
        return Outcome({f"left out, {shim.NO_COMPILER}": count}, [])
    rng = random.Random(seed)
    sources = make_sources(folder / "sources")
    with Nursery(library) as nursery:
        cuts = Cuts(Place(nursery, sources, folder, folder / "log"), rng)
        deck = Deck(_SCENARIOS, rng)
        while cuts.counts["states"] < count and len(cuts.failures) < _ENOUGH_FAILURES:
            cuts.cut(deck.draw(), min(_STATES, count - cuts.counts["states"]))
    names = ("states", "in windows", "before the first commit", "cut twice", "stuck", "lost", "same digest")
    counts = cuts.counts + cuts.place.counts
    counts["in windows"] = len(cuts.windows)
    return Outcome({name: counts[name] for name in names}, cuts.failures)


class Cuts:
    """Cuts the power of conversions at one place.

    Attributes:
        place: The place.
        counts: Numbers of states and of outcomes.
        windows: Between two calls that flush, in which the power went: (scenario, cut before, window).
        failures: One line for each.
    """

    def __init__(self, place: Place, rng: random.Random) -> None:
        self.place = place
        self.counts: Counter[str] = Counter()
        self.windows: set[tuple[str, bool, int]] = set()
        self.failures: list[str] = []
        self._rng = rng

    def cut(self, scenario: Scenario, count: int) -> None:
        """Record a conversion, whole or one that goes on after a power cut, and cut its power so often."""
        place, rng = self.place, self._rng
        place.whole(scenario)
        place.begin(scenario)
        went_on: set[int] = set()
        if rng.random() < 0.4:
            recorded = self._record(scenario, set())
            moment = rng.choice(recorded)
            self._put(moment, rng.randrange(2**32))
            went_on = moment.committed
            self.counts["cut twice"] += count
        recorded = self._record(scenario, went_on)
        if not recorded:  # the first cut came when all was done, and who goes on has nothing to write
            self.counts["cut twice"] -= count
            return
        twice = bool(went_on)
        for _ in range(count):
            self.counts["states"] += 1
            # As often in a window of few calls as in one of many.
            window = rng.choice(sorted({moment.window for moment in recorded}))
            moment = rng.choice([moment for moment in recorded if moment.window == window])
            self.windows.add((scenario.name, twice, window))
            self.counts["before the first commit"] += not moment.committed
            seed = rng.randrange(2**32)
            try:
                self._put(moment, seed)
                place.finish_after(scenario, set() if self._is_through(scenario) else moment.committed)
            except Wrong as error:
                what = "lost" if "decoded again" in str(error) else "stuck"
                self.counts["stuck"] += what == "stuck"
                call = f"{moment.call.kind} {moment.call.path}"
                self.failures.append(f"{scenario.name}, call {moment.number} ({call}), seed {seed}: {what}: {error}")

    def _record(self, scenario: Scenario, went_on: set[int]) -> list[Moment]:
        """Let a conversion end; return its moments."""
        place = self.place
        before = Disk(place.folder)
        ended = place.convert(scenario)
        if ended.status:
            raise Wrong(f"exit status {ended.status}; it said {ended.error.strip()[-500:]!r}")
        calls = place.calls()
        committed, window, found = went_on, 0, []
        for number, (call, disk) in enumerate(moments(before, calls)):
            found.append(Moment(number, call, disk, committed, window))
            window += call.kind in "SD"
            if call.kind == "S" and call.path == place.partial.name:
                committed = committed | self._committed(disk)
        return found

    def _committed(self, disk: Disk) -> set[int]:
        """Return the sources that were committed as the process sees it."""
        shutil.rmtree(self.place.folder)
        disk.write(self.place.folder)
        return self.place.committed()

    def _put(self, moment: Moment, seed: int) -> None:
        shutil.rmtree(self.place.folder)
        moment.disk.cut(self.place.folder, random.Random(seed))

    def _is_through(self, scenario: Scenario) -> bool:
        """Return whether the dataset is in place and whoever overwrites makes it once more."""
        out, digest = self.place.out, self.place.whole(scenario).digest
        return scenario.replaces and (out / "manifest.json").exists() and manifest_of(out)["content_digest"] == digest
