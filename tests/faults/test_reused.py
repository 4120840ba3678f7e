"""Samples in memory that is filled again are written as they were when they were given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .containers import CONTAINERS
from .reused import copied_of, run


def test_samples_in_reused_memory_are_written_as_they_were_given(tmp_path: Path) -> None:
    outcome = run(3 * len(CONTAINERS), 1, tmp_path)
    assert outcome.failures == []
    assert outcome.counts["kinds of memory"] == len(CONTAINERS) >= 20
    assert outcome.counts["same digest"] == outcome.counts["written"] == 3 * len(CONTAINERS)


@pytest.mark.parametrize("name", CONTAINERS)
def test_what_was_given_really_holds_something_else_afterwards(tmp_path: Path, name: str) -> None:
    refill = CONTAINERS[name](tmp_path, 5, 6)
    given = refill(2)
    before = content(given)
    refill(4)
    try:
        assert content(given) != before
    except ValueError as error:  # it is gone, which is as good
        assert "released" in str(error)


def content(value: Any) -> Any:
    value = copied_of(value)
    return value if isinstance(value, bytes | list | dict) else np.asarray(value).tobytes()
