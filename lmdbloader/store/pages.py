"""Finds the entries of a damaged LMDB by looking at every page: no tree, no meta page and no LMDB is needed."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from lmdbloader.codecs import checksum
from lmdbloader.errors import FormatError
from lmdbloader.format import DESCRIPTION_KEY, RECORD_KEY_NBYTES, parse_record_key
from lmdbloader.manifest import MAX_MANIFEST_NBYTES, Description, parse_description

# LMDB 0.9: a page begins with its number (u64), 2 bytes of padding, its kind (u16), and 4 bytes of where its room lies;
# a leaf goes on with the places (u16) of its nodes: bytes of the value (u32), flags (u16), bytes of the key (u16), key.
_HEADER_NBYTES = 16
_NODE = struct.Struct("<IHH")
_LEAF, _OVERFLOW = 2, 4
# The value lies on pages of its own, and the node holds the number of the first one.
_IS_BIG = 1
# LMDB's pages are as large as those of the system that made the file; a meta page, of the first two, says it.
_PAGE_SIZES = (4096, 16384, 8192, 32768)
_PAGE_SIZE_AT, _LAST_PAGE_AT = 40, 136
_WINDOW_NBYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, order=True)
class Record:
    """A record batch that is as it was written.

    Attributes:
        first: Number of its first sample.
        checksum: XXH64 of its value, as its key says.
        at: Where the value lies in data.mdb.
        nbytes: Its length.
    """

    first: int
    checksum: int
    at: int
    nbytes: int


def find_entries(descriptor: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (key, offset in the file, length) of whatever may be an entry, on any page of an LMDB data file.

    Nothing of it can be trusted: what a damaged page says may be wrong, and pages that are no longer in use still hold
    older entries.

    Args:
        descriptor: Of the data file.
    """
    size, page_nbytes = os.fstat(descriptor).st_size, _page_nbytes(descriptor)
    for at in range(0, size, _WINDOW_NBYTES):
        window = np.frombuffer(read_around_errors(descriptor, min(_WINDOW_NBYTES, size - at), at), np.uint8)
        pages = window[: len(window) // page_nbytes * page_nbytes].reshape(-1, page_nbytes)
        first = at // page_nbytes
        numbers = pages[:, :8].copy().view("<u8")[:, 0] - np.arange(first, first + len(pages), dtype=np.uint64)
        # A flipped bit leaves one of the two as it was.
        is_leaf = (pages[:, 10:12].copy().view("<u2")[:, 0] == _LEAF) | (
            (numbers == 0) & (pages[:, 10] & _OVERFLOW == 0)
        )
        for row in np.flatnonzero(is_leaf).tolist():
            for key, start, nbytes in _entries_of(pages[row].tobytes(), first + row):
                if start + nbytes <= size:
                    yield key, start, nbytes


def _page_nbytes(descriptor: int) -> int:
    """Return the size of a page, as one of the two meta pages says."""
    for nbytes in _PAGE_SIZES:
        for at in (0, nbytes):
            if read_around_errors(descriptor, 4, at + _PAGE_SIZE_AT) == nbytes.to_bytes(4, "little"):
                return nbytes
    return _PAGE_SIZES[0]


def _entries_of(page: bytes, number: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield what may be the entries of a leaf page; where the list of their places ends is not relied upon."""
    for (at,) in struct.iter_unpack("<H", page[_HEADER_NBYTES:]):
        if not _HEADER_NBYTES < at <= len(page) - _NODE.size:
            continue
        nbytes, flags, key_nbytes = _NODE.unpack_from(page, at)
        start = at + _NODE.size + key_nbytes
        key = page[at + _NODE.size : start]
        if not flags & _IS_BIG:
            if start + nbytes <= len(page):
                yield key, number * len(page) + start, nbytes
        elif start + 8 <= len(page):
            yield key, int.from_bytes(page[start : start + 8], "little") * len(page) + _HEADER_NBYTES, nbytes


def find_records(descriptor: int) -> list[Record]:
    """Return every record whose value is what its key says, in the order of their samples.

    Args:
        descriptor: Of the data file.
    """
    records: dict[bytes, Record] = {}
    for key, at, nbytes in find_entries(descriptor):
        if len(key) == RECORD_KEY_NBYTES and key not in records:
            first, expected = parse_record_key(key)
            if checksum(read_around_errors(descriptor, nbytes, at)) == expected:
                records[key] = Record(first, expected, at, nbytes)
    return sorted(records.values())


def needed_nbytes(descriptor: int) -> int:
    """Return how long a data file must be to hold every page that one of its meta pages tells of."""
    nbytes = _page_nbytes(descriptor)
    last = (read_around_errors(descriptor, 8, at + _LAST_PAGE_AT) for at in (0, nbytes))
    return (max(int.from_bytes(number, "little") for number in last) + 1) * nbytes


def find_description(descriptor: int, path: str) -> Description | None:
    """Return what data.mdb says of its dataset, None where it does not, or where that is damaged.

    Args:
        descriptor: Of the data file.
        path: Of the dataset, for messages.
    """
    for key, at, nbytes in find_entries(descriptor):
        if key == DESCRIPTION_KEY and nbytes <= MAX_MANIFEST_NBYTES:
            with suppress(FormatError):
                return parse_description(read_around_errors(descriptor, nbytes, at), path)
    return None


def read_around_errors(descriptor: int, nbytes: int, at: int) -> bytes:
    """Return a part of a file, with zeros where the disk does not read."""
    try:
        data = os.pread(descriptor, nbytes, at)
    except OSError:
        if nbytes <= _PAGE_SIZES[0]:
            return bytes(nbytes)
        half = max(nbytes // 2 // _PAGE_SIZES[0], 1) * _PAGE_SIZES[0]
        return read_around_errors(descriptor, half, at) + read_around_errors(descriptor, nbytes - half, at + half)
    return data + bytes(nbytes - len(data))
