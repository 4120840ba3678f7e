"""The card of a dataset: samples spread over it, its fields, sizes and path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lmdbloader.base.text import counted
from lmdbloader.base.units import show_nbytes
from lmdbloader.errors import CorruptError, LmdbloaderError
from lmdbloader.format.layout import Field, parse_array_type
from lmdbloader.show.card import MAX_SIDE_BY_SIDE, Card, Pixels, Shown, as_picture, num_shown, place_of
from lmdbloader.show.labels import in_colors
from lmdbloader.show.sheet import caption, spread
from lmdbloader.show.summary import FieldSummary, Summary, summarize_reader
from lmdbloader.store import Reader
from lmdbloader.store.rows import Rows

# Errors of reading damaged data, or data too large for this machine; a card shows them.
READ_ERRORS = (LmdbloaderError, OSError, ValueError, TypeError, MemoryError)
# Decoding more takes too long for a card.
_MAX_NBYTES = 200_000_000
_CLASSES_SHOWN = 8


def dataset_card(
    reader: Reader,
    fields: Sequence[Field],
    rows: Rows | None,
    *,
    title: str,
    transforms: Sequence[str] = (),
) -> Card:
    """Return the card of a dataset or a view; it reports damaged data instead of raising an error.

    Args:
        reader: Of the dataset.
        fields: The view's.
        rows: Row numbers of the view in the index, a range or (n,); None means all.
        title: Name of the class.
        transforms: Descriptions of the view's transforms.
    """
    num_samples = counted(len(reader), "sample")
    headline = num_samples if rows is None else f"{len(rows):,} of {num_samples}"
    samples = _samples(reader, fields, rows)
    facts = [("Transforms", ", then ".join(transforms))] if transforms else []
    notes = ["The pictures are what is stored, before the transforms."] if transforms and samples else []
    place = place_of(reader.place)
    try:
        summary = summarize_reader(reader, place)
    except READ_ERRORS as error:
        kinds = [(f.name, f.kind) for f in fields]
        return Card(title, place, headline, samples, facts, ("field", "kind"), kinds, [*notes, f"Damaged: {error}"])
    names = {f.name for f in fields}
    facts += [(f"Classes ({name})", _classes(cs)) for name, cs in summary.classes.items() if name in names]
    table = [_row(f) for f in summary.fields if f.name in names]
    header = ("field", "kind", "what", "stored", "codec")
    return Card(title, place, f"{headline}{_sizes(summary)}", samples, facts, header, table, notes)


def _samples(reader: Reader, fields: Sequence[Field], rows: Rows | None) -> list[Shown]:
    length = len(reader) if rows is None else len(rows)
    seen = [f for f in fields if f.has_pixels or f.kind == "array"][:MAX_SIDE_BY_SIDE]
    if not length or not seen:
        return []
    shown = []
    for number in spread(length, num_shown(len(seen))):
        row = number if rows is None else int(rows[number])
        pictures = [(f.name, picture) for f in seen if (picture := _read(reader, f, row)) is not None]
        if pictures:
            shown.append(Shown(pictures, _caption(reader, number, row)))
    return shown


def _read(reader: Reader, f: Field, row: int) -> Pixels | str | None:
    """Return a field's pixels, a text that explains why there are none, or None for an array that is not a picture."""
    try:
        check_whole(reader)
        nbytes = int(reader.raw_nbytes(f.name, np.array([row]))[0])
        if f.kind == "array":
            dtype, shape = parse_array_type(reader.index.text(f"{f.name}.type", row))
            if as_picture(np.broadcast_to(np.zeros((), dtype), shape)) is None:
                return None
        elif not nbytes:
            return None
        if nbytes > _MAX_NBYTES:
            return f"{show_nbytes(nbytes)}: too large to show"
        if f.kind == "mask":
            return in_colors(reader.read_image(f.name, row), f.ignore_index)
        return reader.read_image(f.name, row) if f.has_pixels else as_picture(reader.read_array(f.name, row))
    except READ_ERRORS as error:
        return f"damaged: {reason(error)}"


def check_whole(reader: Reader) -> None:
    """Check the lengths of the data files: reading a lost part of a mapped file would end the process.

    Raises:
        CorruptError: It was cut short after it was opened.
    """
    if lost := reader.data_file.lost():
        raise CorruptError(f"{lost[0]} was cut short", path=str(reader.path))


def reason(error: BaseException) -> str:
    """Return the cause in an error's message, without the place, which the card shows elsewhere."""
    return str(error).rpartition("): ")[2].partition(". `lmdbloader")[0] or type(error).__name__


def _caption(reader: Reader, number: int, row: int) -> str:
    try:
        return "  ".join(filter(None, (str(number), *caption(reader, row))))
    except READ_ERRORS as error:
        return f"{number}  damaged: {error}"


def _sizes(summary: Summary) -> str:
    text = "" if summary.num_parts is None else f" in {counted(summary.num_parts, 'part')}"
    text += "" if summary.num_sources is None else f" from {counted(summary.num_sources, 'source')}"
    sizes = summary.sizes
    text += f", {show_nbytes(sizes['data_nbytes'] + sizes['index_nbytes'])} on disk"
    if sizes["raw_nbytes"]:
        text += f", {show_nbytes(sizes['raw_nbytes'])} decoded ({summary.compression_ratio:.2f} : 1)"
    return text


def _classes(classes: Sequence[tuple[str, int | None]]) -> str:
    text = ", ".join(name if count is None else f"{name} {count:,}" for name, count in classes[:_CLASSES_SHOWN])
    rest = len(classes) - _CLASSES_SHOWN
    return f"{text} and {rest:,} more" if rest > 0 else text


def _row(f: FieldSummary) -> tuple[Any, ...]:
    stored = "" if f.stored_nbytes is None else show_nbytes(f.stored_nbytes)
    if f.stored_nbytes is not None and f.raw_nbytes:
        stored += f" ({f.stored_nbytes / f.raw_nbytes:.0%})"
    return f.name, f.kind, f.describe(), stored, ", ".join(f"{name} {n:,}" for name, n in (f.codecs or {}).items())
