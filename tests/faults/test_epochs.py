"""Epoch after epoch nothing piles up."""

from __future__ import annotations

from .registry import fault_named
from .running import run_fault


def test_epochs_leave_nothing() -> None:
    # In a process of its own: the memory of one that runs other tests moves by itself.
    outcome = run_fault(fault_named("epochs"), 60, 1)
    assert outcome.failures == []
    assert outcome.counts["epochs"] == 60 and outcome.counts["left early"] > 5
