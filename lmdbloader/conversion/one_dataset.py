"""Converts the sources of a plan into one dataset, in its locked folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from lmdbloader.base.free_space import free_nbytes, taken_nbytes
from lmdbloader.base.option_names import option
from lmdbloader.base.progress import WORK_SECONDS, ProgressLine, shown_steps
from lmdbloader.base.text import command, counted, plain, table
from lmdbloader.base.units import show_nbytes
from lmdbloader.conversion.journal import Begun, Journal, Progress, check_kept, read_plan, recover, write_plan
from lmdbloader.conversion.mask_numbers import add_colors
from lmdbloader.conversion.options import RunOptions
from lmdbloader.conversion.plan import Plan, Trial, settle_scale, try_out
from lmdbloader.conversion.pool import WorkerPool, make_tasks
from lmdbloader.conversion.provenance import ContentHash, find_finished, make_note
from lmdbloader.conversion.report import Report, count_classes, count_images, describe_classes
from lmdbloader.conversion.sources.listing import Sources
from lmdbloader.conversion.tasks import FURTHER_IMAGES, TURNED_BOXES, Part
from lmdbloader.errors import DiskFullError, ImageError, SourceError
from lmdbloader.format.layout import DATA_FILE, PARTIAL_SUFFIX, SKIPPED_FILE, SOURCES_FILE
from lmdbloader.store import Reader, Writer, Written, check_destination, clear_leftovers

#: Called with the number of sources that were just converted, and the bytes of their files.
Advance: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Job:
    """A conversion: its destination, plan and options, and its record in the manifest.

    Attributes:
        target: The dataset to make.
        plan: The sources, and how they are converted.
        options: As given.
        made_by: From `provenance.describe`.
        keep: For a part of a set: called with the progress and the number of samples before the dataset is put in
            place. A part without samples is not written. None for other datasets.
    """

    target: Path
    plan: Plan
    options: RunOptions
    made_by: dict[str, Any]
    keep: Callable[[Progress, int], None] | None = None


def announce(job: Job) -> None:
    """Log what will be converted: how many inputs, their classes, and what is missing."""
    listing, log = job.plan.listing, job.options.log
    log(plain(f"{job.target}: {_counted(len(listing.sources), job)}, layout {listing.layout}"))
    if classes := count_classes(listing):
        log(plain(describe_classes(classes)))
    for note in job.plan.notes:
        log(plain(f"note: {note}."))


def _counted(number: int, job: Job) -> str:
    return counted(number, "pair" if job.plan.listing.layout == "pairs" else "image")


def decide(job: Job, pool: WorkerPool) -> tuple[Begun, Trial]:
    """Settle the fields, the scale and the map size, by converting a few inputs."""
    recipe = settle_scale(job.plan)
    trial = try_out(recipe, job.plan.listing.sources, pool, job.plan.codec)
    data = trial.data_nbytes
    sizes = (None, None) if data is None else (int(data.value), int(data.low))
    return Begun(trial.fields, recipe.options.scale, trial.map_nbytes, job.made_by, *sizes), trial


def describe_trial(trial: Trial, num_sources: int) -> str:
    """Return the sizes and codecs that were estimated from a few inputs, as a line of text."""
    data = trial.data_nbytes
    codecs = f"codec: {', '.join(trial.codecs)}"
    if data is None:
        return f"map size: {show_nbytes(trial.map_nbytes)}, from the size of the files; {codecs}"
    return (
        f"data.mdb: about {show_nbytes(data.value)} ({show_nbytes(data.low)} to {show_nbytes(data.high)}), estimated "
        f"from {trial.num_sources} of {counted(num_sources, 'input')}; map size: {show_nbytes(trial.map_nbytes)}; "
        f"{codecs}"
    )


def check_room(folder: Path, begun: Begun, files: Iterable[Path]) -> None:
    """Raise DiskFullError if a disk surely has no room for the data that is still to be written.

    Args:
        folder: On the disk.
        begun: The decisions, with the estimated size.
        files: The data files that are there. What they take is either kept, or given back before it is written again.
    """
    free = free_nbytes(folder)
    if begun.data_nbytes is None or begun.least_nbytes is None or free is None:
        return
    taken = sum(map(taken_nbytes, files))
    least, expected = begun.least_nbytes - taken, begun.data_nbytes - taken
    if least > free:
        raise DiskFullError(
            f"{folder}: at least {show_nbytes(least)}, probably {show_nbytes(expected)}, are still to be written, "
            f"estimated from a few inputs, and {show_nbytes(free)} are free: at least {show_nbytes(least - free)} are "
            "missing. Free some space, or choose another disk. `lmdbloader estimate` says how much other options would "
            "take."
        )


def fill(job: Job, folder: Path) -> tuple[Begun, Progress, Written]:
    """Convert the sources that are not done yet, in the locked folder of the dataset, and put it in place.

    Args:
        job: The conversion.
        folder: From `partial_folder`.

    Returns:
        The decisions, the progress, and facts about the dataset.
    """
    sources, options = job.plan.listing.sources, job.options
    with WorkerPool(job.plan.num_workers) as pool:
        begun = read_plan(folder, job.made_by)
        if begun is None:
            with shown_steps(shown=options.progress, log_after=WORK_SECONDS):
                begun, trial = decide(job, pool)
            options.log(describe_trial(trial, len(sources)))
            write_plan(folder, begun)
        done = recover(folder, sources, check_content=options.check_content, digest=options.digest)
        check_room(folder, begun, [folder / DATA_FILE])
        if done.num_sources:
            progress = f"resuming after {done.num_sources} of {_counted(len(sources), job)} that are done"
            options.log(plain(f"{job.target}{PARTIAL_SUFFIX}: {progress}"))
        with closing(Journal(folder, done.records)) as journal:
            return begun, done, _write(job, folder, begun, done, pool, lambda num_sources, nbytes: None, journal)


def fill_part(job: Job, folder: Path, begun: Begun, advance: Advance) -> tuple[Progress, Written]:
    """Convert all sources of a part of a set, in the locked, empty folder of the part, and put it in place.

    There is no journal: a part that is interrupted begins again, so that its bytes do not depend on interruptions.

    Args:
        job: The conversion.
        folder: From `partial_folder`.
        begun: The decisions.
        advance: Called as the conversion goes on.

    Returns:
        The progress, and facts about the dataset. If it has no samples, no dataset was made.
    """
    done = Progress(content=ContentHash(job.options.digest, keep=True))
    with WorkerPool(job.plan.num_workers) as pool:
        return done, _write(job, folder, begun, done, pool, advance, None)


def _write(
    job: Job,
    folder: Path,
    begun: Begun,
    done: Progress,
    pool: WorkerPool,
    advance: Advance,
    journal: Journal | None,
) -> Written:
    """Convert the sources that are not done into a dataset; keep `done` up to date."""
    recipe = replace(job.plan.recipe, fields=begun.fields).changed(scale=begun.scale)
    sources = job.plan.listing.sources
    writer = Writer(
        folder,
        job.target,
        begun.fields,
        with_source=True,
        map_nbytes=begun.map_nbytes,
        expected_nbytes=begun.data_nbytes,
        keep_samples=done.num_samples,
        before_commit=(lambda: None) if journal is None else journal.flush,
    )
    with closing(writer):
        check_kept(folder, done, writer.kept_records)
        try:
            with show_progress(done.num_sources, len(sources), job.options.progress) as show:
                for part in pool.convert(recipe, make_tasks(sources, done.num_sources)):
                    _add(part, sources, done, journal, writer)
                    show(part.num_sources, part.nbytes)
                    advance(part.num_sources, part.nbytes)
            return _finish(job, done, writer, journal)
        except BaseException as error:
            if journal is not None and not writer.num_committed:
                journal.discard()
            if isinstance(error, ImageError):
                raise _with_remedy(error) from error
            raise


def _with_remedy(error: ImageError) -> ImageError:
    """Return the error of an image that stops a conversion, with the option that leaves such images out.

    Workers do not add it: in the list of skipped images it would be wrong, and only this process knows flags.
    """
    skip = option("on_error", "skip")
    if skip in error.reason or "on_error" in error.reason:
        return error
    return ImageError(error.name, f"{error.reason.rstrip('.')}. To leave such images out: {skip}")


def _add(part: Part, sources: Sources, done: Progress, journal: Journal | None, writer: Writer) -> None:
    end = done.num_sources + part.num_sources
    added = 0 if part.chunk is None else part.chunk.num_samples
    # First, so that the journal is on the disk before a transaction that this part completes.
    if journal is not None:
        journal.add(part, sources[done.num_sources : end], writer.num_samples + added)
    if part.chunk is not None:
        writer.add(part.chunk, part.blocks)
    add_colors(done.colors, part.colors)
    done.num_sources = end
    done.skipped += part.skipped
    done.add_doubts(part.doubts)
    done.content.add(part.file_hashes)
    done.seen.add(part.seen)


def _finish(job: Job, done: Progress, writer: Writer, journal: Journal | None) -> Written:
    if job.keep is not None:
        job.keep(done, writer.num_samples)
    if not writer.num_samples:
        if job.keep is not None:
            return Written(0, {}, 0, "")
        raise nothing_to_write(job.target, done)
    listing = job.plan.listing
    job.made_by["inputs"]["content"] = str(done.content)
    if done.skipped:
        writer.add_file(SKIPPED_FILE, skipped_table(done.skipped))
    if (note := make_note(done.seen, listing)) is not None:
        writer.add_file(SOURCES_FILE, note)
    check_destination(job.target, overwrite=job.options.overwrite)  # another process may have made it meanwhile
    return writer.finish(
        classes=name_classes(listing.layout, listing.classes),
        made_by=job.made_by,
        digest=job.options.digest,
        close_others=(lambda: None) if journal is None else journal.close,
    )


def nothing_to_write(target: Path, done: Progress) -> SourceError:
    """Return the error for a conversion of inputs none of which can be used."""
    none = f"none of the {done.num_sources:,} inputs could be used"
    if done.num_sources == 1:
        none = "the only input could not be used"
    return SourceError(f"{target}: nothing to write: {none}; the first: {': '.join(done.skipped[0])}")


def skipped_table(skipped: Iterable[tuple[str, str]]) -> bytes:
    """Return the content of the list of the inputs that were left out."""
    return table([("name", "reason"), *skipped])


def notes_on_doubts(target: Path, doubts: Mapping[str, tuple[int, str]]) -> tuple[str, ...]:
    """Return notes about images that may have been meant otherwise.

    Args:
        target: The dataset.
        doubts: As in `Progress`.
    """
    look = command("preview", target, "-o", "sheet.png")
    notes = []
    for kind, (count, first) in sorted(doubts.items()):
        those = first if count == 1 else f"{count:,} images, such as {first},"
        if kind == FURTHER_IMAGES:
            other = "is followed by others in its file" if count == 1 else "are followed by others in their files"
            notes.append(f"{those} {other}, such as a preview or a gain map, which are not stored")
            continue
        turned = "are turned by their EXIF or XMP data, and their"
        if count == 1:
            turned = "is turned by its EXIF or XMP data, and its"
        if kind == TURNED_BOXES:
            kept, drawn = "boxes are stored as they are", "Boxes that were drawn on the unturned image do"
        else:
            kept = "mask is stored as it is" if count == 1 else "masks are stored as they are"
            drawn = "A mask that was drawn on the unturned image does"
        notes.append(f"{those} {turned} {kept}. {drawn} not fit. Look at them: {look}")
    return tuple(notes)


def name_classes(layout: str, classes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the classes of a manifest, by the field of their labels."""
    return {"label" if layout == "classes" else "labels": classes} if classes else {}


