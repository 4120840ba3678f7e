"""`lmdbloader.convert`: a folder of images to one dataset."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.base.disk_errors import explain_full_disk
from lmdbloader.base.progress import ProgressBar
from lmdbloader.base.text import mebibytes, plain, table
from lmdbloader.conversion.destination import new_folder, refuse_inside
from lmdbloader.conversion.doubts import describe_classes, refuse_swapped
from lmdbloader.conversion.journal import Begun, Journal, Progress, check_kept, read_plan, recover, write_plan
from lmdbloader.conversion.options import RunOptions, with_options
from lmdbloader.conversion.plan import Plan, make_plan, settle_scale, try_out
from lmdbloader.conversion.pool import WorkerPool, make_tasks
from lmdbloader.conversion.provenance import describe, find_finished, make_note, refuse_others
from lmdbloader.conversion.sources.listing import Listing, Sources
from lmdbloader.conversion.tasks import Part
from lmdbloader.errors import SourceError
from lmdbloader.format.codecs import name_counts
from lmdbloader.format.layout import PARTIAL_SUFFIX, SKIPPED_FILE, SOURCES_FILE, Field
from lmdbloader.store import Reader, Writer, Written, check_destination, clear_leftovers, partial_folder
from lmdbloader.store.writing.publish import empty, is_just_published

_MOST_BITS = 32
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a conversion.

    Attributes:
        path: The dataset.
        layout: The layout of the source.
        num_sources: Images or pairs in the source.
        num_samples: Samples in the dataset.
        codecs: The codec of each image field.
        sizes: Bytes: payload_nbytes (stored), raw_nbytes (decoded), data_nbytes, index_nbytes.
        map_nbytes: The map size estimated before the first write.
        map_growths: How often it was too small.
        skipped: (name, reason) of sources left out (on_error="skip").
        ignored: (name, reason) of what was left out: files that look like images but are not regular files, links to
            folders, and other files by their suffix, with their number.
        was_finished: Whether the dataset was there already, and nothing was done.
        seconds: The time of the conversion.
        stored_as: Images of all fields by storage: raw, lz4, tiles, jpeg or file.
        longest_sides: Samples by the longer side of their (high-resolution) image as stored: up to 1, 2, 4, 8 ...
            pixels.
        classes: Images in the source, or boxes, by the name of their class, in the order of the labels; empty without
            class folders or named classes of boxes.
        notes: Sentences about what the dataset does not have, although it may have been meant.
    """

    path: str
    layout: str
    num_sources: int
    num_samples: int
    codecs: Mapping[str, str]
    sizes: Mapping[str, int]
    map_nbytes: int = 0
    map_growths: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
    ignored: tuple[tuple[str, str], ...] = ()
    was_finished: bool = False
    seconds: float = 0.0
    stored_as: Mapping[str, int] = field(default_factory=dict)
    longest_sides: Mapping[int, int] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict, repr=False)  # which can be thousands
    notes: tuple[str, ...] = ()


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
    refuse_swapped(src, target, options)
    plan = make_plan(src, options)
    for folder in plan.folders:
        refuse_inside(target, folder)
    job = _Job(target, plan, options, describe(plan))
    # A dataset that was put in place by a run that was killed right then need not be made once more.
    if (not options.overwrite or is_just_published(target)) and (report := _report_finished(job)) is not None:
        return report
    if not options.overwrite:
        refuse_others(target, job.made_by)
    check_destination(target, overwrite=options.overwrite)
    with (
        explain_full_disk(target),
        partial_folder(target, resumable=True, take_over=options.take_over, log=options.log) as folder,
    ):
        # Another process may have finished it just before this one had the folder to itself.
        if not options.overwrite and (report := _report_finished(job)) is not None:
            return report
        if options.restart:
            empty(folder)
        begun, done, written = _resume(job, folder)
    return _report(job, begun, done, written, time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class _Job:
    """A conversion: its destination, plan and options, and its record in the manifest."""

    target: Path
    plan: Plan
    options: RunOptions
    made_by: dict[str, Any]


def _resume(job: _Job, folder: Path) -> tuple[Begun, Progress, Written]:
    """Convert the sources that are not done yet, in OUT.partial."""
    listing, options = job.plan.listing, job.options
    noun = "pairs" if listing.layout == "pairs" else "images"
    options.log(plain(f"{job.target}: {len(listing.sources)} {noun}, layout {listing.layout}"))
    if classes := _count_classes(listing):
        options.log(plain(describe_classes(classes, "image" if listing.sources.annotations is None else "box")))
    for note in job.plan.notes:
        options.log(plain(f"note: {note}."))
    with WorkerPool(job.plan.num_workers) as pool:
        begun = read_plan(folder, job.made_by) or _begin(job, folder, pool)
        done = recover(folder, listing.sources, check_content=options.check_content, digest=options.digest)
        if done.num_sources:
            progress = f"resuming after {done.num_sources} of {len(listing.sources)} {noun} that are done"
            options.log(plain(f"{job.target}{PARTIAL_SUFFIX}: {progress}"))
        return begun, done, _write(job, folder, begun, done, pool)


def _report(job: _Job, begun: Begun, done: Progress, written: Written, seconds: float) -> Report:
    stored_as, longest_sides = _count(begun.fields, Reader(job.target).index.arrays, written.num_samples)
    return Report(
        path=str(job.target),
        layout=job.plan.listing.layout,
        num_sources=len(job.plan.listing.sources),
        num_samples=written.num_samples,
        codecs={f.name: f.codec for f in begun.fields if f.codec},
        sizes=written.sizes,
        map_nbytes=begun.map_nbytes,
        map_growths=written.map_growths,
        skipped=tuple(done.skipped),
        ignored=job.plan.listing.ignored,
        seconds=seconds,
        stored_as=stored_as,
        longest_sides=longest_sides,
        classes=_count_classes(job.plan.listing),
        notes=job.plan.notes,
    )


def _report_finished(job: _Job) -> Report | None:
    """Return the report of a conversion that was finished already, None if it was not."""
    target, listing = job.target, job.plan.listing
    if (finished := find_finished(target, job.made_by, listing, check_content=job.options.check_content)) is None:
        return None
    clear_leftovers(target)
    codecs = {f.name: f.codec for f in finished.fields if f.codec}
    report = Report(str(target), listing.layout, len(listing.sources), finished.num_samples, codecs, finished.sizes)
    return replace(
        report,
        ignored=listing.ignored,
        was_finished=True,
        classes=_count_classes(listing),
        notes=job.plan.notes,
    )


def _count_classes(listing: Listing) -> dict[str, int]:
    """Return `Report.classes`."""
    boxes = listing.sources.annotations
    labels = listing.sources.labels if boxes is None else boxes.labels
    if labels is None or not listing.classes:
        return {}
    counts = np.bincount(labels, minlength=len(listing.classes))
    return dict(zip(listing.classes, counts.tolist(), strict=True))


def _begin(job: _Job, folder: Path, pool: WorkerPool) -> Begun:
    """Settle the fields, the scale and the map's size with a few inputs, and note them."""
    sources = job.plan.listing.sources
    recipe = settle_scale(job.plan)
    trial = try_out(recipe, sources, pool, job.plan.codec)
    data = trial.data_nbytes
    codecs = f"codec: {', '.join(trial.codecs)}"
    if data is None:
        job.options.log(f"map size: {mebibytes(trial.map_nbytes)}, from the size of the files; {codecs}")
    else:
        job.options.log(
            f"data.mdb: about {mebibytes(data.value)} ({mebibytes(data.low)} to {mebibytes(data.high)}), estimated "
            f"from {trial.num_sources} of {len(sources)} inputs; map size: {mebibytes(trial.map_nbytes)}; {codecs}"
        )
    expected = None if data is None else int(data.value)
    begun = Begun(trial.fields, recipe.options.scale, trial.map_nbytes, job.made_by, expected)
    write_plan(folder, begun)
    return begun


def _write(job: _Job, folder: Path, begun: Begun, done: Progress, pool: WorkerPool) -> Written:
    """Convert the sources that are not done into a dataset; keep `done` up to date."""
    recipe = replace(job.plan.recipe, fields=begun.fields).changed(scale=begun.scale)
    with closing(Journal(folder, done.records)) as journal:
        writer = Writer(
            folder,
            job.target,
            begun.fields,
            with_source=True,
            map_nbytes=begun.map_nbytes,
            expected_nbytes=begun.data_nbytes,
            keep_samples=done.num_samples,
            before_commit=journal.flush,
        )
        with closing(writer):
            check_kept(folder, done, writer.kept_records)
            try:
                sources = job.plan.listing.sources
                parts = pool.convert(recipe, make_tasks(sources, done.num_sources))
                _add_parts(
                    _show(parts, sources, done.num_sources, job.options.progress), sources, done, journal, writer
                )
                return _finish(job, done, writer, journal)
            except BaseException:
                if not writer.num_committed:
                    journal.discard()
                raise


def _add_parts(parts: Iterable[Part], sources: Sources, done: Progress, journal: Journal, writer: Writer) -> None:
    for part in parts:
        end = done.num_sources + part.num_sources
        added = 0 if part.chunk is None else part.chunk.num_samples
        # First, so that the journal is on the disk before a transaction that this part completes.
        journal.add(part, sources[done.num_sources : end], writer.num_samples + added)
        if part.chunk is not None:
            writer.add(part.chunk, part.blocks)
        done.num_sources = end
        done.skipped += part.skipped
        done.content.add(part.file_hashes)
        done.seen.add(part.seen)


def _finish(job: _Job, done: Progress, writer: Writer, journal: Journal) -> Written:
    if not writer.num_samples:
        raise SourceError(
            f"{job.target}: nothing to write: none of the {done.num_sources} inputs could be used; "
            f"the first: {': '.join(done.skipped[0])}"
        )
    listing = job.plan.listing
    job.made_by["inputs"]["content"] = str(done.content)
    if done.skipped:
        writer.add_file(SKIPPED_FILE, table([("name", "reason"), *done.skipped]))
    if (note := make_note(done.seen, listing)) is not None:
        writer.add_file(SOURCES_FILE, note)
    check_destination(job.target, overwrite=job.options.overwrite)  # another process may have made it meanwhile
    labels = "label" if listing.layout == "classes" else "labels"
    classes = {labels: listing.classes} if listing.classes else {}
    return writer.finish(classes=classes, made_by=job.made_by, digest=job.options.digest, close_others=journal.close)


def _show(parts: Iterable[Part], sources: Sources, first: int, progress: bool) -> Iterable[Part]:
    """Yield parts, and show images, MB/s of input and the remaining time in a bar."""
    shown = progress and sys.stderr is not None and sys.stderr.isatty()
    total_nbytes, done = int(sources.nbytes.sum()), int(sources.nbytes[:first].sum())
    before, began = done, time.monotonic()
    with ProgressBar(
        total=len(sources), initial=first, unit=" images", disable=not shown, dynamic_ncols=True, smoothing=0.1
    ) as bar:
        for part in parts:
            yield part
            done += part.nbytes
            speed = (done - before) / 1e6 / max(time.monotonic() - began, 1e-9)
            bar.set_postfix_str(f"{speed:.0f} MB/s, {done / 1e6:.0f} of {total_nbytes / 1e6:.0f} MB")
            bar.update(part.num_sources)


def _count(
    fields: Sequence[Field], columns: Mapping[str, Any], num_samples: int
) -> tuple[dict[str, int], dict[int, int]]:
    """Return `Report.stored_as` and `Report.longest_sides` of a dataset, from the columns of its index."""
    names = [f.name for f in fields if f.kind == "image"]
    codes, bits = np.zeros(256, np.int64), np.zeros(_MOST_BITS + 1, np.int64)
    for first in range(0, num_samples, _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        for name in names:
            codes += np.bincount(columns[f"{name}.codec"][rows], minlength=256)
        # Of a pair, the last field is the larger image.
        height, width = (columns[f"{names[-1]}.{side}"][rows] for side in ("height", "width"))
        longest = np.maximum(height, width).astype(np.int64)
        bits += np.bincount(np.frexp(longest - 0.5)[1], minlength=_MOST_BITS + 1)
    return (
        name_counts(codes),
        {1 << power: count for power, count in enumerate(bits.tolist()) if count},
    )
