"""`lmdbloader.convert`: a folder of images to one dataset."""

from __future__ import annotations

import os

from lmdbloader.conversion.destination import new_folder
from lmdbloader.conversion.options import RunOptions, with_options
from lmdbloader.conversion.part_writers import convert_parts
from lmdbloader.conversion.report import Report


@with_options(RunOptions)
def convert(src: str | os.PathLike[str] | None, out: str | os.PathLike[str], options: RunOptions) -> Report:
    """Convert a folder of images, an LMDB of image files or tar shards into one dataset.

    A conversion that was interrupted, for any reason, keeps its complete parts in OUT.partial, and makes the others
    when it is called again with the same inputs and options. The number of workers and `on_error` may change. Equal
    inputs and options give equal files, also if several processes on several machines convert into the same `out`.

    Args:
        src: The folder, LMDB or tar, or a URL that fsspec reads; None with `hr` and `lr`.
        out: The dataset to make. An empty folder counts as absent. A dataset that was made from the same inputs with
            the same options is left as it is.

    Returns:
        A report of the conversion.

    Raises:
        SourceError: No folder, no images, pairs that do not match, or a damaged tar or LMDB.
        ImageError: An image cannot be used (named, with the reason).
        OptionError: An option is out of its range, or contradicts another.
        DestinationError: `out` is taken, or inside the source; or another conversion is unfinished there; or inputs
            were added, removed or resized since it began.
        DiskFullError: No room left.
        WorkerError: A worker process died.
        CorruptError: A complete part of an interrupted conversion is damaged.
    """
    return convert_parts(src, new_folder(out), options)
