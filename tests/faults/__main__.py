"""Runs the faults in full: `python -m tests.faults`, from the root of the repository."""

from __future__ import annotations

import argparse
import sys

from .registry import FAULTS
from .report import as_text, write
from .running import run_fault


def main() -> int:
    """Run the faults named on the command line; return 1 if a promise did not hold."""
    names = [fault.name for fault in FAULTS]
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Make faults; see what holds.")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"these only, of {', '.join(names)}")
    parser.add_argument("--count", type=int, help="how many of each (default: the full count of each)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="put the results into docs/reference/faults.md")
    options = parser.parse_args()
    outcomes = []
    for fault in FAULTS:
        if options.only and fault.name not in options.only:
            continue
        count = options.count if options.count is not None else fault.count
        print(f"{fault.name}: {fault.what}; {count:,} ...", flush=True)
        outcomes.append(run_fault(fault, count, options.seed))
        for failure in outcomes[-1].failures[:20]:
            print(f"  {failure}", flush=True)
        if options.write:
            write(outcomes[-1:])
    print(f"\n{as_text(outcomes)}")
    return int(any(outcome.failures for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
