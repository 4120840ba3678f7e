"""Opened and let go of again and again, nothing piles up."""

from __future__ import annotations

from pathlib import Path

import pytest

from .growth import Held, growth
from .open_close import run


def test_opening_leaves_nothing(tmp_path: Path) -> None:
    outcome = run(240, 1, tmp_path)
    assert outcome.failures == []
    assert outcome.counts["opened"] == 240


@pytest.mark.parametrize(
    ("after", "failures"),
    [
        (Held(900_000, 3, 4, 1), 0),
        (Held(1_000_000, 3, 4, 1), 1),
        (Held(0, 4, 4, 1), 1),
        (Held(0, 3, 5, 1), 1),
        (Held(0, 3, 4, 2), 1),
    ],
)
def test_what_is_left_is_seen(after: Held, failures: int) -> None:
    assert len(growth(Held(0, 3, 4, 1), after)[1]) == failures
