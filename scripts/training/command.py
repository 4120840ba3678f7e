"""Number types and exit statuses of the training commands."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

from lmdbloader.errors import LmdbloaderError, OptionError
from training.stopping import Stopping


def positive(text: str) -> int:
    """Parse a whole number above 0, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


def share(text: str) -> float:
    """Parse a finite number of at least 0, for argparse."""
    number = float(text)
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, not {text}")
    return number


def rate(text: str) -> float:
    """Parse a finite number above 0, for argparse."""
    number = share(text)
    if number == 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def check_checkpoint(checkpoint: Path | None, *, resume: bool) -> None:
    """Check where a run's checkpoint is to be, before it trains for hours.

    Raises:
        OptionError: It is there and must not be replaced, is missing, or cannot be written.
    """
    if checkpoint is None:
        return
    if checkpoint.exists() and not resume:
        raise OptionError(f"{checkpoint}: exists. Continue it with --resume, or name another file.")
    if resume and not checkpoint.exists():
        raise OptionError(f"{checkpoint}: there is no checkpoint yet. Start the run without --resume.")
    check_folder(checkpoint)


def check_folder(file: Path | None) -> None:
    """Raise OptionError unless a file can be made in its folder."""
    if file is not None and not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
        why = "cannot be written to" if file.parent.is_dir() else "is not a folder"
        raise OptionError(f"{file}: {file.parent} {why}. Make it first, or name another file.")


def exit_status(name: str, train: Callable[[Stopping], None], checkpoint: Path | None) -> int:
    """Train; return the status that the command exits with: 0 done, 1 refused or failed, 130 interrupted.

    Args:
        name: Of the command, before its messages.
        train: Does everything.
        checkpoint: With which an interrupted run can be continued, if it is there.
    """
    stopping = Stopping(can_save=checkpoint is not None)
    try:
        with stopping:
            train(stopping)
    except (LmdbloaderError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, RuntimeError) as error:
        # Of several processes the first one saves and stops; the others then miss it in their next step.
        if isinstance(error, RuntimeError) and not stopping.is_requested:
            raise
        is_kept = checkpoint is not None and checkpoint.exists()
        why = "; nothing was kept" + ("" if checkpoint else ": --checkpoint FILE keeps what a run has learned")
        hint = "; continue with --resume" if is_kept else why
        print(f"\n{name}: stopped{hint}.", file=sys.stderr)
        return 130
    return 0
