"""The time of threads as the system counts it: seconds on a core, and seconds of waiting for one."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# Names of the threads of Loaders and their readahead begin so.
_LOADER_THREADS = "lmdbloader"


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Time of some threads together.

    Attributes:
        running: Seconds on a core.
        delayed: Seconds of being ready to run while other threads had the cores: the system's run delay.
    """

    running: float = 0.0
    delayed: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of both."""
        return self.running + self.delayed

    def __sub__(self, earlier: ThreadTimes) -> ThreadTimes:
        """Return the time since an earlier moment."""
        return ThreadTimes(self.running - earlier.running, self.delayed - earlier.delayed)

    def part(self, running: float) -> ThreadTimes:
        """Return these times for a part of the running: waiting for cores is spread evenly over it."""
        return ThreadTimes(running, self.delayed * min(running / self.running, 1.0) if self.running else 0.0)


class ThreadWatch:
    """Adds up the times of threads that come and go; of ended ones as far as they were seen.

    >>> watch = ThreadWatch("main")
    >>> before = watch.look()
    >>> (watch.look() - before).running >= 0
    True
    """

    def __init__(self, kind: str) -> None:
        """Watch from now on.

        Args:
            kind: "loader" (the threads of this process's Loaders), "workers" (processes that this one starts through
                multiprocessing from now on, or those that `follow` names) or "main" (the thread that calls this).
        """
        self._kind = kind
        # Others that this process has: they load nothing.
        self._strangers = {child.pid for child in multiprocessing.active_children()} if kind == "workers" else set()
        self._workers: list[int] | None = None
        self._main = threading.get_native_id()
        self._seen = dict(self._now())
        self._total = ThreadTimes()

    def follow(self, workers: list[int]) -> None:
        """Watch these processes, by their ids, and no others."""
        self._workers = workers

    @property
    def is_there(self) -> bool:
        """Whether the system reports times, and there are such threads."""
        return bool(self._seen)

    def look(self) -> ThreadTimes:
        """Return the time since the beginning, of all of them together."""
        running, delayed = self._total.running, self._total.delayed
        for task, times in self._now():
            new = times - self._seen.get(task, ThreadTimes())
            running, delayed = running + new.running, delayed + new.delayed
            self._seen[task] = times
        self._total = ThreadTimes(running, delayed)
        return self._total

    def _now(self) -> Iterator[tuple[tuple[int, int], ThreadTimes]]:
        for process, thread in self._tasks():
            if (times := _times_of(process, thread)) is not None:
                yield (process, thread), times

    def _tasks(self) -> Iterable[tuple[int, int]]:
        here = os.getpid()
        if self._kind == "main":
            return [(here, self._main)]
        if self._kind == "loader":
            threads = [t.native_id for t in threading.enumerate() if t.name.startswith(_LOADER_THREADS)]
            return [(here, number) for number in threads if number is not None]
        children = {child.pid for child in multiprocessing.active_children()} - self._strangers
        # Of a worker of torch's the first thread does the work.
        return [(pid, pid) for pid in (children if self._workers is None else self._workers) if pid is not None]


def _times_of(process: int, thread: int) -> ThreadTimes | None:
    """Return the times of one thread; None if unknown, or if it has ended.

    The three numbers of its schedstat are nanoseconds on a core, nanoseconds of waiting for one, and how often it had
    one (Documentation/scheduler/sched-stats.rst of Linux).
    """
    try:
        # A file object costs three times as much.
        descriptor = os.open(f"/proc/{process}/task/{thread}/schedstat", os.O_RDONLY)
        try:
            running, delayed = map(int, os.read(descriptor, 100).split()[:2])
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
    return ThreadTimes(running / 1e9, delayed / 1e9)
