"""Compares the records in data.mdb with the index, column by column."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa

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
    record_schema,
)
from lmdbloader.format.manifest import Description
from lmdbloader.store.care.recovery import is_schema, records
from lmdbloader.store.reader import Reader
from lmdbloader.store.records import decode_block


def compare_records(reader: Reader) -> list[str]:
    """Return what in data.mdb's records differs from the index.

    Args:
        reader: Of a dataset whose pages are known to be sound: LMDB aborts the process on some damaged ones.
    """
    path = Path(reader.path) / DATA_FILE
    schema = record_schema(reader.manifest.fields, with_source=reader.manifest.with_source)
    try:
        with (
            lmdb.open(os.fsencode(path), subdir=False, readonly=True, lock=False, readahead=True) as env,
            env.begin(buffers=True) as transaction,
        ):
            problems = []
            if not is_schema(transaction.get(SCHEMA_KEY, b""), schema):
                problems.append("its schema is not the one that the manifest describes")
            if bytes(transaction.get(PROGRESS_KEY, b"")) != progress_value(len(reader)):
                problems.append(f"its progress entry does not state {len(reader)} samples")
            return problems + list(_differences(reader, transaction, schema))
    except lmdb.Error as error:
        return [str(error)]


def stored_description(data: Path) -> bytes:
    """Return data.mdb's entry of what its dataset is; empty where there is none.

    Args:
        data: A data file whose pages are known to be sound.
    """
    try:
        with (
            lmdb.open(os.fsencode(data), subdir=False, readonly=True, lock=False, readahead=False) as env,
            env.begin() as transaction,
        ):
            return bytes(transaction.get(DESCRIPTION_KEY, b""))
    except lmdb.Error:
        return b""


def damaged_records(data: Path, description: Description | None) -> list[str]:
    """Return which records are not what their keys say, where there is no index to compare them with.

    Args:
        data: A data file whose pages are known to be sound.
        description: What its records are, None where that is not known.
    """
    problems = []
    last: tuple[int, int, Any] | None = None
    try:
        with (
            lmdb.open(os.fsencode(data), subdir=False, readonly=True, lock=False, readahead=True) as env,
            env.begin(buffers=True) as transaction,
        ):
            for first, expected, value in records(transaction):
                if is_damaged := checksum(value) != expected:
                    problems.append(
                        f"record of samples from {first}: its checksum does not match: the stored bytes were damaged"
                    )
                last = None if is_damaged else (first, expected, value)
            if description and (last or not problems):
                num_samples = _end_of(last, description) if last else 0
                if bytes(transaction.get(PROGRESS_KEY, b"")) != progress_value(num_samples):
                    problems.append(f"its progress entry does not state {num_samples} samples")
            return problems
    except (lmdb.Error, CorruptError) as error:
        return [str(error)]


def _end_of(record: tuple[int, int, Any], description: Description) -> int:
    """Return the number of the first sample behind a record.

    Raises:
        CorruptError: It is of another schema.
    """
    first, expected, value = record
    schema = record_schema(description.fields, with_source=description.with_source)
    return first + decode_block(value, schema, description.fields, expected, f"record of samples from {first}")[0]


def _differences(reader: Reader, transaction: lmdb.Transaction, schema: pa.Schema) -> Iterator[str]:
    row = 0
    base: int | None = None
    # Numbers as NumPy has them: a dataset may have a million records.
    index = {
        name: reader.index.arrays.get(name, reader.index.batch.column(name)) for name in reader.index.batch.schema.names
    }
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
        yield f"holds {row} samples, the index {len(reader)}"


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
