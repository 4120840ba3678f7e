"""A dataset opened, read from and let go of, again and again: nothing piles up."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from .growth import growth, held
from .outcome import Outcome
from .small import is_right, write_small

_SAMPLES = 24
_MUST_HOLD = "memory growth under 1 MB, no descriptors left"


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Open `count` times, after a tenth as many, and at least 40, that are not counted."""
    import lmdbloader
    from lmdbloader.store import Reader

    path = write_small(folder / "d", _SAMPLES)
    choose = random.Random(seed)

    def dataset(number: int) -> bool:
        return is_right(number, lmdbloader.LMDBDataset(path)[number])

    def by_descriptor(number: int) -> bool:
        return is_right(number, lmdbloader.LMDBDataset(path, io="pread")[number])

    def view(number: int) -> bool:
        ds = lmdbloader.LMDBDataset(path)[::-1].transformed([])
        return is_right(number, ds[_SAMPLES - 1 - number])

    def reader(number: int) -> bool:
        return bool((Reader(path).read_image("image", number) == number).all())

    def loader(number: int) -> bool:
        batches = iter(lmdbloader.Loader(lmdbloader.LMDBDataset(path), 4, order="sequential"))
        return next(batches).number.tolist() == [0, 1, 2, 3]

    def refused(number: int) -> bool:
        try:
            lmdbloader.LMDBDataset(folder / "cut")
        except lmdbloader.errors.CorruptError:
            return True
        return False

    cut = write_small(folder / "cut", _SAMPLES) / "data.mdb"
    cut.write_bytes(cut.read_bytes()[:-4096])
    ways: list[Callable[[int], bool]] = [dataset, by_descriptor, view, reader, loader, refused]
    failures: list[str] = []

    def once(turn: int) -> None:
        way, number = ways[turn % len(ways)], choose.randrange(_SAMPLES)
        if not way(number):
            failures.append(f"turn {turn}: sample {number} was wrong, opened as {way.__name__}")

    for turn in range(max(40, count // 10)):
        once(turn)
    before = held()
    for turn in range(count):
        once(turn)
    counts, grown = growth(before, held())
    return Outcome("open_close", _MUST_HOLD, {"opened": count, **counts}, failures + grown)
