"""One part of a dataset while it is written: record batches in durable LMDB transactions, and its rows of the index."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmdbloader.base import system
from lmdbloader.base.disk_errors import DISK_FULL, disk_failed, disk_full, explain_full_disk, has_no_room, naming
from lmdbloader.base.limits import explain_limit, no_address_space
from lmdbloader.base.text import counted
from lmdbloader.errors import CorruptError, DestinationError
from lmdbloader.format.digests import read_digest
from lmdbloader.format.layout import (
    DATA_FILE,
    DESCRIPTION_KEY,
    PROGRESS_KEY,
    RECORD_KEY_NBYTES,
    SCHEMA_KEY,
    parse_record_key,
    record_key,
    record_schema,
)
from lmdbloader.format.manifest import Description
from lmdbloader.store.lmdb_file import has_transactions, page_problems, places, reading
from lmdbloader.store.records import Block, Chunk, decode_block
from lmdbloader.store.spool import Spool

#: The rows of a part that is complete, for the index of the dataset.
ROWS_FILE = "rows.arrow"
# In a transaction this large, fsync takes little time compared with writing the bytes.
TRANSACTION_NBYTES = 16 * 2**20
_COLUMNS_FOLDER = "columns"
_MIN_MAP_NBYTES = 2**20
_PAGE_NBYTES = 4096
_MAP_SPARE = 1.25
# About the bytes of a sample with one image in the index.
_ROW_NBYTES = 60


def estimate_map_nbytes(payload_nbytes: float, num_samples: float) -> int:
    """Return a map size for a part of about these payload bytes and samples, with a quarter to spare."""
    needed = payload_nbytes * 1.08 + num_samples * 64
    return _whole_pages(math.ceil(needed * _MAP_SPARE) + _MIN_MAP_NBYTES)


def map_nbytes_of(data_nbytes: float, most: float) -> int:
    """Return a map size for a data file of about this size, with a quarter to spare, and at most another."""
    return _whole_pages(math.ceil(max(data_nbytes * _MAP_SPARE, most)) + _MIN_MAP_NBYTES)


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE_NBYTES) * _PAGE_NBYTES


class PartWriter:
    """A part that is being written, in a folder of its own.

    A thread writes each transaction, so that encoding goes on while the disk is waited for.

    Attributes:
        payload_nbytes: Bytes of the payloads of all samples, as stored.
        num_committed: Samples in committed transactions.
    """

    def __init__(
        self,
        folder: Path,
        description: Description,
        *,
        map_nbytes: int,
        transaction_samples: int | None = None,
    ) -> None:
        """Open the data file; the samples that an interrupted process has committed to it are kept.

        Args:
            folder: Of this process alone.
            description: Of the dataset, as far as it is known; a copy is in the data file.
            map_nbytes: Estimated size of the data file, with a quarter to spare.
            transaction_samples: A transaction is committed once it has 16 MiB, or so many samples.

        Raises:
            CorruptError: The samples to keep are damaged.
            DiskFullError: No room left.
        """
        self.folder, self._data = folder, folder / DATA_FILE
        self.payload_nbytes = 0
        self._description = description
        self._transaction_samples = transaction_samples
        self._expected_nbytes = int(map_nbytes / _MAP_SPARE)
        self._pending: list[tuple[bytes, Any]] = []
        self._pending_nbytes = 0
        self._thread = ThreadPoolExecutor(1, "lmdbloader-writer")
        self._written: Future[None] | None = None
        self._num_begun = 0  # samples in transactions that have begun
        fields, with_source = description.fields, description.with_source
        self._schema = record_schema(fields, with_source=with_source)
        self.num_committed = num_committed(folder) or 0
        self._num_begun = self.num_committed
        if self.num_committed:
            map_nbytes = max(map_nbytes, self._data.stat().st_size + 2 * TRANSACTION_NBYTES)
        else:
            self._data.unlink(missing_ok=True)
        shutil.rmtree(folder / _COLUMNS_FOLDER, ignore_errors=True)
        self._spool = Spool(folder / _COLUMNS_FOLDER, fields, with_source=with_source)
        self._env = self._open(max(_whole_pages(map_nbytes), _MIN_MAP_NBYTES))
        try:
            # After a power cut, a transaction is of no use if its file's name is lost. And LMDB leaves its first two
            # pages to the first transaction, which may never finish.
            with naming(self._data):
                system.flush_path(self._data)
                system.flush_path(folder)
            if self.num_committed:
                self._take_over()
            else:
                self._put(SCHEMA_KEY, self._schema.serialize())
                self._put(DESCRIPTION_KEY, description.to_json())
        except BaseException:
            self.close()
            raise

    def _open(self, map_nbytes: int) -> lmdb.Environment:
        with self._explain_lmdb(0, map_nbytes):  # without LMDB's lock: no other process knows this folder
            path = os.fsencode(self._data)
            return lmdb.open(path, subdir=False, map_size=map_nbytes, lock=False, readahead=False)

    def _take_over(self) -> None:
        with (
            explain_full_disk(self.folder, self._missing_nbytes),
            naming(self._data),
            self._env.begin(buffers=True) as transaction,
        ):
            _spool_records(transaction, self._spool, self._schema, self._data)
        if self.num_samples != self.num_committed:
            has = counted(self.num_samples, "sample")
            raise CorruptError(f"{self._data}: holds {has}, expected {self.num_committed}")
        names = [f"{f.name}.stored_nbytes" for f in self._description.fields if f.is_payload]
        self.payload_nbytes = sum(int(self._spool.column(name).sum()) for name in names)

    @property
    def num_samples(self) -> int:
        """Samples added so far, kept ones included."""
        return self._spool.num_samples

    def add(self, chunk: Chunk, blocks: Sequence[Block]) -> None:
        """Append a chunk packed into blocks; committed with others once there is enough.

        Raises:
            DiskFullError: No room left.
        """
        first = self.num_samples
        for block in blocks:
            self._put(record_key(first, block.checksum), block.value)
            first += block.num_samples
        with explain_full_disk(self.folder, self._missing_nbytes):
            self._spool.add(chunk, blocks)
        self.payload_nbytes += sum(int(payloads.stored_nbytes.sum()) for payloads in chunk.payloads.values())
        most = self._transaction_samples
        if self._pending_nbytes >= TRANSACTION_NBYTES or (most and self.num_samples - self._num_begun >= most):
            self._begin_commit()

    def rows(self) -> pa.RecordBatch:
        """Return the rows of the samples added so far; offsets count from the first byte of their record."""
        return self._spool.rows()

    def finish(self) -> None:
        """Commit the rest, and write the rows for the index.

        Raises:
            DiskFullError: No room left.
            CorruptError: The data file differs from what was written.
        """
        self._begin_commit()
        self._wait()
        with explain_full_disk(self.folder, lambda: _ROW_NBYTES * self.num_samples):
            with naming(self._data):
                at = self._harvest()
            self._env.close()
            self._spool.write_rows(self.folder / ROWS_FILE, at)
        self._spool.close()

    def close(self) -> None:
        """Close the LMDB environment, once no thread uses its map, and remove the temporary files."""
        pressed: KeyboardInterrupt | None = None
        while self._written is not None and not self._written.done():
            try:
                wait([self._written])
            except KeyboardInterrupt as again:
                pressed = again
        self._thread.shutdown()
        self._env.close()
        self._spool.close()
        if pressed is not None:
            raise pressed

    def _missing_nbytes(self, in_memory: int = 0) -> int:
        """Return about how many bytes of the data file are still to be written, at least those in memory."""
        return max(self._expected_nbytes - self._data.stat().st_size, in_memory or self._pending_nbytes)

    def _put(self, key: bytes, value: Any) -> None:
        self._pending.append((key, value))
        self._pending_nbytes += len(value)

    def _begin_commit(self) -> None:
        """Begin a transaction with everything pending, once the one before is written."""
        self._wait()
        if self._pending:
            records, nbytes, self._num_begun = self._pending, self._pending_nbytes, self.num_samples
            self._pending, self._pending_nbytes = [], 0
            advice = "Writing always needs this thread: close other programs."
            with explain_limit("writing a dataset: thread 1 of 1", advice):
                self._written = self._thread.submit(self._commit, records, nbytes, self._num_begun)

    def _wait(self) -> None:
        """Wait for the transaction that has begun, and raise its error."""
        if self._written is not None:
            self._written.result()
            self._written = None

    def _commit(self, records: Sequence[tuple[bytes, Any]], nbytes: int, num_samples: int) -> None:
        """Write records in one transaction; if the map is too small, grow it and start over."""
        progress = json.dumps({"num_samples": num_samples}).encode()
        while True:
            try:
                with self._explain_lmdb(nbytes), self._env.begin(write=True) as transaction:
                    for key, value in records:
                        transaction.put(key, value)
                    transaction.put(PROGRESS_KEY, progress)
                break
            except lmdb.MapFullError:
                # The transaction was aborted: put all of its records again.
                size = self._env.info()["map_size"]
                size = _whole_pages(max(size + size // 2, size + 2 * nbytes))
                with self._explain_lmdb(nbytes, size):
                    self._env.set_mapsize(size)
        self.num_committed = num_samples

    @contextmanager
    def _explain_lmdb(self, nbytes: int, map_nbytes: int = 0) -> Iterator[None]:
        """Turn LMDB's errors for "no space left" into DiskFullError; it reports a write cut short as an I/O error.

        Args:
            nbytes: Bytes to write.
            map_nbytes: Bytes to map; 0 if the block maps nothing.
        """
        try:
            yield
        except lmdb.MapFullError:
            raise
        except lmdb.MemoryError as error:
            if not map_nbytes:
                raise
            advice = "Writing a dataset maps each part, and half as much again."
            raise DestinationError(no_address_space(self._data, map_nbytes, advice)) from error
        except lmdb.Error as error:
            short_write = system.means(errno.EIO, str(error))
            is_full = any(system.means(code, str(error)) for code in DISK_FULL)
            if is_full or (short_write and has_no_room(self._data, nbytes)):
                raise disk_full(self.folder, error, self._missing_nbytes(nbytes)) from error
            if short_write:
                raise disk_failed(self._data, error) from error
            raise

    def _harvest(self) -> npt.NDArray[np.int64]:
        """Return the offset of each block's value in the data file."""
        with self._env.begin(buffers=True) as transaction:
            at = [at for key, _, at in places(transaction, self._data) if len(key) == RECORD_KEY_NBYTES]
        if len(at) != len(self._spool.blocks()):
            raise CorruptError(f"{self._data}: {len(at)} records, expected {len(self._spool.blocks())}")
        return np.array(at, np.int64)


