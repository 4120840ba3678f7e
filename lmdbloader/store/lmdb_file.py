"""LMDB data files below LMDB's own interface: their pages, and the places of their values."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import numpy as np
from lmdb.verify import VerifyError
from lmdb.verify import verify as check_pages

from lmdbloader.base import system
from lmdbloader.base.files import read_regular
from lmdbloader.errors import CorruptError
from lmdbloader.format.layout import DATA_FILE

# LMDB 0.9: each of the first two pages, the meta pages, has a magic number (u32) and the format version (u32) after
# its header, then the page size (u32), and at the end the numbers (u64) of the last page and of the transaction.
_MAGIC_AT, _MAGIC = 16, (0xBEEFC0DE).to_bytes(4, "little")
PAGE_SIZE_AT, _LAST_PAGE_AT, _TRANSACTION_AT, _NUMBER_NBYTES = 40, 136, 144, 8
# A file has the page size of the system that made it.
PAGE_SIZES = (4096, 16384, 8192, 32768)
_MAGIC_NBYTES, _HEAD_NBYTES = 64, 16
_LEAK = "a leak"
# A value that replaced a larger one in its transaction keeps all its pages: more than it needs, and than are counted.
_PAGES_OF_A_VALUE = re.compile(r"header mp_pages (\d+) != OVPAGES\(\d+\)=(\d+)")
_COUNT_OF_PAGES = re.compile(r"walked \d+ overflow pages, record says \d+")


@contextmanager
def reading(data: Path, *, readahead: bool = True) -> Iterator[lmdb.Transaction]:
    """Yield a transaction that reads a data file; keys and values are views of LMDB's map.

    LMDB aborts the process on some damaged pages: call `page_problems` first.
    """
    with (
        lmdb.open(os.fsencode(data), subdir=False, readonly=True, lock=False, readahead=readahead) as env,
        env.begin(buffers=True) as transaction,
    ):
        yield transaction


def lmdb_file(path: Path) -> Path | None:
    """Return the data file of an LMDB: `path` itself or data.mdb in it; None if it is not an LMDB."""
    file = path / DATA_FILE if path.is_dir() else path
    try:
        return file if _MAGIC in read_regular(file, _MAGIC_NBYTES) else None
    except OSError:
        return None


def page_problems(file: Path) -> list[str]:
    """Return the errors in an LMDB's pages, one sentence each; of values only their places are checked.

    LMDB aborts the process on some damaged pages, and on a page or a value that ends past the end of the file.
    Unreferenced pages do not count: a process that was killed may leave some, and no reader visits them.
    """
    try:
        found = [p for p in check_pages(os.fsencode(file), subdir=False) if _LEAK not in p]  # type: ignore[no-untyped-call]
    except VerifyError as error:
        return [str(error)]
    with open(file, "rb", buffering=0) as opened:
        nbytes, (stated, _) = os.fstat(opened.fileno()).st_size, _newest(opened.fileno())
    return found + [f"{nbytes} bytes, expected {stated}: it was cut or copied in part"] * (nbytes < stated)


def _has_pages_left(problem: str) -> bool:
    """Return whether a problem is that a value has more pages than it needs.

    >>> _has_pages_left("main DB: overflow page 154 header mp_pages 25 != OVPAGES(3000)=1")
    True
    """
    pages = _PAGES_OF_A_VALUE.search(problem)
    return pages is not None and int(pages[1]) > int(pages[2])


def list_values(file: Path) -> Iterator[tuple[bytes, int, int]]:
    """Yield (key, offset in the file, length) of every value of an LMDB, whoever wrote it; no value is read.

    Raises:
        CorruptError: Pages are damaged, or the file is from another kind of machine.
        OSError: It cannot be read.
    """
    # A value may have more pages than it needs: only a writer would free them.
    problems = [p for p in page_problems(file) if not (_has_pages_left(p) or _COUNT_OF_PAGES.search(p))]
    if problems:
        raise CorruptError(f"{file}: its pages are damaged ({problems[0]})")
    try:
        with reading(file, readahead=False) as transaction:
            for key, value, at in places(transaction, file):
                yield key, at, len(value)
    except lmdb.Error as error:
        raise CorruptError(f"{file}: LMDB does not open it ({error})") from error


def places(transaction: lmdb.Transaction, file: Path) -> Iterator[tuple[bytes, memoryview | bytes, int]]:
    """Yield (key, value, offset in the file) of all values, in the order of LMDB's keys.

    Args:
        transaction: One with buffers, of the LMDB.
        file: Its data file.

    Raises:
        CorruptError: The file has other bytes than the map.
    """
    base: int | None = None
    for key, value in transaction.cursor():
        address = np.frombuffer(value, np.uint8).ctypes.data if len(value) else 0
        if base is None and address:
            base = _map_base(file, address, transaction.stat()["psize"])
        yield bytes(key), value, address - (base or 0) if address else 0


def _map_base(file: Path, address: int, page_nbytes: int) -> int:
    """Return the address of the file's first byte, given that of a value: each page begins with its own number.

    A map begins at a multiple of this system's pages. Where these are smaller than the file's, a page of the file may
    begin at each of several places before the value: it is the one whose bytes the file has at the page's place.
    """
    step = min(page_nbytes, mmap.ALLOCATIONGRANULARITY)
    with open(file, "rb", buffering=0) as opened:
        last = os.fstat(opened.fileno()).st_size // page_nbytes - 1
        for page in range(address - address % step, address - page_nbytes, -step):
            number = ctypes.c_uint64.from_address(page).value
            found = ctypes.string_at(page, max(address - page, _HEAD_NBYTES))
            if number <= last and found == system.read_at(opened.fileno(), len(found), number * page_nbytes):
                return page - page_nbytes * number
    raise CorruptError(f"{file}: LMDB maps other bytes than the file has. Was it changed meanwhile?")


def has_transactions(file: Path) -> bool:
    """Return whether a transaction was committed to a data file.

    Raises:
        OSError: The disk cannot read it.
    """
    with open(file, "rb", buffering=0) as opened:
        return _newest(opened.fileno())[1] > 0


def _newest(descriptor: int) -> tuple[int, int]:
    """Return the length of the file, and the number of the transaction, that the newer meta page states; 0 if none."""
    head = system.read_at(descriptor, 2 * max(PAGE_SIZES), 0)
    for nbytes in PAGE_SIZES:
        found = []
        for page in (head[:nbytes], head[nbytes : 2 * nbytes]):
            has_magic = page[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] == _MAGIC
            if has_magic and page[PAGE_SIZE_AT : PAGE_SIZE_AT + 4] == nbytes.to_bytes(4, "little"):
                last, number = (
                    int.from_bytes(page[at : at + _NUMBER_NBYTES], "little") for at in (_LAST_PAGE_AT, _TRANSACTION_AT)
                )
                found.append((number, (last + 1) * nbytes))
        if found and max(found)[0]:
            return max(found)[1], max(found)[0]
    return 0, 0
