"""Conversions, undisturbed and finished after a fault, and the checks of their results."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .nursery import Ended, Interruption, Nursery, Request
from .scenarios import NUM_PARTS, Scenario
from .shim import Call, read_log


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
        manifest: Its manifest.
        files: Names of its files; the content of skipped.tsv.
        order: Names of the sources as they were begun.
        changes: The kind of each change of files, in order.
        seconds: It took.
        most_lost: Sources that an interruption may cost: those of a part, and of one for each further worker.
        old_digest: Of the dataset that it replaces.
    """

    digest: str
    manifest: dict[str, Any]
    files: dict[str, bytes]
    order: list[str]
    changes: list[tuple[str, str]]
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
        self._calls = log.with_name("calls")

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
        alone, changes = ended, self.changes()
        if scenario.workers > 1:
            digest = manifest_of(self.out)["content_digest"]
            self.begin(scenario)
            alone = self.convert(scenario, workers=1)
            expect(manifest_of(self.out)["content_digest"] == digest, "another digest with one worker", alone)
        parts = len(manifest_of(self.out)["parts"])
        commits = sum(change[0] == "S" and change[1] == "data.mdb" for change in self.changes())
        expect(parts == NUM_PARTS and commits > parts, f"{parts} parts, {commits} commits", alone)
        return Whole(
            digest=manifest_of(self.out)["content_digest"],
            manifest=manifest_of(self.out),
            files=_files(self.out),
            order=alone.started,
            changes=changes,
            seconds=ended.seconds,
            most_lost=scenario.workers * -(-len(alone.started) // NUM_PARTS) + 2,
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
    ) -> Ended:
        """Run a command; its calls are written down."""
        ended = self._nursery.run(Request(words, self.folder, self.log, interruption, can_exchange, self._calls))
        expect(not ended.hung, "it hung", ended)
        return ended

    def calls(self) -> list[Call]:
        """Return the changes of files by the last command, at most until its interruption."""
        return read_log(self._calls, self.folder)

    def changes(self) -> list[tuple[str, str]]:
        """Return the kind of each of them."""
        return [kind_of(call) for call in self.calls()]

    def convert(
        self, scenario: Scenario, interruption: Interruption | None = None, *, workers: int | None = None
    ) -> Ended:
        """Run a scenario's command, interrupted or not."""
        self.counts["conversions"] += 1
        words = scenario.command(self._sources, self.out, workers=workers)
        return self.run(words, interruption, can_exchange=scenario.can_exchange)

    def committed(self) -> set[int]:
        """Return the numbers of the sources of which an unfinished conversion has complete parts."""
        complete = [int(facts.parent.name[5:]) for facts in self.partial.glob("part-?????/facts.json")]
        bounds = json.loads((self.partial / "plan.json").read_bytes()).get("bounds") if complete else None
        return {source for part in complete if bounds for source in range(bounds[part], bounds[part + 1])}

    def check_work(self, whole: Whole, before: set[int], after: set[int], ended: Ended) -> None:
        """Check that nothing was decoded again that had been committed before, and that little was decoded in vain."""
        again = {whole.order[source] for source in before} & set(ended.started)
        self.counts["lost"] += len(again)
        expect(not again, f"{len(again)} sources of {len(before)} committed ones were decoded again", ended)
        if ended.status and not self.out.exists():
            lost = len(set(ended.started) - {whole.order[source] for source in after})
            expect(lost <= whole.most_lost, f"{lost} sources were decoded in vain; {whole.most_lost} may be", ended)

    def check_moment(self, whole: Whole, scenario: Scenario, ended: Ended) -> None:
        """Check the files between two runs: at OUT, a complete dataset or none."""
        names = set(os.listdir(self.folder))
        others = [name for name in names if not re.fullmatch(r"out\.lmdb(\.partial|\.replaced-.+)?", name)]
        expect(not others, f"{others} beside OUT", ended)
        if "out.lmdb" in names:
            self.check_sound(self.out, ended)
            digest = manifest_of(self.out)["content_digest"]
            expect(digest in (whole.digest, whole.old_digest), "another dataset is at OUT", ended)
        else:
            expect(not scenario.replaces or not scenario.can_exchange, "the older dataset is gone", ended)

    def finish(self, scenario: Scenario) -> None:
        """Let a conversion end, and check the result."""
        self.finish_after(scenario, self.committed())

    def finish_after(self, scenario: Scenario, before: set[int]) -> None:
        """Let a conversion end that has committed some sources before, and check the result."""
        whole = self.whole(scenario)
        ended = self.convert(scenario)
        expect(ended.status == 0, f"exit status {ended.status} at last", ended)
        self.check_work(whole, before, before, ended)
        expect(os.listdir(self.folder) == ["out.lmdb"], f"{sorted(os.listdir(self.folder))} is left", ended)
        manifest = manifest_of(self.out)
        expect(manifest["content_digest"] == whole.digest, "another digest", ended)
        expect(manifest == whole.manifest, "another manifest", ended)
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


# What a process alone knows: parts in work, files that are written, and what is replaced.
_TAGS = re.compile(r"(part-[0-9]{5,}\.|\.new-|\.replaced-)[^/]+")


def kind_of(call: Call) -> tuple[str, str]:
    """Return the common name of changes of one kind."""
    folder, name = os.path.split(re.sub("[0-9]{5}", "N", _TAGS.sub(r"\1*", call.path)))
    return call.kind, "columns/*" if os.path.basename(folder).startswith("columns") else name


def drawn_change(changes: list[tuple[str, str]], times: Counter[tuple[str, str]], rng: random.Random) -> int:
    """Return the number, counted from 1, of a change of one of the kinds that were drawn least often."""
    fewest = min(times[change] for change in changes)
    wanted = rng.choice(sorted({change for change in changes if times[change] == fewest}))
    return rng.choice([number for number, change in enumerate(changes, 1) if change == wanted])


def manifest_of(path: Path) -> dict[str, Any]:
    """Return a dataset's manifest."""
    manifest: dict[str, Any] = json.loads((path / "manifest.json").read_bytes())
    return manifest


def _files(path: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() if entry.suffix == ".tsv" else b"" for entry in path.iterdir()}
