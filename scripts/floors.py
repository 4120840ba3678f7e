"""Runs the tests of pixels and datasets with the lowest versions that setup.cfg declares, in `.venv-floors`."""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path

from setup_env import SetupError, run

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ROOT / "constraints-floors.txt"
INPUTS = (FLOORS, ROOT / "setup.cfg", Path(__file__))
# The packages of the tests below; the extra of all tests holds documentation tools that need newer versions.
TOOLS = (
    "h5py", "hypothesis", "matplotlib", "numba", "psutil", "pytest", "pytest-xdist", "scikit-image",
    "setuptools",
)  # fmt: skip
# Tests whose results may depend on versions: files, formats, conversion, storage, reading and transforms.
TESTS = (
    "base_arguments", "base_disk_errors", "base_files", "base_limits", "base_progress", "batch_*", "cli_*",
    "conversion_*", "format_*", "images*", "kernels_*", "loader*", "packaging", "recipes_*",
    "show*", "store_*", "torchvision", "transforms*", "versions",
)  # fmt: skip
LACKS_PANDAS = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pandas') is not None)"


def make_environment(venv: Path, torch_index: str | None) -> None:
    """Make the environment again, unless its files are unchanged.

    Raises:
        SetupError: pip failed, or brought pandas, without which the tests are to run.
    """
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in INPUTS)).hexdigest()
    stamp, python = venv / "floors", str(venv / "bin" / "python")
    if stamp.exists() and stamp.read_text() == digest:
        return
    print(f"Making {venv} with Python {sys.version.split()[0]} and the lowest versions.", flush=True)
    run([sys.executable, "-m", "venv", "--clear", str(venv)])
    index = ["--extra-index-url", torch_index] if torch_index else []
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    run([python, "-m", "pip", "install", *quiet, *index, "--constraint", str(FLOORS), "--editable", str(ROOT), *TOOLS])
    try:
        run([python, "-c", LACKS_PANDAS])
    except SetupError as error:
        raise SetupError(f"pandas is in {venv}; the tests are to run without it") from error
    stamp.write_text(digest)


def main() -> int:
    """Make the environment and run the tests there; unknown options are passed on to pytest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-index", metavar="URL", help="one more package index, for another build of torch")
    options, others = parser.parse_known_args()
    venv = ROOT / ".venv-floors"
    try:
        make_environment(venv, options.torch_index)
    except SetupError as error:
        print(f"floors: {error}", file=sys.stderr)
        return 2
    found = {name: sorted(map(str, (ROOT / "tests").glob(f"test_{name}.py"))) for name in TESTS}
    if missing := [name for name, paths in found.items() if not paths]:
        print(f"floors: no tests/test_{missing[0]}.py; bring TESTS in scripts/floors.py up to date", file=sys.stderr)
        return 2
    tests = [path for paths in found.values() for path in paths]
    command = [str(venv / "bin" / "python"), "-m", "pytest", "--numprocesses", "2", "--dist", "worksteal"]
    return subprocess.run([*command, *others, *tests], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
