"""Conversions that were killed come to the same dataset."""

from __future__ import annotations

from pathlib import Path

from .kills import run


def test_killed_conversions_go_on(tmp_path: Path) -> None:
    outcome = run(5, 5, tmp_path)  # with this seed by a power cut and by another signal too
    assert outcome.failures == []
    assert outcome.counts["kills"] == 5
    assert outcome.counts["by a power cut"] > 0
    assert outcome.counts["other interruptions"] > 0
    assert outcome.counts["steps killed at"] >= 4
    assert outcome.counts["same digest"] >= 2
    assert outcome.counts["lost"] == 0
