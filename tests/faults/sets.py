"""Appends, parts and joins that are killed at their steps, or lose their power: the old dataset or the new one."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from .converting import Wrong, expect, kind_of, manifest_of
from .nursery import Ended, Interruption, Nursery, Request
from .outcome import Outcome
from .power import put_back
from .scenarios import make_sources
from .steps import Step

_MUST_HOLD = "the old or the new dataset, goes on"
_ENOUGH_FAILURES = 20
_PARTS = 3
# The command that gives files a second name.
LINKS = "append to one file"


@dataclass(frozen=True, slots=True)
class Work:
    """A command that makes a set, or makes one larger.

    Attributes:
        name: For people.
        begin: Where its first files are.
        words: Of the command.
        repeats: Whether the command does the same once more if it has come to its end.
    """

    name: str
    begin: Path
    words: tuple[str, ...]
    repeats: bool


@dataclass(frozen=True, slots=True)
class Whole:
    """The outcome of a command that nothing befell.

    Attributes:
        old: The content digest of the dataset before; None if there was none.
        new: After it; None if there is none yet.
        names: The files then.
        steps: That it came to.
    """

    old: str | None
    new: str | None
    names: list[str]
    steps: list[Step]


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Interrupt the commands `count` times in all, and let each go on."""
    rng = random.Random(seed)
    failures: list[str] = []
    counts: Counter[str] = Counter()
    with Nursery() as nursery:
        sets = Sets(nursery, folder)
        works = sets.works()
        wholes = {work.name: sets.whole(work) for work in works}
        killed_at: Counter[tuple[str, tuple[str, str, bool]]] = Counter()
        for number in range(count):
            if len(failures) >= _ENOUGH_FAILURES:
                break
            work = works[number % len(works)]
            whole = wholes[work.name]
            # A step of the kind at which the fewest were killed.
            at = min(
                range(len(whole.steps)), key=lambda i: (killed_at[work.name, kind_of(whole.steps[i])], rng.random())
            )
            killed_at[work.name, kind_of(whole.steps[at])] += 1
            nth = whole.steps[: at + 1].count(whole.steps[at])
            # A disk that a power cut leaves has copies of files with two names, and not the files.
            kind = "kill" if work.name == LINKS else rng.choice(("kill", "cut"))
            befell = Interruption(kind, whole.steps[at], nth, seed=rng.randrange(2**32))
            counts[work.name] += 1
            counts["by a power cut"] += kind == "cut"
            try:
                counts[sets.interrupt(work, whole, befell)] += 1
            except Wrong as error:
                failures.append(f"{work.name}, {befell}: {error}")
    names = (*(work.name for work in works), "by a power cut", "old", "new")
    return Outcome("sets", _MUST_HOLD, {name: counts[name] for name in names}, failures)


class Sets:
    """Runs the commands in one folder, one after the other."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self._nursery, self._log, self._start = nursery, folder / "log", folder / "start"
        self._folder, self._out = folder / "run", folder / "run" / "out.lmdb"
        self._few = str(make_sources(folder / "sources") / "few")
        self._other = folder / "other.lmdb"
        self._warm("convert", self._few, str(self._other), "--subset", "5", "--shuffle", "1")

    def works(self) -> list[Work]:
        """Return the commands, each with a folder to begin with."""
        out, few = str(self._out), self._few
        append = ("append", out, str(self._other))
        part = ("convert", few, out, "--workers", "1", "--part")
        for name in ("file", "set", "planned", "complete"):
            self._clear()
            if name in ("file", "set"):
                self._warm("convert", few, out)
            if name == "set":
                self._warm(*append)
            if name in ("planned", "complete"):
                self._warm("convert", few, out, "--parts", str(_PARTS), "--plan-only")
            for number in range(_PARTS if name == "complete" else 0):
                self._warm(*part, f"{number}/{_PARTS}")
            shutil.copytree(self._folder, self._start / name)
        return [
            Work(LINKS, self._start / "file", append, False),
            Work("append to a set", self._start / "set", append, False),
            Work("part", self._start / "planned", (*part, f"1/{_PARTS}"), True),
            Work("join", self._start / "complete", ("join", out), True),
        ]

    def whole(self, work: Work) -> Whole:
        """Return the outcome of a command that nothing befalls."""
        self._begin(work)
        old = self._digest()
        ended = self._run(work)
        expect(ended.status == 0, f"undisturbed: exit status {ended.status}", ended)
        # Without those of names that have the number of the process.
        steps = [step for step in ended.steps if not step.path.rpartition(".")[2].isdecimal()]
        return Whole(old, self._digest(), self._names(), steps)

    def interrupt(self, work: Work, whole: Whole, befell: Interruption) -> str:
        """Interrupt a command, check what is there, let it go on, and check the result; return "old" or "new"."""
        self._begin(work)
        ended = self._run(work, befell)
        expect(ended.was_interrupted and ended.status == -9, f"exit status {ended.status}", ended)
        if befell.kind == "cut":
            put_back(self._log / "cut", self._folder)
        found = self._digest()
        expect(found in (whole.old, whole.new), f"{found} is neither the old nor the new dataset", ended)
        self._check_sound(ended)
        is_new = found == whole.new and whole.new != whole.old
        if work.repeats or not is_new:
            ended = self._run(work)
            expect(ended.status == 0, f"exit status {ended.status} at last", ended)
            expect(self._digest() == whole.new, "another digest", ended)
            expect(self._names() == whole.names, f"{sorted({*self._names()} ^ {*whole.names})} differ", ended)
        self._check_sound(ended)
        return "new" if is_new else "old"

    def _check_sound(self, ended: Ended) -> None:
        import lmdbloader

        if self._out.exists():
            expect(lmdbloader.verify(self._out).is_sound, "the dataset is damaged", ended)

    def _digest(self) -> str | None:
        return str(manifest_of(self._out)["content_digest"]) if self._out.exists() else None

    def _names(self) -> list[str]:
        return sorted(str(path.relative_to(self._folder)) for path in self._folder.rglob("*"))

    def _clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()

    def _begin(self, work: Work) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(work.begin, self._folder)

    def _warm(self, *words: str) -> None:
        self._nursery.warm([*words, "--quiet"])

    def _run(self, work: Work, interruption: Interruption | None = None) -> Ended:
        ended = self._nursery.run(Request(list(work.words), self._folder, self._log, interruption))
        expect(not ended.hung, "it hung", ended)
        return ended
