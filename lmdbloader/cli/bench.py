"""`lmdbloader bench`: how batches come on this machine, beside other ways to load the same."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

_DESCRIPTION = """\
Measure how batches of a dataset come on this machine: from lmdbloader's Loader,
from torch's DataLoader over the same dataset and, with --baseline, from torch's
DataLoader over the same images as files. The sections:

  sweep             batch sizes 8 to 128 and crops 16 and 64, loading alone and
                    training SRCNN: samples/s, latency, processor time, where a
                    step's time goes, what the GPU does, pinned or paged memory
  threads           the Loader with one thread, up to one for each core
  oversubscription  one to four threads or workers for each core
  isolation         several processes at the same time, each with a loader

All settings take turns and medians are shown, because other programs disturb.
The tables end in sentences that say what was found, and what was left out and
why. Progress goes to stderr. By default it takes about two minutes on 2 cores.
"""
_EXAMPLES = """\
examples:
  lmdbloader bench train.lmdb --baseline auto
  lmdbloader bench train.lmdb --only sweep --model none --batch-sizes 16 256
  lmdbloader bench train.lmdb --baseline photos --seconds 2 --json study.json
"""
_SECTIONS = ("sweep", "threads", "oversubscription", "isolation")
_MODELS = ("srcnn915", "srcnn955", "residual", "none")


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        help="measure how fast batches come, beside other ways to load",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument(
        "--baseline",
        metavar="DIR",
        help="compare with torch's DataLoader over this folder of the same images as files; one with several image "
        "fields has a folder for each; 'auto' writes PNG files of up to 4,000 samples into a temporary folder",
    )
    parser.add_argument("--only", metavar="SECTION", nargs="+", choices=_SECTIONS, help="measure only these sections")
    parser.add_argument("--batch-sizes", metavar="N", type=int, nargs="+", help="default: 8 16 32 64 128")
    parser.add_argument(
        "--crops",
        metavar="N",
        type=_crop,
        nargs="+",
        help="sides of random windows in pixels of the largest image, or 'whole' (default: 16 64)",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        choices=_MODELS,
        default="srcnn915",
        help="network to train: %(choices)s, which only loads (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=float,
        default=0.25,
        help="length of a turn of one setting (default: %(default)s)",
    )
    parser.add_argument(
        "--repeats", metavar="N", type=int, default=3, help="turns of each setting (default: %(default)s)"
    )
    parser.add_argument(
        "--processes",
        metavar="K",
        type=int,
        nargs="+",
        help="processes of the isolation test (default: 1, and one for each core, 2 to 8)",
    )
    parser.add_argument(
        "--num-workers", metavar="N", type=int, help="of torch's DataLoader (default: one for each core, 16 at most)"
    )
    parser.add_argument("--device", metavar="NAME", help="where to train: cpu, cuda, cuda:1 (default: cuda if there)")
    parser.add_argument("--json", metavar="FILE", help="write every figure as JSON; '-': to stdout, in place of tables")
    parser.set_defaults(run=_run)


def _crop(text: str) -> int | None:
    return None if text == "whole" else int(text)


def _run(options: argparse.Namespace) -> int:
    import lmdbloader.study as studies

    file = None if options.json in (None, "-") else options.json
    if (
        file is not None
    ):  # that it cannot be written is said before minutes are spent, and what is there stays till then
        open(file, "a").close()
    study = studies.bench(
        options.dataset,
        baseline=options.baseline,
        batch_sizes=options.batch_sizes or studies.BATCH_SIZES,
        crops=options.crops or studies.CROPS,
        model=None if options.model == "none" else options.model,
        only=options.only or studies.SECTIONS,
        seconds=options.seconds,
        repeats=options.repeats,
        processes=options.processes,
        num_workers=options.num_workers,
        device=options.device,
        progress=_Progress(),
    )
    text = json.dumps(study.as_json(), indent=1, allow_nan=False)
    if file is not None:
        with open(file, "w", encoding="utf-8") as opened:
            opened.write(text + "\n")
    print(text if options.json == "-" else study)
    return 0


class _Progress:
    """Shows lines on stderr, each with the seconds since the first."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"[{time.monotonic() - self._began:4.0f} s] {line}", file=sys.stderr, flush=True)
