"""The stage that runs scripts/compare_training.py keeps what it has, also if a model fails, and names no folder."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from comparison_example import made_up

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "gpu"
Run = Callable[[Callable[[list[str], Path], int]], dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """Return a function that runs the stage with a stand-in for the script, and returns its result file."""
    monkeypatch.syspath_prepend(str(FOLDER))
    stage = importlib.import_module("compare")

    def run_stage(script: Callable[[list[str], Path], int]) -> dict[str, Any]:
        module: Any = ModuleType("compare_training")
        module.main = lambda words: script(words, Path(words[words.index("--out") + 1]))
        monkeypatch.setitem(sys.modules, "compare_training", module)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr("torch.set_num_threads", lambda count: None)
        out = tmp_path / "compare.json"
        words = ["compare.py", "--data", str(tmp_path / "data"), "--out", str(out), "--seconds", "100", "--small"]
        monkeypatch.setattr(sys, "argv", words)
        stage.main()
        found: dict[str, Any] = json.loads(out.read_text("utf-8"))
        return found

    yield run_stage
    for name in ("compare", "stage"):
        sys.modules.pop(name, None)


def save(folder: Path) -> None:
    results = made_up()
    results.wanted["source"] = str(folder.parent / "photos")
    results.facts = [("source", str(folder)), ("command", f"compare_training.py {folder}"), ("cores", "2")]
    results.save(folder / "results.json")


def test_both_models_are_compared_and_no_folder_is_named(run: Run, tmp_path: Path) -> None:
    calls: list[list[str]] = []

    def script(words: list[str], folder: Path) -> int:
        calls.append(words)
        save(folder)  # into a folder that is there
        return 0

    found = run(script)
    assert list(found["figures"]) == ["resnet18", "srcnn"] and "left_out" not in found
    assert [words[words.index("--models") + 1] for words in calls] == ["tiny", "srcnn"]
    assert str(tmp_path) not in json.dumps(found)
    kept = found["figures"]["resnet18"]
    assert kept["wanted"]["source"] == "photos" and kept["facts"] == [["cores", "2"]] and kept["runs"]


def test_what_a_model_has_when_it_fails_is_kept_and_the_next_is_run(run: Run) -> None:
    def script(words: list[str], folder: Path) -> int:
        if "tiny" not in words:
            return 1
        save(folder)
        raise RuntimeError("out of memory")

    found = run(script)
    assert list(found["figures"]) == ["resnet18"]
    assert found["left_out"] == {"resnet18: the rest": "RuntimeError: out of memory", "srcnn": "exit status 1"}
