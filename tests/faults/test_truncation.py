"""A file that was cut short is refused at open, wherever it was cut."""

from __future__ import annotations

from pathlib import Path

from .truncation import run


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    outcome = run(30, 1, tmp_path)
    assert outcome.failures == []
    assert outcome.counts["refused"] == outcome.counts["cuts"] > 100
    assert outcome.counts["signals"] == 0
