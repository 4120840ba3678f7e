"""index.arrow while it is being made: its columns are collected in temporary files, written once and digested."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmdbloader.base.disk_errors import naming
from lmdbloader.errors import OptionError
from lmdbloader.format.digests import Digest
from lmdbloader.format.layout import CODEC_RAW, LONG_TEXT_NBYTES, MAX_NAMES, Field, index_schema
from lmdbloader.kernels import entries
from lmdbloader.store.records import Block, Chunk

_ROWS_AT_ONCE = 1 << 16
_SOURCE_NAMES = "source.names"
# The columns of a payload that are collected for texts too.
_OF_TEXTS = ("offset", "checksum")
# The most bytes of a column in memory; each flush opens and closes a file.
_WAITING_NBYTES = 8 * 2**10


class Spool:
    """The columns of the future index, each in a temporary file, so they need not fit in memory.

    No file stays open, neither while it is written nor while it is mapped: a sample may have thousands of fields, and a
    process is often limited to 1,024 descriptors.
    """

    def __init__(
        self,
        folder: Path,
        fields: Sequence[Field],
        *,
        with_source: bool,
        is_settled: bool = False,
    ) -> None:
        """Begin without rows.

        Args:
            folder: For the temporary files; it is made.
            fields: The dataset's.
            with_source: Whether samples have sources.
            is_settled: Whether texts are stored as the codecs of their fields say, rather than by their lengths.
        """
        self.fields = tuple(fields)
        self._is_settled = is_settled
        self._with_source = with_source
        # Texts are collected for both ways to store them, as the longest may come last. Records are the same in both.
        self._longest = {f.name: 0 for f in fields if f.holds_text}
        self._kinds: dict[str, Any] = {}
        for codec in ("raw", None):
            either = [replace(f, codec=codec) if f.holds_text else f for f in fields]
            self._kinds |= {column.name: column.type for column in self._schema_of(either)}
        self.num_samples = 0
        self._folder = folder
        # By column: the bytes that are not in its file yet.
        self._waiting: dict[str, bytearray] = {}
        self._in_files: set[str] = set()
        self._types: dict[str, dict[str, int]] = {}
        self._source: str | None = None
        self._num_sources = 0
        folder.mkdir()

    def add(self, chunk: Chunk, blocks: Sequence[Block]) -> None:
        """Append a chunk's rows; offsets count from their block's first byte until `write` adds the block's own."""
        columns = dict(chunk.columns)
        for f in self.fields:
            if f.holds_text:
                texts = [text.encode() for text in columns[f.name]]
                nbytes = np.array([len(text) for text in texts], np.int64)
                sums = np.empty(len(texts), np.uint64)
                entries.hash_many(np.frombuffer(b"".join(texts), np.uint8), np.cumsum(nbytes) - nbytes, nbytes, sums)
                columns[f"{f.name}.offset"] = _offsets_in_blocks(nbytes, blocks, f.name)
                columns[f"{f.name}.checksum"] = sums
            elif f.is_payload:
                payloads = chunk.payloads[f.name]
                columns[f"{f.name}.offset"] = _offsets_in_blocks(payloads.stored_nbytes, blocks, f.name)
                for part in ("stored_nbytes", "raw_nbytes", "checksum", "codec"):
                    columns[f"{f.name}.{part}"] = getattr(payloads, part)
        self.add_columns(columns, chunk.num_samples, [b.num_samples for b in blocks])

    def add_columns(self, columns: Mapping[str, Any], num_samples: int, block_samples: Sequence[int]) -> None:
        """Append rows column by column, with offsets as in `add`; `block_samples` are the samples of each block."""
        for name, values in columns.items():
            field, _, part = name.rpartition(".")
            if field not in self._longest or part in _OF_TEXTS:  # others follow from the lengths
                self._append(name, values)
        self._append("block.num_samples", np.array(block_samples, np.int64))
        self.num_samples += num_samples

    def blocks(self) -> npt.NDArray[np.int64]:
        """Return the number of samples of every block."""
        return self._map("block.num_samples", np.dtype(np.int64))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of numbers (n,), mapped from its file unless it is made from the lengths of texts."""
        dtype = _dtype_of(self._kinds[name])
        field, _, part = name.rpartition(".")
        if field in self._longest and part not in _OF_TEXTS:
            nbytes = self._map(field, np.dtype(np.int64))
            return np.full(len(nbytes), CODEC_RAW, dtype) if part == "codec" else nbytes.astype(dtype)
        return self._map(name, dtype)

    def rows(self) -> pa.RecordBatch:
        """Return the rows of a part, from which an index can be made wherever it has texts."""
        return self._batch(pa.schema([pa.field(name, kind, False) for name, kind in self._kinds.items()]))

    def settled_fields(self) -> tuple[Field, ...]:
        """Return the fields, with the codec of texts that the index has no column of.

        A field has all of its texts in data.mdb if one is longer than 128 bytes. So it depends on the samples alone.
        """
        if self._is_settled:
            return self.fields
        long = {name for name, nbytes in self._longest.items() if nbytes > LONG_TEXT_NBYTES}
        return tuple(replace(f, codec="raw" if f.name in long else None) if f.holds_text else f for f in self.fields)

    def write(self, path: Path, block_at: npt.NDArray[np.int64]) -> None:
        """Write the index.

        Args:
            path: Of index.arrow.
            block_at: (number of blocks,) offset of each block's value in the data files.
        """
        self._shift([f.name for f in self.settled_fields() if f.is_payload], block_at)
        _write_batch(path, self._batch(self._schema_of(self.settled_fields())))

    def write_rows(self, path: Path, block_at: npt.NDArray[np.int64]) -> None:
        """Write the rows of a part; arguments as of `write`."""
        self._shift([f.name for f in self.fields if f.is_payload or f.holds_text], block_at)
        _write_batch(path, self.rows())

    def _shift(self, payload_names: Sequence[str], block_at: npt.NDArray[np.int64]) -> None:
        """Add to each offset the place of its block."""
        counts = self.blocks()
        for name in payload_names if self.num_samples else ():
            _shift(self._map(f"{name}.offset", np.dtype(np.int64), writable=True), counts, block_at)

    def _batch(self, schema: pa.Schema) -> pa.RecordBatch:
        # The same samples give the same bytes: dictionaries are in the order of first use, and there is one batch.
        return pa.RecordBatch.from_arrays([self._array(column) for column in schema], schema=schema)

    def close(self) -> None:
        """Remove the temporary files; a second call does nothing."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _schema_of(self, fields: Sequence[Field]) -> pa.Schema:
        return index_schema(fields, with_source=self._with_source)

    def _append(self, name: str, values: Any) -> None:
        if isinstance(values, pa.Array) and not is_number(values.type):
            values = values.to_pylist()
        kind = self._kinds.get(name)
        if name == "source":
            self._write(name, self._number_sources(values))
        elif kind is not None and pa.types.is_dictionary(kind):
            known = self._types.setdefault(name, {})
            self._write(name, np.array([known.setdefault(v, len(known)) for v in values], np.int32))
        elif kind is not None and pa.types.is_large_string(kind):
            self._write_texts(name, values)
        else:
            number = np.dtype(np.int64) if kind is None else _dtype_of(kind)
            self._write(name, np.ascontiguousarray(np.asarray(values).astype(number)))

    def _number_sources(self, names: Sequence[str]) -> npt.NDArray[np.int32]:
        """Return each sample's source number; samples of one source are consecutive, so only the last is kept."""
        new: list[str] = []
        numbers = np.empty(len(names), np.int32)
        for i, name in enumerate(names):
            if name != self._source:
                self._source = name
                new.append(name)
            numbers[i] = self._num_sources + len(new) - 1
        self._num_sources += len(new)
        self._write_texts(_SOURCE_NAMES, new)
        if self._num_sources > MAX_NAMES:
            raise OptionError(
                f"more than {MAX_NAMES:,} sources, the most that one dataset can hold. Make several datasets."
            )
        return numbers

    def _write_texts(self, name: str, values: Sequence[str]) -> None:
        """Append texts and their lengths."""
        texts = [v.encode() for v in values]
        self._write(f"{name}.text", b"".join(texts))
        self._write(name, np.array([len(t) for t in texts], np.int64))
        if name in self._longest:
            self._longest[name] = max(self._longest[name], *map(len, texts), 0)

    def _write(self, name: str, data: Any) -> None:
        waiting = self._waiting.setdefault(name, bytearray())
        waiting.extend(data)
        if len(waiting) >= _WAITING_NBYTES:
            self._flush(name)

    def _flush(self, name: str) -> None:
        waiting = self._waiting.pop(name, None)
        if not waiting:
            return
        path = self._folder / name
        with naming(path), open(path, "ab") as file:
            file.write(waiting)
        self._in_files.add(name)

    def _map(self, name: str, kind: np.dtype[Any], *, writable: bool = False) -> npt.NDArray[Any]:
        self._flush(name)
        path = self._folder / name
        if name not in self._in_files:  # not whether it exists: another process may have removed the folder
            return np.empty(0, kind)
        if writable:
            return np.memmap(path, kind, "r+")
        # Arrow's map, unlike Python's, does not keep a descriptor.
        with pa.memory_map(os.fsencode(path)) as file:
            return np.frombuffer(file.read_buffer(), kind)

    def _array(self, column: pa.Field) -> pa.Array:
        if pa.types.is_dictionary(column.type):
            codes = pa.array(self._map(column.name, np.dtype(np.int32)))
            if column.name == "source":
                names = self._texts(_SOURCE_NAMES, column.type.value_type)
                if self._repeats_names():
                    # Samples of one source that are not consecutive, as in a merged dataset: its name is stored once.
                    found = names.dictionary_encode()
                    codes, names = found.indices.take(codes), found.dictionary
                return pa.DictionaryArray.from_arrays(codes, names)
            names = pa.array(list(self._types.get(column.name, {})), column.type.value_type)
            return pa.DictionaryArray.from_arrays(codes, names)
        if pa.types.is_large_string(column.type):
            return self._texts(column.name, column.type)
        return pa.Array.from_buffers(column.type, self.num_samples, [None, pa.py_buffer(self.column(column.name))])

    def _repeats_names(self) -> bool:
        """Return whether two sources have the same name."""
        nbytes = self._map(_SOURCE_NAMES, np.dtype(np.int64))
        text = self._map(f"{_SOURCE_NAMES}.text", np.dtype(np.uint8))
        hashes, at = np.empty(len(nbytes), np.uint64), 0
        for first in range(0, len(nbytes), _ROWS_AT_ONCE):
            part = nbytes[first : first + _ROWS_AT_ONCE]
            ends = at + np.cumsum(part)
            entries.hash_many(text, ends - part, part, hashes[first : first + _ROWS_AT_ONCE])
            at = int(ends[-1])
        hashes.sort()
        return bool((hashes[1:] == hashes[:-1]).any())

    def _texts(self, name: str, kind: pa.DataType) -> pa.Array:
        lengths = self._map(name, np.dtype(np.int64))
        text = self._map(f"{name}.text", np.dtype(np.uint8))
        ends = np.append(0, np.cumsum(lengths)).astype(np.int64 if pa.types.is_large_string(kind) else np.int32)
        return pa.Array.from_buffers(kind, len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(text)])


