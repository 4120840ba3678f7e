"""The table of the faults' outcomes, on the screen and in docs/reference/faults.md."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from .outcome import Outcome
from .registry import FAULTS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "faults.md"
BEGIN = "<!-- faults: the table below is written by `make faults ARGS=--write` -->"
END = "<!-- faults: end -->"
_HEAD = ("Fault", "Outcome", "Must hold", "Result", "Seconds", "Day")
_WHAT = {fault.name: fault.what for fault in FAULTS}


def cells(outcome: Outcome) -> tuple[str, ...]:
    """Return a fault's row of the table."""
    counts = ", ".join(f"{name} {number:,}" for name, number in outcome.counts.items())
    result = f"**{len(outcome.failures)} failed**" if outcome.failures else "holds"
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    what = f"`{outcome.name}`: {_WHAT.get(outcome.name, '')}"
    return what, counts, outcome.must_hold, result, f"{outcome.seconds:,.0f}", day


def as_text(outcomes: Sequence[Outcome]) -> str:
    """Return the table for a terminal."""
    rows = [("fault", "came to", "must hold", "result", "seconds")]
    for outcome in outcomes:
        _, counts, must_hold, result, seconds, _ = cells(outcome)
        rows.append((outcome.name, counts, must_hold, result.strip("*"), seconds))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def write(outcomes: Sequence[Outcome], document: Path = DOCUMENT) -> None:
    """Put outcomes into the document's table; rows of faults that were not run stay as they are.

    Raises:
        ValueError: The document has no place for the table.
    """
    text = document.read_text("utf-8")
    before, found, rest = text.partition(BEGIN)
    old, found_end, after = rest.partition(END)
    if not found or not found_end:
        raise ValueError(f"{document}: expected the lines {BEGIN!r} and {END!r}")
    rows = {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)`.*$", old, re.MULTILINE)}
    rows |= {outcome.name: f"| {' | '.join(cells(outcome))} |" for outcome in outcomes}
    order = [fault.name for fault in FAULTS]
    kept = [rows[name] for name in order if name in rows]
    head = [f"| {' | '.join(_HEAD)} |", "|---|---|---|---|---:|---|"]
    document.write_text("\n".join([before + BEGIN, "", *head, *kept, "", environment(), "", END]) + after, "utf-8")


def environment() -> str:
    """Return a sentence about the machine that ran the faults."""
    names = ("lmdb", "pyarrow", "lz4", "numpy", "numba", "torch", "pillow", "pillow-simd")
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue  # Pillow under its other name
    system = f"{platform.system()} {platform.release().split('-')[0]}, {platform.machine()}, {os.cpu_count()} cores"
    return f"The last run that wrote here: {system}, Python {platform.python_version()}, {', '.join(versions)}."
