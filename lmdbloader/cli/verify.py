"""`lmdbloader verify`: everything about a dataset, checked."""

from __future__ import annotations

import argparse
import sys
from typing import Any

_DESCRIPTION = """\
Check a dataset completely: LMDB's page structure, every record's and every
payload's checksum, the index against the records, and the content digest.
Prints every damaged sample by number and source file.

Exit status: 0 sound, 1 damaged (or no dataset), 2 wrong usage.
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "verify",
        help="check every checksum of a dataset",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument("--quiet", action="store_true", help="print nothing where all is well")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from lmdbloader.store import read_manifest, verify

    total = read_manifest(options.dataset).num_samples
    with tqdm(total=total, unit=" samples", disable=options.quiet or not sys.stderr.isatty()) as bar:
        found = verify(options.dataset, progress=bar.update)
    for problem in found.problems:
        print(f"{options.dataset}: {problem}")
    for damage in found.damaged:
        print(f"sample {damage.sample}, field {damage.field}, from {damage.source or 'no file'}: {damage.reason}")
    if found.is_sound:
        if not options.quiet:
            print(f"{options.dataset}: sound, {found.num_samples} samples")
        return 0
    samples = len({damage.sample for damage in found.damaged})
    print(
        f"{options.dataset}: DAMAGED: {samples} of {found.num_samples} samples, "
        f"{len(found.problems)} problems of the dataset as a whole"
    )
    return 1
