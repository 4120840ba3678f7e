"""An interruption ends a study although its exception was lost, or a worker process has died of it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmdbloader
from lmdbloader.errors import WorkerError
from lmdbloader.lab.study.endless_loader import BenchData, LoaderSetting, open_endless
from lmdbloader.lab.study.interrupts import check, interruptible


@pytest.fixture
def material(tmp_path: Path) -> BenchData:
    """Eight small images."""
    lmdbloader.write(({"image": np.full((8, 8, 3), i, np.uint8)} for i in range(8)), tmp_path / "db")
    return BenchData(lmdbloader.LMDBDataset(tmp_path / "db"), None)


def lose(number: int = signal.SIGINT) -> None:
    """Have an interruption, and forget it, as Python does in a destructor or a hook of os.fork."""
    with suppress(KeyboardInterrupt):
        signal.raise_signal(number)


def test_a_lost_interruption_is_raised_at_the_next_batch(material: BenchData) -> None:
    for setting in (LoaderSetting("lmdbloader", 2, None, 1), LoaderSetting("dataloader", 2, None, 0)):
        come = []
        with (
            pytest.raises(KeyboardInterrupt),
            interruptible(),
            open_endless(material, setting) as feed,
            feed.stream() as stream,
        ):
            for batch in islice(stream, 5):
                come.append(batch)
                lose()
        assert len(come) == 1


def test_no_turn_begins_after_a_lost_interruption(material: BenchData) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        interruptible(),
        open_endless(material, LoaderSetting("lmdbloader", 2, None, 1)) as f,
    ):
        lose()
        with f.stream():
            pytest.fail("a turn began")


def test_a_study_does_not_end_well_after_a_lost_interruption(material: BenchData) -> None:
    def progress(line: str) -> None:
        lose()

    with pytest.raises(KeyboardInterrupt):
        lmdbloader.lab.bench(
            material.dataset.path, batch_sizes=[2], only=["threads"], seconds=0.002, repeats=1, progress=progress
        )
    check()


def test_an_error_that_follows_from_an_interruption_is_one() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, interruptible():
        lose()
        raise WorkerError("a worker process has ended")
    assert isinstance(caught.value.__cause__, WorkerError)
    with pytest.raises(WorkerError), interruptible():
        raise WorkerError("a worker process has ended")


def test_worker_processes_leave_it_to_the_study(material: BenchData) -> None:
    with (
        interruptible(),
        open_endless(material, LoaderSetting("dataloader", 2, None, 2)) as feed,
        feed.stream() as stream,
    ):
        next(stream)
        for worker in multiprocessing.active_children():
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGINT)
        for _ in range(50):
            next(stream)


@pytest.fixture
def handlers() -> Any:
    """Put back the handlers of signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_handlers_are_those_of_before(handlers: None) -> None:
    heard: list[int] = []
    own: Callable[..., None] = lambda number, frame: heard.append(number)  # noqa: E731
    signal.signal(signal.SIGTERM, own)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        check()
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is own and signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_run_studies_too() -> None:
    ended: list[bool] = []

    def run() -> None:
        with interruptible():
            check()
        ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert ended
