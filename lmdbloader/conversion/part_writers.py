"""The local engine of a conversion in parts: several processes, each writing one part at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from lmdbloader.base import system
from lmdbloader.base.limits import explain_limit
from lmdbloader.base.option_names import option
from lmdbloader.base.text import plain
from lmdbloader.conversion.one_dataset import Advance, check_room, show_progress
from lmdbloader.conversion.options import RunOptions
from lmdbloader.conversion.parts import ConvertedPart, convert_part, finished_parts, join, prepare
from lmdbloader.conversion.pool import choose_workers, one_thread
from lmdbloader.conversion.report import Report
from lmdbloader.conversion.shares import Shared
from lmdbloader.errors import LmdbloaderError, OptionError, WorkerError
from lmdbloader.format.layout import DATA_FILE, part_name
from lmdbloader.store.writing.publish import partial_of

_START = "import sys; sys.path[:] = {path!r}; from lmdbloader.conversion.part_writers import serve; serve({handle})"
# A writer whose connection closes finishes the image that it is working on; after this time it is killed.
_STOP_SECONDS = 2.0
# The kinds of messages of a writer: progress, and lines for the log.
_ADVANCE, _LOG = "advance", "log"
# An engine makes the parts of a planned set. It is called with the set, the numbers of the parts, keyword arguments of
# `convert_part`, and functions for progress and messages, and yields each part when it is complete.
Engine = Callable[
    [Path, Sequence[int], Mapping[str, Any], Advance, Callable[[str], None]],
    Iterator[ConvertedPart],
]


def convert_parts(src: Any, target: Path, options: RunOptions, engine: Engine | None = None) -> Report:
    """Convert into a set of parts; arguments and errors are those of `convert`.

    Args:
        src, target, options: As in `convert`.
        engine: Makes the parts; by default, processes on this machine do.
    """
    began = time.monotonic()
    found = prepare(src, target, options, lists_again=True)
    if isinstance(found, Report):
        return found
    parts = run_parts(target, found, options, engine)
    report = join(target, take_over=options.take_over, log=options.log)
    growths = sum(part.map_growths for part in parts)
    return replace(report, map_growths=growths, seconds=time.monotonic() - began)


def run_parts(target: Path, plan: Shared, options: RunOptions, engine: Engine | None = None) -> list[ConvertedPart]:
    """Make all parts of a planned set, and return them in the order in which they were completed.

    Raises:
        LmdbloaderError: The first error of a part, as by `convert_part`.
        DiskFullError: The disk has no room for the parts that are left, as far as their size can be estimated.
        WorkerError: A process died.
        OptionError: There is an engine, and only this process can see the inputs.
    """
    if engine is not None and plan.listing.in_process:
        raise OptionError("only this process can see the inputs (memory://), so other engines cannot convert them")
    total = choose_workers(1 if plan.listing.in_process else options.workers, sum(plan.nbytes))
    num_writers = min(total, plan.num_parts)
    keywords: dict[str, Any] = {
        "workers": total // num_writers,
        "on_error": options.on_error,
        "take_over": options.take_over,
        "check_content": options.check_content,
    }
    partial = partial_of(target)
    finished = finished_parts(partial, plan, options.on_error)
    sizes = [last - first for first, last in zip(plan.bounds, plan.bounds[1:], strict=False)]
    first = sum(sizes[number] for number in finished)
    # Those of complete parts and of running writers stay; a part that begins again gives its space back.
    check_room(partial, plan.begun, partial.glob(f"part-*/{DATA_FILE}"))
    with show_progress(first, plan.num_sources, options.progress) as show:
        numbers = range(plan.num_parts)
        if engine is not None:
            return list(engine(target, numbers, {**keywords, "workers": 1}, show, options.log))
        if num_writers == 1:
            return [convert_part(target, number, **keywords, advance=show, log=options.log) for number in numbers]
        return list(_run_writers(target, numbers, num_writers, keywords, show, options.log))


def _run_writers(
    target: Path,
    numbers: Sequence[int],
    count: int,
    keywords: Mapping[str, Any],
    advance: Advance,
    log: Callable[[str], None],
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
        for writer in writers:
            writer.connection.close()
        end = time.monotonic() + _STOP_SECONDS
        for writer in writers:
            writer.stop(end)


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
        # As the workers of a pool: a fresh interpreter, which ends when the connection closes.
        self.connection, theirs = system.connection_pair()
        path = [p for p in sys.path if isinstance(p, str)]
        code = _START.format(path=path, handle=theirs.fileno())
        try:
            self.process = system.start_python(["-c", code], [theirs.fileno()], env=one_thread(), apart=True)
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()

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

    def stop(self, end: float) -> None:
        """Wait for the process to end, and kill it at the time `end`."""
        try:
            self.process.wait(timeout=max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _death(self) -> WorkerError:
        how, is_short = system.how_ended(self.process.wait())
        advice = f" Out of memory? Use fewer {option('workers')}." if is_short else ""
        return WorkerError(
            f"writer process {self.process.pid} {how} while making {part_name(self.number)}.{advice} The same "
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
            connection.send(_answer(target, number, keywords, send))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _answer(target: str, number: int, keywords: Mapping[str, Any], send: Any) -> ConvertedPart | LmdbloaderError:
    """Make a part; return it, or the error."""

    def advance(num_sources: int, nbytes: int) -> None:
        send(_ADVANCE, num_sources, nbytes)

    def log(line: str) -> None:
        send(_LOG, line)

    try:
        return convert_part(target, number, **keywords, advance=advance, log=log)
    except LmdbloaderError as error:
        return error
    except Exception:
        return WorkerError(f"making {plain(part_name(number))} failed:\n{traceback.format_exc()}")
