"""Joins the complete parts in OUT.partial: writes the index and the manifest of the dataset, and puts it in place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmdbloader.base.disk_errors import explain_full_disk
from lmdbloader.errors import CorruptError
from lmdbloader.format.digests import digest_of
from lmdbloader.format.index import (
    BLOCK_ROWS,
    NAMES,
    TEXT,
    ColumnAt,
    Facts,
    IndexLayout,
    TextsAt,
    digests_text,
    extremes_of,
    num_blocks,
)
from lmdbloader.format.layout import (
    CODEC_JPEG,
    CODEC_RAW,
    DATA_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    Field,
    data_file,
    index_columns,
)
from lmdbloader.format.manifest import Description, Manifest, Part, part_begins
from lmdbloader.store.index import Blocks
from lmdbloader.store.reader import Reader
from lmdbloader.store.spool import Spool, content_digest, is_number
from lmdbloader.store.writing.part import ROWS_FILE
from lmdbloader.store.writing.work import (
    PartFacts,
    Work,
    link,
    own_tag,
    part_folder,
    put_in_place,
    remove_work,
    write_file,
)

U8 = npt.NDArray[np.uint8]
_ROWS_AT_ONCE = 2**16
# About the bytes of a sample with one image in the index.
_ROW_NBYTES = 60


@dataclass(frozen=True, slots=True)
class Written:
    """Facts about a dataset that was just written.

    Attributes:
        num_samples: Samples in it.
        sizes: Bytes, as in the manifest.
        content_digest: As in the manifest.
    """

    num_samples: int
    sizes: Mapping[str, int]
    content_digest: str


def join(
    work: Work,
    facts: Sequence[PartFacts],
    description: Description,
    *,
    overwrite: bool = False,
    notes: Mapping[str, bytes] | None = None,
    before: Sequence[Reader] = (),
    expected: str | None = None,
    is_damaged: bool = False,
    is_settled: bool = False,
) -> Written:
    """Join the parts to a dataset, put it in place, and remove OUT.partial.

    Args:
        work: With the parts.
        facts: Of all parts in order; those without samples are left out.
        description: Of the dataset.
        overwrite: Whether a dataset may be replaced.
        notes: Small files of the dataset's folder, by name.
        before: Datasets whose parts come first; their files are linked, or copied where there are no links.
        expected: The content digest that the dataset must have.
        is_damaged: Whether the dataset that is replaced may have no manifest.
        is_settled: Whether texts are stored where the fields say, rather than where their lengths say.

    Raises:
        CorruptError: A part is damaged, or the content digest is not the expected one.
        DestinationError: `out` is taken.
        DiskFullError: No room left.
    """
    numbers = [number for number, found in enumerate(facts) if found.num_samples]
    parts = [Part(facts[n].num_samples, facts[n].data_nbytes, facts[n].data_digest) for n in numbers]
    rows = [(work.folder / part_folder(n), facts[n].rows_digest) for n in numbers]
    work.remove_abandoned()
    fresh = work.folder / f"dataset.new-{own_tag()}"
    try:
        with explain_full_disk(work.folder, lambda: _ROW_NBYTES * sum(part.num_samples for part in parts)):
            fresh.mkdir()
            # Before the digests of rows are compared: a part that another process replaces meanwhile is noticed.
            files = [reader.path / name for reader in before for name in reader.manifest.data_files]
            for place, file in enumerate([*files, *(folder / DATA_FILE for folder, _ in rows)]):
                link(file, fresh / data_file(place))
            manifest = _write_index(fresh, rows, parts, description, before, is_settled=is_settled)
            if expected not in (None, manifest.content_digest):
                found = manifest.content_digest
                raise CorruptError(f"the content digest of the records is {found}, expected {expected}.")
            for name, data in (notes or {}).items():
                write_file(fresh / name, data)
            write_file(fresh / MANIFEST_FILE, manifest.to_json())
        put_in_place(fresh, work.out, overwrite=overwrite, is_damaged=is_damaged)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    work.discard()
    remove_work(work.out)
    return Written(manifest.num_samples, manifest.sizes, manifest.content_digest)


def _write_index(
    folder: Path,
    rows: Sequence[tuple[Path, str]],
    parts: Sequence[Part],
    description: Description,
    before: Sequence[Reader],
    *,
    is_settled: bool,
) -> Manifest:
    """Write the index of all rows into a folder; return the manifest of the dataset, which is not written."""
    all_parts = [*(part for reader in before for part in reader.manifest.parts), *parts]
    begins = iter(part_begins([part.data_nbytes for part in all_parts]))
    fields = _settled(description.fields, before)
    # Not in the dataset's folder: NFS keeps files that were mapped for a while.
    columns = folder.with_name(f"columns.new-{own_tag()}")
    spool = Spool(columns, fields, with_source=description.with_source, is_settled=is_settled or bool(before))
    with closing(spool):
        shifts: list[int] = []
        for reader in before:
            shifts += _add_rows(spool, reader.index.batch, next(begins), reader)
            for _ in reader.manifest.parts[1:]:
                next(begins)
        for (of_part, digest), begin in zip(rows, begins, strict=False):
            shifts += _add_part(spool, of_part / ROWS_FILE, digest, begin)
        spool.write(folder / INDEX_FILE, np.array(shifts, np.int64))
        description = replace(description, fields=spool.settled_fields())
        return make_manifest(description, spool.num_samples, folder / INDEX_FILE, all_parts)


def make_manifest(description: Description, num_samples: int, index: Path, parts: Sequence[Part]) -> Manifest:
    """Return the manifest of a dataset.

    Args:
        description: Its facts that do not follow from the files.
        num_samples: Its samples.
        index: Its index.
        parts: Its parts.
    """
    content = pa.memory_map(os.fsencode(index)).read_buffer()
    layout, batch = lay_out(content, description.fields, with_source=description.with_source)
    return Manifest(
        num_samples=num_samples,
        fields=description.fields,
        with_source=description.with_source,
        classes=description.classes,
        made_by=description.made_by,
        content_digest=content_digest(batch),
        index_digest=digest_of(content),
        index=layout,
        parts=tuple(parts),
    )


def _add_part(spool: Spool, path: Path, digest: str, begin: int) -> list[int]:
    """Add the rows of a part; return what to add to the offsets of each group of rows that was added."""
    content = pa.memory_map(os.fsencode(path)).read_buffer()
    if digest_of(content) != digest:
        advice = f"Remove the folder {path.parent}: the part is made again."
        raise CorruptError(f"{path}: was damaged or changed. {advice}", path=str(path.parent))
    return _add_rows(spool, pa.ipc.open_file(pa.py_buffer(content)).get_batch(0), begin)


def _settled(fields: Sequence[Field], before: Sequence[Reader]) -> tuple[Field, ...]:
    """Return the fields; of texts, with what the datasets before have: in the index, unless none has them there."""
    if not before:
        return tuple(fields)
    manifests = [{f.name: f for f in reader.manifest.fields} for reader in before]
    return tuple(
        replace(f, codec="raw" if all(known[f.name].codec for known in manifests) else None) if f.holds_text else f
        for f in fields
    )


def _add_rows(spool: Spool, batch: pa.RecordBatch, begin: int, reader: Reader | None = None) -> list[int]:
    """Add rows, with the texts that a dataset has in its data files; return as `_add_part`."""
    added = []
    for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
        part = batch.slice(first, _ROWS_AT_ONCE)
        columns = {name: _values(part.column(name)) for name in part.schema.names}
        if reader is not None:
            rows = np.arange(first, first + part.num_rows)
            columns |= {name: reader.read_texts(name, rows) for name in reader.long_texts}
        spool.add_columns(columns, part.num_rows, [part.num_rows])
        added.append(begin)
    return added


def _values(column: pa.Array) -> npt.NDArray[Any] | pa.Array:
    return column.to_numpy(zero_copy_only=True) if is_number(column.type) else column


def lay_out(content: Any, fields: Sequence[Field], *, with_source: bool) -> tuple[IndexLayout, pa.RecordBatch]:
    """Return what a manifest states of an index, and its rows.

    Args:
        content: The file, mapped.
        fields: The dataset's.
        with_source: Whether its samples have sources.
    """
    file = pa.py_buffer(content)
    batch = pa.ipc.open_file(file).get_batch(0)
    data, num_rows = np.frombuffer(content, np.uint8), batch.num_rows

    def place(buffer: pa.Buffer | None) -> int:
        # The address of an empty buffer is arbitrary; nothing is read there.
        return buffer.address - file.address if buffer is not None and buffer.size else 0

    def texts_at(array: pa.Array) -> TextsAt:
        _, offsets, texts = array.buffers()
        nbytes = int(np.frombuffer(offsets, np.int64, len(array) + 1)[-1]) if len(array) else 0
        return TextsAt(len(array), place(offsets), place(texts), nbytes)

    def blocks_of(columns: Sequence[ColumnAt], count: int) -> str:
        blocks = Blocks(columns, count, data, (data.ctypes.data, data.size, -1, 0))
        return digests_text([blocks.digest(number) for number in range(num_blocks(count))])

    columns = []
    for name, kind in index_columns(fields, with_source=with_source).items():
        array = batch.column(name)
        if kind == TEXT:
            columns.append(ColumnAt(name, kind, 0, texts_at(array)))
        elif kind == NAMES:
            texts = texts_at(array.dictionary)
            digests = blocks_of([ColumnAt(name, TEXT, 0, texts)], texts.count)
            columns.append(ColumnAt(name, kind, place(array.indices.buffers()[1]), texts, digests))
        else:
            columns.append(ColumnAt(name, kind, place(array.buffers()[1])))
    views = {column.name: _view(data, column, num_rows) for column in columns if column.texts is None}
    facts = {f.name: facts_of(f, views) for f in fields if f.is_payload}
    return IndexLayout(file.size, tuple(columns), blocks_of(columns, num_rows), facts), batch


def _view(data: U8, column: ColumnAt, num_rows: int) -> npt.NDArray[Any]:
    dtype = np.dtype(column.type)
    return data[column.at : column.at + num_rows * dtype.itemsize].view(dtype)


def facts_of(f: Field, columns: Mapping[str, npt.NDArray[Any]]) -> Facts:
    """Return the facts about the payloads of a field, given the columns of the index, block by block."""
    names, num_rows = tuple(extremes_of(f)), len(columns[f"{f.name}.codec"])
    extremes = dict.fromkeys(names, (0, 0))
    totals = {"stored_nbytes": 0, "raw_nbytes": 0}
    has_codec = np.zeros(256, np.bool_)
    encoded_nbytes, jpeg = 0, (0, 0, 0)
    for first in range(0, num_rows, BLOCK_ROWS):
        part = {name: columns[f"{f.name}.{name}"][first : first + BLOCK_ROWS] for name in names}
        for name, values in part.items():
            low, high = int(values.min()), int(values.max())
            before = extremes[name] if first else (low, high)
            extremes[name] = min(low, before[0]), max(high, before[1])
        for name in totals:
            totals[name] += int(part[name].sum(dtype=np.int64))
        codec = part["codec"]
        has_codec[codec] = True
        encoded_nbytes = max(encoded_nbytes, int(part["raw_nbytes"][codec != CODEC_RAW].max(initial=0)))
        if f.kind == "image" and (is_jpeg := codec == CODEC_JPEG).any():
            nbytes, height, width = (
                part[name][is_jpeg].astype(np.int64) for name in ("stored_nbytes", "height", "width")
            )
            found = int(nbytes.max()), int(np.maximum(height, width).max()), int((height * width).max())
            jpeg = max(jpeg[0], found[0]), max(jpeg[1], found[1]), max(jpeg[2], found[2])
    return Facts(tuple(np.flatnonzero(has_codec).tolist()), extremes, totals, encoded_nbytes, jpeg)
