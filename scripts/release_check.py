"""Builds a release and tries it as a user would: in an empty environment, without a compiler and without numba.

    python scripts/release_check.py                       # everything
    python scripts/release_check.py --dist dist           # with wheels that `make wheels` has built
    python scripts/release_check.py --no-frameworks       # without `make test-frameworks`

The last line says "ready to be released", or "not ready" after the lines that say why.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import check_wheels  # noqa: E402
import make_wheels  # noqa: E402

from lmdbloader.kernels.building.targets import targets_here  # noqa: E402

# The limits of a release.
MOST_INSTALLED_MIB = 290.0
MOST_SECONDS = 1.0
# What must not be needed: to compile kernels, and to compile extensions.
ABSENT = ("numba", "llvmlite", "ziglang")
COMPILERS = ("cc", "gcc", "g++", "clang", "tcc", "zig")
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket")
SIZES = """
import importlib.metadata as m, json, os, re
def nbytes(dist):
    found = [os.path.join(dist._path.parent, file) for file in dist.files or ()]
    return sum(os.stat(path).st_blocks * 512 for path in found if os.path.isfile(path))
found, waiting = {}, ["lmdbloader"]
while waiting:
    dist = m.distribution(waiting.pop())
    name = dist.metadata["Name"].lower()
    if name not in found and name != "torch":
        found[name] = nbytes(dist)
        waiting += [re.match(r"[\\w.-]+", r)[0] for r in dist.requires or () if "extra ==" not in r and ";" not in r]
print(json.dumps(found))
"""


class CheckError(Exception):
    """The release is not ready; the message says what was found."""


def run(command: Sequence[str | Path], folder: Path, *, path: Path, home: Path | None = None) -> str:
    """Run a program that finds only the programs in one folder, and return what it prints.

    Args:
        command: The program and its arguments.
        folder: Where it runs.
        path: The folder of programs.
        home: A home of its own; None for the user's, where pip is configured.

    Raises:
        CheckError: It failed.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LMDBLOADER"))}
    environment = {**kept, "PATH": str(path), **({"HOME": str(home), "XDG_CACHE_HOME": str(home)} if home else {})}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise CheckError(f"{' '.join(map(str, command))[:200]}: exit status {done.returncode}:\n{end}")
    return done.stdout


