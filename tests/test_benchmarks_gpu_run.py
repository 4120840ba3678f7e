"""The GPU benchmark's runner: a stage that hangs, fails or dies costs no other's results, and all ends in time."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "gpu"
NAMES = ("run", "stage", "rehearse")

# A stage in the frame that all share: it keeps one figure, then does something else.
STAGE = """
from stage import parse_stage
stage = parse_stage({name!r}, "A stage.")
stage.put("first", {{"images_per_s": 1.5}})
{then}
"""


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """Import the runner's modules, and forget their short names afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


def benchmark(
    modules: dict[str, ModuleType],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    stages: dict[str, tuple[str, float]],
    minutes: float = 1.0,
) -> dict[str, Any]:
    """Run made-up stages (name: action after the first figure, seconds) and return how each ended."""
    run = modules["run"]
    plans = {}
    for name, (then, seconds) in stages.items():
        script = folder / f"{name}.py"
        script.write_text(STAGE.format(name=name, then=then))
        plans[name] = run.Plan(str(script), seconds, "made up")
    monkeypatch.setattr(run, "STAGES", plans)
    monkeypatch.setattr(run, "STAGE_NAMES", list(plans))
    monkeypatch.setattr(run, "_FIRST", ())
    monkeypatch.setattr(run, "_LEAST_SECONDS", 1.0)
    monkeypatch.setattr(run, "_GRACE_SECONDS", 0.5)
    out = folder / "out"
    options = ["--out", str(out), "--work", str(folder / "work"), "--minutes", str(minutes), "--stages", *stages]
    monkeypatch.setattr(sys, "argv", ["run.py", *options])
    run.main()
    (path,) = out.glob("run-*.json")
    return json.loads(path.read_text())["stages"]  # type: ignore[no-any-return]


def figures(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / "out" / f"{name}.json").read_text())["figures"]  # type: ignore[no-any-return]


def test_a_stage_that_hangs_fails_or_dies_costs_no_other_its_results(
    modules: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = benchmark(
        modules,
        tmp_path,
        monkeypatch,
        {
            "fails": ("raise ValueError('the reason')", 30),
            "dies": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 30),
            "hangs": ("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)", 3),
            "works": ("stage.put('second', 2); stage.leave_out('third', 'no time')", 30),
        },
    )
    assert {name: kept["status"] for name, kept in found.items()} == {
        "fails": "failed",
        "dies": "failed",
        "hangs": "out of time",
        "works": "done",
    }
    assert "ValueError: the reason" in found["fails"]["tail"]
    assert found["fails"]["reason"] == "exit status 1"
    assert found["dies"]["reason"] == "killed by SIGSEGV"
    assert "tail" not in found["works"]
    for name in found:
        assert figures(tmp_path, name)["first"] == {"images_per_s": 1.5}
    assert figures(tmp_path, "works")["second"] == 2
    assert json.loads((tmp_path / "out" / "works.json").read_text())["left_out"] == {"third": "no time"}


def test_continuing_keeps_the_earlier_figures(
    modules: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, script = modules["run"], tmp_path / "sums.py"
    script.write_text(
        "from stage import parse_stage\n"
        "stage = parse_stage('sums', 'A stage.')\n"
        "if stage.more:\n"
        "    stage.put('sum', stage.figure('sum', 0) + 5)\n"
        "    stage.take_back('late')\n"
        "else:\n"
        "    stage.put('sum', 2), stage.put('other', 1)\n"
        "    stage.leave_out('late', 'no time'), stage.leave_out('never', 'x')\n"
    )
    plans = {"sums": run.Plan(str(script), 30, "some"), "sums more": run.Plan(str(script), 30, "others", more=True)}
    for name, value in {"STAGES": plans, "STAGE_NAMES": ["sums", "more"], "_FIRST": (), "_LEAST_SECONDS": 1.0}.items():
        monkeypatch.setattr(run, name, value)
    for stages in (["sums"], ["more"]):
        out = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
        monkeypatch.setattr(sys, "argv", ["run.py", *out, "--stages", *stages])
        assert run.main() == 0
    kept = json.loads((tmp_path / "out" / "sums.json").read_text())
    assert kept["figures"] == {"sum": 7, "other": 1}
    assert kept["left_out"] == {"never": "x"}
