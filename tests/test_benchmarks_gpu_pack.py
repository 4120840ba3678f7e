"""The pack for a machine with a GPU is chosen, measured, and installed without a network; FFCV is optional."""

from __future__ import annotations

import importlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "gpu"
NAMES = ("pack", "install", "ffcv_peer")
HERE = ".".join(map(str, sys.version_info[:2]))
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
HEADER = "int opencv_answer();\n"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="builds with g++, which is not on PATH")


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


def write_archive(path: Path, files: dict[str, bytes]) -> None:
    """Write a tar file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write_ffcv(folder: Path, changes: dict[str, str] | None = None) -> None:
    """Write a pack with a made-up FFCV, whose library calls one that was brought along, which calls another."""
    sources = {**FFCV, **(changes or {})}
    write_archive(folder / "ffcv" / "ffcv-1.0.2.tar.gz", {f"ffcv-1.0.2/{k}": v.encode() for k, v in sources.items()})
    work = folder / "work"
    work.mkdir()
    compiler = ["g++", "-shared", "-fPIC", "-x", "c++", "-"]
    deep, shallow = work / "libdeep.so.3", work / "libopencv_core.so.406"
    for out, text, linked in (
        (deep, "int deep_answer() { return 41; }", []),
        (
            shallow,
            "int deep_answer(); int opencv_answer() { return deep_answer(); }",
            ["-x", "none", str(deep)],
        ),
    ):
        command = [*compiler, f"-Wl,-soname,{out.name}", "-o", str(out), *linked]
        subprocess.run(command, input=text, text=True, check=True, capture_output=True)
    libraries = {f"lib/{path.name}": path.read_bytes() for path in (deep, shallow)}
    write_archive(folder / "ffcv" / "libraries.tar.gz", {**libraries, "include/opencv2/imgproc.hpp": HEADER.encode()})
    shutil.rmtree(work)


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


def test_a_folder_that_is_too_large_is_an_error_that_lists_its_contents(pack: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "a.whl").write_bytes(bytes(3 * 2**20))
    (tmp_path / "b").write_bytes(bytes(2**20))

    text = pack.measure(tmp_path, 4)
    assert "3.00 MiB  wheels/a.whl" in text
    assert "4.00 MiB  together" in text
    with pytest.raises(pack.PackError, match=r"too large(?s:.*)wheels/a.whl"):
        pack.measure(tmp_path, 3.9)


def test_a_folder_other_than_a_pack_is_left_alone(
    pack: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")

    assert pack.main(["--out", str(tmp_path)]) == 1
    assert "is no pack" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").exists()


def test_installing_unpacks_the_wheels_of_this_python(install: ModuleType, tmp_path: Path) -> None:
    own, other = f"lz4-1-{TAG}-{TAG}-manylinux_2_17_x86_64.whl", "lz4-1-cp399-cp399-manylinux_2_17_x86_64.whl"
    for name in (own, other, "lmdbloader-1-py3-none-any.whl"):
        write_wheel(tmp_path / "pack" / "wheels", name)

    done = install.install(tmp_path / "pack", tmp_path / "site", tmp_path / "build")
    assert sorted(done["installed"]) == sorted([own, "lmdbloader-1-py3-none-any.whl"])
    assert TAG in (tmp_path / "site" / "lz4.py").read_text()
    assert (tmp_path / "site" / "lmdbloader.py").exists()


def test_a_pack_for_another_python_says_so(install: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(install.InstallError, match="found no wheels"):
        install.install(tmp_path, tmp_path / "site", tmp_path)

    write_wheel(tmp_path / "wheels", "lz4-1-cp399-cp399-manylinux_2_17_x86_64.whl")
    write_wheel(tmp_path / "wheels", "lmdbloader-1-py3-none-any.whl")
    with pytest.raises(install.InstallError, match=f"no wheel of lz4 for Python {HERE}. Pack with --python {HERE}"):
        install.install(tmp_path, tmp_path / "site", tmp_path)
    assert not (tmp_path / "site").exists()


@needs_compiler
def test_ffcv_is_built_against_the_libraries_in_its_package(install: ModuleType, tmp_path: Path) -> None:
    write_ffcv(tmp_path / "pack")

    install.build_ffcv(tmp_path / "pack", tmp_path / "site", tmp_path / "build")
    shutil.rmtree(tmp_path / "build")
    moved = tmp_path / "elsewhere"
    (tmp_path / "site").rename(moved)
    program = "from ffcv.libffcv import lib; import ffcv.pipeline.graph; print(lib.resize())"
    environment = {**os.environ, "PYTHONPATH": str(moved)}
    child = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert child.stdout == "42\n", child.stderr


@needs_compiler
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"libffcv/libffcv.cpp": FFCV["libffcv/libffcv.cpp"].replace("+ 1", "+ absent")}, "absent"),
        ({"libffcv/libffcv.cpp": FFCV["libffcv/libffcv.cpp"].replace("imdecode", "decode")}, "imdecode"),
        ({"libffcv/libffcv.cpp": "#include <other.h>\n"}, "not FFCV 1.0.2"),
        ({"ffcv/pipeline/graph.py": "import warnings\n"}, "not FFCV 1.0.2"),
    ],
)
def test_an_ffcv_that_cannot_be_built_says_why_and_leaves_the_rest(
    install: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], message: str
) -> None:
    write_ffcv(tmp_path / "pack", changes)
    site = tmp_path / "site"
    site.mkdir()
    (site / "lmdb.py").touch()

    options = ["--pack", str(tmp_path / "pack"), "--site", str(site), "--build", str(tmp_path / "build")]
    assert install.main([*options, "--ffcv"]) == 1
    assert message in capsys.readouterr().err
    assert [path.name for path in site.iterdir()] == ["lmdb.py"]
