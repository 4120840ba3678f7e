"""The records in data.mdb, read with LMDB: the committed samples, their index rows, and differences from an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa

from lmdbloader.base import system
from lmdbloader.errors import CorruptError
from lmdbloader.format.digests import read_digest
from lmdbloader.format.layout import (
    DATA_FILE,
    PROGRESS_KEY,
    RECORD_KEY_NBYTES,
    SCHEMA_KEY,
    parse_record_key,
)
from lmdbloader.store.lmdb_file import has_transactions, page_problems, reading
from lmdbloader.store.records import decode_block
from lmdbloader.store.spool import Spool


def num_committed(partial: Path) -> int:
    """Return how many samples the last transaction left in a part that is being written; 0 if its file is damaged.

    Only data on the disk counts: after a failed write, the page cache may hold more.
    """
    data = partial / DATA_FILE
    if not data.exists():
        return 0
    try:
        with open(data, "rb", buffering=0) as file:
            system.drop_cache(file.fileno())
            read_digest(file.fileno())  # before LMDB maps it
        # A power cut may leave any content in LMDB's first pages, and any file length.
        if not has_transactions(data) or page_problems(data):
            return 0
        with reading(data) as transaction:
            return int(json.loads(bytes(transaction.get(PROGRESS_KEY, b"")))["num_samples"])
    except (OSError, lmdb.Error, ValueError, LookupError, TypeError):
        return 0


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
