"""Converts in parts, for any engine: saves the plan once, makes one part in any process, and joins all parts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader import __version__
from lmdbloader.base import system
from lmdbloader.base.arguments import flag, whole
from lmdbloader.base.disk_errors import explain_full_disk, naming
from lmdbloader.base.option_names import option
from lmdbloader.base.progress import WORK_SECONDS, shown_steps
from lmdbloader.base.text import counted, first_of, plain
from lmdbloader.conversion.destination import new_folder, refuse_inside
from lmdbloader.conversion.doubts import refuse_swapped
from lmdbloader.conversion.journal import Begun, Progress, other_options, read_plan
from lmdbloader.conversion.one_dataset import (
    Advance,
    Job,
    announce,
    decide,
    describe_trial,
    fill_part,
    name_classes,
    notes_on_doubts,
    nothing_to_write,
    report_finished,
    skipped_table,
)
from lmdbloader.conversion.options import ConvertOptions, RunOptions, checked, shared, with_options
from lmdbloader.conversion.plan import Plan, make_plan
from lmdbloader.conversion.pool import WorkerPool, choose_workers
from lmdbloader.conversion.provenance import (
    APPENDED,
    ContentHash,
    are_unchanged,
    describe,
    differences_of,
    note_of,
    refuse_others,
)
from lmdbloader.conversion.report import Report, count_images
from lmdbloader.conversion.shares import (
    Notes,
    Shared,
    changed_holders,
    choose_bounds,
    holds_shares,
    load,
    load_listing,
    load_notes,
    save,
    save_notes,
)
from lmdbloader.conversion.sources.listing import Source, Sources, Span, is_url
from lmdbloader.conversion.sources.remote import locate
from lmdbloader.conversion.tasks import Recipe
from lmdbloader.errors import CorruptError, DestinationError, FormatError, LockedError, NotFoundError, OptionError
from lmdbloader.format.layout import MANIFEST_FILE, SHARES_FOLDER, SKIPPED_FILE, SOURCES_FILE, part_name
from lmdbloader.format.manifest import Manifest
from lmdbloader.store import (
    Reader,
    Written,
    check_destination,
    clear_leftovers,
    is_dataset,
    open_reader,
    partial_folder,
    put_in_place,
    read_manifest,
)
from lmdbloader.store.writing.publish import (
    discard,
    empty,
    flush,
    is_begun,
    is_just_published,
    partial_of,
    remove_begun_parts,
)
from lmdbloader.store.writing.sets import write_set

# How often a process looks for a plan that another one is making.
_LOOK_SECONDS = 1.0
_PLACES = ("hr", "lr", "masks", "annotations")
# A file that says that all parts are complete, and that a join renames them to close the gaps of empty ones.
_NUMBERED_FILE = "numbered"


@dataclass(frozen=True, slots=True)
class PartsPlan:
    """The plan of a set, as far as engines need it.

    Attributes:
        path: The set, OUT.
        num_parts: The number of parts, which are numbered from 0.
        num_sources: The number of images or pairs in all parts.
        bounds: Part i has the sources bounds[i] : bounds[i + 1].
        nbytes: Bytes of the inputs of each part.
        is_finished: Whether the set is complete already, so that there is nothing to do.
        in_process: Whether only this process can see the inputs, as with memory://.
    """

    path: str
    num_parts: int
    num_sources: int
    bounds: tuple[int, ...]
    nbytes: tuple[int, ...]
    is_finished: bool = False
    in_process: bool = False


@dataclass(frozen=True, slots=True)
class ConvertedPart:
    """A part that is complete.

    Attributes:
        number: Its number, from 0.
        num_sources: Its images or pairs.
        num_samples: Its samples; 0 if none of its inputs could be used. In a set that is in place, the parts that have
            samples may have other numbers: then this and `num_sources` are 0.
        was_finished: Whether it was complete already, and nothing was done.
        map_growths: How often the map size was too small.
        seconds: The time of this call.
        skipped: (name, reason) of sources left out (on_error="skip").
    """

    number: int
    num_sources: int
    num_samples: int
    was_finished: bool = False
    map_growths: int = 0
    seconds: float = 0.0
    skipped: tuple[tuple[str, str], ...] = ()


@with_options(RunOptions)
def plan_parts(src: str | os.PathLike[str] | None, out: str | os.PathLike[str], options: RunOptions) -> PartsPlan:
    """Plan a conversion in parts: list the inputs, and choose codecs, scale, classes and the share of each part.

    The plan is saved in OUT.partial. Then `convert_part` makes each part, in any order, in any process of any machine
    that sees the inputs and OUT, and `join` makes the set of them. An existing plan of the same inputs with the same
    options is kept.

    Args:
        src: As in `convert`.
        out: The set to make, which every machine must see. A relative path is relative to the working folder of each
            process.

    Returns:
        The plan.

    Raises:
        SourceError, ImageError: As by `convert`.
        OptionError: Neither `parts` nor `part_size` is given, or both are; there are more parts than inputs; or an
            option is out of its range, or contradicts another.
        DestinationError: `out` is taken, locked, or inside the source; another conversion is unfinished there; or the
            inputs have changed since they were planned.
        DiskFullError: No room left.
    """
    return _short(new_folder(out), prepare(src, new_folder(out), options, lists_again=True))


@with_options(RunOptions)
def saved_plan(src: str | os.PathLike[str] | None, out: str | os.PathLike[str], options: RunOptions) -> PartsPlan:
    """Return the saved plan without listing the inputs again; make it as `plan_parts` does if there is none.

    While another process makes it, this one waits. If it was made with `part_size`, `parts` may be given instead.

    Args:
        src: As in `convert`.
        out: The set to make.

    Returns:
        The plan.

    Raises:
        LmdbloaderError: As by `plan_parts`.
    """
    if options.restart:
        raise OptionError(
            f"{option('restart', True)} discards all parts. Plan again with it, then convert each part without it."
        )
    return _short(new_folder(out), prepare(src, new_folder(out), options, lists_again=False))


def _short(target: Path, found: Shared | Report) -> PartsPlan:
    if isinstance(found, Shared):
        numbers = found.num_parts, found.num_sources, found.bounds, found.nbytes
        return PartsPlan(str(target), *numbers, in_process=found.listing.in_process)
    manifest = read_manifest(target)
    num_parts = _num_planned(manifest) or len(manifest.parts)
    return PartsPlan(str(target), num_parts, found.num_sources, (), (), is_finished=True)


def _num_planned(manifest: Manifest) -> int | None:
    """Return how many parts were planned of a set that is in place, which may have fewer; None if nothing states it."""
    number = manifest.made_by.get("options", {}).get("parts")
    return number if isinstance(number, int) else None


def prepare(src: Any, target: Path, options: RunOptions, *, lists_again: bool) -> Shared | Report:
    """Return the plan of a set, which is made if there is none; or the report if the set is complete.

    Args:
        src: As in `convert`.
        target: The set.
        options: The options, checked.
        lists_again: Compare the inputs with those of an existing plan, and do not wait for another process.

    Raises:
        LmdbloaderError: As by `plan_parts`.
    """
    if (options.parts is None) == (options.part_size is None):
        raise OptionError(f"expected one of {option('parts')} and {option('part_size')}")
    refuse_swapped(src, target)
    src, options = _absolute(src, options)
    asked = _asked(src, options)
    if not lists_again and holds_shares(partial_of(target)):
        return _compared(partial_of(target), asked)
    job = None
    if is_dataset(target):
        job = _list(src, target, options)
        # A set that was put in place by a run that was killed right then need not be made once more, nor one of which a
        # part is asked for that was made already.
        may_stay = not options.overwrite or not lists_again or is_just_published(target)
        if may_stay and (found := _finished_set(job, lists_again)) is not None:
            return found
        if not options.overwrite:
            refuse_others(target, job.made_by)
    check_destination(target, overwrite=options.overwrite)
    was_told = False
    while True:
        if not lists_again and holds_shares(partial_of(target)):
            return _compared(partial_of(target), asked)
        try:
            with (
                explain_full_disk(target),
                partial_folder(target, resumable=True, take_over=options.take_over, log=options.log) as folder,
            ):
                return _prepare_in(folder, target, src, options, asked, job)
        except LockedError as error:
            if lists_again:
                raise
            if not was_told:
                options.log(plain(f"waiting for the plan: {error}"))
                was_told = True
            time.sleep(_LOOK_SECONDS)


def _prepare_in(
    folder: Path, target: Path, src: Any, options: RunOptions, asked: dict[str, Any], job: Job | None
) -> Shared | Report:
    """Return the plan in the locked folder, which is made if there is none."""
    job = job or _list(src, target, options)
    if options.restart:
        discard(folder)
    # Another process may have finished it just before this one had the folder to itself.
    if not options.overwrite and (found := report_finished(job)) is not None:
        return found
    if not is_begun(folder):
        empty(folder)
        return _plan(folder, job, asked)
    if not holds_shares(folder):
        read_plan(folder, job.made_by)  # refuses it: a conversion to one file records no parts
    saved = _compared(folder, asked)
    if saved.begun.made_by["inputs"] != job.made_by["inputs"]:
        raise DestinationError(
            f"{partial_of(target)}: the inputs have changed since the parts were planned: "
            f"{saved.num_sources} then, {len(job.plan.listing.sources)} now, or other names, sizes or boxes. Put them "
            f"back as they were, or discard all parts with {option('restart', True)}."
        )
    done = sum(is_dataset(folder / part_name(number)) for number in range(saved.num_parts))
    of = f"{done} of {counted(saved.num_parts, 'part is', 'parts are')} complete"
    options.log(plain(f"{partial_of(target)}: resuming: {of}"))
    return saved


def _finished_set(job: Job, lists_again: bool) -> Report | None:
    """Return the report of a set that is in place, None if it is another one."""
    if (found := report_finished(job)) is not None or lists_again:
        return found
    # `on_error` may differ between parts, and the set has "skip" if one of them had.
    others = {**job.made_by["options"], "on_error": "stop" if job.options.on_error == "skip" else "skip"}
    return report_finished(replace(job, made_by={**job.made_by, "options": others}))


def _list(src: Any, target: Path, options: RunOptions) -> Job:
    with shown_steps(shown=options.progress, log_after=WORK_SECONDS):
        plan = make_plan(src, options)
    for folder in plan.folders:
        refuse_inside(target, folder)
    return Job(target, plan, options, describe(plan))


def _plan(folder: Path, job: Job, asked: dict[str, Any]) -> Shared:
    """Make the plan, and save it."""
    options, sources = job.options, job.plan.listing.sources
    announce(job)
    if options.parts is not None and options.parts > len(sources):
        raise OptionError(
            f"{option('parts', options.parts)} of {counted(len(sources), 'input', 'inputs')}: no part may be empty, so "
            f"expected 1 to {len(sources)}"
        )
    # These workers end with the trial, which reads about 5 % of the inputs.
    num_workers = min(job.plan.num_workers, choose_workers(None, int(sources.nbytes.sum()) // 20))
    with WorkerPool(num_workers) as pool, shown_steps(shown=options.progress, log_after=WORK_SECONDS):
        begun, trial = decide(job, pool)
    options.log(describe_trial(trial, len(sources)))
    num_parts = options.parts
    if num_parts is None:
        expected = begun.data_nbytes or int(sources.nbytes.sum())
        num_parts = min(-(-expected // (options.part_size or 1)), len(sources), 100_000) or 1
    save(folder, job.plan, begun, asked, options.overwrite, choose_bounds(sources.nbytes, num_parts))
    options.log(plain(f"{job.target}: {counted(num_parts, 'part')}"))
    return load(folder)


def _absolute(src: Any, options: RunOptions) -> tuple[Any, RunOptions]:
    """Return the source and the options with absolute paths, for processes in other folders."""
    given = {name: getattr(options, name) for name in _PLACES}
    places: dict[str, Any] = {
        name: None if path is None else _fixed(locate(path, name)) for name, path in given.items()
    }
    return None if src is None else _fixed(locate(src, "source")), replace(options, **places)


def _fixed(place: Path | str) -> str:
    return place if isinstance(place, str) else os.path.abspath(place)


def _asked(src: Any, options: RunOptions) -> dict[str, Any]:
    """Return the source and the options on which a plan depends, with values as in JSON."""
    asked = {f.name: getattr(options, f.name) for f in fields(ConvertOptions) if f.name not in ("workers", "on_error")}
    classes = None if options.classes is None else list(options.classes)
    return {**asked, "src": src, "classes": classes, "parts": options.parts, "part_size": options.part_size}


def _compared(folder: Path, asked: Mapping[str, Any]) -> Shared:
    """Return the plan in a folder.

    Raises:
        DestinationError: It was made with other options or by another release, or is damaged.
    """
    saved = load(folder)
    # Once parts of some size are planned, their number is known.
    follows = asked["part_size"] is None and saved.asked["part_size"] is not None
    aside = {"parts", "part_size"} if follows and asked["parts"] == saved.num_parts else set()
    differences = differences_of(saved.asked, asked, aside | {"src"})
    if saved.asked["src"] != asked["src"]:
        differences.append(f"{option('src')} {saved.asked['src']}, now {asked['src']}")
    if differences:
        raise other_options(folder, differences)
    _check_release(folder, saved)
    return saved


def _check_release(folder: Path, saved: Shared) -> None:
    if (maker := saved.begun.made_by["lmdbloader"]) != __version__:
        raise DestinationError(
            f"{folder}: the parts were planned by lmdbloader {maker}, and this is {__version__}. Use that release for "
            f"all parts, or plan again with {option('restart', True)}."
        )


def convert_part(
    out: str | os.PathLike[str],
    number: int,
    *,
    workers: int | None = 1,
    on_error: str | None = None,
    take_over: bool = False,
    check_content: bool = False,
    progress: bool = False,
    advance: Advance = lambda num_sources, nbytes: None,
    log: Callable[[str], None] = lambda line: None,
) -> ConvertedPart:
    """Make one part of a planned set, unless it is complete already.

    A part that was interrupted begins again from its first sample, so its files do not depend on interruptions.

    Args:
        out: The set.
        number: The number of the part, from 0.
        workers: Worker processes, as in `convert`; 1 converts in this process.
        on_error: "stop" or "skip", as in `convert`; by default that of the plan.
        take_over: As in `convert`.
        check_content: As in `convert`.
        progress: As in `convert`.
        advance: Called with the number of sources that were just converted and the bytes of their files, after each
            MiB or so. An error that it raises stops the conversion of this part.
        log: As in `convert`.

    Returns:
        Facts about the part.

    Raises:
        NotFoundError: There is no plan of a set at `out`.
        OptionError: The set has no part of this number.
        LockedError: Another process is making this part.
        DestinationError: The inputs have changed since they were listed, or since the part was made; or another release
            made the plan.
        LmdbloaderError: As by `convert`.
    """
    began = time.monotonic()
    target = new_folder(out)
    folder = partial_of(target)
    number = whole("number", number, 0)
    if not holds_shares(folder):
        return _published_part(target, number)
    saved = load(folder)
    _check_release(folder, saved)
    _refuse_number(number, target, saved.num_parts)
    run: dict[str, Any] = {"take_over": take_over, "check_content": check_content, "progress": progress, "log": log}
    options = checked(RunOptions(**_given(saved, on_error), workers=workers, **run))
    made = _make_part(folder, saved, number, options, advance)
    return replace(made, seconds=time.monotonic() - began)


def _make_part(folder: Path, saved: Shared, number: int, options: RunOptions, advance: Advance) -> ConvertedPart:
    """Make one part, unless it is complete already."""
    if _is_numbered(folder):
        return _joined_part(folder, saved, number)
    job = _job_of(folder, saved, number, options)
    if (found := _finished_part(job, folder, number)) is not None:
        return found
    with (
        explain_full_disk(job.target),
        partial_folder(job.target, take_over=options.take_over, log=options.log) as room,
    ):
        # Another process may have finished it just before this one had the folder to itself.
        if (found := _finished_part(job, folder, number)) is not None:
            return found
        _refuse_changed(folder, saved, job.plan.listing.sources)
        done, written = fill_part(job, room, _share(job, saved, number), advance)
    return ConvertedPart(
        number, done.num_sources, written.num_samples, map_growths=written.map_growths, skipped=tuple(done.skipped)
    )


def _joined_part(folder: Path, saved: Shared, number: int) -> ConvertedPart:
    """Return a part that is complete, and may have another name: a join was interrupted, which numbered parts again."""
    notes = load_notes(folder, number)
    num_samples, skipped = (0, ()) if notes is None else (notes.num_samples, notes.skipped)
    num_sources = saved.bounds[number + 1] - saved.bounds[number]
    return ConvertedPart(number, num_sources, num_samples, was_finished=True, skipped=skipped)


def _published_part(target: Path, number: int) -> ConvertedPart:
    """Return a part of a set that is in place."""
    if not (is_dataset(target) and (target / part_name(0)).is_dir()):
        raise NotFoundError(f"{partial_of(target)}: no conversion in parts is planned there. {_how_to_plan(target)}")
    manifest = read_manifest(target)
    planned, there = _num_planned(manifest), len(manifest.parts)
    may_lack_parts = manifest.made_by.get("options", {}).get("on_error") == "skip"
    if planned is not None or not may_lack_parts:
        _refuse_number(number, target, planned or there)
    # Parts without samples are not in the set, and the others were numbered again; appended ones are of no conversion.
    if may_lack_parts and (planned != there or APPENDED in manifest.made_by):
        return ConvertedPart(number, 0, 0, was_finished=True)
    part = read_manifest(target / part_name(number))
    num_sources = part.made_by.get("inputs", {}).get("num_sources", 0)
    return ConvertedPart(number, num_sources, part.num_samples, was_finished=True)


def _refuse_number(number: int, target: Path, num_parts: int) -> None:
    """Raise OptionError if a set does not have such a part."""
    if number >= num_parts:
        has = f"has {counted(num_parts, 'part')}, numbered from 0"
        expected = f"0 to {num_parts - 1}" if num_parts > 1 else "0"
        raise OptionError(f"{option('number', number)}: {target} {has}: expected {expected}")


def _how_to_plan(target: Path) -> str:
    return f"Plan it: `lmdbloader convert SRC {target} --parts N --plan-only`, or lmdbloader.conversion.plan_parts."


def _given(saved: Shared, on_error: str | None) -> dict[str, Any]:
    given: dict[str, Any] = {name: value for name, value in saved.asked.items() if name != "src"}
    return {**given, "on_error": on_error or saved.begun.made_by["options"]["on_error"]}


def _job_of(folder: Path, saved: Shared, number: int, options: RunOptions) -> Job:
    """Return the conversion of one part."""
    listing = load_listing(folder, saved, number)
    nbytes = saved.nbytes[number]
    num_workers = choose_workers(1 if listing.in_process else options.workers, nbytes)
    recipe = Recipe((), replace(shared(options), classes=None), saved.storage, saved.first_mask)
    plan = Plan(options, recipe, listing, saved.codec, (), num_workers, ())

    def keep(done: Progress, num_samples: int) -> None:
        save_notes(folder, number, plan, done, num_samples)

    return Job(folder / part_name(number), plan, options, describe(plan), keep)


def _share(job: Job, saved: Shared, number: int) -> Begun:
    """Return the decisions for one part: those of the whole set, with the part's share of the expected size."""
    share = saved.nbytes[number] / max(sum(saved.nbytes), 1)
    data = saved.begun.data_nbytes
    map_nbytes = int(saved.begun.map_nbytes * share)
    expected = None if data is None else int(data * share)
    return replace(saved.begun, map_nbytes=map_nbytes, data_nbytes=expected, least_nbytes=None, made_by=job.made_by)


