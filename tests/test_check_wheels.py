"""The checks of wheels find planted defects: in libraries, in the files of a wheel, and in its tags."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from loading_scripts import load_script

from lmdbloader.kernels.building.targets import Target, targets_here, targets_of_wheel
from lmdbloader.kernels.calls import libraries

ROOT = Path(__file__).resolve().parent.parent
WINDOWS, APPLE = targets_of_wheel("win_amd64")[0], targets_of_wheel("macosx_11_0_arm64")[0]
BUILT = "lmdbloader/kernels/built"
needs_lief = pytest.mark.skipif(not importlib.util.find_spec("lief"), reason="libraries are read with lief")
needs_zig = pytest.mark.skipif(not importlib.util.find_spec("ziglang"), reason="libraries are linked with zig")
needs_linux = pytest.mark.skipif(platform.system() != "Linux", reason="the library here is not one for Linux")
# lief reports leaks when a process ends that has torch in it: so it works in children.
CHECK = """
import json, sys
from pathlib import Path
sys.path.insert(0, "scripts")
import check_wheels
targets = {target.name: target for target in check_wheels.TARGETS}
asked = [(Path(path).read_bytes(), targets[name]) for path, name in json.loads(sys.argv[1])]
print(json.dumps([check_wheels.check_library(data, target) for data, target in asked]))
"""
PLANTS = """
import sys
import lief

def rpath(found):
    found.add(lief.ELF.DynamicEntryRunPath("/opt/lib"))

def other_library(found):
    found.add_library("libstdc++.so.6")

def stack(found):
    for segment in found.segments:
        if segment.type == lief.ELF.Segment.TYPE.GNU_STACK:
            segment.flags = lief.ELF.Segment.FLAGS(7)

def newer_glibc(found):
    for needed in found.symbols_version_requirement:
        for version in needed.get_auxiliary_symbols():
            version.name = "GLIBC_2.34"

def other_name(found):
    found.get_dynamic_symbol("lmdbloader_orders_permute").name = "lmdbloader_orders_permuted"

def undefined(found):
    symbol = found.get_dynamic_symbol("lmdbloader_orders_permute")
    symbol.shndx, symbol.value = 0, 0

def other_machine(found):
    found.header.machine_type = lief.ELF.ARCH.I386

def path(found):
    section = lief.ELF.Section(".path")
    section.content = list(b"/tmp/build/kernels.o")
    found.add(section)

for plant in (rpath, other_library, stack, newer_glibc, other_name, undefined, other_machine, path):
    found = lief.parse(sys.argv[1])
    plant(found)
    found.write(f"{sys.argv[2]}/{plant.__name__}.so")
"""


@pytest.fixture(scope="module")
def check_wheels() -> ModuleType:
    return load_script("check_wheels")


@pytest.fixture(scope="module")
def here() -> Target:
    """The target of the library that the tests run with."""
    name = Path(libraries.load()._name).name
    return next(target for target in targets_here() if target.file_name == name)


def check(*libraries: tuple[Path, Target]) -> list[list[str]]:
    """Return what is wrong with each library."""
    text = json.dumps([(str(path), target.name) for path, target in libraries])
    child = subprocess.run([sys.executable, "-c", CHECK, text], cwd=ROOT, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    found: list[list[str]] = json.loads(child.stdout)
    return found


@pytest.fixture(scope="module")
def planted(here: Target, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What is found in copies of the library, each with one thing wrong, by the names of functions in PLANTS."""
    folder = tmp_path_factory.mktemp("planted")
    subprocess.run([sys.executable, "-c", PLANTS, libraries.BUILT / here.file_name, folder], check=True)
    paths = sorted(folder.iterdir())
    return dict(zip([path.stem for path in paths], check(*((path, here) for path in paths)), strict=True))


@needs_lief
@needs_linux
def test_the_library_in_use_is_sound_and_for_this_system(here: Target, tmp_path: Path) -> None:
    path, nothing = libraries.BUILT / here.file_name, tmp_path / "nothing"
    nothing.write_text("nothing")
    assert check((path, here), (path, WINDOWS), (nothing, APPLE)) == [
        [],
        ["this is not a library for Windows"],
        ["this is not a library for Darwin"],
    ]


@needs_lief
@needs_linux
@pytest.mark.parametrize(
    ("plant", "message"),
    [
        ("rpath", "RPATH"),
        ("other_library", r"needs libstdc\+\+\.so\.6"),
        ("stack", "stack that can be executed"),
        ("newer_glibc", r"needs GLIBC_2\.34; the newest allowed is GLIBC_2\.17"),
        ("other_name", "lacks lmdbloader_orders_permute$"),
        ("other_name", "exports lmdbloader_orders_permuted, which nothing calls"),
        ("undefined", "lmdbloader_orders_permute is undefined"),
        ("other_machine", "it is for I386"),
        ("path", "/tmp/, which is part of a path of the machine"),
    ],
)
def test_what_is_planted_in_a_library_for_linux_is_found(
    planted: dict[str, list[str]], plant: str, message: str
) -> None:
    assert any(re.search(message, line) for line in planted[plant]), planted[plant]


def link(path: Path, target: Target, names: set[str], *options: str) -> Path:
    """Link a library of empty functions, without any system's start-up code."""
    source = "".join(f"EXPORT void {name}(void) {{}}\n" for name in sorted(names))
    mark = "__declspec(dllexport)" if target.system == "Windows" else '__attribute__((visibility("default")))'
    path.with_suffix(".c").write_text(source.replace("EXPORT", mark))
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target.linked_for, "-shared", "-nostdlib", "-O1", "-s"]
    subprocess.run([*command, *options, path.with_suffix(".c"), "-o", path], check=True, capture_output=True)
    return path


@needs_lief
@needs_zig
def test_libraries_for_windows_and_macos_are_read(check_wheels: ModuleType, tmp_path: Path) -> None:
    names = check_wheels.expected_exports()
    missing = sorted(names)[0]
    dll = link(tmp_path / WINDOWS.file_name, WINDOWS, names, "-Wl,--no-entry")
    other_dll = link(tmp_path / "other.dll", WINDOWS, names - {missing} | {"another"}, "-Wl,--no-entry")
    dylib = link(tmp_path / APPLE.file_name, APPLE, names, f"-Wl,-install_name,@rpath/{APPLE.file_name}")
    other_dylib = link(tmp_path / "other.dylib", APPLE, names)
    changed = tmp_path / "changed.dylib"
    data = dylib.read_bytes()
    changed.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    assert check(*((path, WINDOWS) for path in (dll, other_dll))) == [
        [],
        [f"it lacks {missing}", "it exports another, which nothing calls"],
    ]
    sound, damaged, named = check(*((path, APPLE) for path in (dylib, changed, other_dylib)))
    assert (sound, damaged) == ([], ["page 0 is not what was signed"])
    assert "a path of the machine that built it" in named[0]


def test_files_that_do_not_belong_into_a_wheel_are_named(check_wheels: ModuleType) -> None:
    names = [f"{BUILT}/libraries.json", f"{BUILT}/{APPLE.file_name}", "lmdbloader/__init__.py", "a.dist-info/WHEEL"]
    assert check_wheels.check_names(names, [APPLE]) == []
    wrong = check_wheels.check_names([*names[1:], f"{BUILT}/units/a.bc", f"{BUILT}/lock", "tests/a.py"], [APPLE])
    assert wrong == [
        f"{BUILT} lacks libraries.json",
        f"{BUILT} holds lock, which is not for users",
        f"{BUILT} holds units/a.bc, which is not for users",
        "tests/a.py does not belong in a wheel",
    ]
