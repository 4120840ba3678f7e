"""Converts in parts, for any engine: saves the plan once, makes each part in any process, and joins all parts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from lmdbloader import __version__
from lmdbloader.base.arguments import whole
from lmdbloader.base.free_space import free_nbytes, taken_nbytes
from lmdbloader.base.option_names import option
from lmdbloader.base.progress import WORK_SECONDS, ProgressLine, shown_steps
from lmdbloader.base.text import command, counted, first_of, plain, table
from lmdbloader.base.units import show_nbytes
from lmdbloader.conversion.degrading import settled
from lmdbloader.conversion.destination import new_folder, refuse_inside
from lmdbloader.conversion.doubts import refuse_swapped
from lmdbloader.conversion.notes import FURTHER_IMAGES, TURNED_BOXES, Notes, parse_notes, seen_digest
from lmdbloader.conversion.options import ConvertOptions, RunOptions, checked, shared, with_options
from lmdbloader.conversion.plan import Plan, make_plan, settle_scale, try_out
from lmdbloader.conversion.pool import WorkerPool, choose_workers, make_tasks
from lmdbloader.conversion.provenance import (
    are_unchanged,
    describe,
    find_finished,
    is_made_as,
    note_of,
    refuse_others,
)
from lmdbloader.conversion.report import Report, count_classes, count_images, describe_classes
from lmdbloader.conversion.saved_plan import (
    SavedPlan,
    changed_holders,
    choose_bounds,
    is_saved,
    load,
    load_listing,
    save,
)
from lmdbloader.conversion.sources.listing import Listing, Source, Sources, Span, is_url
from lmdbloader.conversion.sources.remote import locate_all
from lmdbloader.conversion.tasks import Recipe, content_of
from lmdbloader.errors import DestinationError, DiskFullError, ImageError, NotFoundError, OptionError, SourceError
from lmdbloader.format.layout import SKIPPED_FILE, SOURCES_FILE
from lmdbloader.format.manifest import Description, Manifest
from lmdbloader.store import PartFacts, Work, Written, check_destination, is_dataset, open_reader, read_manifest
from lmdbloader.store import join as join_work
from lmdbloader.store.writing.work import remove_work

#: The size of parts, if the caller does not choose: what a kill loses, and what is verified or fetched at once.
PART_NBYTES = 256 * 2**20
_MOST_PARTS = 100_000
_PLACES = ("hr", "lr", "masks", "annotations")
# What may have changed of the inputs, as `describe` records them.
_INPUTS = {"num_sources": "their number", "names_and_sizes": "their names or sizes", "annotations": "their boxes"}
# The parts of one dataset are made by one release.
_RELEASE = {"the release of lmdbloader": __version__}
#: Called with the number of sources that were just converted, and the bytes of their files.
Advance: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class PartsPlan:
    """The plan of a conversion, as far as engines need it.

    Attributes:
        path: The dataset, OUT.
        num_parts: The number of parts, which are numbered from 0.
        num_sources: The number of images or pairs in all parts.
        bounds: Part i has the sources bounds[i] : bounds[i + 1].
        nbytes: Bytes of the inputs of each part.
        is_finished: Whether the dataset is complete already, so that there is nothing to do.
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
        num_sources: Its images or pairs; 0 if the whole dataset is in place already.
        num_samples: Its samples; 0 if none of its inputs could be used.
        was_finished: Whether it was complete already, and nothing was done.
        seconds: The time of this call.
        skipped: (name, reason) of sources left out (on_error="skip").
    """

    number: int
    num_sources: int
    num_samples: int
    was_finished: bool = False
    seconds: float = 0.0
    skipped: tuple[tuple[str, str], ...] = ()


@with_options(RunOptions)
def plan_parts(src: str | os.PathLike[str] | None, out: str | os.PathLike[str], options: RunOptions) -> PartsPlan:
    """Plan a conversion: list the inputs, and choose codecs, scale, classes and the share of each part.

    The plan is saved in OUT.partial. Then `convert_part` makes each part, in any order, in any process of any machine
    that sees the inputs and OUT, and `join` makes the dataset. An existing plan of the same inputs with the same
    options is kept.

    Args:
        src: As in `convert`.
        out: The dataset to make, which every machine must see. A relative path is relative to the working folder of
            each process.

    Returns:
        The plan.

    Raises:
        SourceError, ImageError: As by `convert`.
        OptionError: There are more parts than inputs; or an option is out of its range, or contradicts another.
        DestinationError: `out` is taken, or inside the source; another conversion is unfinished there; or the inputs
            have changed since they were planned.
        DiskFullError: No room left.
    """
    return _short(new_folder(out), prepare(src, new_folder(out), options))


@with_options(RunOptions)
def saved_plan(src: str | os.PathLike[str] | None, out: str | os.PathLike[str], options: RunOptions) -> PartsPlan:
    """Return the saved plan without listing the inputs again; make it as `plan_parts` does if there is none.

    If it was made with `part_size`, `parts` may be given instead.

    Args:
        src: As in `convert`.
        out: The dataset to make.

    Returns:
        The plan.

    Raises:
        LmdbloaderError: As by `plan_parts`.
    """
    if options.restart:
        raise OptionError(
            f"{option('restart', True)} discards all parts. Plan again with it, then convert each part without it."
        )
    target = new_folder(out)
    if is_saved(work := Work(target)):
        asked = _asked(work, *_absolute(src, options))
        work.compare(asked)
        return _short(target, load(work))
    return _short(target, prepare(src, target, options, is_part=True))


def _short(target: Path, found: SavedPlan | Report) -> PartsPlan:
    if isinstance(found, SavedPlan):
        numbers = found.num_parts, found.num_sources, found.bounds, found.nbytes
        return PartsPlan(str(target), *numbers, in_process=found.listing.in_process)
    return PartsPlan(str(target), _num_planned(read_manifest(target)), found.num_sources, (), (), is_finished=True)


def _num_planned(manifest: Manifest) -> int:
    """Return how many parts were planned of a dataset in place; those without samples are not in it."""
    number = manifest.made_by.get("options", {}).get("parts")
    return number if isinstance(number, int) else len(manifest.parts)


def prepare(src: Any, target: Path, options: RunOptions, *, is_part: bool = False) -> SavedPlan | Report:
    """Return the plan of a conversion, which is made if there is none; or the report if the dataset is in place.

    Args:
        src: As in `convert`.
        target: The dataset.
        options: The options, checked.
        is_part: Whether a part is to be made, which may come after the join: then a dataset is not made again.

    Raises:
        LmdbloaderError: As by `plan_parts`.
    """
    if options.parts is not None and options.part_size is not None:
        raise OptionError(f"{option('parts')} and {option('part_size')} are both given. Leave one out.")
    refuse_swapped(src, target)
    src, options = _absolute(src, options)
    check_destination(target, overwrite=True)
    with shown_steps(shown=options.progress, log_after=WORK_SECONDS):
        plan = make_plan(src, options)
    for folder in plan.folders:
        refuse_inside(target, folder)
    made_by = describe(plan)
    if is_part or not options.overwrite:
        found = _report_finished(target, plan, made_by, check_content=options.check_content)
        if found is not None:
            return found
    if not options.overwrite:
        refuse_others(target)
    check_destination(target, overwrite=options.overwrite)
    work = Work(target)
    if options.restart:
        work.discard()
    asked = _asked(work, src, options)
    if not work.continues(asked) or not is_saved(work):
        return _plan(work, plan, made_by, options, asked)
    saved = load(work)
    if saved.made_by["inputs"] != made_by["inputs"]:
        if work.has_parts() and not work.is_published():
            raise _changed_inputs(work, saved.made_by["inputs"], made_by["inputs"])
        return _plan(work, plan, made_by, options, asked)
    done = sum(work.facts(number) is not None for number in range(saved.num_parts))
    if done:
        of = f"{done} of {counted(saved.num_parts, 'part is', 'parts are')} complete"
        options.log(plain(f"{work.folder}: resuming: {of}"))
    return saved


def _changed_inputs(work: Work, before: Mapping[str, Any], now: Mapping[str, Any]) -> DestinationError:
    changed = [what for name, what in _INPUTS.items() if before.get(name) != now.get(name)]
    numbers = f"{before['num_sources']} then, {now['num_sources']} now"
    return DestinationError(
        f"{work.folder}: the inputs have changed since the parts were planned ({numbers}): {', '.join(changed)}. Put "
        f"them back as they were, or discard all parts with {option('restart', True)}."
    )


def _plan(
    work: Work, plan: Plan, made_by: Mapping[str, Any], options: RunOptions, asked: Mapping[str, Any]
) -> SavedPlan:
    """Try a few inputs, and save the plan."""
    sources = plan.listing.sources
    _announce(work.out, plan, options.log)
    if options.parts is not None and options.parts > len(sources):
        raise OptionError(
            f"{option('parts', options.parts)} of {counted(len(sources), 'input', 'inputs')}: no part may be empty, so "
            f"expected 1 to {len(sources)}"
        )
    # These workers end with the trial, which reads about 5 % of the inputs.
    num_workers = min(plan.num_workers, choose_workers(None, int(sources.nbytes.sum()) // 20))
    with WorkerPool(num_workers) as pool, shown_steps(shown=options.progress, log_after=WORK_SECONDS):
        decisions, text = try_out(settle_scale(plan), sources, pool, plan.codec)
    options.log(text)
    num_parts = options.parts
    if num_parts is None:
        expected = decisions.data_nbytes or int(sources.nbytes.sum())
        num_parts = max(1, min(round(expected / (options.part_size or PART_NBYTES)), len(sources), _MOST_PARTS))
    bounds = choose_bounds(sources.nbytes, num_parts)
    try:
        save(work, plan, made_by, decisions, asked, options.overwrite, bounds)
    except OSError:
        work.leave()
        raise
    if num_parts > 1:
        options.log(plain(f"{work.out}: {num_parts} parts"))
    return load(work)


def _announce(target: Path, plan: Plan, log: Callable[[str], None]) -> None:
    """Log what will be converted: how many inputs, their classes, and what is missing."""
    listing = plan.listing
    kind = "pair" if listing.layout == "pairs" else "image"
    log(plain(f"{target}: {counted(len(listing.sources), kind)}, layout {listing.layout}"))
    if classes := count_classes(listing):
        log(plain(describe_classes(classes)))
    for note in plan.notes:
        log(plain(f"note: {note}."))


def _absolute(src: Any, options: RunOptions) -> tuple[Any, RunOptions]:
    """Return the source and the options with absolute paths, for processes in other folders; no option file is left."""
    places: dict[str, Any] = {name: _fixed(locate_all(getattr(options, name), name)) for name in _PLACES}
    return _fixed(locate_all(src, "source")), settled(replace(options, **places))


def _fixed(place: Any) -> Any:
    if isinstance(place, list):
        return [_fixed(each) for each in place]
    return os.path.abspath(place) if isinstance(place, Path) else place


def _asked(work: Work, src: Any, options: RunOptions) -> dict[str, Any]:
    """Return what a plan depends on, except for the inputs, with values as in JSON."""
    plan = work.plan() or {}
    asked = {f.name: getattr(options, f.name) for f in fields(ConvertOptions) if f.name not in ("workers", "on_error")}
    asked["classes"] = None if options.classes is None else list(options.classes)
    asked |= {"src": src, "parts": options.parts, "part_size": options.part_size}
    if options.part_size is None and options.parts == len(plan.get("nbytes", ())):
        # Once parts of some size are planned, their number is known.
        asked |= {name: plan["asked"][name] for name in ("parts", "part_size")}
    return {"the call": "convert", **_RELEASE, **asked}


def _report_finished(target: Path, plan: Plan, made_by: Mapping[str, Any], *, check_content: bool) -> Report | None:
    """Return the report of a conversion that was finished already; None if it was not."""
    listing = plan.listing
    finished = find_finished(
        target,
        lambda manifest: (
            is_made_as(manifest, made_by) and are_unchanged(target, manifest, listing, check_content=check_content)
        ),
    )
    if finished is None:
        return None
    return replace(
        _report_of(finished, target),
        layout=listing.layout,
        num_sources=len(listing.sources),
        ignored=listing.ignored,
        classes=count_classes(listing),
        notes=plan.notes,
    )


def convert_part(
    out: str | os.PathLike[str],
    number: int,
    *,
    workers: int | None = 1,
    on_error: str | None = None,
    check_content: bool = False,
    progress: bool = False,
    advance: Advance = lambda num_sources, nbytes: None,
    log: Callable[[str], None] = lambda line: None,
) -> ConvertedPart:
    """Make one part of a planned conversion, unless it is complete already.

    Its files depend on the inputs and the options alone. If several processes make it, the first that is done puts it
    in place. A part that was interrupted begins again from its first sample.

    Args:
        out: The dataset.
        number: The number of the part, from 0.
        workers: Worker processes, as in `convert`; 1 converts in this process.
        on_error: "stop" or "skip", as in `convert`; by default that of the plan.
        check_content: As in `convert`.
        progress: As in `convert`.
        advance: Called with the number of sources that were just converted and the bytes of their files, after each
            MiB or so. An error that it raises stops the conversion of this part.
        log: As in `convert`.

    Returns:
        Facts about the part.

    Raises:
        NotFoundError: There is no plan at `out`.
        OptionError: There is no part of this number.
        DestinationError: The inputs have changed since they were listed; or another release made the plan.
        LmdbloaderError: As by `convert`.
    """
    began = time.monotonic()
    target, number = new_folder(out), whole("number", number, 0)
    work = Work(target)
    if not is_saved(work):
        return _published_part(target, number)
    work.compare(_RELEASE)
    saved = load(work)
    _refuse_number(number, target, saved.num_parts)
    run: dict[str, Any] = {"check_content": check_content, "log": log}
    options = checked(RunOptions(**_given(saved, on_error), workers=workers, **run))
    with ProgressLine("converting", saved.bounds[number + 1] - saved.bounds[number], "images", shown=progress) as line:

        def show(num_sources: int, nbytes: int) -> None:
            line.update(num_sources)
            advance(num_sources, nbytes)

        return replace(make_part(work, saved, number, options, show), seconds=time.monotonic() - began)


def make_part(work: Work, saved: SavedPlan, number: int, options: RunOptions, advance: Advance) -> ConvertedPart:
    """Make one part, unless it is complete already; arguments and errors as for `convert_part`."""
    listing = load_listing(work, saved, number)
    num_sources, nbytes = len(listing.sources), saved.nbytes[number]
    if (found := finished_part(work, listing, number, options)) is not None:
        return _part_of(number, num_sources, found, was_finished=True)
    _refuse_changed(work.folder, saved, listing.sources)
    recipe = Recipe(saved.decisions.fields, replace(shared(options), classes=None), saved.storage)
    recipe = recipe.changed(scale=saved.decisions.scale)
    share = nbytes / max(sum(saved.nbytes), 1)
    notes = Notes()
    with (
        WorkerPool(choose_workers(1 if listing.in_process else options.workers, nbytes)) as pool,
        work.part(number, describe_dataset(saved), map_nbytes=int(saved.decisions.map_nbytes * share)) as writer,
        _with_remedy(),
    ):
        for part in pool.convert(recipe, make_tasks(listing.sources)):
            if part.chunk is not None:
                writer.add(part.chunk, part.blocks)
            notes.extend(part.notes)
            advance(part.num_sources, part.nbytes)
        facts = work.complete(number, writer, {**notes.to_json(), "on_error": options.on_error})
    return _part_of(number, num_sources, facts)


def describe_dataset(saved: SavedPlan, made_by: Mapping[str, Any] | None = None) -> Description:
    """Return the description of the dataset, by default as far as it is known when its parts are written."""
    listing = saved.listing
    names = {"label" if listing.layout == "classes" else "labels": listing.classes} if listing.classes else {}
    return Description(saved.decisions.fields, True, names, saved.made_by if made_by is None else made_by)


@contextmanager
def _with_remedy() -> Iterator[None]:
    """Add to the error of an image that stops a conversion the option that leaves such images out.

    Workers do not add it: in the list of skipped images it would be wrong.
    """
    try:
        yield
    except ImageError as error:
        skip = option("on_error", "skip")
        if skip in error.reason or "on_error" in error.reason:
            raise
        reason = f"{error.reason.rstrip('.')}. To leave such images out: {skip}"
        raise ImageError(error.name, reason) from error


def _part_of(number: int, num_sources: int, facts: PartFacts, *, was_finished: bool = False) -> ConvertedPart:
    skipped = tuple(parse_notes(facts.notes).skipped)
    return ConvertedPart(number, num_sources, facts.num_samples, was_finished=was_finished, skipped=skipped)


def finished_part(work: Work, listing: Listing, number: int, options: RunOptions) -> PartFacts | None:
    """Return the facts of a part that is complete, and whose inputs are still the same; None if it is to be made."""
    facts = work.facts(number)
    if facts is None or (not facts.num_samples and options.on_error != "skip"):
        return None
    notes = parse_notes(facts.notes)
    if not options.check_content and notes.seen == seen_digest(listing.sources):
        return facts
    if content_of(make_tasks(listing.sources)) == notes.content:
        return facts
    options.log(plain(f"{work.folder}: inputs of part {number} have changed since it was made; it is made again"))
    work.remove_part(number)
    return None


def _published_part(target: Path, number: int) -> ConvertedPart:
    """Return a part of a dataset that is in place."""
    if not is_dataset(target):
        raise NotFoundError(f"{target}: no conversion in parts is planned there. {_how_to_plan(target)}")
    _refuse_number(number, target, _num_planned(read_manifest(target)))
    return ConvertedPart(number, 0, 0, was_finished=True)


def _refuse_number(number: int, target: Path, num_parts: int) -> None:
    """Raise OptionError if a dataset does not have such a part."""
    if number >= num_parts:
        has = f"has {counted(num_parts, 'part')}, numbered from 0"
        expected = f"0 to {num_parts - 1}" if num_parts > 1 else "0"
        raise OptionError(f"{option('number', number)}: {target} {has}: expected {expected}")


def _how_to_plan(target: Path) -> str:
    return f"Plan it: `lmdbloader convert SRC {target} --plan-only`, or lmdbloader.conversion.plan_parts."


def _given(saved: SavedPlan, on_error: str | None) -> dict[str, Any]:
    known = {f.name for f in fields(RunOptions)}
    given: dict[str, Any] = {name: value for name, value in saved.asked.items() if name in known}
    return {**given, "on_error": on_error or saved.made_by["options"]["on_error"]}


def _refuse_changed(folder: Path, saved: SavedPlan, sources: Sources) -> None:
    """Raise DestinationError if inputs are gone, or do not have the sizes that they had when they were listed.

    Also with `on_error="skip"`: on a machine that does not see the inputs, a part would be complete without a sample.
    """
    changed = [*changed_holders(saved, sources), *(source.name for source in sources if _has_changed(source))]
    if changed:
        raise DestinationError(
            f"{folder}: inputs have changed or are gone since the parts were planned: {first_of(changed)}. Put them "
            f"back as they were, or plan again with {option('restart', True)}, which discards all parts."
        )


def _has_changed(source: Source) -> bool:
    """Return whether a source of whole local files is gone, or has another size."""
    files = [file for file in source.files if not isinstance(file, Span) and not is_url(file)]
    try:
        nbytes = sum(os.stat(file).st_size for file in files)
        return len(files) == len(source.files) and nbytes != source.nbytes
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def check_room(work: Work, saved: SavedPlan, finished: Sequence[PartFacts]) -> None:
    """Raise DiskFullError if the disk surely has no room for the parts that are still to be made."""
    free, decisions = free_nbytes(work.folder), saved.decisions
    if decisions.data_nbytes is None or decisions.least_nbytes is None or free is None:
        return
    taken = sum(facts.data_nbytes for facts in finished)
    taken += sum(map(taken_nbytes, work.folder.glob("part-*.*/data.mdb")))
    least, expected = decisions.least_nbytes - taken, decisions.data_nbytes - taken
    if least > free:
        raise DiskFullError(
            f"{work.folder}: at least {show_nbytes(least)}, probably {show_nbytes(expected)}, are still to be written, "
            f"estimated from a few inputs, and {show_nbytes(free)} are free: at least {show_nbytes(least - free)} are "
            "missing. Free some space, or choose another disk. `lmdbloader estimate` says how much other options would "
            "take."
        )


def join(out: str | os.PathLike[str], *, log: Callable[[str], None] = lambda line: None) -> Report:
    """Join the parts of a conversion, all complete: write index and manifest, and put the dataset in place.

    A dataset that is in place already is left as it is.

    Args:
        out: The dataset.
        log: As in `convert`.

    Returns:
        The report of the whole conversion, with the time of this call.

    Raises:
        NotFoundError: There is no plan at `out`.
        DestinationError: Parts are missing, which the message names; `out` is taken; or another release made the plan.
        SourceError: No input could be used, or masks of two parts have different palettes.
        CorruptError: A part is damaged.
        DiskFullError: No room left.
    """
    began = time.monotonic()
    target = new_folder(out)
    work = Work(target)
    saved = load(work) if is_saved(work) else None
    if is_dataset(target) and (saved is None or (not saved.overwrite and work.is_published())):
        remove_work(target)
        return _report_of(read_manifest(target), target)
    if saved is None:
        raise NotFoundError(f"{work.folder}: no conversion is planned there. {_how_to_plan(target)}")
    work.compare(_RELEASE)
    check_destination(target, overwrite=saved.overwrite)
    facts = _complete(work, target, saved)
    notes = Notes()
    for found in facts:
        notes.extend(parse_notes(found.notes))
    if not any(found.num_samples for found in facts):
        work.discard()
        raise _nothing_to_write(target, notes)
    skips = any(found.notes["on_error"] == "skip" for found in facts)
    made_by = {
        **saved.made_by,
        "options": {**saved.made_by["options"], "on_error": "skip" if skips else "stop"},
        "inputs": {**saved.made_by["inputs"], "content": notes.content},
    }
    files = {} if (seen := note_of(notes.seen, saved.listing.changed_ns)) is None else {SOURCES_FILE: seen}
    if notes.skipped:
        files[SKIPPED_FILE] = table([("name", "reason"), *notes.skipped])
    written = join_work(work, facts, describe_dataset(saved, made_by), overwrite=saved.overwrite, notes=files)
    doubts = _notes_on_doubts(target, notes.doubts)
    for note in doubts:
        log(plain(f"note: {note}."))
    return _report(target, saved, tuple(notes.skipped), doubts, written, time.monotonic() - began)


def _complete(work: Work, target: Path, saved: SavedPlan) -> list[PartFacts]:
    """Return the facts of all parts, in order.

    Raises:
        DestinationError: Parts are missing.
    """
    os.listdir(work.folder)  # a network file system may show what other machines have made only after this
    found = [work.facts(number) for number in range(saved.num_parts)]
    if missing := [str(number) for number, facts in enumerate(found) if facts is None]:
        raise DestinationError(
            f"{work.folder}: {counted(len(missing), 'part is', 'parts are')} not complete: number "
            f"{first_of(missing)} of {saved.num_parts}, counted from 0. Convert them, as with `lmdbloader convert SRC "
            f"{target} --part {missing[0]}/{saved.num_parts}`. Then join again."
        )
    return [facts for facts in found if facts is not None]


def _nothing_to_write(target: Path, notes: Notes) -> SourceError:
    """Return the error for a conversion of inputs none of which can be used."""
    none = f"none of the {notes.num_sources:,} inputs could be used"
    if notes.num_sources == 1:
        none = "the only input could not be used"
    return SourceError(f"{target}: nothing to write: {none}; the first: {': '.join(notes.skipped[0])}")


def _notes_on_doubts(target: Path, doubts: Mapping[str, tuple[int, str]]) -> tuple[str, ...]:
    """Return notes about images that may have been meant otherwise.

    Args:
        target: The dataset.
        doubts: As in `Notes`.
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


