"""A fresh clone's check uses an installed browser, installs one, or continues without one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parent.parent / ".ci" / "run"


def run(folder: Path, **programs: str) -> tuple[str, str]:
    """Run `.ci/run` with only these programs (name: shell text) and the shell's own.

    Returns the programs that ran, in order, with their arguments; and the output on stderr.
    """
    tools = folder / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "timeout"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    for name, text in {"id": "echo 0", "make": "echo made", **programs}.items():
        program = tools / name.replace("_", "-")
        program.write_text(f'#!/bin/sh\necho "{program.name} $*" >> {folder}/ran\n{text}\n')
        program.chmod(0o755)
    done = subprocess.run([str(RUN)], env={"PATH": str(tools)}, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "made\n"
    return (folder / "ran").read_text(), done.stderr


def test_without_a_browser_root_installs_one(tmp_path: Path) -> None:
    ran, errors = run(tmp_path, apt_get="echo noise; echo noise >&2")
    assert "install --yes --no-install-recommends chromium-headless-shell" in ran
    assert ran.index("update") < ran.index("--download-only") < ran.index("make")
    assert errors == ""


@pytest.mark.parametrize("apt_get", ["exit 100", "case $* in *install*) exit 100;; esac", "kill -9 $$"])
def test_where_none_can_be_installed_it_says_so_and_goes_on(tmp_path: Path, apt_get: str) -> None:
    ran, errors = run(tmp_path, apt_get=apt_get)
    assert "make" in ran
    assert "Chromium cannot be installed" in errors


@pytest.mark.parametrize(
    "programs",
    [{"apt_get": "", "chromium": ""}, {"apt_get": "", "google_chrome": ""}, {"apt_get": "", "id": "echo 1000"}, {}],
)
def test_nothing_is_installed_where_there_is_one_or_nobody_may(tmp_path: Path, programs: dict[str, str]) -> None:
    ran, errors = run(tmp_path, **programs)
    assert "apt" not in ran
    assert errors == ""
