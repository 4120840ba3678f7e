"""Conversions that are killed, at random times and at each step, and run again until they are done."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from .nursery import Ended, Interruption, Nursery, Request
from .outcome import Outcome
from .power import put_back
from .scenarios import SCENARIOS, Scenario, make_sources
from .steps import Step

_MUST_HOLD = "same digest, 0 lost"
# Of ten interruptions one after the other: those at a step, at a random time, by a power cut, and those of other kinds.
_KINDS = ("step", "step", "step", "step", "step", "step", "time", "time", "cut", "other")
_OTHERS = ("term", "int", "worker")
_INTERRUPTED = 130
# What workers have ahead of the transactions: parts that wait, and tasks.
_TASKS_AHEAD = 5
_ENOUGH_FAILURES = 20


class Wrong(Exception):
    """What must hold did not."""


@dataclass(frozen=True, slots=True)
class Whole:
    """What a scenario comes to where nothing befalls it.

    Attributes:
        digest: The dataset's content_digest.
        manifest: What of its manifest does not depend on how the transactions fell.
        files: Names of its files; the content of skipped.tsv.
        order: Names of the sources as they were begun.
        steps: That it came to.
        seconds: It took.
        most_lost: Sources that a kill may cost: those of a transaction, and what workers have ahead.
        old_digest: Of the dataset that it replaces.
    """

    digest: str
    manifest: dict[str, Any]
    files: dict[str, bytes]
    order: list[str]
    steps: list[Step]
    seconds: float
    most_lost: int
    old_digest: str | None


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Kill conversions `count` times, and interrupt some more of them otherwise."""
    sources = make_sources(folder / "sources")
    (folder / "warm").mkdir()
    warm = [scenario.command(sources, folder / "warm" / f"{i}", workers=1) for i, scenario in enumerate(SCENARIOS[2:8])]
    with Nursery(*warm) as nursery:
        trials = Trials(nursery, sources, folder, random.Random(seed))
        while trials.counts["kills"] < count and len(trials.failures) < _ENOUGH_FAILURES:
            trials.run_one(count)
    names = ("kills", "by a power cut", "steps", "other interruptions", "conversions", "same digest", "lost")
    return Outcome("kills", _MUST_HOLD, {name: trials.counts[name] for name in names}, trials.failures)


