"""The files of one dataset, open: what lies in them, and the errors that name its samples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE, MANIFEST_FILE
from lmdbloader.format.manifest import Manifest
from lmdbloader.kernels.codec_numbers import DAMAGES, OUT_OF_BOUNDS
from lmdbloader.store.diskerrors import DISK_FAILED
from lmdbloader.store.index import Index
from lmdbloader.store.opening import IO, DataFile, check_io, open_index, read_manifest, wrong_size

if TYPE_CHECKING:
    from typing_extensions import Self


class OpenDataset:
    """The files of one dataset, as they were opened; it pickles as its path.

    Attributes:
        path: Of the dataset, absolute.
        io: "mmap" reads through a memory map, every page of which is asked for before it is touched first; "pread"
            reads copies by the file's descriptor, which nobody who cuts the file can turn into the end of the process.
        manifest: Its description.
        fields: Its fields by name.
        index: Its columns.
        data_file: The open data file.
    """

    def __init__(self, path: str | os.PathLike[str], *, io: IO = "mmap") -> None:
        """Open a dataset.

        Raises:
            FileNotFoundError: There is nothing at `path`.
            FormatError: Not a finished dataset of this format version.
            CorruptError: A file is cut short or damaged.
            OptionError: `io` is neither "mmap" nor "pread".
        """
        io = check_io(io)
        self.path = Path(path).absolute()
        self.manifest = read_manifest(path)
        try:
            data = DataFile(self.path / DATA_FILE, io)
            expected = self.manifest.sizes["data_nbytes"]
            if data.nbytes != expected:
                raise wrong_size(self.path / DATA_FILE, data.nbytes, expected)
            content = open_index(self.path / INDEX_FILE, io, self.manifest.sizes["index_nbytes"])
            self._use(data, Index(self.path, self.manifest, expected, content))
        except (FileNotFoundError, IsADirectoryError) as error:
            raise CorruptError(
                f"{error.filename}: is missing. Copy the dataset again; "
                f"`lmdbloader verify {self.path}` says what else helps.",
                path=str(self.path),
            ) from error
        except KeyError as error:
            raise FormatError(f"{self.path / MANIFEST_FILE}: does not state {error}") from error

    def _use(self, file: DataFile, index: Index) -> None:
        self.io = file.io
        self.fields = {f.name: f for f in self.manifest.fields}
        self.index = index
        self.data_file = file

    @classmethod
    def of_files(cls, path: Path, manifest: Manifest, file: DataFile, index: Index) -> Self:
        """Return a reader of files that are open already; payloads that lie beyond the data file are CorruptErrors."""
        reader = cls.__new__(cls)
        reader.path, reader.manifest = path, manifest
        reader._use(file, index)
        return reader

    def with_io(self, io: IO) -> Self:
        """Return a reader of the very same files, whatever has their names by now, that reads them as `io` says.

        Raises:
            OptionError: `io` is neither "mmap" nor "pread".
        """
        if check_io(io) == self.io:
            return self
        file = DataFile(self.path / DATA_FILE, io, descriptor=self.descriptor)
        if file.nbytes != self.data_file.nbytes:
            raise wrong_size(self.path / DATA_FILE, file.nbytes, self.data_file.nbytes)
        index = Index(self.path, self.manifest, file.nbytes, bytes(self.index.content))
        return self.of_files(self.path, self.manifest, file, index)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.manifest.num_samples

    def __getstate__(self) -> tuple[Path, str, IO]:
        return self.path, self.manifest.manifest_digest, self.io

    def __setstate__(self, state: tuple[Path, str, IO]) -> None:
        OpenDataset.__init__(self, state[0], io=state[2])
        if self.manifest.manifest_digest != state[1]:
            raise CorruptError(
                f"{self.path}: was replaced by another dataset since this reader was pickled. Open it again.",
                path=str(self.path),
            )

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The whole data file (n,), a read-only view of the map; empty with io="pread"."""
        return self.data_file.data

    @property
    def descriptor(self) -> int:
        """A descriptor of the very file that is read, whatever lies under its name now; closed with the reader."""
        return self.data_file.descriptor

    @property
    def file(self) -> tuple[int, int, int, int]:
        """What kernels read from: the map's address, the file's bytes, a descriptor to use instead, the map's guard."""
        return self.data_file.for_kernels()

    def image_shape(self, name: str, row: int) -> tuple[int, int, int]:
        """Return (C, H, W) of one stored image."""
        a = self.index.arrays
        return int(a[f"{name}.channels"][row]), int(a[f"{name}.height"][row]), int(a[f"{name}.width"][row])

    def image_dtype(self, name: str, row: int) -> np.dtype[Any]:
        """Return uint8 or uint16."""
        return np.dtype(np.uint16 if self.index.arrays[f"{name}.bits"][row] == 16 else np.uint8)

    def source(self, row: int) -> str | None:
        """Return the relative path of the file that a sample was made from, None where the dataset has none."""
        return self.index.text("source", row) if self.manifest.with_source else None

    def where(self, name: str, row: int) -> str:
        """Return dataset, field, sample and source, for messages."""
        source = self.source(row)
        return f"{self.path}: field {name!r} of sample {row}" + (f" (from {source})" if source else "")

    def damaged(self, name: str, row: int, status: int, said: OSError | None = None) -> CorruptError:
        """Return the error for a kernel's status; `said` is what the system said, where that is known."""
        reason = (status == OUT_OF_BOUNDS and self._why_unread(name, row, said)) or DAMAGES[status]
        return self.corrupt(
            name,
            row,
            f"{reason}. `lmdbloader verify {self.path}` lists every damaged sample; "
            "restore the dataset from a copy, or convert again; "
            f"`lmdbloader repair {self.path} OUT` leaves them out of a new one.",
        )

    def _why_unread(self, name: str, row: int, said: OSError | None) -> str:
        """Return why a payload was not read; nothing where the system does not say it."""
        a = self.index.arrays
        at, nbytes = int(a[f"{name}.offset"][row]), int(a[f"{name}.stored_nbytes"][row])
        try:
            size = os.fstat(self.descriptor).st_size
            if size < self.data_file.nbytes:
                return f"{DATA_FILE} was cut to {size} bytes since it was opened"
            if said is None:
                self.data_file.read(at, nbytes)
        except OSError as error:
            said = error
        if said is None or said.errno not in DISK_FAILED:
            return ""
        return f"the disk does not read bytes {at} to {at + nbytes} of {DATA_FILE} ({said.strerror})"

    def corrupt(self, name: str, row: int, reason: str) -> CorruptError:
        """Return the error for one payload, which names dataset, field, sample and source."""
        return CorruptError(
            f"{self.where(name, row)}: {reason}", sample=row, field=name, source=self.source(row), path=str(self.path)
        )
