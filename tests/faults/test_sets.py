"""Sets that are made, joined and appended to survive a kill at any step."""

from __future__ import annotations

from pathlib import Path

from .sets import run


def test_sets_are_the_old_or_the_new_one(tmp_path: Path) -> None:
    outcome = run(12, 1, tmp_path)
    assert outcome.failures == []
    assert outcome.counts["append to one file"] == outcome.counts["join"] == 3
    assert outcome.counts["old"] + outcome.counts["new"] == 12
    assert outcome.counts["by a power cut"] > 0