class Trials:
    """Conversions one after the other, in one place.

    Attributes:
        counts: Of what was done, and what came of it.
        failures: One line each.
    """

    def __init__(self, nursery: Nursery, sources: Path, folder: Path, rng: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self._nursery, self._rng, self._folder = nursery, rng, folder
        self._sources = sources
        self._wholes: dict[Scenario, Whole] = {}
        self._waiting: list[Scenario] = []
        self._kinds: list[str] = []
        self._killed_at: Counter[tuple[str, str, bool]] = Counter()
        self._run = folder / "run"
        self._out = self._run / "out.lmdb"

    def run_one(self, count: int) -> None:
        """Interrupt one conversion a few times, let it end, and see what came of it; `count` kills are enough."""
        if not self._waiting:
            self._waiting = self._rng.sample(SCENARIOS, len(SCENARIOS))
        scenario = self._waiting.pop()
        befell: list[str] = []
        try:
            whole = self._whole(scenario)
            self._begin(scenario)
            for _ in range(self._rng.choice((1, 1, 1, 2, 3))):
                if self.counts["kills"] >= count or not self._interrupt(scenario, whole, befell):
                    break
            self._finish(scenario, whole)
        except Wrong as error:
            self.failures.append(f"{scenario.name}, {' then '.join(befell)}: {error}")

    def _whole(self, scenario: Scenario) -> Whole:
        """Return what an undisturbed run comes to, of which the first is made now."""
        if scenario in self._wholes:
            return self._wholes[scenario]
        self._begin(scenario)
        old_digest = _manifest(self._out)["content_digest"] if scenario.replaces else None
        ended = self._convert(scenario)
        expect(ended.status == 0, f"undisturbed: exit status {ended.status}", ended)
        alone = ended
        if scenario.workers > 1:
            digest = _manifest(self._out)["content_digest"]
            self._begin(scenario)
            alone = self._convert(scenario, workers=1)
            expect(_manifest(self._out)["content_digest"] == digest, "another digest with one worker", alone)
        commits = [0, *alone.commits, len(alone.started)]
        most_lost = max(b - a for a, b in itertools.pairwise(commits))
        expect(len(alone.commits) >= 4, f"{len(alone.commits)} transactions only", alone)
        self._wholes[scenario] = whole = Whole(
            digest=_manifest(self._out)["content_digest"],
            manifest=_lasting(_manifest(self._out)),
            files=_files(self._out),
            order=alone.started,
            steps=ended.steps,
            seconds=ended.seconds,
            most_lost=most_lost + (3 if scenario.workers == 1 else 3 * scenario.workers * _TASKS_AHEAD),
            old_digest=old_digest,
        )
        self.counts["steps"] = len({_key(step) for known in self._wholes.values() for step in known.steps})
        return whole

    def _begin(self, scenario: Scenario) -> None:
        """Make the folder that OUT is in, with the older dataset where one is replaced."""
        shutil.rmtree(self._run, ignore_errors=True)
        self._run.mkdir()
        if not scenario.replaces:
            return
        old = self._folder / "old.lmdb"
        if not old.exists():
            words = ["convert", str(self._sources / "images"), str(self._out), "--workers", "1", "--subset", "5"]
            ended = self._nursery.run(Request(words, self._run, self._folder / "log"))
            expect(ended.status == 0, "the older dataset", ended)
            os.rename(self._out, old)
        shutil.copytree(old, self._out)

    def _convert(
        self, scenario: Scenario, interruption: Interruption | None = None, workers: int | None = None
    ) -> Ended:
        words = scenario.command(self._sources, self._out, workers=workers)
        log = self._folder / "log"
        ended = self._nursery.run(Request(words, self._run, log, interruption, scenario.can_exchange))
        self.counts["conversions"] += 1
        expect(not ended.hung, "it hung", ended)
        return ended

    def _interrupt(self, scenario: Scenario, whole: Whole, befell: list[str]) -> bool:
        """Run the conversion until something befalls it; return whether that happened."""
        interruption = self._choose(scenario, whole)
        befell.append(str(interruption))
        before = _committed(self._partial)
        ended = self._convert(scenario, interruption)
        if not ended.was_interrupted:
            expect(ended.status == 0, f"exit status {ended.status}", ended)
            return False
        if interruption.step:
            self._killed_at[_key(interruption.step)] += 1
        self._check_status(interruption, ended)
        after = _committed(self._partial)
        if interruption.kind == "cut":
            put_back(self._folder / "log" / "cut", self._run)
            kept = _committed(self._partial) if self._partial.exists() else None
            expect(kept in (after, None) or self._out.exists(), f"the power cut left {kept} of {after} sources", ended)
            expect(kept is not None or not after or self._out.exists(), f"the power cut left nothing of {after}", ended)
        self._check_work(whole, before, after, ended)
        self._check_moment(whole, scenario, ended)
        return True

    @property
    def _partial(self) -> Path:
        return self._run / "out.lmdb.partial"

    def _choose(self, scenario: Scenario, whole: Whole) -> Interruption:
        rng = self._rng
        if not self._kinds:
            self._kinds = rng.sample(_KINDS, len(_KINDS))
        kind = self._kinds.pop()
        seed = rng.randrange(2**32)
        if kind == "time":
            return Interruption("kill", seconds=rng.uniform(0, whole.seconds))
        # A step of the kind at which the fewest were killed; any of those that a conversion has of it.
        fewest = min(self._killed_at[_key(step)] for step in whole.steps)
        key = rng.choice(sorted({_key(s) for s in whole.steps if self._killed_at[_key(s)] == fewest}))
        places = [i for i, step in enumerate(whole.steps) if _key(step) == key]
        at = rng.choice(places)
        nth = whole.steps[: at + 1].count(whole.steps[at])
        others = _OTHERS if scenario.workers > 1 else _OTHERS[:2]
        what: Any = {"step": "kill", "cut": "cut"}.get(kind) or rng.choice(others)
        return Interruption(what, whole.steps[at], nth, seed=seed)

    def _check_status(self, interruption: Interruption, ended: Ended) -> None:
        lines = ended.error.count("\n")
        if interruption.kind in ("kill", "cut"):
            self.counts["kills"] += 1
            self.counts["by a power cut"] += interruption.kind == "cut"
            expect(ended.status == -9, f"exit status {ended.status}", ended)
            return
        self.counts["other interruptions"] += 1
        if interruption.kind == "worker":
            said = ended.status == 1 and lines == 1 and "was killed by SIGKILL" in ended.error
            expect(ended.status == 0 or said, f"exit status {ended.status} when a worker died", ended)
        else:
            said = ended.status == _INTERRUPTED and lines == 1 and "interrupted" in ended.error
            expect(ended.status == 0 or said, f"exit status {ended.status} at a signal", ended)

    def _check_work(self, whole: Whole, before: int, after: int, ended: Ended) -> None:
        """Check that nothing was decoded again that was committed, and that little was decoded in vain."""
        again = set(whole.order[:before]) & set(ended.started)
        self.counts["lost"] += len(again)
        expect(not again, f"{len(again)} sources of {before} committed ones were decoded again", ended)
        if ended.status and not self._out.exists():
            lost = len(set(ended.started) - set(whole.order[:after]))
            expect(lost <= whole.most_lost, f"{lost} sources were decoded in vain; {whole.most_lost} may be", ended)

    def _check_moment(self, whole: Whole, scenario: Scenario, ended: Ended) -> None:
        """Check what is at OUT between two runs."""
        names = set(os.listdir(self._run))
        known = {"out.lmdb", "out.lmdb.partial"} | (set() if scenario.can_exchange else {"out.lmdb.replaced"})
        expect(names <= known, f"{sorted(names - known)} beside OUT", ended)
        if "out.lmdb" in names:
            _check_sound(self._out, ended)
            digest = _manifest(self._out)["content_digest"]
            expect(digest in (whole.digest, whole.old_digest), "another dataset is at OUT", ended)
        else:
            expect(not scenario.replaces or not scenario.can_exchange, "the older dataset is gone", ended)

    def _finish(self, scenario: Scenario, whole: Whole) -> None:
        """Let the conversion end, and check what came of it; and that it stays as it is when it is run again."""
        before = _committed(self._partial)
        ended = self._convert(scenario)
        expect(ended.status == 0, f"exit status {ended.status} at last", ended)
        self._check_work(whole, before, before, ended)
        expect(os.listdir(self._run) == ["out.lmdb"], f"{sorted(os.listdir(self._run))} is left", ended)
        manifest = _manifest(self._out)
        expect(manifest["content_digest"] == whole.digest, "another digest", ended)
        expect(_lasting(manifest) == whole.manifest, "another manifest", ended)
        expect(_files(self._out) == whole.files, "other files", ended)
        _check_sound(self._out, ended)
        self.counts["same digest"] += 1
        if self._rng.random() < 0.3:
            self._check_again(scenario)

    def _check_again(self, scenario: Scenario) -> None:
        """Check that a finished dataset is left as it is."""
        before = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(self._out)}
        words = [word for word in scenario.command(self._sources, self._out) if word != "--overwrite"]
        ended = self._nursery.run(Request(words, self._run, self._folder / "log"))
        expect(ended.status == 0 and "nothing to do" in ended.output, "not taken as finished", ended)
        after = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(self._out)}
        expect(after == before and os.listdir(self._run) == ["out.lmdb"], "the finished dataset was changed", ended)


