"""`lmdbloader tune`: the number of threads or workers that reads a dataset fastest on this machine."""

from __future__ import annotations

import argparse
import json

from lmdbloader.base.units import PIXELS, REAL, WHOLE
from lmdbloader.cli._numbers import number
from lmdbloader.cli._streams import say, say_lines

ORDER = 100
HELP = "find the threads or workers that read a dataset fastest here"
DESCRIPTION = """\
Measure how fast a dataset reads on this machine: with 1, 2, ... threads of the
Loader, and with 0, 1, 2, ... workers of torch's DataLoader, through pinned and
paged memory if there is an accelerator.

The settings take short turns, so that other programs slow all of them down
alike. Settings that are clearly slower are dropped; it ends when the answer is
clear, or after --seconds. The cheapest setting within 4 % of the best is
chosen. If it is clear, it is remembered in the user's cache folder:
num_threads="auto" and lmdbloader.dataloader then use it, for this dataset,
batch size and size of images on this machine.

With --step-seconds, the time of one training step, it says PASS or FAIL: 99 %
of the batches must be ready within the step (a wait of up to 5 % of it counts
as ready), measured with a consumer that takes this long for each batch. The
best is then the cheapest setting that keeps up; the fastest is remembered.
"""

EPILOG = """\
Run it on a machine with the same load as during training.

Exit status: 0 done, 1 FAIL (or the dataset cannot be read), 2 wrong usage.

examples:
  lmdbloader tune train.lmdb --batch-size 32
  lmdbloader tune train.lmdb --batch-size 128 --crop 224 --step-seconds 0.087
  lmdbloader tune train.lmdb --forget
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument(
        "--batch-size", type=number(WHOLE), metavar="N", help="samples in a batch; needed unless --forget is given"
    )
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
        "--seconds",
        type=number(REAL),
        default=40.0,
        metavar="S",
        help="measure for at most this long; a long step is tried once in any case (default: 40)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument(
        "--forget", action="store_true", help="forget the measurements of this dataset, and measure nothing"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    if options.forget:
        return _forget(options)
    if options.batch_size is None:
        options.parser.error("the following arguments are required: --batch-size")
    from lmdbloader.base.progress import ProgressLine

    with ProgressLine("measuring", round(options.seconds), "seconds at most", shown=True, log_after=2.0) as line:
        from lmdbloader.lab.tuning import tune  # loads torch, which takes seconds

        found = tune(
            options.dataset,
            options.batch_size,
            step_seconds=options.step_seconds,
            crop=options.crop,
            seconds=options.seconds,
            progress=line.update,
        )
    say_lines(json.dumps(found.as_json(), indent=2, allow_nan=False) if options.json else str(found))
    return 1 if found.verdict is not None and not found.verdict.passed else 0


def _forget(options: argparse.Namespace) -> int:
    from lmdbloader.lab.tuning import forget
    from lmdbloader.store import read_manifest

    number = forget(read_manifest(options.dataset).content_digest)
    entries = f"{number:,} {'entry' if number == 1 else 'entries'}"
    say(json.dumps({"forgotten": number}) if options.json else f"{options.dataset}: {entries} forgotten")
    return 0
