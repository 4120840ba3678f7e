"""LMDB's two first pages: whether a transaction was ever committed, and how a torn last one is taken back."""

from __future__ import annotations

import os
from pathlib import Path

from lmdbloader.store.foreign import page_problems

# LMDB 0.9: behind the header of a page come a magic number (u32) and the version of the format (u32); further on the
# size of a page (u32), and at the end the number of the transaction (u64). Transaction n writes page n % 2.
_MAGIC_AT, _MAGIC = 16, (0xBEEFC0DE).to_bytes(4, "little")
_PAGE_SIZE_AT = 40
_TRANSACTION_AT, _NUMBER_NBYTES = 144, 8
_PAGE_SIZES = (4096, 16384, 8192, 32768)


def last_transactions(descriptor: int) -> tuple[int, int]:
    """Return the number of the transaction that each of the two first pages tells of, 0 where it tells of none.

    Args:
        descriptor: Of the data file.

    Raises:
        OSError: The disk does not read them.
    """
    return _read_metas(descriptor)[1]


def _read_metas(descriptor: int) -> tuple[int, tuple[int, int]]:
    """Return the size of a page, as one of the first two says it, and what `last_transactions` returns."""
    head = os.pread(descriptor, 2 * max(_PAGE_SIZES), 0)
    for nbytes in _PAGE_SIZES:
        first, second = (_transaction(head[at : at + nbytes], nbytes) for at in (0, nbytes))
        if first or second:
            return nbytes, (first, second)
    return _PAGE_SIZES[0], (0, 0)


def _transaction(page: bytes, nbytes: int) -> int:
    says = page[_PAGE_SIZE_AT : _PAGE_SIZE_AT + 4]
    if page[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] != _MAGIC or says != nbytes.to_bytes(4, "little"):
        return 0
    return int.from_bytes(page[_TRANSACTION_AT : _TRANSACTION_AT + _NUMBER_NBYTES], "little")


def take_back_torn(data: Path) -> bool:
    """Take back the last transaction if a power cut tore the page that its commit writes last; return whether it did.

    LMDB relies on the disk to write its 120 bytes as a whole, which not every disk promises. The other page still tells
    of the transaction before, no page of which is written to until the torn one was committed. What this writes is one
    number, within a sector of any disk, and it is written back where it does not help.
    """
    with open(data, "r+b", buffering=0) as file:
        page_nbytes, numbers = _read_metas(file.fileno())
        if numbers == (0, 0):
            return False
        at = page_nbytes * numbers.index(max(numbers)) + _TRANSACTION_AT
        _write_number(file.fileno(), 0, at)
        if not page_problems(data):
            return True
        _write_number(file.fileno(), max(numbers), at)
    return False


def _write_number(descriptor: int, number: int, at: int) -> None:
    os.pwrite(descriptor, number.to_bytes(_NUMBER_NBYTES, "little"), at)
    os.fsync(descriptor)
