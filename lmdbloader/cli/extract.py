"""`lmdbloader extract`: the samples of a dataset as files."""

from __future__ import annotations

import argparse

from lmdbloader.base.text import counted
from lmdbloader.base.units import show_nbytes
from lmdbloader.cli._combining import names_in
from lmdbloader.cli._streams import say
from lmdbloader.errors import OptionError

ORDER = 90
HELP = "write a dataset's samples back to files"
DESCRIPTION = """\
Write a dataset's samples back to files: images that are stored as JPEG or as
their original files byte for byte, others as PNG with the same pixels (8 or 16
bits, gray or RGB), arrays as .npy, bytes as stored. A file is named after its
sample's source, with the position of a patch (0001_r00096_c00192.png), or after
its sample's number in a dataset without sources. If several fields become
files, each has a folder (hr/, lr/); class folders stay. samples.jsonl has one
line per sample: its number, source, files, and all other values. An error
leaves no half-written files behind.
"""

EPILOG = """\
WHICH: 7, -1 (the last), 0:100, -20: and 0:1000:10 as in Python, or several of
them, separated by commas: 0:10,50,90:100

examples:
  lmdbloader extract train.lmdb files/
  lmdbloader extract train.lmdb few/ --samples 0:100 --fields hr
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument("folder", metavar="DIR", help="the folder to make")
    parser.add_argument(
        "--format",
        dest="image_format",
        default="stored",
        choices=("stored", "png"),
        help="format of images: as they are stored (default), with pixels as PNG; or all as PNG, with EXIF rotation "
        "applied",
    )
    parser.add_argument("--fields", metavar="NAMES", help="names of fields, separated by commas (default: all)")
    parser.add_argument("--samples", metavar="WHICH", help="such as 0:100, see below (default: all)")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def parse_samples(text: str, length: int) -> list[int]:
    """Return the sample numbers that --samples names, in ascending order, each once.

    Raises:
        OptionError: Not of the form that the help states, or beyond the end.

    >>> parse_samples("0:3,-1,2", 10)
    [0, 1, 2, 9]
    """
    chosen: set[int] = set()
    for part in text.split(","):
        try:
            numbers = [int(piece) if piece.strip() else None for piece in part.split(":")]
            if len(numbers) == 1:
                chosen.add(range(length)[numbers[0]])  # type: ignore[index]
            else:
                chosen.update(range(length)[slice(*numbers)])
        except (ValueError, TypeError, IndexError) as error:
            raise OptionError(
                f"--samples {text!r}: {part!r} is neither the number of a sample of {length} nor a range such as 0:100"
            ) from error
    return sorted(chosen)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.base.progress import ProgressLine
    from lmdbloader.conversion.extraction import extract
    from lmdbloader.store import open_reader

    length = len(open_reader(options.dataset))
    samples = None if options.samples is None else parse_samples(options.samples, length)
    total = length if samples is None else len(samples)
    with ProgressLine("extracting", total, shown=not options.quiet) as bar:
        done = extract(
            options.dataset,
            options.folder,
            fields=names_in(options.fields),
            samples=samples,
            image_format=options.image_format,
            progress=bar.update,
        )
    if not options.quiet:
        written = f"{counted(done.num_samples, 'sample')} in {counted(done.num_files, 'file')}"
        say(f"{done.path}: {written}, {show_nbytes(done.nbytes)}")
    return 0
