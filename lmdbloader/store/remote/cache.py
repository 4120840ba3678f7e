"""The cache of a remote file: which pieces are kept, which come and go, and who needs them here."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from lmdbloader.base import system
from lmdbloader.errors import OptionError
from lmdbloader.store.remote.fetcher import Fetcher
from lmdbloader.store.remote.parts import OneFile, Parts
from lmdbloader.store.remote.pieces import (
    GROUP_NBYTES,
    PER_GROUP,
    PIECE_NBYTES,
    PRESENT,
    Claims,
    Patience,
    Pieces,
    runs_of,
    spread,
)  # fmt: skip

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
# Pieces that are not kept stay until so many others have come, for those who read on where they were.
SPARE_NBYTES = 2**24
_SPARE = SPARE_NBYTES // PIECE_NBYTES
# Of their space, so much is given back at once.
_MOST_FREED = 32
# A damaged piece is fetched again once in this time: the disk or the memory may damage it again much later, and bytes
# that are damaged at the URL are not fetched by every attempt to read them.
_RENEWED_SECONDS = 60.0
# Locks behind those of the pieces: of `Pieces` itself, of everybody who uses the cache, of those who want all of it.
_OF_USERS, _OF_ALL = 1, 2


class Choice:
    """Which pieces are kept: groups of neighbours, as many as a limit allows, chosen by a hash of their number.

    The choice for a smaller limit is a part of that for a larger one.

    Attributes:
        is_all: Whether every piece is kept.
    """

    def __init__(self, pieces: Pieces, limit_nbytes: int) -> None:
        """Choose; several limits of one file may be in use at a time."""
        self._states, self._count = pieces.states, pieces.count
        num_groups = -(-pieces.count // PER_GROUP)
        self._groups = np.ones(num_groups, np.bool_)
        num_kept = limit_nbytes // GROUP_NBYTES
        self.is_all = limit_nbytes >= pieces.nbytes
        if not self.is_all and num_kept < num_groups:
            mixed = (np.arange(num_groups, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed ^= mixed >> np.uint64(29)
            self._groups[np.argsort(mixed, kind="stable")[num_kept:]] = False

    def of(self, pieces: I64) -> Bools:
        """Return for pieces (n,) whether each is kept."""
        found: Bools = self._groups[pieces // PER_GROUP]
        return found

    def passing(self, first: int, end: int) -> Bools:
        """Return for neighbours whether each is given back after use."""
        return ~self.of(np.arange(first, end, dtype=np.int64))

    def widened(self, pieces: I64) -> I64:
        """Return absent pieces, in their order, each that is kept followed by the absent ones of its group."""
        keeps = self.of(pieces)
        if not keeps.any():
            return pieces
        firsts = np.where(keeps, pieces // PER_GROUP * PER_GROUP, pieces)
        found = spread(firsts, np.where(keeps, np.minimum(PER_GROUP, self._count - firsts), 1))
        absent: I64 = found[self._states[found] != PRESENT]
        return absent


class Cache:
    """The pieces of a dataset's data file on this machine, fetched when they are needed; for one process and its forks.

    Attributes:
        pieces: On the disk.
        limit_nbytes: Of the pieces that are kept.
        streams: Whether others come and go.
        is_complete: Whether every piece is here to stay; it may be False for a moment longer.
    """

    def __init__(self, pieces: Pieces, open_file: Callable[[], OneFile | Parts], limit_nbytes: int) -> None:
        """Use pieces.

        Args:
            pieces: On the disk.
            open_file: Returns what fetches bytes of the file, for one process.
            limit_nbytes: Of the pieces that are kept; others come and go.

        Raises:
            OptionError: The file system of the folder has no locks, or cannot give space back.
        """
        self.pieces, self._open = pieces, open_file
        self.is_complete = False
        self.limit_nbytes = limit_nbytes
        self._kept = Choice(pieces, limit_nbytes)
        self.streams = not self._kept.is_all
        if self.streams and not pieces.can_free():
            raise OptionError(
                f"{pieces.folder}: its file system cannot give parts of a file back, which a cache of a part of a "
                "dataset needs. Choose a folder on a local disk, cache_dir=FOLDER; or keep all of it, "
                "cache_fraction=1.0."
            )
        self._num_seen = 0
        self._begin()
        if self.streams:
            self._remove_strays()
        self._look()

    def _begin(self) -> None:
        """Begin in a process: the first one, or a forked child, which has neither threads nor locks of its parent."""
        self._file = self._open()
        self._fetcher = Fetcher(self.pieces, self._file.get, self._kept.widened, self._kept.passing)
        weakref.finalize(self, _stop, self._fetcher, os.getpid())
        # Of the pieces that are not kept: how often each owner expects them, who has requested them once, and which are
        # here; of these, those that nobody in this process needs, in the order of use.
        self._expected: dict[int, dict[int, int]] = {}
        self._once: dict[int, int] = {}
        self._passing: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()
        # When pieces were fetched again because they were damaged.
        self._renewed: dict[int, float] = {}
        self._renewing = threading.Lock()
        if self.streams:
            me = weakref.ref(self)
            self._fetcher.fetched = partial(_note, me)
        lock = _OF_USERS if self.streams else _OF_ALL
        self._use(lock)
        self._pid = os.getpid()  # at the end: other threads use all of this as soon as they see it

    def _use(self, which: int) -> None:
        """Say to other processes that this one uses the cache, until this object's end."""
        claims, byte = self.pieces.claims, self.pieces.count + which
        for number in {byte, self.pieces.count + _OF_USERS}:
            patience = Patience(self.pieces.folder)
            with claims.lock:
                claims.held[number] = claims.held.get(number, 0) + 1
            weakref.finalize(self, _leave, claims, number, os.getpid())
            try:
                while not claims.claim(number, shared=True):
                    patience.pause()
            except OSError as error:
                raise OptionError(
                    f"{self.pieces.folder}: its file system has no locks ({error.strerror}), which processes that "
                    "share a cache need. Choose a folder on a local disk: cache_dir=FOLDER."
                ) from error

    def present(self) -> Cache:
        """Return this cache, ready in this process."""
        if self._pid != os.getpid():
            with _beginning:
                if self._pid != os.getpid():
                    self._begin()
        return self

    def _look(self) -> None:
        """Note whether everything is here, which stays so."""
        if self.streams:
            return
        states, at = self.pieces.states, self._num_seen
        while at < len(states) and (states[at : at + 4096] == PRESENT).all():
            at += 4096
        self._num_seen = at
        if at >= len(states):
            self.pieces.passing[:] = 0
            self.is_complete = True

    # -- Reading

    def hold(self, starts: I64, stops: I64) -> Held | None:
        """Bring ranges (n,) of the file here, and keep them until `Held.release`; None if they stay anyway.

        Raises:
            LmdbloaderError: They cannot be fetched, or not be written.
        """
        if self.present().is_complete or not len(starts):
            return None
        pieces, patience = self.pieces.of(starts, stops), Patience(self.pieces.folder)
        if not self.streams:
            self._fetcher.bring(pieces)
            self.pieces.passing[pieces] = 0
            self._look()
            return None
        while True:
            if len(self.pieces.absent(pieces)):
                self._fetcher.bring(pieces)
                patience.restart()
            # Others stay: only what is passing is given back, and nothing that is here becomes so.
            held = self._hold(pieces[self.pieces.passing[pieces] != 0])
            if held is not None:
                if not len(self.pieces.absent(pieces)):
                    return held
                held.release()
            patience.pause()  # another process gives one of them back now

    def _hold(self, pieces: I64) -> Held | None:
        """Return pieces that stay; None if another process or thread does something with one of them."""
        claims, numbers, done = self.pieces.claims, pieces.tolist(), []
        with claims.lock:
            fresh = sorted(piece for piece in numbers if not claims.held.get(piece))
            is_free = claims.active.isdisjoint(fresh)
            for first, end in runs_of(fresh) if is_free else ():
                is_free = claims.claim(first, end - first, shared=True)
                if not is_free:
                    break
                done.append((first, end))
            if not is_free:
                for first, end in done:
                    claims.unclaim(first, end - first)
                return None
            for piece in numbers:
                claims.held[piece] = claims.held.get(piece, 0) + 1
        self.pieces.passing[pieces[self._kept.of(pieces)]] = 0  # another process has fetched what this one keeps
        return Held(self, numbers)

    def _release(self, pieces: Sequence[int]) -> None:
        keeps = self._kept.of(np.array(pieces, np.int64)).tolist()
        with self.pieces.claims.lock:
            _let_go(self.pieces.claims, pieces)
            for piece in pieces:
                self._once.pop(piece, None)
            # Also those that another process has fetched: it may have ended since.
            self._passing.update(piece for piece, is_kept in zip(pieces, keeps, strict=True) if not is_kept)
            self._settle(pieces)
        self._give_back()

    def renew(self, starts: I64, stops: I64) -> bool:
        """Fetch ranges again whose bytes are damaged; False if all of them were fetched again a moment ago.

        Raises:
            ReplacedError: The file was replaced; some services do not say so when they send a part of it.
            LmdbloaderError: They cannot be fetched, or not be written.
        """
        self.present()
        pieces = self.pieces.of(starts, stops)
        with self._renewing:
            since = time.monotonic() - _RENEWED_SECONDS
            self._renewed = {piece: at for piece, at in self._renewed.items() if at > since}
            fresh = [piece for piece in pieces.tolist() if piece not in self._renewed]
            if fresh:
                for first, end in runs_of(fresh):
                    self._file.check(*self.pieces.bounds(first, end))
                self._fetcher.renew(np.array(fresh, np.int64))
                self._renewed.update(dict.fromkeys(fresh, time.monotonic()))
        return bool(fresh)

    # -- Reading ahead

    def are_here(self, starts: I64, stops: I64) -> Bools:
        """Return for ranges (n,) whether all of their bytes are here."""
        if self.present().is_complete or not len(starts):
            return np.ones(len(starts), np.bool_)
        return self.pieces.are_present(starts, stops)

    def request(self, starts: I64, stops: I64, *, once: bool, owner: int = 0) -> None:
        """Fetch ranges in the background.

        Args:
            starts, stops: (n,) in the order in which they are needed.
            once: Whether they stay here for their first use only, without `expect`.
            owner: Who may forget it; several loaders may read a dataset at a time.
        """
        pieces = self.present().pieces.of(starts, stops)
        absent = self.pieces.absent(pieces)
        if self.streams and once:
            with self.pieces.claims.lock:
                self._once.update(dict.fromkeys(absent[~self._kept.of(absent)].tolist(), owner))
        if len(absent):
            self._fetcher.request(absent, owner)

    def expect(self, starts: I64, stops: I64, *, times: int, owner: int = 0) -> None:
        """Say that an owner needs ranges once more (1), or once less (-1), so that they stay here in between."""
        pieces = self.present().pieces.of(starts, stops)
        loose = pieces[~self._kept.of(pieces)].tolist()
        with self.pieces.claims.lock:
            expected = self._expected.setdefault(owner, {})
            for piece in loose:
                left = expected.get(piece, 0) + times
                if left > 0:
                    expected[piece] = left
                else:
                    expected.pop(piece, None)
            self._settle(loose)
        if times < 0:
            self._give_back()

    def forget_requests(self, owner: int = 0) -> None:
        """Fetch nothing more of what was requested for an owner, and expect none of it."""
        if self._pid != os.getpid():
            return
        self._fetcher.forget_requests(owner)
        with self.pieces.claims.lock:
            self._once = {piece: whose for piece, whose in self._once.items() if whose != owner}
            self._expected.pop(owner, None)
            self._settle(sorted(self._passing - self._idle.keys()))
        self._give_back()

    # -- Giving space back

    def _fetched(self, first: int, end: int) -> None:
        loose = (first + np.flatnonzero(self._kept.passing(first, end))).tolist()
        with self.pieces.claims.lock:
            self._passing.update(loose)
            self._settle(loose)

    def _is_needed(self, piece: int) -> bool:
        return (
            bool(self.pieces.claims.held.get(piece))
            or piece in self._once
            or any(piece in expected for expected in self._expected.values())
        )

    def _settle(self, pieces: Sequence[int]) -> None:
        """Note which pieces are here and needed no more, as the last ones used; the caller has the lock."""
        for piece in pieces:
            self._idle.pop(piece, None)
            if piece in self._passing and not self._is_needed(piece):
                self._idle[piece] = None

    def _give_back(self) -> None:
        """Free the space of pieces that came and are needed no more, but for the last ones."""
        claims = self.pieces.claims
        for _ in range(len(self._idle) - _SPARE):
            with claims.lock:
                run = self._claim_idle()
                if run is None:
                    continue
                first, end = run
                try:
                    is_free = self._free(first, end)
                finally:
                    claims.unclaim(first, end - first)
                if not is_free:
                    self._idle.update(dict.fromkeys(range(first, end)))
                    return
                self._passing.difference_update(range(first, end))

    def _claim_idle(self) -> tuple[int, int] | None:
        """Return neighbours (first, end) to free, claimed; None if the first idle piece is not free. Called locked."""
        claims = self.pieces.claims
        if len(self._idle) <= _SPARE:
            return None
        first, _ = self._idle.popitem(last=False)
        if self._is_needed(first):
            return None  # whoever needs it notes it again
        if first in claims.active or not claims.claim(first):  # or another process needs it
            self._idle[first] = None
            return None
        if not self._is_passing(first):
            claims.unclaim(first)
            self._passing.discard(first)
            return None
        end = first + 1
        while (
            end < first + _MOST_FREED and len(self._idle) > _SPARE and end in self._idle
            and not self._is_needed(end) and end not in claims.active and claims.claim(end)
        ):  # fmt: skip
            if not self._is_passing(end):
                claims.unclaim(end)
                break
            del self._idle[end]
            end += 1
        return first, end

    def _is_passing(self, piece: int) -> bool:
        """Return whether a piece is here, and nobody keeps it."""
        return bool(self.pieces.states[piece]) and bool(self.pieces.passing[piece])

    def _free(self, first: int, end: int) -> bool:
        """Free the space of claimed pieces, unless somebody wants all of the file. The caller has the lock."""
        claims, number = self.pieces.claims, self.pieces.count + _OF_ALL
        if claims.held.get(number) or not claims.claim(number):
            return False
        try:
            return self.pieces.free(first, end)
        finally:
            claims.unclaim(number)

    def _remove_strays(self) -> None:
        """Free what is passing, if nobody else uses the cache: a process that was killed has left it."""
        claims, number = self.pieces.claims, self.pieces.count + _OF_USERS
        with claims.lock:
            if claims.held.get(number, 0) > 1 or not claims.claim(number):
                return
        try:
            strays = np.flatnonzero((self.pieces.states != 0) & (self.pieces.passing != 0))
            for run in runs_of(strays[~self._kept.of(strays)].tolist()):
                with claims.lock:
                    self._free(*run)
        finally:
            with claims.lock:
                claims.unclaim(number)


# Guards the first use in a forked child.
_beginning = threading.Lock()


def _restart_in_child() -> None:
    global _beginning
    _beginning = threading.Lock()


system.after_fork(_restart_in_child)


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


def _let_go(claims: Claims, pieces: Sequence[int]) -> None:
    """Count one reader less of each piece; the caller has the lock."""
    free = []
    for piece in pieces:
        left = claims.held.get(piece, 0) - 1
        if left > 0:
            claims.held[piece] = left
        else:
            claims.held.pop(piece, None)
            if piece not in claims.active:
                free.append(piece)
    for first, end in runs_of(sorted(free)):
        claims.unclaim(first, end - first)


def _leave(claims: Claims, number: int, pid: int) -> None:
    if pid == os.getpid():
        with claims.lock:
            _let_go(claims, [number])


def _stop(fetcher: Fetcher, pid: int) -> None:
    """End the threads; a forked child has none, and perhaps their lock for ever."""
    if pid == os.getpid():
        fetcher.stop()


def _note(cache: weakref.ref[Cache], first: int, end: int) -> None:
    found = cache()
    if found is not None:
        found._fetched(first, end)
