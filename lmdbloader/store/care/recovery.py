"""What the records in data.mdb tell by themselves: how much of a conversion they are, and the index they make."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa

from lmdbloader.base.option_names import option
from lmdbloader.errors import CorruptError
from lmdbloader.format.layout import (
    DATA_FILE,
    PROGRESS_KEY,
    RECORD_KEY_NBYTES,
    SCHEMA_KEY,
    parse_record_key,
    record_key,
)
from lmdbloader.store.care.metas import last_transactions, take_back_torn
from lmdbloader.store.diskerrors import explain_lmdb, naming
from lmdbloader.store.filecache import forget
from lmdbloader.store.foreign import page_problems
from lmdbloader.store.index import Spool
from lmdbloader.store.opening import read_through
from lmdbloader.store.records import decode_block


def num_committed(partial: Path) -> int:
    """Return how many samples the last transaction left in an unfinished dataset.

    What is not on the disk is not counted: after a write that failed the system's memory may hold more than that. A
    last transaction that a power cut has torn is taken back.

    Raises:
        CorruptError: Its data file is damaged.
    """
    data = partial / DATA_FILE
    if not data.exists():
        return 0
    with naming(data):
        with open(data, "rb", buffering=0) as file:
            forget(file.fileno())
            # A power cut in the first transaction may leave anything of LMDB's first pages, and of the file's length.
            if last_transactions(file.fileno()) == (0, 0):
                return 0
            read_through(file.fileno())  # before LMDB maps it
        if (problems := page_problems(data)) and not take_back_torn(data):
            raise CorruptError(
                f"{data}: its pages are damaged ({problems[0]}). Start again with {option('restart', True)}, which "
                "discards its progress."
            )
    try:
        with (
            explain_lmdb(data),
            lmdb.open(os.fsencode(data), subdir=False, readonly=True, lock=False) as env,
            env.begin() as transaction,
        ):
            value = transaction.get(PROGRESS_KEY)
        found = 0 if value is None else json.loads(value)["num_samples"]
    except (lmdb.Error, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{data}: does not say how many samples it holds ({error!r:.80})") from error
    if type(found) is not int or found < 0:
        raise CorruptError(f"{data}: says that it holds {found!r:.20} samples")
    return found


def delete_records(transaction: lmdb.Transaction, first_sample: int) -> None:
    """Delete the records of all samples from one on."""
    cursor = transaction.cursor()
    found = cursor.set_range(record_key(first_sample, 0))
    while found and len(cursor.key()) == RECORD_KEY_NBYTES:
        found = cursor.delete()


def spool_records(transaction: lmdb.Transaction, spool: Spool, schema: pa.Schema, where: Path) -> None:
    """Append the rows of all records to a spool, whose offsets then count from their record's first byte.

    Every record's checksum is verified before it is parsed. The order of the rows, and what `Spool.write` makes of
    them, are those of the conversion that wrote the records.

    Args:
        transaction: Of the LMDB.
        spool: An empty one.
        schema: Of the records.
        where: The data file, for messages.

    Raises:
        CorruptError: A record is damaged or missing, or of another schema.
    """
    if not is_schema(transaction.get(SCHEMA_KEY, b""), schema):
        raise CorruptError(f"{where}: its records are not of the schema that is expected ({', '.join(schema.names)})")
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


def is_schema(stored: Any, schema: pa.Schema) -> bool:
    """Return whether a serialized schema is `schema`; releases of Arrow may write it differently."""
    try:
        return bool(pa.ipc.read_schema(pa.py_buffer(bytes(stored))).equals(schema))
    except (pa.ArrowException, OSError):
        return False