def _write_batch(path: Path, batch: pa.RecordBatch) -> None:
    with naming(path), pa.OSFile(os.fsencode(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column is of numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """Return NumPy's dtype for a numeric Arrow type; pyarrow's own mapping needs pandas in most of its releases."""
    if pa.types.is_floating(kind):
        return np.dtype(f"f{kind.bit_width // 8}")
    return np.dtype(f"{'i' if pa.types.is_signed_integer(kind) else 'u'}{kind.bit_width // 8}")


def _offsets_in_blocks(stored: npt.NDArray[np.int64], blocks: Sequence[Block], name: str) -> npt.NDArray[np.int64]:
    starts = np.cumsum(stored) - stored
    first = 0
    for block in blocks:
        here = slice(first, first + block.num_samples)
        starts[here] += block.payload_at[name] - starts[first]
        first += block.num_samples
    return starts


def _shift(offsets: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], block_at: npt.NDArray[np.int64]) -> None:
    first = 0
    for at in range(0, len(counts), _ROWS_AT_ONCE):
        moved = np.repeat(block_at[at : at + _ROWS_AT_ONCE], counts[at : at + _ROWS_AT_ONCE])
        offsets[first : first + len(moved)] += moved
        first += len(moved)


def content_digest(batch: pa.RecordBatch) -> str:
    """Return the digest of samples in order: over every column of their index except offsets, in its order."""
    digest = Digest()
    for column, values in zip(batch.schema, batch.columns, strict=True):
        if column.name.endswith(".offset"):
            continue
        digest.update(column.name.encode() + b"\0")
        for at in range(0, len(values), _ROWS_AT_ONCE):
            part = values.slice(at, _ROWS_AT_ONCE)
            digest.update(part.to_numpy(zero_copy_only=True) if is_number(column.type) else _framed(part))
    return str(digest)


def _framed(values: pa.Array) -> pa.Buffer:
    """Return the bytes of texts, at least one, one after the other, each with its length (u64) in front."""
    import pyarrow.compute as pc  # the import takes a tenth of a second

    texts = (values.dictionary_decode() if pa.types.is_dictionary(values.type) else values).cast(pa.large_binary())
    nbytes = pc.binary_length(texts).to_numpy(zero_copy_only=True)
    starts = pa.py_buffer(np.arange(0, nbytes.nbytes + 1, nbytes.itemsize))
    lengths = pa.Array.from_buffers(pa.large_binary(), len(texts), [None, starts, pa.py_buffer(nbytes)])
    return pc.binary_join_element_wise(lengths, texts, pa.scalar(b"", pa.large_binary())).buffers()[2]
