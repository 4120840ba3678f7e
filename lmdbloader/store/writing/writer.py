"""Writes a dataset: record batches in durable LMDB transactions, then the index and the manifest."""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmdbloader.base import system
from lmdbloader.base.disk_errors import DISK_FULL, disk_failed, disk_full, explain_full_disk, has_no_room, naming
from lmdbloader.base.limits import no_address_space
from lmdbloader.base.text import counted
from lmdbloader.errors import CorruptError, DestinationError
from lmdbloader.format.codecs import checksum
from lmdbloader.format.digests import digest_of_file, read_digest
from lmdbloader.format.layout import (
    DATA_FILE,
    DESCRIPTION_KEY,
    INDEX_FILE,
    LEFT_OUT_FILE,
    MANIFEST_FILE,
    PROGRESS_KEY,
    RECORD_KEY_NBYTES,
    SCHEMA_KEY,
    SKIPPED_FILE,
    SOURCES_FILE,
    Field,
    parse_record_key,
    progress_value,
    record_key,
    record_schema,
)
from lmdbloader.format.manifest import Description, Manifest
from lmdbloader.store.lmdb_records import delete_records, records, spool_records
from lmdbloader.store.opening import map_file
from lmdbloader.store.records import Block, Chunk, chained
from lmdbloader.store.spool import Spool, content_digest
from lmdbloader.store.writing.publish import (
    COLUMNS_FOLDER,
    flush,
    partial_folder,
    put_in_place,
)

# In a transaction this large, fsync takes little time compared with writing the bytes.
TRANSACTION_NBYTES = 16 * 2**20
_MIN_MAP_NBYTES = 2**20
_PAGE_NBYTES = 4096
_MAP_SPARE = 1.25
# About the bytes of a sample with one image in the index.
_INDEX_ROW_NBYTES = 60


def estimate_map_nbytes(payload_nbytes: float, num_samples: float) -> int:
    """Return a map size for a dataset of about these payload bytes and samples, with a quarter to spare."""
    needed = payload_nbytes * 1.08 + num_samples * 64
    return _whole_pages(math.ceil(needed * _MAP_SPARE) + _MIN_MAP_NBYTES)


def map_nbytes_of(data_nbytes: float, most: float) -> int:
    """Return a map size for a data file of about this size, with a quarter to spare, and at most another."""
    return _whole_pages(math.ceil(max(data_nbytes * _MAP_SPARE, most)) + _MIN_MAP_NBYTES)


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE_NBYTES) * _PAGE_NBYTES


@dataclass(frozen=True, slots=True)
class Written:
    """Facts about a dataset that was just written.

    Attributes:
        num_samples: Samples in it.
        sizes: Bytes, as in the manifest.
        map_growths: How often the map grew because the estimate was too small.
        content_digest: As in the manifest.
    """

    num_samples: int
    sizes: Mapping[str, int]
    map_growths: int
    content_digest: str


