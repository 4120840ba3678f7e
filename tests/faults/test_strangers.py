"""Links and files of another user are neither written to nor copied."""

from __future__ import annotations

from pathlib import Path

from .strangers import run


def test_what_was_planted_is_not_written_through(tmp_path: Path) -> None:
    outcome = run(40, 1, tmp_path)
    assert outcome.failures == []
    assert outcome.counts["refused"] > 10 and outcome.counts["whole"] > 2
    assert outcome.counts["signals"] == 0
