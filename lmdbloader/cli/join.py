"""`lmdbloader join`: joins the parts of a conversion."""

from __future__ import annotations

import argparse

from lmdbloader.base.text import counted
from lmdbloader.cli._report import tell
from lmdbloader.cli._streams import say, say_nothing

ORDER = 35
HELP = "join the parts of a conversion"
DESCRIPTION = """\
Join the parts that `lmdbloader convert --part I/N` has made: write index and
manifest, and rename OUT.partial, which holds the parts, to OUT.
No images are copied. A missing part is an error that names it, and changes
nothing. An OUT that is complete already is left as it is.
"""
EPILOG = """\
Exit status: 0 done, 1 refused or failed, 2 wrong usage.

examples:
  lmdbloader convert photos train.lmdb --parts 16 --plan-only
  for i in $(seq 0 15); do
    lmdbloader convert photos train.lmdb --part $i/16
  done
  lmdbloader join train.lmdb
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("out", metavar="OUT", help="the dataset")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.conversion import join

    report = join(options.out, log=say_nothing if options.quiet else say)
    if report.was_finished:
        if not options.quiet:
            say(f"{report.path}: is in place already ({counted(report.num_samples, 'sample')}); nothing to do")
    else:
        tell(report, quiet=options.quiet)
    return 0
