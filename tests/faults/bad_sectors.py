"""Sectors that the disk cannot read, anywhere in a dataset: an error that names the sample, never a signal."""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from pathlib import Path

from .bad_disk import NOT_HERE, bad_disk, forget
from .cases import Case, Wrong, run_cases
from .datasets import FILES, make_datasets
from .flips import Subject
from .outcome import Outcome

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
                return Outcome({f"left out, {NOT_HERE}": count}, [])
            mounted[name] = folder / f"{name}.bad.lmdb"
            counts, failed = run_cases(_prepare, (str(path), str(mounted[name]), str(bad), seed), share, folder)
        totals.update(counts)
        failures += [f"{name}: {failure}" for failure in failed]
    ways = sorted(set(totals) - {"signals"})
    return Outcome(
        {"bad disks": count, **{w: totals[w] for w in ways}, "signals": totals["signals"]},
        failures,
    )


def _prepare(sound: str, mounted: str, bad: str, seed: int) -> Case:
    import lmdbloader

    Path(bad).write_text("")
    subject = Subject(mounted)

    def case(number: int) -> str:
        rng = random.Random(f"{seed} {Path(sound).name} {number}")
        name = rng.choices(FILES, (8, 1, 1))[0]
        size = Path(sound, name).stat().st_size
        ranges = [_sectors(rng, size) for _ in range(rng.choice((1, 1, 2, 5)))]
        # A dataset opened before reads through an existing map, and keeps the pages that it has read.
        opened = subject.open() if name == "data.mdb" and rng.random() < 0.3 else None
        if opened is not None and rng.random() < 0.5:
            subject.read(opened)
        what = f"{name}, bytes {ranges}"
        try:
            Path(bad).write_text("".join(f"{name} {start} {stop}\n" for start, stop in ranges))
            _forget(mounted)
            try:
                found = subject.read(opened)
                opened = None
                _forget(mounted)
                if all(_reads(Path(mounted, name), *sectors) for sectors in ranges):
                    return "still in memory"  # somebody has mapped it
                if lmdbloader.verify(mounted).is_sound:
                    raise Wrong("verify finds nothing")
            except Wrong as error:
                raise Wrong(f"{what}: {error}") from error
        finally:
            Path(bad).write_text("")
        return found

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
