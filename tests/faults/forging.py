"""Datasets with right digests, whatever their index says: written as docs/reference/format.md describes, by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.format.codecs import checksum
from lmdbloader.format.digests import digest_of
from lmdbloader.format.manifest import signed as text_of

ROWS = 8192


def pieces_of(column: Mapping[str, Any], index: bytes, first: int, stop: int) -> list[bytes]:
    """Return the pieces of a column that rows first ... stop - 1 depend on, the texts of NAMES left out."""
    if column["type"] == "text":
        at = column["texts"]["offsets_at"]
        offsets = np.frombuffer(index[at + 8 * first : at + 8 * (stop + 1)], np.int64)
        ends = (offsets[0], offsets[-1]) if offsets.size else (0, 0)  # of an index that is cut there
        low, high = (min(max(int(end), 0), column["texts"]["nbytes"]) for end in ends)
        texts_at = column["texts"]["bytes_at"]
        return [offsets.tobytes(), index[texts_at + low : texts_at + high]]
    size = 4 if column["type"] == "names" else np.dtype(column["type"]).itemsize
    return [index[column["at"] + size * first : column["at"] + size * stop]]


def block_digests(columns: list[Any], index: bytes, count: int) -> str:
    """Return the digests of the blocks of `count` rows."""
    blocks = [(first, min(first + ROWS, count)) for first in range(0, count, ROWS)]
    pieces = [[piece for c in columns for piece in pieces_of(c, index, *block)] for block in blocks]
    sums = [checksum(b"".join(checksum(piece).to_bytes(8, "little") for piece in each)) for each in pieces]
    return "".join(f"{found:016x}" for found in sums)


def with_digests(body: Mapping[str, Any], index: bytes) -> dict[str, Any]:
    """Return the content of a manifest with the digests of this index."""
    columns = [dict(column) for column in body["index"]["columns"]]
    for column in columns:
        if column["type"] == "names":
            texts = {**column, "type": "text"}
            column["block_digests"] = block_digests([texts], index, column["texts"]["count"])
    own = {**body["index"], "columns": columns, "block_digests": block_digests(columns, index, body["num_samples"])}
    return {**body, "index": own, "index_digest": digest_of(index)}


def signed(body: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest that says this, with its digest."""
    body = {key: value for key, value in body.items() if key != "manifest_digest"}
    return text_of(body, "manifest_digest")


def manifest_of(path: Path) -> dict[str, Any]:
    """Return the content of a dataset's manifest."""
    found: dict[str, Any] = json.loads((path / "manifest.json").read_bytes())
    return found


def _place(column: Mapping[str, Any], row: int) -> tuple[int, np.dtype[Any]]:
    """Return where a whole number of a row is: its value, the number of its text, or where its text begins."""
    if column["type"] == "text":
        return column["texts"]["offsets_at"] + 8 * row, np.dtype(np.int64)
    dtype = np.dtype({"names": "int32"}.get(column["type"], column["type"]))
    if dtype.kind == "f":
        dtype = np.dtype(f"i{dtype.itemsize}")
    return column["at"] + dtype.itemsize * row, dtype


def value_at(index: bytes, column: Mapping[str, Any], row: int) -> int:
    """Return the number of a row in a column."""
    at, dtype = _place(column, row)
    return int(np.frombuffer(index[at : at + dtype.itemsize], dtype)[0])


def with_value(index: bytes, column: Mapping[str, Any], row: int, value: int) -> bytes:
    """Return an index with another number in a row of a column, cut to its size."""
    at, dtype = _place(column, row)
    number = (value % 256**dtype.itemsize).to_bytes(dtype.itemsize, "little")
    return index[:at] + number + index[at + dtype.itemsize :]
