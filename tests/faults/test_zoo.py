"""Bad and odd images have their stated outcomes, and are named."""

from __future__ import annotations

from pathlib import Path

from .zoo import run


def test_every_bad_or_odd_image_comes_to_what_is_stated(tmp_path: Path) -> None:
    outcome = run(3, 1, tmp_path)
    assert outcome.failures == []
    counts = outcome.counts
    assert counts["images"] >= 60
    assert counts["converted"] + counts["skipped and named"] + counts["left out and named"] == 2 * counts["images"]
    assert min(counts["converted"], counts["skipped and named"], counts["left out and named"]) > 5
    assert counts["stopped and named"] == 3
