"""How fast batches come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

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
        epoch: Returns the batches of an epoch; `LEFT_OUT` for one of which all samples are damaged.
        first: Number of the epoch to begin with.
        seconds: How long to read; one batch at least.
    """
    latencies: list[float] = []
    samples, number = 0, first
    began = before = time.perf_counter()
    while before - began < seconds:
        for batch in epoch(number):
            now = time.perf_counter()
            latencies.append(now - before)
            before = now
            samples += 0 if batch is LEFT_OUT else len(batch[0])
            if now - began >= seconds:
                break
        number += 1
    p50, p99 = np.percentile(latencies, [50, 99])
    return Throughput(samples / (before - began), float(p50), float(p99), len(latencies))
