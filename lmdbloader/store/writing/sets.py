"""Writes the index and the manifest of a set, given its parts: complete datasets in one folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lmdbloader.base.disk_errors import explain_full_disk, naming
from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.format.digests import digest_of_file
from lmdbloader.format.layout import (
    DATA_FILE,
    MANIFEST_FILE,
    RECORD_KEY_NBYTES,
    Field,
    part_name,
    record_schema,
    set_index_file,
)
from lmdbloader.format.manifest import Description, Manifest, Part, part_begins
from lmdbloader.store.lmdb_file import explain_lmdb, list_values, reading
from lmdbloader.store.lmdb_records import spool_records
from lmdbloader.store.opening import I64, map_file, read_manifest
from lmdbloader.store.reader import Reader
from lmdbloader.store.spool import Spool, content_digest
from lmdbloader.store.writing.publish import COLUMNS_FOLDER, flush
from lmdbloader.store.writing.writer import Written

_ROWS_AT_ONCE = 2**16
_INDEX_ROW_NBYTES = 60
# The suffix of files until they are complete.
_NEW = ".new"


def write_set(
    folder: Path,
    names: Sequence[str],
    *,
    classes: Mapping[str, Sequence[str]],
    made_by: Mapping[str, Any],
    expected: str | None = None,
) -> Written:
    """Write the index and the manifest of a set.

    The manifest is replaced last, in one step; until then, a set that was there before stays as it is. The parts are
    not changed. The content digest is that of a single dataset with the same samples.

    Args:
        folder: The set.
        names: The names of its parts, in order: those of `part_name`, from 0 on.
        classes: The names of the classes, by field. The classes of each part must be the first of these.
        made_by: How the set was made, for the manifest.
        expected: The content digest that the set must have; otherwise nothing is put in place.

    Returns:
        A summary of the set.

    Raises:
        FormatError: The parts differ in their fields or classes, or one has no samples.
        CorruptError: A part is damaged, or the set does not have the expected content digest.
        DiskFullError: No room left.
    """
    if list(names) != [part_name(number) for number in range(len(names))]:
        raise FormatError(f"{folder}: parts with the names {list(names)!r:.80}, expected {part_name(0)} and so on")
    described = {name: tuple(of_field) for name, of_field in classes.items()}
    manifests = [read_manifest(folder / name) for name in names]
    _check_alike(folder, names, manifests, described)
    with_source = manifests[0].with_source
    fields = _settled([manifest.fields for manifest in manifests])
    parts = tuple(
        Part(name, theirs.num_samples, theirs.sizes.get("data_nbytes", 0), theirs.manifest_digest)
        for name, theirs in zip(names, manifests, strict=True)
    )
    shutil.rmtree(folder / COLUMNS_FOLDER, ignore_errors=True)
    spool = Spool(folder / COLUMNS_FOLDER, fields, with_source=with_source, is_settled=True)
    with (
        explain_full_disk(folder, lambda: _INDEX_ROW_NBYTES * sum(part.num_samples for part in parts)),
        closing(spool),
    ):
        begins = part_begins([part.data_nbytes for part in parts])
        shifts = [_add(spool, _open(folder, part), begin) for part, begin in zip(parts, begins[:-1], strict=True)]
        index = folder / f"{set_index_file(len(names))}{_NEW}"
        spool.write(index, np.concatenate(shifts))
        manifest = _manifest(Description(fields, with_source, described, made_by), spool, index, parts)
        _publish(folder, index, manifest, expected)
    return Written(manifest.num_samples, manifest.sizes, 0, manifest.content_digest)


def _manifest(description: Description, spool: Spool, index: Path, parts: tuple[Part, ...]) -> Manifest:
    """Return the manifest of a set whose index is written."""
    content = map_file(index)
    batch = pa.ipc.open_file(pa.py_buffer(content)).get_batch(0)
    return description.manifest(
        num_samples=spool.num_samples,
        sizes={
            "payload_nbytes": spool.total("stored_nbytes"),
            "raw_nbytes": spool.total("raw_nbytes"),
            "data_nbytes": sum(part.data_nbytes for part in parts),
            "index_nbytes": len(content),
        },
        content_digest=content_digest(batch),
        index_digest=digest_of_file(content),
        data_digest="",
        parts=parts,
    )


def _publish(folder: Path, index: Path, manifest: Manifest, expected: str | None) -> None:
    """Put the index of a set in place, then its manifest; raise CorruptError if the content digest is not expected."""
    if expected not in (None, manifest.content_digest):
        index.unlink()
        raise CorruptError(
            f"{folder}: the content digest of its parts is {manifest.content_digest}, expected {expected}: they belong "
            "to another set.",
            path=str(folder),
        )
    _put_in_place(index)
    text = folder / f"{MANIFEST_FILE}{_NEW}"
    with naming(text):
        text.write_bytes(manifest.to_json())
    _put_in_place(text)


def _put_in_place(fresh: Path) -> None:
    """Give a written file its name, durably."""
    flush(fresh)
    os.replace(fresh, fresh.with_name(fresh.name.removesuffix(_NEW)))
    flush(fresh.parent)


def _open(folder: Path, part: Part) -> Reader:
    """Open a part; only one is open at a time, because its index is in memory."""
    reader = Reader(folder / part.name, io="pread")
    if reader.manifest.manifest_digest != part.manifest_digest:
        raise CorruptError(f"{reader.path}: was changed while its set was made. Try again.", path=str(reader.path))
    return reader


def _check_alike(
    folder: Path, names: Sequence[str], manifests: Sequence[Manifest], classes: Mapping[str, tuple[str, ...]]
) -> None:
    """Raise FormatError unless datasets can be parts of one set."""
    first = manifests[0]
    for name, manifest in zip(names, manifests, strict=True):
        path = folder / name
        if manifest.parts:
            raise FormatError(f"{path}: is a set of parts itself, expected a dataset with one {DATA_FILE}")
        if not manifest.num_samples:
            raise FormatError(f"{path}: has no samples, expected at least one in each part of a set")
        for what, found, expected in (
            ("fields", _plain(manifest.fields), _plain(first.fields)),
            ("with_source", manifest.with_source, first.with_source),
            ("fields with classes", sorted(manifest.classes), sorted(classes)),
        ):
            if found != expected:
                raise FormatError(f"{path}: its {what}: {found!r:.200}, expected {expected!r:.200} as in the set")
        for field, known in manifest.classes.items():
            if classes[field][: len(known)] != known:
                raise FormatError(
                    f"{path}: its classes of {field} are {known!r:.200}, expected the first ones of "
                    f"{classes[field]!r:.200}"
                )


def _plain(fields: Sequence[Field]) -> tuple[Field, ...]:
    """Return fields without their codecs, which may differ: the index has the codec of each sample."""
    return tuple(replace(f, codec=None) for f in fields)


def _settled(fields_of_parts: Sequence[Sequence[Field]]) -> tuple[Field, ...]:
    """Return the fields of a set: a text field is stored in data.mdb if it is in at least one part."""
    columns = zip(*fields_of_parts, strict=True)
    return tuple(next((f for f in same if f.holds_text and f.is_payload), same[0]) for same in columns)


def _add(spool: Spool, reader: Reader, begin: int) -> I64:
    """Add the rows of a part; return what to add to the offsets of each block, (blocks,) int64."""
    index = reader.index
    places = _places_of_texts(spool, reader)
    counts = []
    for rows in _parts_of(len(reader)):
        columns: dict[str, Any] = {name: index.arrays[name][rows] for name in index.arrays}
        batch = index.batch.slice(rows.start, rows.stop - rows.start)
        columns |= {name: batch.column(name) for name in (*index.texts, *index.names)}
        for f in spool.fields:
            if f.holds_text and f.is_payload:
                numbers = np.arange(rows.start, rows.stop, dtype=np.int64)
                columns[f.name] = reader.read_texts(f.name, numbers)
                columns |= {name: column[rows] for name, column in places.get(f.name, {}).items()}
        counts.append(rows.stop - rows.start)
        spool.add_columns(columns, counts[-1], [counts[-1]])
    return np.full(len(counts), begin, np.int64)


def _parts_of(length: int) -> Iterator[slice]:
    return (slice(first, min(first + _ROWS_AT_ONCE, length)) for first in range(0, length, _ROWS_AT_ONCE))


def _places_of_texts(spool: Spool, reader: Reader) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    """Return the offsets and checksums of texts that are payloads in the set, but in this part's index alone."""
    lacking = [f.name for f in spool.fields if f.holds_text and f.is_payload and not reader.fields[f.name].is_payload]
    if not lacking:
        return {}
    schema = record_schema(reader.manifest.fields, with_source=reader.manifest.with_source)
    fields = [replace(f, codec="raw") if f.name in lacking else f for f in reader.manifest.fields]
    data = reader.path / DATA_FILE
    starts = np.array([at for key, at, _ in list_values(data) if len(key) == RECORD_KEY_NBYTES], np.int64)
    with closing(
        Spool(
            reader.path.parent / COLUMNS_FOLDER / "texts",
            fields,
            with_source=reader.manifest.with_source,
            is_settled=True,
        )
    ) as records:
        with explain_lmdb(data), reading(data) as transaction:
            spool_records(transaction, records, schema, data)
        shift = np.repeat(starts, records.blocks())
        return {
            name: {
                f"{name}.offset": records.column(f"{name}.offset") + shift,
                f"{name}.checksum": records.column(f"{name}.checksum").copy(),
            }
            for name in lacking
        }
