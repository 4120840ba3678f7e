"""`lmdbloader repair`: makes a lost index or manifest again, or a new dataset without the damaged samples."""

from __future__ import annotations

import argparse

from lmdbloader.cli._streams import say

ORDER = 70
HELP = "make a lost index again, or write a new dataset without the damaged samples"
DESCRIPTION = """\
Check a dataset as `lmdbloader verify` does, and repair it.

If index.arrow or manifest.json is lost or damaged, and the data files are
sound, both are made again from the data files and put in place in one step:
readers that have the dataset open are not disturbed.

If a data file is damaged, cut short or missing, the sound samples are written
to a new dataset, OUT: in their order, with the same stored bytes, fields,
classes and source names. The others are listed here and in OUT/left_out.tsv. DB
is not changed. Without OUT only the damage is listed. If the index is lost too,
OUT gets the samples of the parts whose data files are sound. If the original
number of samples is unknown, the report says so.

Nothing is written for a dataset that is sound.
"""

EPILOG = """\
Exit status: 0 repaired, or nothing to do; 1 cannot be repaired, or not without
OUT; 2 wrong usage; 130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument("out", metavar="OUT", nargs="?", help="the new dataset's folder, if a data file is damaged")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.base.progress import ProgressLine
    from lmdbloader.store import repair

    with ProgressLine("repairing", None, "samples checked", shown=True) as bar:
        repair(options.dataset, options.out, progress=bar.update, log=say)
    return 0