def _finished_part(job: Job, folder: Path, number: int) -> ConvertedPart | None:
    """Return a part if it is complete already; None if it is not.

    Raises:
        DestinationError: Its inputs have changed since it was made, or it is damaged.
    """
    num_sources = len(job.plan.listing.sources)
    if not is_dataset(job.target):
        notes = load_notes(folder, number)
        if notes is None or notes.num_samples or job.options.on_error != "skip":
            return None
        return ConvertedPart(number, num_sources, 0, was_finished=True, skipped=notes.skipped)
    manifest = read_manifest(job.target)
    if not are_unchanged(job.target, manifest, job.plan.listing, check_content=job.options.check_content):
        raise DestinationError(
            f"{job.target}: inputs of this part have changed since it was converted. Put them back as they were, or "
            "remove this folder and convert the part again."
        )
    try:
        Reader(job.target)
    except (CorruptError, FormatError) as error:
        raise DestinationError(
            f"{job.target}: is complete, but damaged. Remove this folder and convert the part again. {error}"
        ) from error
    clear_leftovers(job.target)
    if (notes := load_notes(folder, number)) is None:
        raise DestinationError(
            f"{job.target}: is complete, but its notes for the join are lost. Remove this folder and convert the part "
            "again."
        )
    return ConvertedPart(number, num_sources, manifest.num_samples, was_finished=True, skipped=notes.skipped)


