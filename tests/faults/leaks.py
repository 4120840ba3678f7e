"""Datasets opened and let go of, and epochs, again and again: no memory, descriptor, map or thread is left."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from .outcome import Outcome
from .small import is_right, write_small

_SAMPLES = 96
_MOST_NBYTES = 1_000_000


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Do `count` things, after a tenth as many, and at least 40, that are not counted."""
    things = _things(folder, random.Random(seed))
    failures: list[str] = []

    def once(number: int) -> None:
        thing = things[number % len(things)]
        if not thing():
            failures.append(f"turn {number}: other samples, by {thing.__name__}")

    for number in range(max(40, count // 10)):
        once(number)
    before = _held()
    for number in range(count):
        once(number)
    grown = {name: now - before[name] for name, now in _held().items()}
    failures += [
        f"{name}: {left} more" for name, left in grown.items() if left > (_MOST_NBYTES if name == "bytes" else 0)
    ]
    return Outcome({"turns": count, **grown}, failures)


def _held() -> dict[str, int]:
    """Return what this process holds after a garbage collection; of memory, what it shares with no other one."""
    gc.collect()
    process = psutil.Process()
    maps = [m for m in process.memory_maps(grouped=False) if m.path.startswith("/")]
    return {
        "bytes": process.memory_full_info().uss,
        "descriptors": process.num_fds(),
        "maps": len(maps),
        "threads": threading.active_count(),
    }


def _things(folder: Path, choose: random.Random) -> list[Callable[[], bool]]:
    """Return what is done in turn, each with whether the samples were right."""
    import lmdbloader
    from lmdbloader.transforms import RandomCrop, RandomHorizontalFlip

    path = write_small(folder / "d", _SAMPLES)
    cut = write_small(folder / "cut", _SAMPLES) / "data.mdb"
    cut.write_bytes(cut.read_bytes()[:-4096])
    mapped, copied = lmdbloader.LMDBDataset(path), lmdbloader.LMDBDataset(path, io="pread")
    crop = [RandomCrop(16), RandomHorizontalFlip()]
    loaders = [
        lmdbloader.Loader(mapped, 8, order="random", seed=1, transforms=crop),
        lmdbloader.Loader(copied, 8, seed=1, order="quasi_random"),
        lmdbloader.dataloader(mapped.transformed(crop), 8, shuffle=True, num_workers=0),
    ]

    def a_dataset() -> bool:
        number = choose.randrange(_SAMPLES)
        return is_right(number, lmdbloader.LMDBDataset(path, io=choose.choice(("mmap", "pread")))[number])

    def a_view() -> bool:
        number = choose.randrange(_SAMPLES)
        ds = lmdbloader.LMDBDataset(path)[::-1].transformed([])
        return is_right(number, ds[_SAMPLES - 1 - number])

    def a_loader_left_early() -> bool:
        batches = iter(lmdbloader.Loader(lmdbloader.LMDBDataset(path), 4, order="sequential"))
        return next(batches).number.tolist() == [0, 1, 2, 3]

    def a_refused_dataset() -> bool:
        try:
            lmdbloader.LMDBDataset(folder / "cut")
        except lmdbloader.errors.CorruptError:
            return True
        return False

    def an_epoch() -> bool:
        numbers = [number for batch in choose.choice(loaders) for number in batch.number.tolist()]
        return sorted(numbers) == list(range(_SAMPLES))

    return [a_dataset, a_view, a_loader_left_early, a_refused_dataset, an_epoch]
