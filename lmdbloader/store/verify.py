"""Checks a dataset completely: LMDB's page structure, every record, every payload, and the index against both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
from lmdb.verify import VerifyError
from lmdb.verify import verify as check_pages

from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.format import (
    DATA_FILE,
    PROGRESS_KEY,
    RECORD_KEY_NBYTES,
    SCHEMA_KEY,
    parse_record_key,
    progress_value,
    record_schema,
)
from lmdbloader.store.index import content_digest, digest_columns
from lmdbloader.store.reader import Reader
from lmdbloader.store.records import decode_block

_ROWS_AT_ONCE = 256
_READ_AT_ONCE_NBYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged value.

    Attributes:
        sample: Its number.
        field: The field that does not read.
        source: Relative path of the file that it was made from, None where the dataset has none.
        reason: What is wrong.
    """

    sample: int
    field: str
    source: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found.

    Attributes:
        num_samples: Samples looked at.
        problems: What is wrong with the dataset as a whole, one sentence each.
        damaged: Values that do not read.
    """

    num_samples: int
    problems: tuple[str, ...]
    damaged: tuple[Damage, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems and not self.damaged


def verify(path: str | os.PathLike[str], *, progress: Callable[[int], None] = lambda done: None) -> Verification:
    """Check a dataset completely.

    Args:
        path: Of the dataset.
        progress: Called with the number of samples checked since the last call.

    Raises:
        FileNotFoundError: There is nothing at `path`.
        FormatError: It is not a finished dataset of this format version.
        CorruptError: It is so damaged that it does not open; the message says where.
    """
    reader = Reader(path)
    problems: list[str] = []
    damaged = list(_unreadable(reader, progress))
    if (found := content_digest(digest_columns(reader.index.batch))) != reader.manifest.content_digest:
        problems.append(f"the content digest is {found}, the manifest says {reader.manifest.content_digest}")
    # LMDB aborts the process on some damaged pages, so it opens the file only once its structure is known to be sound.
    structure = _check_structure(Path(reader.path) / DATA_FILE)
    problems += structure or _compare_records(reader)
    return Verification(len(reader), tuple(problems), tuple(damaged))


def _unreadable(reader: Reader, progress: Callable[[int], None]) -> Iterator[Damage]:
    """Read every payload, many at once; where that fails, one by one to name each damaged one."""
    names = [f.name for f in reader.manifest.fields if f.is_payload]
    for first in range(0, len(reader), _ROWS_AT_ONCE):
        rows = np.arange(first, min(first + _ROWS_AT_ONCE, len(reader)), dtype=np.int64)
        for name in names:
            for part in _parts(rows, reader.raw_nbytes(name, rows)):
                try:
                    _read(reader, name, part)
                except CorruptError:
                    yield from _each(reader, name, part)
        progress(len(rows))


def _parts(rows: np.ndarray[Any, Any], nbytes: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    group = np.cumsum(nbytes) // _READ_AT_ONCE_NBYTES
    yield from np.split(rows, np.flatnonzero(np.diff(group)) + 1)


def _read(reader: Reader, name: str, rows: np.ndarray[Any, Any]) -> None:
    nbytes = reader.raw_nbytes(name, rows)
    out = np.empty(int(nbytes.sum()), np.uint8)
    reader.read_into(name, rows, out, np.cumsum(nbytes) - nbytes)
    if reader.fields[name].kind == "array":
        for row in rows.tolist():
            reader.read_array(name, row)


def _each(reader: Reader, name: str, rows: np.ndarray[Any, Any]) -> Iterator[Damage]:
    for row in rows.tolist():
        try:
            _read(reader, name, np.array([row], np.int64))
        except (CorruptError, FormatError) as error:
            yield Damage(row, name, reader.source(row), str(error))


def _check_structure(path: Path) -> list[str]:
    """Return what is wrong with LMDB's pages; values are not looked at."""
    try:
        return [f"{DATA_FILE}: {finding}" for finding in check_pages(os.fsencode(path), subdir=False)]  # type: ignore[no-untyped-call]
    except VerifyError as error:
        return [f"{DATA_FILE}: {error}"]


def _compare_records(reader: Reader) -> list[str]:
    """Return what in data.mdb's records differs from the index."""
    path = Path(reader.path) / DATA_FILE
    schema = record_schema(reader.manifest.fields, with_source=reader.manifest.with_source)
    try:
        with (
            lmdb.open(os.fsencode(path), subdir=False, readonly=True, lock=False, readahead=True) as env,
            env.begin(buffers=True) as transaction,
        ):
            problems = []
            if not _describes(transaction.get(SCHEMA_KEY, b""), schema):
                problems.append(f"{DATA_FILE}: its schema is not the one that the manifest describes")
            if bytes(transaction.get(PROGRESS_KEY, b"")) != progress_value(len(reader)):
                problems.append(f"{DATA_FILE}: its progress entry does not state {len(reader)} samples")
            return problems + list(_differences(reader, transaction, schema))
    except lmdb.Error as error:
        return [f"{DATA_FILE}: {error}"]


def _describes(stored: Any, schema: pa.Schema) -> bool:
    """Return whether a serialized schema is `schema`; releases of Arrow may write it differently."""
    try:
        return bool(pa.ipc.read_schema(pa.py_buffer(bytes(stored))).equals(schema))
    except (pa.ArrowException, OSError):
        return False


def _differences(reader: Reader, transaction: lmdb.Transaction, schema: pa.Schema) -> Iterator[str]:
    row = 0
    base: int | None = None
    for key, value in transaction.cursor():
        if len(key) != RECORD_KEY_NBYTES:
            continue
        first, expected = parse_record_key(bytes(key))
        where = f"{DATA_FILE}: record of samples from {first}"
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
        for name in schema_columns(reader):
            ours = reader.index.batch.column(name)[row : row + count]
            theirs = columns[name]
            if name.endswith(".offset"):
                if base is None and count and len(ours):
                    base = address - (ours[0].as_py() - int(theirs[0]))
                theirs = theirs + (address - (base or 0))
            if not _same(ours, theirs):
                yield f"{where}: its column {name!r} differs from the index"
        row += count
    if row != len(reader):
        yield f"{DATA_FILE}: holds {row} samples, the index {len(reader)}"


def schema_columns(reader: Reader) -> list[str]:
    """Return the names of the index's columns."""
    return list(reader.index.batch.schema.names)


def _next_row(transaction: lmdb.Transaction, key: Any, reader: Reader) -> int:
    cursor = transaction.cursor()
    cursor.set_key(bytes(key))
    if cursor.next() and len(cursor.key()) == RECORD_KEY_NBYTES:
        return parse_record_key(bytes(cursor.key()))[0]
    return len(reader)


def _same(ours: pa.Array, theirs: Any) -> bool:
    if isinstance(theirs, pa.Array):
        return bool(ours.to_pylist() == theirs.to_pylist())
    return bool(len(ours) == len(theirs) and (ours.to_numpy(zero_copy_only=False) == theirs).all())
