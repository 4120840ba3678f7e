"""Several processes at the same time, each with one loader and no model."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from types import ModuleType
from typing import Any

from lmdbloader.errors import WorkerError
from lmdbloader.lab.arms import Arm, Material, open_arm, take_turn, take_turns
from lmdbloader.lab.study.results import StudyRow, row_of

# How long a process goes on loading after its own time, as a share of it: the others may have begun later.
_OVERTIME = 0.5
# In a loading process: what it reads, and the barrier at which all of them wait for each other.
_here: list[Any] = []


def load_together(
    count: int, material: Material, arms: Sequence[Arm], repeats: int, seconds: float
) -> Iterator[StudyRow]:
    """Yield a row for each arm: the speed of some processes that load at once; all arms take turns.

    Raises:
        WorkerError: A process was killed.
    """
    context = multiprocessing.get_context("spawn")
    begin = material, context.Barrier(count), multiprocessing.get_start_method()
    with ProcessPoolExecutor(count, context, _begin, begin) as pool:
        try:
            found = take_turns(arms, repeats, partial(_together, pool, count, seconds))
        except BrokenProcessPool as error:
            raise WorkerError(
                f"one of {count} loading processes ended. Was it killed for its memory? Ask for fewer (--processes)."
            ) from error
    for arm, turns in zip(arms, found, strict=True):
        middle = sorted(turns, key=sum)[len(turns) // 2]
        figures = {"slowest": min(middle), "fastest": max(middle)}
        yield row_of("loading", arm, list(map(sum, turns)), figures, num_processes=count)


def _together(pool: ProcessPoolExecutor, count: int, seconds: float, arm: Arm) -> list[float]:
    """Return the samples a second of processes that begin together: each waits for the others, so none gets two."""
    # They start here, and would run the caller's program again, which may have no guard.
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        futures = [pool.submit(_load, arm, seconds) for _ in range(count)]
    finally:
        sys.modules["__main__"] = main
    return [future.result() for future in futures]


def _begin(material: Material, barrier: Any, start_method: str) -> None:
    # This process was spawned; worker processes start as they would in the main process.
    multiprocessing.set_start_method(start_method, force=True)
    _here[:] = material, barrier


def _load(arm: Arm, seconds: float) -> float:
    """Return the samples a second of this process."""
    material, barrier = _here
    try:
        with open_arm(material, arm) as feed:
            take_turn(feed, 0.0)  # loads the kernels
            barrier.wait()
            return take_turn(feed, seconds, after_seconds=_OVERTIME * seconds).samples_per_s
    except BaseException:
        barrier.abort()
        raise
