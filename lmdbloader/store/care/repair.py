"""Repairs a dataset: rebuilds a lost index or manifest in place, or writes its intact samples to a new dataset."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.base import system
from lmdbloader.base.arguments import local_path, new_path
from lmdbloader.base.disk_errors import explain_full_disk, naming
from lmdbloader.base.foreign_names import REPAIR, understands
from lmdbloader.base.text import plain, table
from lmdbloader.errors import CorruptError, DestinationError, FormatError, LockedError
from lmdbloader.format.layout import (
    DATA_FILE,
    INDEX_FILE,
    LEFT_OUT_FILE,
    MANIFEST_FILE,
    PROGRESS_KEY,
    RECORD_KEY_NBYTES,
    SKIPPED_FILE,
    progress_value,
    record_schema,
)
from lmdbloader.format.manifest import Description, Manifest
from lmdbloader.store.care.pages import find_description, find_num_samples
from lmdbloader.store.care.salvage import RecordSalvage
from lmdbloader.store.care.verify import Verification, verify
from lmdbloader.store.contents import check_scheme
from lmdbloader.store.copying import copied_samples
from lmdbloader.store.damage import Damage
from lmdbloader.store.index import Index
from lmdbloader.store.lmdb_file import explain_lmdb, list_values, reading
from lmdbloader.store.lmdb_records import spool_records
from lmdbloader.store.opening import DataFile, map_file, open_index, read_manifest
from lmdbloader.store.reader import Reader
from lmdbloader.store.records import Chunk, encode_blocks
from lmdbloader.store.spool import Spool
from lmdbloader.store.writing.ownership import is_own_file, open_own_file
from lmdbloader.store.writing.publish import COLUMNS_FOLDER, REPAIR_FOLDER, flush
from lmdbloader.store.writing.writer import estimate_map_nbytes, make_manifest, open_writer

_NOT_KNOWN = "the number of missing samples is unknown, because the remaining data does not state how many there were"
_LOST = "their record is damaged, and there is no index"


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of `repair`.

    Attributes:
        found: The faults of the dataset.
        replaced: Names of the files of the dataset that were rebuilt in place.
        out: The new dataset, None if none was needed.
        num_samples: Samples in the repaired or new dataset.
        left_out: The damaged values that the new dataset lacks, one for each damaged field of a sample.
        may_lack_more: Whether the new dataset may lack other samples too, because their number is unknown.
    """

    found: Verification
    replaced: tuple[str, ...]
    out: Path | None
    num_samples: int
    left_out: tuple[Damage, ...]
    may_lack_more: bool = False


@understands(REPAIR)
def repair(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[int], None] = lambda done: None,
    log: Callable[[str], None] = lambda line: None,
) -> Repair:
    """Repair a dataset.

    A lost or damaged index or manifest is rebuilt from data.mdb and replaced in one step. If data.mdb itself is
    damaged, it stays unchanged, and its sound samples are copied to a new dataset without being encoded again. A sound
    dataset is left alone.

    Args:
        path: The dataset's.
        out: The new dataset's, needed if data.mdb is damaged; nothing is written there otherwise.
        progress: Called with the number of samples checked since the last call.
        log: Called with each message, a line of text: all faults, and the repairs.

    Returns:
        The repaired files, and the samples that had to be left out.

    Raises:
        NotFoundError: There is nothing at `path`.
        FormatError: It is not a finished dataset of this format version, or a newer release made it and this one
            cannot check all of it.
        CorruptError: It cannot be repaired, or not without `out`; the message gives the reason.
        DestinationError: `out` exists already, or cannot be written.
        DiskFullError: No room left.
    """
    folder = local_path("path", path).absolute()
    target = None if out is None else _check_out(new_path("out", out), folder)
    found = verify(path, progress=progress)
    for line in (*(f"{folder}: {problem}" for problem in found.problems), *map(str, found.damaged)):
        log(line)
    if found.is_sound:
        log(plain(f"{folder}: is sound, nothing was done"))
        return Repair(found, (), None, found.num_samples, ())
    description, manifest = _what_is_known(folder, found)
    if DATA_FILE not in found.files and {INDEX_FILE, MANIFEST_FILE} & set(found.files):
        replaced = rebuild(folder, description, manifest, found.files)
        log(plain(f"{folder}: {' and '.join(replaced)} rebuilt from {DATA_FILE}"))
        return Repair(found, replaced, None, read_manifest(folder).num_samples, ())
    if DATA_FILE not in found.files or not (folder / DATA_FILE).is_file():
        raise CorruptError(f"{folder}: cannot be repaired. {found.advice}", path=str(folder))
    if target is None:
        raise CorruptError(f"{folder}: {DATA_FILE} is damaged, and is never changed. {found.advice}", path=str(folder))
    if manifest and INDEX_FILE not in found.files:
        return _write_sound(folder, manifest, found, target, log)
    return _write_salvaged(folder, description, manifest, found, target, log)


