"""Damage is found, and the sound samples are saved."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .datasets import FILES
from .mending import KINDS, Subject, check, plant, run, write_records


def test_what_is_sound_comes_back(tmp_path: Path) -> None:
    outcome = run(40, 1, tmp_path)
    assert outcome.failures == []
    assert outcome.counts["mended in place"] > 3
    assert outcome.counts["saved by the index"] > 3
    assert outcome.counts["saved record by record"] > 0
    assert outcome.counts["signals"] == 0


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> list[Subject]:
    folder = tmp_path_factory.mktemp("mending")
    for seed in (0, 1):
        write_records(folder / f"{seed}.lmdb", seed)
    return [Subject(folder / f"{seed}.lmdb") for seed in (0, 1)]


@settings(max_examples=15)
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(KINDS), st.sampled_from(FILES), st.integers(0, 2**21), st.integers(0, 2**32)),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_is_damaged_is_found_and_the_rest_is_saved(subjects: list[Any], changes: list[Any]) -> None:
    damaged = subjects[0].files
    for change in changes:
        damaged = plant(damaged, change, subjects[1].files)
    with tempfile.TemporaryDirectory() as folder:
        check(subjects[0], damaged, changes, Path(folder))
