"""`lmdbloader bench`: the speed of batches on this machine, compared with other ways to load them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from lmdbloader.base.units import PIXELS, REAL, WHOLE
from lmdbloader.cli._numbers import number
from lmdbloader.cli._streams import say
from lmdbloader.errors import DestinationError, OptionError

ORDER = 120
HELP = "measure how fast batches are loaded, compared with other ways to load them"
DESCRIPTION = """\
Measure how fast batches of a dataset are loaded on this machine: by the Loader
of lmdbloader, by torch's DataLoader over the same dataset and, with --baseline,
by torch's DataLoader over the same images as files: samples/s, waits, processor
time, and the stages of the Loader's threads. Every batch size and crop is
measured, with every number of workers, in every number of processes at once.

--cold measures the first epoch from storage instead: the page cache is dropped
for these files alone, which slows down whoever else reads them (Linux).

The settings take turns, because other programs disturb the measurement: speeds
are medians, and loaders are compared by turns that are neighbors in time. By
default it takes about a minute on 2 cores.
"""
EPILOG = """\
examples:
  lmdbloader bench train.lmdb --baseline auto
  lmdbloader bench train.lmdb --batch-sizes 16 --num-workers 0 1 2 4
  lmdbloader bench train.lmdb --batch-sizes 8 128 --processes 1 2 8
  lmdbloader bench train.lmdb --baseline photos --cold
  lmdbloader bench train.lmdb --json study.json --charts study.pdf
"""
# What is given is passed on to `bench`, which has the defaults.
_MEASURING = ("baseline", "batch_sizes", "crops", "num_workers", "processes", "cold", "seconds", "repeats")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add = parser.add_argument
    add("dataset", metavar="DB", help="the dataset's folder")
    add(
        "--baseline",
        metavar="DIR",
        help="compare with torch's DataLoader over this folder of the same images as files; for several image fields "
        "it has a folder for each; 'auto' writes PNG files of up to 4,000 samples into a temporary folder",
    )
    add(
        "--batch-sizes", metavar="N", type=number(WHOLE), nargs="+", help="samples in a batch (default: 8 16 32 64 128)"
    )
    add(
        "--crops",
        metavar="N",
        type=_crop,
        nargs="+",
        help="sides of random windows in pixels of the largest image, or 'whole' (default: 16 64)",
    )
    add("--seconds", metavar="S", type=number(REAL), help="seconds of one turn of a setting (default: 0.2)")
    add("--repeats", metavar="N", type=number(WHOLE), help="turns of each setting (default: 3)")
    add(
        "--num-workers",
        metavar="N",
        type=number(WHOLE),
        nargs="+",
        help="worker processes of torch's DataLoader (default: one for each core, 16 at most)",
    )
    add("--processes", metavar="K", type=number(WHOLE), nargs="+", help="processes that load at once (default: 1)")
    add("--cold", action="store_true", help="measure the first epoch from storage")
    add("--json", metavar="FILE", help="write every figure as JSON; '-' writes to stdout, in place of tables")
    add("--charts", metavar="FILE", help="write the charts as a PDF file (needs lmdbloader[report])")


def _crop(text: str) -> int | None:
    return None if text == "whole" else int(number(PIXELS)(text))


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    if options.charts is not None and Path(options.charts).suffix.lower() != ".pdf":
        raise OptionError(f"{options.charts}: expected a file name that ends in .pdf, the format of the charts")
    for name in (options.json, options.charts):  # before minutes are spent on measuring
        if name is not None and not Path(name).absolute().parent.is_dir():
            raise DestinationError(f"{name}: its folder does not exist. Create it first.")
    began = time.monotonic()

    def progress(line: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s] {line}", file=sys.stderr, flush=True)

    progress("loading torch")
    from lmdbloader.lab.study import bench

    if options.charts is not None:
        from lmdbloader.lab.charts import write_charts

    given = {name: value for name in _MEASURING if (value := getattr(options, name)) is not None}
    study = bench(options.dataset, **given, progress=progress)
    text = json.dumps(study.as_json(), indent=1, allow_nan=False)
    if options.json not in (None, "-"):
        Path(options.json).write_text(text + "\n", "utf-8")
    print(text if options.json == "-" else study)
    if options.charts is not None:
        write_charts(study, options.charts)
        say(f"charts: {options.charts}", error=True)
    return 0
