"""`lmdbloader preview`: a contact sheet."""

from __future__ import annotations

import argparse

from lmdbloader.base.text import counted
from lmdbloader.base.units import WHOLE
from lmdbloader.cli._numbers import number
from lmdbloader.cli._streams import say

ORDER = 80
HELP = "draw a contact sheet of a dataset's images"
DESCRIPTION = """\
Draw a contact sheet of a dataset's images as a PNG file, with sample numbers,
source paths and labels under them. Pairs are shown side by side at the
same size, the smaller image enlarged by repeating its pixels. Images with many
pixels are reduced, those with few enlarged. 16-bit images are shown in 8 bits,
with the brightest pixel of the sheet as white.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the PNG file to write; an existing file is replaced"
    )
    parser.add_argument(
        "--count", type=number(WHOLE), default=24, metavar="N", help="samples on the sheet (default: 24)"
    )
    parser.add_argument(
        "--seed", type=number(WHOLE), metavar="S", help="choose samples at random (default: evenly spread)"
    )
    parser.add_argument(
        "--columns", type=number(WHOLE), metavar="N", help="columns of the sheet (default: about 1,600 pixels wide)"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.show import preview

    sheet = preview(options.dataset, options.output, count=options.count, seed=options.seed, columns=options.columns)
    size = f"{sheet.image.width} x {sheet.image.height} pixels"
    say(f"{options.output}: {len(sheet.rows):,} of {counted(sheet.num_samples, 'sample')}, {size}")
    if sheet.note:
        say(f"  {sheet.note}")
    return 0
