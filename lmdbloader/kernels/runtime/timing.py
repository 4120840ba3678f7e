"""Kernels that measure the time of each stage, if asked to."""

from __future__ import annotations

import time

import numpy as np

from lmdbloader.base.clock_words import LAST, NANOSECONDS, NBYTES, NUM_WORDS, READ, SECONDS
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import i64_at, u8_at
from lmdbloader.kernels.runtime.symbols import clock_gettime

_MONOTONIC = time.CLOCK_MONOTONIC
_PAGE_NBYTES = 4096
# The system maps 16 pages at once if they are in memory, and reads twice as many from storage.
_AROUND_NBYTES = 16 * _PAGE_NBYTES
_PIECE_NBYTES = 2 * _AROUND_NBYTES
# Touching a page takes longer than this only if it is not in memory.
_FAULT_NANOSECONDS = 2000


@kernel
def tick(clock, stage):
    """Add the time since the last tick to a stage; clock: address of the words, 0 to measure nothing."""
    if clock == 0:
        return
    words = i64_at(clock, NUM_WORDS)
    clock_gettime(np.int32(_MONOTONIC), np.uint64(clock))
    now = words[SECONDS] * 1_000_000_000 + words[NANOSECONDS]
    words[stage] += now - words[LAST]
    words[LAST] = now


@kernel
def _touch(words, data, step):
    """Touch every step-th byte, and the last."""
    touched = 0 + data[data.shape[0] - 1]
    for k in range(0, data.shape[0], step):
        touched += data[k]
    words[SECONDS] = touched  # keeps the compiler from removing the loop; the clock overwrites it


@kernel
def tick_read(clock, address, nbytes, is_mapped, is_whole):
    """Count bytes as read, and add the time since the last tick to reading.

    Bytes of a map are read by touching them: else the wait for storage would count as verifying. Touching each page
    takes longer than the checksum of bytes in memory, so it is done only if some were not in memory.

    Args:
        clock: See `tick`.
        address, nbytes: Of the bytes.
        is_mapped: Whether they are in a map.
        is_whole: Whether all of them will be used; if not, many are not touched.
    """
    if clock == 0:
        return
    words = i64_at(clock, NUM_WORDS)
    words[NBYTES] += nbytes
    before = words[LAST]
    if not is_mapped or nbytes <= 0 or (nbytes > _PIECE_NBYTES and not is_whole):
        tick(clock, READ)
        return
    data = u8_at(address, nbytes)
    _touch(words, data, _AROUND_NBYTES)
    tick(clock, READ)
    if words[LAST] - before > _FAULT_NANOSECONDS:
        _touch(words, data, _PAGE_NBYTES)
        tick(clock, READ)
