"""EIO from every call, one at a time: the error names the file and a remedy, and the next run gives the same result."""

from __future__ import annotations

import errno
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import shim
from .converting import Place, Wrong, expect, manifest_of
from .nursery import Ended, Nursery, Request
from .outcome import Outcome
from .replay import Disk
from .scenarios import FEW, NUM_PARTS, make_sources

_ENOUGH_FAILURES = 40
# Texts of errors that name a remedy.
_ADVICE = ("run it again", "verify", "Copy", "copy", "Restore", "repair", "--restart", "--on-error", "Free some space")


@dataclass(frozen=True, slots=True)
class Job:
    """A command whose calls fail.

    Attributes:
        name: For people.
        begin: Makes its first files.
        words: Of the command.
        check: Checks its result and exit status; finishes it if that failed.
    """

    name: str
    begin: Callable[[], None]
    words: tuple[str, ...]
    check: Callable[[Ended], None]


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Make each call of each command fail once; where there are more than `count`, so many of them."""
    library = shim.build(folder)
    if library is None:
        return Outcome({f"left out, {shim.NO_COMPILER}": count}, [])
    disk = folder / "disk"
    disk.mkdir()
    with Nursery(library) as nursery:
        errors = Errors(Place(nursery, make_sources(disk / "sources"), disk, folder / "log"), nursery, disk, seed)
        cases = [case for job in errors.jobs() for case in errors.cases(job)]
        if count < len(cases):
            cases = spread(cases, count, random.Random(seed))
        for job, call, number in cases:
            if len(errors.failures) >= _ENOUGH_FAILURES:
                break
            errors.fail(job, call, number)
    names = (*shim.CALLS, "an error", "no harm", "after a failed flush")
    return Outcome({name: errors.counts[name] for name in names}, errors.failures)


def spread(cases: list[tuple[Job, str, int]], count: int, rng: random.Random) -> list[tuple[Job, str, int]]:
    """Return so many of the cases, drawn from each kind of call in turn."""
    kinds = [[case for case in cases if case[1] == call] for call in shim.CALLS]
    for kind in kinds:
        rng.shuffle(kind)
    turns = [kind[k] for k in range(len(cases)) for kind in kinds if k < len(kind)]
    return turns[:count]


class Errors:
    """Makes calls fail, one in each run.

    Attributes:
        counts: Numbers of each kind of call, and of each outcome.
        failures: One line for each.
    """

    def __init__(self, place: Place, nursery: Nursery, disk: Path, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self._place, self._nursery, self._disk = place, nursery, disk
        self._rng = random.Random(seed)
        self._whole = place.whole(FEW)
        place.begin(FEW)
        place.finish(FEW)
        self._sound = disk / "sound.lmdb"
        shutil.copytree(place.out, self._sound)
        self._half, self._parts = disk.with_name("half"), disk.with_name("parts")
        self._done: set[int] = set()

    def jobs(self) -> list[Job]:
        """Return the commands."""
        sound, out = str(self._sound), self._place.out
        convert = tuple(FEW.command(self._disk / "sources", out))
        self._make_half(convert)
        self._make_parts(convert)
        work = self._place.folder
        return [
            Job("convert", lambda: self._place.begin(FEW), convert, self._check_conversion),
            Job("a conversion that goes on", self._begin_half, convert, self._check_conversion),
            Job("write", self._clear, ("write", str(out)), self._check_written),
            Job("an epoch", self._clear, ("epoch", sound, "mmap"), self._check_epoch),
            Job("an epoch, pread", self._clear, ("epoch", sound, "pread"), self._check_epoch),
            Job("verify", self._clear, ("verify", sound), self._check_sound),
            Job("repair of an index", self._lose_index, ("repair", str(work / "d")), self._check_repair),
            Job("repair into a new one", self._damage, ("repair", str(work / "d"), str(out)), self._check_new),
            Job("stage", self._clear, ("stage", sound, str(work), "--quiet"), self._check_staged),
            Job("extract", self._clear, ("extract", sound, str(work / "files")), self._check_extracted),
            Job("join", self._begin_parts, ("join", str(out)), self._check_conversion_of_parts),
        ]

    def cases(self, job: Job) -> list[tuple[Job, str, int]]:
        """Return each call of a command: its kind and number."""
        job.begin()
        ended = self._run(job.words, ("read", 0, errno.EIO))
        expect(ended.status in (0, 1), f"{job.name}, undisturbed: exit status {ended.status}", ended)
        return [(job, call, number) for call, count in ended.num_calls.items() for number in range(1, count + 1)]

    def fail(self, job: Job, call: str, number: int) -> None:
        """Have one call fail, and check the outcome."""
        self.counts[call] += 1
        what = f"{job.name}, {call} {number}"
        try:
            job.begin()
            before = Disk(self._place.folder)
            log = self._disk.with_name("calls")
            ended = self._run(job.words, (call, number, errno.EIO), log)
            what += f" ({Path(ended.failed_path).name})"
            expect(bool(ended.failed_path), "the call did not come", ended)
            self._check_error(ended)
            self.counts["an error" if ended.status else "no harm"] += 1
            self._done = set() if self._place.out.exists() else self._place.committed()
            if ended.status and call in ("fsync", "fdatasync"):
                self._lose_unflushed(before, log)
            job.check(ended)
        except Wrong as error:
            self.failures.append(f"{what}: {error}")

    def _run(self, words: tuple[str, ...], fault: tuple[str, int, int] | None, calls: Path | None = None) -> Ended:
        place = self._place
        ended = self._nursery.run(
            Request(list(words), place.folder, place.log, calls=calls, fault=fault, faulty=self._disk)
        )
        expect(not ended.hung, "it hung", ended)
        return ended

    def _check_error(self, ended: Ended) -> None:
        expect(ended.status in (0, 1), f"exit status {ended.status}", ended)
        if ended.status == 0:
            return
        said = ended.error + ended.output
        expect("Traceback" not in said, "a traceback", ended)
        expect(Path(ended.failed_path).name.partition(".new-")[0] in said, f"{ended.failed_path} is not named", ended)
        expect(any(words in said for words in _ADVICE), "it does not say what to do", ended)

    def _lose_unflushed(self, before: Disk, log: Path) -> None:
        """Put in place a possible content of a disk without the last flushes: any part of the later writes.

        The system's memory would show all of it for a while, which nobody may rely upon.
        """
        self.counts["after a failed flush"] += 1
        place = self._place
        for call in shim.read_log(log, self._disk):
            if f"{call.path}/".startswith("run/"):
                before.apply(call.below("run"))
        shutil.rmtree(place.folder)
        before.cut(place.folder, self._rng)

    def _make_half(self, convert: tuple[str, ...]) -> None:
        """Keep the files of a conversion that failed at a late commit."""
        place = self._place
        place.begin(FEW)
        commits = self._run(convert, ("fdatasync", 0, errno.EIO)).num_calls["fdatasync"]
        place.begin(FEW)
        ended = self._run(convert, ("fdatasync", commits - 1, errno.EIO))
        expect(ended.status == 1 and bool(place.committed()), f"exit status {ended.status}", ended)
        shutil.copytree(place.folder, self._half)

    def _make_parts(self, convert: tuple[str, ...]) -> None:
        """Keep the parts of a set that is to be joined."""
        self._clear()
        for step in (("--plan-only",), *(("--part", f"{part}/{NUM_PARTS}") for part in range(NUM_PARTS))):
            ended = self._run((*convert, *step), None)
            expect(ended.status == 0, f"exit status {ended.status}", ended)
        shutil.copytree(self._place.folder, self._parts)

    def _begin_parts(self) -> None:
        shutil.rmtree(self._place.folder, ignore_errors=True)
        shutil.copytree(self._parts, self._place.folder)

    def _begin_half(self) -> None:
        shutil.rmtree(self._place.folder, ignore_errors=True)
        shutil.copytree(self._half, self._place.folder)

    def _clear(self) -> None:
        shutil.rmtree(self._place.folder, ignore_errors=True)
        self._place.folder.mkdir()

    def _lose_index(self) -> None:
        self._clear()
        shutil.copytree(self._sound, self._place.folder / "d")
        (self._place.folder / "d" / "index.arrow").unlink()

    def _damage(self) -> None:
        self._clear()
        copy = self._place.folder / "d"
        shutil.copytree(self._sound, copy)
        data = bytearray((copy / "data.mdb").read_bytes())
        data[len(data) // 2] ^= 1
        (copy / "data.mdb").write_bytes(data)

    def _check_conversion(self, ended: Ended) -> None:
        if ended.status == 0:
            expect(manifest_of(self._place.out)["content_digest"] == self._whole.digest, "another digest", ended)
            self._place.check_sound(self._place.out, ended)
            return
        # Nothing that was committed is decoded again, be it before this run or in it.
        self._place.finish_after(FEW, self._done)

    def _check_conversion_of_parts(self, ended: Ended) -> None:
        if ended.status:
            again = self._run(("join", str(self._place.out)), None)
            expect(again.status == 0, f"exit status {again.status} at last", again)
        expect(manifest_of(self._place.out)["content_digest"] == self._whole.digest, "another digest", ended)
        self._place.check_sound(self._place.out, ended)

    def _check_written(self, ended: Ended) -> None:
        if ended.status and not self._place.out.exists():
            again = self._run(("write", str(self._place.out)), None)
            expect(again.status == 0, f"exit status {again.status} at last", again)
        self._place.check_sound(self._place.out, ended)

    def _check_epoch(self, ended: Ended) -> None:
        expect(ended.status == 0 or "Error" in ended.error, "no error of ours", ended)

    def _check_sound(self, ended: Ended) -> None:
        self._place.check_sound(self._sound, ended)

    def _check_repair(self, ended: Ended) -> None:
        again = self._run(("repair", str(self._place.folder / "d")), None)
        expect(again.status == 0, f"exit status {again.status} at last", again)
        self._place.check_sound(self._place.folder / "d", again)

    def _check_new(self, ended: Ended) -> None:
        out = self._place.out
        if not out.exists():
            again = self._run(("repair", str(self._place.folder / "d"), str(out)), None)
            expect(out.exists(), f"exit status {again.status} at last, and nothing was made", again)
        self._place.check_sound(out, ended)

    def _check_staged(self, ended: Ended) -> None:
        folder = self._place.folder
        staged = folder / self._sound.name
        if ended.status:
            expect(not staged.exists() or manifest_of(staged) == manifest_of(self._sound), "half a copy", ended)
            again = self._run(("stage", str(self._sound), str(folder), "--quiet"), None)
            expect(again.status == 0, f"exit status {again.status} at last", again)
        self._place.check_sound(staged, ended)

    def _check_extracted(self, ended: Ended) -> None:
        files = self._place.folder / "files"
        if ended.status:
            expect(not files.exists(), "half of the files", ended)
            again = self._run(("extract", str(self._sound), str(files)), None)
            expect(again.status == 0, f"exit status {again.status} at last", again)
        expect(len(list(files.iterdir())) >= len(self._whole.order), "files are missing", ended)
