"""Runs the tests of frameworks with a Loader, and the snippets of their pages, in `.venv-frameworks`.

    python scripts/frameworks.py                  # the environment, if it is not there, and the tests
    python scripts/frameworks.py -k lightning     # other options go to pytest

The last lines name what was seen, for the table of docs/how-to/frameworks.md.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from setup_env import SetupError, run

ROOT = Path(__file__).resolve().parent.parent
CHOSEN = ROOT / "constraints-frameworks.txt"
INPUTS = (CHOSEN, ROOT / "constraints.txt", ROOT / "setup.cfg", Path(__file__))
TOOLS = ("cython", "hypothesis", "numba", "psutil", "pytest", "scikit-image", "setuptools", "torchvision", "wheel")
# Trainers of super-resolution that are run from their sources, at these commits.
TRAINERS = {
    "XPixelGroup/BasicSR": "8d56e3a045f9fb3e1d8872f92ee4a4f07f886b0a",
    "neosr-project/neosr": "31c7022620c682cf0961c8634d60787179145c5b",
    "the-database/traiNNer-redux": "686293190aca3e432a42b6155dbc94ea51c4bf9f",
}
# What they import, without the tools of theirs that need CUDA to be installed.
NEEDED_BY_TRAINERS = (
    *(
        "addict",
        "antialiased-cnns",
        "einops",
        "ema-pytorch",
        "future",
        "msgspec",
        "opencv-python-headless",
        "pywavelets",
    ),
    *("pytorch-optimizer", "pyvips", "pyvips-binary", "requests", "rich", "safetensors", "scipy", "spandrel"),
    *("pywavelets", "spandrel-extra-arches", "tensorboard", "tqdm", "yapf"),
)
TESTS = (
    "tests/test_frameworks.py",
    "tests/test_frameworks_ray.py",
    "tests/test_frameworks_trainers.py",
    "tests/test_integrations.py",
    "tests/test_ray.py",
)
PAGES = tuple(
    f"tests/test_snippets.py::test_the_snippets_of_a_document_run[docs/how-to/{name}.md]"
    for name in ("frameworks", "parts")
)
VERSIONS = "import importlib.metadata as m, sys; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep='\\n')"


def chosen() -> dict[str, str]:
    """Return the frameworks and their versions.

    >>> chosen()["lightning"] > "2"
    True
    """
    return dict(re.findall(r"(?m)^([\w-]+)==(\S+)$", CHOSEN.read_text("utf-8")))


def torch_version(torch_index: str | None = None) -> str:
    """Return the requirement of torch: the version that the other tests run with.

    Without an index of its own it is the very build of PyPI: pip prefers one with a local version, such as 2.13.0+cpu,
    and PyPI's torchvision cannot be imported with that.
    """
    found = re.search(r"(?m)^torch==(\S+)", (ROOT / "constraints.txt").read_text("utf-8"))
    if found is None:
        raise SetupError("constraints.txt has no line torch==...")
    return f"torch{'==' if torch_index else '==='}{found[1]}"


def make_environment(venv: Path, torch_index: str | None) -> None:
    """Make the environment again, unless its files are unchanged.

    Raises:
        SetupError: pip failed.
    """
    digest = hashlib.sha256(b"\0".join([sys.version.encode(), *(path.read_bytes() for path in INPUTS)])).hexdigest()
    stamp, python = venv / "frameworks", str(venv / "bin" / "python")
    if stamp.exists() and stamp.read_text() == digest:
        return
    print(
        f"Making {venv} with Python {sys.version.split()[0]}, {torch_version(torch_index)} and the frameworks.",
        flush=True,
    )
    run([sys.executable, "-m", "venv", "--clear", str(venv)])
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--extra-index-url", torch_index] if torch_index else []
    pinned = [f"{name}=={version}" for name, version in chosen().items()]
    run([*pip, torch_version(torch_index), "--editable", str(ROOT), *pinned, *TOOLS, *NEEDED_BY_TRAINERS])
    stamp.write_text(digest)


def fetch_trainers(base: str) -> None:
    """Fetch the sources of the trainers into `.trainers`; the tests of one that cannot be fetched are skipped."""
    for name, commit in TRAINERS.items():
        folder = ROOT / ".trainers" / name.partition("/")[2]
        git = ["git", "-C", str(folder)]
        folder.mkdir(parents=True, exist_ok=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        if head == commit:
            continue
        try:
            run([*git, "init", "--quiet"])
            run([*git, "fetch", "--quiet", "--depth", "1", f"{base}/{name}", commit])
            run([*git, "checkout", "--quiet", commit])
        except SetupError as error:
            shutil.rmtree(folder)
            print(f"{name} cannot be fetched, so its tests are skipped: {error}", file=sys.stderr)


def run_tests(venv: Path, others: Sequence[str]) -> int:
    """Run the tests and print the versions that they ran with; return the exit status."""
    python = str(venv / "bin" / "python")
    # The frameworks' own warnings are not errors.
    quiet = ["-W", "ignore", "-p", "no:cacheprovider"]
    status = subprocess.run([python, "-m", "pytest", *quiet, *others, *TESTS, *PAGES], cwd=ROOT).returncode
    seen = subprocess.run(
        [python, "-c", VERSIONS, "torch", "torchvision", *chosen()], capture_output=True, text=True, check=True
    )
    print(f"{datetime.date.today()}: {', '.join(seen.stdout.splitlines())}", flush=True)
    return status


def main() -> int:
    """Make the environment and run the tests there; unknown options are passed on to pytest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-index", metavar="URL", help="one more package index, for another build of torch")
    parser.add_argument(
        "--trainers-from", default="https://github.com", metavar="URL", help="where OWNER/NAME of the trainers are"
    )
    options, others = parser.parse_known_args()
    venv = ROOT / ".venv-frameworks"
    try:
        make_environment(venv, options.torch_index)
        fetch_trainers(options.trainers_from)
    except SetupError as error:
        print(f"frameworks: {error}", file=sys.stderr)
        return 2
    return run_tests(venv, others)


if __name__ == "__main__":
    sys.exit(main())
