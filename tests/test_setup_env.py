"""The set-up behind `make`: its commands and their order, with a stand-in for pip that leaves the same files."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from loading_scripts import load_script

ROOT = Path(__file__).resolve().parent.parent


setup_env = load_script("setup_env")
VERSIONS = {"pillow": "13.0.0", "pillow-simd": "12.1.1.post0"}


@dataclass
class FakePip:
    """Stands in for every command: records the calls, and leaves the files that the real one would leave.

    Attributes:
        root: The folder that is set up.
        broken: Commands that fail: "venv", "install", "wheel pillow-simd", "check pillow-simd" ...
        interrupt: A command at which the person presses Ctrl-C.
        asked: The commands run, as short names, those that build kernels left out.
        num_builds: How often kernels were built.
        said: The lines for the person at the terminal.
    """

    root: Path
    broken: set[str] = field(default_factory=set)
    interrupt: str = ""
    asked: list[str] = field(default_factory=list)
    num_builds: int = 0
    said: list[str] = field(default_factory=list)

    @property
    def pil(self) -> Path:
        return self.root / ".venv" / "lib" / "python3.11" / "site-packages" / "PIL" / "_version.py"

    def put(self, name: str) -> None:
        self.pil.parent.mkdir(parents=True, exist_ok=True)
        self.pil.write_text(f'from __future__ import annotations\n\n__version__ = "{VERSIONS[name]}"\n')

    def __call__(self, command: Sequence[str], log: Path | None = None) -> None:
        name = self.name_of(command)
        if name == "kernels":  # at any time while others run
            self.num_builds += 1
        else:
            self.asked.append(name)
        if name == self.interrupt:
            raise KeyboardInterrupt
        if name in self.broken:
            raise setup_env.SetupError(f"{name} failed: no compiler")
        verb, _, what = name.partition(" ")
        if verb == "venv":
            shutil.rmtree(self.root / ".venv", ignore_errors=True)
            (self.root / ".venv" / "bin").mkdir(parents=True)
            (self.root / ".venv" / "bin" / "python").touch()
        elif verb == "install":
            self.put(what or "pillow")
        elif verb == "uninstall":
            self.pil.unlink(missing_ok=True)
        elif verb == "wheel":
            folder = Path(command[command.index("--wheel-dir") + 1])
            (folder / f"{what.replace('-', '_')}-{VERSIONS[what]}-cp311-linux.whl").touch()

    def name_of(self, command: Sequence[str]) -> str:
        if "venv" in command:
            return "venv"
        if setup_env.BUILD_KERNELS in command:
            return "kernels"
        if "-c" in command:
            found = setup_env.pil_in_place(setup_env.Environment(self.root))
            return f"check {found[0] if found else 'nothing'}"
        verb = next(word for word in command if word in ("install", "uninstall", "wheel"))
        if verb == "wheel":
            return f"wheel {command[-1]}"
        if verb == "install" and any(word.startswith("setuptools") for word in command):
            return "tools"
        if "--editable" in command:
            return "package"
        if verb == "install" and command[-1].endswith(".whl"):
            return f"install {Path(command[-1]).name.split('-')[0].replace('_', '-')}"
        return verb

    def set_up(self, pil: str | None = None) -> list[str]:
        """Run the set-up once; return its commands, in order."""
        self.asked, self.said = [], []
        env = setup_env.Environment(self.root, self)
        setup_env.set_up(env, pil=pil, say=self.said.append)
        return self.asked

    def in_place(self) -> str:
        found = setup_env.pil_in_place(setup_env.Environment(self.root))
        assert found is not None
        return str(found[0])


@pytest.fixture
def pip(tmp_path: Path) -> FakePip:
    (tmp_path / "scripts").mkdir()
    for name in setup_env.INPUTS:
        shutil.copy(ROOT / name, tmp_path / name)
    return FakePip(tmp_path)


def test_the_first_call_installs_everything_then_exchanges_pillow(pip: FakePip) -> None:
    assert pip.set_up() == [
        "venv",
        "tools",
        "install",
        "wheel pillow-simd",
        "wheel pillow",
        "uninstall",
        "install pillow-simd",
        "check pillow-simd",
        "package",
    ]
    assert pip.num_builds == 1
    assert pip.said[-1] == "PIL is pillow-simd 12.1.1.post0."


def test_a_second_call_runs_nothing_and_prints_the_pil_in_use(pip: FakePip) -> None:
    pip.set_up()
    assert pip.set_up() == []
    assert pip.said == ["PIL is pillow-simd 12.1.1.post0."]


def test_without_a_compiler_pillow_stays_and_the_reason_is_printed_each_time(pip: FakePip) -> None:
    pip.broken = {"wheel pillow-simd"}
    assert pip.set_up() == ["venv", "tools", "install", "wheel pillow-simd", "check pillow", "package"]
    assert pip.said[-1].startswith("PIL is pillow 13.0.0, for pillow-simd could not be used:")
    assert "no compiler" in pip.said[-1]
    assert pip.set_up() == []
    assert "no compiler" in pip.said[-1]


def test_a_pillow_simd_that_does_not_import_gives_way_to_pillow(pip: FakePip) -> None:
    pip.broken = {"check pillow-simd"}
    assert pip.set_up()[-5:] == ["check pillow-simd", "uninstall", "install pillow", "check pillow", "package"]
    assert pip.in_place() == "pillow"
    assert pip.set_up() == []


def test_switching_there_and_back_builds_nothing_twice(pip: FakePip) -> None:
    pip.set_up()
    assert pip.set_up("pillow") == ["uninstall", "install pillow", "check pillow"]
    assert pip.in_place() == "pillow"
    assert pip.set_up("pillow") == []
    assert pip.set_up() == []
    assert pip.set_up("pillow-simd") == ["uninstall", "install pillow-simd", "check pillow-simd"]
    assert pip.set_up("pillow-simd") == []


@pytest.mark.parametrize("name", ["setup.cfg", "pyproject.toml", "constraints.txt", "scripts/setup_env.py"])
def test_changed_inputs_bring_the_environment_up_to_date(pip: FakePip, name: str) -> None:
    pip.set_up()
    with (pip.root / name).open("a") as file:
        file.write("\n# changed\n")
    asked = pip.set_up()
    assert "venv" not in asked
    assert asked[:3] == ["uninstall", "tools", "install"]
    assert pip.in_place() == "pillow-simd"
    assert pip.set_up() == []


@pytest.mark.parametrize(
    "step", ["venv", "tools", "install", "wheel pillow-simd", "uninstall", "check pillow-simd", "package"]
)
def test_an_interrupted_set_up_starts_again(pip: FakePip, step: str) -> None:
    pip.interrupt = step
    with pytest.raises(KeyboardInterrupt):
        pip.set_up()
    pip.interrupt = ""
    assert pip.set_up()[0] == "venv"
    assert pip.in_place() == "pillow-simd"
    assert pip.set_up() == []


@pytest.mark.parametrize("step", ["venv", "tools", "install", "kernels", "package"])
def test_a_set_up_that_fails_is_not_taken_for_finished(pip: FakePip, step: str) -> None:
    pip.broken = {step}
    with pytest.raises(setup_env.SetupError, match="no compiler"):
        pip.set_up()
    pip.broken = set()
    assert pip.set_up()[0] == "venv"


def test_an_environment_of_another_folder_or_without_its_interpreter_is_made_again(pip: FakePip) -> None:
    pip.set_up()
    (pip.root / ".venv" / "bin" / "python").unlink()
    assert pip.set_up()[0] == "venv"
    pip.root = pip.root.rename(pip.root.with_name(f"{pip.root.name}-moved"))
    assert pip.set_up()[0] == "venv"


def test_two_set_ups_take_turns(pip: FakePip) -> None:
    pip.set_up()
    env = setup_env.Environment(pip.root, pip)
    with setup_env.locked(env, pip.said.append), (env.cache / "lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (env.cache / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_command_that_fails_says_why_in_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import sys; print('copying'); print('error: command cc failed'); sys.exit(3)"
    with pytest.raises(setup_env.SetupError, match=r"^error: command cc failed \(the whole story: .*log\)$"):
        setup_env.run([sys.executable, "-c", code], log)


def test_the_check_fails_when_pil_returns_other_pixels() -> None:
    planted = "from PIL import Image\nread = Image.open\nImage.open = lambda file: read(file).point(lambda v: v // 2)\n"
    child = subprocess.run([sys.executable, "-c", planted + setup_env.CHECK], capture_output=True, text=True)
    assert child.returncode == 1
    assert "levels apart" in child.stderr
