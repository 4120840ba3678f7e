"""Several processes at the same time, each with one loader and no model."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import IO, Any

from lmdbloader.base import system
from lmdbloader.conversion.shipping import dumps, loads
from lmdbloader.errors import WorkerError
from lmdbloader.lab.study.arms import Arm, Material, open_arm, take_turn, take_turns
from lmdbloader.lab.study.plan import Plan
from lmdbloader.lab.study.rows import StudyRow, row_of

# How long a process goes on loading after its own time, as a share of it: the others may have begun later.
_OVERTIME = 0.5
# Not multiprocessing's own start: that would run the caller's program again, which may have no guard.
_PROGRAM = "from lmdbloader.lab.study.isolation import serve; serve()"


class Helper:
    """Another process of this Python that loads on command; it ends with the context."""

    def __init__(self, material: Material) -> None:
        """Start it; it imports meanwhile."""
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # Ctrl-C is for this process, which ends it.
        self._process = system.start_python(
            ["-c", _PROGRAM], [], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, apart=True
        )
        self.send(material)

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def send(self, message: Any) -> None:
        """Send it the data, then commands, see `serve`.

        Raises:
            WorkerError: It has ended.
        """
        assert self._process.stdin is not None
        try:
            _write(self._process.stdin, message)
        except BrokenPipeError as error:
            raise self._ended() from error

    def receive(self) -> Any:
        """Return its answer.

        Raises:
            WorkerError: It has ended.
        """
        assert self._process.stdout is not None
        try:
            return _read(self._process.stdout)
        except EOFError as error:
            raise self._ended() from error

    def _ended(self) -> WorkerError:
        return WorkerError(
            f"isolation: one of the loading processes ended with status {self._process.wait()}. Was it killed for its "
            "memory? Ask for fewer (--processes)."
        )


def _write(stream: IO[bytes], message: Any) -> None:
    data = dumps(message)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def _read(stream: IO[bytes]) -> Any:
    """Return the next message; EOFError if it is cut short."""
    nbytes = int.from_bytes(stream.read(8), "little")
    data = stream.read(nbytes)
    if not data or len(data) < nbytes:
        raise EOFError
    return loads(data)


def serve() -> None:
    """Answer commands on stdin until it is closed.

    To (arm, seconds, seconds after that) the answer is None, once a first turn has loaded the kernels; to the
    message after it, which says go, the samples a second.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    material: Material = _read(sys.stdin.buffer)
    while True:
        try:
            arm, seconds, after = _read(sys.stdin.buffer)
        except EOFError:
            return
        with open_arm(material, arm) as feed:
            take_turn(feed, 0.0)
            _write(answers, None)
            _read(sys.stdin.buffer)
            turn = take_turn(feed, seconds, after_seconds=after)
        _write(answers, turn.samples_per_s)


def isolate(plan: Plan) -> Iterator[StudyRow]:
    """Yield the speed of processes that load at once, with the smallest, the middle and the largest batches.

    The cores are shared out among them as threads or workers, at least one each.
    """
    sizes = sorted({plan.batch_sizes[0], plan.batch_sizes[len(plan.batch_sizes) // 2], plan.batch_sizes[-1]})
    ways = list(itertools.product(sizes, plan.material.sources))
    with ExitStack() as stack:
        helpers = [stack.enter_context(Helper(plan.material)) for _ in range(max(plan.processes))]
        for count in plan.processes:
            each = max(1, plan.cores // count)
            arms = [plan.arm(source, batch_size=size, num_workers=each) for size, source in ways]
            found = take_turns(arms, plan.repeats, partial(_together, helpers[:count], plan.seconds))
            for arm, turns in zip(arms, found, strict=True):
                middle = sorted(turns, key=sum)[len(turns) // 2]
                figures = {"slowest": min(middle), "fastest": max(middle)}
                yield row_of("isolation", arm, list(map(sum, turns)), figures, num_processes=count)


def _together(helpers: Sequence[Helper], seconds: float, arm: Arm) -> list[float]:
    """Return the samples a second of processes that begin together."""
    for helper in helpers:
        helper.send((arm, seconds, _OVERTIME * seconds))
    for helper in helpers:
        helper.receive()
    for helper in helpers:
        helper.send(None)
    return [helper.receive() for helper in helpers]
