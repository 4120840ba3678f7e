"""Opened and let go of again and again, nothing piles up."""

from __future__ import annotations

import pytest

from .growth import Held, growth
from .registry import fault_named
from .running import run_fault


def test_opening_leaves_nothing() -> None:
    # In a process of its own: the memory of one that runs other tests moves by itself.
    outcome = run_fault(fault_named("open_close"), 240, 1)
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
