"""The records in data.mdb, read with LMDB: the committed samples, their index rows, and differences from an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa

from lmdbloader.base import system
from lmdbloader.base.disk_errors import naming
from lmdbloader.base.option_names import option
from lmdbloader.base.text import counted
from lmdbloader.errors import CorruptError
from lmdbloader.format.codecs import checksum
from lmdbloader.format.layout import (
    DATA_FILE,
    DESCRIPTION_KEY,
    PROGRESS_KEY,
    RECORD_KEY_NBYTES,
    SCHEMA_KEY,
    parse_record_key,
    progress_value,
    record_key,
    record_schema,
)
from lmdbloader.format.manifest import Description
from lmdbloader.store.lmdb_file import explain_lmdb, last_transactions, page_problems, reading, take_back_torn
from lmdbloader.store.opening import read_through
from lmdbloader.store.reader import Reader
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


def delete_records(transaction: lmdb.Transaction, first_sample: int) -> None:
    """Delete the records of the samples from `first_sample` on."""
    cursor = transaction.cursor()
    found = cursor.set_range(record_key(first_sample, 0))
    while found and len(cursor.key()) == RECORD_KEY_NBYTES:
        found = cursor.delete()


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


def compare_records(reader: Reader) -> list[str]:
    """Return the differences between the records in data.mdb and the index, one sentence each.

    Args:
        reader: Of a dataset whose pages were checked: LMDB aborts the process on some damaged ones.
    """
    schema = record_schema(reader.manifest.fields, with_source=reader.manifest.with_source)
    try:
        with reading(reader.path / DATA_FILE) as transaction:
            is_same = _is_schema(transaction.get(SCHEMA_KEY, b""), schema)
            problems = [] if is_same else ["its schema is not the one that the manifest describes"]
            problems += _progress_problems(transaction, len(reader))
            return problems + list(_differences(reader, transaction, schema))
    except lmdb.Error as error:
        return [str(error)]


def stored_description(data: Path) -> bytes:
    """Return data.mdb's description of its dataset; empty if it has none.

    Args:
        data: A data file whose pages were checked.
    """
    try:
        with reading(data, readahead=False) as transaction:
            return bytes(transaction.get(DESCRIPTION_KEY, b""))
    except lmdb.Error:
        return b""


def damaged_records(data: Path, description: Description | None) -> list[str]:
    """Check records against their keys only, for a dataset without an index; return the damaged ones, a sentence each.

    Args:
        data: A data file whose pages were checked.
        description: Of the dataset; None if unknown.
    """
    problems = []
    last: tuple[int, int, Any] | None = None
    try:
        with reading(data) as transaction:
            for first, expected, value in records(transaction):
                if is_damaged := checksum(value) != expected:
                    problems.append(
                        f"record of samples from {first}: its checksum does not match: the stored bytes were damaged"
                    )
                last = None if is_damaged else (first, expected, value)
            if description and (last or not problems):
                problems += _progress_problems(transaction, _end_of(last, description) if last else 0)
            return problems
    except (lmdb.Error, CorruptError) as error:
        return [str(error)]


def _progress_problems(transaction: lmdb.Transaction, num_samples: int) -> list[str]:
    if bytes(transaction.get(PROGRESS_KEY, b"")) == progress_value(num_samples):
        return []
    return [f"its progress entry does not state {counted(num_samples, 'sample')}"]


def _end_of(record: tuple[int, int, Any], description: Description) -> int:
    """Return the number of the first sample after a record.

    Raises:
        CorruptError: It has another schema.
    """
    first, expected, value = record
    schema = record_schema(description.fields, with_source=description.with_source)
    return first + decode_block(value, schema, description.fields, expected, f"record of samples from {first}")[0]


def _differences(reader: Reader, transaction: lmdb.Transaction, schema: pa.Schema) -> Iterator[str]:
    row = 0
    base: int | None = None
    # Numbers are compared as NumPy arrays: a dataset may have a million records.
    batch = reader.index.batch
    index = {name: reader.index.columns.get(name, batch.column(name)) for name in batch.schema.names}
    for key, value in transaction.cursor():
        if len(key) != RECORD_KEY_NBYTES:
            continue
        first, expected = parse_record_key(bytes(key))
        where = f"record of samples from {first}"
        if first != row:
            yield f"{where}: expected the one from {row}; a record is missing"
            row = first
        try:
            count, columns = decode_block(value, schema, reader.manifest.fields, expected, where)
        except CorruptError as error:
            yield str(error)
            row = _next_row(transaction, key, reader)
            continue
        address = np.frombuffer(value, np.uint8).ctypes.data
        for name, column in index.items():
            ours, theirs = column[row : row + count], columns[name]
            if name.endswith(".offset"):
                if base is None and count and len(ours):
                    base = address - (int(ours[0]) - int(theirs[0]))
                theirs = theirs + (address - (base or 0))
            if not _same(ours, theirs):
                yield f"{where}: its column {name!r} differs from the index"
        row += count
    if row != len(reader):
        yield f"holds {counted(row, 'sample')}, the index {len(reader)}"


def _next_row(transaction: lmdb.Transaction, key: Any, reader: Reader) -> int:
    cursor = transaction.cursor()
    cursor.set_key(bytes(key))
    if cursor.next() and len(cursor.key()) == RECORD_KEY_NBYTES:
        return parse_record_key(bytes(cursor.key()))[0]
    return len(reader)


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, pa.Array):
        return bool(ours.to_pylist() == theirs.to_pylist())
    return bool(np.array_equal(ours.view(np.uint8), np.asarray(theirs).astype(ours.dtype, copy=False).view(np.uint8)))
