"""A conversion goes on once a full disk has room again."""

from __future__ import annotations

from pathlib import Path

from .disk_full import run


def test_a_conversion_goes_on_once_there_is_room(tmp_path: Path) -> None:
    outcome = run(5, 1, tmp_path)
    assert outcome.failures == []
    assert outcome.counts["full disks"] >= 5
    assert outcome.counts["write and stage"] > 0
    assert outcome.counts["same digest"] > 0
    assert outcome.counts["lost"] == 0
