"""Memory between pages that nobody may touch: one byte too many ends the process that touches it."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import sys
import tempfile
import traceback

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


def run_apart(program: str, *arguments: str) -> tuple[int, str]:
    """Run a program that may touch a forbidden page, and return its exit status and all that it printed.

    It runs in a fork of this process, so a kernel that Numba has compiled here is not compiled again.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                faulthandler.disable()
                sys.stdout, sys.argv = output, ["-c", *arguments]
                exec(program, {"__name__": "apart"})
                status = 0
            except BaseException:
                traceback.print_exc(file=output)
            finally:
                output.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return status, output.read()
