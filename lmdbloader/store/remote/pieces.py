"""The pieces of a remote file that are on a local disk: a sparse file of its length, and states that processes share.

A piece is in one of three states. PRESENT: its bytes are in the file. ABSENT: they are not. UNCHECKED: they were there
when the machine was last started; as a machine that lost its power may have lost some, they are compared with their
checksum first. Whoever fetches a piece has locked its number in the file `claims`, which a process that dies unlocks.
A piece may also be marked as passing: then it is given back after use. Others stay.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lmdbloader.base import system
from lmdbloader.base.disk_errors import explain_full_disk
from lmdbloader.errors import CorruptError, DiskError
from lmdbloader.format.codecs import checksum

I64 = npt.NDArray[np.int64]
# Small, because a block of samples may begin and end anywhere: what it touches of others is fetched with it.
PIECE_NBYTES = 2**16
# Neighbours that are kept are kept together, and fetched together.
GROUP_NBYTES = 2**20
PER_GROUP = GROUP_NBYTES // PIECE_NBYTES
ABSENT, PRESENT, UNCHECKED = 0, 1, 2
DATA_NAME, STATES_NAME, CLAIMS_NAME = "data.pieces", "states", "claims"
# Of everything below; it changes with them.
LAYOUT = f"lmdbloader pieces 2, {PIECE_NBYTES}"
_MAGIC = f"{LAYOUT}\n".encode()
_HEAD_NBYTES = 4096
_BOOT_AT, _BOOT_NBYTES = 64, 64
# A process that fetches ends with the bytes or an error, also on a slow link. One that was stopped does neither.
_OTHERS_SECONDS = 600.0
_PAUSE_SECONDS = 0.002


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


def spread(firsts: I64, counts: I64) -> I64:
    """Return the numbers of runs, each once, in the order in which they come first.

    Args:
        firsts: (n,) the first number of each run.
        counts: (n,) how many it has, at least one.

    >>> spread(np.array([7, 2, 8]), np.array([2, 1, 3])).tolist()
    [7, 8, 2, 9, 10]
    """
    numbers = np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
    found, at = np.unique(numbers, return_index=True)
    in_order: I64 = found[np.argsort(at)]
    return in_order


class Patience:
    """Waits for another process, and not for ever."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.restart()

    def restart(self) -> None:
        """Begin again, as something went on."""
        self._since = time.monotonic()

    def check(self) -> None:
        """Raise DiskError after a long time."""
        if time.monotonic() - self._since > _OTHERS_SECONDS:
            raise DiskError(
                f"{self._folder}: another process has locked a part of this cache for {_OTHERS_SECONDS:.0f} s. Is one "
                "of those that use it stopped (Ctrl-Z, a debugger)? Let it go on or end it; or use a cache of your "
                "own, cache_dir=FOLDER."
            )

    def pause(self) -> None:
        """Wait a moment; raise DiskError after a long time."""
        self.check()
        time.sleep(_PAUSE_SECONDS)


class Claims:
    """The locks of one cache, and what the threads of this process do in it; one for all its users in the process.

    Attributes:
        lock: Guards the others.
        active: Pieces that threads of this process fetch now.
        held: How many readers of this process need a piece to stay.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.restart()

    def restart(self) -> None:
        """Begin without threads, as a forked child does; it has none of its parent's locks either."""
        self.lock = threading.RLock()  # the garbage collector may end a cache anywhere
        self.active: set[int] = set()
        self.held: dict[int, int] = {}

    def claim(self, piece: int, count: int = 1, *, shared: bool = False) -> bool:
        """Lock neighbours against other processes, all or none; False if one of these has locked some."""
        return system.lock_part(self._descriptor, piece, count, shared=shared)

    def unclaim(self, piece: int, count: int = 1) -> None:
        """Give up the claims of neighbours; readers of this process keep their shared ones. The caller has `lock`."""
        numbers = range(piece, piece + count)
        for first, end in runs_of(number for number in numbers if self.held.get(number)):
            system.lock_part(self._descriptor, first, end - first, shared=True)
        for first, end in runs_of(number for number in numbers if not self.held.get(number)):
            system.unlock_part(self._descriptor, first, end - first)


