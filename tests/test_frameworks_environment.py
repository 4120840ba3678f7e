"""The environment of the frameworks' tests: its list is complete, and the release check runs the tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import frameworks
import pytest
from loading_scripts import load_script

ROOT = Path(__file__).resolve().parent.parent


def test_every_framework_has_its_version_and_the_torch_of_the_other_tests() -> None:
    chosen = frameworks.chosen()
    assert {"accelerate", "basicsr", "fastai", "keras", "lightning", "ray", "timm", "transformers"} <= chosen.keys()
    assert frameworks.torch_version("https://example.org/torch") == "torch==2.13.0"
    assert frameworks.torch_version() == "torch===2.13.0"
    assert {*frameworks.ALONE} <= chosen.keys()


def test_every_file_of_tests_is_there() -> None:
    assert all((ROOT / path).is_file() for path in frameworks.TESTS)
    assert all((ROOT / re.sub(r".*\[(.*)\]", r"\1", page)).is_file() for page in frameworks.PAGES)


def test_an_environment_that_is_current_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(frameworks, "run", commands.append)
    (tmp_path / "bin").mkdir()
    frameworks.make_environment(tmp_path, "https://example.org/torch")
    made = len(commands)
    assert "https://example.org/torch" in commands[1] and "torch==2.13.0" in commands[1]
    assert not any(word.startswith("basicsr") for word in commands[1])
    assert commands[-1][-1] == f"basicsr=={frameworks.chosen()['basicsr']}" and "--no-deps" in commands[-1]
    frameworks.make_environment(tmp_path, None)
    assert len(commands) == made > 2


@pytest.mark.parametrize(("status", "missed"), [(0, []), (1, ["the tests of frameworks fail"])])
def test_the_release_check_runs_them(monkeypatch: pytest.MonkeyPatch, status: int, missed: list[str]) -> None:
    calls: list[Any] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(sys, "path", list(sys.path))  # the script puts its folders first
    release_check = load_script("release_check")
    monkeypatch.setattr(release_check.subprocess, "run", run)
    found = release_check.check_frameworks()
    assert [line.partition(";")[0] for line in found] == missed
    assert calls == [[sys.executable, str(ROOT / "scripts" / "frameworks.py"), "--quiet"]]
