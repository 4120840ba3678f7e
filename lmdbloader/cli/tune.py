"""`lmdbloader tune`: the number of threads or workers that reads a dataset fastest on this machine."""

from __future__ import annotations

import argparse
import json

from lmdbloader.base.units import PIXELS, REAL, WHOLE
from lmdbloader.cli._numbers import number
from lmdbloader.cli._streams import say_lines

ORDER = 100
HELP = "find the threads or workers that read a dataset fastest here"
DESCRIPTION = """\
Measure how fast a dataset reads on this machine: with 1, 2, ... threads of the
Loader, and with 0, 1, 2, ... workers of torch's DataLoader, through pinned and
paged memory if there is an accelerator. The cheapest setting within 4 % of the
best is remembered in the user's cache folder: num_threads="auto" and
lmdbloader.dataloader then use it, for this dataset, batch size and size of
images on this machine.

With --step-seconds, the time of one training step, it says PASS or FAIL: 99 %
of the batches must be ready within the step (a wait of up to 5 % of it counts
as ready), measured with a consumer that takes this long for each batch.
"""

EPILOG = """\
Run it on a machine with the same load as during training.

Exit status: 0 done, 1 FAIL (or the dataset cannot be read), 2 wrong usage.

examples:
  lmdbloader tune train.lmdb --batch-size 32
  lmdbloader tune train.lmdb --batch-size 128 --crop 224 --step-seconds 0.087
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument("--batch-size", type=number(WHOLE), metavar="N", required=True, help="samples in a batch")
    parser.add_argument(
        "--step-seconds", type=number(REAL), metavar="T", help="time of a training step: say PASS or FAIL"
    )
    parser.add_argument(
        "--crop",
        type=number(PIXELS),
        metavar="S",
        help="read windows of S x S pixels: random crops, or random resized crops if single images are JPEG files "
        "or smaller than that (default: images as they are stored, which then must have one size)",
    )
    parser.add_argument(
        "--seconds", type=number(REAL), default=20.0, metavar="S", help="measure for about this long (default: 20)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.lab.tuning import tune  # loads torch, which takes seconds

    found = tune(
        options.dataset,
        options.batch_size,
        step_seconds=options.step_seconds,
        crop=options.crop,
        seconds=options.seconds,
    )
    say_lines(json.dumps(found.as_json(), indent=2, allow_nan=False) if options.json else str(found))
    return 1 if found.verdict is not None and not found.verdict.passed else 0
