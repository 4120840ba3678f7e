"""Bad and odd images converted together: each has its stated outcome, and is named."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from .beasts import Beast, make_beasts
from .cases import Case, Wrong, run_cases
from .outcome import Outcome

_MODES = ("raw", "original")


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Convert all of them in both modes with on_error="skip"."""
    found, failures = run_cases(_prepare, (str(folder),), len(_MODES), folder)
    return Outcome({"images": len(make_beasts()), **found}, failures)


def _prepare(folder: str) -> Case:
    beasts = make_beasts()
    place = os.fsencode(folder) + b"/zoo"
    os.mkdir(place)
    for beast in beasts:
        beast.make(place + b"/" + beast.name)
    return lambda number: _together(beasts, Path(folder), _MODES[number])


def _together(beasts: list[Beast], folder: Path, mode: Any) -> dict[str, int]:
    """Convert all of them; compare every pixel, and every name of those that are not converted."""
    import numpy as np

    import lmdbloader

    out = folder / f"{mode}.lmdb"
    report = lmdbloader.convert(
        folder / "zoo", out, layout="images", write_mode=mode, on_error="skip", max_pixels=10**6, workers=1
    )
    ds = lmdbloader.LMDBDataset(out)
    numbers = {source: i for i, source in enumerate(ds.table.column("source").to_pylist())}
    skipped, ignored = dict(report.skipped), dict(report.ignored)
    listed = [line.split("\t") for line in (out / "skipped.tsv").read_text("utf-8").splitlines()[1:]]
    if any(len(row) != 2 or not "".join(row).isprintable() for row in listed) or len(listed) != len(report.skipped):
        raise Wrong(f"skipped.tsv has {len(listed)} lines for {len(report.skipped)} images: {listed}")
    wrong = []
    for beast in beasts:
        expected = {"converted": numbers, "refused": skipped, "left out": ignored}[beast.fate]
        if beast.shown not in expected:
            wrong.append(f"{beast.name!r} is not {beast.fate}")
        elif beast.fate != "converted":
            if not re.search(beast.reason, said := expected[beast.shown]):  # type: ignore[arg-type]
                wrong.append(f"{beast.name!r}: {said!r}, expected {beast.reason!r}")
        else:
            pixels = ds[numbers[beast.shown]].image.numpy().transpose(1, 2, 0)
            if pixels.dtype != beast.expected.dtype or not np.array_equal(pixels, beast.expected):
                wrong.append(f"{beast.name!r}: {pixels.dtype} {pixels.shape} are not the pixels that it holds")
    if wrong:
        raise Wrong("; ".join(wrong))
    if len(numbers) + len(skipped) + len(ignored) != len(beasts):
        raise Wrong(f"{len(numbers)} converted, {len(skipped)} skipped, {len(ignored)} left out of {len(beasts)}")
    return {"converted": len(numbers), "skipped and named": len(skipped), "left out and named": len(ignored)}
