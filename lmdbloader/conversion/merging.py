"""`lmdbloader.merge` and `append`: the samples of several datasets, one after the other, in one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader import __version__
from lmdbloader.base.arguments import flag, shown
from lmdbloader.base.option_names import option
from lmdbloader.base.text import counted, first_of
from lmdbloader.conversion.combining import (
    Combined,
    Part,
    Recipe,
    chosen_fields,
    combine,
    common_options,
    flattened,
    open_parts,
)
from lmdbloader.conversion.destination import named_folder, new_folder
from lmdbloader.conversion.provenance import APPENDED
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import CLIP, FRAME, Field, bits_text, channels_text, holds_clips, undecided
from lmdbloader.store import Work


def merge(
    datasets: Sequence[Any],
    out: str | os.PathLike[str],
    *,
    fields: Sequence[str] | None = None,
    add_classes: bool = False,
    prefix_sources: bool = False,
    drop_sources: bool = False,
    overwrite: bool = False,
    restart: bool = False,
    progress: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Combined:
    """Write the samples of several datasets, one after the other, into one dataset.

    The stored bytes are copied: nothing is encoded again, and every checksum is verified. The samples are those
    that a conversion of all inputs would store, with the same content digest. If the datasets name the same classes in
    another order, labels are renumbered. A call that was interrupted keeps its complete parts in OUT.partial, and makes
    the others when it is called again.

    Args:
        datasets: Paths, or LMDBDatasets, which may be views of some samples or fields; or torch's ConcatDataset of
            them. A dataset that is given twice is stored twice.
        out: The new dataset. One that was made of the same samples by the same call is left as it is.
        fields: The fields to copy, in this order; by default all of the first dataset, which the others must have too.
        add_classes: Add classes that the first dataset lacks, after its own (default: refuse them).
        prefix_sources: Put the name of each dataset's folder, without .lmdb, in front of the names of its sources and
            clips: a/0001.png. Equal names in several datasets then stay apart.
        drop_sources: Leave the names of sources out (default: refuse datasets of which only some have them).
        overwrite: Replace an existing dataset, once the new one is complete.
        restart: Discard the progress of an interrupted call; by default it is continued.
        progress: Show the progress: a line on a terminal, in a log one every 30 seconds.
        log: Called with each message, a line of text: renumbered labels, images that differ.

    Returns:
        A summary of the new dataset, with the notes that were logged.

    Raises:
        NotFoundError: One of the datasets does not exist.
        FormatError: One is not a finished dataset of this format version.
        CorruptError: One is damaged; nothing is put in place. `lmdbloader repair` saves its sound samples.
        OptionError: The datasets do not fit together; the message names the difference.
        DestinationError: `out` is taken, one of the datasets or inside of one; or another call is unfinished
            there.
        DiskFullError: No room left.

    >>> import tempfile, numpy, lmdbloader
    >>> place = tempfile.mkdtemp()
    >>> for i in range(2):
    ...     samples = [{"image": numpy.full((8, 8), 10 * i + j, "uint8")} for j in range(3)]
    ...     written = lmdbloader.write(samples, f"{place}/{i}")
    >>> lmdbloader.merge([f"{place}/0", f"{place}/1"], f"{place}/both").num_samples
    6
    """
    overwrite, restart, progress = flag("overwrite", overwrite), flag("restart", restart), flag("progress", progress)
    target = new_folder(out)
    parts = titled(open_parts(flattened(datasets, "merge"), "merge"))
    if not any(map(len, parts)):
        raise OptionError(f"{target}: nothing to write: there are no datasets, or they have no samples")
    recipe, notes = _recipe(parts, "merge", fields, add_classes, prefix_sources, drop_sources)
    return combine(recipe, target, notes, overwrite=overwrite, restart=restart, progress=progress, log=log)


def append(
    db: str | os.PathLike[str],
    datasets: Sequence[Any],
    *,
    fields: Sequence[str] | None = None,
    add_classes: bool = False,
    prefix_sources: bool = False,
    drop_sources: bool = False,
    restart: bool = False,
    progress: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Combined:
    """Add the samples of other datasets to a dataset, after its own.

    They become further parts. The existing parts are not changed: the grown dataset, with a new index and manifest, has
    the same files by hard links, or copies of them where there are no links. It has the samples of `merge([db,
    *datasets], out)`, and its content digest unless only one of them has long texts.

    The dataset changes in one step: until then, and after a crash, it is the old one. Processes that have it open keep
    the old one. A Loader refuses a state that was saved with the old one. After an interruption the same call keeps the
    parts that are complete. If a call has completed, the same call appends the same samples again.

    Args:
        db: The path of the dataset that grows.
        datasets: Paths, or LMDBDatasets, which may be views of some samples or fields; or torch's ConcatDataset of
            them. One may be the dataset itself, with its samples from before the call.
        fields: The fields of `db`, if the others have more (default: refuse such datasets).
        add_classes: Add classes that `db` lacks, after its own (default: refuse them).
        prefix_sources: Put the name of each appended dataset's folder, without .lmdb, in front of the names of its
            sources and clips: a/0001.png. The names that `db` has stay as they are.
        drop_sources: Leave the names of sources out, if `db` has none (default: refuse datasets that have them).
        restart: Discard the progress of an interrupted call; by default it is continued.
        progress: Show a progress bar on a terminal, in a log a line every 30 seconds.
        log: Called with each message, a line of text: renumbered labels, images that differ.

    Returns:
        A summary of the grown dataset, with the notes that were logged.

    Raises:
        NotFoundError: One of the datasets does not exist.
        FormatError: One is not a finished dataset of this format version.
        CorruptError: One is damaged; `db` stays as it was.
        OptionError: The datasets do not fit together; the message names the difference.
        DestinationError: Another process has changed `db` meanwhile, or a call with other samples is unfinished there.
        DiskFullError: No room left.

    >>> import tempfile, numpy, lmdbloader
    >>> place = tempfile.mkdtemp()
    >>> for i in range(2):
    ...     samples = [{"image": numpy.full((8, 8), 10 * i + j, "uint8")} for j in range(3)]
    ...     written = lmdbloader.write(samples, f"{place}/{i}")
    >>> lmdbloader.append(f"{place}/0", [f"{place}/1"]).num_samples
    6
    """
    flags = [flag(name, value) for name, value in (("restart", restart), ("progress", progress))]
    others = flattened(datasets, "append", "append(db, [...])")
    if not others:
        raise OptionError("append(db, []): expected at least one dataset")
    folder = _folder_of(db)
    parts = titled(open_parts([folder, *others], "append"))
    own, manifest = parts[0], parts[0].reader.manifest
    for what, some in (("has no samples", parts[:1]), ("nothing to append: the datasets have no samples", parts[1:])):
        if not any(map(len, some)):
            raise OptionError(f"{folder}: {what}. Write a new dataset.")
    if fields is not None and {*fields} == {*own.names}:
        fields = own.names
    whole, notes = _recipe(parts, "append", fields, add_classes, prefix_sources, drop_sources)
    for what, before, now in (
        ("fields", own.names, tuple(f.name for f in whole.fields)),
        ("names of sources", manifest.with_source, whole.with_source),
    ):
        if before != now:
            raise OptionError(
                f"{folder}: its parts stay as they are, so the {what} of the grown dataset cannot be others. Make a "
                "new dataset: lmdbloader merge."
            )
    recipe = replace(whole, parts=whole.parts[1:])
    appended = manifest.made_by.get(APPENDED)
    made_by = {
        **manifest.made_by,
        "lmdbloader": __version__,
        "options": common_options([part.reader.manifest for part in parts]),
        APPENDED: [*(appended if isinstance(appended, list) else []), *recipe.made_by()["inputs"]["datasets"]],
    }
    restart, progress = flags
    made = combine(
        recipe, folder, notes, overwrite=True, restart=restart, progress=progress, log=log, before=own.reader,
        made_by=made_by,
    )  # fmt: skip
    return replace(made, path=os.fspath(named_folder(db)))


def _folder_of(db: Any) -> Path:
    """Return the folder of a dataset that can grow, with symbolic links resolved.

    Raises:
        OptionError: It is not a path.
    """
    if hasattr(db, "reader"):
        raise OptionError(f"append({shown(db)}, ...): expected the path of a dataset, whose open readers do not grow.")
    return Path(os.path.realpath(named_folder(db)))


def _recipe(
    parts: tuple[Part, ...],
    call: str,
    fields: Sequence[str] | None,
    add_classes: bool,
    prefix_sources: bool,
    drop_sources: bool,
) -> tuple[Recipe, list[str]]:
    """Return what is to be made of datasets that are put one after the other, and notes.

    Raises:
        OptionError: The datasets do not fit together.
    """
    add_classes, drop_sources = flag("add_classes", add_classes), flag("drop_sources", drop_sources)
    names = chosen_fields(parts, fields)
    common = _common_fields(parts, names, is_chosen=fields is not None, grows=call == "append")
    has_clips = holds_clips({f.name: f for f in common})
    if flag("prefix_sources", prefix_sources) and drop_sources and not has_clips:
        raise OptionError(
            f"{option('prefix_sources', True)} has no effect with {option('drop_sources', True)}. Leave one out."
        )
    with_source = _keeps_sources(parts, drop_sources)
    if prefix_sources:
        parts = _prefixed(parts, with_source or has_clips, grows=call == "append")
    # A call that was killed after the grown dataset was in place finds its own clips there, and is done.
    looks_at_clips = has_clips and not (call == "append" and Work(parts[0].reader.path).is_published())
    shared = _shared_clips(parts) if looks_at_clips else []
    classes, parts, notes = _common_classes(parts, names, add_classes)
    notes += [*_differences(parts, common), *shared]
    choices = {"add_classes": True} if add_classes and any(part.numbers for part in parts) else {}
    return Recipe(parts, common, classes, with_source, call, choices), notes


def titled(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return parts that are called like their folders in messages, if those names differ."""
    names = {part.reader.place: part.reader.name for part in parts}
    differ = len(set(names.values())) == len(names)
    return tuple(replace(part, title=names[part.title]) if differ else part for part in parts)


