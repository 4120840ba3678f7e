"""Conversions, undisturbed and finished after a fault, and the checks of their results."""

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
from .scenarios import Scenario
from .steps import Step

# The work ahead of the transactions: waiting parts, and tasks; and the most sources of a task.
_TASKS_AHEAD = 5
_TASK_SOURCES = 3


class Wrong(Exception):
    """A promise did not hold."""


def expect(holds: bool, what: str, ended: Ended) -> None:
    """Raise Wrong with the process's output unless a condition holds."""
    if not holds:
        raise Wrong(f"{what}; it said {ended.error.strip()[-500:]!r}")


@dataclass(frozen=True, slots=True)
class Whole:
    """A scenario's result without a fault.

    Attributes:
        digest: The dataset's content_digest.
        manifest: The parts of its manifest that do not depend on the bounds of transactions.
        files: Names of its files; the content of skipped.tsv.
        order: Names of the sources as they were begun.
        steps: That it came to.
        seconds: It took.
        most_lost: Sources that an interruption may cost: those of a transaction, and those that workers have ahead.
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


class Place:
    """A folder in which conversions are made one after the other.

    Attributes:
        folder: Holds OUT and the files that a conversion leaves, nothing else.
        out: The dataset.
        partial: The folder that it is until then.
        log: Another folder for a process's output.
        counts: Conversions, those that were as if undisturbed ("same digest"), and sources that were lost.
    """

    def __init__(self, nursery: Nursery, sources: Path, folder: Path, log: Path) -> None:
        self.folder, self.log = folder / "run", log
        self.out, self.partial = self.folder / "out.lmdb", self.folder / "out.lmdb.partial"
        self.counts: Counter[str] = Counter()
        self._nursery, self._sources, self._old = nursery, sources, log.with_name("old.lmdb")
        self._wholes: dict[Scenario, Whole] = {}

    @property
    def wholes(self) -> list[Whole]:
        """The results of the scenarios so far."""
        return list(self._wholes.values())

    def whole(self, scenario: Scenario) -> Whole:
        """Return the result of an undisturbed run; it is made once."""
        if scenario not in self._wholes:
            self._wholes[scenario] = self._undisturbed(scenario)
        return self._wholes[scenario]

    def _undisturbed(self, scenario: Scenario) -> Whole:
        self._nursery.warm(scenario.command(self._sources, self.log.with_name("warm.lmdb"), workers=1))
        shutil.rmtree(self.log.with_name("warm.lmdb"))
        self.begin(scenario)
        old_digest = manifest_of(self.out)["content_digest"] if scenario.replaces else None
        ended = self.convert(scenario)
        expect(ended.status == 0, f"undisturbed: exit status {ended.status}", ended)
        alone = ended
        if scenario.workers > 1:
            digest = manifest_of(self.out)["content_digest"]
            self.begin(scenario)
            alone = self.convert(scenario, workers=1)
            expect(manifest_of(self.out)["content_digest"] == digest, "another digest with one worker", alone)
        commits = [0, *alone.commits, len(alone.started)]
        expect(len(alone.commits) >= 4, f"{len(alone.commits)} transactions only", alone)
        ahead = 1 if scenario.workers == 1 else scenario.workers * _TASKS_AHEAD
        return Whole(
            digest=manifest_of(self.out)["content_digest"],
            manifest=_lasting(manifest_of(self.out)),
            files=_files(self.out),
            order=alone.started,
            steps=ended.steps,
            seconds=ended.seconds,
            most_lost=max(b - a for a, b in itertools.pairwise(commits)) + ahead * _TASK_SOURCES,
            old_digest=old_digest,
        )

    def begin(self, scenario: Scenario) -> None:
        """Make the folder that OUT is in, with the older dataset where one is replaced."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if not scenario.replaces:
            return
        shutil.copytree(self.older(), self.out)

    def older(self) -> Path:
        """Return another dataset in another folder."""
        if not self._old.exists():
            words = ["convert", str(self._sources / "images"), str(self._old), "--workers", "1", "--subset", "5"]
            self._nursery.warm(words)
        return self._old

    def run(
        self,
        words: list[str],
        interruption: Interruption | None = None,
        *,
        can_exchange: bool = True,
        calls: Path | None = None,
    ) -> Ended:
        """Run a command; its calls are written down at `calls`."""
        ended = self._nursery.run(Request(words, self.folder, self.log, interruption, can_exchange, calls))
        expect(not ended.hung, "it hung", ended)
        return ended

    def record(self, scenario: Scenario, calls: Path) -> Ended:
        """Run a scenario's command to its end, and write its calls down."""
        self.counts["conversions"] += 1
        return self.run(scenario.command(self._sources, self.out), can_exchange=scenario.can_exchange, calls=calls)

    def convert(
        self, scenario: Scenario, interruption: Interruption | None = None, *, workers: int | None = None
    ) -> Ended:
        """Run a scenario's command, interrupted or not."""
        self.counts["conversions"] += 1
        words = scenario.command(self._sources, self.out, workers=workers)
        return self.run(words, interruption, can_exchange=scenario.can_exchange)

    def committed(self) -> int:
        """Return how many sources an unfinished conversion has committed, according to its journal and its data."""
        data, journal = self.partial / "data.mdb", self.partial / "journal"
        if not journal.is_file() or not data.is_file() or not data.stat().st_size:
            return 0
        with lmdb.open(str(data), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
            progress = transaction.get(b"progress")
        num_samples = json.loads(progress)["num_samples"] if progress else -1
        lines = journal.read_bytes().split(b"\n")[:-1]
        notes = [json.loads(line.partition(b" ")[2]) for line in lines]
        return sum(len(note["sources"]) for note in notes if note["num_samples"] <= num_samples)

    def check_work(self, whole: Whole, before: int, after: int, ended: Ended) -> None:
        """Check that nothing was decoded again that had been committed before, and that little was decoded in vain."""
        again = set(whole.order[:before]) & set(ended.started)
        self.counts["lost"] += len(again)
        expect(not again, f"{len(again)} sources of {before} committed ones were decoded again", ended)
        if ended.status and not self.out.exists():
            lost = len(set(ended.started) - set(whole.order[:after]))
            expect(lost <= whole.most_lost, f"{lost} sources were decoded in vain; {whole.most_lost} may be", ended)

    def check_moment(self, whole: Whole, scenario: Scenario, ended: Ended) -> None:
        """Check the files between two runs: at OUT, a complete dataset or none."""
        names = set(os.listdir(self.folder))
        known = {"out.lmdb", "out.lmdb.partial"} | (set() if scenario.can_exchange else {"out.lmdb.partial.replaced"})
        expect(names <= known, f"{sorted(names - known)} beside OUT", ended)
        if "out.lmdb" in names:
            self.check_sound(self.out, ended)
            digest = manifest_of(self.out)["content_digest"]
            expect(digest in (whole.digest, whole.old_digest), "another dataset is at OUT", ended)
        else:
            expect(not scenario.replaces or not scenario.can_exchange, "the older dataset is gone", ended)

    def finish(self, scenario: Scenario) -> None:
        """Let a conversion end, and check the result."""
        self.finish_after(scenario, self.committed())

    def finish_after(self, scenario: Scenario, before: int) -> None:
        """Let a conversion end that has committed some sources before, and check the result."""
        whole = self.whole(scenario)
        ended = self.convert(scenario)
        expect(ended.status == 0, f"exit status {ended.status} at last", ended)
        self.check_work(whole, before, before, ended)
        expect(os.listdir(self.folder) == ["out.lmdb"], f"{sorted(os.listdir(self.folder))} is left", ended)
        manifest = manifest_of(self.out)
        expect(manifest["content_digest"] == whole.digest, "another digest", ended)
        expect(_lasting(manifest) == whole.manifest, "another manifest", ended)
        expect(_files(self.out) == whole.files, "other files", ended)
        self.check_sound(self.out, ended)
        self.counts["same digest"] += 1

    def check_sound(self, path: Path, ended: Ended) -> None:
        """Check that a dataset is whole."""
        import lmdbloader

        expect(lmdbloader.verify(path).is_sound, f"{path.name} is damaged", ended)

    def check_again(self, scenario: Scenario) -> None:
        """Check that a finished dataset is left as it is."""
        before = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(self.out)}
        words = [word for word in scenario.command(self._sources, self.out) if word != "--overwrite"]
        ended = self.run(words)
        expect(ended.status == 0 and "nothing to do" in ended.output, "not taken as finished", ended)
        after = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(self.out)}
        expect(after == before and os.listdir(self.folder) == ["out.lmdb"], "the finished dataset was changed", ended)


class Deck:
    """Things drawn at random, each once before any is drawn again."""

    def __init__(self, things: tuple[Any, ...], rng: random.Random) -> None:
        self._things, self._rng = things, rng
        self._left: list[Any] = []

    def draw(self) -> Any:
        """Return one of them."""
        if not self._left:
            self._left = self._rng.sample(self._things, len(self._things))
        return self._left.pop()


def kind_of(step: Step) -> tuple[str, str, bool]:
    """Return the common name of steps of one kind."""
    folder, name = os.path.split(step.path)
    return step.call, "columns/*" if os.path.basename(folder) == "columns" else name, step.is_done


def manifest_of(path: Path) -> dict[str, Any]:
    """Return a dataset's manifest."""
    manifest: dict[str, Any] = json.loads((path / "manifest.json").read_bytes())
    return manifest


def _lasting(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the parts that do not depend on the bounds of transactions."""
    sizes = {name: size for name, size in manifest["sizes"].items() if name in ("payload_nbytes", "raw_nbytes")}
    others = ("index", "index_digest", "data_digest", "manifest_digest")
    return {k: v for k, v in manifest.items() if k not in others} | {"sizes": sizes}


def _files(path: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() if entry.suffix == ".tsv" else b"" for entry in path.iterdir()}
