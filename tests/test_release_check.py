"""The check of a release: what it runs, what it finds missing, and what its last line says, with stand-ins for pip."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from loading_scripts import load_script


@pytest.fixture
def release_check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", list(sys.path))  # the script puts its folders first
    return load_script("release_check")


@pytest.fixture
def dist(tmp_path: Path, release_check: ModuleType) -> Path:
    """A folder with a wheel for every platform, as large as the page says, and the source distribution of a release."""
    folder = tmp_path / "dist"
    folder.mkdir()
    page = (release_check.ROOT / "docs" / "installation.md").read_text("utf-8")
    for platform in release_check.make_wheels.PLATFORMS:
        (mib,) = re.findall(rf"(?m)^\| `{platform.partition('.')[0]}` .* ([\d.]+) \|$", page)
        wheel = folder / f"lmdbloader-1-py3-none-{platform}.whl"
        wheel.touch()
        os.truncate(wheel, int(float(mib) * 2**20))
    (folder / "lmdbloader-1.tar.gz").touch()
    return folder


@pytest.fixture
def tried(release_check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The check with stand-ins for whatever installs or runs something: everything is sound, small and fast."""
    monkeypatch.setattr(release_check, "targets_here", lambda: release_check.check_wheels.targets_of_wheel("win_amd64"))
    monkeypatch.setattr(release_check.check_wheels, "check_wheel", lambda path: [])
    monkeypatch.setattr(release_check, "check_metadata", lambda paths, folder: None)
    monkeypatch.setattr(release_check, "make_environment", lambda folder: folder / "bin")
    monkeypatch.setattr(release_check, "pip_install", lambda programs, folder, *what: None)
    monkeypatch.setattr(release_check, "try_it", lambda programs, folder: {"patches": 0.25})
    monkeypatch.setattr(release_check, "check_types", lambda programs, folder: None)
    monkeypatch.setattr(release_check, "check_frameworks", list)
    monkeypatch.setattr(release_check, "installed_sizes", lambda programs, folder: {"lmdbloader": 7.0, "numpy": 70.0})
    return release_check


def test_the_readme_begins_with_snippets_that_can_run(
    release_check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(release_check, "run", lambda command, folder, **_: ran.append([str(c) for c in command]) or "")
    assert release_check.run_readme(tmp_path, tmp_path) == len(ran) >= 2
    programs = {Path(command[0]).name for command in ran}
    assert programs == {"lmdbloader", "python"}
    assert not [word for command in ran for word in command if word.startswith("#")]


def test_a_compiler_or_numba_in_the_environment_is_an_error(
    release_check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setattr(release_check, "ABSENT", ("no_such_module",))
    release_check.check_absent(tmp_path, tmp_path)
    monkeypatch.setattr(release_check, "ABSENT", ("no_such_module", "json"))
    with pytest.raises(release_check.CheckError, match=r"must not need: \['json'\] \[\]"):
        release_check.check_absent(tmp_path, tmp_path)
    monkeypatch.setattr(release_check, "ABSENT", ())
    (tmp_path / "gcc").touch(0o755)
    with pytest.raises(release_check.CheckError, match=r"must not need: \[\] \['gcc'\]"):
        release_check.check_absent(tmp_path, tmp_path)


def test_a_sound_release_is_ready(tried: ModuleType, dist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tried.main(["--dist", str(dist)]) == 0
    printed = capsys.readouterr().out
    assert printed.count(" MiB, sound\n") == len(tried.make_wheels.PLATFORMS)
    assert printed.endswith("s: ready to be released\n")


@pytest.mark.parametrize(
    ("name", "found", "message"),
    [
        ("check_wheels.check_wheel", lambda path: ["it lacks a"] * ("win" in path.name), "win_amd64.whl: it lacks a"),
        ("installed_sizes", lambda programs, folder: {"numpy": 290.6}, "291 MiB are installed; at most 290 are"),
        ("try_it", lambda programs, folder: {"patches": 1.25}, "the first batch of patches came after 1.25 s; 1 s are"),
    ],
)
def test_what_is_exceeded_is_said_before_the_last_line(
    tried: ModuleType,
    dist: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    found: object,
    message: str,
) -> None:
    monkeypatch.setattr(f"release_check.{name}", found)
    assert tried.main(["--dist", str(dist)]) == 1
    *_, why, last = capsys.readouterr().out.splitlines()
    assert why.startswith("not ready: ") and message in why
    assert last.endswith("s: not ready")


def test_a_size_that_the_page_does_not_say_is_not_ready(
    tried: ModuleType, dist: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dist / "lmdbloader-1-py3-none-win_amd64.whl").write_bytes(b"")
    assert tried.main(["--dist", str(dist)]) == 1
    assert "not ready: docs/installation.md: write 0.0 MiB for win_amd64\n" in capsys.readouterr().out
