"""Tars that were made to do harm are refused or read."""

from __future__ import annotations

from pathlib import Path

from .hostile_tars import run
from .tarmakers import MAKERS


def test_tars_made_to_do_harm_are_refused_or_read(tmp_path: Path) -> None:
    count = 4 * len(MAKERS)
    outcome = run(count, 1, tmp_path)
    assert outcome.failures == []
    assert outcome.counts["tars"] == count and outcome.counts["signals"] == 0
    assert all(outcome.counts[word] > 1 for word in ("refused", "read", "read, some samples skipped"))
