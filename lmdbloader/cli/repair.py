"""`lmdbloader repair`: a lost index or manifest rebuilt, or a new dataset without the damaged samples."""

from __future__ import annotations

import argparse

from lmdbloader.cli._streams import say

ORDER = 70
HELP = "rebuild a lost index, or write a new dataset without the damaged samples"
DESCRIPTION = """\
Check a dataset as `lmdbloader verify` does, and repair it.

If index.arrow or manifest.json is lost or damaged, and data.mdb is sound, they
are rebuilt from data.mdb and put in place in one step: readers that have the
dataset open are not disturbed. Nothing else in DB is changed.

If data.mdb is damaged or cut short, the sound samples are written to a new
dataset, OUT: in their order, with the same stored bytes, fields, classes and
source names. The others are listed here and in OUT/left_out.tsv. DB is not
changed. Without OUT only the damage is listed. This needs neither an index nor
an LMDB that can be opened: without an index, data.mdb is searched for complete
records. If the original number of samples is unknown, the list says so.

Of a set of parts, lost files of a part are rebuilt in the part, then the set's
own from the parts. If data.mdb of a part is damaged, or a part is missing, OUT
gets the sound samples of all parts, in one data.mdb.

Nothing is written for a dataset that is sound.
"""

EPILOG = """\
Exit status: 0 repaired, or nothing to do; 1 cannot be repaired, or not without
OUT; 2 wrong usage; 130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument("out", metavar="OUT", nargs="?", help="the new dataset's folder, if data.mdb is damaged")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.base.progress import ProgressLine
    from lmdbloader.store import repair

    with ProgressLine("repairing", None, "samples checked", shown=True) as bar:
        repair(options.dataset, options.out, progress=bar.update, log=say)
    return 0
