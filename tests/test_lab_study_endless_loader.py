"""Turns count the batches of their time; latencies are in bins that all rows share."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.base.stopwatch import BatchTimes
from lmdbloader.lab.study.endless_loader import LoaderSetting, cpu_seconds, latency_of, median_speed, take_turn


class Ticking:
    """A feed whose batches take a millisecond each by its own clock, which nothing else moves."""

    def __init__(self, batch_size: int = 8) -> None:
        self.setting = LoaderSetting("lmdbloader", batch_size, None, 1)
        self.num_first = 3
        self.given = 0
        self.is_closed = False
        self.milliseconds = 0

    def now(self) -> float:
        return self.milliseconds / 1000

    @contextmanager
    def stream(self) -> Iterator[Iterator[Any]]:
        yield self._batches()
        self.is_closed = True

    def _batches(self) -> Iterator[int]:
        while True:
            self.milliseconds += 1
            self.given += 1
            yield self.given


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A feed by whose clock turns are timed."""
    made = Ticking()
    clock = SimpleNamespace(perf_counter=made.now, process_time=time.process_time)
    for module in ("base.stopwatch", "lab.study.endless_loader"):
        monkeypatch.setattr(f"lmdbloader.{module}.time", clock)
    return made


def test_a_turn_counts_the_batches_after_the_first_ones(feed: Any) -> None:
    turn = take_turn(feed, 0.0195)
    assert feed.is_closed
    assert len(turn.waits) == feed.given - 3 == 20
    assert turn.num_samples == 8 * 20
    assert turn.seconds == pytest.approx(0.02)
    assert turn.waits == pytest.approx([0.001] * 20)
    assert turn.samples_per_s == pytest.approx(8000)


@pytest.mark.parametrize(("seconds", "batches"), [(0.002, 4), (0.0006, 3), (0.0001, 1)])
def test_a_short_turn_has_a_few_batches_unless_that_takes_four_times_as_long(
    feed: Any, seconds: float, batches: int
) -> None:
    assert len(take_turn(feed, seconds).waits) == batches


def test_overtime_does_not_count(feed: Any) -> None:
    turn = take_turn(feed, 0.0095, after_seconds=0.0195)
    assert len(turn.waits) == 10 and turn.seconds == pytest.approx(0.01)
    assert feed.given == 3 + 10 + 20


def test_the_median_turn_is_the_figure() -> None:
    turns = [BatchTimes(n, 1.0, (1.0,), 0.0) for n in (10, 900, 30)]
    assert median_speed(turns) == 30


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=50))
def test_every_wait_is_in_its_bin(waits: list[float]) -> None:
    found = latency_of(waits)
    assert sum(found.counts) == len(waits)
    assert len(found.edges) == len(found.counts) + 1
    assert list(found.edges) == sorted(found.edges)
    assert found.counts[0] and found.counts[-1]
    below = found.edges[0] * (1 - 1e-6)
    assert all(max(wait, 1e-6) >= below for wait in waits)
    assert max(waits) <= found.edges[-1] * (1 + 1e-6)
    tiny = 1e-9
    assert min(waits) - tiny <= found.p50_seconds <= found.p99_seconds + tiny <= found.max_seconds + 2 * tiny
    assert min(waits) * (1 - tiny) <= found.mean_seconds <= max(waits) * (1 + tiny)


def test_bins_of_two_rows_are_the_same_where_they_overlap() -> None:
    fast, slow = latency_of([0.001, 0.02]), latency_of([0.01, 0.5])
    shared = set(fast.edges) & set(slow.edges)
    assert len(shared) >= 2
    assert {edge for edge in fast.edges if edge >= slow.edges[0]} <= shared


def _spin(seconds: float, started: Any, done: Any) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    started.set()
    done.wait(30)


def test_processor_time_includes_that_of_workers() -> None:
    context = multiprocessing.get_context("fork")
    started, done = context.Event(), context.Event()
    before = cpu_seconds()
    child = context.Process(target=_spin, args=(0.1, started, done), daemon=True)
    child.start()
    assert started.wait(30)
    own = time.process_time()
    took = cpu_seconds() - before
    done.set()
    child.join()
    assert took >= 0.08, own
