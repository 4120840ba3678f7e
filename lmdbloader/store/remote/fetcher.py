"""The threads that fetch pieces of a remote file: what is needed now first, then what was requested for later."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from lmdbloader.base.limits import start_threads
from lmdbloader.errors import CorruptError, LmdbloaderError, WorkerError
from lmdbloader.store.remote.pieces import UNCHECKED, Pieces
from lmdbloader.store.remote.service import MOST_REQUESTS

I64 = npt.NDArray[np.int64]
# Neighbours that come by one request. More would make others wait longer.
_MOST_AT_ONCE = 2
# A thread without work ends.
_IDLE_SECONDS = 20.0
# Another process may have fetched a piece: nobody says so.
_LOOK_SECONDS = 0.02
# After an error, requests for the same bytes fail at once for a while: each attempt takes half a minute.
_FAILED_SECONDS = 3.0
Get = Callable[[int, int], bytes]


def runs_of(pieces: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of neighbours (first, end), in the order given.

    >>> list(runs_of([4, 5, 6, 1, 9]))
    [(4, 7), (1, 2), (9, 10)]
    """
    first = end = -1
    for piece in pieces:
        if piece != end:
            if first >= 0:
                yield first, end
            first = piece
        end = piece + 1
    if first >= 0:
        yield first, end


