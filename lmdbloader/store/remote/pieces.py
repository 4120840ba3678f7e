"""The pieces of a remote file that are on a local disk: a sparse file of its length, and states that processes share.

A piece is in one of three states. PRESENT: its bytes are in the file. ABSENT: they are not. UNCHECKED: they were there
when the machine was last started; as a machine that lost its power may have lost some, they are compared with their
checksum first. Whoever fetches a piece has locked its number in the file `claims`, which a process that dies unlocks.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lmdbloader.base import system
from lmdbloader.base.disk_errors import explain_full_disk
from lmdbloader.errors import CorruptError
from lmdbloader.format.codecs import checksum

I64 = npt.NDArray[np.int64]
PIECE_NBYTES = 2**20
ABSENT, PRESENT, UNCHECKED = 0, 1, 2
DATA_NAME, STATES_NAME, CLAIMS_NAME = "data.pieces", "states", "claims"
_MAGIC = b"lmdbloader pieces 1\n"
_HEAD_NBYTES = 4096
_BOOT_AT, _BOOT_NBYTES = 64, 64


class Claims:
    """The locks of one cache, and what the threads of this process do in it; one for all its users in the process.

    Attributes:
        lock: Guards the others.
        active: Pieces that threads of this process fetch or give back now.
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

    def claim(self, piece: int, *, shared: bool = False) -> bool:
        """Lock a piece against other processes; False if one of them has locked it."""
        return system.lock_part(self._descriptor, piece, 1, shared=shared)

    def unclaim(self, piece: int) -> None:
        """Give up the claim of a piece; readers of this process keep their shared one. The caller has `lock`."""
        if self.held.get(piece):
            system.lock_part(self._descriptor, piece, 1, shared=True)
        else:
            system.unlock_part(self._descriptor, piece, 1)


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


class Pieces:
    """The pieces of one file in a folder.

    Attributes:
        nbytes: Of the file.
        count: Number of pieces.
        states: (count,) uint8, in memory that all processes of the machine share.
        claims: The locks.
        descriptor: Of the sparse file.
    """

    def __init__(self, folder: Path, nbytes: int) -> None:
        """Open the cache of a file, or make an empty one.

        Raises:
            DiskFullError: There is no room for the states.
            CorruptError: The folder holds the cache of another file.
        """
        self.folder, self.nbytes, self.count = folder, nbytes, -(-nbytes // PIECE_NBYTES)
        self.path = folder / DATA_NAME
        with explain_full_disk(folder):
            self.claims = claims_of(folder / CLAIMS_NAME)
            self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            weakref.finalize(self, os.close, self.descriptor)
            is_new = os.fstat(self.descriptor).st_size == 0
            if is_new:
                os.ftruncate(self.descriptor, nbytes)
            self._map = self._map_states()
        if os.fstat(self.descriptor).st_size != nbytes or self._map[: len(_MAGIC)] != _MAGIC:
            raise CorruptError(f"{folder}: this cache is damaged. Delete the folder, and open again.", path=str(folder))
        self.states: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, self.count, _HEAD_NBYTES)
        self._sums: npt.NDArray[np.uint64] = np.frombuffer(self._map, np.uint64, self.count, self._sums_at)
        if is_new:  # if only this file was deleted, the states are those of another one
            self.states[:] = ABSENT
        self._doubt_after_a_start()

    @property
    def _sums_at(self) -> int:
        return _HEAD_NBYTES + -(-self.count // 8) * 8

    def _map_states(self) -> mmap.mmap:
        """Return the states: a head, a byte and a checksum of each piece."""
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
        place = slice(_BOOT_AT, _BOOT_AT + _BOOT_NBYTES)
        if self._map[place] == boot:
            return
        with self.claims.lock:
            if not self.claims.claim(self.count):
                return  # another process does the same
            try:
                if self._map[place] != boot:
                    self.states[self.states == PRESENT] = UNCHECKED
                    self._map[place] = boot
            finally:
                self.claims.unclaim(self.count)

    def of(self, starts: I64, stops: I64) -> I64:
        """Return the pieces that ranges (n,) touch, each once: in the order of the ranges, unless these are long."""
        first, last = starts // PIECE_NBYTES, (stops - 1) // PIECE_NBYTES
        if len(first) and int((last - first).max()) > 1:
            marks = np.zeros(self.count + 1, np.int64)
            np.add.at(marks, first, 1)
            np.add.at(marks, last + 1, -1)
            spanned: I64 = np.flatnonzero(np.cumsum(marks[:-1]))
            return spanned
        found, at = np.unique(np.stack([first, last], 1).ravel(), return_index=True)
        in_order: I64 = found[np.argsort(at)]
        return in_order

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

    def put(self, first: int, data: memoryview) -> None:
        """Write whole pieces from `first` on; they are PRESENT then. The caller has claimed them.

        Raises:
            DiskFullError: The disk is full.
            DiskError: It failed.
        """
        start, _ = self.bounds(first, first)
        with explain_full_disk(self.path):
            rest, at = data, start
            while rest:
                count = system.write_at(self.descriptor, rest, at)  # type: ignore[arg-type]
                rest, at = rest[count:], at + count
        for number, begin in enumerate(range(0, len(data), PIECE_NBYTES)):
            self._sums[first + number] = checksum(data[begin : begin + PIECE_NBYTES])
            self.states[first + number] = PRESENT

    def skip(self, pieces: I64) -> None:
        """Make pieces PRESENT that hold nothing: zeros, as whatever was not written to a sparse file."""
        self._sums[pieces] = checksum(bytes(PIECE_NBYTES))
        self.states[pieces] = PRESENT

    def forget(self, pieces: Iterable[int]) -> None:
        """Make pieces ABSENT. The caller has claimed them."""
        for piece in pieces:
            self.states[piece] = ABSENT
