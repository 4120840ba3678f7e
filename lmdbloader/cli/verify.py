"""`lmdbloader verify`: a complete check of a dataset."""

from __future__ import annotations

import argparse
import sys

from lmdbloader.cli._streams import say

ORDER = 60
HELP = "check every checksum of a dataset"
DESCRIPTION = """\
Check a dataset completely: the digest of each of its three files (a single
changed bit anywhere in them is found), LMDB's page structure, every record's
and every payload's checksum, the index against the records, and the content
digest. skipped.tsv and left_out.tsv are notes, and not checked.

Prints the problems of each file, every damaged sample by number, field and
source file, and whether `lmdbloader repair` can repair it. Nothing is changed.

Exit status: 0 sound, 1 damaged (or no dataset), 2 wrong usage.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument("--quiet", action="store_true", help="print nothing but damage")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.base.progress import ProgressBar
    from lmdbloader.store import verify

    with ProgressBar(
        total=_num_samples(options.dataset), unit=" samples", disable=options.quiet or not sys.stderr.isatty()
    ) as bar:
        found = verify(options.dataset, progress=bar.update)
    for problem in found.problems:
        say(f"{options.dataset}: {problem}")
    for damage in found.damaged:
        say(str(damage))
    if found.is_sound:
        if not options.quiet:
            say(f"{options.dataset}: sound, {found.num_samples} samples")
        return 0
    samples = len({damage.sample for damage in found.damaged})
    say(
        f"{options.dataset}: DAMAGED: {samples} of {found.num_samples} samples, "
        f"problems of the dataset as a whole: {len(found.problems)}"
    )
    say(found.advice)
    return 1


def _num_samples(path: str) -> int | None:
    """Return the number of samples in a manifest, None if it cannot be read."""
    from lmdbloader.errors import CorruptError, FormatError
    from lmdbloader.store import read_manifest

    try:
        return read_manifest(path).num_samples
    except (FormatError, CorruptError):
        return None
