"""Demonstrates super-resolution and classification, from photographs to a trained model, in a few minutes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from demos import classification, superres

from lmdbloader.errors import LmdbloaderError, OptionError

# Marks an output folder that the demo may overwrite.
MARKER = "made-by-demo"
MAX_CLASSES = 10
PARTS = ("superres", "classification")


def prepare_output(output: Path) -> None:
    """Make the output folder, or take over one from an earlier run.

    Raises:
        OptionError: It holds something else.
    """
    if output.exists() and (not output.is_dir() or (any(output.iterdir()) and not (output / MARKER).exists())):
        raise OptionError(f"{output}: exists and is not from an earlier demo; choose another folder with --output.")
    output.mkdir(parents=True, exist_ok=True)
    (output / MARKER).touch()


def run(options: argparse.Namespace) -> list[str]:
    """Run the chosen parts; returns the complaints about their results."""
    complaints = []
    if options.only != "classification":
        print("Super-resolution")
        if not superres.run(options.images, options.output, options.seconds):
            longer = f"{2 * options.seconds:.0f}"
            complaints.append(
                f"SRCNN is not better than bicubic after {options.seconds:.0f} s; try --seconds {longer}."
            )
    if options.only != "superres":
        print("Classification")
        photographs = None
        if options.images is not None:
            training, held_out = superres.find_photographs(options.images, options.output)
            photographs = superres.evenly([*training, *held_out], MAX_CLASSES)
        if not classification.run(photographs, options.output):
            complaints.append("the classifier is not better than chance.")
    return complaints


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="your photographs, a tenth is held out (default: scikit-image's)"
    )
    parser.add_argument("--output", type=Path, default=Path("demo_output"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=60.0, help="time to train SRCNN (default: 60)")
    parser.add_argument("--only", choices=PARTS, help="one of the two (default: both)")
    options = parser.parse_args(argv)
    if not 0 < options.seconds < 1e6:
        parser.error(f"argument --seconds: must be a number above 0, not {options.seconds}")
    if options.images is not None and not options.images.is_dir():
        parser.error(f"argument --images: {options.images} is not a folder")
    try:
        prepare_output(options.output)
        complaints = run(options)
    except (LmdbloaderError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: stopped.", file=sys.stderr)
        return 130
    for complaint in complaints:
        print(f"demo: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
