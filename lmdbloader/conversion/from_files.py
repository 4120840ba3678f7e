"""`lmdbloader.convert`: a folder of images to one dataset."""

from __future__ import annotations

import os
import time

from lmdbloader.base.disk_errors import explain_full_disk
from lmdbloader.base.progress import WORK_SECONDS, shown_steps
from lmdbloader.conversion.destination import new_folder, refuse_inside
from lmdbloader.conversion.doubts import refuse_swapped
from lmdbloader.conversion.one_dataset import Job, announce, fill, report, report_finished
from lmdbloader.conversion.options import RunOptions, with_options
from lmdbloader.conversion.part_writers import convert_parts
from lmdbloader.conversion.plan import make_plan
from lmdbloader.conversion.provenance import describe, refuse_others
from lmdbloader.conversion.report import Report
from lmdbloader.store import check_destination, partial_folder
from lmdbloader.store.writing.publish import discard, is_just_published


@with_options(RunOptions)
def convert(src: str | os.PathLike[str] | None, out: str | os.PathLike[str], options: RunOptions) -> Report:
    """Convert a folder of images, an LMDB of image files or tar shards into one dataset.

    A conversion that was interrupted, for any reason, continues after its last transaction when it is called again with
    the same inputs and options; its progress is in OUT.partial. The number of workers and `on_error` may change.

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
        DestinationError: `out` is taken, locked, or inside the source; or another conversion is unfinished there, or
            inputs that were already converted have changed.
        DiskFullError: No room left.
        WorkerError: A worker process died.
        CorruptError: The progress of an interrupted conversion is damaged.
    """
    began = time.monotonic()
    target = new_folder(out)
    refuse_swapped(src, target)
    if options.parts is not None or options.part_size is not None:
        return convert_parts(src, target, options)
    with shown_steps(shown=options.progress, log_after=WORK_SECONDS):
        plan = make_plan(src, options)
    for folder in plan.folders:
        refuse_inside(target, folder)
    job = Job(target, plan, options, describe(plan))
    # A dataset that was put in place by a run that was killed right then need not be made once more.
    if (not options.overwrite or is_just_published(target)) and (found := report_finished(job)) is not None:
        return found
    if not options.overwrite:
        refuse_others(target, job.made_by)
    check_destination(target, overwrite=options.overwrite)
    with (
        explain_full_disk(target),
        partial_folder(target, resumable=True, take_over=options.take_over, log=options.log) as folder,
    ):
        # Another process may have finished it just before this one had the folder to itself.
        if not options.overwrite and (found := report_finished(job)) is not None:
            return found
        if options.restart:
            discard(folder)
        announce(job)
        begun, done, written = fill(job, folder)
    return report(job, begun, done, written, time.monotonic() - began)
