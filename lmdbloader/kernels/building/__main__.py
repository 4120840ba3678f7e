"""Builds the libraries of the compiled kernels: `python -m lmdbloader.kernels.building --help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lmdbloader.kernels.building.targets import TARGETS, Target, targets_here
from lmdbloader.kernels.calls.libraries import BUILT


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m lmdbloader.kernels.building", description="Build the libraries of the compiled kernels."
    )
    parser.add_argument(
        "--target", action="append", metavar="NAME", choices=[t.name for t in TARGETS],
        help="one of several machines: " + ", ".join(t.name for t in TARGETS),
    )  # fmt: skip
    parser.add_argument("--all-here", action="store_true", help="every kind of processor that this system runs on")
    parser.add_argument("--out", type=Path, default=BUILT, help="the folder for the libraries (default: %(default)s)")
    parser.add_argument("--if-changed", action="store_true", help="only if a source has changed since the last build")
    options = parser.parse_args()
    try:
        from lmdbloader.kernels.building.linking import BuildError, best_here, build
    except ImportError as error:
        print(f"{error.name} is not installed, which builds the kernels: pip install numba ziglang", file=sys.stderr)
        return 1
    chosen: Sequence[Target] = [t for t in TARGETS if t.name in (options.target or ())]
    if options.all_here:
        chosen = targets_here()
    began = time.perf_counter()
    try:
        build(chosen or [best_here()], options.out, if_changed=options.if_changed, report=_report)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _report(text: str) -> None:
    print(f"kernels: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
