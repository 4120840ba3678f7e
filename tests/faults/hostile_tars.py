"""Tars that a stranger made to do harm, converted: an error of ours or their samples, in bounded memory and time."""

from __future__ import annotations

import random
import shutil
import time
import tracemalloc
from pathlib import Path

from .cases import Case, Wrong, run_cases
from .outcome import Outcome
from .tarmakers import MAKERS, member, write_tar

# In addition to the memory with everything imported; a tar that is not mostly a hole has at most 30 MB here.
_MOST_NBYTES = 32 * 2**20
_MOST_SECONDS = 5.0


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Make `count` tars, of every kind in turn."""
    found, failures = run_cases(_prepare, (str(folder), seed), count, folder)
    return Outcome({"tars": count, **dict(sorted(found.items()))}, failures)


def _prepare(folder: str, seed: int) -> Case:
    import io

    import numpy as np
    from PIL import Image

    import lmdbloader

    file = io.BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(file, "PNG")
    good = member(b"good.png", file.getvalue())
    path, out = Path(folder, "a.tar"), Path(folder, "out")
    write_tar(path, [good], ends=True)
    lmdbloader.convert(path, out, workers=1)
    lmdbloader.LMDBDataset(out)[0]  # imports are not counted

    def case(number: int) -> str:
        rng = random.Random(f"{seed} hostile tar {number}")
        name = list(MAKERS)[number % len(MAKERS)]
        write_tar(path, MAKERS[name](rng, good), ends=rng.random() < 0.9)
        for left in (out, out.with_name("out.partial")):
            shutil.rmtree(left, ignore_errors=True)
        began = time.monotonic()
        tracemalloc.start()
        try:
            word = _convert(path, out)
            nbytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        if nbytes > _MOST_NBYTES:
            raise Wrong(f"{name}: took {nbytes:,} bytes")
        if (seconds := time.monotonic() - began) > _MOST_SECONDS:
            raise Wrong(f"{name}: took {seconds:.0f} s")
        return word

    return case


def _convert(path: Path, out: Path) -> str:
    """Convert a tar; return the outcome."""
    import lmdbloader
    from lmdbloader.errors import LmdbloaderError

    try:
        report = lmdbloader.convert(path, out, layout="tar", on_error="skip", workers=1)
    except LmdbloaderError as error:
        if not str(error).isprintable():
            raise Wrong(f"says what a terminal acts on: {error}") from error
        return "refused"
    notes = out / "skipped.tsv"
    if notes.exists() and not notes.read_text("utf-8").replace("\t", "").replace("\n", "").isprintable():
        raise Wrong(f"lists what a terminal acts on: {notes.read_bytes()!r}")
    lmdbloader.LMDBDataset(out)[0]
    return "read, some samples skipped" if report.skipped else "read"
