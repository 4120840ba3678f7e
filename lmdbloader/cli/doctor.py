"""`lmdbloader doctor`: the causes of slow loading on this machine, and their remedies."""

from __future__ import annotations

import argparse
import json

from lmdbloader.base.units import PIXELS, REAL, WHOLE
from lmdbloader.cli._numbers import number
from lmdbloader.cli._streams import say_lines

ORDER = 110
HELP = "find what makes loading slow here, and what helps"
DESCRIPTION = """\
Look at this machine, and at a dataset on it, for causes of slow loading and of
errors: cores and their limits, threads, memory, /dev/shm, libraries, the GPU;
the file system of the dataset, whether it fits in memory, and how much of it is
in memory now. Each fact has a verdict, and a remedy if one is needed.

With --batch-size and --step-seconds, a Loader reads the dataset for a few
seconds in steps of that length; the result names the bottleneck, and the change
that would help most. Long steps are run for about a minute, but at least two of
them; if there were very few, the result says so.
"""

EPILOG = """\
Exit status: 0 no problem found (notes do not count), 1 a problem found, or no
such dataset, 2 wrong usage.

examples:
  lmdbloader doctor
  lmdbloader doctor train.lmdb
  lmdbloader doctor train.lmdb --batch-size 64 --step-seconds 0.05 --crop 224
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", nargs="?", metavar="DB", help="the dataset's folder")
    parser.add_argument("--batch-size", type=number(WHOLE), metavar="N", help="samples in a batch; reads the dataset")
    parser.add_argument(
        "--step-seconds", type=number(REAL), metavar="T", help="time of a training step without loading"
    )
    parser.add_argument(
        "--crop", type=number(PIXELS), metavar="PIXELS", help="read windows of this side, as in training"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.lab.checkup import doctor

    found = doctor(options.dataset, batch_size=options.batch_size, step_seconds=options.step_seconds, crop=options.crop)
    say_lines(json.dumps(found.as_json(), indent=2) if options.json else str(found))
    return 0 if found.is_healthy else 1
