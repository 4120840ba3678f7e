"""The time of each stage, noted by kernels where somebody asks for it."""

from __future__ import annotations

import time

import numpy as np

from lmdbloader.base.clock_words import LAST, NANOSECONDS, NBYTES, NUM_WORDS, READ, SECONDS
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import i64_at, u8_at
from lmdbloader.kernels.runtime.symbols import clock_gettime

_MONOTONIC = time.CLOCK_MONOTONIC
_PAGE_NBYTES = 4096
# The system maps so many at once where they are in memory, and storage brings in twice as many.
_AROUND_NBYTES = 16 * _PAGE_NBYTES
_PIECE_NBYTES = 2 * _AROUND_NBYTES
# No page of memory takes as long to be touched as one that is not there.
_FAULT_NANOSECONDS = 2000


@kernel
def tick(clock, stage):
    """Say that the time since the last tick went to a stage; clock: address of the words, 0 where nobody asks."""
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
    words[SECONDS] = touched  # so that it is not left out for want of use; the clock writes over it


@kernel
def tick_read(clock, address, nbytes, is_mapped, is_whole):
    """Say that bytes were read, and that the time since the last tick went to it.

    Those of a map are read by being touched: else the checksum would be charged with the wait for storage. Touching
    each page takes longer than the checksum of what is in memory, so that is for those of which some were not.

    Args:
        clock: As in `tick`.
        address, nbytes: Where they are, and how many.
        is_mapped: Whether they are in a map.
        is_whole: Whether all of them will be looked at; otherwise many are not touched.
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