class Writer:
    """A dataset that is being written; use `open_writer`.

    Attributes:
        num_committed: Samples in committed transactions.
    """

    def __init__(
        self,
        partial: Path,
        out: Path,
        fields: Sequence[Field],
        *,
        with_source: bool,
        map_nbytes: int,
        expected_nbytes: int | None = None,
        keep_samples: int = 0,
        before_commit: Callable[[], None] = lambda: None,
        transaction_samples: int | None = None,
    ) -> None:
        """Open the data file and keep its first samples.

        Args:
            partial: The locked folder to write into.
            out: The future dataset.
            fields: Of every sample.
            with_source: Whether the index stores the source of each sample.
            map_nbytes: Estimated size of the whole data file, with a quarter to spare.
            expected_nbytes: Its size without that, for messages; by default it follows from `map_nbytes`.
            keep_samples: Number of samples in the data file to keep; it must be at the end of a record.
            before_commit: Called before each transaction; when it returns, its files must be on the disk.
            transaction_samples: A transaction is committed once it has 16 MiB, or so many samples.

        Raises:
            CorruptError: The samples to keep are not all there.
        """
        self.fields = tuple(fields)
        self.with_source = with_source
        self.map_growths = 0
        self._partial, self._out = partial, out
        self._before_commit = before_commit
        self._transaction_samples = transaction_samples
        self.num_committed = keep_samples
        # The `chained` checksum of the kept records.
        self.kept_records = 0
        self._expected_nbytes = int(map_nbytes / _MAP_SPARE) if expected_nbytes is None else expected_nbytes
        self._pending: list[tuple[bytes, Any]] = []
        self._pending_nbytes = 0
        self._schema = record_schema(fields, with_source=with_source)
        data = partial / DATA_FILE
        _remove_rest(partial, keep_data=keep_samples > 0)
        if keep_samples:
            map_nbytes = max(map_nbytes, data.stat().st_size + 2 * TRANSACTION_NBYTES)
        self._spool = Spool(partial / COLUMNS_FOLDER, fields, with_source=with_source)
        self._env = self._open(max(_whole_pages(map_nbytes), _MIN_MAP_NBYTES))
        try:
            # After a power cut, a transaction is of no use if its file's name is lost. And LMDB leaves its first two
            # pages to the first transaction, which may never finish.
            flush(data)
            flush(partial)
            if keep_samples:
                self._take_over(keep_samples)
            else:
                self._put(SCHEMA_KEY, self._schema.serialize())
        except BaseException:
            self.close()
            raise

    def _open(self, map_nbytes: int) -> lmdb.Environment:
        with self._explain_lmdb(map_nbytes):  # without LMDB's lock: the folder's own lock keeps others out
            path = os.fsencode(self._partial / DATA_FILE)
            return lmdb.open(path, subdir=False, map_size=map_nbytes, lock=False, readahead=False)

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
        with explain_full_disk(self._partial, self._missing_nbytes):
            self._spool.add(chunk, blocks)
        most = self._transaction_samples
        if self._pending_nbytes >= TRANSACTION_NBYTES or (most and self.num_samples - self.num_committed >= most):
            self._commit()

    def finish(
        self,
        *,
        classes: Mapping[str, Sequence[str]],
        made_by: Mapping[str, Any],
    ) -> Written:
        """Commit the rest, write index and manifest, and put the dataset in place.

        Args:
            classes, made_by: As in the manifest.

        Raises:
            DiskFullError: No room left.
            CorruptError: The files differ from the data that was written.
        """
        described = {name: tuple(names) for name, names in classes.items()}
        description = Description(self._spool.settled_fields(), self.with_source, described, made_by)
        self._put(DESCRIPTION_KEY, description.to_json())
        self._commit()
        with explain_full_disk(self._partial, lambda: _INDEX_ROW_NBYTES * self.num_samples):
            at = self._harvest()
            self._env.close()
            index_path = self._partial / INDEX_FILE
            self._spool.write(index_path, at)
            manifest = make_manifest(description, self._spool, index_path, self._partial / DATA_FILE)
            self._spool.close()
            with naming(self._partial / MANIFEST_FILE):
                (self._partial / MANIFEST_FILE).write_bytes(manifest.to_json())
            put_in_place(self._partial, self._out)
        return Written(self.num_samples, manifest.sizes, self.map_growths, manifest.content_digest)

    def stored(self, column: str, rows: range) -> npt.NDArray[Any] | list[str]:
        """Return some consecutive values of a column of the future index: of the samples added so far."""
        return self._spool.values(column, rows)

    def add_file(self, name: str, data: bytes) -> None:
        """Add a small file to the dataset's folder."""
        file = self._partial / name
        with explain_full_disk(self._partial, lambda: len(data) + self._missing_nbytes()), naming(file):
            file.write_bytes(data)

    def close(self) -> None:
        """Close the LMDB environment and remove the temporary files."""
        self._env.close()
        self._spool.close()

    def _take_over(self, keep_samples: int) -> None:
        with self._explain_lmdb(), self._env.begin(write=True) as transaction:
            delete_records(transaction, keep_samples)
            transaction.put(PROGRESS_KEY, progress_value(keep_samples))
        data = self._partial / DATA_FILE
        with explain_full_disk(self._partial, self._missing_nbytes), self._env.begin(buffers=True) as transaction:
            spool_records(transaction, self._spool, self._schema, data)
            for _, block_checksum, _ in records(transaction):
                self.kept_records = chained(self.kept_records, block_checksum)
        if self.num_samples != keep_samples:
            raise CorruptError(f"{data}: holds {counted(self.num_samples, 'sample')}, expected {keep_samples}")

    def _missing_nbytes(self) -> int:
        """Return about how many bytes of data.mdb are still to be written."""
        done = (self._partial / DATA_FILE).stat().st_size
        return max(self._expected_nbytes - done, self._pending_nbytes)

    def _put(self, key: bytes, value: Any) -> None:
        self._pending.append((key, value))
        self._pending_nbytes += len(value)

    def _commit(self) -> None:
        """Write everything pending in one transaction; if the map is too small, grow it and start over."""
        if not self._pending:
            return
        with explain_full_disk(self._partial, self._missing_nbytes):
            self._before_commit()
        progress = progress_value(self.num_samples)
        while True:
            try:
                with self._explain_lmdb(), self._env.begin(write=True) as transaction:
                    for key, value in self._pending:
                        transaction.put(key, value)
                    transaction.put(PROGRESS_KEY, progress)
                break
            except lmdb.MapFullError:
                # The transaction was aborted: put all of its records again.
                size = self._env.info()["map_size"]
                size = _whole_pages(max(size + size // 2, size + 2 * self._pending_nbytes))
                with self._explain_lmdb(size):
                    self._env.set_mapsize(size)
                self.map_growths += 1
        self._pending, self._pending_nbytes = [], 0
        self.num_committed = self.num_samples

    @contextmanager
    def _explain_lmdb(self, map_nbytes: int = 0) -> Iterator[None]:
        """Turn LMDB's errors for "no space left" into DiskFullError; it reports a write cut short as an I/O error.

        Args:
            map_nbytes: Bytes to map; 0 if the block maps nothing.
        """
        try:
            yield
        except lmdb.MapFullError:
            raise
        except lmdb.MemoryError as error:
            if not map_nbytes:
                raise
            advice = "Writing a dataset maps it, and half as much again."
            raise DestinationError(no_address_space(self._partial / DATA_FILE, map_nbytes, advice)) from error
        except lmdb.Error as error:
            short_write = system.means(errno.EIO, str(error))
            data = self._partial / DATA_FILE
            is_full = any(system.means(code, str(error)) for code in DISK_FULL)
            if is_full or (short_write and has_no_room(data, self._pending_nbytes)):
                raise disk_full(self._partial, error, self._missing_nbytes()) from error
            if short_write:
                raise disk_failed(data, error) from error
            raise

    def _harvest(self) -> npt.NDArray[np.int64]:
        """Return the offset of each block's value in data.mdb."""
        addresses, lengths, checksums = [], [], []
        with self._env.begin(buffers=True) as transaction:
            for key, value in transaction.cursor():
                if len(key) == RECORD_KEY_NBYTES:
                    addresses.append(np.frombuffer(value, np.uint8).ctypes.data)
                    lengths.append(len(value))
                    checksums.append(parse_record_key(bytes(key))[1])
            if len(addresses) != len(self._spool.blocks()):
                raise CorruptError(
                    f"{self._partial}: {len(addresses)} records in data.mdb, expected {len(self._spool.blocks())}"
                )
            if not addresses:
                return np.empty(0, np.int64)
            first_value = bytes(next(value for key, value in transaction.cursor() if len(key) == RECORD_KEY_NBYTES))
        data = map_file(self._partial / DATA_FILE)
        relative = np.array(addresses, np.uint64).astype(np.int64) - np.int64(addresses[0])
        # LMDB does not expose the start of its map. One value found in the file gives it; as a freed page may hold an
        # older copy of that value, other values are checked too.
        at = -1
        while (at := data.find(first_value, at + 1)) >= 0:
            if _are_at(data, relative + at, lengths, checksums):
                return relative + at
        raise CorruptError(f"{self._partial}: a record that was just written is not in data.mdb")


def _remove_rest(partial: Path, *, keep_data: bool) -> None:
    """Remove the files of an unfinished dataset that are written again."""
    shutil.rmtree(partial / COLUMNS_FOLDER, ignore_errors=True)
    notes = (SKIPPED_FILE, LEFT_OUT_FILE, SOURCES_FILE)
    for name in (INDEX_FILE, MANIFEST_FILE, *notes, *(() if keep_data else (DATA_FILE,))):
        (partial / name).unlink(missing_ok=True)


def _are_at(data: Any, start: npt.NDArray[np.int64], nbytes: Sequence[int], checksums: Sequence[int]) -> bool:
    """Return whether up to 64 values, evenly spread, have their checksums at these offsets."""
    view = memoryview(data)
    for i in np.unique(np.linspace(0, len(start) - 1, 64).astype(int)).tolist():
        at, end = int(start[i]), int(start[i]) + nbytes[i]
        if at < 0 or end > len(view) or checksum(view[at:end]) != checksums[i]:
            return False
    return True


@contextmanager
def open_writer(
    out: Path,
    fields: Sequence[Field],
    *,
    with_source: bool,
    map_nbytes: int,
) -> Iterator[Writer]:
    """Yield a writer of a new dataset at `out`; an unfinished one leaves no files.

    Raises:
        DestinationError: Another process is writing there, or the parent folder is missing.
    """
    with (
        explain_full_disk(out),
        partial_folder(out) as partial,
        closing(Writer(partial, out, fields, with_source=with_source, map_nbytes=map_nbytes)) as writer,
    ):
        yield writer


def make_manifest(description: Description, spool: Spool, index: Path, data: Path) -> Manifest:
    """Return the manifest of a dataset.

    Args:
        description: Its facts that do not follow from the files.
        spool: The index's columns.
        index: index.arrow, as the spool has written it.
        data: The complete data.mdb.

    Raises:
        OSError: A file cannot be read.
    """
    content = map_file(index)
    batch = pa.ipc.open_file(pa.py_buffer(content)).get_batch(0)
    descriptor = system.open_to_read(data)
    try:
        with naming(data):
            data_digest = read_digest(descriptor)
    finally:
        os.close(descriptor)
    return description.manifest(
        num_samples=spool.num_samples,
        sizes={
            "payload_nbytes": spool.total("stored_nbytes"),
            "raw_nbytes": spool.total("raw_nbytes"),
            "data_nbytes": data.stat().st_size,
            "index_nbytes": len(content),
        },
        content_digest=content_digest(batch),
        index_digest=digest_of_file(content),
        data_digest=data_digest,
    )
