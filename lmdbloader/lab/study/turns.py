"""Times one setting for a short while, and makes one figure of several such turns."""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.lab.study.feeds import Feed
from lmdbloader.lab.study.results import Latency

# A turn measures at least so many batches, or for this many times its seconds if they do not come.
_LEAST_BATCHES, _PATIENCE = 4, 4.0
_BINS_A_DECADE = 8
_SHORTEST_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of loading measured.

    Attributes:
        num_samples: Samples that came.
        seconds: In which they came.
        waits: How long each batch was waited for, in seconds.
        cpu_seconds: Processor time of this process and its workers meanwhile.
    """

    num_samples: int
    seconds: float
    waits: tuple[float, ...]
    cpu_seconds: float

    @property
    def samples_per_s(self) -> float:
        """Samples a second."""
        return self.num_samples / self.seconds


def take_turn(feed: Feed, seconds: float, *, after_seconds: float = 0.0) -> Turn:
    """Load for a while, nothing done with the batches.

    Workers start anew with every turn, so that no other turn's are at work meanwhile. What is timed begins when each
    has given a batch: neither what starting takes nor what was ready before counts.

    Args:
        feed: Gives batches.
        seconds: How long.
        after_seconds: How long to go on after that, for others that measure at the same time.
    """
    waits: list[float] = []
    with feed.stream() as batches:
        for _ in range(feed.num_first):
            next(batches)
        cpu = cpu_seconds()
        began = before = time.perf_counter()
        while not _is_enough(before - began, len(waits), seconds):
            next(batches)
            now = time.perf_counter()
            waits.append(now - before)
            before = now
        cpu = cpu_seconds() - cpu
        while time.perf_counter() - before < after_seconds:
            next(batches)
    return Turn(len(waits) * feed.setting.batch_size, before - began, tuple(waits), cpu)


def _is_enough(elapsed: float, num_batches: int, seconds: float) -> bool:
    return num_batches > 0 and elapsed >= seconds and (num_batches >= _LEAST_BATCHES or elapsed >= _PATIENCE * seconds)


def median_speed(turns: Sequence[Turn]) -> float:
    """Return the median of the turns' samples a second."""
    return statistics.median(turn.samples_per_s for turn in turns)


def latency_of(waits: Sequence[float]) -> Latency:
    """Return the distribution of times in seconds.

    >>> found = latency_of([0.001, 0.001, 0.002])
    >>> found.p50_seconds, found.counts
    (0.001, (2, 0, 1))
    """
    values = np.maximum(np.asarray(waits, np.float64), _SHORTEST_SECONDS)
    # A value on the limit of two bins, such as a whole power of ten, is in the upper one, however it was rounded.
    bins = np.floor(_BINS_A_DECADE * np.log10(values) + 1e-9).astype(np.int64)
    first, last = int(bins.min()), int(bins.max())
    p50, p99 = np.percentile(waits, [50, 99])
    return Latency(
        p50_seconds=float(p50),
        p99_seconds=float(p99),
        max_seconds=float(max(waits)),
        mean_seconds=math.fsum(waits) / len(waits),
        edges=tuple(10 ** (k / _BINS_A_DECADE) for k in range(first, last + 2)),
        counts=tuple(np.bincount(bins - first).tolist()),
    )


def cpu_seconds() -> float:
    """Return the processor time that this process and its worker processes have taken so far."""
    return time.process_time() + sum(_of_process(child.pid) for child in multiprocessing.active_children())


def _of_process(pid: Any) -> float:
    """Return the processor time of another process; 0 where the system does not tell, or it has ended."""
    with suppress(OSError, ValueError, IndexError):
        # The name in brackets may have spaces; after it, the 12th and 13th are the ticks in user and system mode.
        words = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0
