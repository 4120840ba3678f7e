"""`lmdbloader merge`: several datasets in one."""

from __future__ import annotations

import argparse

from lmdbloader.cli._combining import add_choices, add_out, choices, tell

ORDER = 42
HELP = "put the samples of several datasets into one"
DESCRIPTION = """\
Write the samples of several datasets, one after the other, into the dataset
OUT. The stored bytes are copied: nothing is encoded again, and every
checksum is verified. The samples are those that one conversion of all inputs
would store, with the same content digest.

The datasets need the same fields (see --fields). If they name the same classes
in another order, labels are renumbered as in the first one; other classes are
refused (see --add-classes). All differences are listed. A dataset that is
given twice is stored twice.
"""
EPILOG = """\
An OUT that was made of the same samples is left as it is. OUT.partial keeps the
complete parts of an interrupted run: the same command makes the others.
Exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.

examples:
  lmdbloader merge div2k.lmdb flickr2k.lmdb -o df2k.lmdb
  lmdbloader merge a.lmdb b.lmdb -o all.lmdb --fields image --prefix-sources
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("datasets", nargs="+", metavar="DB", help="the datasets' folders, in order")
    add_out(parser)
    add_choices(parser, "the first dataset", "each dataset")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.conversion.merging import merge

    return tell(merge(options.datasets, options.out, **choices(options)), options)
