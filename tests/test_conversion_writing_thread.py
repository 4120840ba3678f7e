"""The thread that writes has ended before its writer is closed."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from lmdbloader.conversion.notes import Notes
from lmdbloader.conversion.tasks import Part
from lmdbloader.conversion.writing_thread import WritingThread


def part(count: int) -> Part:
    return Part(count, (), Notes(count), 0)  # type: ignore[arg-type]


class Slow:
    """A writer that is interrupted while it adds the second part, as by Ctrl-C, and goes on for a while."""

    def __init__(self) -> None:
        self.added: list[Any] = []
        self.num_samples = self.payload_nbytes = 0
        self.has_ended = threading.Event()

    def add(self, chunk: Any, blocks: Any) -> None:
        self.added.append(chunk)
        if chunk == 2:
            for _ in range(2):
                threading.Event().wait(0.3)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            threading.Event().wait(0.3)
            self.has_ended.set()


@pytest.mark.skipif(
    not hasattr(signal, "pthread_kill") or threading.current_thread() is not threading.main_thread(),
    reason="needs a signal to the main thread",
)
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_the_thread_has_ended_however_often_the_caller_is_interrupted(is_interrupted: bool) -> None:
    """The caller closes the writer's files next, which no thread may be using then."""
    writer = Slow()
    with pytest.raises(KeyboardInterrupt), WritingThread(writer) as sink:  # type: ignore[arg-type]
        for count in (1, 2, 3):
            sink.add(part(count))
        while is_interrupted and len(writer.added) < 2:
            threading.Event().wait(0.01)
        if is_interrupted:
            raise KeyboardInterrupt
    assert writer.has_ended.is_set() and writer.added == [1, 2]