def _check_out(out: Path, folder: Path) -> Path:
    if out.exists() or out.is_symlink():
        raise DestinationError(f"{out}: is there already. Choose another name for the new dataset.")
    if Path(os.path.realpath(folder)) in Path(os.path.realpath(out)).parents:
        raise DestinationError(f"{out}: is inside {folder}. Choose a folder outside of it.")
    return out


def _what_is_known(folder: Path, found: Verification) -> tuple[Description, Manifest | None]:
    """Return a dataset's description and manifest; if the manifest is lost, the description in data.mdb and None."""
    manifest = None
    with suppress(FormatError, CorruptError):
        manifest = read_manifest(folder)
    if manifest is not None and MANIFEST_FILE not in found.files:
        return manifest.description, manifest
    description = None
    if (folder / DATA_FILE).is_file():
        data = DataFile(folder / DATA_FILE, "pread")
        description = find_description(data.descriptor, str(folder))
    if description:
        check_scheme(description.content_scheme, folder / DATA_FILE)
    if manifest is not None and description in (None, manifest.description):
        return description or manifest.description, manifest  # only its text was changed
    if manifest is not None or description is None:
        raise CorruptError(f"{folder}: cannot be repaired. {found.advice}", path=str(folder))
    return description, None


def _write_sound(
    folder: Path, manifest: Manifest, found: Verification, out: Path, log: Callable[[str], None]
) -> Repair:
    """Write the samples of the index that can be read."""
    content = open_index(folder / INDEX_FILE, "pread", manifest.sizes["index_nbytes"])
    index = Index(folder, manifest, manifest.sizes["data_nbytes"], content)
    reader = Reader.of_files(folder, manifest, DataFile(folder / DATA_FILE, "pread"), index)
    rows = np.delete(np.arange(len(reader)), sorted({damage.sample for damage in found.damaged}))
    chunks = copied_samples(reader, rows)
    hint = (
        f" If {INDEX_FILE} and {MANIFEST_FILE} came from another dataset than {DATA_FILE}: remove {MANIFEST_FILE} and "
        f"{INDEX_FILE}, and repair it again to save the samples in {DATA_FILE}."
    )
    num_samples = _write(folder, manifest.description, chunks, lambda: found.damaged, out, hint=hint)
    return _report(folder, Repair(found, (), out, num_samples, found.damaged), log)


def _write_salvaged(
    folder: Path,
    description: Description,
    manifest: Manifest | None,
    found: Verification,
    out: Path,
    log: Callable[[str], None],
) -> Repair:
    """Write the samples of all records on the pages of data.mdb."""
    salvage = RecordSalvage(folder, description, _num_samples(folder, description, manifest))

    def left_out() -> tuple[Damage, ...]:
        return tuple(Damage(sample, "all", None, _LOST) for lost in salvage.lost for sample in lost)

    num_samples = _write(folder, description, salvage.chunks(), left_out, out, lambda: salvage.may_lack_more)
    if manifest and not left_out() and read_manifest(out).content_digest != manifest.content_digest:
        shutil.rmtree(out)
        raise CorruptError(
            f"{folder}: cannot be repaired: the records in {DATA_FILE} are intact, but not those of the dataset in "
            f"{MANIFEST_FILE}. Put back the right {DATA_FILE}; or remove {MANIFEST_FILE} to repair the dataset that "
            f"{DATA_FILE} holds.",
            path=str(folder),
        )
    for lost in salvage.lost:
        log(f"samples {lost.start} to {lost.stop - 1}: {_LOST}")
    return _report(folder, Repair(found, (), out, num_samples, left_out(), salvage.may_lack_more), log)


def _num_samples(folder: Path, description: Description, manifest: Manifest | None) -> int | None:
    """Return how many samples there were, None if unknown: nothing states it, or the statements differ."""
    stated = {manifest.num_samples} if manifest else set()
    data = DataFile(folder / DATA_FILE, "pread")
    if (found := find_num_samples(data.descriptor, description)) is not None:
        stated.add(found)
    return stated.pop() if len(stated) == 1 else None


