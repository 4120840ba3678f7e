"""Tells where the progress of an unfinished dataset is kept, and what combines datasets shares in the command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lmdbloader.base.text import mebibytes
from lmdbloader.cli._streams import say

if TYPE_CHECKING:
    from lmdbloader.conversion import Combined


def tell_kept(out: Any, advice: str) -> None:
    """Say where the progress of an unfinished dataset is kept.

    Args:
        out: The future dataset.
        advice: What to do with it.
    """
    from lmdbloader.conversion.destination import named_folder
    from lmdbloader.store.writing.publish import begun_partial

    partial = begun_partial(named_folder(out))
    if partial is not None:
        say(f"{partial}: the progress is kept here. {advice}", error=True)


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a command that makes a dataset of others."""
    parser.add_argument("-o", "--out", required=True, metavar="OUT", help="the dataset to make")
    parser.add_argument("--fields", metavar="NAMES", help="names of the fields to copy, separated by commas")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the dataset at OUT once the new one is complete"
    )
    parser.add_argument(
        "--restart", action="store_true", help="discard the progress of an interrupted run (default: resume it)"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def names_in(text: str | None) -> list[str] | None:
    """Return the names in a list separated by commas; None for None."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def combine(make: Callable[[], Combined], options: argparse.Namespace) -> int:
    """Make a dataset of others, and print what was made; return the exit status."""
    from lmdbloader.errors import CorruptError, DestinationError, LmdbloaderError

    try:
        done = make()
    except DestinationError:
        raise  # its message has its own advice
    except CorruptError:
        tell_kept(options.out, "--restart discards it and starts again.")
        raise
    except (LmdbloaderError, OSError, MemoryError, KeyboardInterrupt):
        tell_kept(options.out, "The same command resumes it; --restart starts again.")
        raise
    if options.quiet:
        return 0
    if done.was_finished:
        say(f"{done.path}: already made of the same samples ({done.num_samples:,}); nothing to do")
        return 0
    nbytes = done.sizes["payload_nbytes"]
    speed = nbytes / 1e6 / max(done.seconds, 1e-9)
    say(f"{done.path}: {done.num_samples:,} samples, {mebibytes(nbytes)} in {done.seconds:.1f} s ({speed:.0f} MB/s)")
    return 0
