"""The cache of a remote file: which pieces are kept, which come and go, and who needs them here."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import numpy.typing as npt

from lmdbloader.base import system
from lmdbloader.errors import OptionError
from lmdbloader.store.remote.fetcher import Fetcher, Get
from lmdbloader.store.remote.pieces import PIECE_NBYTES, PRESENT, Claims, Pieces

I64 = npt.NDArray[np.int64]
# Pieces that are not kept stay until so many others have come, for those who read on where they were.
_SPARE = 16
_PAUSE_SECONDS = 0.002
# Locks behind those of the pieces: of `Pieces` itself, of everybody who uses the cache, of those who want all of it.
_OF_USERS, _OF_ALL = 1, 2


class Cache:
    """The pieces of a dataset's data file on this machine, fetched when they are needed; for one process and its forks.

    Attributes:
        pieces: On the disk.
        limit_nbytes: Of the pieces that are kept.
        streams: Whether others come and go.
        is_complete: Whether every piece is here to stay; it may be False for a moment longer.
    """

    def __init__(self, pieces: Pieces, source: Callable[[], Get], limit_nbytes: int) -> None:
        """Use pieces.

        Args:
            pieces: On the disk.
            source: Returns what fetches bytes of the file, for one process.
            limit_nbytes: Of the pieces that are kept; others come and go.
        """
        self.pieces, self._source = pieces, source
        self.is_complete = False
        self.limit_nbytes = limit_nbytes
        self._kept = _kept(pieces.count, limit_nbytes, pieces.nbytes)
        self.streams = not self._kept.all()
        self._begin()
        if self.streams:
            self._remove_strays()
        self._look()

    def _begin(self) -> None:
        """Begin in a process: the first one, or a forked child, which has neither threads nor locks of its parent."""
        self._pid = os.getpid()
        self._fetcher = Fetcher(self.pieces, self._source())
        weakref.finalize(self, self._fetcher.stop)
        # Of the pieces that are not kept: requested for windows, requested once, and here, in the order of use.
        self._expected: dict[int, int] = {}
        self._once: set[int] = set()
        self._passing: OrderedDict[int, None] = OrderedDict()
        self._renewed: set[int] = set()
        self._renewing = threading.Lock()
        if self.streams:
            me = weakref.ref(self)
            self._fetcher.fetched = partial(_note, me)
        lock = _OF_USERS if self.streams else _OF_ALL
        self._use(lock)

    def _use(self, which: int) -> None:
        """Say to other processes that this one uses the cache, until this object's end."""
        claims, byte = self.pieces.claims, self.pieces.count + which
        for number in {byte, self.pieces.count + _OF_USERS}:
            with claims.lock:
                claims.held[number] = claims.held.get(number, 0) + 1
            try:
                while not claims.claim(number, shared=True):
                    time.sleep(_PAUSE_SECONDS)
            except OSError as error:
                raise OptionError(
                    f"{self.pieces.folder}: its file system has no locks ({error.strerror}), which processes that "
                    "share a cache need. Choose a folder on a local disk: cache_dir=FOLDER."
                ) from error
            weakref.finalize(self, _leave, claims, number, os.getpid())

    def present(self) -> Cache:
        """Return this cache, ready in this process."""
        if self._pid != os.getpid():
            self._begin()
        return self

    def _look(self) -> None:
        """Note whether everything is here."""
        self.is_complete = not self.streams and bool((self.pieces.states == PRESENT).all())

    # -- Reading

    def hold(self, starts: I64, stops: I64) -> Held | None:
        """Bring ranges (n,) of the file here, and keep them until `Held.release`; None if they stay anyway.

        Raises:
            LmdbloaderError: They cannot be fetched, or not be written.
        """
        if self.present().is_complete or not len(starts):
            return None
        pieces = self.pieces.of(starts, stops)
        if not self.streams:
            self._fetcher.bring(pieces)
            self._look()
            return None
        while True:
            self._fetcher.bring(pieces)
            held = self._hold(pieces.tolist())
            if held is not None:
                if not len(self.pieces.absent(pieces)):
                    return held
                held.release()
            time.sleep(_PAUSE_SECONDS)  # another process gives one of them back now

    def _hold(self, pieces: list[int]) -> Held | None:
        claims = self.pieces.claims
        done: list[int] = []
        with claims.lock:
            for piece in pieces:
                if not claims.held.get(piece) and (piece in claims.active or not claims.claim(piece, shared=True)):
                    break
                claims.held[piece] = claims.held.get(piece, 0) + 1
                done.append(piece)
        held = Held(self, done)
        if len(done) == len(pieces):
            return held
        held.release()
        return None

    def _release(self, pieces: Iterable[int]) -> None:
        claims = self.pieces.claims
        with claims.lock:
            for piece in pieces:
                _let_go(claims, piece)
                self._once.discard(piece)
                if piece in self._passing:
                    self._passing.move_to_end(piece)
        self._give_back()

    def renew(self, starts: I64, stops: I64) -> bool:
        """Fetch ranges again whose bytes are damaged; False if all were fetched again before, and are no better.

        Raises:
            LmdbloaderError: They cannot be fetched, or not be written.
        """
        self.present()
        pieces = self.pieces.of(starts, stops)
        with self._renewing:
            fresh = [piece for piece in pieces.tolist() if piece not in self._renewed]
            if fresh:
                self._fetcher.renew(np.array(fresh, np.int64))
                self._renewed.update(fresh)
        return bool(fresh)

    # -- Reading ahead

    def are_here(self, starts: I64, stops: I64) -> npt.NDArray[np.bool_]:
        """Return for ranges (n,) whether all of their bytes are here."""
        if self.present().is_complete or not len(starts):
            return np.ones(len(starts), np.bool_)
        absent = np.append(0, np.cumsum(self.pieces.states != PRESENT))
        first, last = starts // PIECE_NBYTES, (stops - 1) // PIECE_NBYTES
        found: npt.NDArray[np.bool_] = absent[last + 1] == absent[first]
        return found

    def request(self, starts: I64, stops: I64, *, once: bool) -> None:
        """Fetch ranges in the background.

        Args:
            starts, stops: (n,) in the order in which they are needed.
            once: Whether they stay here for their first use only, without `expect`.
        """
        pieces = self.present().pieces.of(starts, stops)
        absent = self.pieces.absent(pieces)
        if self.streams and once:
            with self.pieces.claims.lock:
                self._once.update(absent[~self._kept[absent]].tolist())
        if len(absent):
            self._fetcher.request(absent)

    def expect(self, starts: I64, stops: I64, *, times: int) -> None:
        """Say that ranges will be needed once more (1), or once less (-1), so that they stay here in between."""
        pieces = self.present().pieces.of(starts, stops)
        with self.pieces.claims.lock:
            for piece in pieces[~self._kept[pieces]].tolist():
                left = self._expected.get(piece, 0) + times
                if left > 0:
                    self._expected[piece] = left
                else:
                    self._expected.pop(piece, None)
        if times < 0:
            self._give_back()

    def forget_requests(self) -> None:
        """Fetch nothing more of what was requested, and expect none of it."""
        if self._pid != os.getpid():
            return
        self._fetcher.forget_requests()
        with self.pieces.claims.lock:
            self._once.clear()
            self._expected.clear()
        self._give_back()

    # -- Giving space back

    def _fetched(self, first: int, end: int) -> None:
        with self.pieces.claims.lock:
            for piece in range(first, end):
                if not self._kept[piece]:
                    self._passing[piece] = None
                    self._passing.move_to_end(piece)

    def _give_back(self) -> None:
        """Free the space of pieces that came and are needed no more, but for the last ones."""
        claims = self.pieces.claims
        while True:
            with claims.lock:
                idle = [
                    piece for piece in self._passing
                    if not claims.held.get(piece) and piece not in claims.active and piece not in self._once
                    and piece not in self._expected
                ]  # fmt: skip
                if len(idle) <= _SPARE:
                    return
                piece = next((piece for piece in idle[: len(idle) - _SPARE] if claims.claim(piece)), None)
                if piece is None:  # other processes need them
                    return
                claims.active.add(piece)
            try:
                if self._free(piece):
                    self._passing.pop(piece, None)
            finally:
                with claims.lock:
                    claims.unclaim(piece)
                    claims.active.discard(piece)
            if piece in self._passing:
                return

    def _free(self, piece: int) -> bool:
        """Free the space of a claimed piece, unless somebody wants all of the file."""
        claims, number = self.pieces.claims, self.pieces.count + _OF_ALL
        with claims.lock:
            if claims.held.get(number) or not claims.claim(number):
                return False
        try:
            self.pieces.forget([piece])
            start, stop = self.pieces.bounds(piece, piece + 1)
            return system.free_part(self.pieces.descriptor, start, stop - start)
        finally:
            with claims.lock:
                claims.unclaim(number)

    def _remove_strays(self) -> None:
        """Free what is beyond the limit, if nobody else uses the cache: a process that was killed has left it."""
        claims, number = self.pieces.claims, self.pieces.count + _OF_USERS
        with claims.lock:
            if claims.held.get(number, 0) > 1 or not claims.claim(number):
                return
        try:
            for piece in np.flatnonzero((self.pieces.states != 0) & ~self._kept).tolist():
                self._free(piece)
        finally:
            with claims.lock:
                claims.unclaim(number)


