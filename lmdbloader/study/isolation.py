"""The isolation test: several processes at the same time, each with one loader and no model."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe, current_process
from typing import IO, Any

from lmdbloader.errors import WorkerError
from lmdbloader.study.feeds import Setting
from lmdbloader.study.results import IsolationRow
from lmdbloader.study.sweep import Plan

# How long a process goes on loading after its own time, as a share of it: the others may have begun later.
OVERTIME = 0.5
PROGRAM = ("-m", "lmdbloader.study.isolated")
_TAIL = 2000


class Helper:
    """Another process of this Python that loads when it is told to."""

    def __init__(self, plan: Plan) -> None:
        """Start it; it imports meanwhile."""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._connection, other = Pipe()
        with other:
            # Not multiprocessing's own start: that would run the caller's program again, which may have no guard.
            self._process = subprocess.Popen(
                [sys.executable, *PROGRAM, str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=[other.fileno()],
            )
        # A tensor of the dataset's is sent as shared memory, which is given only to those who know the key.
        self._send(bytes(current_process().authkey))
        self._send(plan.material)

    def tell(self, setting: Setting, seconds: float) -> None:
        """Tell it to load."""
        self._send((setting, seconds, OVERTIME * seconds))

    def result(self) -> float:
        """Return the samples a second that it had.

        Raises:
            WorkerError: It has ended.
        """
        try:
            return float(self._connection.recv())
        except (EOFError, ConnectionError) as error:
            raise self._ended() from error

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

    def _ended(self) -> WorkerError:
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip()[-_TAIL:]
        return WorkerError(
            f"isolation: one of the loading processes ended with status {status}"
            + (f" and said:\n{said}" if said else ". Was it killed for its memory? Ask for fewer (--processes).")
        )


def isolate(plan: Plan, processes: Sequence[int], cores: int) -> Iterator[IsolationRow]:
    """Yield what so many processes load together, by source and batch size.

    Args:
        plan: What to measure.
        processes: How many, one after the other.
        cores: Shared out among the loaders as threads or workers, at least one each.
    """
    sizes = sorted({plan.batch_sizes[0], plan.batch_sizes[len(plan.batch_sizes) // 2], plan.batch_sizes[-1]})
    helpers: list[Helper] = []
    try:
        plan.progress(f"isolation: starts {max(processes)} processes")
        for _ in range(max(processes)):
            helpers.append(Helper(plan))
        for count in processes:
            for size in sizes:
                plan.progress(f"isolation: {count} processes, batches of {size}")
                yield from _together(plan, helpers[:count], size, max(1, cores // count))
    finally:
        for helper in helpers:
            helper.close()


def _together(plan: Plan, helpers: Sequence[Helper], size: int, workers_each: int) -> Iterator[IsolationRow]:
    found: dict[Any, list[list[float]]] = {source: [] for source in plan.material.sources}
    for _ in range(plan.repeats):
        for source, turns in found.items():
            for helper in helpers:
                helper.tell(Setting(source, size, plan.crops[-1], workers_each), plan.seconds)
            turns.append([helper.result() for helper in helpers])
    for source, turns in found.items():
        # The turn in the middle as a whole, so that its processes add up.
        speeds = sorted(turns, key=sum)[len(turns) // 2]
        yield IsolationRow(
            source=source,
            num_processes=len(helpers),
            batch_size=size,
            workers_each=workers_each,
            samples_per_s=sum(speeds),
            slowest=min(speeds),
            fastest=max(speeds),
        )
