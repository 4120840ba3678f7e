"""The threads that fetch pieces of a remote file: what is needed now first, then what was requested for later."""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from lmdbloader.base.limits import start_threads
from lmdbloader.errors import CorruptError, LmdbloaderError, WorkerError
from lmdbloader.store.remote.pieces import PRESENT, UNCHECKED, Patience, Pieces, runs_of
from lmdbloader.store.remote.service import MOST_REQUESTS

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
# Neighbours that come by one request: 2.5 MiB, so that a block of 2 MiB needs one, wherever it begins. More would make
# others wait longer.
_MOST_AT_ONCE = 40
# Of very many that are waited for, so many are in the queue at a time: 128 MiB.
_MOST_BROUGHT = 2048
# A thread without work ends.
_IDLE_SECONDS = 20.0
# Another process may have fetched a piece: nobody says so.
_LOOK_SECONDS = 0.02
# After an error, requests for the same bytes fail at once for a while: each attempt takes half a minute.
_FAILED_SECONDS = 3.0
# The owner of what somebody waits for.
_URGENT = -1
Get = Callable[[int, int], bytes]


def parts_of(first: int, end: int) -> list[tuple[int, int]]:
    """Return a run of neighbours in the fewest parts that one request may bring, all about as long.

    >>> parts_of(10, 43), parts_of(0, 96)
    ([(10, 43)], [(0, 32), (32, 64), (64, 96)])
    """
    count = -(-(end - first) // _MOST_AT_ONCE)
    cuts = [first + (end - first) * k // count for k in range(count + 1)]
    return list(itertools.pairwise(cuts))


class Fetcher:
    """Threads of one process, and their queue. It does not refer to the Cache, whose end stops them.

    Attributes:
        fetched: Called with pieces (first, end) that this process has fetched.
    """

    def __init__(
        self, pieces: Pieces, get: Get, widened: Callable[[I64], I64], passing: Callable[[int, int], Bools]
    ) -> None:
        """Start no thread yet.

        Args:
            pieces: Where the bytes go.
            get: Returns the bytes from one place to before another.
            widened: Returns absent pieces and those that are fetched with them.
            passing: Returns for pieces (first, end) whether each is given back after use.
        """
        self._pieces, self._get, self._widened, self._passing = pieces, get, widened, passing
        self._active = pieces.claims.active
        self.fetched: Callable[[int, int], None] = lambda first, end: None
        self._changed = threading.Condition(pieces.claims.lock)
        # Runs of pieces (first, end, owner) by a number, in the order in which they are fetched; the run of each piece.
        self._queue: OrderedDict[int, tuple[int, int, int]] = OrderedDict()
        self._queued: dict[int, int] = {}
        self._numbers = itertools.count()
        self._num_threads = self._num_idle = 0
        self._stopped = False
        # When, why, and for which runs of pieces.
        self._failed: tuple[float, LmdbloaderError, Sequence[tuple[int, int]]] | None = None

    def request(self, pieces: I64, owner: int) -> None:
        """Fetch absent pieces in the background, after those that were requested before."""
        pieces = self._widened(pieces)
        with self._changed:
            self._enqueue([p for p in pieces.tolist() if p not in self._queued and p not in self._active], owner)
            self._wake()

    def bring(self, pieces: I64) -> None:
        """Return when pieces are here; they are fetched before others.

        Raises:
            LmdbloaderError: They cannot be fetched, or not be written.
        """
        is_first, patience, fewest = True, Patience(self._pieces.folder), len(pieces) + 1
        while len(pieces := self._pieces.absent(pieces)):
            some = pieces[:_MOST_BROUGHT]
            with self._changed:
                if self._failed is not None and _concerns(self._failed, pieces):
                    raise _again(self._failed[1])
                ours = (piece in self._active or piece in self._queued for piece in some.tolist())
                if len(pieces) < fewest or any(ours):
                    fewest = min(fewest, len(pieces))
                    patience.restart()
                patience.check()
                wanted = [piece for piece in self._widened(some).tolist() if piece not in self._active]
                if is_first:  # whole runs: one request brings them
                    for number in reversed(dict.fromkeys(self._queued[p] for p in wanted if p in self._queued)):
                        self._queue.move_to_end(number, last=False)
                self._enqueue([piece for piece in wanted if piece not in self._queued], None)
                self._wake()
                is_first = False
                if not (self._pieces.states[some] == PRESENT).all():
                    self._changed.wait(_LOOK_SECONDS)

    def renew(self, pieces: I64) -> None:
        """Fetch pieces that are here once more.

        Raises:
            LmdbloaderError: They cannot be fetched, or not be written.
        """
        left, patience = pieces.tolist(), Patience(self._pieces.folder)
        while left:
            with self._changed:
                taken = self._take(left)
            try:
                for first, end in taken:
                    self._fetch(first, end)
            finally:
                self._give(taken)
            done = {piece for run in taken for piece in range(*run)}
            left = [piece for piece in left if piece not in done]
            if left:
                patience.pause()

    def forget_requests(self, owner: int) -> None:
        """Fetch nothing of what was requested for somebody and has not begun."""
        with self._changed:
            for number in [number for number, (_, _, whose) in self._queue.items() if whose == owner]:
                self._pop(number)
            self._changed.notify_all()

    def stop(self) -> None:
        """End the threads."""
        with self._changed:
            self._stopped = True
            self._queue.clear()
            self._changed.notify_all()

    def _enqueue(self, pieces: Sequence[int], owner: int | None) -> None:
        """Add pieces to the end of the queue; to its begin if no owner may forget them. The caller has the lock."""
        runs = [part for run in runs_of(pieces) for part in parts_of(*run)]
        for run in reversed(runs) if owner is None else runs:
            number = next(self._numbers)
            self._queue[number] = (*run, _URGENT if owner is None else owner)
            self._queued.update(dict.fromkeys(range(*run), number))
            if owner is None:
                self._queue.move_to_end(number, last=False)

    def _pop(self, number: int) -> tuple[int, int]:
        """Take a run out of the queue; the caller has the lock."""
        first, end, _ = self._queue.pop(number)
        for piece in range(first, end):
            if self._queued.get(piece) == number:
                del self._queued[piece]
        return first, end

    def _take(self, pieces: Sequence[int]) -> list[tuple[int, int]]:
        """Claim pieces for a thread of this process; return runs of those that nobody else has. The caller locks."""
        claims, found = self._pieces.claims, []
        for first, end in runs_of(piece for piece in pieces if piece not in self._active):
            if claims.claim(first, end - first):
                found.append((first, end))
            else:
                found += runs_of(piece for piece in range(first, end) if claims.claim(piece))
        for run in found:
            self._active.update(range(*run))
        return found

    def _give(self, runs: Sequence[tuple[int, int]]) -> None:
        with self._changed:
            for first, end in runs:
                self._pieces.claims.unclaim(first, end - first)
                self._active.difference_update(range(first, end))
            self._changed.notify_all()

    def _wake(self) -> None:
        """Have threads look at the queue; the caller has the lock."""
        missing = min(len(self._queue) - self._num_idle, MOST_REQUESTS - self._num_threads)
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
        while True:
            taken: Sequence[tuple[int, int]] = ()
            try:
                found = self._next()
                if found is None:
                    return
                taken = found
                for first, end in taken:
                    self._fetch_absent(first, end)
            except LmdbloaderError as error:
                self._fail(error, taken)
            except BaseException as error:  # of the system: the folder is gone, for example
                what = f"cannot be filled: {type(error).__name__}: {error}"
                self._fail(WorkerError(f"{self._pieces.folder}: {what}"), taken)
            finally:
                self._give(taken)

    def _next(self) -> list[tuple[int, int]] | None:
        """Return claimed runs of pieces to fetch, once there are some; None to end the thread."""
        with self._changed:
            until = time.monotonic() + _IDLE_SECONDS
            while not self._stopped:
                if self._queue:
                    first, end = self._pop(next(iter(self._queue)))
                    absent = (first + np.flatnonzero(self._pieces.states[first:end] != PRESENT)).tolist()
                    taken = self._take(absent)
                    if taken:
                        return taken
                    continue
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
        for start, stop in runs_of((first + np.flatnonzero(states[first:end] != PRESENT)).tolist()):
            self._fetch(start, stop)

    def _fetch(self, first: int, end: int) -> None:
        data = self._get(*self._pieces.bounds(first, end))
        self._pieces.put(first, memoryview(data), self._passing(first, end))
        self.fetched(first, end)

    def _fail(self, error: LmdbloaderError, runs: Sequence[tuple[int, int]]) -> None:
        with self._changed:
            self._failed = time.monotonic(), error, runs
            self._queue.clear()
            self._queued.clear()
            self._changed.notify_all()


def _concerns(failed: tuple[float, LmdbloaderError, Sequence[tuple[int, int]]], pieces: I64) -> bool:
    """Return whether an error is about some pieces, too: one of a server is about all of them, for a while."""
    at, error, runs = failed
    if time.monotonic() - at >= _FAILED_SECONDS:
        return False
    return not isinstance(error, CorruptError) or any(
        bool(((pieces >= first) & (pieces < end)).any()) for first, end in runs
    )


def _again(error: LmdbloaderError) -> LmdbloaderError:
    """Return an error for another thread to raise; one that is raised twice would keep both traces."""
    fresh = type(error)(*error.args)
    fresh.__dict__.update(error.__dict__)  # a CorruptError has its path there
    fresh.__cause__ = error.__cause__
    return fresh
