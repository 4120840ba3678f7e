"""Functions of the C library, which kernels call without the GIL."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
from numba import types


def _bind(symbol: str, signature: types.Type) -> types.ExternalFunction:
    # The cache of kernels on disk has the name, not the address: every process registers the address.
    name = f"lmdbloader_{symbol}"
    function = getattr(ctypes.CDLL(None), symbol)
    llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    return types.ExternalFunction(name, signature)


_pointer, _int, _size, _i64 = types.uintp, types.int32, types.uintp, types.int64

# (destination, source, nbytes) -> destination
memcpy = _bind("memcpy", _pointer(_pointer, _pointer, _size))
# (fd, destination, nbytes, offset in the file) -> nbytes read, 0 at the end of the file, -1 for an error
pread = _bind("pread", _i64(_int, _pointer, _size, _i64))
# (fd, offset, from where) -> offset from the start of the file, -1 for an error
lseek = _bind("lseek", _i64(_int, _i64, _int))
# (clock, destination of seconds and nanoseconds, int64 each) -> 0, or -1 for an error
clock_gettime = _bind("clock_gettime", _int(_int, _pointer))
# (address of a page, nbytes, advice) -> 0, or -1 for an error
madvise = _bind("madvise", _int(_pointer, _size, _int))
# (address of a page, nbytes, destination of a byte for every page) -> 0, or -1 for an error
mincore = _bind("mincore", _int(_pointer, _size, _pointer))