def make_environment(folder: Path) -> Path:
    """Make an empty environment, in which no compiler is found; return its folder of programs."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if found := [name for name in COMPILERS if (folder / "bin" / name).exists()]:
        raise CheckError(f"{folder / 'bin'} has {', '.join(found)}")
    return folder / "bin"


def pip_install(programs: Path, folder: Path, *what: str | Path) -> None:
    """Install with the versions of constraints.txt."""
    pip = [programs / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    run([*pip, "--constraint", ROOT / "constraints.txt", *what], folder, path=programs)


def write_photographs(folder: Path) -> None:
    """Write the photographs that scikit-image carries as PNG files, and as JPEG files, in two folders."""
    import skimage.data
    from PIL import Image

    for kind in ("photos", "jpegs"):
        (folder / kind).mkdir()
    for name in PHOTOGRAPHS:
        photograph = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
        photograph.save(folder / "photos" / f"{name}.png")
        photograph.save(folder / "jpegs" / f"{name}.jpg", quality=90)


def first_snippets(markdown: str) -> Iterator[tuple[str, str]]:
    """Yield language and text of the blocks of a document's first section that has any.

    >>> list(first_snippets("# A\\n## B\\n```bash\\nlmdbloader --help\\n```\\n## C\\n```python\\n1\\n```\\n"))
    [('bash', 'lmdbloader --help\\n')]
    """
    for section in re.split(r"(?m)^## ", markdown):
        if blocks := re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", section):
            yield from blocks
            return


def run_readme(programs: Path, folder: Path) -> int:
    """Run the first snippets of the README; return how many commands and blocks ran."""
    count = 0
    for language, text in first_snippets((ROOT / "README.md").read_text("utf-8")):
        if language == "python":
            run([programs / "python", "-I", "-c", text], folder, path=programs, home=folder)
            count += 1
        for line in text.splitlines() if language == "bash" else ():
            if line.startswith("lmdbloader "):
                words = line.partition("#")[0].split()
                run([programs / words[0], *words[1:]], folder, path=programs, home=folder)
                count += 1
    if count < 2:
        raise CheckError(
            f"{ROOT / 'README.md'}: found {count} snippets in the first section that has any, expected at least 2"
        )
    return count


def check_absent(programs: Path, folder: Path) -> None:
    """Check that neither numba nor a compiler is installed."""
    code = f"import importlib.util as u, shutil; print([n for n in {ABSENT} if u.find_spec(n)])"
    code += f"; print([n for n in {COMPILERS} if shutil.which(n)])"
    if (found := run([programs / "python", "-I", "-c", code], folder, path=programs)) != "[]\n[]\n":
        raise CheckError(f"found what an installation must not need: {' '.join(found.split())}")


def try_it(programs: Path, folder: Path) -> dict[str, float]:
    """Run the README and the smoke test; return the seconds from torch's import to the first batch, of each kind."""
    folder.mkdir()
    write_photographs(folder)
    check_absent(programs, folder)
    run([programs / "lmdbloader", "--help"], folder, path=programs, home=folder)
    print(f"  README: {run_readme(programs, folder)} snippets", flush=True)
    smoke = [programs / "python", "-I", ROOT / "scripts" / "smoke.py"]
    print(f"  {run([*smoke, 'all'], folder, path=programs, home=folder).strip()}", flush=True)
    seconds = {}
    for kind in ("patches", "jpegs"):
        times = [float(run([*smoke, kind], folder, path=programs, home=folder)) for _ in range(5)]
        seconds[kind] = sorted(times)[len(times) // 2]
    return seconds


def installed_sizes(programs: Path, folder: Path) -> dict[str, float]:
    """Return MiB of each installed distribution that lmdbloader needs, itself included, without torch and its own."""
    found = json.loads(run([programs / "python", "-I", "-c", SIZES], folder, path=programs))
    return {name: nbytes / 2**20 for name, nbytes in sorted(found.items(), key=lambda item: -item[1])}


def check_metadata(paths: Sequence[Path], folder: Path) -> None:
    """Have twine read what a package index would."""
    programs = make_environment(folder / "twine")
    pip_install(programs, folder, "twine")
    run([programs / "python", "-m", "twine", "check", "--strict", *paths], folder, path=programs)


def check_types(programs: Path, folder: Path) -> None:
    """Have pyright check a strict project that uses the installed package; left out where Node.js is missing."""
    node = shutil.which("node")
    if node is None:
        print("pyright: left out, because Node.js is not installed", flush=True)
        return
    tools = make_environment(folder / "pyright")
    pip_install(tools, folder, "pyright")
    project = shutil.copytree(ROOT / "tests" / "data" / "typed_project", folder / "typed_project")
    (project / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}\n', "utf-8")
    # Of the programs it needs node.
    path = Path(f"{tools}{os.pathsep}{Path(node).parent}")
    run([tools / "pyright", "--pythonpath", programs / "python", "--project", project], project, path=path)
    print("pyright: a strict project that uses the package has no errors", flush=True)


def check(dist: Path, folder: Path) -> list[str]:
    """Check what is in dist/ and print what was found; return the limits that are exceeded.

    Raises:
        CheckError: Something does not work.
    """
    missed = []
    page = (ROOT / "docs" / "installation.md").read_text("utf-8")
    wheels, sdists = sorted(dist.glob("lmdbloader-*.whl")), sorted(dist.glob("lmdbloader-*.tar.gz"))
    if len(sdists) != 1 or len(wheels) != len(make_wheels.PLATFORMS):
        raise CheckError(
            f"{dist}: found {len(wheels)} wheels and {len(sdists)} source distributions, expected "
            f"{len(make_wheels.PLATFORMS)} and 1; `make wheels` builds them"
        )
    print(f"{sdists[0].name}: {sdists[0].stat().st_size / 2**20:.2f} MiB", flush=True)
    for path in wheels:
        wrong = check_wheels.check_wheel(path)
        print(f"{path.name}: {path.stat().st_size / 2**20:.2f} MiB, {'defects' if wrong else 'sound'}", flush=True)
        missed += [f"{path.name}: {what}" for what in wrong]
        platform, mib = path.stem.rpartition("-")[2].partition(".")[0], path.stat().st_size / 2**20
        written = re.search(rf"(?m)^\| `{platform}` .* ([\d.]+) \|$", page)
        if written is None or abs(float(written[1]) - mib) > 0.1:
            missed.append(f"docs/installation.md: write {mib:.1f} MiB for {platform}")
    check_metadata([*sdists, *wheels], folder)
    print("twine: the metadata is sound", flush=True)
    here = targets_here()[0].wheel
    (wheel,) = (path for path in wheels if path.name.endswith(f"-{here}.whl"))
    programs = make_environment(folder / "environment")
    pip_install(programs, folder, wheel)
    print(f"{wheel.name} in a new environment:", flush=True)
    seconds = try_it(programs, folder / "wheel")
    check_types(programs, folder)
    sizes = installed_sizes(programs, folder)
    print("".join(f"  {mib:8.1f} MiB  {name}\n" for name, mib in sizes.items() if mib >= 0.1), end="")
    print(f"  {sum(sizes.values()):8.1f} MiB  together, without torch and what only torch needs")
    if sum(sizes.values()) > MOST_INSTALLED_MIB:
        missed.append(f"{sum(sizes.values()):.0f} MiB are installed; at most {MOST_INSTALLED_MIB:g} are allowed")
    for kind, found in seconds.items():
        print(f"  {found:8.2f} s    from torch imported to the first batch of {kind}")
        if found > MOST_SECONDS:
            missed.append(f"the first batch of {kind} came after {found:.2f} s; {MOST_SECONDS:g} s are allowed")
    # pip makes an environment of its own for what builds it, and removes it afterwards.
    pip_install(programs, folder, "--force-reinstall", "--no-deps", "--no-cache-dir", sdists[0])
    print(f"{sdists[0].name} in the same environment:", flush=True)
    try_it(programs, folder / "sdist")
    return missed


def check_frameworks() -> list[str]:
    """Run the tests of frameworks, in a separate environment; return what failed."""
    command = [sys.executable, str(ROOT / "scripts" / "frameworks.py"), "--quiet"]
    failed = subprocess.run(command, cwd=ROOT).returncode
    return ["the tests of frameworks fail; `make test-frameworks` repeats them"] if failed else []


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, check and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, metavar="DIR", help="check this folder (default: build dist/ first)")
    parser.add_argument("--no-frameworks", action="store_true", help="leave out the tests of frameworks")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="lmdbloader-release-"))
    try:
        if options.dist is None:
            make_wheels.make(ROOT / "dist", make_wheels.PLATFORMS)
        missed = check((options.dist or ROOT / "dist").resolve(), folder)
        missed += [] if options.no_frameworks else check_frameworks()
    except (CheckError, make_wheels.WheelError) as error:
        print(f"release_check: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("".join(f"not ready: {what}\n" for what in missed), end="")
    print(f"checked in {time.monotonic() - began:.0f} s: {'not ready' if missed else 'ready to be released'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
