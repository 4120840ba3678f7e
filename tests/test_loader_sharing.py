"""One iterator of a Loader in several threads and processes: every batch once, and errors everywhere."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

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


def test_threads_that_share_an_iterator_get_every_batch_once_between_them(ds: LMDBDataset) -> None:
    loader = Loader(ds, 1, order="random", seed=0, transforms=[lambda batch: (time.sleep(0.0002), batch)[1]])
    batches = iter(loader)
    outcomes = in_threads(4, lambda: numbers(batches))
    assert [outcome for outcome in outcomes if not isinstance(outcome, list)] == []
    assert sorted(chain(*outcomes)) == list(range(COUNT))
    assert loader.state_dict()["position"] == 0  # of the next epoch: this one is complete


def test_an_error_in_one_thread_is_no_end_of_the_epoch_in_the_others(ds: LMDBDataset) -> None:
    def function(batch: Any) -> Any:
        if 300 in batch.number.tolist():
            raise ZeroDivisionError("mine")
        return batch

    batches = iter(Loader(ds, 1, order="sequential", transforms=[function]))
    outcomes = in_threads(4, lambda: numbers(batches))
    assert {type(outcome) for outcome in outcomes} == {ZeroDivisionError, WorkerError}
    assert sum(isinstance(outcome, ZeroDivisionError) for outcome in outcomes) == 1
    assert all("ZeroDivisionError: mine" in str(o) for o in outcomes if isinstance(o, WorkerError))


@pytest.mark.parametrize("is_waiting", [False, True], ids=["between batches", "in the middle of one"])
def test_a_forked_child_makes_an_iterator_of_its_own(ds: LMDBDataset, is_waiting: bool) -> None:
    entered, leave = threading.Event(), threading.Event()

    def function(batch: Any) -> Any:
        entered.set()
        leave.wait(60)
        return batch

    if not is_waiting:
        leave.set()
    loader = Loader(ds, 100, order="random", seed=0, num_threads=1, transforms=[function])
    batches = iter(loader)
    thread = threading.Thread(target=lambda: next(batches))
    thread.start()
    assert entered.wait(60)
    if not is_waiting:
        thread.join()
    child = os.fork()
    if child == 0:
        status = 1
        leave.set()
        torch.set_num_threads(1)  # parallel work of torch waits forever for threads of the parent
        try:
            next(batches)
        except WorkerError:
            status = 0 if len(numbers(iter(loader))) == COUNT else 2
        finally:
            os._exit(status)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(numbers(batches)) == COUNT - 100


def test_functions_of_threads_see_whether_the_loop_computes_gradients(ds: LMDBDataset) -> None:
    def function(batch: Any) -> Any:
        return torch.ones(1, requires_grad=True) * 2

    loader = Loader(ds, 100, transforms=[function])
    for around, expected in ((torch.no_grad, False), (torch.inference_mode, False), (torch.enable_grad, True)):
        with around():
            assert {found.requires_grad for found in loader} == {expected}
