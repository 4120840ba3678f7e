"""Prints the report of a conversion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmdbloader.base.text import counted
from lmdbloader.base.units import show_nbytes
from lmdbloader.cli._streams import say

if TYPE_CHECKING:
    from lmdbloader.conversion import Report


def tell(report: Report, *, quiet: bool) -> None:
    """Print a report; with `quiet`, only what the conversion left out."""
    if not quiet:
        _show(report)
    for name, reason in report.ignored:
        say(f"left out: {name}: {reason}", error=True)
    for name, reason in report.skipped:
        say(f"skipped: {name}: {reason}", error=True)
    if report.skipped:
        say(
            f"{len(report.skipped)} of {report.num_sources} skipped; the list is in {report.path}/skipped.tsv",
            error=True,
        )


def _show(report: Report) -> None:
    if report.was_finished:
        say(
            f"{report.path}: already made from the same inputs with the same options "
            f"({counted(report.num_samples, 'sample')}); nothing to do"
        )
        return
    from lmdbloader.store import read_manifest

    sizes = report.sizes
    rate = report.num_sources / max(report.seconds, 1e-9)
    stored_as = ", ".join(f"{count} {name}" for name, count in report.stored_as.items())
    samples = counted(report.num_samples, "sample")
    ratio = sizes["data_nbytes"] / max(sizes["payload_nbytes"], 1)
    say(f"{report.path}: {samples} in {report.seconds:.1f} s ({rate:.1f} inputs/s)")
    print(
        f"  pixels   {show_nbytes(sizes['raw_nbytes'])}, stored as {show_nbytes(sizes['payload_nbytes'])} ({stored_as})"
    )
    name = "data.mdb" if len(read_manifest(report.path).parts) == 1 else "data"
    print(
        f"  {name:8} {show_nbytes(sizes['data_nbytes'])}, {ratio:.3f} x the payload; "
        f"index.arrow {show_nbytes(sizes['index_nbytes'])}"
    )
    if report.source_nbytes:
        size = f"{name} is {sizes['data_nbytes'] / report.source_nbytes:.2f} x that"
        print(f"  source   {show_nbytes(report.source_nbytes)} of files; {size}")
