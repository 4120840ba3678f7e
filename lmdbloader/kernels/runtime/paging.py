"""Kernels that ask the operating system which parts of a memory map are in memory, and load the others."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.paging_words import LOADED, PIECE_NBYTES, STOPPED, UNREADABLE
from lmdbloader.kernels.runtime.symbols import madvise, mincore, pread

# Enough requests to keep a fast disk busy: 2 MiB were as fast here as 32 MiB; remote storage needs more.
_AHEAD_NBYTES = 8 * 1024 * 1024
_WILL_NEED = 3


@kernel
def any_absent(base: int, starts: np.ndarray, page_nbytes: int, found: np.ndarray) -> bool:
    """Return whether any of some pages is not in memory.

    Args:
        base: Address of the map, at the start of a page.
        starts: (n,) int64, a byte of each page, counted from `base`.
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
    """Give the system advice on ranges of a map, in pieces; it may ignore it.

    Args:
        base: Address of the map, at the start of a page.
        starts, stops: (n,) int64, page-aligned, counted from `base`.
        advice: Of madvise.
        piece_nbytes: Most bytes for one call, in whole pages.
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
    descriptors: np.ndarray,
    begins: np.ndarray,
    buffer: np.ndarray,
    stopping: np.ndarray,
) -> int:
    """Bring ranges of a map into memory and return when they are there.

    Exactly the next pieces are requested ahead, independent of the system's readahead. Then the kernel waits for each
    piece: by mapping its pages, which copies nothing and saves the reader the page faults, or, if the system cannot do
    that, by reading it into the buffer.

    Args:
        base: Address of the map, at the start of a page.
        starts, stops: (n,) int64, page-aligned, counted from `base`.
        populate: The advice of madvise that maps pages for reading, negative if the system has none.
        descriptors, begins: (n,) int64, the file of each range, and where its first byte is, counted from `base`.
        buffer: (PIECE_NBYTES,) uint8, overwritten.
        stopping: (1,) uint8; another thread sets it to end this early.

    Returns:
        LOADED, STOPPED, or UNREADABLE if reading fails or the file ends.
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
                if pread(np.int32(descriptors[i]), address, np.uintp(nbytes), np.int64(at - begins[i])) <= 0:
                    return UNREADABLE
            at += nbytes
            ahead -= nbytes
    return LOADED
