"""index.arrow of a dataset that is opened: its columns, checked against the manifest and against each other."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lmdbloader.base.text import command, counted
from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.format.digests import digest_of_file
from lmdbloader.format.layout import index_columns, index_schema
from lmdbloader.format.manifest import Manifest
from lmdbloader.store.arrow_file import ArrowFileError, read_columns
from lmdbloader.store.facts import Facts
from lmdbloader.store.index_checks import check_index
from lmdbloader.store.opening import IO, opened_index, read_index
from lmdbloader.store.stamps import Stamp

if TYPE_CHECKING:
    import pyarrow as pa


class Index:
    """The index of a dataset, checked against its manifest.

    Attributes:
        content: The bytes of index.arrow; the columns are views of them.
        column_names: Of every column, in order.
        arrays: Every numeric column as a read-only NumPy view of the map.
        texts: The columns of texts.
        names: The columns of texts that repeat: the samples' sources, and the types of arrays.
        facts: What is true of all payloads of a field, by its name.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        data_nbytes: int,
        content: mmap.mmap | bytes,
        facts: Mapping[str, Facts] | None = None,
    ) -> None:
        """Check an index.

        Args:
            path: The dataset's, for messages.
            manifest: The dataset's.
            data_nbytes: Bytes of data.mdb.
            content: Of index.arrow, mapped or read; this keeps it.
            facts: About its fields, if this file was checked before: then no row is looked at.

        Raises:
            CorruptError: It is not the file that was written, or contradicts itself.
            FormatError: Its columns are not those of the manifest's fields.
        """
        where = path / manifest.index_file
        self.content = content
        if facts is None and (found := digest_of_file(content)) != manifest.index_digest:
            raise CorruptError(
                f"{where}: its digest is {found}, expected {manifest.index_digest}: it is cut short or was damaged. "
                f"{command('repair', path)} makes a new one.",
                path=str(path),
            )
        expected = index_columns(manifest.fields, with_source=manifest.with_source)
        try:
            columns = read_columns(content, expected, check=facts is None)
        except ArrowFileError as error:
            raise FormatError(f"{where}: is not a valid index of this dataset ({error})") from error
        if columns.num_rows != manifest.num_samples:
            raise FormatError(
                f"{where}: {counted(columns.num_rows, 'row')}, the manifest says "
                f"{counted(manifest.num_samples, 'sample')}"
            )
        # Kernels read them by address.
        if not all(array.flags.aligned for array in columns.arrays.values()):
            raise FormatError(f"{where}: a column is not aligned to the size of its numbers")
        self.facts = check_index(columns, manifest, data_nbytes, path) if facts is None else facts
        self.column_names = tuple(expected)
        self.arrays, self.texts, self.names = columns.arrays, columns.texts, columns.names
        self._path, self._manifest = path, manifest

    @cached_property
    def batch(self) -> pa.RecordBatch:
        """Every column, one row a sample; imports Arrow's library, which reading samples does not need.

        Raises:
            CorruptError: Somebody has written into the file since it was opened.
        """
        import pyarrow as pa

        from lmdbloader.store.arrow import read_file

        schema = index_schema(self._manifest.fields, with_source=self._manifest.with_source)
        try:
            return read_file(self.content, schema)
        except (pa.ArrowException, OSError) as error:
            raise CorruptError(
                f"{self._path / self._manifest.index_file}: was changed since it was opened ({error}). Copy the "
                "dataset again.",
                path=str(self._path),
            ) from error

    def text(self, name: str, row: int) -> str:
        """Return one value of a column of texts."""
        return self.texts[name][row] if name in self.texts else self.names[name][row]


def open_checked(path: Path, manifest: Manifest, data_nbytes: int, io: IO) -> Index:
    """Open a dataset's index; if the same file was checked on this machine before, its rows are not looked at.

    Args:
        path: The dataset's.
        manifest: The dataset's.
        data_nbytes: Bytes of data.mdb, which the manifest states, too.
        io: "mmap" or "pread".

    Raises:
        CorruptError: It is not the file that was written, contradicts itself, or the disk cannot read it.
        FormatError: Its columns are not those of the manifest's fields.
    """
    where = path / manifest.index_file
    with opened_index(where) as descriptor:
        stamp = Stamp(descriptor, manifest)
        facts = stamp.recall()
        nbytes = manifest.sizes["index_nbytes"]
        content = read_index(where, descriptor, io, nbytes, was_read=facts is not None)
        index = Index(path, manifest, data_nbytes, content, facts)
        if facts is None:
            stamp.remember(index.facts)
    return index
