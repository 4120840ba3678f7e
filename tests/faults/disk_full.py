"""Disks that are full at some step of a conversion, of `write` or of `stage`, and the next run with room."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import shim
from .converting import Deck, Place, Wrong, drawn_change, expect
from .nursery import BALLAST, Ended, Interruption, Nursery
from .outcome import Outcome
from .scenarios import SCENARIOS, Scenario, make_sources

_SMALL_NBYTES = 24 * 2**20
_ENOUGH_FAILURES = 20
# Commands other than conversions.
_OTHERS = ("write", "stage")
_SAYS = re.compile(r"lmdbloader: \S+: disk full \(.*\): .*\d+ MiB are free there.* Free some space and run it again\.")
_SAYS_BEFORE = re.compile(
    r"lmdbloader: \S+: (\S+ takes|at least .* are still to be written,|\S+ [KMG]iB are to be copied,)"
    r" .* [KMG]iB are missing\. Free some space"
)


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Have the disk full `count` times: a small file system where one can be mounted, or a limit of the files' size."""
    library = shim.build(folder)
    if library is None:
        return Outcome({f"left out, {shim.NO_COMPILER}": count}, [])
    rng = random.Random(seed)
    sources = make_sources(folder / "sources")
    failures: list[str] = []
    with _small_file_system(folder / "small") as has_small, Nursery(library) as nursery:
        small = Place(nursery, sources, folder / "small", folder / "log-small")
        limited = Place(nursery, sources, folder, folder / "log")
        # Workers hand over results in files of their own, so a limit applies to one process alone.
        alone = tuple(scenario for scenario in SCENARIOS if scenario.workers == 1)
        decks = {limited: Deck((*alone, *_OTHERS), rng), small: Deck((*SCENARIOS, *_OTHERS), rng)}
        turns = Deck((small, limited) if has_small else (limited,), rng)
        disk = FullDisk(rng)
        while disk.counts["full disks"] < count and len(failures) < _ENOUGH_FAILURES:
            place = turns.draw()
            what = decks[place].draw()
            befell: list[str] = []
            try:
                room = folder / "small" if place is small else None
                if isinstance(what, Scenario):
                    disk.convert(place, what, room, befell)
                else:
                    disk.begin_anew(place, what, room, befell)
            except Wrong as error:
                where = "a small file system" if place is small else "a limit"
                failures.append(f"{what if isinstance(what, str) else what.name}, {where}, {befell}: {error}")
    counts = disk.counts + small.counts + limited.counts
    counts["steps"] = len(disk.full_at)
    names = ("full disks", "on a small file system", "write and stage", "steps", "conversions", "same digest", "lost")
    return Outcome({name: counts[name] for name in names}, failures)


class FullDisk:
    """Fills the disk in the middle of commands.

    Attributes:
        counts: How often, and where.
        full_at: How often after each kind of change.
    """

    def __init__(self, rng: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self.full_at: Counter[tuple[str, str]] = Counter()
        self._rng = rng

    def convert(self, place: Place, scenario: Scenario, room: Path | None, befell: list[str]) -> None:
        """Convert on a disk that is full from some step on; make room, and let it go on."""
        whole = place.whole(scenario)
        place.begin(scenario)
        for _ in range(self._rng.choice((1, 1, 2))):
            interruption = self._choose(whole.changes, room)
            befell.append(str(interruption))
            before = place.committed()
            ended = place.convert(scenario, interruption)
            _make_room(room)
            if ended.status == 0:
                return  # nothing was left to write
            self._check_error(interruption, ended, room)
            after = place.committed()
            published = place.out.exists() and not scenario.replaces
            expect(
                place.partial.exists() == bool(after) or published, f"{len(after)} sources done, but kept or not", ended
            )
            place.check_work(whole, before, after, ended)
            place.check_moment(whole, scenario, ended)
        place.finish(scenario)

    def begin_anew(self, place: Place, command: str, room: Path | None, befell: list[str]) -> None:
        """Run `write` or `stage` on a disk that is full from some step on; make room, and run it again."""
        place.begin(SCENARIOS[0])
        if command == "write":
            words = ["write", str(place.out)]
        else:
            words = ["stage", str(place.older()), str(place.folder), "--quiet"]
        place.run(words)
        interruption = self._choose(place.changes(), room)
        place.begin(SCENARIOS[0])
        befell.append(str(interruption))
        ended = place.run(words, interruption)
        _make_room(room)
        if ended.status == 0:
            return
        self._check_error(interruption, ended, room)
        self.counts["write and stage"] += 1
        left = os.listdir(place.folder)  # complete parts
        expect(all(name.endswith(".lmdb.partial") for name in left), f"{left} is left", ended)
        ended = place.run(words)
        expect(ended.status == 0, f"exit status {ended.status} at last", ended)
        (found,) = place.folder.iterdir()
        place.check_sound(found, ended)

    def _choose(self, changes: list[tuple[str, str]], room: Path | None) -> Interruption:
        number = drawn_change(changes, self.full_at, self._rng)
        self.full_at[changes[number - 1]] += 1
        return Interruption("full", number, seed=self._rng.randrange(2**32), room=None if room is None else str(room))

    def _check_error(self, interruption: Interruption, ended: Ended, room: Path | None) -> None:
        self.counts["full disks"] += 1
        self.counts["on a small file system"] += room is not None
        lines = ended.error.splitlines()
        expect(ended.status == 1, f"exit status {ended.status}", ended)
        # One line with the error; another one where something of the conversion is kept.
        if _SAYS_BEFORE.match(lines[-1]) is not None:
            return  # `stage` and conversions look before they begin
        expect(len(lines) <= 2 and _SAYS.match(lines[-1]) is not None, "another error", ended)


def _make_room(room: Path | None) -> None:
    if room is not None:
        (room / BALLAST).unlink(missing_ok=True)


@contextmanager
def _small_file_system(folder: Path) -> Iterator[bool]:
    """Mount a small file system where this process may; yield whether it is one."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={_SMALL_NBYTES}", "tmpfs"]
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, *options, str(folder)], capture_output=True).returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
