"""The local engine of a conversion in parts: several processes, each writing one part at a time."""

from __future__ import annotations

import os
import subprocess
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from lmdbloader.base import system
from lmdbloader.base.limits import explain_limit
from lmdbloader.base.option_names import option
from lmdbloader.base.progress import ProgressLine
from lmdbloader.conversion.options import RunOptions
from lmdbloader.conversion.parts import (
    Advance,
    ConvertedPart,
    check_room,
    convert_part,
    finished_part,
    join,
    make_part,
    prepare,
)
from lmdbloader.conversion.pool import choose_workers, start_worker, stop_workers
from lmdbloader.conversion.report import Report
from lmdbloader.conversion.saved_plan import SavedPlan, load_listing
from lmdbloader.errors import LmdbloaderError, OptionError, WorkerError
from lmdbloader.format.layout import MANIFEST_FILE
from lmdbloader.store import Work

_START = "from lmdbloader.conversion.part_writers import serve; serve({handle})"
# A writer whose connection closes finishes the image that it is working on; after this time it is killed.
_STOP_SECONDS = 2.0
# The kinds of messages of a writer: progress, and lines for the log.
_ADVANCE, _LOG = "advance", "log"
# An engine makes the parts of a planned conversion. It is called with the dataset, the numbers of the parts, keyword
# arguments of `convert_part`, and functions for progress and messages, and yields each part when it is complete.
Engine = Callable[
    [Path, Sequence[int], Mapping[str, Any], Advance, Callable[[str], None]],
    Iterator[ConvertedPart],
]


def convert_parts(src: Any, target: Path, options: RunOptions, engine: Engine | None = None) -> Report:
    """Convert; arguments and errors are those of `convert`.

    Args:
        src, target, options: As in `convert`.
        engine: Makes the parts; by default, processes on this machine do.
    """
    began = time.monotonic()
    before, work = _state_of(target), None
    try:
        plan = prepare(src, target, options)
        if isinstance(plan, Report):
            return plan
        work = Work(target)
        run_parts(work, plan, options, engine)
        report = join(target, log=options.log)
    except (LmdbloaderError, OSError):
        # Of several processes that make the same dataset, the first that is done takes the files of the others away.
        if _state_of(target) in (before, None) or (made := _made_meanwhile(src, target, options)) is None:
            raise
        if work is not None:
            work.discard()
        return made
    finally:
        if work is not None:
            work.leave()
    return replace(report, seconds=time.monotonic() - began)


def _state_of(target: Path) -> tuple[int, int] | None:
    """Return what differs once a dataset has been replaced; None if there is none."""
    try:
        found = (target / MANIFEST_FILE).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _made_meanwhile(src: Any, target: Path, options: RunOptions) -> Report | None:
    """Return the report of the dataset that another process has put in place, if it is the one to be made."""
    try:
        found = prepare(src, target, replace(options, overwrite=False, restart=False), is_part=True)
    except (LmdbloaderError, OSError):
        return None
    return found if isinstance(found, Report) else None


def run_parts(work: Work, plan: SavedPlan, options: RunOptions, engine: Engine | None = None) -> None:
    """Make all parts of a planned conversion.

    Raises:
        LmdbloaderError: The first error of a part, as by `convert_part`.
        DiskFullError: The disk has no room for the parts that are left, as far as their size can be estimated.
        WorkerError: A process died.
        OptionError: There is an engine, and only this process can see the inputs.
    """
    if engine is not None and plan.listing.in_process:
        raise OptionError("only this process can see the inputs (memory://), so other engines cannot convert them")
    found = [finished_part(work, load_listing(work, plan, n), n, options) for n in range(plan.num_parts)]
    numbers = [number for number, facts in enumerate(found) if facts is None]
    check_room(work, plan, [facts for facts in found if facts is not None])
    sizes = [last - first for first, last in zip(plan.bounds, plan.bounds[1:], strict=False)]
    first = sum(sizes[number] for number in range(plan.num_parts) if found[number] is not None)
    total = choose_workers(1 if plan.listing.in_process else options.workers, sum(plan.nbytes))
    num_writers = min(total, len(numbers))
    workers = total // max(num_writers, 1)
    with ProgressLine("converting", plan.num_sources, "images", shown=options.progress, first=first) as line:

        def show(num_sources: int, nbytes: int) -> None:
            line.update(num_sources)

        if engine is None and num_writers <= 1:
            for number in numbers:
                make_part(work, plan, number, replace(options, workers=workers), show)
            return
        keywords = {"workers": workers if engine is None else 1, "on_error": options.on_error}
        for _ in (engine or partial(_run_writers, count=num_writers))(work.out, numbers, keywords, show, options.log):
            pass