def num_committed(partial: Path) -> int | None:
    """Return how many samples the last transaction left in a part that is being written; None if its file is damaged.

    Only data on the disk counts: after a failed write, the page cache may hold more.

    Raises:
        OSError: The disk cannot read the file.
    """
    data = partial / DATA_FILE
    if not data.exists():
        return 0
    with naming(data), open(data, "rb", buffering=0) as file:
        system.drop_cache(file.fileno())
        read_digest(file.fileno())  # before LMDB maps it
    try:
        # A power cut may leave any content in LMDB's first pages, and any file length.
        if not has_transactions(data) or page_problems(data):
            return None
        with reading(data) as transaction:
            return int(json.loads(bytes(transaction.get(PROGRESS_KEY, b"")))["num_samples"])
    except (lmdb.Error, ValueError, LookupError, TypeError):
        return None


def _spool_records(transaction: lmdb.Transaction, spool: Spool, schema: pa.Schema, where: Path) -> None:
    """Append the index rows of all records to a spool; offsets count from the first byte of their record.

    Every record's checksum is verified before it is parsed. The rows and their order are those of the conversion that
    wrote the records, so `Spool.write` makes the same index.

    Raises:
        CorruptError: A record is damaged or missing, or has another schema.
    """
    if not _is_schema(transaction.get(SCHEMA_KEY, b""), schema):
        raise CorruptError(f"{where}: its records do not have the expected schema ({', '.join(schema.names)})")
    for key, value in transaction.cursor():
        if len(key) != RECORD_KEY_NBYTES:
            continue
        first, expected = parse_record_key(bytes(key))
        here = f"{where}: record of samples from {first}"
        if first != spool.num_samples:
            raise CorruptError(f"{here}: expected the one from {spool.num_samples}; a record is missing")
        count, columns = decode_block(value, schema, spool.fields, expected, here)
        spool.add_columns(columns, count, [count])


def _is_schema(stored: Any, schema: pa.Schema) -> bool:
    """Return whether a serialized schema equals `schema`; its bytes depend on Arrow's release."""
    try:
        return bool(pa.ipc.read_schema(pa.py_buffer(bytes(stored))).equals(schema))
    except (pa.ArrowException, OSError):
        return False
