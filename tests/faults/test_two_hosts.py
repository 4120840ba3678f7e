"""Two conversions to one OUT, on hosts that see no lock of each other, publish no damage."""

from __future__ import annotations

from pathlib import Path

from .two_hosts import run


def test_two_hosts_without_a_common_lock(tmp_path: Path) -> None:
    outcome = run(8, 3, tmp_path)
    assert outcome.failures == []
    assert outcome.counts["pairs"] == 8
    assert outcome.counts["finished"] > 0 and outcome.counts["refused"] > 0
    assert outcome.counts["damage"] == 0