def _common_fields(parts: Sequence[Part], names: Sequence[str], *, is_chosen: bool, grows: bool) -> tuple[Field, ...]:
    """Return the fields of the new dataset: those of the first part.

    Raises:
        OptionError: A part has other fields, or fields of another kind.
    """
    first = parts[0]
    for part in parts[1:]:
        if not is_chosen and set(part.names) != set(names):
            common = [name for name in names if name in part.names]
            line = "They have no field in common."
            if common:
                these = option("fields", ",".join(common) if option("fields").startswith("-") else common)
                line = f"Copy only those that all of them have: {these}."
                if grows and len(common) < len(names):
                    line = f"A dataset that grows keeps its fields; `lmdbloader merge` with {these} makes a new one."
            raise OptionError(
                f"{part.title} has the fields {', '.join(part.names)}; {first.title} has {', '.join(names)}. {line}"
            )
        for name in names:
            _compare_fields(first, part, name)
    return undecided([first.reader.fields[name] for name in names])


def _compare_fields(first: Part, part: Part, name: str) -> None:
    """Raise OptionError if a field means something else in another dataset."""
    one, other = first.reader.fields[name], part.reader.fields[name]
    kinds = {
        "is of kind {}": (one.kind, other.kind),
        "has the ignore_index {}": (one.ignore_index, other.ignore_index),
        "is in the image {}": (one.image, other.image),
        "has tiles of {} pixels": (one.tile_size, other.tile_size),
    }
    if one.has_pixels and len(first) and len(part):
        kinds[f"has {one.kind}s of {{}}"] = (first.reader.look(name), part.reader.look(name))
    for what, (before, now) in kinds.items():
        if before != now:
            raise OptionError(
                f"field {name!r} {what.format(before)} in {first.title} and {what.format(now)} in {part.title}. Leave "
                f"the field out ({option('fields')}), or write one of the datasets again."
            )