def _run_writers(
    target: Path,
    numbers: Sequence[int],
    keywords: Mapping[str, Any],
    advance: Advance,
    log: Callable[[str], None],
    *,
    count: int,
) -> Iterator[ConvertedPart]:
    """Make parts with `count` processes, and yield each when it is complete; `advance` and `log` are called here."""
    waiting = deque(numbers)
    writers: list[_Writer] = []
    try:
        for _ in range(count):
            advice = f"Use fewer, such as {option('workers', max(1, count // 2))}; the same conversion resumes."
            with explain_limit(f"writer process {len(writers) + 1} of {count}", advice):
                writers.append(_Writer())
            writers[-1].give(target, waiting.popleft(), keywords)
        busy = {writer.connection: writer for writer in writers}
        while busy:
            for ready in wait(list(busy)):
                writer = busy[ready]  # type: ignore[index]
                item = writer.receive()
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, ConvertedPart):
                    yield item
                    if waiting:
                        writer.give(target, waiting.popleft(), keywords)
                    else:
                        del busy[writer.connection]
                elif item[0] == _ADVANCE:
                    advance(*item[1:])
                else:
                    log(item[1])
    finally:
        stop_workers([(writer.process, writer.connection) for writer in writers], _STOP_SECONDS)


@dataclass(slots=True)
class _Writer:
    """A process that makes parts, one at a time.

    Attributes:
        process: The process.
        connection: The connection to it.
        number: The number of the part that it is making.
    """

    process: subprocess.Popen[bytes] = field(init=False)
    connection: Connection[Any, Any] = field(init=False)
    number: int = -1

    def __post_init__(self) -> None:
        self.process, self.connection = start_worker(_START)

    def give(self, target: Path, number: int, keywords: Mapping[str, Any]) -> None:
        self.number = number
        try:
            self.connection.send((os.path.abspath(target), number, dict(keywords)))
        except ConnectionError as error:
            raise self._death() from error

    def receive(self) -> Any:
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self._death() from error

    def _death(self) -> WorkerError:
        how, is_short = system.how_ended(self.process.wait())
        advice = f" Out of memory? Use fewer {option('workers')}." if is_short else ""
        return WorkerError(
            f"writer process {self.process.pid} {how} while making part {self.number}.{advice} The same "
            "conversion resumes: parts that are complete are kept."
        )


def serve(handle: int) -> None:
    """Make the parts that a connection requests, until it closes: the main function of a writer process."""
    connection = system.connect(handle)

    def send(*item: Any) -> None:
        try:
            connection.send(item)
        except (BrokenPipeError, ConnectionResetError):
            raise SystemExit from None  # the parent has ended

    try:
        while True:
            target, number, keywords = connection.recv()
            calls = {"advance": partial(send, _ADVANCE), "log": partial(send, _LOG)}
            connection.send(try_part(target, number, {**keywords, **calls}))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def try_part(target: str, number: int, keywords: Mapping[str, Any]) -> ConvertedPart | LmdbloaderError:
    """Return a part that was made with keyword arguments of `convert_part`, or the error, for a process that waits."""
    try:
        return convert_part(target, number, **keywords)
    except LmdbloaderError as error:
        return error
    except Exception:
        return WorkerError(f"making part {number} failed:\n{traceback.format_exc()}")
