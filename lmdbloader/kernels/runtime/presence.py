"""Kernels that check whether pages of a memory map can be read: touching an unreadable page would end the process."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.guard_words import (
    BEGIN,
    BYTE,
    DESCRIPTOR,
    FILE,
    GUARD,
    LENGTH,
    LOOKED,
    LOOKS,
    NBYTES,
    NUM_ENTRY,
    NUM_HEAD,
    NUM_MARKS,
    PAGE_BITS,
    POPULATE,
    TELLS,
    TURN,
    UNIT_BITS,
)
from lmdbloader.kernels.runtime.memory import i64_at
from lmdbloader.kernels.runtime.symbols import lseek, madvise, mincore, pread

_SEEK_END = 2
_ALL = np.int64(-1)
# Spreads offsets over all numbers, so that the first bits of the product choose one payload of 16.
_SPREAD = np.int64(-7046029254386353131)
_CHOSEN_BITS = 4
# Of several files, each is looked at again after as many calls of `look` as there are files, divided by 2^3: after each
# call, 1,000 parts took a tenth longer.
_FILES_BITS = 3


@kernel
def _entry(guard, at, nbytes):
    """Return the entry of the file that has some bytes of the map; one of a file without bytes if no file has them."""
    head = i64_at(guard, NUM_HEAD)
    place = np.uint64(guard) + np.uint64(8 * NUM_HEAD)
    if at < 0 or at + nbytes > head[LENGTH]:
        return i64_at(place, NUM_ENTRY)
    unit = min(np.int64(at), head[LENGTH] - 1) >> UNIT_BITS  # no bytes may be at the end
    units = i64_at(place + np.uint64(8 * NUM_ENTRY * (1 - head[NUM_MARKS])), unit + 1)
    entry = i64_at(place + np.uint64(8 * units[unit]), NUM_ENTRY)
    if at + nbytes > entry[BEGIN] + entry[NBYTES]:
        return i64_at(place, NUM_ENTRY)
    return entry


@kernel
def file_of(guard, at, nbytes):
    """Return (descriptor, first byte in the map) of the file that has some bytes; (-1, 0) if no file has all of them.

    Args:
        guard: Address of a directory.
        at, nbytes: The bytes, counted from the start of the map.
    """
    entry = _entry(guard, at, nbytes)
    return entry[FILE], entry[BEGIN]


@kernel
def look(guard):
    """Check the file's length, which takes a tenth of a microsecond; called before some payloads are read.

    Of several files each is looked at when a payload of it is read: up to eight files after each call of this, more of
    them after as many calls as an eighth of their number.

    Args:
        guard: Address of the words; 0 for memory that needs no guard.
    """
    if guard == 0:
        return
    words = i64_at(guard, NUM_HEAD)
    if words[NUM_MARKS] < 0:
        words[TURN] += 1
        return
    if not words[LOOKS]:
        return
    length = lseek(np.int32(words[DESCRIPTOR]), np.int64(0), np.int32(_SEEK_END))
    if length < words[LENGTH]:
        _forget_all(guard)
    if length != words[LENGTH]:
        words[LENGTH] = length


@kernel
def _marks(guard):
    count = i64_at(guard, NUM_HEAD)[NUM_MARKS]
    return i64_at(np.uint64(guard) + np.uint64(8 * NUM_HEAD), count)


@kernel
def _forget_all(guard):
    marks = _marks(guard)
    for k in range(marks.shape[0]):
        if marks[k]:
            marks[k] = 0


@kernel
def _mask(k, first, last):
    """Return the bits of word k for the pages first ... last."""
    mask = _ALL
    if k == first >> 6:
        mask = mask << (first & 63)
    if k == last >> 6 and (last & 63) < 63:
        mask = mask & ((np.int64(1) << ((last & 63) + 1)) - 1)
    return mask


@kernel
def forget(guard, starts, stops):
    """Mark ranges as not read yet.

    Args:
        guard: As in `look`.
        starts, stops: (n,) int64 bytes of the file; no range is empty, all are inside of the file as opened.
    """
    if guard == 0:
        return
    is_directory = i64_at(guard, NUM_HEAD)[NUM_MARKS] < 0
    for i in range(starts.shape[0]):
        own, start, stop = np.int64(guard), starts[i], stops[i]
        if is_directory:
            entry = _entry(guard, start, stop - start)
            if entry[FILE] < 0:
                continue
            own, start, stop = entry[GUARD], start - entry[BEGIN], stop - entry[BEGIN]
        bits = i64_at(own, NUM_HEAD)[PAGE_BITS]
        marks = _marks(own)
        first, last = start >> bits, (stop - 1) >> bits
        for k in range(first >> 6, (last >> 6) + 1):
            marks[k] &= ~_mask(k, first, last)


@kernel
def _bring_in(words, base, first, last):
    """Read and map the pages first ... last; return whether all of them could be read."""
    bits = words[PAGE_BITS]
    at, end = first << bits, (last + 1) << bits
    populate = np.int32(words[POPULATE])
    if populate >= 0 and madvise(np.uintp(base) + np.uintp(at), np.uintp(end - at), populate) == 0:
        return True
    # A system without that advice, or an unreadable page.
    byte = np.uintp(words.ctypes.data) + np.uintp(8 * BYTE)
    for page in range(first, last + 1):
        if pread(np.int32(words[DESCRIPTOR]), byte, np.uintp(1), np.int64(page << bits)) <= 0:
            return False
    return True


@kernel
def is_there(guard, base, at, nbytes):
    """Return whether bytes of a map can be touched; they are read from the disk if they were not yet.

    Pages that were read once count as readable from then on: a check each time would take a tenth to a quarter longer
    for small samples. A system that is short of memory drops pages, and reads them again when they are touched. For
    this one payload of 16 is checked again, and if its page is gone all marks are cleared. Two cases can still end the
    process: touching bytes that the file lost since `look`, or a page that was dropped and that the disk cannot read
    any more.

    Args:
        guard: As in `look`.
        base: Address of the map, at the start of a page.
        at, nbytes: The bytes, inside of the map.
    """
    is_due = False
    head = i64_at(guard, NUM_HEAD)
    if head[NUM_MARKS] < 0:
        turn = head[TURN]
        entry = _entry(guard, at, nbytes)
        if entry[FILE] < 0:
            return False
        is_due = turn - entry[LOOKED] >= max(-head[NUM_MARKS] >> _FILES_BITS, 1)
        if is_due:
            entry[LOOKED] = turn
        guard, base, at = entry[GUARD], base + entry[BEGIN], at - entry[BEGIN]
    words = i64_at(guard, NUM_HEAD)
    is_chosen = (np.int64(at) * _SPREAD) >> (64 - _CHOSEN_BITS) == 0
    if is_chosen or is_due or at + nbytes > words[LENGTH]:
        look(guard)
        if at + nbytes > words[LENGTH]:
            return False
    if nbytes == 0:
        return True
    bits = words[PAGE_BITS]
    first, last = np.int64(at) >> bits, np.int64(at + nbytes - 1) >> bits
    marks = _marks(guard)
    is_known = True
    for k in range(first >> 6, (last >> 6) + 1):
        mask = _mask(k, first, last)
        if marks[k] & mask != mask:
            is_known = False
    if is_known and is_chosen and words[TELLS]:
        found = np.uintp(words.ctypes.data) + np.uintp(8 * BYTE)
        words[BYTE] = 1
        if mincore(np.uintp(base) + np.uintp(first << bits), np.uintp(1), found) == 0 and not words[BYTE] & 1:
            _forget_all(guard)
            is_known = False
    if is_known:
        return True
    if not _bring_in(words, base, first, last):
        return False
    for k in range(first >> 6, (last >> 6) + 1):
        marks[k] |= _mask(k, first, last)
    return True