def _keeps_sources(parts: Sequence[Part], drops: bool) -> bool:
    """Return whether the samples keep the names of their sources.

    Raises:
        OptionError: Only some of the datasets have them.
    """
    having = [part for part in parts if part.reader.manifest.with_source]
    lacking = [part for part in parts if not part.reader.manifest.with_source]
    if drops or not having:
        return False
    if lacking:
        raise OptionError(
            f"{having[0].title} has the name of each sample's source, {lacking[0].title} has none (it was written from "
            f"Python without them). Leave the names out of the new dataset: {option('drop_sources', True)}."
        )
    return True


def _shared_clips(parts: Sequence[Part]) -> list[str]:
    """Return a note if clips have frames of two parts.

    Raises:
        OptionError: Two parts have the same frame of a clip.
    """
    owners: dict[str, Part] = {}
    frames: dict[str, set[int]] = {}
    shared: dict[str, None] = {}
    for part in parts:
        rows = np.arange(len(part.reader)) if part.rows is None else part.rows
        found: dict[str, set[int]] = {}
        for clip, frame in zip(part.reader.read_texts(CLIP, rows), part.reader.index.take(FRAME, rows), strict=True):
            found.setdefault(f"{part.prefix}/{clip}" if part.prefix else clip, set()).add(int(frame))
        for clip, numbers in found.items():
            if (owner := owners.setdefault(clip, part)) is not part:
                _refuse_shared_frames(part, owner, clip, frames[clip] & numbers)
                shared[clip] = None
            frames.setdefault(clip, set()).update(numbers)
    if not shared:
        return []
    line = f"If they are different videos, keep them apart with {option('prefix_sources', True)}."
    return [f"clips with frames of several datasets: {first_of([*shared])}. {line}"]


def _refuse_shared_frames(part: Part, owner: Part, clip: str, frames: set[int]) -> None:
    if frames:
        line = f"Put the name of each dataset in front of its clips: {option('prefix_sources', True)}"
        if part.prefix:
            condition = f"clip != {clip.removeprefix(f'{part.prefix}/')!r}"
            line = f"Leave it out: lmdbloader subset {part.reader.path} {condition!r} -o OUT"
        raise OptionError(f"{part.title}: frame {min(frames)} of clip {clip!r} is also in {owner.title}. {line}.")


