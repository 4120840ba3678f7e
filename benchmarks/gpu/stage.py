"""Shared by the stages of the GPU benchmark: options, the deadline, and a result file that survives a kill."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Stage", "make", "parse_stage", "what_failed", "write_json"]

# Characters kept of an error.
_MOST_TEXT = 300


@dataclass(slots=True)
class Stage:
    """One run of one stage.

    Attributes:
        name: Of the stage.
        data: The folder that `photographs.py` and `material.py` have filled.
        out: The result file. It is complete after every `put`, so a killed stage loses only its current measurement.
        seconds: How long the stage may take, counted from the start of the process.
        small: Whether this is a rehearsal: everything runs, sizes are tiny, and nobody reads the figures.
        more: Whether to continue with the figures in `out`: the part that the stage leaves for the end.
        cores: That this process may use.
    """

    name: str
    data: Path
    out: Path
    seconds: float
    small: bool
    cores: int
    more: bool = False
    _began: float = field(default_factory=time.monotonic)
    _kept: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take the figures that there are already."""
        if self.more and self.out.exists():
            found = json.loads(self.out.read_text("utf-8"))
            self._kept = {name: found[name] for name in ("figures", "left_out") if name in found}

    def figure(self, what: str, default: Any) -> Any:
        """Return the figures that `put` has stored under a name."""
        return self._kept.get("figures", {}).get(what, default)

    @property
    def device(self) -> str:
        """ "cuda", or "cpu" without a GPU: then everything runs with stand-ins."""
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.seconds - (time.monotonic() - self._began)

    def has(self, seconds: float, what: str) -> bool:
        """Return whether there is time for something that takes so long; if not, note that it was left out."""
        if self.left >= seconds:
            return True
        self.leave_out(what, f"{self.left:.0f} s were left and it needs {seconds:.0f}")
        return False

    def leave_out(self, what: str, reason: str) -> None:
        """Note that something was not measured, and why."""
        self._kept.setdefault("left_out", {})[what] = reason
        self._write()
        print(f"{self.name}: {what}: left out: {reason}", flush=True)

    def take_back(self, what: str) -> None:
        """Forget that something was left out: it was measured later."""
        if self._kept.get("left_out", {}).pop(what, None) is not None:
            self._write()

    def attempt(self, what: str, seconds: float, function: Callable[[], Any]) -> Any:
        """Do something if there is time for it; an error, or a wait without end, is noted, and None returned."""
        if not self.has(0.5 if self.small else seconds, what):
            return None
        try:
            with time_limit(max(min(self.left - 1, 4 * seconds + 15), 1)):
                return function()
        except Exception as error:
            self.leave_out(what, f"{type(error).__name__}: {error}"[:_MOST_TEXT])
            return None

    def put(self, what: str, figures: Any) -> None:
        """Store the figures of one measurement (plain JSON values) at once."""
        self._kept.setdefault("figures", {})[what] = figures
        self._write()
        print(f"{self.name}: {what}: {_short(figures)}", flush=True)

    def _write(self) -> None:
        elapsed = round(time.monotonic() - self._began, 1)
        write_json(self.out, {"stage": self.name, "small": self.small, "seconds": elapsed, **self._kept})


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread after some seconds: a feed whose threads have died gives no batch ever."""

    def give_up(number: int, frame: Any) -> None:
        raise TimeoutError(f"no end after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def parse_stage(name: str, description: str | None, arguments: Sequence[str] | None = None) -> Stage:
    """Return the options of a stage's command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with files and datasets")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the figures go, as JSON")
    parser.add_argument("--seconds", type=float, default=300, help="how long it may take (default 300)")
    parser.add_argument("--small", action="store_true", help="a rehearsal: everything runs once, in tiny sizes")
    parser.add_argument("--more", action="store_true", help="what is worth least: goes on with the figures in --out")
    options = parser.parse_args(arguments)
    cores = len(os.sched_getaffinity(0))
    return Stage(name, options.data, options.out, options.seconds, options.small, cores, options.more)


def make(stage: Stage, name: str, work: Callable[[], Any], paths: Iterable[Path]) -> None:
    """Do one step unless its files are there, and keep how long it took; a failure is noted."""
    done = stage.data / f".{name}.done"
    if done.exists():
        stage.put(name, json.loads(done.read_text()))
        return
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    began = time.monotonic()
    try:
        work()
    except Exception as error:
        stage.leave_out(name, f"{type(error).__name__}: {error}")
        return
    found = {"seconds": round(time.monotonic() - began, 1), "nbytes": sum(map(count_nbytes, paths))}
    done.write_text(json.dumps(found))
    stage.put(name, found)


def count_nbytes(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def what_failed(error: BaseException) -> str:
    """Return an error's message with its notes, and the messages of its causes.

    torch reports a worker that died as "exited unexpectedly"; only the error before that may name the signal.

    >>> try:
    ...     raise RuntimeError("a worker exited unexpectedly") from RuntimeError("killed by signal: Aborted")
    ... except RuntimeError as error:
    ...     what_failed(error)
    'RuntimeError: a worker exited unexpectedly, from RuntimeError: killed by signal: Aborted'
    """
    texts, found = [], error
    while len(texts) < 5:
        texts.append(" ".join([f"{type(found).__name__}: {found}", *getattr(found, "__notes__", [])]))
        before = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
        if before is None:
            break
        found = before
    return ", from ".join(texts)


def write_json(path: Path, value: Any) -> None:
    """Write a file that is either the old one or the new one, whenever the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=1, sort_keys=False) + "\n", "utf-8")
    os.replace(temporary, path)


def _short(figures: Any) -> str:
    text = json.dumps(figures)
    return text if len(text) <= 300 or sys.stdout.isatty() else text[:300] + " ..."
