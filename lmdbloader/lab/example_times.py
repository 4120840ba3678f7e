"""The time of single examples, of which the longest one holds up its whole batch."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from lmdbloader.base.text import plain
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.lab.formatting import seconds as show
from lmdbloader.lab.stored import column
from lmdbloader.loader.torch_loader import unmoved
from lmdbloader.transforms import Transform

# Examples that are timed at most, and those of them that are timed again because they took longest.
_MOST_EXAMPLES = 2000
_TIMED_AGAIN, _REPEATS = 8, 5
# The examples with the most pixels, which a random draw would miss.
_LARGEST = 4


@dataclass(frozen=True, slots=True)
class ExampleTimes:
    """The times of examples that were read one by one, by one thread.

    Attributes:
        num_timed: Examples that were drawn at random and timed.
        p50_seconds, p99_seconds: Of these.
        longest_seconds: The longest, also of the examples with the most pixels.
        slowest: The number of the sample that takes longest when the longest ones are read again.
        slowest_name: Its source; None if the dataset does not store it.
        slowest_seconds: The median of five such reads: what the example itself costs.
        batch_size: Samples in a batch.
    """

    num_timed: int
    p50_seconds: float
    p99_seconds: float
    longest_seconds: float
    slowest: int
    slowest_name: str | None
    slowest_seconds: float
    batch_size: int

    def __str__(self) -> str:
        """Return the times, and what the slowest example does to a batch."""
        usual = self.batch_size * self.p50_seconds
        longer = usual - self.p50_seconds + self.slowest_seconds
        name = f"sample {self.slowest:,}" + (f" ({plain(self.slowest_name)})" if self.slowest_name else "")
        times = (
            f"Single examples in one thread: p50 {show(self.p50_seconds)}, p99 {show(self.p99_seconds)}, the longest "
            f"{show(self.longest_seconds)}."
        )
        if self.slowest_seconds <= self.p50_seconds:
            return f"{times} None of them is slow when it is read again."
        return (
            f"{times} The slowest is {name}: {show(self.slowest_seconds)}; with it a batch of {self.batch_size} takes "
            f"{show(longer)} instead of {show(usual)}."
        )


def time_examples(
    dataset: Any,
    batch_size: int,
    *,
    transforms: Sequence[Transform] = (),
    seconds: float = 1.0,
) -> ExampleTimes:
    """Return the times of examples of a dataset, read one by one in this thread.

    Examples are drawn at random; of an LMDBDataset those with the most pixels are added for the longest time. Those
    that took longest are read five times more, which tells a slow example from a slow moment. No random state changes,
    except that of a dataset's own Python code.

    Args:
        dataset: An LMDBDataset or its path, or anything else with a length and integer indices.
        batch_size: Samples in a batch.
        transforms: Compiled ones, of an LMDBDataset.
        seconds: To spend, about; the examples with the most pixels are timed in any case.

    Raises:
        OptionError: It is not a dataset, or it is empty, or the transforms do not suit it.
    """
    if isinstance(dataset, str | os.PathLike):
        dataset = LMDBDataset(dataset)
    length = len(dataset)
    if not length:
        raise OptionError("time_examples: the dataset is empty")
    ours = dataset if isinstance(dataset, LMDBDataset) else None
    view = dataset if ours is None or not transforms else ours.transformed(transforms)
    rng = np.random.default_rng(0)
    drawn = rng.choice(length, min(length, _MOST_EXAMPLES), replace=False)

    def took(number: int) -> float:
        began = time.perf_counter()
        view[number]
        return time.perf_counter() - began

    with unmoved(view):
        view[int(drawn[0])]  # loads code
        until = time.perf_counter() + seconds / 2
        found: dict[int, float] = {}
        for number in drawn.tolist():
            found[number] = took(number)
            if time.perf_counter() >= until:
                break
        both = {**{number: took(number) for number in _largest(ours)}, **found}
        until = time.perf_counter() + seconds / 2
        again: dict[int, float] = {}
        for number in sorted(both, key=both.__getitem__, reverse=True)[:_TIMED_AGAIN]:
            again[number] = median(took(number) for _ in range(_REPEATS))
            if time.perf_counter() >= until:
                break
    slowest = max(again, key=again.__getitem__)
    values = np.array(list(found.values()))
    p50, p99 = np.percentile(values, [50, 99])
    return ExampleTimes(
        num_timed=len(found),
        p50_seconds=float(p50),
        p99_seconds=float(p99),
        longest_seconds=max(both.values()),
        slowest=slowest,
        slowest_name=_source(ours, slowest),
        slowest_seconds=again[slowest],
        batch_size=batch_size,
    )


def _largest(dataset: LMDBDataset | None) -> list[int]:
    """Return the numbers of the examples with the most bytes of pixels."""
    fields = [] if dataset is None else [name for name, f in dataset.fields.items() if f.kind == "image"]
    if dataset is None or not fields:
        return []
    nbytes = np.sum([column(dataset, name, "raw_nbytes").astype(np.int64) for name in fields], axis=0)
    most = np.argpartition(nbytes, max(len(nbytes) - _LARGEST, 0))[-_LARGEST:]
    return [int(number) for number in most.tolist()]


def _source(dataset: LMDBDataset | None, number: int) -> str | None:
    """Return the source of a sample, if the dataset stores it."""
    if dataset is None or not dataset.reader.manifest.with_source:
        return None
    return dataset.reader.source(int(dataset.rows_of(np.array([number], np.int64))[0]))
