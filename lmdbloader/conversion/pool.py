"""Worker processes that convert sources: their tasks, and the results that come back in order."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import tempfile
import time
import traceback
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmdbloader.base import system
from lmdbloader.base.cores import count_cores
from lmdbloader.base.limits import explain_limit, no_memory, refused_memory
from lmdbloader.base.option_names import flags_in_use, option
from lmdbloader.base.text import plain
from lmdbloader.conversion.shipping import dumps, loads, unpack
from lmdbloader.conversion.sources.listing import Sources
from lmdbloader.conversion.tasks import Part, Recipe, convert_sources
from lmdbloader.errors import LmdbloaderError, WorkerError

# The size of one task. It must not depend on the number of workers, because records never span tasks.
TASK_NBYTES = 2**20
TASK_SOURCES = 512
# Starting a worker costs about as much as converting this much input.
WORTH_A_WORKER_NBYTES = 16 * 2**20
_STOP_SECONDS = 0.2
_TASKS_AHEAD = 2
_PARTS_AHEAD = 3
_START = "from lmdbloader.conversion.pool import serve; serve({handle}, {place})"
# What every worker does first.
_FIRST = (
    "import sys; sys.path[:] = {path!r}; from lmdbloader.base.option_names import naming_flags\n"
    "with naming_flags({flags!r}): exec({start!r})"
)
# Messages: a worker ends a task; the parent has taken a part; the parent sends a task, or the common work, next.
_END, _TAKEN, _TASK, _COMMON = "end", "taken", "task", "common"


class Tasks(Sequence[Any]):
    """A sequence of tasks, each of which is made when it is needed."""

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        """Take their number, and a function that returns the task with a number."""
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, which: Any) -> Any:
        return self._make(range(self._count)[which])


def make_tasks(sources: Sources) -> Tasks:
    """Return the tasks: lists of consecutive sources of about 1 MiB."""
    ends = np.cumsum(sources.nbytes)
    bounds = array("q", [0])
    while bounds[-1] < len(sources):
        first = bounds[-1]
        used = ends.item(first - 1) if first else 0
        filled = int(np.searchsorted(ends, used + TASK_NBYTES)) + 1
        bounds.append(min(filled, first + TASK_SOURCES, len(sources)))
    return Tasks(len(bounds) - 1, lambda number: sources[bounds[number] : bounds[number + 1]])


def choose_workers(workers: int | None, nbytes: int) -> int:
    """Return the number of workers for an input: by default one per core, fewer for small inputs."""
    if workers is not None:
        return max(1, workers)
    return max(1, min(count_cores(), nbytes // WORTH_A_WORKER_NBYTES))


class WorkerPool:
    """Processes that convert, for a `with` statement: at its end they are stopped.

    With one worker this process does the work. Processes are started when there is work for them.
    """

    def __init__(self, num_workers: int, common: bytes = b"") -> None:
        """Take the number of workers, and what `shipping.pack` made of the work of those that have no recipe."""
        self._num_workers, self._common = num_workers, common
        self._workers: list[_Worker] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop_workers([(worker.process, worker.connection) for worker in self._workers], _STOP_SECONDS)
        self._workers = []

    def convert(self, recipe: Recipe | None, tasks: Sequence[Sequence[Any]]) -> Iterator[Part]:
        """Yield the parts of all tasks in order. Take all of them before the next call.

        Args:
            recipe: The settings; None if the work is the common one.
            tasks: The sources of each task, or whatever the common work converts: objects with a `name`.

        Raises:
            ImageError: The first source that cannot be used, with on_error="stop".
            WorkerError: The system refuses a worker, or one died; names the image that it was converting.
        """
        if recipe is not None and (self._num_workers <= 1 or len(tasks) <= 1):
            for task in tasks:
                yield from convert_sources(recipe, task)
            return
        while len(self._workers) < min(self._num_workers, len(tasks)):
            count = min(self._num_workers, len(tasks))
            fewer = option("workers", max(1, count // 2))
            advice = f"Use fewer, such as {fewer}; the same conversion resumes where it stopped."
            with explain_limit(f"worker process {len(self._workers) + 1} of {count}", advice):
                self._workers.append(_Worker())
            self._workers[-1].begin(self._common)
        yield from _collect(self._workers, recipe, tasks)


def _collect(workers: Sequence[_Worker], recipe: Recipe | None, tasks: Sequence[Sequence[Any]]) -> Iterator[Part]:
    waiting = iter(range(len(tasks)))
    owner: dict[int, _Worker] = {}

    def feed() -> None:
        for _ in range(_TASKS_AHEAD):
            for worker in workers:
                if len(worker.tasks) < _TASKS_AHEAD and (number := next(waiting, None)) is not None:
                    owner[number] = worker
                    worker.give(number, recipe, tasks[number])

    for number in range(len(tasks)):
        while True:
            feed()
            worker = owner[number]
            item = worker.next_item(number)
            if item is None:
                ready = wait([w.connection for w in workers])
                for w in workers:
                    if w.connection in ready:
                        w.receive()
            elif isinstance(item, BaseException):
                raise item
            elif isinstance(item, Part):
                worker.acknowledge()
                yield item
            else:
                break
        del owner[number], worker.arrived[number]


@dataclass(slots=True)
class _Worker:
    """One worker process, its tasks, and the parts that it has sent.

    Attributes:
        process: The process.
        connection: The socket to it.
        place: The index of its current source among all sources it was given; written by the worker, -1 at first.
        num_done: Sources of the tasks that it has done.
        verb: What to do again if it dies.
        tasks: Tasks that it has not done yet.
        arrived: The messages that it has sent, by task.
    """

    process: subprocess.Popen[bytes] = field(init=False)
    connection: Connection[Any, Any] = field(init=False)
    place: npt.NDArray[np.int64] = field(init=False)
    num_done: int = 0
    verb: str = "Convert"
    tasks: deque[tuple[int, Sequence[Any]]] = field(default_factory=deque)
    arrived: dict[int, deque[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        place, self.place = make_number()
        self.place[0] = -1
        try:
            self.process, self.connection = start_worker(_START, place=place)
        finally:
            os.close(place)

    def begin(self, common: bytes) -> None:
        """Send the common work, if there is any; it is loaded with the first task, so that an error comes as its."""
        if common:
            self.verb = "Write"
            self._send(_COMMON)
            try:
                _send_memory([common], self.connection)
            except ConnectionError as error:
                raise self._death() from error

    def give(self, number: int, recipe: Recipe | None, sources: Sequence[Any]) -> None:
        self.tasks.append((number, sources))
        self.arrived[number] = deque()
        self._send(_TASK)
        try:
            # The worker may be waiting for us to read, so a task must not wait for room in the socket.
            send_object((recipe, list(sources)), self.connection)
        except ConnectionError as error:
            raise self._death() from error

    def acknowledge(self) -> None:
        self._send(_TAKEN)

    def next_item(self, number: int) -> Any:
        """Return the next part of a task, its error or its end; None if it has not arrived."""
        items = self.arrived[number]
        return items.popleft() if items else None

    def receive(self) -> None:
        try:
            item = self.connection.recv()
            if isinstance(item, Part):
                item = complete_part(item, self.connection)
        except (EOFError, ConnectionError) as error:
            raise self._death() from error
        except OSError as error:  # this process gets no memory; the worker is alive
            if (why := refused_memory(error)) is None:
                raise
            raise WorkerError(no_memory("taking the result of a worker", why, _fewer())) from error
        if not self.tasks:
            raise WorkerError(f"a worker sent {type(item).__name__} unexpectedly")
        self.arrived[self.tasks[0][0]].append(item)
        if not isinstance(item, Part):
            self.num_done += len(self.tasks.popleft()[1])

    def _send(self, item: object) -> None:
        try:
            self.connection.send(item)
        except ConnectionError as error:
            raise self._death() from error

    def _death(self) -> WorkerError:
        code = self.process.wait()
        how, is_short = system.how_ended(code)
        unfinished = [source.name for _, sources in self.tasks for source in sources]
        at = self.place.item() - self.num_done
        # Before its first image, and while it waits for tasks, it has no current image.
        during = f" while converting {unfinished[at]}" if 0 <= at < len(unfinished) else ""
        if code == errno.ENOMEM:
            refused = OSError(code, os.strerror(code))
            return WorkerError(no_memory(f"worker process {self.process.pid}{during}", refused, _fewer()))
        advice = f" Out of memory? Use fewer {option('workers')}." if is_short else ""
        what = "the conversion" if self.verb == "Convert" else "it"
        again = f"{self.verb} again with the same options: {what} resumes where it stopped."
        return WorkerError(f"worker process {self.process.pid} {how}{during}.{advice} {again}")


def _fewer() -> str:
    return f"Use fewer {option('workers')}: the same conversion resumes where it stopped."


def start_worker(start: str, **handles: int) -> tuple[subprocess.Popen[bytes], Connection[Any, Any]]:
    """Start a worker, in which libraries use one thread, and return it with the connection to it.

    It is a fresh interpreter: it inherits none of the caller's threads, locks or descriptors, and callers need no
    `if __name__ == "__main__"`. It is apart, because the parent handles Ctrl-C in a terminal. When the parent ends for
    any reason, the connection closes and the worker ends.

    Args:
        start: Its program, with {handle} for its end of the connection, and the other handles.
        handles: Descriptors that it gets.
    """
    connection, theirs = Pipe()
    start = start.format(handle=theirs.fileno(), **handles)
    code = _FIRST.format(path=[p for p in sys.path if isinstance(p, str)], flags=flags_in_use(), start=start)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    try:
        return system.start_python(["-c", code], [theirs.fileno(), *handles.values()], env=env), connection
    except BaseException:
        connection.close()
        raise
    finally:
        theirs.close()


def stop_workers(workers: Sequence[tuple[subprocess.Popen[bytes], Connection[Any, Any]]], seconds: float) -> None:
    """Close the connections to workers, which ends them; kill those that have not ended after some seconds."""
    for _, connection in workers:
        connection.close()
    end = time.monotonic() + seconds
    for process, _ in workers:
        try:
            process.wait(timeout=max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serve(handle: int, place: int) -> None:
    """Convert the tasks from a connection until it closes; the main function of a worker process.

    `place` is the handle of a shared number: the index of the current source among all that have arrived.
    """
    connection, shared = system.connect(handle), map_number(place)
    num_done = 0
    tasks: deque[tuple[Recipe | None, list[Any]]] = deque()
    common = _Common()
    unread = 0
    try:
        while True:
            while not tasks:
                unread -= _take(connection, tasks, common)
            recipe, sources = tasks.popleft()
            for item in _results(recipe or common, sources, shared, num_done):
                if not isinstance(item, Part):
                    connection.send(item)
                    continue
                while unread >= _PARTS_AHEAD:
                    unread -= _take(connection, tasks, common)
                send_part(item, connection)
                unread += 1
            num_done += len(sources)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except MemoryError:  # while a part was sent; there may be too little memory for a message
        os._exit(errno.ENOMEM)


class _Common:
    """The work that all tasks without a recipe share: `packed` as it came, `work` once it is loaded."""

    def __init__(self) -> None:
        self.packed: Any = b""
        self._work: Any = None

    def convert(self, sources: Sequence[Any], at: Callable[[int], None]) -> Iterator[Part]:
        if self._work is None:
            dataset, prepare, work = unpack(self.packed)
            self._work, self.packed = work.with_parts(dataset, prepare), b""
        parts: Iterator[Part] = self._work.convert(sources, at)
        return parts


def _take(connection: Connection[Any, Any], tasks: deque[tuple[Recipe | None, list[Any]]], common: _Common) -> int:
    """Take one message; return 1 if the parent has read a part, 0 for a task or the common work."""
    kind = connection.recv()
    if kind == _TAKEN:
        return 1
    if kind == _COMMON:
        common.packed = _receive_memory(connection)
    else:
        tasks.append(receive_object(connection))
    return 0


def _results(
    recipe: Recipe | _Common, sources: list[Any], place: npt.NDArray[np.int64], num_before: int
) -> Iterator[Any]:
    def at(number: int) -> None:
        place[0] = num_before + number

    at(0)
    try:
        if isinstance(recipe, _Common):
            yield from recipe.convert(sources, at)
        else:
            yield from convert_sources(recipe, sources, at=at)
        yield _END
    except LmdbloaderError as error:
        yield error
    except Exception as error:
        name = plain(sources[place.item() - num_before].name)
        if (why := refused_memory(error)) is not None:
            yield WorkerError(no_memory(f"converting {name}", why, _fewer()))
        else:
            yield WorkerError(f"converting {name} failed:\n{traceback.format_exc()}")


def send_object(item: object, connection: Connection[Any, Any]) -> None:
    """Send an object of any size by a message of a few bytes, so sending never waits for the reader."""
    _send_memory([dumps(item)], connection)


def receive_object(connection: Connection[Any, Any]) -> Any:
    """Return the object of `send_object`."""
    return loads(_receive_memory(connection))


def send_part(part: Part, connection: Connection[Any, Any]) -> None:
    """Send a part: its values through shared memory, the rest as a message."""
    lengths = [block.value.size for block in part.blocks]
    blocks = tuple(replace(b, value=n) for b, n in zip(part.blocks, lengths, strict=True))
    chunk = None if part.chunk is None else part.chunk.without_bytes()
    connection.send(replace(part, blocks=blocks, chunk=chunk))
    _send_memory([block.value for block in part.blocks], connection)


def complete_part(part: Part, connection: Connection[Any, Any]) -> Part:
    """Return a received part with its values, which are views of the shared memory."""
    whole = pa.py_buffer(_receive_memory(connection))
    blocks, at = [], 0
    for block in part.blocks:
        length: Any = block.value
        blocks.append(replace(block, value=whole.slice(at, length)))
        at += length
    return replace(part, blocks=tuple(blocks))


def make_number() -> tuple[int, npt.NDArray[np.int64]]:
    """Return the file of a number that two processes share, and the number, (1,) int64. It outlives its writer."""
    file = _memory_file()
    os.ftruncate(file, np.dtype(np.int64).itemsize)
    return file, map_number(file)


def map_number(file: int) -> npt.NDArray[np.int64]:
    """Return the number of `make_number`, (1,) int64, by the descriptor of its file."""
    return np.frombuffer(mmap.mmap(file, np.dtype(np.int64).itemsize), np.int64)


def _send_memory(pieces: Iterable[Any], connection: Connection[Any, Any]) -> None:
    file = _memory_file()
    try:
        for piece in pieces:
            _write_all(file, piece)
        system.send_file(connection, file)
    finally:
        os.close(file)


def _receive_memory(connection: Connection[Any, Any]) -> mmap.mmap | bytes:
    file = system.receive_file(connection)
    try:
        nbytes = os.fstat(file).st_size
        return system.map_shared(file, nbytes) if nbytes else b""
    finally:
        os.close(file)


def _memory_file() -> int:
    if (found := system.memory_file()) is not None:
        return found
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write_all(file: int, data: Any) -> None:
    view = memoryview(data).cast("B")
    while view.nbytes:
        view = view[os.write(file, view) :]
