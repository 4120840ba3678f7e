"""A study: rows of figures, the tables that `print` shows of them, and plain values for JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lmdbloader.base.stage_times import STAGES
from lmdbloader.base.text import plain
from lmdbloader.lab.arms import LOADER_NAMES, Arm, LoaderKind
from lmdbloader.lab.formatting import WIDTH, Column, Table, define, number, percent, seconds, wrap


@dataclass(frozen=True, slots=True)
class StudyRow:
    """The figures of one arm.

    Attributes:
        section: loading, cold or warm.
        source: Who makes the batches: lmdbloader, dataloader or folder.
        batch_size: Samples in a batch.
        crop: Side of the random window in pixels of the largest image; None: whole images.
        num_workers: Threads of the Loader, worker processes of torch's DataLoader.
        order: Of the samples: random or quasi_random.
        num_processes: That load at the same time.
        turns: Samples a second of each turn, of all processes together. Turns of one number are neighbors in time.
        figures: What else was measured, by name: seconds, shares, bytes.
    """

    section: str
    source: LoaderKind
    batch_size: int
    crop: int | None
    num_workers: int
    order: str
    num_processes: int
    turns: tuple[float, ...]
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def samples_per_s(self) -> float:
        """The median of the turns."""
        return statistics.median(self.turns)


def row_of(
    section: str, arm: Arm, turns: Sequence[float], figures: Mapping[str, float], *, num_processes: int = 1
) -> StudyRow:
    """Return the row of an arm."""
    setting = arm.source, arm.batch_size, arm.crop, arm.num_workers, arm.order
    return StudyRow(section, *setting, num_processes, tuple(turns), figures)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast one arm is as another, by turns that are neighbors in time.

    Attributes:
        value: The median of the turns' ratios.
        low, high: The smallest and the largest.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the median, and the range if there is one.

        >>> str(Ratio(38.2, 36.0, 40.4)), str(Ratio(0.98, 0.98, 0.98))
        ('38 (36 to 40)', '0.98')
        """
        value, low, high = map(show_times, (self.value, self.low, self.high))
        return value if low == high else f"{value} ({low} to {high})"


def show_times(value: float) -> str:
    """Return a ratio with two digits, or all of those before the point.

    >>> show_times(0.984), show_times(1.26), show_times(138.2)
    ('0.98', '1.3', '138')
    """
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def ratio(row: StudyRow, other: StudyRow) -> Ratio:
    """Return how many times as fast a row is as another of the same study.

    >>> from dataclasses import replace
    >>> row = StudyRow("loading", "lmdbloader", 8, 64, 2, "random", 1, (90.0, 60.0, 80.0))
    >>> ratio(row, replace(row, turns=(30.0, 30.0, 40.0)))
    Ratio(value=2.0, low=2.0, high=3.0)
    """
    found = [one / two for one, two in zip(row.turns, other.turns, strict=True)]
    return Ratio(statistics.median(found), min(found), max(found))


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
        how = "about as fast" if min(ratios) >= 0.95 and max(ratios) < 1.05 else f"{' to '.join(ends)} times as fast"
        spans.append(f"{how} as the {name}")
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


@dataclass(frozen=True, slots=True)
class Study:
    """A whole study; `print` shows its tables.

    Attributes:
        facts: What was measured on what, as text by name: dataset, machine and so on.
        environment: All that reproduces it: `machine.describe(path).as_json()`.
        rows: Every figure.
        notes: What was left out and why, in sentences.
    """

    facts: Mapping[str, str]
    environment: Mapping[str, Any]
    rows: tuple[StudyRow, ...]
    notes: tuple[str, ...]

    def section(self, name: str) -> tuple[StudyRow, ...]:
        """Return the rows of a section, in the order in which they were measured.

        Args:
            name: Of the section, see `StudyRow`.
        """
        return tuple(row for row in self.rows if row.section == name)

    def __str__(self) -> str:
        """Return what was measured on what, and the tables."""
        parts = ["\n".join(define([(name, plain(value)) for name, value in self.facts.items()], width=WIDTH))]
        for table, line in tables_of(self.rows):
            parts.append("\n".join([*table.lines(), *wrap(line, "  ", "  ")]))
        if self.notes:
            parts.append("\n".join(line for note in self.notes for line in wrap(plain(note), "- ", "  ")))
        return "\n\n".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return asdict(self)
