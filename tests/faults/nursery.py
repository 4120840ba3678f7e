"""Processes that run a command and are interrupted in it: forked from one that has imported everything already."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from . import scenarios, shim

_HUNG_SECONDS = 120.0
# Lines of the log other than the names of sources that are begun.
TRIAL, NO_TRIAL = "# trial", "# no trial"
# A file that takes the room on a disk.
BALLAST = "ballast"


@dataclass(frozen=True, slots=True)
class Interruption:
    """An interruption of a command.

    Attributes:
        kind: "kill", "term" (SIGTERM), "int" (Ctrl-C), "worker" (one of its workers is killed), or "full" (from then on
            the disk is).
        number: After the change of files with this number, counted from 1. 0 for another time:
        seconds: So long after the start.
        seed: Of the worker to kill, and of the remaining room.
        room: The folder whose file system is full; None where files cannot grow.
    """

    kind: Literal["kill", "term", "int", "worker", "full"]
    number: int = 0
    seconds: float = 0.0
    seed: int = 0
    room: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} after {f'change {self.number}' if self.number else f'{self.seconds:.3f} s'}"


@dataclass(frozen=True, slots=True)
class Request:
    """A command to run.

    Attributes:
        words: Of the command line.
        folder: Holds OUT and nothing else.
        log: A folder for the process's output.
        interruption: Its interruption.
        can_exchange: Whether the system has renameat2.
        calls: Where every call that changes something below the folder is written down, None for nowhere. An
            interruption after a change needs it.
        fault: (kind, number, errno) of the call below `faulty` that fails, see `shim.fail`.
        faulty: A folder.
    """

    words: Sequence[str]
    folder: Path
    log: Path
    interruption: Interruption | None = None
    can_exchange: bool = True
    calls: Path | None = None
    fault: tuple[str, int, int] | None = None
    faulty: Path | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a command.

    Attributes:
        status: Its exit status; the negative number of a signal that ended it.
        output: Its standard output.
        error: Its standard error.
        started: The sources that it began to decode, in order, those of the trial left out.
        seconds: It took.
        was_interrupted: Whether the interruption took place.
        hung: Whether it did not end by itself.
        num_calls: How many calls there were of each kind, in a request with a fault.
        failed_path: Of the file whose call failed; empty where none did.
    """

    status: int
    output: str
    error: str
    started: list[str]
    seconds: float
    was_interrupted: bool
    hung: bool = False
    num_calls: dict[str, int] = field(default_factory=dict)
    failed_path: str = ""


class Nursery:
    """A process that has everything imported, and forks one for each command. Use it in a `with`."""

    def __init__(self, library: Path | None = None) -> None:
        """Settle which library the process preloads: the one of `shim.build`, for requests that intercept calls."""
        self._library = library

    def __enter__(self) -> Nursery:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        with shim.preloaded(self._library):
            self._process.start()
        theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._process.join(10)
        self._process.kill()
        self._process.join()

    def warm(self, words: Sequence[str]) -> None:
        """Have it run a command itself, so its later forks have everything that this loads."""
        self._connection.send(list(words))
        if status := self._connection.recv():
            raise RuntimeError(f"{' '.join(words)}: exit status {status}")

    def run(self, request: Request) -> Ended:
        """Run a command to its end, whatever that is."""
        self._connection.send(request)
        return self._connection.recv()  # type: ignore[no-any-return]


def _serve(connection: Any) -> None:
    faulthandler.enable()
    import lmdbloader.cli

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: whom a child leaves is waited for

    with contextlib.suppress(EOFError):
        while True:
            request = connection.recv()
            if isinstance(request, Request):
                connection.send(_run(request, connection))
            else:
                with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                    status = lmdbloader.cli.main(request)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the command line set another
                connection.send(status)


def _run(request: Request, connection: Any) -> Ended:
    request.log.mkdir(exist_ok=True)
    for name in ("output", "error", "log", "fault"):
        (request.log / name).unlink(missing_ok=True)
    begin = time.monotonic()
    if (child := os.fork()) == 0:
        try:
            connection.close()
            os._exit(_command(request))
        finally:
            os._exit(99)
    interruption = request.interruption
    deadline = interruption.seconds if interruption and not interruption.number else _HUNG_SECONDS
    status, was_interrupted, hung = _wait(child, begin + deadline), False, False
    if interruption and (os.WIFSTOPPED(status) if status is not None else not interruption.number):
        _befall(child, request.folder, interruption)
        os.kill(child, signal.SIGCONT)
        status = _wait(child, begin + _HUNG_SECONDS)
        was_interrupted = status != 0  # it may have ended a moment before
    if status is None:
        hung = True
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    seconds = time.monotonic() - begin
    with contextlib.suppress(ChildProcessError):  # writers that it has left end soon
        while _wait(-1, begin + 2 * _HUNG_SECONDS) is not None:
            pass
    num_calls, _, failed_path = _text(request.log / "fault").partition("\t")
    return Ended(
        os.waitstatus_to_exitcode(status),
        _text(request.log / "output"),
        _text(request.log / "error"),
        _started(_text(request.log / "log").splitlines()),
        seconds,
        was_interrupted,
        hung,
        json.loads(num_calls or "{}"),
        failed_path,
    )


def _wait(child: int, until: float) -> int | None:
    while True:
        pid, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if pid:
            return status
        if (left := until - time.monotonic()) <= 0:
            return None
        time.sleep(min(left, 0.002))


