"""Builds the source distribution and, from it, the wheels of every platform, on one machine.

    python scripts/make_wheels.py                             # into dist/
    python scripts/make_wheels.py --platform win_amd64        # one platform
    python scripts/make_wheels.py --twice                     # build each again, and compare the bytes

The files of a wheel have the time of SOURCE_DATE_EPOCH, by default that of the last commit: the same sources give the
same bytes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lmdbloader.kernels.building.targets import TARGETS  # noqa: E402

PLATFORMS = tuple(dict.fromkeys(target.wheel for target in TARGETS))
UNITS = Path("lmdbloader", "kernels", "built", "units")
# What a source distribution is made of; nothing else in the folder gets into it.
SOURCES = (
    "CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "THIRD_PARTY.md", "constraints.txt", "lmdbloader",
    "pyproject.toml", "setup.cfg", "setup.py",
)  # fmt: skip
BUILD_SDIST = "from setuptools import build_meta; build_meta.build_sdist({!r})"
# A zip file cannot hold an earlier time.
FIRST_SECOND = 315532800


class WheelError(Exception):
    """A wheel cannot be built; the message says why."""


def make_sdist(folder: Path) -> Path:
    """Build the source distribution into a folder and return its path.

    Raises:
        WheelError: The build failed.
    """
    with tempfile.TemporaryDirectory(prefix="lmdbloader-sdist-") as temporary:
        copy_sources(ROOT, Path(temporary))
        _run([sys.executable, "-c", BUILD_SDIST.format(str(folder.resolve()))], Path(temporary))
    return max(folder.glob("lmdbloader-*.tar.gz"), key=lambda path: path.stat().st_mtime_ns)


def copy_sources(root: Path, folder: Path) -> None:
    """Copy what the package is built from, without leftovers of earlier builds."""
    ignore = shutil.ignore_patterns("__pycache__", "built", "*.egg-info")
    for name in SOURCES:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name, ignore=ignore)
        else:
            shutil.copy2(root / name, folder / name)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)  # whatever the clone's files may be


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack a source distribution and return its folder."""
    with tarfile.open(sdist) as archive:
        # Older releases of Python 3.10 and 3.11 do not know the filter.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (made,) = folder.iterdir()
    return made


def make_wheel(source: Path, platform: str, folder: Path, *, units: Path | None = None) -> Path:
    """Build the wheel of a platform, through the build that pip calls, with the tools of this environment.

    Args:
        source: An unpacked source distribution, which is not changed.
        platform: One of PLATFORMS.
        folder: Where the wheel goes.
        units: Lowered kernels of earlier builds, which this build adds to.

    Raises:
        WheelError: The build failed.
    """
    with tempfile.TemporaryDirectory(prefix="lmdbloader-wheel-") as temporary:
        copy, made = Path(temporary, "source"), Path(temporary, "made")
        shutil.copytree(source, copy)  # the build leaves files behind, which would get into the next wheel
        if units is not None:
            (copy / UNITS).parent.mkdir(parents=True)
            os.symlink(units.resolve(), copy / UNITS)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation"]
        _run([*pip, "--wheel-dir", str(made), str(copy)], copy, LMDBLOADER_WHEEL=platform)
        (wheel,) = made.iterdir()
        return Path(shutil.copy(wheel, folder / wheel.name))


def _run(command: Sequence[str], folder: Path, **variables: str) -> None:
    """Run a build with the same clock, permissions and language everywhere."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"SOURCE_DATE_EPOCH": str(epoch()), "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8", **variables}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", umask=0o022
    )
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise WheelError(f"{' '.join(command)}: exit status {done.returncode}:\n{end}")


def epoch() -> int:
    """Return the time of the files in a wheel: SOURCE_DATE_EPOCH, or else that of the last commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    git = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        found = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        found = ""
    return int(found) if found.isdigit() else FIRST_SECOND


def make(folder: Path, platforms: Sequence[str], *, twice: bool = False) -> list[Path]:
    """Build the source distribution and the wheels of platforms; return their paths.

    Raises:
        WheelError: A build failed, or two of the same wheel differ.
    """
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch())  # one time for all, whatever is committed meanwhile
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("lmdbloader-*.whl"), *folder.glob("lmdbloader-*.tar.gz")):
        old.unlink()
    made = [make_sdist(folder)]
    print(f"{made[0].name}: {made[0].stat().st_size:,} bytes", flush=True)
    with tempfile.TemporaryDirectory(prefix="lmdbloader-wheels-") as temporary:
        source = unpack(made[0], Path(temporary, "sdist"))
        units = ROOT / UNITS
        units.mkdir(parents=True, exist_ok=True)
        for platform in platforms:
            wheel = make_wheel(source, platform, folder, units=units)
            print(f"{wheel.name}: {wheel.stat().st_size:,} bytes", flush=True)
            if twice:
                again = Path(temporary, "again")
                again.mkdir(exist_ok=True)
                # In another folder, with every kernel lowered again.
                if make_wheel(source, platform, again).read_bytes() != wheel.read_bytes():
                    raise WheelError(f"{wheel.name}: a second build has different bytes")
                print(f"{wheel.name}: a second build has the same bytes", flush=True)
            made.append(wheel)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and print what was made; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "dist",
        metavar="DIR",
        help="the folder for them, from which earlier wheels of lmdbloader are removed (default: dist/)",
    )
    parser.add_argument(
        "--platform",
        action="append",
        choices=PLATFORMS,
        metavar="NAME",
        help=f"only this platform, can be repeated: {', '.join(PLATFORMS)}",
    )
    parser.add_argument("--twice", action="store_true", help="build each again, and compare the bytes")
    options = parser.parse_args(arguments)
    try:
        make(options.out, options.platform or PLATFORMS, twice=options.twice)
    except WheelError as error:
        print(f"make_wheels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
