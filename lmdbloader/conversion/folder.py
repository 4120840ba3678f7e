"""`lmdbloader.convert`: a folder of images to one dataset."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lmdbloader.base.arguments import flag, function
from lmdbloader.base.disk_errors import explain_full_disk
from lmdbloader.base.progress import ProgressBar
from lmdbloader.base.text import plain, table
from lmdbloader.conversion.destination import new_folder, refuse_inside
from lmdbloader.conversion.identity import describe, find_finished, refuse_others
from lmdbloader.conversion.journal import Begun, Journal, Progress, read_plan, recover, write_plan
from lmdbloader.conversion.plan import Plan, make_plan, settle_scale
from lmdbloader.conversion.pool import WorkerPool, make_tasks
from lmdbloader.conversion.seen import make_note
from lmdbloader.conversion.sources import Layout, Listing, Sources
from lmdbloader.conversion.storage import WriteMode
from lmdbloader.conversion.tally import tally
from lmdbloader.conversion.tasks import Part, Recipe
from lmdbloader.conversion.trial import try_out
from lmdbloader.errors import CorruptError, SourceError
from lmdbloader.format.digests import DEFAULT_DIGEST, DigestName
from lmdbloader.format.layout import DATA_FILE, PARTIAL_SUFFIX, SKIPPED_FILE, SOURCES_FILE
from lmdbloader.store import Reader, Writer, Written, check_destination, clear_leftovers, partial_folder
from lmdbloader.store.writing.publish import JOURNAL_FILE, empty, is_just_published


@dataclass(frozen=True, slots=True)
class Report:
    """What a conversion did.

    Attributes:
        path: Of the dataset.
        layout: How the source folder was read.
        num_sources: Images or pairs in the source.
        num_samples: Samples in the dataset.
        codecs: The codec of each image field.
        sizes: Bytes: payload_nbytes (stored), raw_nbytes (decoded), data_nbytes, index_nbytes.
        map_nbytes: The map size estimated before the first write.
        map_growths: How often that was too small.
        skipped: (name, reason) of sources left out (on_error="skip").
        ignored: (name, reason) of what looks like an image but is no regular file.
        was_finished: Whether the dataset was there already, so that nothing was done.
        seconds: The conversion took.
        stored_as: How many images are stored how: raw, lz4, tiles, jpeg or file; those of all fields together.
        longest_sides: How many samples by the longer side of their (high-resolution) image as it is stored: up to 1, 2,
            4, 8 ... pixels.
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


