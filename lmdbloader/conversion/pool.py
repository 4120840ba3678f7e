"""Worker processes that convert sources, and the order in which their results come back."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import pyarrow as pa

from lmdbloader.conversion.tasks import Part, Recipe, convert_sources
from lmdbloader.errors import LmdbloaderError, WorkerError
from lmdbloader.sources import Source

# Sources of one task. It must not depend on the number of workers: records never span tasks.
TASK_NBYTES = 2**20
TASK_SOURCES = 512
_TASKS_AHEAD = 2
_PARTS_AHEAD = 3
_START = "import sys; sys.path[:] = {path!r}; from lmdbloader.conversion.pool import serve; serve({handle})"


def make_tasks(sources: Sequence[Source]) -> list[slice]:
    """Return the sources of each task: consecutive ones, of about 1 MiB together."""
    tasks, first, nbytes = [], 0, 0
    for i, source in enumerate(sources):
        nbytes += source.nbytes
        if nbytes >= TASK_NBYTES or i + 1 - first >= TASK_SOURCES:
            tasks.append(slice(first, i + 1))
            first, nbytes = i + 1, 0
    if first < len(sources):
        tasks.append(slice(first, len(sources)))
    return tasks


def convert_in_order(recipe: Recipe, tasks: Sequence[Sequence[Source]], num_workers: int) -> Iterator[Part]:
    """Yield the parts of all tasks in order, whichever worker made them.

    Args:
        recipe: For every source.
        tasks: Sources task by task.
        num_workers: Worker processes; with 1 the work is done in this process.

    Raises:
        ImageError: Of the first source that cannot be used, where the recipe says to stop.
        WorkerError: A worker died; names what it was working on.
    """
    if num_workers <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield from convert_sources(recipe, task)
        return
    workers = [_Worker(recipe) for _ in range(min(num_workers, len(tasks)))]
    try:
        yield from _collect(workers, tasks)
    finally:
        for worker in workers:
            worker.stop()


def _collect(workers: Sequence[_Worker], tasks: Sequence[Sequence[Source]]) -> Iterator[Part]:
    waiting = deque(enumerate(tasks))
    owner: dict[int, _Worker] = {}

    def feed() -> None:
        for _ in range(_TASKS_AHEAD):
            for worker in workers:
                if waiting and len(worker.tasks) < _TASKS_AHEAD:
                    number, sources = waiting.popleft()
                    owner[number] = worker
                    worker.give(number, sources)

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
        del owner[number]


_END = "end"


@dataclass(slots=True)
class _Worker:
    """One process, what it was given, and what it has sent."""

    recipe: Recipe
    process: subprocess.Popen[bytes] = field(init=False)
    connection: Connection = field(init=False)
    tasks: deque[tuple[int, Sequence[Source]]] = field(default_factory=deque)
    arrived: dict[int, deque[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A fresh interpreter: nothing of the caller's threads, locks or descriptors is inherited, and no caller needs
        # an `if __name__ == "__main__"`.
        ours, theirs = socket.socketpair()
        code = _START.format(path=[p for p in sys.path if isinstance(p, str)], handle=theirs.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=_one_thread()
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self._send(self.recipe)

    def give(self, number: int, sources: Sequence[Source]) -> None:
        self.tasks.append((number, sources))
        self.arrived[number] = deque()
        self._send(list(sources))

    def acknowledge(self) -> None:
        self._send(None)

    def next_item(self, number: int) -> Any:
        """Return the next part of a task, its error or its end; None where that has not arrived."""
        items = self.arrived[number]
        return items.popleft() if items else None

    def receive(self) -> None:
        try:
            item = self.connection.recv()
            if isinstance(item, Part):
                item = _attach(item, self.connection)
        except (EOFError, OSError):
            item = self._death()
        if not self.tasks:
            raise (
                item if isinstance(item, BaseException) else WorkerError(f"a worker sent {type(item).__name__} unasked")
            )
        self.arrived[self.tasks[0][0]].append(item)
        if not isinstance(item, Part):
            self.tasks.popleft()

    def stop(self) -> None:
        self.connection.close()
        try:
            self.process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _send(self, item: object) -> None:
        try:
            self.connection.send(item)
        except OSError as error:
            raise self._death() from error

    def _death(self) -> WorkerError:
        code = self.process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        names = [s.name for s in self.tasks[0][1]] if self.tasks else []
        what = f" while converting {names[0]}" + (f" to {names[-1]}" if len(names) > 1 else "") if names else ""
        advice = " Out of memory? Use fewer --workers." if code == -signal.SIGKILL else ""
        return WorkerError(f"worker process {self.process.pid} {how}{what}.{advice}")


def _one_thread() -> dict[str, str]:
    """Return an environment in which libraries do not start a thread for every core in every worker."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def serve(handle: int) -> None:
    """Convert what arrives through a socket until it closes; the main function of a worker process."""
    # Ctrl-C reaches every process of a terminal; the parent decides, and closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(handle)
    try:
        recipe: Recipe = connection.recv()
        tasks: deque[list[Source]] = deque()
        unread = 0
        while True:
            while not tasks:
                unread -= _take(connection, tasks)
            for item in _results(recipe, tasks.popleft()):
                if not isinstance(item, Part):
                    connection.send(item)
                    continue
                while unread >= _PARTS_AHEAD:
                    unread -= _take(connection, tasks)
                _detach(item, connection)
                unread += 1
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _take(connection: Connection, tasks: deque[list[Source]]) -> int:
    """Take one message: a task, or that a part was read; return how many parts were."""
    message = connection.recv()
    if message is None:
        return 1
    tasks.append(message)
    return 0


