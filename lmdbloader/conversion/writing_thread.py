"""A thread that writes encoded samples, so that encoding goes on while the disk is waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

from lmdbloader.base.limits import explain_limit
from lmdbloader.conversion.tasks import Part
from lmdbloader.store import Block, Chunk, PartWriter

# Parts of about 8 MiB that wait to be written. More of them take more time than they save: memory that was not used
# before costs the system about as much as copying it.
_WAITING = 3


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
        self._executor = ThreadPoolExecutor(1, "lmdbloader-writer")
        self._waiting: deque[Future[None]] = deque()
        self._is_whole = True

    def __enter__(self) -> WritingThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pressed: KeyboardInterrupt | None = None
        while not all(future.done() for future in self._waiting):
            for future in self._waiting if error or pressed else ():
                future.cancel()
            try:
                wait(self._waiting)
            except KeyboardInterrupt as again:  # the caller closes LMDB's map next, which the thread may be using
                pressed = again
        self._executor.shutdown()
        if pressed is not None:
            raise pressed
        while error is None and self._waiting:
            self._waiting.popleft().result()

    def add(self, part: Part) -> None:
        """Hand over a part; waits while the disk is behind.

        Raises:
            DiskFullError: No room left, for this part or an earlier one.
        """
        while self._waiting and (len(self._waiting) > _WAITING or self._waiting[0].done()):
            self._waiting.popleft().result()
        self.num_samples += part.num_sources
        self.payload_nbytes += part.nbytes
        if part.chunk is not None:
            with explain_limit(
                "writing a dataset: thread 1 of 1", "Writing always needs this thread: close other programs."
            ):
                self._waiting.append(self._executor.submit(self._write, part.chunk, part.blocks))

    def _write(self, chunk: Chunk, blocks: Sequence[Block]) -> None:
        """Add samples, unless some before them could not be added."""
        if self._is_whole:
            self._is_whole = False
            self._writer.add(chunk, blocks)
            self._is_whole = True
