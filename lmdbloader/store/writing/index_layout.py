"""Finds in an index.arrow that was just written what its manifest states: places of columns, digests, facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
from lmdbloader.format.layout import CODEC_JPEG, CODEC_RAW, Field, index_columns
from lmdbloader.store.index import Blocks

U8 = npt.NDArray[np.uint8]


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
    return IndexLayout(tuple(columns), blocks_of(columns, num_rows), facts), batch


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
