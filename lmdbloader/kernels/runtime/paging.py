"""Kernels that ask the operating system which parts of a memory map are in memory, and advise it to load others."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.symbols import madvise, mincore


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
) -> bool:
    """Give the system advice on ranges of a map, in pieces.

    Args:
        base: Address of the map, at the start of a page.
        starts, stops: (n,) int64, page-aligned, counted from `base`.
        advice: Of madvise; that to map pages for reading returns when they are in memory.
        piece_nbytes: Most bytes for one call, in whole pages.
        stopping: (1,) uint8; another thread sets it to end this early.

    Returns:
        Whether the system has taken all of it; False if this was ended early.
    """
    are_taken = True
    for i in range(starts.shape[0]):
        at = starts[i]
        while at < stops[i]:
            if stopping[0]:
                return False
            nbytes = min(piece_nbytes, stops[i] - at)
            if madvise(np.uintp(base) + np.uintp(at), np.uintp(nbytes), np.int32(advice)) != 0:
                are_taken = False
            at += nbytes
    return are_taken
