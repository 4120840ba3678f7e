"""Finds the intact samples of a dataset without an index, in stored form, to be written into another one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lmdbloader.base.files import open_regular
from lmdbloader.errors import CorruptError
from lmdbloader.format.codecs import Payloads
from lmdbloader.format.layout import DATA_FILE, Field, record_schema
from lmdbloader.format.manifest import Description
from lmdbloader.store.care.pages import find_records, read_around_errors
from lmdbloader.store.records import Chunk, decode_block

# Why a sample was not found.
LOST = "their record is damaged, and there is no index"
_PARTS = ("stored_nbytes", "raw_nbytes", "checksum", "codec")


class RecordSalvage:
    """Samples found record by record on the pages of data.mdb, without LMDB and without an index.

    The attributes are complete once all chunks were taken.

    Attributes:
        lost: Numbers of the samples that were not found.
        may_lack_more: Whether others may be missing too: the number of samples is unknown, or too small.
    """

    def __init__(self, folder: Path, description: Description, num_samples: int | None) -> None:
        """Set up; nothing is read yet.

        Args:
            folder: The dataset.
            description: The dataset's.
            num_samples: How many there were; None if unknown.
        """
        self.lost: list[range] = []
        self.may_lack_more = num_samples is None
        self._folder, self._description, self._num_samples = folder, description, num_samples

    def chunks(self) -> Iterator[Chunk]:
        """Yield the samples of every intact record."""
        d = self._description
        schema = record_schema(d.fields, with_source=d.with_source)
        descriptor = open_regular(self._folder / DATA_FILE)
        at = 0
        try:
            for record in find_records(descriptor):
                if record.first < at:
                    continue  # an older record, on an unused page
                value = read_around_errors(descriptor, record.nbytes, record.at)
                where = f"{self._folder / DATA_FILE}: record of samples from {record.first}"
                try:
                    count, columns = decode_block(value, schema, d.fields, record.checksum, where)
                except CorruptError:
                    continue  # another schema
                self.lost += [range(at, record.first)] if record.first > at else []
                at = record.first + count
                yield _chunk(d.fields, count, columns, _cut(value, d.fields, columns))
        finally:
            os.close(descriptor)
        if self._num_samples is None or at > self._num_samples:
            self.may_lack_more = True
        elif at < self._num_samples:
            self.lost.append(range(at, self._num_samples))


def _cut(value: bytes, fields: Sequence[Field], columns: Mapping[str, Any]) -> dict[str, list[bytes]]:
    """Return the stored payloads of a record, field by field."""
    stored = {}
    for f in fields:
        if f.is_payload:
            places = zip(columns[f"{f.name}.offset"].tolist(), columns[f"{f.name}.stored_nbytes"].tolist(), strict=True)
            stored[f.name] = [value[at : at + nbytes] for at, nbytes in places]
    return stored


def _chunk(
    fields: Sequence[Field], num_samples: int, columns: Mapping[str, Any], stored: Mapping[str, Sequence[bytes]]
) -> Chunk:
    """Return samples as a writer takes them.

    Args:
        fields: The dataset's.
        num_samples: How many.
        columns: The index's.
        stored: For each payload field, the payloads in stored form.
    """
    others = dict(columns)
    payloads = {}
    for f in fields:
        if f.holds_text:
            for part in ("offset", *_PARTS):
                others.pop(f"{f.name}.{part}", None)
            continue
        if not f.is_payload:
            continue
        del others[f"{f.name}.offset"]
        stored_nbytes, raw_nbytes, sums, codecs = (np.asarray(others.pop(f"{f.name}.{part}")) for part in _PARTS)
        payloads[f.name] = Payloads(
            np.frombuffer(b"".join(stored[f.name]), np.uint8),
            stored_nbytes.astype(np.int64),
            raw_nbytes.astype(np.int64),
            sums.astype(np.uint64),
            codecs.astype(np.uint8),
        )
    for name, values in others.items():
        if isinstance(values, pa.Array) and pa.types.is_string(values.type):
            others[name] = values.to_pylist()
    return Chunk(num_samples, payloads, others)