# By device and inode of the file, and never removed: a process that closes any descriptor of it loses all its locks.
_claims: dict[tuple[int, int], Claims] = {}
_claims_lock = threading.Lock()


def claims_of(path: Path) -> Claims:
    """Return this process's claims in a file, which is made if it is missing."""
    with _claims_lock:
        if not path.exists():
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        status = path.stat()
        key = status.st_dev, status.st_ino
        if key not in _claims:
            _claims[key] = Claims(path)
        return _claims[key]


def _restart_in_child() -> None:
    global _claims_lock
    _claims_lock = threading.Lock()
    for claims in _claims.values():
        claims.restart()


system.after_fork(_restart_in_child)


def holds_all(folder: Path, nbytes: int) -> bool:
    """Return whether a folder holds every piece of a file of this length, and none that is given back after use."""
    count = -(-nbytes // PIECE_NBYTES)
    try:
        with open(folder / STATES_NAME, "rb") as file:
            is_right = file.read(len(_MAGIC)) == _MAGIC and os.stat(folder / DATA_NAME).st_size == nbytes
            file.seek(_HEAD_NBYTES)
            states = np.frombuffer(file.read(2 * count), np.uint8)
    except OSError:
        return False
    return is_right and len(states) == 2 * count and bool(states[:count].all()) and not states[count:].any()


class Pieces:
    """The pieces of one file in a folder.

    Attributes:
        nbytes: Of the file.
        count: Number of pieces.
        states: (count,) uint8, in memory that all processes of the machine share.
        passing: (count,) uint8, likewise: 1 for those that are given back after use.
        claims: The locks.
        descriptor: Of the sparse file.
    """

    def __init__(self, folder: Path, nbytes: int) -> None:
        """Open the cache of a file, or make an empty one.

        Raises:
            DiskFullError: There is no room for the states.
            CorruptError: The folder holds the cache of another file, or of another version of this package.
        """
        self.folder, self.nbytes, self.count = folder, nbytes, -(-nbytes // PIECE_NBYTES)
        self.path = folder / DATA_NAME
        with explain_full_disk(folder):
            self.claims = claims_of(folder / CLAIMS_NAME)
            self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            # Not at exit: a thread may still write then, and the system gives the number to the next file.
            weakref.finalize(self, os.close, self.descriptor).atexit = False
            is_new = os.fstat(self.descriptor).st_size == 0
            if is_new:
                os.ftruncate(self.descriptor, nbytes)
            self._map = self._map_states()
        if os.fstat(self.descriptor).st_size != nbytes or self._map[: len(_MAGIC)] != _MAGIC:
            raise CorruptError(f"{folder}: this cache is damaged. Delete the folder, and open again.", path=str(folder))
        self.states: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, self.count, _HEAD_NBYTES)
        at = _HEAD_NBYTES + self.count
        self.passing: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, self.count, at)
        self._sums: npt.NDArray[np.uint64] = np.frombuffer(self._map, np.uint64, self.count, self._sums_at)
        if is_new:  # if only this file was deleted, the states are those of another one
            self.states[:] = ABSENT
        self._doubt_after_a_start()

    @property
    def _sums_at(self) -> int:
        return _HEAD_NBYTES + -(-2 * self.count // 8) * 8

    def _map_states(self) -> mmap.mmap:
        """Return the states: a head, and of each piece its state, whether it is passing, and a checksum."""
        needed = self._sums_at + 8 * self.count
        descriptor = os.open(self.folder / STATES_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < needed:
                system.reserve(descriptor, 0, needed)  # a page without space would end the process
            mapped = mmap.mmap(descriptor, needed)
        finally:
            os.close(descriptor)
        if not any(mapped[: len(_MAGIC)]):
            mapped[: len(_MAGIC)] = _MAGIC
        return mapped

    def _doubt_after_a_start(self) -> None:
        """Check what was written before the machine was started."""
        boot = system.boot_id().encode()[:_BOOT_NBYTES].ljust(_BOOT_NBYTES, b"\0")
        place, patience = slice(_BOOT_AT, _BOOT_AT + _BOOT_NBYTES), Patience(self.folder)
        while self._map[place] != boot:
            with self.claims.lock:
                is_mine = self.claims.claim(self.count)
                if is_mine:
                    try:
                        if self._map[place] != boot:
                            self.states[self.states == PRESENT] = UNCHECKED
                            self._map[place] = boot
                    finally:
                        self.claims.unclaim(self.count)
            if not is_mine:  # another process does the same; what it has not reached yet must not be read
                patience.pause()

    @staticmethod
    def _ends(starts: I64, stops: I64) -> tuple[I64, I64]:
        """Return the first piece of ranges (n,), and how many each touches."""
        first = starts // PIECE_NBYTES
        return first, (stops - 1) // PIECE_NBYTES - first + 1

    def of(self, starts: I64, stops: I64) -> I64:
        """Return the pieces that ranges (n,) touch, each once, in the order of the ranges."""
        return spread(*self._ends(starts, stops))

    def are_present(self, starts: I64, stops: I64) -> npt.NDArray[np.bool_]:
        """Return for ranges (n,), at least one, whether all their pieces are PRESENT."""
        first, counts = self._ends(starts, stops)
        begins = np.cumsum(counts) - counts
        numbers = np.repeat(first - begins, counts) + np.arange(int(counts.sum()))
        found: npt.NDArray[np.bool_] = np.logical_and.reduceat(self.states[numbers] == PRESENT, begins)
        return found

    def absent(self, pieces: I64) -> I64:
        """Return those that are not PRESENT."""
        missing: I64 = pieces[self.states[pieces] != PRESENT]
        return missing

    def bounds(self, first: int, end: int) -> tuple[int, int]:
        """Return the bytes of pieces first ... end - 1: the first, and the one after the last."""
        return first * PIECE_NBYTES, min(end * PIECE_NBYTES, self.nbytes)

    def check(self, piece: int) -> bool:
        """Return whether an UNCHECKED piece is as it was written; it is PRESENT then. The caller has claimed it."""
        start, stop = self.bounds(piece, piece + 1)
        with suppress(OSError):
            if checksum(system.read_at(self.descriptor, stop - start, start)) == int(self._sums[piece]):
                self.states[piece] = PRESENT
                return True
        return False

    def put(self, first: int, data: memoryview, passing: npt.NDArray[np.bool_]) -> None:
        """Write whole pieces from `first` on; they are PRESENT then. The caller has claimed them.

        Args:
            first: The first piece.
            data: Its bytes, and those of its neighbours.
            passing: (n,) whether each is given back after use. Those that are PRESENT already are as they were.

        Raises:
            DiskFullError: The disk is full.
            DiskError: It failed.
        """
        start, _ = self.bounds(first, first)
        with explain_full_disk(self.path):
            rest, at = data, start
            while rest:
                count = system.write_at(self.descriptor, rest, at)
                rest, at = rest[count:], at + count
        for number, begin in enumerate(range(0, len(data), PIECE_NBYTES)):
            self._sums[first + number] = checksum(data[begin : begin + PIECE_NBYTES])
        own = slice(first, first + len(passing))
        self.passing[own] = np.where(self.states[own] == PRESENT, self.passing[own], passing)
        self.states[own] = PRESENT

    def skip(self, pieces: I64) -> None:
        """Make pieces PRESENT that hold nothing: zeros, as whatever was not written to a sparse file."""
        self._sums[pieces] = checksum(bytes(PIECE_NBYTES))
        self.states[pieces] = PRESENT

    def free(self, first: int, end: int) -> bool:
        """Make pieces ABSENT and give their space back; False if that failed. The caller has claimed them."""
        self.states[first:end] = ABSENT
        start, stop = self.bounds(first, end)
        return system.free_part(self.descriptor, start, stop - start)

    def can_free(self) -> bool:
        """Return whether the file system can give the space of pieces back; it tries it behind the end of the file."""
        return system.free_part(self.descriptor, (self.count + 1) * PIECE_NBYTES, PIECE_NBYTES)
