"""Rehearses the GPU benchmark: packs, then runs every stage without a network, with only such a machine's packages.

The environment `.venv-gpu` holds the packages of machine.txt and no other; the stages get everything else from the
packed folder. Without a GPU the stages use the CPU, in tiny sizes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

from run import STAGE_NAMES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENVIRONMENT = ROOT / ".venv-gpu"


def make_environment(folder: Path) -> Path:
    """Return the Python of an environment with the packages of machine.txt; made again when that file changes."""
    python, stamp = folder / "bin" / "python", folder / "made-of"
    wanted = f"{sys.version}\n{(HERE / 'machine.txt').read_text()}{(ROOT / 'constraints.txt').read_text()}"
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
        requirements = ["--requirement", str(HERE / "machine.txt"), "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, *requirements], check=True)
        stamp.write_text(wanted)
    return python


def without_network() -> list[str]:
    """Return the words before a command that take the network away; none where this user may not."""
    for words in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
        try:
            if subprocess.run([*words, "true"], capture_output=True).returncode == 0:
                return words
        except FileNotFoundError:
            break
    return []


def rehearse(folder: Path, stages: Sequence[str], minutes: float) -> int:
    """Do all of it; return the exit status."""
    began = time.monotonic()
    python = make_environment(ENVIRONMENT)
    # A separate pack: one made for another machine's Python is not touched.
    pack = folder / "pack"
    subprocess.run([sys.executable, str(HERE / "pack.py"), "--out", str(pack), "--python", _running()], check=True)
    words = without_network()
    print(f"network: {'taken away' if words else 'cannot be taken away here'}", flush=True)
    out = folder / "results"
    command = [*words, str(python), str(HERE / "run.py"), "--pack", str(pack), "--out", str(out), "--small"]
    command += ["--work", str(folder / "work"), "--minutes", str(minutes), "--stages", *stages]
    status = subprocess.run(command, cwd=ROOT).returncode
    subprocess.run(
        [sys.executable, str(HERE / "report.py"), str(folder), "--small", "--out", str(folder / "gpu.md")],
        cwd=ROOT,
        check=True,
    )
    for path in sorted(out.glob("*.json")):
        left_out = json.loads(path.read_text()).get("left_out", {})
        for what, reason in left_out.items():
            print(f"{path.stem}: left out: {what}: {reason}")
    print(f"rehearsed in {time.monotonic() - began:.0f} s: {'all stages done' if status == 0 else 'see above'}")
    return status


def _running() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="+", choices=STAGE_NAMES, default=STAGE_NAMES, metavar="NAME")
    parser.add_argument("--minutes", type=float, default=10, help="that the stages may take together (default 10)")
    parser.add_argument("--folder", type=Path, help="keep data and results here (default: a temporary folder)")
    options = parser.parse_args()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        return rehearse(options.folder, options.stages, options.minutes)
    folder = Path(tempfile.mkdtemp(prefix="lmdbloader-gpu-"))
    try:
        return rehearse(folder, options.stages, options.minutes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
