"""Source distributions and wheels: the files in them, their names, and the same bytes each time.

Compiling takes a while and has its own tests: here a stand-in for the builder writes the libraries.
"""

from __future__ import annotations

import json
import os
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from loading_scripts import load_script

pytest.importorskip("setuptools", reason="a wheel is built with setuptools")

ROOT = Path(__file__).resolve().parent.parent
BUILT = "lmdbloader/kernels/built"
MACOS = "macosx_10_15_x86_64"
# Apart from libraries, no wheel may hold what the builder leaves.
STAND_IN = '''

def build(targets, out, *, units=None, if_changed=False, report=print):
    """Write what stands for libraries."""
    for folder in (out, units):
        folder.mkdir(parents=True, exist_ok=True)
    (units / "unit.bc").touch()
    digests = {}
    for target in targets:
        (out / target.file_name).write_bytes(target.name.encode())
        digests[target.file_name] = hashlib.sha256(target.name.encode()).hexdigest()
    _finish(out, digests, "sources")
'''


@pytest.fixture(scope="module")
def make_wheels() -> ModuleType:
    return load_script("make_wheels")


@pytest.fixture(scope="module")
def sdist(make_wheels: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = make_wheels.make_sdist(tmp_path_factory.mktemp("dist"))
    return path


@pytest.fixture
def source(make_wheels: ModuleType, sdist: Path, tmp_path: Path) -> Path:
    """An unpacked source distribution with a stand-in for the builder."""
    folder: Path = make_wheels.unpack(sdist, tmp_path / "sdist")
    with (folder / "lmdbloader/kernels/building/linking.py").open("a") as file:
        file.write(STAND_IN)
    return folder


def wheel_names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def modules() -> set[str]:
    """Every file of the package in this folder, except compiled ones."""
    files = {path.relative_to(ROOT) for path in (ROOT / "lmdbloader").rglob("*") if path.is_file()}
    return {p.as_posix() for p in files if "__pycache__" not in p.parts and not p.is_relative_to(BUILT)}


def test_a_source_distribution_holds_what_builds_it_and_no_tests_or_libraries(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    metadata = {"PKG-INFO"} | {name for name in names if name.startswith("lmdbloader.egg-info/")}
    others = {
        "CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "THIRD_PARTY.md", "constraints.txt", "pyproject.toml",
        "setup.cfg", "setup.py",
    }  # fmt: skip
    assert names - metadata == modules() | others


def test_a_wheel_holds_every_module_and_its_platform_s_libraries_and_built_twice_has_the_same_bytes(
    make_wheels: ModuleType, source: Path, tmp_path: Path
) -> None:
    libraries = {"kernels-darwin-x86-64-v2.dylib", "kernels-darwin-x86-64-v3.dylib"}
    # What an editable build leaves in the tree.
    (source / BUILT).mkdir()
    for name in ("kernels-linux-x86-64-v4.so", "libraries.json", "lock", "stamp"):
        (source / BUILT / name).write_text("left")
    (source / "build" / "lib" / "lmdbloader").mkdir(parents=True)
    wheel = make_wheels.make_wheel(source, MACOS, tmp_path)
    assert wheel.name.endswith(f"-py3-none-{MACOS}.whl")
    names = wheel_names(wheel)
    packed = {name for name in names if name.startswith("lmdbloader/")}
    assert packed == modules() | {f"{BUILT}/{name}" for name in ("libraries.json", *libraries)}
    metadata = {name.partition("/")[2] for name in names - packed}
    assert {"WHEEL", "METADATA", "licenses/LICENSE", "licenses/THIRD_PARTY.md"} <= metadata
    with zipfile.ZipFile(wheel) as archive:
        assert json.loads(archive.read(f"{BUILT}/libraries.json"))["libraries"].keys() == libraries
        (text,) = (archive.read(name).decode() for name in names if name.endswith("/WHEEL"))
    assert f"Tag: py3-none-{MACOS}\n" in text
    assert "Root-Is-Purelib: false" in text

    for path in source.rglob("*"):
        os.utime(path, (10**9, 10**9))
    (tmp_path / "again").mkdir()
    again = make_wheels.make_wheel(source.rename(tmp_path / "elsewhere"), MACOS, tmp_path / "again")
    assert again.read_bytes() == wheel.read_bytes()


def test_every_platform_of_the_targets_is_built(make_wheels: ModuleType) -> None:
    assert len(make_wheels.PLATFORMS) == 5
    assert {"win_amd64", "macosx_11_0_arm64", MACOS} < set(make_wheels.PLATFORMS)
