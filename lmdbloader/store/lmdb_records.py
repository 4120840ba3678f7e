"""The records in data.mdb, read with LMDB: the committed samples, their index rows, and differences from an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa

from lmdbloader.base import system
from lmdbloader.base.disk_errors import naming
from lmdbloader.base.option_names import option
from lmdbloader.errors import CorruptError
from lmdbloader.format.layout import (
    DATA_FILE,
    PROGRESS_KEY,
    RECORD_KEY_NBYTES,
    SCHEMA_KEY,
    parse_record_key,
)
from lmdbloader.store.lmdb_file import explain_lmdb, last_transactions, page_problems, reading, take_back_torn
from lmdbloader.store.opening import read_through
from lmdbloader.store.records import decode_block
from lmdbloader.store.spool import Spool


def num_committed(partial: Path) -> int:
    """Return how many samples the last transaction left in an unfinished dataset.

    Only data on the disk counts: after a failed write, the page cache may hold more. A last transaction that a power
    cut tore is undone.

    Raises:
        CorruptError: Its data file is damaged.
    """
    data = partial / DATA_FILE
    if not data.exists():
        return 0
    with naming(data):
        with open(data, "rb", buffering=0) as file:
            system.drop_cache(file.fileno())
            # A power cut in the first transaction may leave any content in LMDB's first pages, and any file length.
            if last_transactions(file.fileno()) == (0, 0):
                return 0
            read_through(file.fileno())  # before LMDB maps it
        if (problems := page_problems(data)) and not take_back_torn(data):
            raise CorruptError(
                f"{data}: its pages are damaged ({problems[0]}). Start again with {option('restart', True)}, "
                "which discards its progress."
            )
    try:
        with explain_lmdb(data), reading(data) as transaction:
            value = transaction.get(PROGRESS_KEY)
            found = 0 if value is None else json.loads(bytes(value))["num_samples"]
    except (lmdb.Error, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{data}: does not state how many samples it holds ({error!r:.80})") from error
    if type(found) is not int or found < 0:
        raise CorruptError(f"{data}: states that it holds {found!r:.20} samples")
    return found


def spool_records(transaction: lmdb.Transaction, spool: Spool, schema: pa.Schema, where: Path) -> None:
    """Append the index rows of all records to a spool; offsets count from the first byte of their record.

    Every record's checksum is verified before it is parsed. The rows and their order are those of the conversion that
    wrote the records, so `Spool.write` makes the same index.

    Args:
        transaction: Of the LMDB.
        spool: An empty one.
        schema: Of the records.
        where: The data file, for messages.

    Raises:
        CorruptError: A record is damaged or missing, or has another schema.
    """
    if not _is_schema(transaction.get(SCHEMA_KEY, b""), schema):
        raise CorruptError(f"{where}: its records do not have the expected schema ({', '.join(schema.names)})")
    for first, expected, value in records(transaction):
        here = f"{where}: record of samples from {first}"
        if first != spool.num_samples:
            raise CorruptError(f"{here}: expected the one from {spool.num_samples}; a record is missing")
        count, columns = decode_block(value, schema, spool.fields, expected, here)
        spool.add_columns(columns, count, [count])


def records(transaction: lmdb.Transaction) -> Iterator[tuple[int, int, memoryview | bytes]]:
    """Yield (first sample, XXH64, value) of all records in order."""
    for key, value in transaction.cursor():
        if len(key) == RECORD_KEY_NBYTES:
            yield *parse_record_key(bytes(key)), value


def _is_schema(stored: Any, schema: pa.Schema) -> bool:
    """Return whether a serialized schema equals `schema`; its bytes depend on Arrow's release."""
    try:
        return bool(pa.ipc.read_schema(pa.py_buffer(bytes(stored))).equals(schema))
    except (pa.ArrowException, OSError):
        return False
