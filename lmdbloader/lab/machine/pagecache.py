"""How much of a file is in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import Any

_PIECE_NBYTES = 4 * 2**20
# Of a file larger than this, pieces at equal distances are looked at: 16 GiB in all, which takes about 30 ms.
_MAX_PIECES = 4096
# Where only the first pages of places can be tried: the share is then right to within 6 %, 19 times of 20.
_MAX_PLACES = 256


def residency(path: str | os.PathLike[str]) -> float | None:
    """Return the share of a file's pages that are in memory, 0 to 1; nothing is read for it.

    Of a file beyond 16 GiB, pieces at equal distances are looked at. Linux tells it of files that belong to this user
    or that he may write (`mincore`); of others 256 single bytes are read, at equal distances and only where that does
    not wait (RWF_NOWAIT).

    Returns:
        None where the system does not tell, as some network file systems do not, or the file is empty.

    Raises:
        OSError: The file does not open.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_size == 0:
            return None
        tells = os.geteuid() == status.st_uid or os.access(f"/proc/self/fd/{descriptor}", os.W_OK)
        found = _mapped_share(descriptor, status.st_size) if tells else None
        return _tried_share(descriptor, status.st_size) if found is None else found
    except (OSError, ValueError):  # a file that cannot be mapped
        return None
    finally:
        os.close(descriptor)


def _mapped_share(descriptor: int, nbytes: int) -> float | None:
    mincore = _mincore()
    if mincore is None:
        return None
    import numpy as np

    resident = looked_at = 0
    with mmap.mmap(descriptor, nbytes, prot=mmap.PROT_READ) as mapped:
        base = np.frombuffer(mapped, np.uint8).ctypes.data
        found = np.empty(_PIECE_NBYTES // mmap.PAGESIZE, np.uint8)
        num_pieces = -(-nbytes // _PIECE_NBYTES)
        for number in range(min(num_pieces, _MAX_PIECES)):
            start = number * max(num_pieces, _MAX_PIECES) // _MAX_PIECES * _PIECE_NBYTES
            length = min(_PIECE_NBYTES, nbytes - start)
            num_pages = -(-length // mmap.PAGESIZE)
            if mincore(base + start, length, found.ctypes.data) != 0:
                return None
            resident += int(np.count_nonzero(found[:num_pages] & 1))
            looked_at += num_pages
    return resident / looked_at


def _tried_share(descriptor: int, nbytes: int) -> float | None:
    nowait: int | None = getattr(os, "RWF_NOWAIT", None)
    if nowait is None:
        return None
    num_pages = -(-nbytes // mmap.PAGESIZE)
    places = range(0, num_pages, -(-num_pages // _MAX_PLACES))
    resident, byte = 0, bytearray(1)
    for page in places:
        try:
            resident += os.preadv(descriptor, [byte], page * mmap.PAGESIZE, nowait)
        except BlockingIOError:  # not in memory
            continue
        except OSError:  # this file system always waits
            return None
    return resident / len(places)


@cache
def _mincore() -> Any:
    """Return the C library's function, None where it has none."""
    function = getattr(ctypes.CDLL(None), "mincore", None)
    if function is not None:
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p), ctypes.c_int
    return function
