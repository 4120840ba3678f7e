"""Memory between pages that nobody may touch: one byte too many ends the process that touches it."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np


def between_forbidden_pages(num_pages: int) -> np.ndarray:
    """Return so many pages as bytes (n,) uint8, with a forbidden page before and after them."""
    memory = mmap.mmap(-1, (num_pages + 2) * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for page in (address, address + (num_pages + 1) * mmap.PAGESIZE):
        if protect(page, mmap.PAGESIZE, 0):
            raise OSError(ctypes.get_errno(), "a page cannot be forbidden")
    return np.frombuffer(memory, np.uint8, num_pages * mmap.PAGESIZE, mmap.PAGESIZE)