def expect(holds: bool, what: str, ended: Ended) -> None:
    """Raise Wrong with what the process said unless something holds."""
    if not holds:
        raise Wrong(f"{what}; it said {ended.error.strip()[-500:]!r}")


def _key(step: Step) -> tuple[str, str, bool]:
    folder, name = os.path.split(step.path)
    return step.call, "columns/*" if os.path.basename(folder) == "columns" else name, step.is_done


def _manifest(path: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((path / "manifest.json").read_bytes())
    return manifest


def _lasting(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what does not depend on how the transactions fell."""
    sizes = {name: size for name, size in manifest["sizes"].items() if name in ("payload_nbytes", "raw_nbytes")}
    return {k: v for k, v in manifest.items() if k not in ("index_digest", "data_digest")} | {"sizes": sizes}


def _files(path: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() if entry.suffix == ".tsv" else b"" for entry in path.iterdir()}


def _check_sound(path: Path, ended: Ended) -> None:
    import lmdbloader

    expect(lmdbloader.verify(path).is_sound, f"{path.name} is damaged", ended)


def _committed(partial: Path) -> int:
    """Return how many sources an unfinished conversion has committed."""
    data = partial / "data.mdb"
    if not data.is_file() or not data.stat().st_size:
        return 0
    with lmdb.open(str(data), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
        progress = transaction.get(b"progress")
        return int(json.loads(progress).get("num_sources", 0)) if progress else 0
