"""Readers are killed; the others read on."""

from __future__ import annotations

from pathlib import Path

import pytest

from .readers import run


# From Python 3.12 on forking a process that has threads warns; torch's are idle here.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_others_read_on(tmp_path: Path) -> None:
    outcome = run(12, 1, tmp_path, kills=8, pause_seconds=0.02)
    assert outcome.failures == []
    counts = outcome.counts
    assert (counts["readers"], counts["killed"], counts["read on"], counts["wrong"]) == (12, 8, 4, 0)
    assert counts["samples"] > 12
