"""`lmdbloader subset`: some samples of a dataset in a new one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lmdbloader.base.units import SHARE, WHOLE, parse_whole
from lmdbloader.cli._combining import add_out, choices, tell
from lmdbloader.cli._numbers import number
from lmdbloader.errors import OptionError

ORDER = 44
HELP = "put some samples of a dataset into a new one"
USAGE = "lmdbloader subset DB [EXPRESSION] -o OUT [options]"
DESCRIPTION = """\
Write the samples of DB that EXPRESSION describes, or that are listed in a file,
into the dataset OUT. The stored bytes are copied: nothing is encoded again, and
every checksum is verified. Labels keep their numbers.

EXPRESSION compares columns with numbers and texts, in Python's syntax. It is
parsed, never run as a program. The columns are those of LMDBDataset(DB).table:
numbers and texts by the name of their field, image.height and image.width of a
field `image`, and in datasets made from files source, top and left. A text
that is compared with a label is the name of a class.
"""
EPILOG = """\
examples of EXPRESSION:
  label in ("cat", "dog") and image.width >= 256
  not (score < 0.5 or score is null)
  "night" in source

An OUT that was made of the same samples is left as it is. The progress of an
interrupted run is kept in OUT.partial: the same command continues.
Exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.

examples:
  lmdbloader subset train.lmdb 'label == "cat"' -o cats.lmdb
  lmdbloader subset train.lmdb -o tenth.lmdb --fraction 10% --seed 1
  lmdbloader subset train.lmdb -o clean.lmdb --indices good.txt
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument("where", nargs="?", metavar="EXPRESSION", help="which samples, see below (default: all)")
    add_out(parser)
    parser.add_argument(
        "--indices",
        metavar="FILE",
        help="a text file with the number of a sample on each line, from 0 on; OUT has their order. - reads the "
        "standard input",
    )
    parser.add_argument(
        "--names",
        metavar="FILE",
        help="a text file with the name of a source on each line, whose samples are taken in this order",
    )
    parser.add_argument(
        "--limit", type=number(WHOLE), metavar="N", help="take only N of the samples, chosen at random, in their order"
    )
    parser.add_argument(
        "--fraction",
        type=number(SHARE),
        metavar="SHARE",
        help="take only this share of the samples, such as 0.1 or 10%%, chosen at random, in their order",
    )
    parser.add_argument("--seed", type=number(WHOLE), metavar="S", help="seed of --limit and --fraction (default: 0)")


def _lines(path: str) -> list[tuple[int, str]]:
    """Return the lines of a text file that are not empty, with their numbers from 1 on."""
    data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    if b"\0" in data:
        raise OptionError(f"{path}: is not a text file; expected one number or name on each line")
    text = data.decode("utf-8-sig", "surrogateescape")  # as Python names files whose bytes are not text
    lines = [(at, line.rstrip("\r")) for at, line in enumerate(text.split("\n"), 1)]
    return [(at, line) for at, line in lines if line.strip()]


def _numbers(path: str) -> list[int]:
    """Return the numbers of samples in a file.

    Raises:
        OptionError: A line is something else.
    """
    found = []
    for at, line in _lines(path):
        value = parse_whole(line)
        if value is None:
            raise OptionError(
                f"{path}, line {at}: {line!r:.80} is not the number of a sample. For names of sources write --names."
            )
        found.append(value)
    return found


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.conversion.subsets import subset

    indices = None if options.indices is None else _numbers(options.indices)
    names = None if options.names is None else [line for _, line in _lines(options.names)]
    done = subset(
        options.dataset,
        options.out,
        options.where,
        indices=indices,
        names=names,
        limit=options.limit,
        fraction=options.fraction,
        seed=options.seed,
        **choices(options),
    )
    return tell(done, options)
