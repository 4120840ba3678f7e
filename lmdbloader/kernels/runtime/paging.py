"""The kernel that advises the operating system on parts of a memory map, such as to load them."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.symbols import madvise


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