def _befall(child: int, folder: Path, interruption: Interruption) -> None:
    if interruption.kind == "worker":
        _kill_worker(child, interruption.seed)
    elif interruption.kind == "full":
        _fill(child, folder, interruption.room, random.Random(interruption.seed))
    else:
        os.kill(child, {"term": signal.SIGTERM, "int": signal.SIGINT}.get(interruption.kind, signal.SIGKILL))


def _kill_worker(parent: int, seed: int) -> None:
    import psutil

    with contextlib.suppress(psutil.Error):
        if workers := psutil.Process(parent).children():
            random.Random(seed).choice(workers).kill()


def _command(request: Request) -> int:
    """Run the command in this process, which is a fresh fork."""
    import lmdbloader.cli
    from lmdbloader.base import system
    from lmdbloader.conversion import part_writers, parts, pool

    for handle, name in ((1, "output"), (2, "error")):
        os.dup2(os.open(request.log / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), handle)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    log = str(request.log / "log")
    root = str(Path(__file__).resolve().parents[2])
    if root not in sys.path:
        sys.path.append(root)
    begin = f"from tests.faults.nursery import watch_sources; watch_sources({log!r}); "
    for module in (pool, part_writers):
        module._START = module._START.replace("serve({handle}", begin + "serve({handle}")
    watch_sources(log)
    try_out = parts.try_out

    def trial(*arguments: Any) -> Any:
        _say(log, TRIAL)
        try:
            return try_out(*arguments)
        finally:
            _say(log, NO_TRIAL)

    parts.try_out = trial
    if not request.can_exchange:
        system.exchange = lambda a, b: False
    if request.calls:
        shim.record(request.faulty or request.folder, request.calls)
        if request.interruption and request.interruption.number:
            shim.stop(request.interruption.number)
    if request.fault:
        shim.fail(request.faulty or request.folder, *request.fault)
    try:
        own = {"write": _write, "epoch": _epoch}.get(request.words[0])
        status = own(*request.words[1:]) if own else lmdbloader.cli.main(list(request.words))
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 70
    if request.fault:
        (request.log / "fault").write_text(f"{json.dumps(shim.counted())}\t{shim.failed_path()}")
    sys.stdout.flush()
    return status


def _write(out: str) -> int:
    """Write samples of Python's, as a command would."""
    import numpy as np

    import lmdbloader
    from lmdbloader.errors import LmdbloaderError

    samples = ({"image": np.full((64, 64, 3), i, np.uint8), "label": i} for i in range(20))
    try:
        lmdbloader.write(samples, out)
    except LmdbloaderError as error:
        print(f"lmdbloader: {error}", file=sys.stderr)
        return 1
    return 0


def _epoch(path: str, io: Any) -> int:
    """Read an epoch, as a training loop would."""
    import lmdbloader
    from lmdbloader.errors import LmdbloaderError

    try:
        ds = lmdbloader.LMDBDataset(path, io=io)
        for _ in lmdbloader.Loader(ds, 2, shuffle=True, num_threads=1):
            pass
        for number in range(len(ds)):
            ds[number]
    except LmdbloaderError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _fill(child: int, folder: Path, room: str | None, rng: random.Random) -> None:
    """Take the room on a disk but for a few bytes, or let no file become much larger than the largest one."""
    spare = rng.choice((0, rng.randrange(2**10, 2**16)))
    if room is None:
        largest = max((path.stat().st_size for path in folder.rglob("*") if path.is_file()), default=0)
        # Enough for the message.
        limit = max(2**10, rng.choice((largest // 2, largest + spare)))
        _, most = resource.prlimit(child, resource.RLIMIT_FSIZE)
        resource.prlimit(child, resource.RLIMIT_FSIZE, (limit, most))
        return
    with open(Path(room, BALLAST), "wb", buffering=0) as ballast:
        with contextlib.suppress(OSError):
            while ballast.write(bytes(2**16)):
                pass
        while True:
            try:
                ballast.write(bytes(2**9))
            except OSError:
                break
        ballast.truncate(max(0, ballast.tell() - spare))


def watch_sources(log: str) -> None:
    """Have this process write down every source that it begins to decode, and make all it does small."""
    from lmdbloader.conversion import pool, tasks
    from lmdbloader.store.writing import part

    part.TRANSACTION_NBYTES = scenarios.TRANSACTION_NBYTES
    pool.TASK_NBYTES = scenarios.TASK_NBYTES
    tasks.PART_NBYTES = scenarios.PART_NBYTES
    real = pool.convert_sources

    def convert_sources(recipe: Any, sources: Any, *, at: Callable[[int], None] = lambda number: None) -> Any:
        def begin(number: int) -> None:
            _say(log, sources[number].name)
            at(number)

        return real(recipe, sources, at=begin)

    pool.convert_sources = convert_sources


def _say(log: str, line: str) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        stack.callback(os.close, handle)
        os.write(handle, f"{line}\n".encode())


def _started(lines: list[str]) -> list[str]:
    """Return the sources that a log says were begun."""
    in_trial, started = False, []
    for line in lines:
        if line in (TRIAL, NO_TRIAL):
            in_trial = line == TRIAL
        elif not in_trial:
            started.append(line)
    return started


def _text(path: Path) -> str:
    return path.read_text("utf-8", "backslashreplace") if path.exists() else ""
