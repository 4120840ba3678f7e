"""Installs the pack of `pack.py` into its own folder, and builds FFCV there; needs neither a network nor pip.

python3 benchmarks/gpu/install.py --pack benchmarks/gpu/pack --site /tmp/site --build /tmp/build
python3 benchmarks/gpu/install.py --pack benchmarks/gpu/pack --site /tmp/site --build /tmp/build --ffcv
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The compiler's last lines, which hold the error.
_TAIL_LINES = 15
_COMPILER_SECONDS = 100
# In FFCV's C++: it includes all of OpenCV, and it defines an empty Python module, only so that setuptools
# builds it. Without the two, neither Python's headers are needed nor those of the rest of OpenCV.
_IN_SOURCE = (("#include <Python.h>\n", ""), ("<opencv2/opencv.hpp>", "<opencv2/imgproc.hpp>"))
_PYTHON_MODULE = "    static PyMethodDef libffcvMethods"
# In FFCV's Python: file, old text, new text.
_IN_PACKAGE = (
    # The library is no longer a Python module; it was only ever called through ctypes.
    ("libffcv.py", "import ffcv._libffcv\n", "from pathlib import Path\n"),
    ("libffcv.py", "CDLL(ffcv._libffcv.__file__)", 'CDLL(str(Path(__file__).with_name("_libffcv.so")))'),
    # Not used, and distutils has left Python 3.12.
    ("pipeline/graph.py", "from distutils.log import warn\n", ""),
)


class InstallError(Exception):
    """Something cannot be installed; the message says why."""


def fits(wheel: str, python: tuple[int, int] = sys.version_info[:2]) -> bool:
    """Return whether a wheel of this name runs on a version of CPython on Linux x86-64.

    >>> fits("lz4-4.4.5-cp312-cp312-manylinux_2_17_x86_64.whl", (3, 12))
    True
    >>> fits("lz4-4.4.5-cp312-cp312-manylinux_2_17_x86_64.whl", (3, 11))
    False
    >>> fits("lmdbloader-0.1.0-py3-none-any.whl", (3, 11))
    True
    """
    try:
        tags, abi, platforms = wheel.removesuffix(".whl").split("-")[-3:]
    except ValueError:
        return False
    if platforms != "any" and not all(
        platform.endswith("linux_x86_64") or ("manylinux" in platform and platform.endswith("_x86_64"))
        for platform in platforms.split(".")
    ):
        return False
    for tag in tags.split("."):
        found = re.fullmatch(r"(cp|py)(\d)(\d*)", tag)
        if found is None:
            continue
        kind, major, minor = found[1], int(found[2]), int(found[3] or 0)
        is_exact = abi not in ("none", "abi3")
        if major == python[0] and (minor == python[1] if kind == "cp" and is_exact else minor <= python[1]):
            return True
    return False


def install(pack: Path, site: Path, build: Path) -> dict[str, Any]:
    """Unpack the wheels that fit this Python into a folder that goes on PYTHONPATH.

    A wheel is a zip of its files in site-packages; those of the pack hold nothing else.

    Returns:
        `installed`: the names of the wheels; `seconds`.

    Raises:
        InstallError: The pack is not one, or has nothing for this Python.
    """
    began = time.monotonic()
    wheels = sorted((pack / "wheels").glob("*.whl"))
    if not wheels:
        raise InstallError(f"{pack}: found no wheels; what pack.py makes was expected.")
    chosen = [wheel for wheel in wheels if fits(wheel.name)]
    if absent := sorted({wheel.name.split("-")[0] for wheel in wheels} - {c.name.split("-")[0] for c in chosen}):
        here = ".".join(map(str, sys.version_info[:2]))
        raise InstallError(f"{pack} has no wheel of {', '.join(absent)} for Python {here}. Pack with --python {here}.")
    site.mkdir(parents=True, exist_ok=True)
    for wheel in chosen:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    return {"installed": [wheel.name for wheel in chosen], "seconds": round(time.monotonic() - began, 1)}


def build_ffcv(pack: Path, site: Path, build: Path) -> dict[str, Any]:
    """Compile FFCV's library against the libraries that were brought along, and put FFCV into `site`.

    The libraries are inside its package and are found from there, so no path needs to be set.

    Returns:
        `installed`, `compiler`, `seconds`.

    Raises:
        InstallError: A part is missing, or the compiler failed; then `site` is as it was.
    """
    began = time.monotonic()
    sources = sorted((pack / "ffcv").glob("ffcv-*.tar.gz"))
    libraries = pack / "ffcv" / "libraries.tar.gz"
    if not sources or not libraries.exists():
        raise InstallError(f"{pack}: FFCV was not packed. Run pack.py without --no-ffcv.")
    folder = build / "ffcv"
    shutil.rmtree(folder, ignore_errors=True)
    for archive in (sources[-1], libraries):
        _unpack(archive, folder)
    source = folder / sources[-1].name.removesuffix(".tar.gz")
    package = source / "ffcv"
    mend(source)
    shutil.move(folder / "lib", package / "_libraries")
    compiler = compile_library(source / "libffcv" / "libffcv.cpp", folder / "include", package)
    _load(package / "_libffcv.so")
    site.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(site / "ffcv", ignore_errors=True)
    shutil.move(package, site / "ffcv")
    return {"installed": [source.name], "compiler": compiler, "seconds": round(time.monotonic() - began, 1)}


def _unpack(path: Path, folder: Path) -> None:
    with tarfile.open(path) as archive:
        # Older releases of Python 3.10 and 3.11 do not know the filter.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))


def mend(source: Path) -> None:
    """Patch FFCV's unpacked source where it no longer works, or needs more than the pack holds.

    Raises:
        InstallError: A text is not there: this is another release.
    """
    path = source / "libffcv" / "libffcv.cpp"
    text = path.read_text("utf-8")
    for old, new in _IN_SOURCE:
        text = _replace(path, text, old, new)
    begin, found, _ = text.partition(_PYTHON_MODULE)
    if not found:
        raise InstallError(f"{path}: found no {_PYTHON_MODULE.strip()!r}: this is not FFCV 1.0.2.")
    # The module follows, up to the brace that ends extern "C".
    path.write_text(begin + "}\n", "utf-8")
    for name, old, new in _IN_PACKAGE:
        path = source / "ffcv" / name
        path.write_text(_replace(path, path.read_text("utf-8"), old, new), "utf-8")


def _replace(path: Path, text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise InstallError(f"{path}: found {old.strip()!r} {text.count(old)} times, once expected: not FFCV 1.0.2.")
    return text.replace(old, new)


def compile_library(source: Path, include: Path, package: Path) -> str:
    """Compile FFCV's library, linked with the libraries in the package's own folder; return the compiler's version.

    Raises:
        InstallError: The compiler is missing, or it failed: with its last lines.
    """
    libraries = package / "_libraries"
    linked = sorted(p.name for p in libraries.iterdir() if re.match(r"lib(opencv_|turbojpeg)", p.name))
    compiler = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)
    if compiler is None:
        raise InstallError("found no C++ compiler: neither g++, c++ nor clang++ is on PATH.")
    # A RUNPATH, the linker's default, would not be followed for the libraries' own dependencies.
    linking = [f"-L{libraries}", "-Wl,--disable-new-dtags,-rpath,$ORIGIN/_libraries", f"-Wl,-rpath-link,{libraries}"]
    flags = ["-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-pthread", f"-I{include}"]
    out = ["-o", str(package / "_libffcv.so")]
    # The headers are opencv2/ and turbojpeg.h directly below the folder.
    command = [compiler, *flags, str(source), *linking, *(f"-l:{name}" for name in linked), *out]
    _run([*command], "The compiler")
    return _run([compiler, "--version"], "The compiler").splitlines()[0]


def _load(library: Path) -> None:
    """Load a library in its own process, so a missing dependency shows now and not in the middle of a stage."""
    program = f"import ctypes; lib = ctypes.CDLL({str(library)!r}); lib.resize, lib.imdecode, lib.my_memcpy"
    _run([sys.executable, "-c", program], "Loading FFCV's library")


def _run(command: Sequence[str], what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_COMPILER_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{what} failed: {error}") from error
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).splitlines()[-_TAIL_LINES:])
        raise InstallError(f"{what} failed with exit status {done.returncode}:\n{end}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Install, or build FFCV, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True, metavar="DIR", help="what pack.py has made")
    parser.add_argument("--site", type=Path, required=True, metavar="DIR", help="where the packages go")
    parser.add_argument("--build", type=Path, required=True, metavar="DIR", help="for what is needed in between")
    parser.add_argument("--ffcv", action="store_true", help="build FFCV; without it, install the wheels")
    options = parser.parse_args(arguments)
    step = build_ffcv if options.ffcv else install
    try:
        print(json.dumps(step(options.pack.resolve(), options.site.resolve(), options.build.resolve()), indent=1))
    except (InstallError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        print(f"install.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
