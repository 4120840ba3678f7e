"""Files cut short, at and next to every page boundary, and at random places: never opened, never a signal."""

from __future__ import annotations

import os
import random
from pathlib import Path

from .cases import Case, Wrong, run_cases
from .material import photographs
from .outcome import Outcome

_FILES = ("data.mdb", "index.arrow", "manifest.json")
_PAGE = 4096


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Cut every file of a dataset at every page boundary, one byte before and behind it, and at `count` places."""
    import lmdbloader

    path = folder / "d"
    lmdbloader.convert(photographs(folder / "photos", 2, 96, 144), path, patch_size=48, scale=2, workers=1)
    cuts = [(name, size) for name in _FILES for size in _boundaries((path / name).stat().st_size)]
    rng = random.Random(seed)
    for _ in range(count):
        name = rng.choice(_FILES)
        cuts.append((name, rng.randrange((path / name).stat().st_size)))
    counts, failures = run_cases(_prepare, (str(path), cuts), len(cuts), folder)
    return Outcome("truncation", "refused at open, 0 signals", {"cuts": len(cuts), **counts}, failures)


def _boundaries(nbytes: int) -> list[int]:
    """Return the lengths at which a file is cut: at pages, one byte before and behind them, and one byte short."""
    around = {page + by for page in range(0, nbytes, _PAGE) for by in (-1, 0, 1)} | {nbytes - 1}
    return sorted(size for size in around if 0 <= size < nbytes)


def _prepare(path: str, cuts: list[tuple[str, int]]) -> Case:
    from lmdbloader import LMDBDataset
    from lmdbloader.errors import LmdbloaderError

    sound = {name: Path(path, name).read_bytes() for name in _FILES}

    def case(number: int) -> str:
        name, size = cuts[number]
        os.truncate(Path(path, name), size)
        try:
            LMDBDataset(path)
        except LmdbloaderError as error:
            if path not in str(error):
                raise Wrong(f"{name} of {size} bytes: {error} does not say where") from error
            return "refused"
        finally:
            Path(path, name).write_bytes(sound[name])
        raise Wrong(f"{name} of {size} bytes, {len(sound[name])} expected: it opens")

    return case
