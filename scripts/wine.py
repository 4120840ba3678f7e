"""Tests the kernels for Windows under Wine: builds them, and a native program that calls them, into `.wine`.

Other options and names of tests are passed on to pytest, which runs tests/test_kernels_windows.py.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".wine"
LEVELS = (2, 3, 4)
PROGRAM = ROOT / "tests" / "native" / "call_kernels.c"
# Wine offers to install nothing, and prints no debug messages.
ENVIRONMENT = {"WINEPREFIX": str(HOME / "prefix"), "WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml="}


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _, others = parser.parse_known_args()
    if shutil.which("wine") is None:
        print("wine: Wine is not installed (apt install --no-install-recommends wine wine64)", file=sys.stderr)
        return 2
    HOME.mkdir(exist_ok=True)
    targets = [option for level in LEVELS for option in ("--target", f"windows-x86-64-v{level}")]
    building = [sys.executable, "-m", "lmdbloader.kernels.building", "--if-changed", "--out", str(HOME), *targets]
    linking = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu", "-O2", "-Wall", "-Wextra", "-s"]
    linking += ["-o", str(HOME / "call_kernels.exe"), str(PROGRAM)]
    environment = os.environ | ENVIRONMENT
    # Without its part for 32 bits, which nothing here needs, Wine reports that as a failure and starts all the same.
    for command, is_quiet in ((building, False), (linking, False), (["wine", "wineboot", "--init"], True)):
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if is_quiet else {}
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, env=environment, **output)
        if done.returncode:
            print((done.stdout or b"").decode(errors="replace"), end="", file=sys.stderr)
            print(f"wine: `{' '.join(command[:4])} ...` ended with status {done.returncode}", file=sys.stderr)
            return 2
    command = [sys.executable, "-m", "pytest", "tests/test_kernels_windows.py", *others]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
