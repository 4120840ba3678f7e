"""`lmdbloader verify`: a complete check of a dataset."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING

from lmdbloader.base.text import counted
from lmdbloader.cli._streams import say

if TYPE_CHECKING:
    from lmdbloader.store.damage import Damage

# A dataset on a failing disk may have a million.
_SHOWN = 20

ORDER = 60
HELP = "check every checksum of a dataset"
DESCRIPTION = """\
Check a dataset completely: the SHA-256 of each of its files (a single changed
bit anywhere in them is found), every payload's checksum, and what the manifest
states of the index. skipped.tsv, left_out.tsv and sources.json are notes, and
not checked. A sound dataset is the published one if its manifest_digest, which
`lmdbloader info` prints, equals one from a source that you trust.

Prints the problems of each file, the first 20 damaged samples by number, field
and source file (--all: every one), and whether `lmdbloader repair` can repair
it. Nothing is changed.

Exit status: 0 sound, 1 damaged (or no dataset), 2 wrong usage.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument("--all", action="store_true", help="print every damaged sample, however many there are")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, with all samples")
    parser.add_argument("--quiet", action="store_true", help="print nothing but damage")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.base.progress import ProgressLine
    from lmdbloader.store import verify

    with ProgressLine("verifying", _num_samples(options.dataset), shown=not options.quiet) as bar:
        found = verify(options.dataset, progress=bar.update)
    if options.json:
        say(json.dumps({"is_sound": found.is_sound, **asdict(found)}, allow_nan=False))
        return 0 if found.is_sound else 1
    for problem in found.problems:
        say(f"{options.dataset}: {problem}")
    samples = _by_sample(found.damaged)
    shown = samples if options.all else samples[:_SHOWN]
    for damage in chain.from_iterable(shown):
        say(str(damage))
    if len(samples) > len(shown):
        more = counted(len(samples) - len(shown), "more damaged sample")
        say(f"and {more}; --all prints {'them' if len(samples) - len(shown) > 1 else 'it'}")
    if found.is_sound:
        if not options.quiet:
            say(f"{options.dataset}: sound, {counted(found.num_samples, 'sample')}")
        return 0
    checked = f"{len(samples):,} of {counted(found.num_samples, 'sample')}" if found.num_samples else "it does not open"
    say(f"{options.dataset}: DAMAGED: {checked}, problems of the dataset as a whole: {len(found.problems)}")
    say(found.advice)
    return 1


def _by_sample(damaged: Sequence[Damage]) -> list[list[Damage]]:
    """Return the damage of each damaged sample, by number."""
    found: dict[int, list[Damage]] = {}
    for damage in damaged:
        found.setdefault(damage.sample, []).append(damage)
    return [found[sample] for sample in sorted(found)]


def _num_samples(path: str) -> int | None:
    """Return the number of samples in a manifest, None if it cannot be read."""
    from lmdbloader.errors import CorruptError, FormatError
    from lmdbloader.store import read_manifest

    try:
        return read_manifest(path).num_samples
    except (FormatError, CorruptError):
        return None
