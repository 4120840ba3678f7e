"""`lmdbloader doctor`: its output, and the exit status that shows whether it found a problem."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from machines import healthy

import lmdbloader
from lmdbloader.cli import main
from lmdbloader.lab.machine import Machine

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def dataset(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("doctor") / "pairs.lmdb"
    lmdbloader.convert(photos, path, patch_size=96, scale=2, workers=1)
    return path


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = healthy()
    monkeypatch.setattr("lmdbloader.lab.checkup.diagnosis.describe", lambda path: found)
    return found


@pytest.mark.usefixtures("machine")
def test_a_healthy_machine_is_status_zero(capsys: Capture) -> None:
    assert main(["doctor"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and "PROBLEM" not in captured.out
    assert captured.out.rstrip().endswith("No problem found.")


def test_a_problem_is_status_one(capsys: Capture, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = replace(machine, thread_pools=replace(machine.thread_pools, torch=64))
    monkeypatch.setattr("lmdbloader.lab.checkup.diagnosis.describe", lambda path: slow)
    assert main(["doctor"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "" and "PROBLEM  threads" in captured.out


@pytest.mark.usefixtures("machine")
def test_json_is_alone_on_stdout(dataset: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.lab.checkup.rehearsal._SECONDS", 0.3)
    options = ["--batch-size", "8", "--step-seconds", "0.02", "--crop", "32", "--json"]
    status = main(["doctor", str(dataset), *options])
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["machine"]["python"]
    assert status == (0 if found["is_healthy"] else 1)
    assert found["dataset"]["num_samples"] == 48
    assert found["profile"]["bottleneck"]
