"""Epoch after epoch nothing piles up."""

from __future__ import annotations

from pathlib import Path

from .epochs import run


def test_epochs_leave_nothing(tmp_path: Path) -> None:
    outcome = run(60, 1, tmp_path)
    assert outcome.failures == []
    assert outcome.counts["epochs"] == 60 and outcome.counts["left early"] > 5
