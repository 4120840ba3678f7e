"""A few threads that carry out jobs, and end with whoever started them."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

Job = Callable[[], Any]
Jobs = SimpleQueue[Job | None]


class Threads:
    """Threads that carry out jobs in the order in which they come; a job must not raise.

    They start with the first job, know nothing of this object, and end when it is closed, deleted, or the interpreter
    exits. After a fork the child starts its own.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._process = -1
        self._jobs: Jobs = SimpleQueue()
        self._end: Callable[[], Any] = lambda: None

    def submit(self, job: Job) -> None:
        """Have a job carried out."""
        if self._process != os.getpid():
            self._start()
        self._jobs.put(job)

    def close(self) -> None:
        """Let the threads finish the jobs that they are at, and wait for that; later jobs start new ones."""
        self._end()
        self._process = -1

    def _start(self) -> None:
        # Daemons, because the interpreter waits for others before it lets anybody tell them to end.
        self._jobs = SimpleQueue()
        threads = [
            threading.Thread(target=_work, args=(self._jobs,), name=f"{self._name}-{i}", daemon=True)
            for i in range(self._count)
        ]
        self._end = weakref.finalize(self, _end, self._jobs, threads, os.getpid())
        for thread in threads:
            thread.start()
        self._process = os.getpid()


def _work(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # whoever waits for the next one must not keep this one's memory


def _end(jobs: Jobs, threads: Sequence[threading.Thread], process: int) -> None:
    if process != os.getpid():
        return  # a forked child has none of them
    while not jobs.empty():
        jobs.get()
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        if thread is not threading.current_thread() and thread.is_alive():
            thread.join()
