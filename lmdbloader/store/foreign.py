"""LMDBs that others have written: where their values lie in the file, found without trusting a page."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import lmdb
import numpy as np
from lmdb.verify import VerifyError
from lmdb.verify import verify as check_pages

from lmdbloader.base.files import read_regular
from lmdbloader.errors import CorruptError
from lmdbloader.format.layout import DATA_FILE
from lmdbloader.store.diskerrors import explain_lmdb

_MAGIC_NBYTES = 64
_MAGIC = (0xBEEFC0DE).to_bytes(4, "little")
_HARMLESS = "a leak"


def lmdb_file(path: Path) -> Path | None:
    """Return the data file of an LMDB: `path` itself or data.mdb in it; None where it is no LMDB."""
    file = path / DATA_FILE if path.is_dir() else path
    try:
        return file if _MAGIC in read_regular(file, _MAGIC_NBYTES) else None
    except OSError:
        return None


def page_problems(file: Path) -> list[str]:
    """Return what is wrong with an LMDB's pages; values are not looked at.

    Pages that nothing points to are not counted: a process that was killed may leave some, and no reader meets them.
    """
    try:
        return [p for p in check_pages(os.fsencode(file), subdir=False) if _HARMLESS not in p]  # type: ignore[no-untyped-call]
    except VerifyError as error:
        return [str(error)]


def list_values(file: Path) -> Iterator[tuple[bytes, int, int]]:
    """Yield (key, offset in the file, length) of every value, in LMDB's order of the keys; no value is read.

    LMDB aborts the process on some damaged pages, so it opens the file only once all of them are known to be sound.

    Args:
        file: The data file.

    Raises:
        CorruptError: Pages are damaged, or the file is of another kind of machine.
        OSError: It cannot be read.
    """
    if problems := page_problems(file):
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise CorruptError(f"{file}: its pages are damaged ({problems[0]}{more})")
    try:
        with (
            explain_lmdb(file),
            lmdb.open(os.fsencode(file), subdir=False, readonly=True, lock=False, readahead=False) as env,
            env.begin(buffers=True) as transaction,
        ):
            base: int | None = None
            for key, value in transaction.cursor():
                if not len(value):
                    yield bytes(key), 0, 0
                    continue
                address = np.frombuffer(value, np.uint8).ctypes.data
                if base is None:
                    base = _map_base(address)
                yield bytes(key), address - base, len(value)
    except lmdb.Error as error:
        raise CorruptError(f"{file}: LMDB does not open it ({error})") from error


def _map_base(address: int) -> int:
    """Return the address at which the first byte of the file that is mapped around an address would lie."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        for line in maps:
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+)", line)
            if found and int(found[1], 16) <= address < int(found[2], 16):
                return int(found[1], 16) - int(found[3], 16)
    raise CorruptError(f"no map holds the address {address:#x}: where an LMDB's values lie is not known")
