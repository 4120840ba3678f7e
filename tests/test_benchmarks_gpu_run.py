"""The GPU benchmark's runner: a stage that hangs, fails or dies costs no other's results, and all ends in time."""

from __future__ import annotations

import importlib
import json
import sys
import time
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


def test_the_device_side_fits_into_nine_minutes_with_its_files(modules: dict[str, ModuleType]) -> None:
    run = modules["run"]
    chosen = run.chosen_stages(["device-side"])
    assert chosen == ["device_data", "host", "device", "keep", "fed_device", "ranks", "jpeg"]
    # The rest is for installing the pack, and for ending a stage that hangs.
    assert sum(run.STAGES[name].seconds for name in chosen) + run._GRACE_SECONDS <= 9 * 60 - 30
    assert all((FOLDER / run.STAGES[name].script).is_file() for name in chosen)


def test_only_what_the_chosen_stages_read_is_made(modules: dict[str, ModuleType]) -> None:
    chosen_stages = modules["run"].chosen_stages
    assert chosen_stages(["jpeg", "host"]) == ["device_data", "host", "jpeg"]
    assert chosen_stages(["copies"]) == ["photographs", "betons", "material", "copies"]
    assert chosen_stages(["more"])[3:] == ["cores more", "accuracy more", "fed more"]


def test_a_stage_that_waits_without_end_goes_on_with_its_next_measurement(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    arguments = ["--data", str(tmp_path), "--out", str(tmp_path / "x.json"), "--seconds", "3", "--small"]
    stage = modules["stage"].parse_stage("x", "A stage.", arguments)
    assert stage.attempt("hangs", 1, lambda: time.sleep(60)) is None
    assert stage.left < 2 and stage.attempt("late", 1, lambda: 5) == 5
    assert "TimeoutError" in json.loads((tmp_path / "x.json").read_text())["left_out"]["hangs"]
