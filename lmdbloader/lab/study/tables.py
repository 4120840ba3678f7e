"""The tables of a study: every figure, with one line below that compares the Loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lmdbloader.base.stage_times import STAGES
from lmdbloader.lab.arms import LOADER_NAMES
from lmdbloader.lab.formatting import Column, Table, number, percent, seconds
from lmdbloader.lab.study.rows import StudyRow, ratio, show_times

# The value of a column for a row, and for the row that it is compared with; None if it is unknown.
Value = Callable[[StudyRow, StudyRow], Any]
Columns = tuple[tuple[Column, Value], ...]


def tables_of(every: Sequence[StudyRow]) -> Iterator[tuple[Table, str]]:
    """Yield the tables of a study, each with one sentence on how the sources compare; "" if there is only one."""
    for name, (title, of, columns) in _SECTIONS.items():
        rows = [row for row in every if row.section == of and (name != "stages" or "read_seconds" in row.figures)]
        cells = [[value(row, _peer(rows, row)) for _, value in columns] for row in rows]
        # What is unknown of every row, such as the slowest process, has no column.
        known = [place for place in range(len(columns)) if any(row[place] is not None for row in cells)]
        shown = tuple(tuple(row[place] for place in known) for row in cells)
        if rows:
            table = Table(title, tuple(columns[place][0] for place in known), shown)
            yield table, _line(rows) if name == of else ""


def _peer(rows: Sequence[StudyRow], row: StudyRow) -> StudyRow:
    """Return what a row is compared with: the Loader's of its setting."""
    like = row.batch_size, row.crop, row.num_processes
    ours = (other for other in rows if other.source == "lmdbloader")
    return next(other for other in ours if (other.batch_size, other.crop, other.num_processes) == like)


def _line(rows: Sequence[StudyRow]) -> str:
    """Return the least and the most that the Loader is faster than each other source."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if (peer := _peer(rows, row)).source != row.source:
            found.setdefault(LOADER_NAMES[row.source], []).append(ratio(peer, row).value)
    spans = []
    for name, ratios in found.items():
        ends = dict.fromkeys((show_times(min(ratios)), show_times(max(ratios))))
        spans.append(f"{' to '.join(ends)} times as fast as the {name}")
    return f"The Loader is {', '.join(spans)}." if spans else ""


def _half_range(row: StudyRow) -> float | None:
    """Return half of the range of the turns as a share of their median; None for a single turn, which has none."""
    return (max(row.turns) - min(row.turns)) / 2 / row.samples_per_s if len(row.turns) > 1 else None


def _unless_none(show: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "" if value is None else show(value)


def _figure(heading: str, name: str, show: Callable[[Any], str]) -> tuple[Column, Value]:
    return Column(heading, _unless_none(show)), lambda row, _: row.figures.get(name)


_SETTING: Columns = (
    (Column("source", is_text=True), lambda row, _: LOADER_NAMES[row.source]),
    (Column("images", is_text=True), lambda row, _: "whole" if row.crop is None else f"{row.crop} x {row.crop}"),
    (Column("batch", "{:,}".format), lambda row, _: row.batch_size),
)
_SPEED: Columns = (
    (Column("samples/s", number), lambda row, _: row.samples_per_s),
    (Column("±", _unless_none(percent)), lambda row, _: _half_range(row)),
)
_ORDER: tuple[Column, Value] = Column("order", is_text=True), lambda row, _: row.order
_LOADER_IS: tuple[Column, Value] = (
    Column("Loader is, times", _unless_none(str)),
    lambda row, peer: None if row is peer else ratio(peer, row),
)
_COLD = (*_SETTING, _ORDER, _figure("samples", "num_samples", "{:,.0f}".format), *_SPEED, _LOADER_IS)
# The title, the section of the rows, and the columns.
_SECTIONS: dict[str, tuple[str, str, Columns]] = {
    "loading": (
        "Loading", "loading",
        (
            *_SETTING,
            (Column("processes"), lambda row, _: row.num_processes),
            (Column("workers"), lambda row, _: row.num_workers),
            *_SPEED, _LOADER_IS,
            (Column("a batch", seconds), lambda row, _: row.batch_size / row.samples_per_s),
            _figure("wait p99", "wait_p99_seconds", seconds),
            _figure("CPU a sample", "cpu_seconds_per_sample", seconds),
            _figure("slowest", "slowest", number), _figure("fastest", "fastest", number),
        ),
    ),
    "stages": (
        "Time of the Loader's threads for a sample, by stage", "loading",
        (*_SETTING, *(_figure(stage, f"{stage}_seconds", seconds) for stage in STAGES)),
    ),
    "cold": ("From a cold page cache, with the start of threads and workers", "cold", _COLD),
    "warm": ("The same again, from memory", "warm", _COLD),
}  # fmt: skip
