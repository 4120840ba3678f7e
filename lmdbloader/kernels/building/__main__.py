"""Builds the libraries of the compiled kernels: `python -m lmdbloader.kernels.building --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lmdbloader.kernels.building.targets import TARGETS, Target, targets_here
from lmdbloader.kernels.calls.libraries import BUILT


def main() -> None:
    """Run the command; a failure ends it with a message and status 1."""
    parser = argparse.ArgumentParser(
        prog="python -m lmdbloader.kernels.building",
        description="Build the libraries of the compiled kernels, by default for this machine.",
    )
    parser.add_argument(
        "--target", action="append", metavar="NAME", choices=[t.name for t in TARGETS],
        help="build for this kind of machine, can be repeated: " + ", ".join(t.name for t in TARGETS),
    )  # fmt: skip
    parser.add_argument("--all-here", action="store_true", help="build for all processors of this system")
    parser.add_argument("--out", type=Path, default=BUILT, help="the folder for the libraries (default: %(default)s)")
    parser.add_argument("--if-changed", action="store_true", help="do nothing if the libraries are up to date")
    options = parser.parse_args()
    try:
        from lmdbloader.kernels.building.linking import BuildError, best_here, build
    except ImportError as error:
        sys.exit(f"building the kernels needs {error.name}, which is not installed: pip install numba ziglang")
    chosen: Sequence[Target] = [t for t in TARGETS if t.name in (options.target or ())]
    if options.all_here:
        chosen = targets_here()
    try:
        build(chosen or [best_here()], options.out, if_changed=options.if_changed, report=_report)
    except BuildError as error:
        sys.exit(str(error))
    except OSError as error:  # no space, or nothing may be written there
        sys.exit(f"{options.out}: the kernels were not built: {error}")


def _report(text: str) -> None:
    sys.stdout.write(f"kernels: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
