"""`lmdbloader stage`: one copy of a dataset on another disk, or at a URL."""

from __future__ import annotations

import argparse
import sys

from lmdbloader.base.units import REAL
from lmdbloader.cli._numbers import number
from lmdbloader.cli._streams import say, say_error, say_nothing

ORDER = 40
HELP = "copy a dataset to another disk, once for all jobs, or upload it"
DESCRIPTION = """\
Copy a finished dataset into the folder DIR, where it keeps its name, and print
the path of the copy: onto a node's own disk before training, or to archive
storage after a conversion. The dataset may be at a URL, such as
s3://bucket/train.lmdb. The copy is compared with the dataset's digests.

A copy that is already there is reused if it has the source's manifest, and
files of its lengths; with --check, all of it is read and compared. A damaged
copy is made again. If the dataset has grown, only the new parts are copied.

If several jobs stage at once, one copies; the others wait and use its copy.
Every byte of the copy is read back and compared. It gets its name when it is
complete. The next call continues an interrupted copy with the next file.

If DIR is a URL, such as s3://bucket/train.lmdb, the dataset is uploaded: this
is the URL of the dataset itself. Its manifest is uploaded last, so that nobody
opens an incomplete one. The digests of the source are compared, and the lengths
of the copy; a later call with --check reads all of the copy back.
"""

EPILOG = """\
The path is the only line on the standard output; everything else goes to the
standard error. In a job script:

  DB=$(lmdbloader stage /shared/train.lmdb "$TMPDIR" --quiet) || exit 1
  python scripts/train_classifier.py "$DB"

Exit status: 0 the copy is there, 1 refused or failed, 2 wrong usage,
130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder, or its URL")
    parser.add_argument(
        "directory",
        metavar="DIR",
        help="the folder to copy it into, made if only its last part is missing; or the URL of the copy",
    )
    parser.add_argument(
        "--timeout",
        type=number(REAL),
        metavar="SECONDS",
        help="how long to wait for another job that is copying (default: no limit)",
    )
    parser.add_argument("--check", action="store_true", help="read and compare all of an existing copy")
    parser.add_argument("--overwrite", action="store_true", help="replace another dataset that is there")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the path or URL, and errors")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from lmdbloader.conversion.staging import stage

    path = stage(
        options.dataset,
        options.directory,
        overwrite=options.overwrite,
        check=options.check,
        timeout=options.timeout,
        progress=not options.quiet,
        log=say_nothing if options.quiet else say_error,
    )
    if sys.stdout.isatty():
        say(str(path))
    else:
        print(path)  # for a script, which wants it as it is
    return 0
