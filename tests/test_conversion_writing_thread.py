"""The thread that writes: parts in their order, and an error where the next part is handed over."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from lmdbloader.conversion.tasks import Part
from lmdbloader.conversion.writing_thread import WritingThread


def part(count: int) -> Part:
    return Part(count, (), (), (), (), count, 0)  # type: ignore[arg-type]


class Recorder:
    """A writer that notes what it gets, and fails at one part."""

    def __init__(self, fails_at: int = -1) -> None:
        self.fails_at, self.num_samples, self.payload_nbytes = fails_at, 0, 0
        self.added: list[Any] = []
        self.thread: threading.Thread | None = None

    def add(self, chunk: Any, blocks: Any) -> None:
        if len(self.added) == self.fails_at:
            raise OSError(28, "No space left on device")
        self.added.append(chunk)
        self.num_samples += chunk
        self.thread = threading.current_thread()


def test_parts_are_added_in_order_in_another_thread() -> None:
    writer = Recorder()
    with WritingThread(writer) as sink:  # type: ignore[arg-type]
        for count in (3, 1, 4, 1, 5):
            sink.add(part(count))
        assert sink.num_samples == 14
    assert writer.added == [3, 1, 4, 1, 5]
    assert writer.thread is not threading.current_thread()


@pytest.mark.parametrize("fails_at", [0, 1, 4])
def test_an_error_of_the_writer_ends_the_caller_and_holds_nobody_up(fails_at: int) -> None:
    writer = Recorder(fails_at)
    with pytest.raises(OSError, match="No space left"), WritingThread(writer) as sink:  # type: ignore[arg-type]
        for _ in range(5):
            sink.add(part(1))
    assert len(writer.added) == fails_at


class Slow(Recorder):
    """A writer that is interrupted while it adds the second part, as by Ctrl-C, and goes on for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.has_ended = threading.Event()

    def add(self, chunk: Any, blocks: Any) -> None:
        super().add(chunk, blocks)
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