def convert(
    src: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    layout: Layout | Literal["auto"] = "auto",
    hr: str | os.PathLike[str] | None = None,
    lr: str | os.PathLike[str] | None = None,
    patch_size: int | None = None,
    stride: int | None = None,
    scale: int | None = None,
    bicubic: Literal["matlab", "pillow"] = "matlab",
    alpha: Literal["refuse", "drop", "white"] = "refuse",
    max_pixels: int = 200_000_000,
    codec: str | None = None,
    write_mode: WriteMode | None = None,
    max_resolution: int | None = None,
    jpeg_quality: int | None = None,
    compress_probability: float | None = None,
    smart_threshold: int | None = None,
    digest: DigestName = DEFAULT_DIGEST,
    subset: int | None = None,
    seed: int | None = None,
    classes: Sequence[str] | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    min_pair_psnr: float = 20.0,
    workers: int | None = None,
    overwrite: bool = False,
    restart: bool = False,
    take_over: bool = False,
    check_content: bool = False,
    progress: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Report:
    """Convert a folder of images, an LMDB of image files or tar shards into one dataset.

    A conversion that was interrupted, by whatever, goes on where its last transaction ended when it is called again
    with the same inputs and options; what is done of it is kept in OUT.partial. The number of workers and `on_error`
    may be others then.

    Args:
        src: The folder, LMDB or tar, or a URL that fsspec reads; None with `hr` and `lr`.
        out: The dataset to make. An empty folder counts as absent. One that was made from the same inputs with the same
            options is left as it is.
        layout: "images", "pairs", "classes", "lmdb", "tar", or "auto" to look.
        hr: Folder or LMDB of the high-resolution images of pairs.
        lr: Folder or LMDB of their low-resolution images.
        patch_size: Cut square patches of this side (HR pixels); None stores whole images.
        stride: Distance between patches, `patch_size` by default.
        scale: Make a low-resolution field smaller by this factor; with pairs, the factor that they must have.
        bicubic: "matlab" (imresize, as in the literature) or "pillow".
        alpha: What to do with transparency: "refuse", "drop", or composite over "white".
        max_pixels: Larger images are refused before they are decoded.
        codec: Of pixels: "raw", "lz4", or "auto": lz4 where it saves 10 % of a sample of the inputs. Given without a
            write mode, all images are stored as pixels.
        write_mode: "raw" stores pixels; "jpg" encodes them as JPEG; "proportion" so many of them, drawn at random;
            "smart" those of more than `smart_threshold` bytes of pixels; "original" keeps the files' own bytes. By
            default whole JPEG files are kept as they are, and the pixels of everything else are stored.
        max_resolution: Shrink images whose longer side has more pixels than this. With "original", those that were
            JPEG files become JPEGs again, others pixels.
        jpeg_quality: Of the JPEGs that are made, 1 to 100; 90 by default. This and the next three are refused where
            they have no effect.
        compress_probability: The share of images that "proportion" makes JPEGs; 0.5 by default.
        smart_threshold: Bytes of pixels (height * width * channels) above which "smart" makes a JPEG.
        digest: The algorithm of the dataset's digests: "xxh64" (XXH64 and BLAKE2b), "sha256" or "blake3". XXH64
            finds damage; by the other two datasets of strangers can be compared too.
        subset: Convert only so many of the sources, chosen at random and kept in order.
        seed: Of `subset` and "proportion", 0 by default; what they choose depends on it and the sources' names only.
        classes: Names of the classes by label, for class folders; by default those that there are, in byte order.
        on_error: "stop" at an image that cannot be used, or "skip" it and list it in skipped.tsv.
        min_pair_psnr: Given pairs whose downscaled HR image agrees with the LR image less than this (dB) are refused,
            as are those that would agree better moved by a pixel; 0 accepts every pair.
        workers: Worker processes; by default as many as this process may use cores, fewer for a few small inputs. The
            result does not depend on it. What only this process sees, as behind memory://, it converts alone.
        overwrite: Convert anew and replace the dataset that is at `out`, once the new one is complete.
        restart: Discard what is done of a conversion that was interrupted.
        take_over: Go on with one that a process of another host began, though it seems to run: what that one is at is
            lost, and should it still run, it ends with an error. Without it the conversion is refused while the other
            gives signs of life.
        check_content: Find inputs that changed since they were converted by their content too, which reads all of them
            again; without it by size, head and tail, and by content where the time of the last change is another.
        progress: Show a progress bar on a terminal.
        log: Called with lines of text for people.

    Returns:
        What was done.

    Raises:
        SourceError: No folder, no images, pairs that do not match, or a damaged tar or LMDB.
        ImageError: An image cannot be used (named, with the reason).
        OptionError: Options that make no sense.
        DestinationError: `out` is taken, locked, or inside the source; or another conversion is unfinished there, or
            inputs that are done have changed.
        DiskFullError: No room left.
        WorkerError: A worker process died.
        CorruptError: What is done of an interrupted conversion is damaged.
    """
    began = time.monotonic()
    target = new_folder(out)
    overwrite, restart = flag("overwrite", overwrite), flag("restart", restart)
    take_over, check_content = flag("take_over", take_over), flag("check_content", check_content)
    progress, log = flag("progress", progress), function("log", log)
    plan = make_plan(
        src,
        layout=layout,
        hr=hr,
        lr=lr,
        patch_size=patch_size,
        stride=stride,
        scale=scale,
        bicubic=bicubic,
        alpha=alpha,
        max_pixels=max_pixels,
        codec=codec,
        write_mode=write_mode,
        max_resolution=max_resolution,
        jpeg_quality=jpeg_quality,
        compress_probability=compress_probability,
        smart_threshold=smart_threshold,
        digest=digest,
        subset=subset,
        seed=seed,
        classes=classes,
        on_error=on_error,
        min_pair_psnr=min_pair_psnr,
        workers=workers,
    )
    recipe, listing, codec = plan.recipe, plan.listing, plan.codec
    for folder in plan.folders:
        refuse_inside(target, folder)
    made_by = describe(recipe, listing, codec, digest=plan.digest, has_given_classes=classes is not None)
    ready = partial(_report_finished, target, made_by, listing, check_content)
    # One that was put in place by a run that was killed right then need not be made once more.
    if (not overwrite or is_just_published(target)) and (report := ready()) is not None:
        return report
    if not overwrite:
        refuse_others(target, made_by)
    check_destination(target, overwrite=overwrite)
    with explain_full_disk(target), partial_folder(target, resumable=True, take_over=take_over, log=log) as folder:
        # Another process may have finished it just before this one had the folder to itself.
        if not overwrite and (report := ready()) is not None:
            return report
        if restart:
            empty(folder)
        what = "pairs" if listing.layout == "pairs" else "images"
        log(plain(f"{target}: {len(listing.sources)} {what}, layout {listing.layout}"))
        with WorkerPool(plan.num_workers) as pool:
            begun = read_plan(folder, made_by) or _begin(folder, plan, made_by, pool, log)
            done = recover(folder, listing.sources, check_content=check_content, digest=plan.digest)
            if done.num_sources:
                name = f"{target}{PARTIAL_SUFFIX}"
                going_on = f"going on after {done.num_sources} of {len(listing.sources)} {what} that are done"
                log(plain(f"{name}: {going_on}"))
            recipe = replace(recipe, fields=begun.fields, scale=begun.scale)
            job = _Job(target, folder, recipe, listing, begun, overwrite, plan.digest)
            written = _write(job, done, pool, made_by, progress)
    index = Reader(target).index
    counts = tally(recipe.fields, index.arrays, written.num_samples)
    return Report(
        path=str(target),
        layout=listing.layout,
        num_sources=len(listing.sources),
        num_samples=written.num_samples,
        codecs={f.name: f.codec for f in recipe.fields if f.codec},
        sizes=written.sizes,
        map_nbytes=begun.map_nbytes,
        map_growths=written.map_growths,
        skipped=tuple(done.skipped),
        ignored=listing.ignored,
        seconds=time.monotonic() - began,
        stored_as=counts.stored_as,
        longest_sides=counts.longest_sides,
    )


def _report_finished(target: Path, made_by: dict[str, Any], listing: Listing, check_content: bool) -> Report | None:
    """Return the report of a conversion that was finished already, None where it was not."""
    if (finished := find_finished(target, made_by, listing, check_content=check_content)) is None:
        return None
    clear_leftovers(target)
    codecs = {f.name: f.codec for f in finished.fields if f.codec}
    report = Report(str(target), listing.layout, len(listing.sources), finished.num_samples, codecs, finished.sizes)
    return replace(report, ignored=listing.ignored, was_finished=True)


def _begin(folder: Path, plan: Plan, made_by: dict[str, Any], pool: WorkerPool, log: Callable[[str], None]) -> Begun:
    """Find out from a few inputs what is to be settled before the first is converted, and note it."""
    listing = plan.listing
    recipe = settle_scale(plan)
    trial = try_out(recipe, listing.sources, pool, plan.codec)
    log(
        f"map size: {trial.map_nbytes / 2**20:,.1f} MiB, estimated from {trial.num_sources} of "
        f"{len(listing.sources)} inputs; codec: {', '.join(trial.codecs)}"
    )
    begun = Begun(trial.fields, recipe.scale, trial.map_nbytes, made_by)
    write_plan(folder, begun)
    return begun


@dataclass(frozen=True, slots=True)
class _Job:
    """What is converted, to where."""

    target: Path
    folder: Path
    recipe: Recipe
    listing: Listing
    begun: Begun
    overwrite: bool
    digest: DigestName


def _write(job: _Job, done: Progress, pool: WorkerPool, made_by: dict[str, Any], progress: bool) -> Written:
    """Convert the sources that are not done into a dataset; keep `done` up to date."""
    with closing(Journal(job.folder, done.records)) as journal:
        writer = Writer(
            job.folder,
            job.target,
            job.recipe.fields,
            with_source=True,
            map_nbytes=job.begun.map_nbytes,
            keep_samples=done.num_samples,
            before_commit=journal.flush,
        )
        with closing(writer):
            if done.records not in (None, writer.kept_records):
                raise CorruptError(
                    f"{job.folder / DATA_FILE}: does not hold the samples that {JOURNAL_FILE} lists: one of the two "
                    "files is of another conversion. Put back the one that belongs there, or discard both with "
                    "--restart."
                )
            try:
                _add_sources(job, done, pool, journal, writer, progress)
                return _finish(job, done, made_by, writer)
            except BaseException:
                if not writer.num_committed:
                    journal.discard()
                raise


def _add_sources(job: _Job, done: Progress, pool: WorkerPool, journal: Journal, writer: Writer, progress: bool) -> None:
    sources = job.listing.sources
    parts = pool.convert(job.recipe, make_tasks(sources, done.num_sources))
    for part in _show(parts, sources, done.num_sources, progress):
        end = done.num_sources + part.num_sources
        added = 0 if part.chunk is None else part.chunk.num_samples
        # First, so that the transaction that this part may complete finds it on the disk.
        journal.add(part, sources[done.num_sources : end], writer.num_samples + added)
        if part.chunk is not None:
            writer.add(part.chunk, part.blocks)
        done.num_sources = end
        done.skipped += part.skipped
        done.content.add(part.file_hashes)
        done.seen.add(part.seen)


def _finish(job: _Job, done: Progress, made_by: dict[str, Any], writer: Writer) -> Written:
    if not writer.num_samples:
        raise SourceError(
            f"{job.target}: nothing to write: none of the {done.num_sources} inputs could be used; "
            f"the first: {': '.join(done.skipped[0])}"
        )
    made_by["inputs"]["content"] = str(done.content)
    if done.skipped:
        writer.add_file(SKIPPED_FILE, table([("name", "reason"), *done.skipped]))
    if (note := make_note(done.seen, job.listing)) is not None:
        writer.add_file(SOURCES_FILE, note)
    check_destination(job.target, overwrite=job.overwrite)  # somebody else may have made it meanwhile
    classes = {"label": job.listing.classes} if job.listing.layout == "classes" else {}
    return writer.finish(classes=classes, made_by=made_by, digest=job.digest)


def _show(parts: Iterable[Part], sources: Sources, first: int, progress: bool) -> Iterable[Part]:
    """Yield the parts from one source on while a bar shows images, MB/s of input and the time left."""
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