class Held:
    """Pieces that stay until `release`."""

    __slots__ = ("_cache", "_pieces")

    def __init__(self, cache: Cache, pieces: list[int]) -> None:
        self._cache, self._pieces = cache, pieces

    def release(self) -> None:
        """Need the pieces no more."""
        pieces, self._pieces = self._pieces, []
        if pieces:
            self._cache._release(pieces)


def _let_go(claims: Claims, piece: int) -> None:
    """Count one reader less of a piece; the caller has the lock."""
    left = claims.held.get(piece, 0) - 1
    if left > 0:
        claims.held[piece] = left
    else:
        claims.held.pop(piece, None)
        if piece not in claims.active:
            claims.unclaim(piece)


def _leave(claims: Claims, number: int, pid: int) -> None:
    if pid == os.getpid():
        with claims.lock:
            _let_go(claims, number)


def _note(cache: weakref.ref[Cache], first: int, end: int) -> None:
    found = cache()
    if found is not None:
        found._fetched(first, end)


def _kept(count: int, limit_nbytes: int, nbytes: int) -> npt.NDArray[np.bool_]:
    """Return which pieces are kept: as many as the limit allows, chosen by a hash of their number.

    The choice for a smaller limit is a part of that for a larger one.
    """
    kept = np.ones(count, np.bool_)
    if limit_nbytes < nbytes:
        numbers = np.arange(count, dtype=np.uint64)
        mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
        kept[np.argsort(mixed, kind="stable")[limit_nbytes // PIECE_NBYTES :]] = False
    return kept
