"""Makes the index and the manifest of a dataset anew from the records in its data.mdb, and puts them in place."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import lmdb
import numpy as np

from lmdbloader.errors import CorruptError, DestinationError, LockedError
from lmdbloader.format.layout import (
    DATA_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    PROGRESS_KEY,
    RECORD_KEY_NBYTES,
    progress_value,
    record_schema,
)
from lmdbloader.format.manifest import Description, Manifest
from lmdbloader.store.care.recovery import spool_records
from lmdbloader.store.diskerrors import explain_lmdb, naming
from lmdbloader.store.foreign import list_values
from lmdbloader.store.index import Index, Spool
from lmdbloader.store.opening import map_file
from lmdbloader.store.writing.digest import make_manifest
from lmdbloader.store.writing.publish import COLUMNS_FOLDER, REPAIR_FOLDER, explain_full_disk, fsync


def rebuild(
    folder: Path, description: Description, manifest: Manifest | None, damaged: Collection[str]
) -> tuple[str, ...]:
    """Make index.arrow and the manifest anew from data.mdb, where they are damaged or do not describe each other.

    Each is put in place in one step once it is complete and on the disk; data.mdb is only read.

    Args:
        folder: The dataset, whose data.mdb must be sound.
        description: What it is.
        manifest: Its manifest, None where that is lost: then nothing tells whether the index is sound.
        damaged: Names of the files that are not as they were written.

    Returns:
        The names of the files that were replaced.

    Raises:
        CorruptError: The records are not those of the dataset, or damaged.
        LockedError: Another process is mending it.
        DestinationError: The folder cannot be written to.
        DiskFullError: There is no room for the index.
    """
    with _work_folder(folder) as work, explain_full_disk(folder):
        made = _make(folder / DATA_FILE, description, work)
        Index(work, made, made.sizes["data_nbytes"], map_file(work / INDEX_FILE))
        if manifest is None:
            names = [INDEX_FILE, MANIFEST_FILE]
        elif made.content_digest != manifest.content_digest:
            raise CorruptError(
                f"{folder / DATA_FILE}: the content digest of its records is {made.content_digest}, the manifest says "
                f"{manifest.content_digest}: they are not those of this dataset. Restore it from a copy."
            )
        else:
            made = dataclasses.replace(made, data_digest=manifest.data_digest)  # there was not always one
            is_same_index = made.index_digest == manifest.index_digest
            # Another release of Arrow writes the same index with other bytes.
            names = [INDEX_FILE] if INDEX_FILE in damaged or not is_same_index else []
            if MANIFEST_FILE in damaged or not is_same_index or _facts(made) != _facts(manifest):
                names.append(MANIFEST_FILE)
        with naming(work / MANIFEST_FILE):
            (work / MANIFEST_FILE).write_bytes(made.to_json())
        _put_in_place(work, folder, names)
    return tuple(names)


def _facts(manifest: Manifest) -> tuple[int, dict[str, int]]:
    """Return what a manifest counts: somebody may have changed that, and made its digest fit."""
    return manifest.num_samples, dict(manifest.sizes)


def _make(data: Path, description: Description, work: Path) -> Manifest:
    """Write an index into the folder `work`; return the manifest that belongs to it."""
    with naming(data):
        places = np.array([at for key, at, _ in list_values(data) if len(key) == RECORD_KEY_NBYTES], np.int64)
    schema = record_schema(description.fields, with_source=description.with_source)
    spool = Spool(work / COLUMNS_FOLDER, description.fields, with_source=description.with_source)
    try:
        with (
            explain_lmdb(data),
            lmdb.open(os.fsencode(data), subdir=False, readonly=True, lock=False, readahead=True) as env,
            env.begin(buffers=True) as transaction,
        ):
            spool_records(transaction, spool, schema, data)
            if bytes(transaction.get(PROGRESS_KEY, b"")) != progress_value(spool.num_samples):
                raise CorruptError(f"{data}: holds {spool.num_samples} samples, which is not what its progress says")
        spool.write(work / INDEX_FILE, places)
        return make_manifest(description, spool, work / INDEX_FILE, data)
    finally:
        spool.close()


def _put_in_place(work: Path, folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if (folder / name).is_dir():
            raise DestinationError(f"{folder / name}: is a folder. Move it away.")
    for name in names:
        fsync(work / name)
    for name in names:
        os.rename(work / name, folder / name)
    fsync(folder)


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder within a dataset, which is locked meanwhile; it is removed afterwards."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LockedError(f"{folder}: cannot be locked ({error.strerror}). Is it being mended already?") from error
        work = folder / REPAIR_FOLDER
        shutil.rmtree(work, ignore_errors=True)  # of a process that was killed
        try:
            work.mkdir()
        except OSError as error:
            raise DestinationError(f"{folder}: cannot be written to ({error.strerror}). Mend a copy of it.") from error
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)
    finally:
        os.close(lock)
