"""One iterator of a Loader in several threads: every batch once, errors everywhere, and forks in the middle."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import WorkerError

COUNT = 600


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    path = tmp_path_factory.mktemp("sharing") / "d.lmdb"
    lmdbloader.write(({"image": np.full((4, 4), i % 256, np.uint8), "number": i} for i in range(COUNT)), path)
    return LMDBDataset(path)


def in_threads(count: int, work: Callable[[], Any]) -> list[Any]:
    """Return the results or errors of a function in several threads that start together."""
    barrier = threading.Barrier(count)
    outcomes: list[Any] = []

    def run() -> None:
        barrier.wait()
        try:
            outcomes.append(work())
        except BaseException as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == count, "a thread hangs"
    return outcomes


def numbers(batches: Iterator[Any]) -> list[int]:
    return [number for batch in batches for number in batch.number.tolist()]


def exit_status(child: int) -> int:
    deadline = time.monotonic() + 60
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(found[1])


def test_threads_that_share_an_iterator_get_every_batch_once_between_them(ds: LMDBDataset) -> None:
    loader = Loader(
        ds, 1, order="random", seed=0, num_threads=1, transforms=[lambda batch: (time.sleep(0.0002), batch)[1]]
    )
    for _ in range(3):
        batches = iter(loader)
        outcomes = in_threads(4, lambda batches=batches: numbers(batches))  # type: ignore[misc]
        assert [outcome for outcome in outcomes if not isinstance(outcome, list)] == []
        assert sorted(chain(*outcomes)) == list(range(COUNT))
        assert loader.state_dict()["position"] == 0  # of the next epoch: this one is complete


def test_an_error_in_one_thread_is_no_end_of_the_epoch_in_the_others(ds: LMDBDataset) -> None:
    def function(batch: Any) -> Any:
        if 300 in batch.number.tolist():
            raise ZeroDivisionError("mine")
        return batch

    batches = iter(Loader(ds, 1, num_threads=1, order="sequential", transforms=[function]))
    outcomes = in_threads(4, lambda: numbers(batches))
    assert {type(outcome) for outcome in outcomes} == {ZeroDivisionError, WorkerError}
    assert sum(isinstance(outcome, ZeroDivisionError) for outcome in outcomes) == 1
    assert all("ZeroDivisionError: mine" in str(o) for o in outcomes if isinstance(o, WorkerError))


def test_closing_an_iterator_ends_it_in_every_thread(ds: LMDBDataset) -> None:
    batches: Any = iter(Loader(ds, 1, order="random", seed=0, num_threads=1))
    next(batches)
    batches.close()
    assert in_threads(3, lambda: numbers(batches)) == [[], [], []]


def test_a_child_forked_while_another_thread_gets_a_batch_raises_and_does_not_hang(ds: LMDBDataset) -> None:
    entered, leave = threading.Event(), threading.Event()

    def function(batch: Any) -> Any:
        entered.set()
        leave.wait(60)
        return batch

    loader = Loader(ds, 100, order="random", seed=0, num_threads=1, transforms=[function])
    batches = iter(loader)
    thread = threading.Thread(target=lambda: next(batches))
    thread.start()
    assert entered.wait(60)
    time.sleep(0.05)  # it waits for the batch, within the iterator
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except WorkerError as error:
            leave.set()
            os._exit(0 if "forked" in str(error) and len(numbers(iter(loader))) == COUNT else 2)
        os._exit(1)
    leave.set()
    thread.join(60)
    assert exit_status(child) == 0
    assert len(numbers(batches)) == COUNT - 100


def test_a_child_forked_between_batches_shares_the_iterator_too(ds: LMDBDataset) -> None:
    batches = iter(Loader(ds, 10, order="random", seed=0, num_threads=1))
    given = numbers(iter([next(batches)]))
    child = os.fork()
    if child == 0:
        parts = in_threads(3, lambda: numbers(batches))
        os._exit(0 if sorted(chain(given, *parts)) == list(range(COUNT)) else 1)
    assert exit_status(child) == 0
    assert sorted(given + numbers(batches)) == list(range(COUNT))
