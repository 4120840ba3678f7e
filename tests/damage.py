"""Damage done to a dataset on purpose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import lmdbloader
from lmdbloader.format.digests import digest_of
from lmdbloader.format.layout import INDEX_FILE
from lmdbloader.store import read_manifest
from lmdbloader.store.writing.join import lay_out


def flip(dataset: Path, at: int, name: str = "data.mdb", *, bit: int = 4) -> None:
    """Flip bits (a mask) of the byte at an offset of one of a dataset's files; a second time mends it."""
    with open(dataset / name, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ bit]))


def flip_payload(dataset: Path, field: str, sample: int) -> str:
    """Flip one bit in a sample's stored payload; return the file that the sample came from."""
    reader = lmdbloader.LMDBDataset(dataset).reader
    flip(dataset, int(reader.index.arrays[f"{field}.offset"][sample]) + 5)
    return str(reader.source(sample))


def change_index(dataset: Path, row: int, values: dict[str, int]) -> dict[str, int]:
    """Write numbers of a row of index.arrow in place, as another process may; return those that were there."""
    content = pa.py_buffer((dataset / "index.arrow").read_bytes())
    batch, before = pa.ipc.open_file(content).get_batch(0), {}
    with open(dataset / "index.arrow", "r+b") as file:
        for name, value in values.items():
            column = batch.column(name)
            nbytes, is_signed = column.type.bit_width // 8, pa.types.is_signed_integer(column.type)
            file.seek(column.buffers()[1].address - content.address + (column.offset + row) * nbytes)
            file.write(value.to_bytes(nbytes, "little", signed=is_signed))
            before[name] = column[row].as_py()
    return before


def put_index(dataset: Path, batch: pa.RecordBatch) -> None:
    """Make other rows the index of a dataset, with a manifest that states all of them."""
    manifest, index = read_manifest(dataset), dataset / INDEX_FILE
    with pa.OSFile(str(index), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = index.read_bytes()
    layout, _ = lay_out(content, manifest.fields, with_source=manifest.with_source)
    changed = replace(manifest, index_digest=digest_of(content), index=layout)
    (dataset / "manifest.json").write_bytes(changed.to_json())


def index_batch(dataset: Path) -> pa.RecordBatch:
    """Return the rows of an index as Arrow's library reads them, without a map, so that they can be overwritten."""
    return pa.ipc.open_file((dataset / INDEX_FILE).read_bytes()).get_batch(0)


def with_column(batch: pa.RecordBatch, name: str, values: Any, kind: pa.DataType | None = None) -> pa.RecordBatch:
    """Return a record batch with other values, perhaps of another type, in one of its columns."""
    place = batch.schema.names.index(name)
    field = batch.schema.field(place) if kind is None else pa.field(name, kind)
    columns = [*batch.columns[:place], pa.array(values, field.type), *batch.columns[place + 1 :]]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema.set(place, field))
