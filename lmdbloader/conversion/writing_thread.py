"""A thread that writes encoded samples, so that encoding goes on while the disk is waited for."""

from __future__ import annotations

import contextlib
import queue
import threading
from types import TracebackType

from lmdbloader.base.limits import start_threads
from lmdbloader.conversion.tasks import Part
from lmdbloader.store import PartWriter

# Parts of about 8 MiB that wait to be written. More of them take more time than they save: memory that was not used
# before costs the system about as much as copying it.
_WAITING = 3
# Seconds between two looks at whether the thread has ended.
_MOMENT = 0.1


class WritingThread:
    """Adds encoded samples to a writer in a thread, for a `with` statement: at its end all of them are added.

    Attributes:
        num_samples: Samples of the writer including all that this was given.
        payload_nbytes: The bytes of their payloads.
    """

    def __init__(self, writer: PartWriter) -> None:
        """Take the writer, which nothing else may use meanwhile."""
        self.num_samples, self.payload_nbytes = writer.num_samples, writer.payload_nbytes
        self._writer = writer
        self._parts: queue.Queue[Part | None] = queue.Queue(_WAITING)
        self._error: BaseException | None = None
        self._is_stopped, self._has_ended = False, threading.Event()
        self._thread = threading.Thread(target=self._run, name="lmdbloader-writer", daemon=True)

    def __enter__(self) -> WritingThread:
        start_threads([self._thread], "writing a dataset", "Writing always needs this thread: close other programs.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_stopped = error is not None
        again: KeyboardInterrupt | None = None
        while not self._has_ended.is_set():  # after a join that was interrupted, `is_alive` may be wrong
            try:
                with contextlib.suppress(queue.Full):
                    self._parts.put(None, timeout=_MOMENT)
                self._has_ended.wait(_MOMENT)
            except KeyboardInterrupt as pressed:  # the caller closes LMDB's map next, which the thread may be using
                self._is_stopped, again = True, pressed
        self._thread.join()
        if again is not None:
            raise again
        if error is None:
            self._raise()

    def add(self, part: Part) -> None:
        """Hand over a part; waits while the disk is behind.

        Raises:
            DiskFullError: No room left, for this part or an earlier one.
        """
        self._raise()
        self.num_samples += part.num_sources
        self.payload_nbytes += part.nbytes
        self._parts.put(part)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        # After an error parts are still taken, so that `add` does not wait for ever.
        while (part := self._parts.get()) is not None:
            if self._error is not None or self._is_stopped or part.chunk is None:
                continue
            try:
                self._writer.add(part.chunk, part.blocks)
            except BaseException as error:
                self._error = error
            del part
        self._has_ended.set()
