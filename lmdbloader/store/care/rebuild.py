"""Rebuilds a lost index or manifest of a dataset from its data.mdb."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from lmdbloader.base import system
from lmdbloader.base.disk_errors import explain_full_disk, naming
from lmdbloader.base.text import counted
from lmdbloader.errors import CorruptError, DestinationError, FormatError, LockedError
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
from lmdbloader.store.care.pages import find_description
from lmdbloader.store.index import Index
from lmdbloader.store.lmdb_file import explain_lmdb, list_values, reading
from lmdbloader.store.lmdb_records import spool_records
from lmdbloader.store.opening import DataFile, map_file, read_manifest
from lmdbloader.store.spool import Spool
from lmdbloader.store.writing.publish import COLUMNS_FOLDER, REPAIR_FOLDER, flush
from lmdbloader.store.writing.writer import make_manifest


def what_is_known(folder: Path, damaged: Collection[str], advice: str) -> tuple[Description, Manifest | None]:
    """Return a dataset's description and manifest; if the manifest is lost, the description in data.mdb and None."""
    manifest = None
    with suppress(FormatError, CorruptError):
        manifest = read_manifest(folder)
    if manifest is not None and MANIFEST_FILE not in damaged:
        return manifest.description, manifest
    description = None
    if (folder / DATA_FILE).is_file():
        data = DataFile(folder / DATA_FILE, "pread")
        description = find_description(data.descriptor, str(folder))
    if manifest is not None and description in (None, manifest.description):
        return description or manifest.description, manifest  # only its text was changed
    if manifest is not None or description is None:
        raise CorruptError(f"{folder}: cannot be repaired. {advice}", path=str(folder))
    return description, None


def rebuild(
    folder: Path, description: Description, manifest: Manifest | None, damaged: Collection[str]
) -> tuple[str, ...]:
    """Rebuild index.arrow and the manifest from data.mdb, if they are damaged or contradict each other.

    Each is replaced in one step once the new one is complete and on the disk; data.mdb is only read.

    Args:
        folder: The dataset, whose data.mdb must be intact.
        description: The dataset's.
        manifest: Its manifest; None if it is lost, and then the index is replaced too.
        damaged: Names of the files that are missing or were changed.

    Returns:
        The names of the files that were replaced.

    Raises:
        CorruptError: The records are not those of the dataset, or damaged.
        LockedError: Another process is repairing it.
        DestinationError: The folder cannot be written to.
        DiskFullError: No room left for the index.
    """
    with work_folder(folder) as work, explain_full_disk(folder):
        made = _make(folder / DATA_FILE, description, work)
        Index(work, made, made.sizes["data_nbytes"], map_file(work / INDEX_FILE))
        if manifest is None:
            names = [INDEX_FILE, MANIFEST_FILE]
        elif made.content_digest != manifest.content_digest:
            raise CorruptError(
                f"{folder / DATA_FILE}: the content digest of its records is {made.content_digest}, expected "
                f"{manifest.content_digest}: they are not those of this dataset. Restore it from a copy."
            )
        else:
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
    """Return what a manifest states of the samples, which may have been edited together with its digest."""
    return manifest.num_samples, dict(manifest.sizes)


def _make(data: Path, description: Description, work: Path) -> Manifest:
    """Write an index into the folder `work`; return the manifest that belongs to it."""
    with naming(data):
        places = np.array([at for key, at, _ in list_values(data) if len(key) == RECORD_KEY_NBYTES], np.int64)
    schema = record_schema(description.fields, with_source=description.with_source)
    with_source = description.with_source
    spool = Spool(work / COLUMNS_FOLDER, description.fields, with_source=with_source, is_settled=True)
    try:
        with explain_lmdb(data), reading(data) as transaction:
            spool_records(transaction, spool, schema, data)
            if bytes(transaction.get(PROGRESS_KEY, b"")) != progress_value(spool.num_samples):
                raise CorruptError(
                    f"{data}: holds {counted(spool.num_samples, 'sample')}; its progress entry states another number"
                )
        spool.write(work / INDEX_FILE, places)
        return make_manifest(description, spool, work / INDEX_FILE, data)
    finally:
        spool.close()


def _put_in_place(work: Path, folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if (folder / name).is_dir():
            raise DestinationError(f"{folder / name}: is a folder. Move it away.")
    for name in names:
        flush(work / name)
    for name in names:
        os.replace(work / name, folder / name)
    flush(folder)


@contextmanager
def work_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder within a dataset, which is locked meanwhile; it is removed afterwards."""
    lock = system.open_folder(folder, follow=True)
    try:
        try:
            system.lock(lock)
        except OSError as error:
            raise LockedError(
                f"{folder}: cannot be locked ({error.strerror}). Is it being repaired already?"
            ) from error
        work = folder / REPAIR_FOLDER
        shutil.rmtree(work, ignore_errors=True)  # left by a process that was killed
        try:
            work.mkdir()
        except OSError as error:
            raise DestinationError(
                f"{folder}: cannot be written to ({error.strerror}). Repair a copy of it."
            ) from error
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)
    finally:
        os.close(lock)
