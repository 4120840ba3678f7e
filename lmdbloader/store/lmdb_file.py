"""LMDB data files below LMDB's own interface: their pages, the places of their values, a torn last transaction."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import numpy as np
from lmdb.verify import VerifyError
from lmdb.verify import verify as check_pages

from lmdbloader.base import system
from lmdbloader.base.disk_errors import disk_failed
from lmdbloader.base.files import read_regular
from lmdbloader.errors import CorruptError
from lmdbloader.format.layout import DATA_FILE

# LMDB 0.9: each of the first two pages, the meta pages, has a magic number (u32) and the format version (u32) after
# its header, then the page size (u32), and at the end the numbers (u64) of the tree's root, of the last page and of the
# transaction. Transaction n writes page n % 2.
_MAGIC_AT, _MAGIC = 16, (0xBEEFC0DE).to_bytes(4, "little")
PAGE_SIZE_AT, _ROOT_AT, _LAST_PAGE_AT, _TRANSACTION_AT, _NUMBER_NBYTES = 40, 128, 136, 144, 8
# A page has its kind (u16), where its list of nodes ends (u16), and the list, u16 each. A node has the value's length
# (2 x u16), flags (u16), the key's length (u16), the key, and the value, or the number (u64) of the first of its own
# pages. In a branch, the length and the flags are the number of a page.
_KIND_AT, _NODES_AT, _BRANCH, _HAS_PAGES = 10, 16, 1, 1
_NODE = struct.Struct("<4H")
# A file has the page size of the system that made it.
PAGE_SIZES = (4096, 16384, 8192, 32768)
_MAGIC_NBYTES, _HEAD_NBYTES = 64, 16
_LEAK, _AND_MORE = "a leak", "..."
# A value that replaced a larger one in its transaction keeps all its pages: more than it needs, and than are counted.
_PAGES_OF_A_VALUE = re.compile(r"header mp_pages (\d+) != OVPAGES\(\d+\)=(\d+)")
_COUNT_OF_PAGES = re.compile(r"walked \d+ overflow pages, record says \d+")


@contextmanager
def explain_lmdb(data: Path) -> Iterator[None]:
    """Turn LMDB's I/O errors into DiskError."""
    try:
        yield
    except lmdb.Error as error:
        if not system.means(errno.EIO, str(error)):
            raise
        raise disk_failed(data, error) from error


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

    Unreferenced pages do not count: a process that was killed may leave some, and no reader visits them.
    """
    try:
        found = [p for p in check_pages(os.fsencode(file), subdir=False) if _LEAK not in p]  # type: ignore[no-untyped-call]
    except VerifyError as error:
        return [str(error)]
    return found or _cut_off(file)


def _refuse_damage(file: Path) -> None:
    """Raise CorruptError if a reader must not visit an LMDB's pages.

    A value may have more pages than it needs: only a writer would free them.
    """
    found = page_problems(file)
    problems = [problem for problem in found if not _has_pages_left(problem)]
    if num_larger := len(found) - len(problems):
        problems = [problem for problem in problems if not _COUNT_OF_PAGES.search(problem)] or _cut_off(file)
    if num_larger and problems and problems[0].startswith(_AND_MORE):
        raise CorruptError(
            f"{file}: {num_larger} values have more pages than they need, as after larger ones were replaced; the "
            "other pages cannot be checked"
        )
    if problems:
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise CorruptError(f"{file}: its pages are damaged ({problems[0]}{more})")


def _has_pages_left(problem: str) -> bool:
    """Return whether a problem is that a value has more pages than it needs.

    >>> _has_pages_left("main DB: overflow page 154 header mp_pages 25 != OVPAGES(3000)=1")
    True
    """
    pages = _PAGES_OF_A_VALUE.search(problem)
    return pages is not None and int(pages[1]) > int(pages[2])


def _cut_off(file: Path) -> list[str]:
    """Return that a value ends behind the file, whose pages are sound: LMDB's map would end the process there.

    A file that is shorter than its newest meta page says may be whole: its last pages are free then.
    """
    with open(file, "rb", buffering=0) as opened:
        descriptor, nbytes = opened.fileno(), os.fstat(opened.fileno()).st_size
        page_nbytes, numbers = _read_metas(descriptor)
        at = page_nbytes * numbers.index(max(numbers))
        root, last = (_read_number(descriptor, at + k) for k in (_ROOT_AT, _LAST_PAGE_AT))
        if numbers == (0, 0) or (last + 1) * page_nbytes <= nbytes:
            return []
        end, key = max(_ends(descriptor, page_nbytes, root), default=(0, b""))
    shown = f"the value of key {key!r:.80} ends at byte {end}, the file at byte {nbytes}: it was cut or copied in part"
    return [shown] if end > nbytes else []


def _ends(descriptor: int, page_nbytes: int, number: int) -> Iterator[tuple[int, bytes]]:
    """Yield the end in the file, and the key, of each value with pages of its own below a page of the tree."""
    page = system.read_at(descriptor, page_nbytes, number * page_nbytes)
    kind, stop = struct.unpack_from("<HH", page, _KIND_AT)
    for (place,) in struct.iter_unpack("<H", page[_NODES_AT:stop]):
        low, high, flags, key_nbytes = _NODE.unpack_from(page, place)
        if kind & _BRANCH:
            yield from _ends(descriptor, page_nbytes, low | high << 16 | flags << 32)
        elif flags & _HAS_PAGES:
            key_at = place + _NODE.size
            first = int.from_bytes(page[key_at + key_nbytes :][:_NUMBER_NBYTES], "little")
            end = first * page_nbytes + _HEAD_NBYTES + (low | high << 16)
            yield end, page[key_at : key_at + key_nbytes]


def list_values(file: Path) -> Iterator[tuple[bytes, int, int]]:
    """Yield (key, offset in the file, length) of every value, in the order of LMDB's keys; no value is read.

    LMDB aborts the process on some damaged pages, so all pages are checked before it opens the file.

    Args:
        file: The data file.

    Raises:
        CorruptError: Pages are damaged, or the file is from another kind of machine.
        OSError: It cannot be read.
    """
    _refuse_damage(file)
    try:
        with explain_lmdb(file), reading(file, readahead=False) as transaction:
            base: int | None = None
            for key, value in transaction.cursor():
                if not len(value):
                    yield bytes(key), 0, 0
                    continue
                address = np.frombuffer(value, np.uint8).ctypes.data
                if base is None:
                    base = _map_base(file, address, transaction.stat()["psize"])
                yield bytes(key), address - base, len(value)
    except lmdb.Error as error:
        raise CorruptError(f"{file}: LMDB does not open it ({error})") from error


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


def last_transactions(descriptor: int) -> tuple[int, int]:
    """Return the transaction number on each of the two meta pages; 0 if a page has none.

    Args:
        descriptor: The data file's.

    Raises:
        OSError: The disk cannot read them.
    """
    return _read_metas(descriptor)[1]


def _read_metas(descriptor: int) -> tuple[int, tuple[int, int]]:
    """Return the page size that the meta pages state, and their transaction numbers."""
    head = system.read_at(descriptor, 2 * max(PAGE_SIZES), 0)
    for nbytes in PAGE_SIZES:
        first, second = (_transaction(head[at : at + nbytes], nbytes) for at in (0, nbytes))
        if first or second:
            return nbytes, (first, second)
    return PAGE_SIZES[0], (0, 0)


def _transaction(page: bytes, nbytes: int) -> int:
    stated = page[PAGE_SIZE_AT : PAGE_SIZE_AT + 4]
    if page[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] != _MAGIC or stated != nbytes.to_bytes(4, "little"):
        return 0
    return int.from_bytes(page[_TRANSACTION_AT : _TRANSACTION_AT + _NUMBER_NBYTES], "little")


def take_back_torn(data: Path) -> bool:
    """Undo the last transaction if a power cut tore its meta page, which a commit writes last; return whether it did.

    LMDB relies on the disk to write the 120 bytes of a meta page as a whole, which not every disk guarantees. The other
    meta page still describes the transaction before, and no page of that one is overwritten until the torn one has been
    committed. This writes one number, which fits in a sector of any disk, and restores it if that does not help.
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


def _read_number(descriptor: int, at: int) -> int:
    return int.from_bytes(system.read_at(descriptor, _NUMBER_NBYTES, at), "little")


def _write_number(descriptor: int, number: int, at: int) -> None:
    system.write_at(descriptor, number.to_bytes(_NUMBER_NBYTES, "little"), at)
    system.flush(descriptor)
