"""Which parts of a memory map are in memory, and asking the operating system for those that are not."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.symbols import madvise, mincore, pread

LOADED, STOPPED, UNREADABLE = 0, 1, 2
# Linux reads no more for one call than the larger of the file system's readahead (usually 128 KiB) and what the device
# takes at once, and says nothing of the rest.
PIECE_NBYTES = 128 * 1024
# Enough requests under way to keep a fast disk busy: 2 MiB were as fast here as 32 MiB; far storage wants more.
_AHEAD_NBYTES = 8 * 1024 * 1024
_WILL_NEED = 3


@kernel
def any_absent(base: int, starts: np.ndarray, page_nbytes: int, found: np.ndarray) -> bool:
    """Return whether a page is not in memory.

    Args:
        base: Address of the map, at the start of a page.
        starts: (n,) int64, a byte of each page that is looked at, counted from `base`.
        page_nbytes: Of the system, a power of two.
        found: (1,) uint8, overwritten.
    """
    for i in range(starts.shape[0]):
        page = np.uintp(base) + np.uintp(starts[i] & -page_nbytes)
        found[0] = 1
        if mincore(page, np.uintp(1), np.uintp(found.ctypes.data)) == 0 and not found[0] & 1:
            return True
    return False


@kernel
def advise(
    base: int, starts: np.ndarray, stops: np.ndarray, advice: int, piece_nbytes: int, stopping: np.ndarray
) -> int:
    """Give the system advice on ranges of a map, in pieces; it is free to ignore it.

    Args:
        base: Address of the map, at the start of a page.
        starts, stops: (n,) int64, page-aligned, counted from `base`.
        advice: Of madvise.
        piece_nbytes: The most for one call, in whole pages.
        stopping: (1,) uint8; another thread sets it to end this early.

    Returns:
        LOADED, or STOPPED.
    """
    for i in range(starts.shape[0]):
        at = starts[i]
        while at < stops[i]:
            if stopping[0]:
                return STOPPED
            nbytes = min(piece_nbytes, stops[i] - at)
            madvise(np.uintp(base) + np.uintp(at), np.uintp(nbytes), np.int32(advice))
            at += nbytes
    return LOADED


@kernel
def load(
    base: int,
    starts: np.ndarray,
    stops: np.ndarray,
    populate: int,
    fd: int,
    buffer: np.ndarray,
    stopping: np.ndarray,
) -> int:
    """Bring ranges of a map into memory and return when they are there.

    What comes next is asked for ahead, exactly, so that neither the system's readahead nor its absence matters. Then
    each piece is waited for: by having its pages mapped, which copies nothing and spares the reader the page faults,
    or, where the system cannot, by reading it into the buffer.

    Args:
        base: Address of the map, at the start of a page.
        starts, stops: (n,) int64, page-aligned, counted from `base`, which is where the file begins.
        populate: The advice of madvise that maps pages for reading, negative where the system has none.
        fd: The file that is mapped.
        buffer: (PIECE_NBYTES,) uint8, overwritten.
        stopping: (1,) uint8; another thread sets it to end this early.

    Returns:
        LOADED, STOPPED, or UNREADABLE where the file has an error or ends.
    """
    asked, asked_to, ahead = 0, starts[0] if starts.shape[0] else 0, 0
    for i in range(starts.shape[0]):
        at = starts[i]
        while at < stops[i]:
            if stopping[0]:
                return STOPPED
            while asked < starts.shape[0] and ahead < _AHEAD_NBYTES:
                nbytes = min(PIECE_NBYTES, stops[asked] - asked_to)
                madvise(np.uintp(base) + np.uintp(asked_to), np.uintp(nbytes), np.int32(_WILL_NEED))
                ahead += nbytes
                asked_to += nbytes
                if asked_to >= stops[asked]:
                    asked += 1
                    if asked < starts.shape[0]:
                        asked_to = starts[asked]
            nbytes = min(PIECE_NBYTES, stops[i] - at)
            status = -1
            if populate >= 0:
                status = madvise(np.uintp(base) + np.uintp(at), np.uintp(nbytes), np.int32(populate))
            if status != 0:
                address = np.uintp(buffer.ctypes.data)
                if pread(np.int32(fd), address, np.uintp(nbytes), np.int64(at)) <= 0:
                    return UNREADABLE
            at += nbytes
            ahead -= nbytes
    return LOADED
