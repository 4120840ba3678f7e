"""Sectors that the disk cannot read are errors that name the sample, with every way of reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from .bad_disk import NOT_HERE
from .bad_sectors import run


def test_sectors_that_do_not_read_are_errors(tmp_path: Path) -> None:
    outcome = run(15, 1, tmp_path)
    assert outcome.failures == []
    if list(outcome.counts) != ["bad disks"] and len(outcome.counts) == 1:
        pytest.skip(NOT_HERE)
    assert outcome.counts["signals"] == 0
    assert outcome.counts["an error that names the sample or its rows"] > 2
    assert outcome.counts["skip: some left out"] > 2
    assert outcome.counts["verify: an error"] == 15
    assert outcome.counts["stage: an error"] == 15
