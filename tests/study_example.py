"""A plausible, complete study for tests; its figures are invented."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from lmdbloader.lab.arms import LoaderKind
from lmdbloader.lab.study import Study, StudyRow

BATCH_SIZES, CROPS = (8, 128), (16, None)
# Samples a second at batch 128, and fixed milliseconds a batch.
_SPEED: dict[LoaderKind, tuple[float, float]] = {
    "lmdbloader": (52_000.0, 0.02), "dataloader": (14_000.0, 0.9), "folder": (1_900.0, 1.4),
}  # fmt: skip
_FACTS = {"dataset": "train.lmdb: 12,000 samples", "read": "hr (96 x 96, RGB, 8-bit)", "processor": "AMD EPYC 7B13"}


def make_row(section: str, source: LoaderKind, batch_size: int = 32, crop: int | None = 16, **changes: Any) -> StudyRow:
    """Return a row."""
    speed, fixed = _SPEED[source]
    median = batch_size / (fixed / 1000 + batch_size / speed)
    turns = tuple(median * factor for factor in (1.0, 0.9, 1.2))
    return replace(StudyRow(section, source, batch_size, crop, 2, "random", 1, turns), **changes)


def make_study() -> Study:
    """Return a study with every section."""
    rows = []
    for crop, size, source in itertools.product(CROPS, BATCH_SIZES, _SPEED):
        figures = {
            "wait_p50_seconds": 1e-3,
            "wait_p99_seconds": 4e-3,
            "cpu_seconds_per_sample": 2e-5,
        }
        if source == "lmdbloader":
            stages = ("read", "verify", "decode", "transform", "function", "buffer")
            figures |= {f"{stage}_seconds": 1e-6 for stage in stages}
        rows.append(make_row("loading", source, size, crop, figures=figures))
    for count, size, source in itertools.product((2,), BATCH_SIZES, _SPEED):
        figures = {"slowest": 10.0, "fastest": 20.0}
        rows.append(make_row("loading", source, size, num_processes=count, figures=figures))
    for section, source in itertools.product(("cold", "warm"), _SPEED):
        rows.append(make_row(section, source, figures={"num_samples": 12_000, "held": 0.0}))
    return Study(_FACTS, {"python": "3.12.4"}, tuple(rows), ("Crop 200: left out.",))