class Fetcher:
    """Threads of one process, and their queue. It does not refer to the Cache, whose end stops them.

    Attributes:
        fetched: Called with pieces (first, end) that this process has fetched.
    """

    def __init__(self, pieces: Pieces, get: Get) -> None:
        """Start no thread yet.

        Args:
            pieces: Where the bytes go.
            get: Returns the bytes from one place to before another.
        """
        self._pieces, self._get = pieces, get
        self._active = pieces.claims.active
        self.fetched: Callable[[int, int], None] = lambda first, end: None
        self._changed = threading.Condition(pieces.claims.lock)
        self._queue: deque[tuple[int, int]] = deque()
        self._queued: set[int] = set()
        self._num_threads = self._num_idle = 0
        self._stopped = False
        # When, why, and for which pieces (first, end).
        self._failed: tuple[float, LmdbloaderError, tuple[int, int]] | None = None

    def request(self, pieces: I64) -> None:
        """Fetch pieces in the background, after those that were requested before."""
        with self._changed:
            fresh = [piece for piece in pieces.tolist() if piece not in self._queued and piece not in self._active]
            self._queued.update(fresh)
            self._queue.extend(runs_of(fresh))
            self._wake(len(fresh))

    def bring(self, pieces: I64) -> None:
        """Return when pieces are here; they are fetched before others.

        Raises:
            LmdbloaderError: They cannot be fetched, or not be written.
        """
        is_first = True
        while len(pieces := self._pieces.absent(pieces)):
            with self._changed:
                if self._failed is not None and _concerns(self._failed, pieces):
                    raise _again(self._failed[1])
                wanted = pieces.tolist()
                own = [piece for piece in wanted if piece not in self._active]
                if not is_first:
                    own = [piece for piece in own if piece not in self._queued]
                self._queued.update(own)
                self._queue.extendleft(reversed(list(runs_of(own))))
                self._wake(len(own))
                is_first = False
                if not (self._pieces.states[pieces] == 1).all():
                    self._changed.wait(_LOOK_SECONDS)

    def renew(self, pieces: I64) -> None:
        """Fetch pieces that are here once more.

        Raises:
            LmdbloaderError: They cannot be fetched, or not be written.
        """
        for piece in pieces.tolist():
            while not self._take(piece):
                time.sleep(_LOOK_SECONDS)
            try:
                self._fetch(piece, piece + 1)
            finally:
                self._give(piece)

    def forget_requests(self) -> None:
        """Fetch nothing of what was requested and has not begun."""
        with self._changed:
            self._queue.clear()
            self._queued.clear()
            self._changed.notify_all()

    def stop(self) -> None:
        """End the threads."""
        with self._changed:
            self._stopped = True
            self._queue.clear()
            self._changed.notify_all()

    def _take(self, piece: int) -> bool:
        """Claim a piece for a thread of this process; False if somebody else has."""
        claims = self._pieces.claims
        with claims.lock:
            if piece in self._active or not claims.claim(piece):
                return False
            self._active.add(piece)
            return True

    def _give(self, piece: int) -> None:
        claims = self._pieces.claims
        with self._changed:
            claims.unclaim(piece)
            self._active.discard(piece)
            self._changed.notify_all()

    def _wake(self, count: int) -> None:
        """Have up to `count` threads look at the queue; the caller has the lock."""
        missing = min(-(-count // _MOST_AT_ONCE) - self._num_idle, MOST_REQUESTS - self._num_threads)
        for _ in range(missing):
            thread = threading.Thread(target=self._run, name="lmdbloader-remote", daemon=True)
            try:
                start_threads([thread], "fetching", "Use fewer threads elsewhere.")
            except WorkerError:
                if not self._num_threads:
                    raise
                break
            self._num_threads += 1
        self._changed.notify_all()

    def _run(self) -> None:
        while (run := self._next()) is not None:
            taken = [piece for piece in range(*run) if self._take(piece)]
            try:
                for first, end in runs_of(taken):
                    self._fetch_absent(first, end)
            except LmdbloaderError as error:
                self._fail(error, run)
            except BaseException as error:  # of the system: the folder is gone, for example
                what = f"cannot be filled: {type(error).__name__}: {error}"
                self._fail(WorkerError(f"{self._pieces.folder}: {what}"), run)
            finally:
                for piece in taken:
                    self._give(piece)

    def _next(self) -> tuple[int, int] | None:
        """Return pieces (first, end) to fetch, once there are some; None to end the thread."""
        with self._changed:
            until = time.monotonic() + _IDLE_SECONDS
            while not self._stopped:
                if self._queue:
                    first, end = self._queue.popleft()
                    if end - first > _MOST_AT_ONCE:
                        self._queue.appendleft((first + _MOST_AT_ONCE, end))
                        end = first + _MOST_AT_ONCE
                    self._queued.difference_update(range(first, end))
                    return first, end
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._num_idle += 1
                self._changed.wait(left)
                self._num_idle -= 1
            self._num_threads -= 1
            return None

    def _fetch_absent(self, first: int, end: int) -> None:
        """Fetch those of some claimed pieces that are not here."""
        states = self._pieces.states
        for piece in range(first, end):
            if states[piece] == UNCHECKED:
                self._pieces.check(piece)
        for start, stop in runs_of((first + np.flatnonzero(states[first:end] != 1)).tolist()):
            self._fetch(start, stop)

    def _fetch(self, first: int, end: int) -> None:
        data = self._get(*self._pieces.bounds(first, end))
        self._pieces.put(first, memoryview(data))
        self.fetched(first, end)

    def _fail(self, error: LmdbloaderError, run: tuple[int, int]) -> None:
        with self._changed:
            self._failed = time.monotonic(), error, run
            self._queue.clear()
            self._queued.clear()
            self._changed.notify_all()


def _concerns(failed: tuple[float, LmdbloaderError, tuple[int, int]], pieces: I64) -> bool:
    """Return whether an error is about some pieces, too: one of a server is about all of them, for a while."""
    at, error, (first, end) = failed
    if time.monotonic() - at >= _FAILED_SECONDS:
        return False
    return not isinstance(error, CorruptError) or bool(((pieces >= first) & (pieces < end)).any())


def _again(error: LmdbloaderError) -> LmdbloaderError:
    """Return an error for another thread to raise; one that is raised twice would keep both traces."""
    fresh = type(error)(*error.args)
    fresh.__cause__ = error.__cause__
    return fresh
