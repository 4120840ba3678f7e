"""Sectors that the disk cannot read, anywhere in a dataset: an error that names the sample, never a signal."""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path

from .bad_disk import NOT_HERE, bad_disk, forget
from .cases import Case, Wrong, run_cases
from .datasets import FILES, make_datasets
from .flips import Subject
from .outcome import Outcome

_MUST_HOLD = "named, 0 signals"
_PAGE = 4096


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Make sectors bad `count` times, each time in one file of one of the datasets, and read everything."""
    sound = make_datasets(folder)
    mounted = {}
    totals: Counter[str] = Counter()
    failures: list[str] = []
    for number, (name, path) in enumerate(sound.items()):
        share = count // len(sound) + (number < count % len(sound))
        with bad_disk(path, folder / f"{name}.bad.lmdb") as bad:
            if bad is None:
                return Outcome("bad_sectors", _MUST_HOLD, {f"left out, {NOT_HERE}": count}, [])
            mounted[name] = folder / f"{name}.bad.lmdb"
            counts, failed = run_cases(_prepare, (str(path), str(mounted[name]), str(bad), seed), share, folder)
        totals.update(counts)
        failures += [f"{name}: {failure}" for failure in failed]
    ways = sorted(set(totals) - {"signals"})
    return Outcome(
        "bad_sectors",
        _MUST_HOLD,
        {"bad disks": count, **{w: totals[w] for w in ways}, "signals": totals["signals"]},
        failures,
    )


def _prepare(sound: str, mounted: str, bad: str, seed: int) -> Case:
    logging.getLogger("lmdbloader").setLevel(logging.CRITICAL)  # of every sample that is left out
    Path(bad).write_text("")
    subject = Subject(mounted)
    work = Path(bad).with_name("work")

    def case(number: int) -> dict[str, int]:
        rng = random.Random(f"{seed} {Path(sound).name} {number}")
        name = rng.choices(FILES, (8, 1, 1))[0]
        size = Path(sound, name).stat().st_size
        ranges = [_sectors(rng, size) for _ in range(rng.choice((1, 1, 2, 5)))]
        # A dataset opened before reads through an existing map, and keeps the pages that it has read.
        opened = subject.open() if name == "data.mdb" and rng.random() < 0.3 else None
        if opened is not None and rng.random() < 0.5:
            subject.read(opened)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        what = f"{name}, bytes {ranges}"
        try:
            Path(bad).write_text("".join(f"{name} {start} {stop}\n" for start, stop in ranges))
            _forget(mounted)
            try:
                found = subject.read(opened)
                was_opened, opened = opened is not None, None
                counts = Counter({found: 1})
                _forget(mounted)
                if all(_reads(Path(mounted, name), *sectors) for sectors in ranges):
                    return {**counts, "still in memory": 1}  # somebody has mapped it
                for way in (_skip, _extract, _verify, _repair, _stage):
                    is_read = found == "the same bytes" and not was_opened
                    counts[f"{way.__name__[1:]}: {way(mounted, work, is_read, name)}"] += 1
            except Wrong as error:
                raise Wrong(f"{what}: {error}") from error
        finally:
            Path(bad).write_text("")
        return counts

    return case


def _forget(mounted: str) -> None:
    gc.collect()
    for file in FILES:
        forget(Path(mounted, file))


def _reads(path: Path, start: int, stop: int) -> bool:
    try:
        with open(path, "rb") as file:
            return all(os.pread(file.fileno(), _PAGE, at) is not None for at in range(start, stop, _PAGE))
    except OSError:
        return False


def _sectors(rng: random.Random, nbytes: int) -> tuple[int, int]:
    first = rng.randrange(-(-nbytes // _PAGE)) * _PAGE
    return first, first + _PAGE * rng.choice((1, 1, 1, 2, 8))


def _skip(mounted: str, work: Path, is_read: bool, name: str) -> str:
    """Read an epoch without the damaged samples."""
    from lmdbloader import LMDBDataset, Loader
    from lmdbloader.errors import LmdbloaderError

    try:
        ds = LMDBDataset(mounted)
    except LmdbloaderError:
        return "refused at open"
    loader = Loader(ds, 1, order="sequential", num_threads=1, on_corrupt="skip")
    kept = sum(1 for _ in loader)
    damaged = {damage.sample for damage in loader.corrupt}
    if kept + len(damaged) != len(ds):
        raise Wrong(f"{kept} of {len(ds)} samples came, {len(damaged)} are named")
    return "some left out" if damaged else "all"


def _call(work: Path, words: list[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit status and its output."""
    import contextlib
    import io

    from lmdbloader.cli import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(words)
    return status, said.getvalue()


def _told(way: str, status: int, said: str, mounted: str) -> str:
    if status not in (0, 1) or (status and mounted not in said):
        raise Wrong(f"{way}: exit status {status}: {said[-500:]!r}")
    return "an error" if status else "done"


def _extract(mounted: str, work: Path, is_read: bool, name: str) -> str:
    status, said = _call(work, ["extract", mounted, str(work / "extracted")])
    if is_read and status:
        raise Wrong(f"extract of sound samples: {said[-500:]!r}")
    return _told("extract", status, said, mounted)


def _verify(mounted: str, work: Path, is_read: bool, name: str) -> str:
    status, said = _call(work, ["verify", mounted])
    if status == 0 or name not in said:
        raise Wrong(f"verify: exit status {status}, {said[-500:]!r}")
    return "an error"


def _repair(mounted: str, work: Path, is_read: bool, name: str) -> str:
    import lmdbloader

    out = work / "mended.lmdb"
    status, said = _call(work, ["repair", mounted, str(out)])
    if out.exists():
        if not lmdbloader.verify(out).is_sound:
            raise Wrong("what repair wrote is not sound")
        return "mended"
    return _told("repair", status, said, mounted)


def _stage(mounted: str, work: Path, is_read: bool, name: str) -> str:
    status, said = _call(work, ["stage", mounted, str(work / "staged"), "--quiet"])
    if status == 0:
        raise Wrong("stage copied what does not read")
    with suppress(FileNotFoundError):
        # Sound parts are kept for the next call.
        if any(path.suffix != ".partial" for path in (work / "staged").iterdir()):
            raise Wrong("stage left something behind")
    return _told("stage", status, said, mounted)
