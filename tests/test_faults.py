"""A few of each fault of tests/faults: every promise holds, and the faults really happened."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.__main__ import DOCUMENT
from tests.faults.containers import CONTAINERS
from tests.faults.registry import FAULTS
from tests.faults.tarmakers import MAKERS

NAMES = {fault.name: fault for fault in FAULTS}
# How many of it, the seed, and what came out at least so often.
FEW: dict[str, tuple[int, int, dict[str, int]]] = {
    "kills": (4, 6, {"kills": 4, "steps killed at": 2, "same digest": 1}),
    "power_cuts": (12, 3, {"same digest": 12, "in windows": 3}),
    "disk_full": (2, 1, {"full disks": 2}),
    "bad_sectors": (6, 1, {"an error that names the sample or its rows": 1}),
    "io_errors": (10, 2, {"an error": 4, "read": 1, "write": 1}),
    "flips": (60, 1, {"cut, refused at open": 5, "an error that names the sample or its rows": 2, "the same bytes": 2}),
    "fuzz": (300, 1, {"refused": 3, "refused at open": 3, "refused at reading": 3, "read": 3}),
    "hostile_tars": (4 * len(MAKERS), 1, {"refused": 3, "read": 3, "read, some samples skipped": 1}),
    "late_copies": (300, 1, {"late copies": 300}),
    "leaks": (300, 1, {"turns": 300}),
    "reused": (2 * len(CONTAINERS), 1, {"same digest": 2 * len(CONTAINERS)}),
    "zoo": (2, 1, {"converted": 50, "skipped and named": 50, "left out and named": 10}),
}  # fmt: skip
# Its memory is measured, which moves by itself in a process that runs other tests.
APART = {"leaks"}
NEVER = ("lost", "stuck", "signals", "of other bytes", "other digest")


def test_each_fault_is_made_here_and_has_its_row_in_the_document() -> None:
    assert FEW.keys() == NAMES.keys()
    assert re.findall(r"(?m)^\| `(\w+)`: ", DOCUMENT.read_text("utf-8")) == [*NAMES]


@pytest.mark.parametrize("name", FEW)
def test_what_must_hold_under_a_fault_holds(name: str, tmp_path: Path) -> None:
    count, seed, at_least = FEW[name]
    fault = NAMES[name]
    outcome = fault.run_apart(count, seed) if name in APART else fault.run(count, seed, tmp_path)
    assert outcome.failures == []
    for found in outcome.counts:
        if found.startswith("left out, "):
            pytest.skip(found)
    for found, fewest in at_least.items():
        assert outcome.counts[found] >= fewest, outcome.counts
    assert [found for found in NEVER if outcome.counts.get(found)] == []
