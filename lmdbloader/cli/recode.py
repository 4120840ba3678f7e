"""`lmdbloader recode`: a dataset with its images stored in another way, without loss."""

from __future__ import annotations

import argparse

from lmdbloader.cli._combining import add_running, tell
from lmdbloader.cli._streams import say, say_nothing

ORDER = 45
HELP = "store the images of a dataset in another way, without loss"
DESCRIPTION = """\
Copy DB to OUT with its images stored in another way. --jpeg-code fast recodes
JPEGs so that they decode faster; --jpeg-code file restores the files, which
other programs can open. --codec stores pixels with another codec. Give at least
one of them. No pixel changes, and every checksum is verified. All cores are
used.
"""
EPILOG = """\
An OUT that the same command made of the same samples is left as it is; any
other is replaced with --overwrite only. OUT.partial keeps the complete parts of
an interrupted run: the same command makes the others.
Exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.

examples:
  lmdbloader recode old.lmdb fast.lmdb --jpeg-code fast
  lmdbloader recode pixels.lmdb half.lmdb --codec delta
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument("out", metavar="OUT", help="the dataset to make")
    parser.add_argument(
        "--jpeg-code", choices=("fast", "file"), help="fast: recode JPEGs; file: restore the files (default: they stay)"
    )
    parser.add_argument(
        "--codec",
        choices=("raw", "lz4", "delta"),
        help="codec of images that are stored as pixels; files and masks keep theirs",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the dataset at OUT once the new one is complete"
    )
    add_running(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.conversion.recoding import recode

    done = recode(
        options.dataset,
        options.out,
        jpeg_code=options.jpeg_code,
        codec=options.codec,
        overwrite=options.overwrite,
        restart=options.restart,
        progress=not options.quiet,
        log=say_nothing if options.quiet else say,
    )
    return tell(done, options)