def _results(recipe: Recipe, sources: list[Source]) -> Iterator[Any]:
    try:
        yield from convert_sources(recipe, sources)
        yield _END
    except LmdbloaderError as error:
        yield error
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except BaseException:
        yield WorkerError(f"converting {sources[0].name} to {sources[-1].name} failed:\n{traceback.format_exc()}")


def _detach(part: Part, connection: Connection) -> None:
    """Send a part: its values through memory that both processes map, the rest as a message."""
    handle = _memory_file()
    try:
        for block in part.blocks:
            _write_all(handle, block.value)
        lengths = [block.value.size for block in part.blocks]
        blocks = tuple(replace(b, value=n) for b, n in zip(part.blocks, lengths, strict=True))
        chunk = part.chunk
        if chunk is not None:
            # The parent needs the rows of the index, not a second copy of the pixels.
            nothing = np.empty(0, np.uint8)
            chunk = replace(chunk, payloads={name: replace(p, data=nothing) for name, p in chunk.payloads.items()})
        connection.send(replace(part, blocks=blocks, chunk=chunk))
        with socket.socket(fileno=os.dup(connection.fileno())) as channel:
            socket.send_fds(channel, [b"m"], [handle])
    finally:
        os.close(handle)


def _attach(part: Part, connection: Connection) -> Part:
    with socket.socket(fileno=os.dup(connection.fileno())) as channel:
        _, handles, _, _ = socket.recv_fds(channel, 1, 1)
    if len(handles) != 1:
        raise EOFError
    try:
        nbytes = os.fstat(handles[0]).st_size
        if not nbytes:
            return part
        populate = getattr(mmap, "MAP_POPULATE", 0)
        memory = mmap.mmap(handles[0], nbytes, flags=mmap.MAP_SHARED | populate, prot=mmap.PROT_READ)
    finally:
        os.close(handles[0])
    whole = pa.py_buffer(memory)
    blocks, at = [], 0
    for block in part.blocks:
        length: Any = block.value
        blocks.append(replace(block, value=whole.slice(at, length)))
        at += length
    return replace(part, blocks=tuple(blocks))


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("lmdbloader", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write_all(handle: int, data: Any) -> None:
    view = memoryview(data).cast("B")
    while view.nbytes:
        view = view[os.write(handle, view) :]
