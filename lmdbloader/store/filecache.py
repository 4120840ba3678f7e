"""Which parts of a file are in memory, and asking the system for those that are not, by a descriptor, without a map."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

# As for the map: Linux reads no more for one call, and this much under way keeps a disk busy.
PIECE_NBYTES = 128 * 1024
_AHEAD_NBYTES = 8 * 1024 * 1024
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)


def is_absent(descriptor: int, starts: I64) -> bool:
    """Return whether a byte at one of some places is not in memory, or the system does not tell."""
    if _NOWAIT is None:
        return True
    byte = bytearray(1)
    try:
        # Nothing is read where the file ends; whoever reads the sample will say so.
        for at in starts.tolist():
            os.preadv(descriptor, [byte], at, _NOWAIT)
    except OSError:  # not there yet, or a file system that always waits
        return True
    return False


def advise(descriptor: int, *, random: bool) -> None:
    """Tell the system whether to read more than what is asked for by this descriptor."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM if random else os.POSIX_FADV_NORMAL)


def forget(descriptor: int) -> None:
    """Have the system let go of what it holds of a file, so that what is read next is what the disk has.

    After a write that failed, the system's memory may hold bytes that no disk does, and pass them for written.

    Raises:
        OSError: What is still to be written cannot be.
    """
    os.fsync(descriptor)  # what is not written yet would stay
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def will_need(descriptor: int, starts: I64, stops: I64, stopping: U8) -> None:
    """Ask for ranges (n,) of a file without waiting for them.

    Args:
        descriptor: Of the file.
        starts, stops: (n,) int64.
        stopping: (1,) uint8; another thread sets it to end this early.
    """
    for at, nbytes in _pieces(starts, stops):
        if stopping[0]:
            return
        _ask(descriptor, at, nbytes)


def load(descriptor: int, starts: I64, stops: I64, buffer: U8, stopping: U8) -> None:
    """Read ranges (n,) of a file and return when they are in memory; what comes next is asked for ahead.

    Args:
        descriptor, starts, stops, stopping: As in `will_need`.
        buffer: (PIECE_NBYTES,) uint8, overwritten.

    Raises:
        OSError: The file does not read.
    """
    ahead, asked = _pieces(starts, stops), 0
    for at, nbytes in _pieces(starts, stops):
        while asked < _AHEAD_NBYTES and (following := next(ahead, None)):
            _ask(descriptor, *following)
            asked += following[1]
        if stopping[0] or not os.preadv(descriptor, [buffer[:nbytes].data], at):
            return
        asked -= nbytes


def _pieces(starts: I64, stops: I64) -> Iterator[tuple[int, int]]:
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        for at in range(start, stop, PIECE_NBYTES):
            yield at, min(PIECE_NBYTES, stop - at)


def _ask(descriptor: int, at: int, nbytes: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, at, nbytes, os.POSIX_FADV_WILLNEED)
