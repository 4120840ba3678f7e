"""How fast batches come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np

from lmdbloader.base.stopwatch import time_batches
from lmdbloader.loader.source import LEFT_OUT


@dataclass(frozen=True, slots=True)
class Throughput:
    """What `Loader.benchmark` measured.

    Attributes:
        samples_per_s: Samples a second.
        p50_seconds, p99_seconds: Median and 99th percentile of the time from asking for a batch to having it.
        num_batches: How many batches were measured.
    """

    samples_per_s: float
    p50_seconds: float
    p99_seconds: float
    num_batches: int


def measure(epoch: Callable[[int], Iterator[Any]], first: int, seconds: float) -> Throughput:
    """Read epoch after epoch for some seconds.

    Args:
        epoch: Returns the batches of an epoch; `LEFT_OUT` for a batch whose samples are all damaged.
        first: Number of the epoch to begin with.
        seconds: How long to read; one batch at least.
    """
    batches = chain.from_iterable(epoch(number) for number in count(first))
    found = time_batches(batches, seconds, lambda batch: 0 if batch is LEFT_OUT else len(batch[0]))
    p50, p99 = np.percentile(found.waits, [50, 99])
    return Throughput(found.samples_per_s, float(p50), float(p99), len(found.waits))
