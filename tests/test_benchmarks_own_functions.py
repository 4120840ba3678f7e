"""The benchmark of users' own functions: it measures each way of writing one, and all ways do the same."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("own_functions")
    for name in ("own_functions", "common"):
        sys.modules.pop(name, None)


@pytest.mark.filterwarnings("ignore:Loader:UserWarning")
def test_every_way_is_measured(program: Any, tmp_path: Path) -> None:
    options = program.parse_options(
        ["--sizes", "16", "--images", "24", "--batch-size", "8", "--turns", "1", "--markdown"]
    )
    ((_, results, text),) = program.run(tmp_path, options)
    assert len(results["16"]) == len(text.splitlines()) - 2
    assert all(found > 0 for found in results["16"].values())