def _write(
    folder: Path,
    description: Description,
    chunks: Iterator[Chunk],
    left_out: Callable[[], Sequence[Damage]],
    out: Path,
    may_lack_more: Callable[[], bool] = lambda: False,
    *,
    hint: str = "",
) -> int:
    """Write samples as a new dataset; return their number.

    Args:
        folder: The damaged dataset.
        description: The dataset's.
        chunks: The samples.
        left_out: Returns the damaged values that they lack, once all of them were taken.
        out: The new dataset.
        may_lack_more: Returns whether they lack others too, once all of them were taken.
        hint: Appended to the error that there is not one intact sample.
    """
    nbytes = (folder / DATA_FILE).stat().st_size
    fields, with_source = description.fields, description.with_source
    map_nbytes = estimate_map_nbytes(nbytes, nbytes / 4096)
    with open_writer(out, fields, with_source=with_source, map_nbytes=map_nbytes) as writer:
        for chunk in chunks:
            writer.add(chunk, encode_blocks(chunk, fields, with_source=with_source))
        if not writer.num_samples and (left_out() or may_lack_more()):
            raise CorruptError(
                f"{folder}: not one of its samples is sound. Restore it from a copy, or convert again.{hint}"
            )
        made_by: dict[str, Any] = dict(description.made_by)
        # The inputs in the manifest must show that the dataset does not hold all of them.
        lacks: dict[str, Any] = {}
        if damaged := left_out():
            rows = [(str(d.sample), d.field, d.source or "", d.reason) for d in damaged]
            writer.add_file(LEFT_OUT_FILE, table([("sample", "field", "source", "reason"), *rows]))
            lacks["left_out"] = len({d.sample for d in damaged})
        if may_lack_more():
            lacks["may_lack_more"] = True
        if lacks:
            inputs = made_by.get("inputs")
            made_by["inputs"] = {**(inputs if isinstance(inputs, dict) else {}), **lacks}
        if is_own_file(folder / SKIPPED_FILE):
            with open(open_own_file(folder / SKIPPED_FILE), "rb") as skipped:
                writer.add_file(SKIPPED_FILE, skipped.read())
        digest, scheme = description.digest, description.content_scheme
        return writer.finish(classes=description.classes, made_by=made_by, digest=digest, scheme=scheme).num_samples


def _report(folder: Path, done: Repair, log: Callable[[str], None]) -> Repair:
    lost = len({damage.sample for damage in done.left_out})
    listed = f"; {lost} left out, listed in {done.out}/{LEFT_OUT_FILE}" if lost else ""
    unknown = f"; {_NOT_KNOWN}" if done.may_lack_more else ""
    log(plain(f"{done.out}: written, {done.num_samples} samples of {folder}{listed}{unknown}"))
    return done


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
    with _work_folder(folder) as work, explain_full_disk(folder):
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
            made = dataclasses.replace(made, data_digest=manifest.data_digest)  # older manifests have none
            is_same_index = made.index_digest == manifest.index_digest
            # Another release of Arrow writes the same index with other bytes.
            names = [INDEX_FILE] if INDEX_FILE in damaged or not is_same_index else []
            if MANIFEST_FILE in damaged or not is_same_index or _facts(made) != _facts(manifest):
                names.append(MANIFEST_FILE)
        with naming(work / MANIFEST_FILE):
            (work / MANIFEST_FILE).write_bytes(made.to_json())
        _put_in_place(work, folder, names)
    return tuple(names)


def _facts(manifest: Manifest) -> tuple[int, dict[str, int], dict[str, str]]:
    """Return what a manifest states of the samples, which may have been edited together with its digest."""
    return manifest.num_samples, dict(manifest.sizes), dict(manifest.column_digests)


def _make(data: Path, description: Description, work: Path) -> Manifest:
    """Write an index into the folder `work`; return the manifest that belongs to it."""
    with naming(data):
        places = np.array([at for key, at, _ in list_values(data) if len(key) == RECORD_KEY_NBYTES], np.int64)
    schema = record_schema(description.fields, with_source=description.with_source)
    fields, features = description.fields, description.features
    with_source = description.with_source
    spool = Spool(work / COLUMNS_FOLDER, fields, with_source=with_source, features=features, is_settled=True)
    try:
        with explain_lmdb(data), reading(data) as transaction:
            spool_records(transaction, spool, schema, data)
            if bytes(transaction.get(PROGRESS_KEY, b"")) != progress_value(spool.num_samples):
                raise CorruptError(
                    f"{data}: holds {spool.num_samples} samples; its progress entry states another number"
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
        system.replace_file(work / name, folder / name)
    flush(folder)


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
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
        system.close(lock)
