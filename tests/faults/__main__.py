"""Runs the faults in full: `python -m tests.faults`, from the root of the repository."""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import time
from pathlib import Path

from .outcome import Outcome
from .registry import FAULTS, Fault

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "reliability.md"


def row(fault: Fault, outcome: Outcome, seconds: float) -> str:
    """Return a fault's row of the table."""
    counts = ", ".join(f"{name} {number:,}" for name, number in outcome.counts.items())
    result = f"**{len(outcome.failures)} failed**" if outcome.failures else "holds"
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return f"| `{fault.name}`: {fault.what} | {counts} | {fault.must_hold} | {result} | {seconds:,.0f} | {day} |"


def put(fault: Fault, new: str) -> None:
    """Replace a fault's row in the document's table."""
    text = DOCUMENT.read_text("utf-8")
    DOCUMENT.write_text(re.sub(rf"^\| `{fault.name}`:.*$", lambda _: new, text, flags=re.MULTILINE), "utf-8")


def main() -> int:
    """Run the faults named on the command line; return 1 if a promise did not hold."""
    names = [fault.name for fault in FAULTS]
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Make faults; see what holds.")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"these only, of {', '.join(names)}")
    parser.add_argument("--count", type=int, help="how many of each (default: the full count of each)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="put the results into docs/concepts/reliability.md")
    options = parser.parse_args()
    failed = False
    for fault in FAULTS:
        if options.only and fault.name not in options.only:
            continue
        began = time.perf_counter()
        count = options.count if options.count is not None else fault.count
        outcome = fault.run_apart(count, options.seed)
        found = row(fault, outcome, time.perf_counter() - began)
        print(found, *outcome.failures[:20], sep="\n  ", flush=True)
        if options.write:
            put(fault, found)
        failed |= bool(outcome.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
