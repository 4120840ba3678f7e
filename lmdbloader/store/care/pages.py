"""Finds the entries of a damaged LMDB by scanning every page, without LMDB, its tree or its meta pages."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmdbloader.base import system
from lmdbloader.errors import FormatError
from lmdbloader.format.codecs import checksum
from lmdbloader.format.layout import DESCRIPTION_KEY, PROGRESS_KEY, RECORD_KEY_NBYTES, parse_record_key, progress_value
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, Description, parse_description
from lmdbloader.store.lmdb_file import PAGE_SIZE_AT, PAGE_SIZES

# LMDB 0.9: a page begins with its number (u64), 2 bytes of padding, its kind (u16), and the bounds of its free space
# (2 x u16). In a leaf, the places (u16) of its nodes follow. A node has the length of the value (u32), flags (u16), the
# length of the key (u16) and the key.
_HEADER_NBYTES = 16
_NODE = struct.Struct("<IHH")
_LEAF, _OVERFLOW = 2, 4
# The value has pages of its own, and the node holds the number of the first one.
_IS_BIG = 1
_LAST_PAGE_AT = 136
_WINDOW_NBYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, order=True)
class Record:
    """An intact record batch.

    Attributes:
        first: Number of its first sample.
        checksum: XXH64 of its value, from its key.
        at: The value's offset in data.mdb.
        nbytes: Its length.
    """

    first: int
    checksum: int
    at: int
    nbytes: int


def find_entries(descriptor: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (key, offset in the file, length) of every possible entry, on any page of an LMDB data file.

    Do not trust them: a damaged page may hold anything, and unused pages hold older entries.

    Args:
        descriptor: The data file's.
    """
    size = os.fstat(descriptor).st_size
    for first, pages, has_number, kinds in _windows(descriptor):
        # A flipped bit changes only one of the two.
        is_leaf = (kinds == _LEAF) | (has_number & (kinds & _OVERFLOW == 0))
        for row in np.flatnonzero(is_leaf).tolist():
            for key, start, nbytes in _entries_of(pages[row].tobytes(), first + row):
                if start + nbytes <= size:
                    yield key, start, nbytes


