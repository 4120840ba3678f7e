"""An epoch that was interrupted goes on with exactly the samples that it would have had."""

from __future__ import annotations

from pathlib import Path

from .resume_training import run


def test_an_interrupted_epoch_goes_on_as_it_would_have(tmp_path: Path) -> None:
    outcome = run(6, 2, tmp_path)
    assert outcome.failures == []
    assert outcome.counts["epochs"] == 6
    assert outcome.counts["interruptions"] == 13
    assert outcome.counts["with other settings"] == 12
    assert (outcome.counts["in other processes"], outcome.counts["killed"]) == (2, 1)
    assert outcome.counts["samples compared"] > 1000