def _refuse_changed(folder: Path, saved: Shared, sources: Sources) -> None:
    """Raise DestinationError if inputs are gone, or do not have the sizes that they had when they were listed.

    Also with `on_error="skip"`: on a machine that does not see the inputs, a part would be complete without a sample.
    """
    changed = changed_holders(saved, sources)
    states = [(source.name, _state(source)) for source in sources]
    changed += [name for name, state in states if state == "changed"][: 1 if changed else None]
    gone = [name for name, state in states if state == "gone"]
    if changed or gone:
        found = [first_of(changed)] if changed else []
        found += [f"{first_of(gone)} {'are' if gone[1:] else 'is'} gone"] if gone else []
        raise DestinationError(
            f"{folder}: inputs have changed since the parts were planned: {'; '.join(found)}. Put them back as they "
            f"were, or plan again with {option('restart', True)}, which discards all parts."
        )


def _state(source: Source) -> str:
    """Return whether a source of whole local files is gone, has changed, having another size, or neither ("")."""
    nbytes = 0
    for file in source.files:
        if isinstance(file, Span) or is_url(file):
            return ""
        try:
            nbytes += os.stat(file).st_size
        except (FileNotFoundError, NotADirectoryError):
            return "gone"
        except OSError:
            return ""
    return "changed" if nbytes != source.nbytes else ""


