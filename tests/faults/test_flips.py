"""A flipped bit is an error that names the sample, or changes nothing that is read."""

from __future__ import annotations

from pathlib import Path

from .flips import run


def test_a_flipped_bit_is_never_a_wrong_pixel(tmp_path: Path) -> None:
    outcome = run(40, 1, tmp_path)
    assert outcome.failures == []
    assert outcome.counts["signals"] == 0
    found = ["refused at open", "an error that names the sample or its rows", "the same bytes"]
    assert all(outcome.counts[name] > 1 for name in found)
    assert sum(outcome.counts[name] for name in found) == outcome.counts["flips"] == 40