def _prefixed(parts: Sequence[Part], with_names: bool, *, grows: bool) -> tuple[Part, ...]:
    """Return parts whose sources and clips have the name of the dataset in front; those of a dataset that grows stay.

    Raises:
        OptionError: There are neither sources nor clips, or two datasets have the same name.
    """
    if not with_names:
        raise OptionError(f"{option('prefix_sources', True)}: the datasets have no sources. Leave it out.")
    names: dict[str, str] = {}
    found = list(parts[:grows])
    for part in parts[grows:]:
        name = part.reader.name.removesuffix(".lmdb")
        if names.setdefault(name, part.reader.place) != part.reader.place:
            raise OptionError(
                f"{option('prefix_sources', True)}: {names[name]} and {part.reader.place} both have the name {name!r}. "
                "Rename one of them."
            )
        found.append(replace(part, prefix=name))
    return tuple(found)


def _common_classes(
    parts: Sequence[Part], names: Sequence[str], adds: bool
) -> tuple[dict[str, tuple[str, ...]], tuple[Part, ...], list[str]]:
    """Return the classes of the new dataset by field, the parts with the new numbers of their labels, and notes.

    Args:
        parts: The samples; the classes of the first come first.
        names: Of the fields.
        adds: Whether others may have further classes.

    Raises:
        OptionError: Only some of the datasets name the classes, or one has other classes.
    """
    merged: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    found = list(parts)
    for name in names:
        if not any(part.reader.manifest.classes.get(name) for part in parts):
            continue
        _check_named(parts, name)
        numbers: dict[str, int] = {}
        for i, part in enumerate(parts):
            classes = part.reader.manifest.classes[name]
            if new := [class_name for class_name in classes if class_name not in numbers] if i else []:
                if not adds:
                    raise _other_classes(parts[0], part, name, new)
                notes.append(f"{name}: {counted(len(new), 'class', 'classes')} of {part.title} added: {first_of(new)}")
            numbers |= {class_name: len(numbers) + k for k, class_name in enumerate(new if i else classes)}
            table = np.array([numbers[class_name] for class_name in classes], np.int64)
            if (moved := np.flatnonzero(table != np.arange(len(table)))).size:
                found[i] = replace(found[i], numbers={**found[i].numbers, name: table})
                shown = [f"{classes[k]} {k} to {table[k]}" for k in moved.tolist()]
                notes.append(f"{name}: the labels of {part.title} are renumbered: {first_of(shown)}")
        merged[name] = tuple(numbers)
    return merged, tuple(found), notes


def _check_named(parts: Sequence[Part], name: str) -> None:
    """Raise OptionError unless every dataset names the classes of a field, each differently."""
    leave = f"leave the field out ({option('fields')})"
    for part in parts:
        classes = part.reader.manifest.classes.get(name) or ()
        if not classes:
            raise OptionError(
                f"{part.title} has numbers only for the classes of {name!r}, and others have names, so whether they "
                f"mean the same is not known. Write it again with write(..., classes=...), or {leave}."
            )
        if len({*classes}) != len(classes):
            raise OptionError(
                f"{part.title}: two classes of {name!r} have the same name, so labels cannot be matched: {leave}."
            )


def _other_classes(first: Part, part: Part, name: str, new: Sequence[str]) -> OptionError:
    """Return the error for a dataset with classes that the first one does not have."""
    return OptionError(
        f"{part.title} has {counted(len(new), 'class', 'classes')} of {name!r} that {first.title} lacks "
        f"({first_of(new)}). If they are other classes, add them after those: {option('add_classes', True)}. If they "
        "are the same under other names, write one of the datasets again: lmdbloader.write(..., classes=...)."
    )


def _differences(parts: Sequence[Part], fields: Sequence[Field]) -> Iterator[str]:
    """Yield notes about the images of datasets that differ."""
    for f in fields:
        if f.kind == "image":
            looks = [_look(part, f.name) for part in parts]
            if len(set(looks)) > 1:
                yield f"{f.name}: {_by_title(parts, looks)}"


def _look(part: Part, name: str) -> str:
    """Return the channels and bits of a field's images as text."""
    kinds = np.unique(part.column(f"{name}.bits").astype(np.int64) * 256 + part.column(f"{name}.channels")).tolist()
    return " and ".join(f"{bits_text(kind // 256)} {channels_text(kind % 256)}" for kind in kinds)


def _by_title(parts: Sequence[Part], values: Sequence[str]) -> str:
    """Return values with the datasets that have them.

    Args:
        parts: The datasets.
        values: One for each.
    """
    titles: dict[str, list[str]] = {}
    for part, value in zip(parts, values, strict=True):
        titles.setdefault(value, []).append(part.title)
    return "; ".join(f"{value} in {first_of(list(dict.fromkeys(names)), 3)}" for value, names in titles.items())
