"""Runs numbered cases in a child process: one that crashes, hangs or raises is a failure, and the next one's turn."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
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
            returns in a word what came of it, or how often which word did. It raises `Wrong` where the promise did not
            hold. A function of a module.
        arguments: Things that pickle.
        count: Number of cases.
        folder: For the list of results.

    Returns:
        How often each word came, with "signals" at the end, and one line for each failure.
    """
    context = multiprocessing.get_context("spawn")
    counts: Counter[str] = Counter()
    failures: list[str] = []
    results = folder / "results.txt"
    first = signals = 0
    while first < count:
        results.write_bytes(b"")
        child = context.Process(target=_run_here, args=(prepare, arguments, first, count, str(results)))
        child.start()
        hung = _wait(child, results)
        done = [json.loads(line) for line in results.read_text("ascii").splitlines()]
        for number, result in enumerate(done, first):
            if isinstance(result, dict):
                counts.update(result)
            else:
                failures.append(f"case {number}: {result}")
        first += len(done)
        if first < count:
            signals += bool(child.exitcode and child.exitcode < 0 and not hung)
            failures.append(f"case {first}: {'hung' if hung else _how(child.exitcode)}")
            if child.exitcode and child.exitcode > 0:
                break  # it did not come as far as its cases
            first += 1
    return {**counts, "signals": signals}, failures


def _wait(child: Any, results: Path) -> bool:
    """Wait for a child's end; end it, and return True, where it gets no further."""
    size, since = -1, time.monotonic()
    while child.exitcode is None:
        child.join(0.5)
        if (now := results.stat().st_size) != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > _HUNG_SECONDS:
            child.kill()
            child.join()
            return True
    return False


def _run_here(prepare: Callable[..., Case], arguments: tuple[Any, ...], first: int, count: int, results: str) -> None:
    faulthandler.enable()
    case = prepare(*arguments)
    with open(results, "ab", buffering=0) as file:  # what a crash leaves behind is complete up to the case before it
        for number in range(first, count):
            try:
                found = case(number)
                result: dict[str, int] | str = found if isinstance(found, dict) else {found: 1}
            except Wrong as error:
                result = str(error)
            except Exception as error:
                result = describe(error)
            file.write(json.dumps(result).encode() + b"\n")
    sys.stderr.flush()


def describe(error: Exception) -> str:
    """Return an unexpected error in one line, with where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"exit status {status}"
