"""`lmdbloader estimate`: the size and time of a conversion, from a few of its inputs."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from lmdbloader.base.text import plain, rough_time
from lmdbloader.base.units import show_nbytes
from lmdbloader.cli._options import add_flags, given, splits_of
from lmdbloader.cli._streams import say_lines
from lmdbloader.conversion.options import EstimateOptions

ORDER = 20
HELP = "predict size and time of a conversion"
USAGE = "lmdbloader estimate SRC [options]\n       lmdbloader estimate --hr DIR --lr DIR [options]"
DESCRIPTION = """\
Predict how large a dataset would be and how long converting SRC would take, by
converting some of the inputs with the options of `lmdbloader convert`. They
are drawn at random among the inputs of every size. Nothing is kept.

Each figure has a 95 % interval: of 100 such samples about 95 give an interval
that contains the real result. The interval of the time covers the differences
between inputs, but not other work of the machine.
"""

EPILOG = """\
Exit status: 0 done, 1 refused or failed, 2 wrong usage.

examples:
  lmdbloader estimate imagenet/train --layout classes --write-mode jpg \\
      --max-resolution 384 --jpeg-quality 50 --workers 16
  lmdbloader estimate photos --patch-size 96 --scale 2 --sample 30 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("paths", nargs="*", metavar="SRC", help="the folder of images (or LMDB, tar, URL)")
    running = add_flags(parser, EstimateOptions)
    running.add_argument(
        "--json", action="store_true", help="print one JSON object; with --split one for each folder, by its name"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.base.progress import shown_steps
    from lmdbloader.conversion import estimate as measured

    def estimate(source: Any, **keywords: Any) -> Any:
        with shown_steps():
            return measured(source, **keywords)

    if len(options.paths) > 1 or bool(options.paths) == bool(options.hr):
        options.parser.error("expected SRC, or --hr and --lr")
    src: Any = options.paths[0] if options.paths else None
    keywords = given(options, EstimateOptions)
    if not options.split:
        found = estimate(src, **keywords)
        say_lines(json.dumps(asdict(found), indent=2) if options.json else _text(src or options.hr, found))
        return 0
    splits = splits_of(options, src)
    found_of = {split.name: estimate(split.path, classes=split.classes, **keywords) for split in splits}
    if options.json:
        print(json.dumps({name: asdict(found) for name, found in found_of.items()}, indent=2))
    else:
        say_lines("\n".join(_text(str(split.path), found_of[split.name]) for split in splits))
    return 0


def _text(where: str, found: Any) -> str:
    what = "pairs" if found.layout == "pairs" else "images"
    dataset = found.dataset_nbytes
    workers = f"{found.num_workers} worker{'s' * (found.num_workers > 1)}"
    lines = [
        f"{plain(str(where))}: {found.num_sources} {what} ({show_nbytes(found.source_nbytes)}), layout {found.layout}; "
        f"{found.num_tried} tried",
        f"  samples  {_between(found.num_samples, lambda n: f'{n:,.0f}')}",
        f"  dataset  {_between(dataset, show_nbytes)}, {dataset.value / max(found.source_nbytes, 1):.2f} x the files "
        f"({', '.join(f'{count} {name}' for name, count in found.stored_as.items())})",
        f"  time     {_between(found.seconds, rough_time)} with {workers}, as busy as this machine is",
    ]
    if found.delta_saves is not None:
        share = f"{1 - found.delta_saves:.0%}"
        lines.append(f"  smaller  --prefer size: pixels in about {share} of their bytes; read slower from memory")
    if found.unusable:
        name, reason = found.unusable[0]
        lines.append(
            f"  unusable {len(found.unusable)} of {found.num_tried} tried; the first: {plain(f'{name}: {reason}')}"
        )
    return "\n".join(lines)


def _between(interval: Any, text: Any) -> str:
    low, value, high = text(interval.low), text(interval.value), text(interval.high)
    return str(value) if low == value == high else f"{value} ({low} to {high})"
