"""Makes the folder for a machine with a GPU and without a network: wheels, and FFCV with its build dependencies.

    python benchmarks/gpu/pack.py                     # into benchmarks/gpu/pack, for Python 3.12 and for this one
    python benchmarks/gpu/pack.py --python 3.13

It needs a network, and for FFCV Debian's apt-get and dpkg. `install.py` then needs neither.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MIB = 2**20
MOST_MIB = 40.0
# The machine's Python (install.py takes the wheels that fit whichever runs it).
MACHINES_PYTHON = "3.12"
# The dependencies of lmdbloader that such a machine lacks.
MISSING = ("lmdb", "lz4", "pyyaml", "simplejpeg")
# The platform of the packed wheel of lmdbloader.
OWN_PLATFORM = "manylinux_2_17_x86_64.manylinux2014_x86_64"
FFCV = "ffcv==1.0.2"
# The only package that FFCV needs for the benchmarks and that the machine lacks: NormalizeImage on a CUDA
# device takes torch's stream to CuPy with it. Its command line and its own benchmarks would need four more.
FFCV_NEEDS = ("pytorch_pfn_extras==0.9.0",)
# FFCV calls cv::resize and TurboJPEG, no more: not all of OpenCV, whose packages would be hundreds of MiB.
HEADERS = ("libopencv-core-dev", "libopencv-imgproc-dev", "libturbojpeg0-dev")
LIBRARIES = (
    "libopencv-core406", "libopencv-imgproc406", "libturbojpeg0",
    # The libraries that the core of Debian's OpenCV is linked with.
    "libtbb12", "liblapack3", "libblas3", "libgfortran5", "libquadmath0", "zlib1g",
    "libglx0", "libglvnd0", "libx11-6", "libxcb1", "libxau6", "libxdmcp6", "libbsd0", "libmd0",
)  # fmt: skip
LINKED = ("libopencv_core", "libopencv_imgproc", "libturbojpeg")
# Every Linux has these; another C++ runtime would break libraries that are already loaded.
OF_THE_SYSTEM = {
    "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2",
    "libgcc_s.so.1", "libstdc++.so.6",
}  # fmt: skip


class PackError(Exception):
    """The folder cannot be made; the message has the reason and the remedy."""


def run(command: Sequence[str | Path], *, path: Path | None = None, folder: Path | None = None) -> str:
    """Run a program and return its output.

    Args:
        command: The program and its arguments.
        path: A folder whose programs come before those of PATH.
        folder: Where it runs.

    Raises:
        PackError: It failed, or is not there.
    """
    environment = dict(os.environ)
    if path is not None:
        environment["PATH"] = os.pathsep.join((str(path), environment.get("PATH", os.defpath)))
    words = list(map(str, command))
    try:
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise PackError(f"{words[0]}: could not be started: {error}.") from error
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise PackError(f"{' '.join(words)}: exit status {done.returncode}:\n{end}")
    return done.stdout


def pins(names: Iterable[str], constraints: Path = ROOT / "constraints.txt") -> list[str]:
    """Return requirements as this release was tested with, such as ["lz4==4.4.5"].

    Raises:
        PackError: One is not pinned.
    """
    lines = constraints.read_text("utf-8").splitlines()
    pinned = {line.partition("==")[0]: line.partition(";")[0].strip() for line in lines if "==" in line}
    if absent := [name for name in names if name not in pinned]:
        raise PackError(f"{constraints}: found no pin of {', '.join(absent)}.")
    return [pinned[name] for name in names]


def download_wheels(requirements: Sequence[str], python: str, folder: Path) -> None:
    """Download wheels for one version of Python on Linux x86-64; nothing is built.

    Raises:
        PackError: The wheel does not exist, or the network is missing.
    """
    # Ubuntu 24.04 has glibc 2.39.
    platforms = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
    options = [option for platform in platforms for option in ("--platform", platform)]
    pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--only-binary=:all:"]
    run([*pip, "--implementation", "cp", "--python-version", python, *options, "--dest", folder, *requirements])


def build_own_wheel(folder: Path) -> None:
    """Build lmdbloader's wheel, with the kernels of every level, as a release has it.

    Raises:
        PackError: It cannot be built.
    """
    with tempfile.TemporaryDirectory(prefix="lmdbloader-pack-") as temporary:
        command = [sys.executable, ROOT / "scripts" / "make_wheels.py", "--platform", OWN_PLATFORM, "--out", temporary]
        run(command)
        (wheel,) = Path(temporary).glob("*.whl")
        shutil.copy(wheel, folder)


def download_ffcv(folder: Path) -> None:
    """Download FFCV's source without its build dependencies: pip runs its setup.py, which asks pkg-config."""
    with tempfile.TemporaryDirectory(prefix="lmdbloader-pack-") as temporary:
        write_stand_in(Path(temporary))
        pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--no-binary", "ffcv"]
        run([*pip, "--dest", folder, FFCV], path=Path(temporary))


