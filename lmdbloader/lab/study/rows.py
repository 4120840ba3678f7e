"""The rows of a study, and how many times as fast one is as another."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lmdbloader.lab.arms import Arm, LoaderKind


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
        turns: Samples a second of each turn, of all processes together. Turns of one number are neighbours in time.
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
    """How many times as fast one arm is as another, by turns that are neighbours in time.

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
