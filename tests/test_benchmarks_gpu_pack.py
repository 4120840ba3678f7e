"""The pack for a machine with a GPU is chosen, measured, and installed without a network; FFCV is optional."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "gpu"
NAMES = ("pack", "install", "ffcv_peer")
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"

# The parts of FFCV's source that are patched, compiled and called.
FFCV = {
    "ffcv/__init__.py": "",
    "ffcv/libffcv.py": "from ctypes import CDLL\nimport ffcv._libffcv\n\nlib = CDLL(ffcv._libffcv.__file__)\n",
    "ffcv/pipeline/graph.py": "from distutils.log import warn\nimport warnings\n",
    "libffcv/libffcv.cpp": """#include <Python.h>
#include <opencv2/opencv.hpp>
extern "C" {
    int resize() { return opencv_answer() + 1; }
    int imdecode() { return 0; }
    int my_memcpy() { return 0; }
    static PyMethodDef libffcvMethods[] = {{NULL}};
    PyMODINIT_FUNC PyInit__libffcv(void) { return NULL; }
}
""",
}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """Import the scripts of the folder, and forget their short names afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def pack(modules: dict[str, ModuleType]) -> ModuleType:
    return modules["pack"]


@pytest.fixture
def install(modules: dict[str, ModuleType]) -> ModuleType:
    return modules["install"]


def write_wheel(folder: Path, name: str) -> None:
    """Write a wheel with one module that holds its tags."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr(f"{name.split('-')[0]}.py", f"tags = {name.split('-', 2)[2]!r}\n")


@pytest.mark.parametrize(
    ("wheel", "pythons"),
    [
        ("lz4-4.4.5-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", {12}),
        ("lz4-4.4.5-cp312-cp312-manylinux_2_28_aarch64.whl", set()),
        ("lz4-4.4.5-cp312-cp312-macosx_11_0_x86_64.whl", set()),
        ("lmdbloader-0.1.0-py3-none-any.whl", {10, 11, 12, 13}),
        ("lmdbloader-0.1.0-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", {10, 11, 12, 13}),
        ("lmdbloader-0.1.0-py3-none-win_amd64.whl", set()),
        ("terminaltables-3.1.10-py2.py3-none-any.whl", {10, 11, 12, 13}),
        ("opencv-4-cp311-abi3-manylinux_2_28_x86_64.whl", {11, 12, 13}),
        ("old-1-py2-none-any.whl", set()),
        ("nonsense.whl", set()),
    ],
)
def test_a_wheel_is_taken_by_the_pythons_that_it_runs_on(install: ModuleType, wheel: str, pythons: set[int]) -> None:
    assert {minor for minor in (10, 11, 12, 13) if install.fits(wheel, (3, minor))} == pythons


def test_the_pins_are_those_of_the_release(pack: ModuleType, tmp_path: Path) -> None:
    pinned = pack.pins(pack.MISSING)
    assert [pin.split("==")[0] for pin in pinned] == list(pack.MISSING)

    constraints = tmp_path / "constraints.txt"
    constraints.write_text('# a comment\nlz4==1.0 ; python_version >= "3.11"\n')
    assert pack.pins(["lz4"], constraints) == ["lz4==1.0"]
    with pytest.raises(pack.PackError, match="found no pin of lmdb"):
        pack.pins(["lz4", "lmdb"], constraints)


def test_installing_unpacks_the_wheels_of_this_python(install: ModuleType, tmp_path: Path) -> None:
    own, other = f"lz4-1-{TAG}-{TAG}-manylinux_2_17_x86_64.whl", "lz4-1-cp399-cp399-manylinux_2_17_x86_64.whl"
    for name in (own, other, "lmdbloader-1-py3-none-any.whl"):
        write_wheel(tmp_path / "pack" / "wheels", name)

    done = install.install(tmp_path / "pack", tmp_path / "site", tmp_path / "build")
    assert sorted(done["installed"]) == sorted([own, "lmdbloader-1-py3-none-any.whl"])
    assert TAG in (tmp_path / "site" / "lz4.py").read_text()
    assert (tmp_path / "site" / "lmdbloader.py").exists()
