"""Threads that carry out jobs, and end with the object that started them."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from lmdbloader.batch.turns import running

# The longest that the interpreter's exit, or a deletion of the object, waits for jobs that are running.
_JOIN_SECONDS = 2.0

Job = Callable[[], Any]
Jobs = SimpleQueue[Job | None]


class Threads:
    """Threads that carry out jobs in the order of submission; a job must not raise.

    They start with the first job, do not refer to this object, and end when it is closed or deleted, or the interpreter
    exits. Only closing waits without limit for the jobs that are running. After a fork the child starts its own.

    Attributes:
        num_closed: Number of times it was closed, which drops the jobs that were not started.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._process = -1
        self._jobs: Jobs = SimpleQueue()
        self.num_closed = 0
        # By process: a fork may copy a lock that is held by a thread of the parent.
        self._locks = {os.getpid(): threading.Lock()}
        self._end: Callable[[], Sequence[threading.Thread] | None] = lambda: None

    def submit(self, job: Job) -> None:
        """Add a job.

        Raises:
            WorkerError: The system refuses one of the threads; then none is left, and the next job tries again.
        """
        process = os.getpid()
        if self._process != process:
            # Two loops that begin at the same moment share the threads that one of them starts.
            with self._locks.get(process) or self._locks.setdefault(process, threading.Lock()):
                if self._process != process:
                    self._start()
        self._jobs.put(job)

    def close(self) -> None:
        """End the threads after their running jobs, and wait for that; later jobs start new threads."""
        self.num_closed += 1
        ended = self._end()
        self._process = -1
        if running() is None:  # a function in its turn, which they may be waiting for
            for thread in ended or ():
                thread.join()

    def _start(self) -> None:
        from lmdbloader.base.limits import start_threads

        # Daemons: the interpreter would wait for other threads before it runs the code that ends them.
        self._jobs = SimpleQueue()
        threads = [
            threading.Thread(target=_work, args=(self._jobs,), name=f"{self._name}-{i}", daemon=True)
            for i in range(self._count)
        ]
        self._end = weakref.finalize(self, _end, self._jobs, threads, os.getpid())
        try:
            advice = f"Use fewer, as Loader(..., num_threads={max(1, self._count // 2)})."
            start_threads(threads, f"a Loader with {self._count} threads", advice)
        except BaseException:
            self._end()
            raise
        self._process = os.getpid()


def _work(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # a thread that waits for the next job must not keep this one's memory


def _end(jobs: Jobs, threads: Sequence[threading.Thread], process: int) -> Sequence[threading.Thread]:
    """End threads; return those that are still running a job after a while."""
    if process != os.getpid():
        return ()  # a forked child has none of them
    with suppress(Empty):
        while True:
            jobs.get_nowait()
    for _ in threads:
        jobs.put(None)
    # Compiled code must not lose its memory, and takes milliseconds; a function of the user may never end.
    until = time.monotonic() + (_JOIN_SECONDS if running() is None else 0)
    others = [thread for thread in threads if thread.ident and thread is not threading.current_thread()]
    for thread in others:
        thread.join(max(0.0, until - time.monotonic()))
    return [thread for thread in others if thread.is_alive()]
