"""`lmdbloader.subset`: some samples of a dataset, in a new one."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import flag, number, optional, whole
from lmdbloader.base.option_names import option
from lmdbloader.base.text import counted
from lmdbloader.conversion.combining import Combined, Part, Recipe, chosen_fields, combine, open_part
from lmdbloader.conversion.destination import new_folder
from lmdbloader.conversion.selection import mixed
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import CLIP, holds_clips, undecided
from lmdbloader.store import check_rows
from lmdbloader.store.conditions import matching

I64 = npt.NDArray[np.int64]


def subset(
    dataset: Any,
    out: str | os.PathLike[str],
    where: str | None = None,
    *,
    indices: Any = None,
    names: Sequence[str] | None = None,
    limit: int | None = None,
    fraction: float | None = None,
    seed: int | None = None,
    fields: Sequence[str] | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Combined:
    """Write some samples of a dataset into a new one.

    The stored bytes are copied: nothing is encoded again, and every checksum is verified. Labels keep their
    numbers, and the new dataset has all classes. A call that was interrupted keeps its complete parts in OUT.partial
    for the next one.

    Args:
        dataset: A path, or an LMDBDataset, which may be a view of some samples or fields.
        out: The new dataset. One that was made of the same samples by the same call is left as it is.
        where: A condition on the columns of `LMDBDataset.table`, as for `LMDBDataset.where`: "label in ('cat', 'dog')
            and image.width >= 256".
        indices: Numbers of samples, or one bool per sample; the new dataset has their order. A number may repeat.
        names: Names of sources, whose samples are taken in this order.
        limit: Take only this many of the samples, chosen at random, in their order.
        fraction: Take only this share of the samples, chosen at random, in their order.
        seed: Of `limit` and `fraction`, 0 by default; the choice depends only on it and the numbers of the samples, and
            a smaller choice is a part of a larger one.
        fields: The fields to copy, in this order; by default all.
        overwrite: Replace an existing dataset, once the new one is complete.
        restart: Discard the progress of an interrupted call; by default it is continued.
        progress: Show the progress: a line on a terminal, in a log one every 30 seconds.
        log: Called with each message, a line of text.

    Returns:
        A summary of the new dataset.

    Raises:
        NotFoundError: The dataset does not exist.
        FormatError: It is not a finished dataset of this format version.
        CorruptError: It is damaged; nothing is put in place. `lmdbloader repair` saves its sound samples.
        OptionError: The condition, a number or a name does not fit the dataset, no sample is left, or `limit` or
            `fraction` would take single frames of clips.
        DestinationError: `out` is taken, the dataset or inside of it; or another call is unfinished there.
        DiskFullError: No room left.

    >>> import tempfile, numpy, lmdbloader
    >>> place = tempfile.mkdtemp()
    >>> samples = ({"image": numpy.full((8, 8), i, "uint8"), "label": i % 3} for i in range(9))
    >>> written = lmdbloader.write(samples, f"{place}/all")
    >>> lmdbloader.subset(f"{place}/all", f"{place}/some", where="label == 2").num_samples
    3
    """
    overwrite, restart, progress = flag("overwrite", overwrite), flag("restart", restart), flag("progress", progress)
    target = new_folder(out)
    part = open_part(dataset, "subset")
    if all(choice is None for choice in (where, indices, names, limit, fraction, fields)) and part.rows is None:
        raise OptionError(
            f"subset: nothing says which samples to take; expected one of {option('where')}, {option('indices')}, "
            f"{option('names')}, {option('limit')}, {option('fraction')} and {option('fields')}"
        )
    given = len(part)
    if indices is not None and names is not None:
        raise OptionError(f"{option('indices')} and {option('names')} both choose the samples. Leave one of them out.")
    if indices is not None:
        part = _by_number(part, indices)
    if names is not None:
        part = _by_name(part, names)
    if where is not None:
        rows = range(len(part.reader)) if part.rows is None else part.rows
        part = part.selected(matching(part.reader, rows, where))
    if not len(part):
        what = f"no sample fits the condition {where}" if where is not None else "no sample is chosen"
        raise OptionError(f"{part.title}: {what}, of {counted(given, 'sample')}; a dataset has at least one.")
    chosen = chosen_fields([part], fields)
    if (limit, fraction) != (None, None):
        _refuse_clips(part, chosen)
    part = _some(part, limit, fraction, seed)
    manifest = part.reader.manifest
    choices = {"where": where} if where is not None else {}
    recipe = Recipe(
        (part,),
        undecided([part.reader.fields[name] for name in chosen]),
        {name: classes for name, classes in manifest.classes.items() if name in chosen},
        manifest.with_source,
        "subset",
        choices,
    )
    log(f"{target}: {len(part):,} of {counted(given, 'sample')}")
    return combine(recipe, target, (), overwrite=overwrite, restart=restart, progress=progress, log=log)


def _by_number(part: Part, indices: Any) -> Part:
    """Return the samples with some numbers, in their order.

    Raises:
        OptionError: A number is beyond the end, or they are something else.
    """
    chosen = np.asarray(indices)
    if chosen.dtype == np.bool_:
        if chosen.shape != (len(part),):
            raise OptionError(
                f"{option('indices')}: a mask of shape {chosen.shape} for {counted(len(part), 'sample')}; expected one "
                "bool per sample"
            )
        return part.selected(np.flatnonzero(chosen))
    try:
        return part.selected(check_rows(chosen, len(part)))
    except (IndexError, TypeError) as error:
        raise OptionError(f"{option('indices')}: {error}") from error


def _by_name(part: Part, names: Sequence[str]) -> Part:
    """Return the samples of some sources, in the order of the names.

    Raises:
        OptionError: The dataset has no sources, or none of this name; or a name is given twice.
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise OptionError(f"{option('names', names)}: expected a list of names of sources")
    if not part.reader.manifest.with_source:
        raise OptionError(
            f"{part.title}: its samples have no sources (it was written from Python without them), so "
            f"{option('names')} cannot choose them. Give their numbers: {option('indices')}."
        )
    column = part.reader.index.names["source"]
    codes = column.codes if part.rows is None else column.codes[part.rows]
    # Of a view, only the sources of its samples.
    codes_of: dict[str, list[int]] = {}
    for code in np.unique(codes).tolist():
        codes_of.setdefault(column.texts[code], []).append(code)
    wanted: dict[str, list[int]] = {}
    for name in names:
        if name not in codes_of:
            raise OptionError(f"{option('names')}: {part.title} has no source {name!r:.200}")
        if name in wanted:
            raise OptionError(f"{option('names')}: {name!r:.200} is given twice. Give each name once.")
        wanted[name] = codes_of[name]
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    asked = np.array([code for found in wanted.values() for code in found], codes.dtype)
    starts = np.searchsorted(sorted_codes, asked, side="left")
    stops = np.searchsorted(sorted_codes, asked, side="right")
    pieces = [order[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    return part.selected(np.concatenate(pieces) if pieces else np.empty(0, np.int64))


def _refuse_clips(part: Part, chosen: Sequence[str]) -> None:
    """Raise OptionError for frames of clips: single ones, chosen at random, make no windows."""
    if holds_clips({name: part.reader.fields[name] for name in chosen}):
        raise OptionError(
            f"{part.title}: {option('limit')} and {option('fraction')} would take single frames of clips. Take whole "
            f"clips: lmdbloader subset DB \"clip in ('000', '001')\" -o OUT; or a share of them in Python: "
            f"lmdbloader.subset(lmdbloader.LMDBDataset({part.title!r}).split([0.1, 0.9])[0], OUT). For single frames "
            f"leave out the field {CLIP!r}: {option('fields')}."
        )


def _some(part: Part, limit: int | None, fraction: float | None, seed: int | None) -> Part:
    """Return some of the samples, chosen at random, in their order.

    Raises:
        OptionError: There are fewer, the share is not one, or a seed has nothing to choose.
    """
    limit = optional(whole, "limit", limit)
    share = optional(number, "fraction", fraction)
    if limit is None and share is None:
        if seed is not None:
            raise OptionError(
                f"{option('seed', seed)} has no effect without {option('limit')} or {option('fraction')}. Leave it out."
            )
        return part
    if limit is not None and share is not None:
        raise OptionError(f"{option('limit')} and {option('fraction')} are both given. Leave one of them out.")
    if limit is not None and not 1 <= limit <= len(part):
        raise OptionError(f"{option('limit', limit)} of {counted(len(part), 'sample')}: expected 1 to {len(part)}")
    if share is not None and not 0 < share <= 1:
        raise OptionError(f"{option('fraction', fraction)}: expected a share above 0, at most 1")
    count = limit if limit is not None else max(1, math.floor((share or 0) * len(part) + 0.5))
    start = mixed(np.array([whole("seed", 0 if seed is None else seed, 0, 2**64 - 1)], np.uint64))
    rows = np.arange(len(part)) if part.rows is None else part.rows
    order = np.argsort(mixed(rows.astype(np.uint64) ^ start), kind="stable")
    return replace(part).selected(np.sort(order[:count]))
