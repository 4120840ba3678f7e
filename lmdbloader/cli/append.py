"""`lmdbloader append`: adds the samples of other datasets to a dataset, as further parts."""

from __future__ import annotations

import argparse

from lmdbloader.base.text import counted
from lmdbloader.base.units import show_nbytes
from lmdbloader.cli._combining import add_choices, add_running, choices
from lmdbloader.cli._streams import say

ORDER = 43
HELP = "add the samples of other datasets to a dataset"
DESCRIPTION = """\
Add the samples of other datasets to the dataset DB, after its own, as further
parts. The data files in DB are neither copied nor changed. DB then has the
samples and the content digest of the dataset that `lmdbloader merge DB A B -o
OUT` writes.

The datasets need the fields of DB. If they name the same classes in another
order, labels are renumbered as in DB; other classes are refused (see
--add-classes). All differences are listed.
"""
EPILOG = """\
DB changes in one step. Until then, and after a crash, it is the old dataset;
processes that have it open keep the old one. The complete parts of an
interrupted run are kept in DB.partial: the same command makes the others. If a
completed command is repeated, it appends the same samples again.
Exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.

examples:
  lmdbloader append train.lmdb monday.lmdb
  lmdbloader append df2k.lmdb div2k.lmdb flickr2k.lmdb --prefix-sources
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("db", metavar="DB", help="the folder of the dataset that grows")
    parser.add_argument("datasets", nargs="+", metavar="A", help="the folders of the datasets to append, in order")
    parser.add_argument(
        "--fields", metavar="NAMES", help="the fields of DB, separated by commas, if the others have more of them"
    )
    add_choices(parser, "DB", "each appended dataset", ", if DB does not have any")
    add_running(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.conversion.merging import append

    done = append(options.db, options.datasets, **choices(options))
    if not options.quiet:
        speed = done.copied_nbytes / 1e6 / max(done.seconds, 1e-9)
        say(
            f"{done.path}: {counted(done.num_copied, 'sample')} appended, {show_nbytes(done.copied_nbytes)} in "
            f"{done.seconds:.1f} s ({speed:.0f} MB/s); {counted(done.num_samples, 'sample')}"
        )
    return 0