def _report_of(manifest: Manifest, target: Path) -> Report:
    """Return the report of a dataset that is in place."""
    codecs = {f.name: f.codec for f in manifest.fields if f.codec}
    num_sources = manifest.made_by.get("inputs", {}).get("num_sources", 0)
    layout = str(manifest.made_by.get("layout", ""))
    return Report(str(target), layout, num_sources, manifest.num_samples, codecs, manifest.sizes, was_finished=True)


def _report(
    target: Path,
    saved: SavedPlan,
    skipped: tuple[tuple[str, str], ...],
    doubts: tuple[str, ...],
    written: Written,
    seconds: float,
) -> Report:
    """Return the report of a dataset that was just put in place."""
    listing, of = saved.listing, saved.decisions.fields
    return Report(
        str(target),
        listing.layout,
        num_sources=saved.num_sources,
        num_samples=written.num_samples,
        codecs={f.name: f.codec for f in of if f.codec},
        sizes=written.sizes,
        map_nbytes=saved.decisions.map_nbytes,
        skipped=skipped,
        ignored=listing.ignored,
        seconds=seconds,
        stored_as=count_images(of, open_reader(target)),
        classes=saved.class_counts,
        notes=listing.notes + doubts,
        source_nbytes=sum(saved.nbytes),
    )
