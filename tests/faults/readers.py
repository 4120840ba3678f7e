"""Many processes read one dataset at once while one after the other is killed: those that are left read on."""

from __future__ import annotations

import mmap
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .outcome import Outcome
from .small import is_right, write_small

I64 = npt.NDArray[np.int64]
_SAMPLES = 500
# Nobody is that slow, not even one of two hundred on two cores.
_PATIENCE_SECONDS = 120.0
_WAYS = ("inherited", "opened anew", "by descriptor", "loader")


def run(count: int, seed: int, folder: Path, *, kills: int = 60, pause_seconds: float = 1.0) -> Outcome:
    """Have `count` processes read, and kill `kills` of them, one every so many seconds.

    The processes are forks of one that has the dataset open, so that their memory is mostly shared.
    """
    import lmdbloader

    ds = lmdbloader.LMDBDataset(write_small(folder / "d", _SAMPLES))
    ds[0]
    list(lmdbloader.Loader(ds, 100, shuffle=True))
    # How many samples each has read, and how many of them were wrong.
    read, wrong = np.frombuffer(mmap.mmap(-1, 16 * count), np.int64).reshape(2, count)
    alive = {_fork(number, ds, read, wrong, seed): number for number in range(count)}
    failures: list[str] = []
    choose = random.Random(seed)
    killed = 0
    try:
        _wait_until_all_have_read(alive, read, read * 0, failures)
        while killed < min(kills, count - 1) and not failures:
            time.sleep(pause_seconds)
            pid = choose.choice(list(alive))
            del alive[pid]
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            killed += 1
        _wait_until_all_have_read(alive, read, read.copy(), failures)
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    failures += [f"reader {i} ({_way(i)}): {n} samples were wrong" for i, n in enumerate(wrong.tolist()) if n]
    counts = {"readers": count, "killed": killed, "read on": len(alive), "samples": int(read.sum())}
    return Outcome("readers", "the others read on", {**counts, "wrong": int(wrong.sum())}, failures)


def _wait_until_all_have_read(alive: dict[int, int], read: I64, before: I64, failures: list[str]) -> None:
    """Wait until every process has read more than before; one that ends by itself, or stops reading, is a failure."""
    until = time.monotonic() + _PATIENCE_SECONDS
    waiting = dict(alive)
    while waiting and not failures:
        for pid, number in list(waiting.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del alive[pid]
                failures.append(f"reader {number} ({_way(number)}) ended by itself")
            elif read[number] > before[number]:
                del waiting[pid]
        if time.monotonic() > until:
            failures += [f"reader {number} ({_way(number)}) does not get on" for number in waiting.values()]
        time.sleep(0.02)


def _way(number: int) -> str:
    return _WAYS[number % len(_WAYS)]


def _fork(number: int, ds: Any, read: I64, wrong: I64, seed: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.nice(10)
        for samples, batch in _batches(number, ds, seed):
            wrong[number] += sum(not is_right(n, sample) for n, sample in zip(samples, batch, strict=True))
            read[number] += len(samples)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _batches(number: int, ds: Any, seed: int) -> Iterator[tuple[list[int], list[Any]]]:
    """Yield numbers and samples for ever, read in one of the ways that there are."""
    import lmdbloader

    choose = random.Random(f"{seed} {number}")
    way = _way(number)
    if way == "loader":
        loader = lmdbloader.Loader(ds, 8, shuffle=True, seed=number, num_threads=1)
        while True:
            for batch in loader:
                yield batch.number.tolist(), _samples(batch)
    opened: dict[str, Callable[[], Any]] = {
        "inherited": lambda: ds,
        "opened anew": lambda: lmdbloader.LMDBDataset(ds.path),
        "by descriptor": lambda: lmdbloader.LMDBDataset(ds.path, io="pread"),
    }
    source = opened[way]()
    while True:
        numbers = [choose.randrange(_SAMPLES) for _ in range(8)]
        yield numbers, list(source._many(numbers))


def _samples(batch: Any) -> list[Any]:
    return [type(batch)(*values) for values in zip(*batch, strict=True)]