def _windows(descriptor: int) -> Iterator[tuple[int, Any, Any, Any]]:
    """Yield a file in parts: first page number, pages (n, page size) uint8, intact numbers (n,) bool, kinds (n,)."""
    size, page_nbytes = os.fstat(descriptor).st_size, _page_nbytes(descriptor)
    for at in range(0, size, _WINDOW_NBYTES):
        window = np.frombuffer(read_around_errors(descriptor, min(_WINDOW_NBYTES, size - at), at), np.uint8)
        pages = window[: len(window) // page_nbytes * page_nbytes].reshape(-1, page_nbytes)
        first = at // page_nbytes
        numbers = pages[:, :8].copy().view("<u8")[:, 0]
        has_number = numbers == np.arange(first, first + len(pages), dtype=np.uint64)
        yield first, pages, has_number, pages[:, 10:12].copy().view("<u2")[:, 0]


def _page_nbytes(descriptor: int) -> int:
    """Return the page size that one of the two meta pages states."""
    for nbytes in PAGE_SIZES:
        for at in (0, nbytes):
            if read_around_errors(descriptor, 4, at + PAGE_SIZE_AT) == nbytes.to_bytes(4, "little"):
                return nbytes
    return PAGE_SIZES[0]


def _whole_leaves(descriptor: int) -> Iterator[tuple[int, bytes, list[int]]]:
    """Yield (number, page, places of its nodes) of every leaf page without a sign of damage."""
    for first, pages, has_number, kinds in _windows(descriptor):
        for row in np.flatnonzero(has_number & (kinds == _LEAF)).tolist():
            page = pages[row].tobytes()
            if nodes := _nodes_of(page):
                yield first + row, page, nodes


def _nodes_of(page: bytes) -> list[int]:
    """Return the places of a page's nodes; empty if one is outside of it, or if they are not in the order of keys."""
    lower, upper = struct.unpack_from("<HH", page, 12)
    if not _HEADER_NBYTES < lower <= upper <= len(page) or lower % 2:
        return []
    nodes = list(struct.unpack_from(f"<{(lower - _HEADER_NBYTES) // 2}H", page, _HEADER_NBYTES))
    if not all(upper <= at <= len(page) - _NODE.size for at in nodes):
        return []
    keys = [_key_of(page, at) for at in nodes]
    return nodes if keys == sorted(set(keys)) else []


def _key_of(page: bytes, at: int) -> bytes:
    start = at + _NODE.size
    return page[start : start + _NODE.unpack_from(page, at)[2]]


def _entries_of(page: bytes, number: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the possible entries of a leaf page, without relying on the end of the list of their places."""
    for (at,) in struct.iter_unpack("<H", page[_HEADER_NBYTES:]):
        if _HEADER_NBYTES < at <= len(page) - _NODE.size:
            yield from _entry_of(page, number, at)


def _entry_of(page: bytes, number: int, at: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the possible entry of a leaf page's node, if its value has a place."""
    nbytes, flags, key_nbytes = _NODE.unpack_from(page, at)
    start = at + _NODE.size + key_nbytes
    key = page[at + _NODE.size : start]
    if not flags & _IS_BIG:
        if start + nbytes <= len(page):
            yield key, number * len(page) + start, nbytes
    elif start + 8 <= len(page):
        yield key, int.from_bytes(page[start : start + 8], "little") * len(page) + _HEADER_NBYTES, nbytes


def find_records(descriptor: int) -> list[Record]:
    """Return every record whose value has the checksum in its key, in the order of their samples.

    Args:
        descriptor: The data file's.
    """
    records: dict[bytes, Record] = {}
    for key, at, nbytes in find_entries(descriptor):
        if len(key) == RECORD_KEY_NBYTES and key not in records:
            first, expected = parse_record_key(key)
            if checksum(read_around_errors(descriptor, nbytes, at)) == expected:
                records[key] = Record(first, expected, at, nbytes)
    return sorted(records.values())


def needed_nbytes(descriptor: int) -> int:
    """Return how long a data file must be to hold all pages that its meta pages count."""
    nbytes = _page_nbytes(descriptor)
    last = (read_around_errors(descriptor, 8, at + _LAST_PAGE_AT) for at in (0, nbytes))
    return (max(int.from_bytes(number, "little") for number in last) + 1) * nbytes


def find_description(descriptor: int, path: str) -> Description | None:
    """Return data.mdb's description of its dataset, None if it has none or a damaged one.

    Args:
        descriptor: The data file's.
        path: The dataset's, for messages.
    """
    for key, at, nbytes in find_entries(descriptor):
        if key == DESCRIPTION_KEY and nbytes <= MAX_MANIFEST_NBYTES:
            text = read_around_errors(descriptor, nbytes, at)
            with suppress(FormatError):
                return parse_description(text, path)
    return None


def find_num_samples(descriptor: int, description: Description) -> int | None:
    """Return how many samples a finished dataset has by data.mdb's progress entry, None if that is not certain.

    Every transaction left such an entry on some page, and only the last one counts. It is on the same page as the
    description, which no other transaction writes.

    Args:
        descriptor: The data file's.
        description: The dataset's own.
    """
    found: set[int | None] = set()
    for number, page, nodes in _whole_leaves(descriptor):
        keys = [_key_of(page, at) for at in nodes]
        if DESCRIPTION_KEY not in keys or PROGRESS_KEY not in keys:
            continue
        stored, progress = (
            _value_of(descriptor, number, page, nodes[keys.index(key)]) for key in (DESCRIPTION_KEY, PROGRESS_KEY)
        )
        if stored != description.to_json():
            continue
        count = _count(progress)
        firsts = [parse_record_key(key)[0] for key in keys if len(key) == RECORD_KEY_NBYTES]
        found.add(count if count is not None and all(first < count for first in firsts) else None)
    return found.pop() if len(found) == 1 else None


def _value_of(descriptor: int, number: int, page: bytes, at: int) -> bytes:
    """Return the value of a leaf page's node; empty if it has no place or is longer than any description."""
    for _, start, nbytes in _entry_of(page, number, at):
        if nbytes <= MAX_MANIFEST_NBYTES:
            return read_around_errors(descriptor, nbytes, start)
    return b""


def _count(value: bytes) -> int | None:
    """Return the number of samples in a progress entry, None if it is damaged."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        count = json.loads(value)["num_samples"]
        if type(count) is int and count >= 0 and value == progress_value(count):
            return count
    return None


def read_around_errors(descriptor: int, nbytes: int, at: int) -> bytes:
    """Return a part of a file, with zeros in place of bytes that the disk cannot read."""
    try:
        data = system.read_at(descriptor, nbytes, at)
    except OSError:
        if nbytes <= PAGE_SIZES[0]:
            return bytes(nbytes)
        half = max(nbytes // 2 // PAGE_SIZES[0], 1) * PAGE_SIZES[0]
        return read_around_errors(descriptor, half, at) + read_around_errors(descriptor, nbytes - half, at + half)
    return data + bytes(nbytes - len(data))
