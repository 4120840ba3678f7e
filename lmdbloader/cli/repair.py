"""`lmdbloader repair`: a lost index or manifest made anew, or a new dataset without what is damaged."""

from __future__ import annotations

import argparse
import sys

from lmdbloader.cli._streams import say

ORDER = 70
HELP = "rebuild a lost index, or write a new dataset without the damaged samples"
DESCRIPTION = """\
Mend a dataset. First everything in it is checked, as `lmdbloader verify` does.

Where index.arrow or manifest.json is lost or damaged, and data.mdb is sound,
they are made anew from data.mdb and put in their place in one step: readers
that have the dataset open are not disturbed. Nothing else in DB is changed.

Where data.mdb is damaged or cut short, the samples that are sound are written
to a new dataset, OUT: in their order, the stored bytes as they are, with the
same fields, classes and source names. Those that are left out are listed here
and in OUT/left_out.tsv. DB stays as it is. Without OUT it is only said what is
damaged. No index and no LMDB that opens is needed for that: without an index,
every record that is still whole is found by looking at all of data.mdb. Where
nothing says any more how many samples there were, that is said.

Nothing is written for a dataset that is sound.
"""

EPILOG = """\
Exit status: 0 mended, or nothing to do; 1 cannot be mended, or not without
OUT; 2 wrong usage; 130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument("out", metavar="OUT", nargs="?", help="the new dataset's folder, where data.mdb is damaged")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.base.progress import ProgressBar
    from lmdbloader.store import repair

    with ProgressBar(unit=" samples checked", disable=not sys.stderr.isatty()) as bar:
        repair(options.dataset, options.out, progress=bar.update, log=say)
    return 0
