"""C functions of the lz4 wheel and libc, which kernels call without the GIL."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
from lz4.block import _block
from lz4.frame import _frame
from numba import types


def _bind(library: str, symbol: str, signature: types.Type) -> types.ExternalFunction:
    # The cache of kernels on disk has the name, not the address: every process registers the address.
    name = f"lmdbloader_{symbol}"
    function = getattr(ctypes.CDLL(library), symbol)
    llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    return types.ExternalFunction(name, signature)


_pointer, _int, _size, _u64, _i64 = types.uintp, types.int32, types.uintp, types.uint64, types.int64

# (source, destination, source nbytes, destination capacity) -> nbytes written, negative if the source is malformed
lz4_decompress = _bind(_block.__file__, "LZ4_decompress_safe", _int(_pointer, _pointer, _int, _int))
# (source, destination, source nbytes, destination capacity) -> nbytes written, 0 if they do not fit
lz4_compress = _bind(_block.__file__, "LZ4_compress_default", _int(_pointer, _pointer, _int, _int))
# (data, nbytes, seed) -> hash
xxh64 = _bind(_frame.__file__, "XXH64", _u64(_pointer, _size, _u64))
# (destination, source, nbytes) -> destination
memcpy = _bind(None, "memcpy", _pointer(_pointer, _pointer, _size))
# (fd, destination, nbytes, offset in the file) -> nbytes read, 0 at the end of the file, -1 for an error
pread = _bind(None, "pread", _i64(_int, _pointer, _size, _i64))
# (fd, offset, from where) -> offset from the start of the file, -1 for an error
lseek = _bind(None, "lseek", _i64(_int, _i64, _int))
# (clock, destination of seconds and nanoseconds, int64 each) -> 0, or -1 for an error
clock_gettime = _bind(None, "clock_gettime", _int(_int, _pointer))
# (address of a page, nbytes, advice) -> 0, or -1 for an error
madvise = _bind(None, "madvise", _int(_pointer, _size, _int))
# (address of a page, nbytes, destination of a byte for every page) -> 0, or -1 for an error
mincore = _bind(None, "mincore", _int(_pointer, _size, _pointer))
