"""The Debian chroots for tests: which parts are made when, with a stand-in for the commands that run in them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from loading_scripts import load_script

ROOT = Path(__file__).resolve().parent.parent

if shutil.which("git") is None:
    pytest.skip("the copy of a clone is made with git, which is not installed", allow_module_level=True)
chroots = load_script("chroots")
PYTHON313, AARCH64 = chroots.DEBIANS


@dataclass
class FakeRuns:
    """Stands in for commands in namespaces: records them, and leaves the files that the real ones would leave.

    Attributes:
        failing: The word of a command that fails.
        ran: The words that tell the commands apart, in order.
        emulated: Which of them ran emulated.
    """

    failing: str = ""
    ran: list[str] = field(default_factory=list)
    emulated: list[bool] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def __call__(self, root: Path, command: Sequence[str], *, emulator: Any = None, log: Any = None, **_: Any) -> int:
        text = " ".join(command)
        known = ("--second-stage", "debootstrap", "update", "clean", "apt-get", "venv --clear", "pip", "pytest")
        word = next(name for name in known if name in text)
        self.ran.append(word)
        self.emulated.append(emulator is not None)
        self.arguments = list(command)
        if log:
            log.write_text("E: the mirror is closed\n")
        if word == self.failing:
            return 1
        if word == "debootstrap":
            for name in ("etc/ssl/certs", "opt", "tmp"):
                (Path(command[-2]) / name).mkdir(parents=True)
        elif word == "venv --clear":
            for name in ("lib/python3.13/site-packages", "bin"):
                (root / "opt/venv" / name).mkdir(parents=True, exist_ok=True)
        return 0


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of a few files, in which Debians are made."""
    folder = tmp_path / "clone"
    (folder / "tests").mkdir(parents=True)
    for name in ("setup.cfg", "constraints.txt"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    for pattern in AARCH64.tests:
        (folder / "tests" / f"test_{pattern.replace('*', 'x')}.py").touch()
    (folder / ".gitignore").write_text(".chroots/\n")
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    monkeypatch.setattr(chroots, "ROOT", folder)
    monkeypatch.setattr(chroots, "HOME", folder / ".chroots")
    return folder


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    """Commands that do nothing, on a machine that has everything that is needed."""
    fake = FakeRuns()
    monkeypatch.setattr(chroots, "run_in", fake)
    monkeypatch.setattr(chroots.os, "geteuid", lambda: 0)
    monkeypatch.setattr(chroots.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(chroots.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(chroots, "find_emulator", lambda processor: object())
    return fake


INSTALLED = ["update", "apt-get", "clean", "venv --clear", "pip"]


def test_the_first_call_makes_everything_and_the_next_one_only_runs_the_tests(clone: Path, runs: FakeRuns) -> None:
    assert chroots.test_in(PYTHON313, [], built=None) == 0
    assert runs.ran == ["debootstrap", *INSTALLED, "pytest"]
    assert not any(runs.emulated)
    runs.ran = []
    assert chroots.test_in(PYTHON313, ["-k", "one"], built=None) == 0
    assert runs.ran == ["pytest"]
    assert runs.arguments[-6:-4] == ["-k", "one"]


def test_another_processor_is_emulated_in_all_but_the_first_stage(clone: Path, runs: FakeRuns) -> None:
    chroots.test_in(AARCH64, [], built=None)
    assert runs.ran == ["debootstrap", "--second-stage", *INSTALLED, "pytest"]
    assert runs.emulated == [False] + [True] * 7
    assert f"tests/test_{AARCH64.tests[0].replace('*', 'x')}.py" in runs.arguments


def test_the_copy_has_what_git_has_and_the_libraries(clone: Path, runs: FakeRuns, tmp_path: Path) -> None:
    (tmp_path / "built").mkdir()
    for name in ("kernels-linux-aarch64.so", "libraries.json", "lock"):
        (tmp_path / "built" / name).write_text(name)
    (clone / "new.py").write_text("1")
    (clone / "link.py").symlink_to("new.py")
    chroots.test_in(AARCH64, [], built=tmp_path / "built")
    tree = chroots.HOME / "aarch64" / "lmdbloader"
    assert sorted(p.name for p in (tree / "lmdbloader/kernels/built").iterdir()) == [
        "kernels-linux-aarch64.so",
        "libraries.json",
    ]
    assert (tree / "new.py").read_text() == "1"
    assert not (tree / ".chroots").exists()

    (tree / "__pycache__").mkdir()
    (clone / "new.py").write_text("changed")
    (clone / "link.py").unlink()
    chroots.test_in(AARCH64, [], built=tmp_path / "built")
    assert (tree / "new.py").read_text() == "changed"
    assert not (tree / "link.py").exists()
    assert (tree / "__pycache__").exists(), "what a run left is kept"


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("os.geteuid", lambda: 1000, "run it as root"),
        ("shutil.which", lambda name: None, r"debootstrap is not installed.*apt install debootstrap"),
        (
            "find_emulator",
            lambda processor: None,
            r"qemu-aarch64-static is not installed.*apt install qemu-user-static",
        ),
        ("platform.machine", lambda: "s390x", "expected a processor of x86_64 or aarch64, found s390x"),
        ("platform.system", lambda: "Darwin", "on Linux only; this is Darwin"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_made(
    clone: Path, runs: FakeRuns, monkeypatch: pytest.MonkeyPatch, attribute: str, value: Any, message: str
) -> None:
    monkeypatch.setattr(f"chroots.{attribute}", value)
    debian = PYTHON313 if "machine" in attribute else AARCH64
    with pytest.raises(chroots.ChrootError, match=message):
        chroots.test_in(debian, [], built=None)
    assert runs.ran == []
    assert not chroots.HOME.exists()


def test_a_folder_in_which_something_is_mounted_is_never_removed() -> None:
    with pytest.raises(chroots.ChrootError, match=r"/proc is mounted inside /; unmount it first"):
        chroots.remove(Path("/"))


CHECK = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from namespaces import NamespaceError, run_in
try:
    sys.exit(run_in(Path("/"), sys.argv[2:], environment={"PATH": "/usr/bin:/bin"}))
except NamespaceError as error:
    print(error)
    sys.exit(99)
"""


def in_namespaces(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in namespaces of its own, or skip the test where none can be made."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux makes namespaces")
    program = [sys.executable, "-c", CHECK, str(ROOT / "scripts"), *command]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    if done.returncode == 99 and "namespaces cannot be made" in done.stdout:
        pytest.skip(done.stdout)
    return done


def test_a_command_in_namespaces_sees_its_own_processes_and_leaves_none() -> None:
    done = in_namespaces("sh", "-c", "mount -t tmpfs lmdbloader-test /mnt && sleep 1000 & ls -d /proc/[0-9]*; exit 7")
    assert done.returncode == 7
    assert 0 < len(done.stdout.split()) < 10  # it waits for the output's end, and so for every process
    assert "lmdbloader-test" not in Path("/proc/self/mounts").read_text()
