"""Epoch after epoch, by the Loader and by torch's DataLoader: nothing piles up."""

from __future__ import annotations

import random
from pathlib import Path

from .growth import growth, held
from .outcome import Outcome
from .small import write_small

_SAMPLES = 96
_MUST_HOLD = "memory growth under 1 MB, no descriptors left"


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Read `count` epochs, after a tenth as many, and at least 20, that are not counted."""
    import lmdbloader

    path = write_small(folder / "d", _SAMPLES)
    choose = random.Random(seed)
    mapped, copied = lmdbloader.LMDBDataset(path), lmdbloader.LMDBDataset(path, io="pread")
    crop = [lmdbloader.transforms.RandomCrop(16), lmdbloader.transforms.RandomHorizontalFlip()]
    loaders = [
        lmdbloader.Loader(mapped, 8, order="random", seed=seed, transforms=crop),
        lmdbloader.Loader(copied, 8, seed=seed, order="quasi_random"),
        lmdbloader.dataloader(mapped.transformed(crop), 8, shuffle=True, num_workers=0),
    ]
    failures: list[str] = []
    broken_off = 0

    def epoch(number: int) -> None:
        nonlocal broken_off
        left_after = choose.randrange(12) if choose.random() < 0.2 else None  # some loops are left by `break`
        broken_off += left_after is not None
        numbers: list[int] = []
        for step, batch in enumerate(loaders[number % len(loaders)]):
            numbers += batch.number.tolist()
            if step == left_after:
                break
        if left_after is None and sorted(numbers) != list(range(_SAMPLES)):
            failures.append(f"epoch {number}: samples {sorted(numbers)}")

    for number in range(max(20, count // 10)):
        epoch(number)
    before = held()
    broken_off = 0
    for number in range(count):
        epoch(number)
    counts, grown = growth(before, held())
    return Outcome("epochs", _MUST_HOLD, {"epochs": count, "left early": broken_off, **counts}, failures + grown)