def join(
    out: str | os.PathLike[str],
    *,
    take_over: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Report:
    """Join the parts of a conversion, which must all be complete: write the set's index and manifest, and rename it.

    A set that is in place already is left as it is.

    Args:
        out: The set.
        take_over: As in `convert`.
        log: As in `convert`.

    Returns:
        The report of the whole conversion, with the time of this call.

    Raises:
        NotFoundError: There is no plan of a set at `out`.
        LockedError: Another process is joining the parts, or making one of them.
        DestinationError: Parts are missing, which the message names; `out` is taken; or another release made the plan.
        SourceError: No input could be used.
        CorruptError: A part is damaged.
        DiskFullError: No room left.
    """
    began, take_over = time.monotonic(), flag("take_over", take_over)
    target = new_folder(out)
    if not holds_shares(partial_of(target)):
        if is_dataset(target) and (target / part_name(0)).is_dir():
            return _published(target)
        raise NotFoundError(f"{partial_of(target)}: no conversion in parts is planned there. {_how_to_plan(target)}")
    with (
        explain_full_disk(target),
        partial_folder(target, resumable=True, take_over=take_over, log=log) as folder,
    ):
        if not holds_shares(folder):  # another process has just put it in place
            return _published(target)
        saved = load(folder)
        _check_release(folder, saved)
        check_destination(target, overwrite=saved.overwrite)
        skipped, doubts, written = _join(folder, target, saved)
    for note in doubts:
        log(plain(f"note: {note}."))
    return _report(target, saved, tuple(skipped), doubts, written, time.monotonic() - began)


def _report(
    target: Path,
    saved: Shared,
    skipped: tuple[tuple[str, str], ...],
    doubts: tuple[str, ...],
    written: Written,
    seconds: float,
) -> Report:
    """Return the report of a set that was just put in place."""
    listing, fields = saved.listing, saved.begun.fields
    stored_as, sides = count_images(fields, open_reader(target).index.arrays, written.num_samples)
    return Report(
        str(target),
        listing.layout,
        num_sources=saved.num_sources,
        num_samples=written.num_samples,
        codecs={f.name: f.codec for f in fields if f.codec},
        sizes=written.sizes,
        map_nbytes=saved.begun.map_nbytes,
        skipped=skipped,
        ignored=listing.ignored,
        seconds=seconds,
        stored_as=stored_as,
        longest_sides=sides,
        classes=saved.class_counts,
        notes=listing.notes + doubts,
        source_nbytes=sum(saved.nbytes),
    )


def _join(folder: Path, target: Path, saved: Shared) -> tuple[list[tuple[str, str]], tuple[str, ...], Written]:
    """Make the set in the locked folder, and put it in place.

    Returns:
        The inputs that were left out, notes on images, and a summary.
    """
    notes = _complete(folder, target, saved)
    remove_begun_parts(folder)
    names = _number_again(folder, notes)
    listing = saved.listing
    skipped = [left_out for found in notes for left_out in found.skipped]
    if not names:
        raise nothing_to_write(target, Progress(num_sources=saved.num_sources, skipped=skipped))
    _write_notes(folder, saved, notes, skipped)
    classes = name_classes(listing.layout, listing.classes)
    written = write_set(folder, names, classes=classes, made_by=_record(saved, notes))
    put_in_place(folder, target)
    doubts: dict[str, tuple[int, str]] = {}
    for found in notes:
        for kind, (number, name) in found.doubts.items():
            before, first = doubts.get(kind, (0, name))
            doubts[kind] = before + number, first
    return skipped, notes_on_doubts(target, doubts), written


def _published(target: Path) -> Report:
    """Return the report of a set that is in place."""
    clear_leftovers(target)
    manifest = read_manifest(target)
    codecs = {f.name: f.codec for f in manifest.fields if f.codec}
    num_sources = manifest.made_by.get("inputs", {}).get("num_sources", 0)
    layout = str(manifest.made_by.get("layout", ""))
    return Report(str(target), layout, num_sources, manifest.num_samples, codecs, manifest.sizes, was_finished=True)


def _complete(folder: Path, target: Path, saved: Shared) -> list[Notes]:
    """Return the notes of all parts, in order, and remove files that killed processes have left in the parts.

    Raises:
        DestinationError: Parts are missing.
    """
    # A network file system may show files that other machines have made only after the folder was read.
    os.listdir(folder / SHARES_FOLDER)
    notes = [load_notes(folder, number) for number in range(saved.num_parts)]
    if _is_numbered(folder):
        return [found for found in notes if found is not None]
    missing = []
    for number, found in enumerate(notes):
        part = folder / part_name(number)
        if found is None or (found.num_samples and not (part / MANIFEST_FILE).exists()):
            missing.append(number)
        elif found.num_samples:
            read_manifest(part)  # a disk that cannot read it must not look like a part that is missing
            clear_leftovers(part)
    if missing:
        raise DestinationError(
            f"{partial_of(target)}: {counted(len(missing), 'part is', 'parts are')} not complete: number "
            f"{first_of([str(number) for number in missing])} of {saved.num_parts}, counted from 0. Convert them, as "
            f"with `lmdbloader convert SRC {target} --part {missing[0]}/{saved.num_parts}`. Then join again."
        )
    return [found for found in notes if found is not None]


def finished_parts(folder: Path, saved: Shared, on_error: str) -> set[int]:
    """Return the numbers of the parts that are complete, also of those without samples, which were not written.

    Args:
        folder: OUT.partial.
        saved: The plan.
        on_error: Of this run: with "stop", a part without samples is made again.
    """
    if _is_numbered(folder):
        return set(range(saved.num_parts))

    def is_finished(number: int) -> bool:
        if is_dataset(folder / part_name(number)):
            return True
        notes = load_notes(folder, number) if on_error == "skip" else None
        return notes is not None and not notes.num_samples

    return set(filter(is_finished, range(saved.num_parts)))


def _is_numbered(folder: Path) -> bool:
    """Return whether a join found all parts complete, and began to rename those behind parts without samples."""
    return (folder / SHARES_FOLDER / _NUMBERED_FILE).exists()


def _number_again(folder: Path, notes: Sequence[Notes]) -> list[str]:
    """Rename the parts that have samples, to close the gaps of those that have none; return their names."""
    numbers = [number for number, found in enumerate(notes) if found.num_samples]
    if numbers != list(range(len(numbers))):
        (folder / SHARES_FOLDER / _NUMBERED_FILE).touch()
        flush(folder / SHARES_FOLDER)
    for place, number in enumerate(numbers):
        # In ascending order a name is free, unless this part has it already.
        if not (folder / part_name(place)).exists():
            system.move_folder(folder / part_name(number), folder / part_name(place))
    return [part_name(place) for place in range(len(numbers))]


def _write_notes(folder: Path, saved: Shared, notes: Sequence[Notes], skipped: Sequence[tuple[str, str]]) -> None:
    """Write the files about inputs of the whole set, as a conversion to one file does."""
    for name in (SKIPPED_FILE, SOURCES_FILE):
        (folder / name).unlink(missing_ok=True)
    if skipped:
        with naming(folder / SKIPPED_FILE):
            (folder / SKIPPED_FILE).write_bytes(skipped_table(skipped))
    seen = [found.seen for found in notes if found.seen is not None]
    if len(seen) == len(notes):
        columns = [np.concatenate(column) for column in zip(*seen, strict=True)]
        nbytes = np.concatenate([found.nbytes for found in notes])
        if (note := note_of((nbytes, *columns), saved.listing.changed_ns)) is not None:
            with naming(folder / SOURCES_FILE):
                (folder / SOURCES_FILE).write_bytes(note)


def _record(saved: Shared, notes: Sequence[Notes]) -> dict[str, Any]:
    """Return how the set was made, for its manifest."""
    made_by = dict(saved.begun.made_by)
    content = ContentHash(made_by["options"].get("digest", "xxh64"))
    for found in notes:
        content.add_bytes(found.hashes.astype("<u8", copy=False).tobytes())
    skips = any(found.on_error == "skip" for found in notes)
    made_by["options"] = {**made_by["options"], "on_error": "skip" if skips else "stop"}
    made_by["inputs"] = {**made_by["inputs"], "content": str(content)}
    return made_by
