"""Files that a stranger made up end in an error of ours, or are read; never in a crash."""

from __future__ import annotations

from pathlib import Path

from .fuzz import run


def test_made_up_files_are_refused_or_read(tmp_path: Path) -> None:
    outcome = run(600, 1, tmp_path)
    assert outcome.failures == []
    assert outcome.counts["signals"] == 0
    assert outcome.counts["inputs"] > 600
    assert all(outcome.counts[word] > 3 for word in ("refused", "refused at open", "refused at reading", "read"))
