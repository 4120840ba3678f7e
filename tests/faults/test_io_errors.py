"""Calls that fail with EIO are errors that name the file, and do no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import shim
from .io_errors import run


def test_calls_that_fail_are_told(tmp_path: Path) -> None:
    outcome = run(24, 2, tmp_path)
    assert outcome.failures == []
    if shim.build(tmp_path) is None:
        pytest.skip(shim.NO_COMPILER)
    assert outcome.counts["an error"] + outcome.counts["no harm"] == 24
    assert outcome.counts["an error"] > 10
    assert outcome.counts["read"] > 3 and outcome.counts["write"] > 3
    assert outcome.counts["after a failed flush"] > 0
