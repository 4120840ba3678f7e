"""Runs numbered cases in a child process: one that crashes, hangs or raises is a failure, and the next one's turn."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import resource
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

Case = Callable[[int], "str | dict[str, int]"]
# No case takes a hundredth of it.
_HUNG_SECONDS = 120.0


class Wrong(Exception):
    """A case came out as it must not."""


def run_cases(
    prepare: Callable[..., Case], arguments: tuple[Any, ...], count: int, folder: Path
) -> tuple[dict[str, int], list[str]]:
    """Run cases 0 to count - 1 in a child process, which is replaced where one of them ends it.

    Args:
        prepare: Called in the child with `arguments`; returns the function that runs one case by its number, and
            returns the outcome in a word, or a count for each such word. It raises `Wrong` where the promise did not
            hold. A function of a module.
        arguments: Things that pickle.
        count: Number of cases.
        folder: For the list of results.

    Returns:
        How often each word came, with "signals" at the end, and one line for each failure.
    """
    counts: Counter[str] = Counter()
    failures: list[str] = []
    results = folder / "results.txt"
    first = signals = 0
    while first < count:
        results.write_bytes(b"")
        child = _child()
        child.start((prepare, arguments, first, count, str(results)))
        hung = child.wait(results)
        done = [json.loads(line) for line in results.read_text("ascii").splitlines()]
        for number, result in enumerate(done, first):
            if isinstance(result, dict):
                counts.update(result)
            else:
                failures.append(f"case {number}: {result}")
        first += len(done)
        if first < count:
            failures.append(f"case {first}: {'hung' if hung else child.end()}")
            if not hung and not child.by_signal:
                break  # it did not come as far as its cases
            signals += not hung
            first += 1
    return {**counts, "signals": signals}, failures


class _Child:
    """A process that runs cases, and waits for more: importing everything takes longer than a quick test's cases."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        self._process.start()
        theirs.close()
        self._ours.recv()  # that it is up: how long that takes says nothing of its cases

    def start(self, job: tuple[Any, ...]) -> None:
        """Have it run cases."""
        self._ours.send(job)

    def wait(self, results: Path) -> bool:
        """Wait until it is through or has ended; end it, and return True, where it gets no further."""
        size, since = -1, time.monotonic()
        while not self._ours.poll(0.5):
            if (now := results.stat().st_size) != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > _HUNG_SECONDS:
                self._process.kill()
                self._process.join()
                return True
        with suppress(EOFError, ConnectionError):  # of one that has ended
            self._ours.recv()
        return False

    @property
    def is_alive(self) -> bool:
        """Whether it takes more cases."""
        return self._process.is_alive()

    @property
    def by_signal(self) -> bool:
        """Whether a signal has ended it."""
        return bool(self._process.exitcode and self._process.exitcode < 0)

    def end(self) -> str:
        """End it, if it has not ended; return how it did."""
        self._ours.close()
        self._process.join()
        status = self._process.exitcode
        return f"ended by {signal.Signals(-status).name}" if status and status < 0 else f"exit status {status}"


_children: list[_Child] = []


def _child() -> _Child:
    """Return a child that waits for cases."""
    if _children and not _children[0].is_alive:
        _children.pop().end()
    if not _children:
        _children.append(_Child())
        # Before multiprocessing waits for it; atexit means nothing in a child of multiprocessing.
        Finalize(None, _children[0].end, exitpriority=1)
    return _children[0]


def _serve(pipe: Connection) -> None:
    faulthandler.enable()
    pipe.send(None)
    while True:
        try:
            prepare, arguments, first, count, results = pipe.recv()
        except EOFError:
            return
        limits = resource.getrlimit(resource.RLIMIT_AS)
        try:
            with warnings.catch_warnings():
                _run_here(prepare(*arguments), first, count, results)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
        pipe.send(None)


def _run_here(case: Case, first: int, count: int, results: str) -> None:
    with open(results, "ab", buffering=0) as file:  # after a crash, the file is complete up to the case before it
        for number in range(first, count):
            try:
                found = case(number)
                result: dict[str, int] | str = found if isinstance(found, dict) else {found: 1}
            except Wrong as error:
                result = str(error)
            except Exception as error:
                result = describe(error)
            file.write(json.dumps(result).encode() + b"\n")


def describe(error: Exception) -> str:
    """Return an unexpected error in one line, with where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
