"""What a DataLoader's worker process does beside reading: it ends with its parent and reports what it cannot send."""

from __future__ import annotations

import multiprocessing
import multiprocessing.queues
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch._utils import ExceptionWrapper

from lmdbloader.batch.shared import is_plain, no_space, tells_no_space

# Torch's own workers notice after up to five seconds that nobody waits for them any more.
_LOOK_SECONDS = 0.5


class WorkerStart:
    """A DataLoader's `worker_init_fn` that prepares the process, then calls another such function if there is one."""

    def __init__(self, then: Callable[[int], Any] | None = None) -> None:
        self.then = then

    def __call__(self, worker_id: int) -> None:
        if multiprocessing.parent_process() is not None:  # torch has workers that are threads, too
            watch = threading.Thread(target=_end_with, args=(os.getppid(),), name="lmdbloader-parent", daemon=True)
            watch.start()
            sys.excepthook = _tell
            _report_what_cannot_be_sent(worker_id)
        if self.then is not None:
            self.then(worker_id)


def _end_with(parent: int) -> None:
    """End this process as soon as another is not its parent any more."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _tell(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Tell of an error that nobody caught, unless it is the training loop that has gone."""
    # The thread that hands over shared memory would tell of every Ctrl-C that the training loop has told of.
    is_gone = isinstance(error, (ConnectionError, EOFError)) and threading.current_thread() != threading.main_thread()
    if not is_gone:
        sys.__excepthook__(kind, error, where)


def _report_what_cannot_be_sent(worker_id: int) -> None:
    """Have queues send an error in place of a batch that cannot be sent; else the training loop waits for ever."""

    def send_error(queue: Any, error: Exception, item: Any) -> None:
        number, batch = item
        try:
            if tells_no_space(error):
                raise no_space(_unshared_nbytes(batch)) from error
            raise error
        except Exception:
            queue.put((number, ExceptionWrapper(where=f"in DataLoader worker process {worker_id}")))  # type: ignore[no-untyped-call]

    # The standard library's hook for subclasses; this process has no queues but those of its DataLoader.
    multiprocessing.queues.Queue._on_queue_feeder_error = send_error  # type: ignore[attr-defined]


def _unshared_nbytes(value: Any) -> int:
    """Return how much shared memory the tensors of a batch still need."""
    if isinstance(value, torch.Tensor):
        return 0 if not is_plain(value) or value.is_shared() else value.nbytes  # type: ignore[no-untyped-call]
    if isinstance(value, dict):
        return sum(map(_unshared_nbytes, value.values()))
    return sum(map(_unshared_nbytes, value)) if isinstance(value, (list, tuple)) else 0
