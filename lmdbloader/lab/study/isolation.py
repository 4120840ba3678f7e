"""The isolation test: several processes at the same time, each with one loader and no model."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe, current_process
from statistics import fmean
from typing import IO, Any

from lmdbloader.base import system
from lmdbloader.base.text import counted
from lmdbloader.errors import WorkerError
from lmdbloader.lab.study.endless_loader import LoaderSetting
from lmdbloader.lab.study.rows import IsolationRow
from lmdbloader.lab.study.setup import BenchSetup
from lmdbloader.lab.study.sweeps import in_turns

# How long a process goes on loading after its own time, as a share of it: the others may have begun later.
OVERTIME = 0.5
PROGRAM = ("-m", "lmdbloader.lab.study.isolation_process")
_TAIL = 2000


class Helper:
    """Another process of this Python that loads on command."""

    def __init__(self, plan: BenchSetup) -> None:
        """Start it; it imports meanwhile."""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._connection, other = Pipe()
        with other:
            # Not multiprocessing's own start: that would run the caller's program again, which may have no guard.
            self._process = system.start_python(
                [*PROGRAM, str(other.fileno())],
                [other.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        # A tensor of the dataset's is sent as shared memory, which is given only to those who know the key.
        self._send(bytes(current_process().authkey))
        self._send(plan.material)

    def prepare(self, setting: LoaderSetting, seconds: float) -> None:
        """Send it a setting, which it loads once without counting: the first time, kernels are loaded."""
        self._send((setting, seconds, OVERTIME * seconds))

    def wait_until_ready(self) -> None:
        """Wait until it is ready for `go`.

        Raises:
            WorkerError: It has ended.
        """
        self._receive()

    def go(self) -> None:
        """Let it load."""
        self._send(None)

    def result(self) -> float:
        """Return the samples a second that it had.

        Raises:
            WorkerError: It has ended.
        """
        return float(self._receive())

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._errors.close()

    def _send(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except ConnectionError as error:
            raise self._ended() from error

    def _receive(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self._ended() from error

    def _ended(self) -> WorkerError:
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip()[-_TAIL:]
        return WorkerError(
            f"isolation: one of the loading processes ended with status {status}"
            + (f" and said:\n{said}" if said else ". Was it killed for its memory? Ask for fewer (--processes).")
        )


def sizes_of(plan: BenchSetup) -> list[int]:
    """Return the batch sizes to measure: the smallest, the middle one and the largest."""
    return sorted({plan.batch_sizes[0], plan.batch_sizes[len(plan.batch_sizes) // 2], plan.batch_sizes[-1]})


def isolate(plan: BenchSetup, processes: Sequence[int], cores: int) -> Iterator[IsolationRow]:
    """Yield the speed of several processes that load at the same time, by source and batch size.

    Args:
        plan: The settings.
        processes: How many, one after the other.
        cores: Shared out among the loaders as threads or workers, at least one each.
    """
    sizes = sizes_of(plan)
    helpers: list[Helper] = []
    try:
        plan.tell(f"isolation: starting {max(processes)} processes")
        for _ in range(max(processes)):
            helpers.append(Helper(plan))
        for count in processes:
            for size in sizes:
                plan.tell(f"isolation: {counted(count, 'process', 'processes')}, batches of {size}")
                yield from _together(plan, helpers[:count], size, max(1, cores // count))
    finally:
        for helper in helpers:
            helper.close()


def _together(plan: BenchSetup, helpers: Sequence[Helper], size: int, workers_each: int) -> Iterator[IsolationRow]:
    settings = [LoaderSetting(source, size, plan.crops[-1], workers_each) for source in plan.material.sources]
    section = f"isolation, {counted(len(helpers), 'process', 'processes')}"
    found = in_turns(
        plan, section, settings, lambda setting, _: take_turns(helpers, setting, plan.seconds),
        lambda value: [float(value[k]) for k in range(len(helpers))],
    )  # fmt: skip
    for setting, turns in zip(settings, found, strict=True):
        middle = middle_turns(turns)
        yield IsolationRow(
            source=setting.source,
            num_processes=len(helpers),
            batch_size=size,
            workers_each=workers_each,
            samples_per_s=fmean(map(sum, middle)),
            slowest=fmean(map(min, middle)),
            fastest=fmean(map(max, middle)),
            turns=tuple(map(sum, turns)),
        )


def take_turns(helpers: Sequence[Helper], setting: LoaderSetting, seconds: float) -> list[float]:
    """Return the samples a second of processes that begin together."""
    for helper in helpers:
        helper.prepare(setting, seconds)
    for helper in helpers:
        helper.wait_until_ready()
    for helper in helpers:
        helper.go()
    return [helper.result() for helper in helpers]


def middle_turns(turns: Sequence[list[float]]) -> list[list[float]]:
    """Return the turn in the middle by its sum, or the two of an even number: whole, so that processes add up.

    >>> middle_turns([[5.0, 5.0], [1.0, 1.0], [2.0, 1.0], [9.0, 9.0]])
    [[2.0, 1.0], [5.0, 5.0]]
    """
    return sorted(turns, key=sum)[(len(turns) - 1) // 2 : len(turns) // 2 + 1]
