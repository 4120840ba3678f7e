"""index.arrow of an open dataset: views of its columns, and the one place where their bytes are verified.

Opening looks at no row. `Blocks.check` verifies a block of 8,192 rows when one of them is used for the first time, so
whoever reads a value has called it: the methods of `Index`, `Texts` and `Names` do, and callers of kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.disk_errors import unreadable_is_corrupt
from lmdbloader.base.text import command
from lmdbloader.errors import CorruptError
from lmdbloader.format.codecs import checksum
from lmdbloader.format.digests import read_digest
from lmdbloader.format.index import (
    BLOCK_ROWS,
    BLOCK_SHIFT,
    CODE_DTYPE,
    NAMES,
    OFFSET_DTYPE,
    TEXT,
    ColumnAt,
    TextsAt,
    digests_of,
    num_blocks,
)
from lmdbloader.format.layout import INDEX_FILE, index_schema
from lmdbloader.format.manifest import Manifest
from lmdbloader.kernels import entries
from lmdbloader.store.opening import IO, DataFile, OpenFile, wrong_size
from lmdbloader.store.rows import Rows, take

if TYPE_CHECKING:
    import pyarrow as pa

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


class DamagedBlockError(ValueError):
    """The bytes of a block of rows are not those of a writer; the message is the end of a sentence."""

    def __init__(self, reason: str, unread: tuple[int, int] | None = None) -> None:
        super().__init__(reason)
        self.unread = unread


class Blocks:
    """Verifies rows in blocks, each when it is first used; several threads may do so at once.

    Every byte on which a row's values depend is in the digest of its block: its numbers, and the offsets and the bytes
    of its texts. The texts of NAMES have blocks of their own.
    """

    def __init__(
        self,
        columns: Sequence[ColumnAt],
        num_rows: int,
        content: U8,
        file: tuple[int, int, int, int],
        digests: str = "",
        owner: tuple[Path, DataFile, str] | None = None,
    ) -> None:
        """Begin with no block verified.

        Args:
            columns: Of the rows, in order; of texts alone, one of TEXT.
            num_rows: How many.
            content: (m,) uint8, the file's map, or memory into which blocks are read.
            file: As `DataFile.for_kernels`.
            digests: Of the blocks, as in the manifest.
            owner: For messages, the dataset, its index, and what rows are called.
        """
        self._columns, self._num_rows, self._content, self._file = columns, num_rows, content, file
        self._digests, self._owner = digests_of(digests), owner
        self._seen = np.zeros(num_blocks(num_rows), np.bool_)
        self._has_unseen = len(self._seen) > 0

    def check(self, rows: Rows | int | None = None) -> None:
        """Verify the blocks of rows that no call has verified yet.

        Args:
            rows: A row, (n,) rows, or a range of them, each in range(number of rows); all by default.

        Raises:
            CorruptError: A block is damaged, or the disk cannot read it.
        """
        if not self._has_unseen:
            return
        if isinstance(rows, int | np.integer):
            if self._seen[rows >> BLOCK_SHIFT]:
                return
            blocks = np.array([rows >> BLOCK_SHIFT])
        elif isinstance(rows, np.ndarray):
            blocks = rows >> BLOCK_SHIFT
            if self._seen[blocks].all():
                return
            blocks = np.unique(blocks)
        else:
            ends = sorted((rows[0], rows[-1])) if rows else [0, self._num_rows - 1] if rows is None else [0, -1]
            blocks = np.arange(ends[0] >> BLOCK_SHIFT, (ends[1] >> BLOCK_SHIFT) + 1)
        for number in blocks[~self._seen[blocks]].tolist():
            self._verify(number)
        self._has_unseen = not self._seen.all()

    def _verify(self, number: int) -> None:
        assert self._owner is not None
        path, file, what = self._owner
        first, expected = number * BLOCK_ROWS, int(self._digests[number])
        try:
            found = self.digest(number)
            if found != expected:
                raise DamagedBlockError(f"their digest is {found:016x}, expected {expected:016x}")
        except DamagedBlockError as error:
            if error.unread is not None:
                with unreadable_is_corrupt(path / INDEX_FILE, dataset=path):
                    file.read(*error.unread)  # for the system's own reason
            last = min(first + BLOCK_ROWS, self._num_rows) - 1
            raise _damaged(path, what.format(first, last), str(error)) from error
        self._seen[number] = True

    def digest(self, number: int) -> int:
        """Return the digest of a block.

        It is the XXH3 of those of its pieces: of each column in order its numbers, or its offsets and then its texts.

        Raises:
            DamagedBlockError: A text, or the number of a text, is outside of its column, or bytes cannot be read.
        """
        sums, pieces = list[npt.NDArray[np.uint64]](), list[tuple[int, int]]()
        first = number * BLOCK_ROWS
        count = min(BLOCK_ROWS, self._num_rows - first)
        codes = []
        for column in self._columns:
            if column.type == TEXT:
                assert column.texts is not None
                offsets_at = column.texts.offsets_at + first * OFFSET_DTYPE.itemsize
                pieces.append((offsets_at, (count + 1) * OFFSET_DTYPE.itemsize))
                sums.append(self._sums_of(pieces))
                pieces = [self._bytes_of(column.texts, offsets_at, count)]
                continue
            dtype = CODE_DTYPE if column.type == NAMES else np.dtype(column.type)
            at = column.at + first * dtype.itemsize
            pieces.append((at, count * dtype.itemsize))
            if column.texts is not None:
                codes.append((at, column))
        sums.append(self._sums_of(pieces))
        for at, column in codes:
            assert column.texts is not None
            numbers = self._content[at : at + count * CODE_DTYPE.itemsize].view(CODE_DTYPE)
            if numbers.min() < 0 or numbers.max() >= column.texts.count:
                raise DamagedBlockError(f"a number in {column.name!r} is not that of one of its texts")
        return checksum(np.concatenate(sums))

    def _sums_of(self, pieces: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint64]:
        """Return XXH3 of pieces of the file, each (place, number of bytes); they are in `content` from then on."""
        start, nbytes = np.array(pieces, np.int64).T.copy()
        sums = np.empty(len(pieces), np.uint64)
        done = entries.hash_pieces((*self._file, 0), start, nbytes, self._content.ctypes.data, sums)
        if done < len(pieces):
            raise DamagedBlockError("their bytes cannot be read", pieces[done])
        return sums

    def _bytes_of(self, texts: TextsAt, offsets_at: int, count: int) -> tuple[int, int]:
        """Return where the bytes of some texts are, whose offsets are in `content`."""
        offsets = self._content[offsets_at : offsets_at + (count + 1) * OFFSET_DTYPE.itemsize].view(OFFSET_DTYPE)
        low, high = int(offsets[0]), int(offsets[-1])
        if low < 0 or high > texts.nbytes or (offsets[1:] < offsets[:-1]).any():
            raise DamagedBlockError("a text is outside of its column")
        return texts.bytes_at + low, high - low


#: Of rows that are verified.
VERIFIED = Blocks((), 0, np.empty(0, np.uint8), (0, 0, -1, 0))


class Texts:
    """A column of texts in UTF-8, verified when they are read."""

    def __init__(self, offsets: I64, data: U8, blocks: Blocks, where: str) -> None:
        """Take the columns.

        Args:
            offsets: (n + 1,); text i is data[offsets[i]:offsets[i + 1]].
            data: (m,) uint8.
            blocks: That verify its rows.
            where: The dataset's, for messages.
        """
        self._offsets, self._data, self._blocks, self._where = offsets, data, blocks, where

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> str:
        self._blocks.check(row)
        return self._decoded([self._data[self._offsets[row] : self._offsets[row + 1]].tobytes()])[0]

    def columns(self) -> tuple[I64, U8]:
        """Return the offsets (n + 1,) and the bytes of all texts."""
        self._blocks.check()
        return self._offsets, self._data

    def to_list(self) -> list[str]:
        """Return all texts."""
        offsets, data = self.columns()
        first, last = int(offsets[0]), int(offsets[-1])
        joined = data[first:last].tobytes()
        return self._decoded([joined[a:b] for a, b in pairwise((offsets - first).tolist())])

    def _decoded(self, texts: list[bytes]) -> list[str]:
        try:
            return [text.decode() for text in texts]
        except UnicodeDecodeError as error:
            raise CorruptError(
                f"{self._where}: a text in its index is not UTF-8 ({error})", path=self._where
            ) from error


class Names:
    """A column of texts that repeat: a number for each row, and the texts by number."""

    def __init__(self, codes: npt.NDArray[np.int32], texts: Texts, blocks: Blocks) -> None:
        """Take the column: numbers (n,) of the texts, which `blocks` verify."""
        self._codes, self.texts, self._blocks = codes, texts, blocks

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, row: int) -> str:
        self._blocks.check(row)
        return self.texts[int(self._codes[row])]

    @property
    def codes(self) -> npt.NDArray[np.int32]:
        """The numbers (n,) of the texts."""
        self._blocks.check()
        return self._codes


class Index:
    """The index of a dataset.

    Attributes:
        column_names: Of every column, in order.
        columns: Every column of numbers as a read-only view, for kernels: call `check` for the rows that they read.
        texts: The columns of texts.
        names: The columns of texts that repeat: the samples' sources, and the types of arrays.
        facts: What is true of all payloads of a field, by its name.
    """

    def __init__(self, path: Path, manifest: Manifest, io: IO, *, file: DataFile | None = None) -> None:
        """Find the columns, without a look at any row.

        Args:
            path: The dataset's.
            manifest: The dataset's.
            io: "mmap" or "pread".
            file: Its index, if it is open already.

        Raises:
            CorruptError: The file has another length than the manifest states.
            FileNotFoundError: It is missing.
            OptionError: The process may not map it.
        """
        where = path / INDEX_FILE
        file = file or DataFile([OpenFile(where)], io, where)
        if file.nbytes != manifest.sizes["index_nbytes"]:
            raise wrong_size(where, file.nbytes, manifest.sizes["index_nbytes"], path)
        self.file, self._path, self._manifest = file, path, manifest
        # Memory without content until it is used, into which blocks are read.
        self._content = np.empty(file.nbytes, np.uint8) if file.io == "pread" else file.data
        layout = manifest.index
        self._blocks = self._blocks_of(layout.columns, manifest.num_samples, layout.block_digests, "rows {} to {}")
        self._take(layout.columns)
        self.facts = layout.facts

    def _take(self, columns: Sequence[ColumnAt]) -> None:
        """Make the views."""
        self.column_names = tuple(column.name for column in columns)
        self.columns: dict[str, npt.NDArray[Any]] = {}
        self.texts: dict[str, Texts] = {}
        self.names: dict[str, Names] = {}
        num_rows, where = self._manifest.num_samples, str(self._path)
        for column in columns:
            name, texts = column.name, column.texts
            if texts is None:
                self.columns[name] = self._view(column.at, num_rows, np.dtype(column.type))
                continue
            offsets = (
                self._view(texts.offsets_at, texts.count + 1, OFFSET_DTYPE) if texts.count else np.zeros(1, np.int64)
            )
            data = self._view(texts.bytes_at, texts.nbytes, np.dtype(np.uint8))
            if column.type == TEXT:
                self.texts[name] = Texts(offsets, data, self._blocks, where)
                continue
            alone = [ColumnAt(name, TEXT, 0, texts)]
            what = f"texts {{}} to {{}} of {name!r}"
            blocks = self._blocks_of(alone, texts.count, column.block_digests, what)
            codes = self._view(column.at, num_rows, CODE_DTYPE)
            self.names[name] = Names(codes, Texts(offsets, data, blocks, where), self._blocks)

    def _view(self, at: int, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        found = self._content[at : at + count * dtype.itemsize].view(dtype)
        found.flags.writeable = False
        return found

    def _blocks_of(self, columns: Sequence[ColumnAt], num_rows: int, digests: str, what: str) -> Blocks:
        """Return the blocks of some columns; `what` names the rows of one that is damaged."""
        owner = self._path, self.file, what
        return Blocks(columns, num_rows, self._content, self.file.for_kernels(), digests, owner)

    def check(self, rows: Rows | int | None = None) -> None:
        """Verify rows that are not verified yet; see `Blocks.check`."""
        self._blocks.check(rows)

    def check_file(self) -> None:
        """Read the whole file, and compare its digest with the manifest's.

        Raises:
            CorruptError: They differ, or the disk cannot read it.
        """
        where, expected = self._path / INDEX_FILE, self._manifest.index_digest
        with unreadable_is_corrupt(where, dataset=self._path), self.file.files[0].opened() as descriptor:
            found = read_digest(descriptor)
        if found != expected:
            raise _damaged(self._path, f"its digest is {found}", f"expected {expected}")

    @property
    def arrays(self) -> Mapping[str, npt.NDArray[Any]]:
        """Every column of numbers (n,) by name, all rows verified."""
        self.check()
        return self.columns

    def take(self, name: str, rows: Rows) -> npt.NDArray[Any]:
        """Return the numbers (n,) of a column in some rows; a view for a range."""
        self.check(rows)
        return take(self.columns[name], rows)

    def value(self, name: str, row: int) -> int:
        """Return one whole number of a column."""
        self.check(row)
        return int(self.columns[name][row])

    def text(self, name: str, row: int) -> str:
        """Return one value of a column of texts."""
        return self.texts[name][row] if name in self.texts else self.names[name][row]

    @cached_property
    def batch(self) -> pa.RecordBatch:
        """Every column, one row a sample; imports Arrow's library, which reading samples does not need.

        Raises:
            CorruptError: A block is damaged, or a text is not UTF-8.
        """
        import pyarrow as pa

        self.check()
        manifest = self._manifest
        schema = index_schema(manifest.fields, with_source=manifest.with_source)
        arrays = []
        for column in schema:
            if column.name in self.columns:
                buffers = [None, pa.py_buffer(self.columns[column.name])]
                arrays.append(pa.Array.from_buffers(column.type, manifest.num_samples, buffers))
            elif column.name in self.texts:
                arrays.append(self._arrow_texts(self.texts[column.name]))
            else:
                names = self.names[column.name]
                arrays.append(pa.DictionaryArray.from_arrays(pa.array(names.codes), self._arrow_texts(names.texts)))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _arrow_texts(self, texts: Texts) -> pa.Array:
        import pyarrow as pa

        array = pa.Array.from_buffers(pa.large_string(), len(texts), [None, *map(pa.py_buffer, texts.columns())])
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise _damaged(self._path, "a text", str(error)) from error
        return array


def _damaged(path: Path, what: str, reason: str) -> CorruptError:
    advice = f"the file was damaged or changed. {command('repair', path)} makes a new one."
    return CorruptError(f"{path / INDEX_FILE}: {what}: {reason}: {advice}", path=str(path))
