"""What the commands that combine datasets share: merge, append, subset and recode."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lmdbloader.base.text import counted
from lmdbloader.base.units import show_nbytes
from lmdbloader.cli._streams import say, say_nothing

if TYPE_CHECKING:
    from lmdbloader.conversion import Combined


def add_choices(parser: argparse.ArgumentParser, first: str, others: str, when: str = "") -> None:
    """Add the flags about what datasets that are put together may differ in.

    Args:
        parser: Of the command.
        first: The dataset whose classes come first.
        others: Those whose sources and clips get a prefix.
        when: When the names of sources may be left out, with a comma before it.
    """
    parser.add_argument("--add-classes", action="store_true", help=f"add classes that {first} lacks, after its own")
    parser.add_argument(
        "--prefix-sources",
        action="store_true",
        help=f"put the name of {others}'s folder, without .lmdb, in front of the names of its sources and clips",
    )
    parser.add_argument("--drop-sources", action="store_true", help=f"leave the names of sources out{when}")


def add_running(parser: argparse.ArgumentParser) -> None:
    """Add the flags of how a command that resumes runs."""
    parser.add_argument(
        "--restart", action="store_true", help="discard the progress of an interrupted run (default: resume it)"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a command that makes a dataset of others."""
    parser.add_argument("-o", "--out", required=True, metavar="OUT", help="the dataset to make")
    parser.add_argument("--fields", metavar="NAMES", help="names of the fields to copy, separated by commas")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the dataset at OUT once the new one is complete"
    )
    add_running(parser)


def choices(options: argparse.Namespace) -> dict[str, Any]:
    """Return the flags that these commands share, as keyword arguments."""
    names = ("add_classes", "prefix_sources", "drop_sources", "overwrite", "restart")
    return {
        "fields": names_in(options.fields),
        **{name: getattr(options, name) for name in names if hasattr(options, name)},
        "progress": not options.quiet,
        "log": say_nothing if options.quiet else say,
    }


def names_in(text: str | None) -> list[str] | None:
    """Return the names in a list separated by commas; None for None."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def tell(done: Combined, options: argparse.Namespace) -> int:
    """Print what was made of other datasets; return the exit status."""
    if options.quiet:
        return 0
    if done.was_finished:
        say(f"{done.path}: already made of the same samples ({done.num_samples:,}); nothing to do")
        return 0
    nbytes = done.sizes["payload_nbytes"]
    speed = nbytes / 1e6 / max(done.seconds, 1e-9)
    samples = counted(done.num_samples, "sample")
    say(f"{done.path}: {samples}, {show_nbytes(nbytes)} in {done.seconds:.1f} s ({speed:.0f} MB/s)")
    return 0