def write_stand_in(folder: Path) -> None:
    """Write a `pkg-config` that has an answer to everything; FFCV's setup.py breaks off without one."""
    program = folder / "pkg-config"
    program.write_text("#!/bin/sh\necho -lm\n", "utf-8")
    program.chmod(0o755)


def pack_libraries(path: Path) -> None:
    """Write one archive with the headers and the shared libraries that FFCV is built with, from Debian's packages.

    Raises:
        PackError: A package is missing here, or one of the libraries needs another that is not among them.
    """
    with tempfile.TemporaryDirectory(prefix="lmdbloader-pack-") as temporary:
        folder, root = Path(temporary) / "packages", Path(temporary) / "root"
        folder.mkdir()
        try:
            run(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *HEADERS, *LIBRARIES], folder=folder)
        except PackError as error:
            raise PackError(
                f"{error}\nFFCV is built with packages of Debian 12 (amd64). Run `apt-get update` there first, or pack "
                f"without FFCV: --no-ffcv."
            ) from error
        for package in sorted(folder.glob("*.deb")):
            run(["dpkg", "-x", package, root])
        with tarfile.open(path, "w:gz") as archive:
            for headers in (root / "usr/include/opencv4/opencv2", root / "usr/include/turbojpeg.h"):
                archive.add(headers, f"include/{headers.name}")
            for name, library in needed(root).items():
                archive.add(library.resolve(), f"lib/{name}")


def needed(root: Path) -> dict[str, Path]:
    """Return the shared libraries below a folder that FFCV is linked with, and all that those need, by their names.

    Raises:
        PackError: One that is needed is not there.
    """
    there = {path.name: path for path in root.rglob("lib*.so.*")}
    todo = [name for name in there if re.fullmatch(r"(\w+)\.so\.\d+", name) and name.partition(".")[0] in LINKED]
    if len(todo) != len(LINKED):
        raise PackError(f"{root}: found {sorted(todo)}; {', '.join(LINKED)} were expected.")
    found: dict[str, Path] = {}
    while todo:
        name = todo.pop()
        if name not in found and name not in OF_THE_SYSTEM:
            if name not in there:
                raise PackError(f"{name} is needed and in none of the packages: add the one that has it to LIBRARIES.")
            found[name] = there[name]
            todo += re.findall(r"\(NEEDED\).*\[(.*)\]", run(["readelf", "--dynamic", "--wide", there[name]]))
    return dict(sorted(found.items()))


def pack(folder: Path, pythons: Sequence[str], *, with_ffcv: bool) -> None:
    """Create a folder again and fill it.

    Args:
        folder: Is removed first, if an earlier run has made it.
        pythons: For which there are to be wheels, such as "3.12".
        with_ffcv: Whether to bring FFCV.

    Raises:
        PackError: Something is not to be had, or `folder` holds something else.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "pack.json").exists():
        raise PackError(f"{folder} exists and is no pack: it has no pack.json. Remove it, or name another folder.")
    shutil.rmtree(folder, ignore_errors=True)
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    kept = {"made": time.strftime("%Y-%m-%d"), "pythons": list(pythons), "ffcv": FFCV if with_ffcv else None}
    (folder / "pack.json").write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    build_own_wheel(wheels)
    for python in pythons:
        download_wheels([*pins(MISSING), *(FFCV_NEEDS if with_ffcv else ())], python, wheels)
    if with_ffcv:
        (folder / "ffcv").mkdir()
        download_ffcv(folder / "ffcv")
        pack_libraries(folder / "ffcv" / "libraries.tar.gz")


def measure(folder: Path, most_mib: float) -> str:
    """Return a folder's files with their sizes, as text.

    Raises:
        PackError: It is larger than it may be.
    """
    sizes = {path: path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    total = sum(sizes.values())
    lines = [f"{size / MIB:8.2f} MiB  {path.relative_to(folder)}" for path, size in sizes.items()]
    text = "\n".join([*lines, f"{total / MIB:8.2f} MiB  together, of at most {most_mib:g}"])
    if total > most_mib * MIB:
        raise PackError(f"{folder} is too large to bring along:\n{text}")
    return text


def versions(python: str) -> list[str]:
    """Return the versions of Python to pack for: the one asked for, and the one that is running."""
    if not re.fullmatch(r"3\.\d+", python):
        raise PackError(f"--python is {python!r}; a version such as 3.12 was expected.")
    return sorted({python, f"{sys.version_info[0]}.{sys.version_info[1]}"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the folder and print its contents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "pack", metavar="DIR", help="default benchmarks/gpu/pack")
    parser.add_argument("--python", default=MACHINES_PYTHON, metavar="X.Y", help=f"default {MACHINES_PYTHON}")
    parser.add_argument("--no-ffcv", action="store_true", help="leave FFCV at home")
    options = parser.parse_args(arguments)
    try:
        pack(options.out, versions(options.python), with_ffcv=not options.no_ffcv)
        print(measure(options.out, MOST_MIB))
    except PackError as error:
        print(f"pack.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