@contextmanager
def show_progress(first: int, total: int, shown: bool) -> Iterator[Advance]:
    """Show how many images are converted; yield the function that counts more.

    Args:
        first: The number of sources that are done.
        total: That of all of them.
        shown: Whether to show anything.
    """
    with ProgressLine("converting", total, "images", shown=shown, first=first) as line:
        yield lambda num_sources, nbytes: line.update(num_sources)


def report(job: Job, begun: Begun, done: Progress, written: Written, seconds: float) -> Report:
    """Return the report of a dataset that was just made."""
    stored_as, longest_sides = count_images(begun.fields, Reader(job.target).index.arrays, written.num_samples)
    doubts = notes_on_doubts(job.target, done.doubts)
    for note in doubts:
        job.options.log(plain(f"note: {note}."))
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
        classes=count_classes(job.plan.listing),
        notes=job.plan.notes + doubts,
        source_nbytes=int(job.plan.listing.sources.nbytes.sum()),
    )


def report_finished(job: Job) -> Report | None:
    """Return the report of a conversion that was finished already; None if it was not."""
    target, listing = job.target, job.plan.listing
    if (finished := find_finished(target, job.made_by, listing, check_content=job.options.check_content)) is None:
        return None
    clear_leftovers(target)
    codecs = {f.name: f.codec for f in finished.fields if f.codec}
    found = Report(str(target), listing.layout, len(listing.sources), finished.num_samples, codecs, finished.sizes)
    return replace(
        found,
        ignored=listing.ignored,
        was_finished=True,
        classes=count_classes(listing),
        notes=job.plan.notes,
    )
