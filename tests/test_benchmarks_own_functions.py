"""The benchmarks of users' own functions: each way of writing one is measured, in turns and at once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("own_functions"), importlib.import_module("turns")
    for name in ("own_functions", "turns", "common"):
        sys.modules.pop(name, None)


@pytest.mark.filterwarnings("ignore:Loader:UserWarning")
def test_every_way_is_measured(programs: Any, tmp_path: Path) -> None:
    program, _ = programs
    options = program.parse_options(
        ["--sizes", "16", "--images", "24", "--batch-size", "8", "--turns", "1", "--markdown"]
    )
    ((_, results, text),) = program.run(tmp_path, options)
    assert len(results["16"]) == len(text.splitlines()) - 2
    assert all(found > 0 for found in results["16"].values())


def test_every_function_is_measured_in_turns_and_at_once(programs: Any, tmp_path: Path) -> None:
    _, program = programs
    options = program.parse_options(["--size", "16", "--images", "24", "--batch-size", "8", "--turns", "1"])
    ((_, results, text),) = program.run(tmp_path, options)
    assert len(results) == len(program.FUNCTIONS) == len(text.splitlines()) - 1
    assert all(figure > 0 for figures in results.values() for figure in figures.values())
