"""The open files of one dataset: its manifest, its index, and data.mdb through a map or by its descriptor."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from lmdbloader.base.disk_errors import DISK_FAILED, unreadable_is_corrupt
from lmdbloader.base.files import NotRegularError, open_regular
from lmdbloader.base.limits import no_address_space
from lmdbloader.base.text import plain
from lmdbloader.errors import CorruptError, FormatError, OptionError
from lmdbloader.format.layout import DATA_FILE, FORMAT_NAME, INDEX_FILE, MANIFEST_FILE, PARTIAL_SUFFIX
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, Manifest, parse_manifest
from lmdbloader.kernels.codec_numbers import DAMAGES, OUT_OF_BOUNDS
from lmdbloader.kernels.runtime.guard_words import NUM_HEAD
from lmdbloader.store.index import Index

if TYPE_CHECKING:
    from typing_extensions import Self

IO = Literal["mmap", "pread"]
_READ_WITHOUT_MAP = 'Read it without a map, with io="pread".'
# MADV_POPULATE_READ of Linux 5.14, which Python lacks: it maps pages, or fails if one cannot be read.
POPULATE_READ = 22 if sys.platform == "linux" else -1
# A local file system returns a file's length in a tenth of this or less; a network one may have to ask a server.
_AT_ONCE_SECONDS = 4e-6
_PIECE_NBYTES = 2**20
# By the status of a kernel.


def check_io(io: str) -> IO:
    """Return `io` if it is a way to read a data file.

    Raises:
        OptionError: It is neither "mmap" nor "pread".
    """
    if io not in get_args(IO):
        raise OptionError(f"io={io!r}: expected 'mmap' or 'pread'")
    return io  # type: ignore[return-value]


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Return a dataset's manifest.

    Raises:
        FormatError: The folder is not a finished dataset of this format version.
        CorruptError: The disk cannot read it.
        FileNotFoundError: There is nothing at `path`.
    """
    folder = Path(path)
    if not folder.is_dir():
        partial = folder.with_name(folder.name + PARTIAL_SUFFIX)
        if partial.is_dir():
            raise FormatError(
                f"{folder}: its conversion is not finished ({partial} is there). Run the conversion again."
            )
        kind = "is a file, not a dataset folder" if folder.exists() else "there is no such folder"
        raise (FormatError if folder.exists() else FileNotFoundError)(
            plain(f"{folder}: {kind}; expected a dataset made by lmdbloader.")
        )
    if folder.name.endswith(PARTIAL_SUFFIX):
        raise FormatError(f"{folder}: is an unfinished conversion. Run the conversion again.")
    try:
        with (
            unreadable_is_corrupt(folder / MANIFEST_FILE, dataset=folder),
            open(_open(folder / MANIFEST_FILE), "rb") as file,
        ):
            # `read` allocates as many bytes as it is asked for.
            nbytes = min(os.fstat(file.fileno()).st_size, MAX_MANIFEST_NBYTES)
            return parse_manifest(file.read(nbytes + 1), str(folder))
    except (FileNotFoundError, IsADirectoryError):
        if (folder / INDEX_FILE).exists():
            raise FormatError(
                f"{folder}: {MANIFEST_FILE} is missing. `lmdbloader repair {folder}` makes a new one."
            ) from None
        kind = "an LMDB that lmdbloader did not write" if (folder / DATA_FILE).exists() else "not a dataset"
        raise FormatError(
            f"{folder}: has no {MANIFEST_FILE}, so it is {kind} (a {FORMAT_NAME} dataset has {MANIFEST_FILE}, "
            f"{INDEX_FILE} and {DATA_FILE}). Make one with `lmdbloader convert`."
        ) from None


class DataFile:
    """An open data file, even if another one has its name since; closed with the last reference to this object.

    Attributes:
        io: "mmap" or "pread".
        nbytes: The file's length when it was opened.
        descriptor: The file's.
        data: (nbytes,) uint8, a read-only view of the map; (0,) with "pread".
    """

    def __init__(self, path: Path, io: IO, *, descriptor: int | None = None) -> None:
        """Open a file.

        Args:
            path: The file's.
            io: "mmap" or "pread".
            descriptor: The file's if it is open already; it is duplicated.

        Raises:
            OptionError: The process may not map that many bytes.
        """
        self.io = io
        self.descriptor = _open(path) if descriptor is None else os.dup(descriptor)
        weakref.finalize(self, _close, self.descriptor)
        self.nbytes = os.fstat(self.descriptor).st_size
        self._map: Any = b""
        if io == "mmap" and self.nbytes:
            self._map = _map(path, self.descriptor, self.nbytes, _READ_WITHOUT_MAP)
        self.data: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._guard = self._make_guard() if self._map else None

    def _make_guard(self) -> npt.NDArray[np.int64]:
        """Return the words that hold which pages of the map kernels may touch."""
        bits = mmap.PAGESIZE.bit_length() - 1
        num_marks = -(-self.nbytes // (64 << bits))
        guard = np.zeros(NUM_HEAD + num_marks, np.int64)
        guard[: NUM_HEAD] = (
            self.descriptor, self.nbytes, _tells_length_at_once(self.descriptor), POPULATE_READ,
            tells_residency(self.descriptor), bits, num_marks, 0,
        )  # fmt: skip
        return guard

    def for_kernels(self) -> tuple[int, int, int, int]:
        """Return the map's address, the file's length, a descriptor to use instead or -1, and the map's guard or 0."""
        guard = 0 if self._guard is None else self._guard.ctypes.data
        return self.data.ctypes.data, self.nbytes, self.descriptor if self.io == "pread" else -1, guard

    def read(self, at: int, nbytes: int) -> bytes:
        """Return a copy of some bytes; fewer than asked for where the file ends.

        Raises:
            OSError: The disk does not read them.
        """
        # Also where there is a map: a page of it that does not read would end the process.
        parts = []
        while nbytes and (part := os.pread(self.descriptor, nbytes, at)):
            parts.append(part)
            at, nbytes = at + len(part), nbytes - len(part)
        return b"".join(parts)


def open_index(path: Path, io: IO, expected_nbytes: int) -> mmap.mmap | bytes:
    """Return the content of an index: mapped, or with "pread" read into memory.

    Raises:
        CorruptError: Its length is not the one in the manifest, or the disk cannot read it.
    """
    with unreadable_is_corrupt(path, dataset=path.parent):
        return _read_index(path, io, expected_nbytes)


def _read_index(path: Path, io: IO, expected_nbytes: int) -> mmap.mmap | bytes:
    descriptor = _open(path)
    try:
        nbytes = os.fstat(descriptor).st_size
        if nbytes != expected_nbytes:
            raise wrong_size(path, nbytes, expected_nbytes)
        if io == "mmap":
            return _map_readable(path, descriptor, nbytes) if nbytes else b""
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(nbytes)
        if len(content) != nbytes:
            raise wrong_size(path, len(content), nbytes)
        return content
    finally:
        os.close(descriptor)


def _map_readable(path: Path, descriptor: int, nbytes: int) -> mmap.mmap:
    """Return a map of a file after reading all of it once: a page that cannot be read would end the process.

    Raises:
        OSError: The disk cannot read it.
    """
    mapped = _map(path, descriptor, nbytes, _READ_WITHOUT_MAP)
    if POPULATE_READ >= 0:
        with suppress(OSError):  # not supported, or a page that cannot be read
            mapped.madvise(POPULATE_READ)
            return mapped
    read_through(descriptor)
    return mapped


def read_through(descriptor: int) -> None:
    """Read a file from beginning to end, to find unreadable parts before it is mapped.

    Raises:
        OSError: The disk cannot read it.
    """
    buffer, at = bytearray(_PIECE_NBYTES), 0
    while nbytes := os.preadv(descriptor, [buffer], at):
        at += nbytes


def tells_residency(descriptor: int) -> bool:
    """Return whether this process may learn which pages of a map are in memory; Linux reports all to others."""
    try:
        return os.geteuid() == os.fstat(descriptor).st_uid or os.access(f"/proc/self/fd/{descriptor}", os.W_OK)
    except OSError:
        return False


def _tells_length_at_once(descriptor: int) -> bool:
    """Return whether the system knows a file's length without asking a server."""
    times = [time.perf_counter()]
    for _ in range(8):
        os.lseek(descriptor, 0, os.SEEK_END)
        times.append(time.perf_counter())
    return min(b - a for a, b in itertools.pairwise(times)) < _AT_ONCE_SECONDS


def wrong_size(path: Path, found: int, expected: int) -> CorruptError:
    """Return the error for a file whose length is not the one in the manifest."""
    return CorruptError(
        f"{path}: {found} bytes, expected {expected}: it is cut short or was changed. Copy it again; "
        f"`lmdbloader verify {path.parent}` suggests other remedies.",
        path=str(path.parent),
    )


def map_file(path: Path) -> mmap.mmap | bytes:
    """Return a read-only map of a file; empty bytes for an empty one, which cannot be mapped."""
    descriptor = _open(path)
    try:
        nbytes = os.fstat(descriptor).st_size
        return _map(path, descriptor, nbytes, "This needs the map.") if nbytes else b""
    finally:
        os.close(descriptor)


def _map(path: Path, descriptor: int, nbytes: int, advice: str) -> mmap.mmap:
    """Return a read-only map of an open file.

    Raises:
        OptionError: The process may not map that many bytes.
    """
    try:
        return mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise OptionError(no_address_space(path, nbytes, advice)) from error


def _close(descriptor: int) -> None:
    with suppress(OSError):  # the server is gone; nothing was written
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return open_regular(path)
    except NotRegularError as error:
        raise FormatError(f"{path}: {error.strerror}; expected a file of a dataset made by lmdbloader.") from error


class OpenDataset:
    """The open files of one dataset; it pickles as its path.

    Attributes:
        path: The dataset's, absolute.
        io: "mmap" reads through a memory map; every page is requested before it is first touched. "pread" copies
            through the file's descriptor, so a file that is cut short meanwhile cannot end the process.
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
                f"`lmdbloader verify {self.path}` suggests other remedies.",
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
        """Return a reader of files that are open already; reading payloads beyond the data file is a CorruptError."""
        reader = cls.__new__(cls)
        reader.path, reader.manifest = path, manifest
        reader._use(file, index)
        return reader

    def with_io(self, io: IO) -> Self:
        """Return a reader of the same open files with another `io`, even if other files have their names since.

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
        """The descriptor of the file that is read, even if another one has its name since; closed with the reader."""
        return self.data_file.descriptor

    @property
    def file(self) -> tuple[int, int, int, int]:
        """As `DataFile.for_kernels`."""
        return self.data_file.for_kernels()

    def image_shape(self, name: str, row: int) -> tuple[int, int, int]:
        """Return (C, H, W) of one stored image."""
        a = self.index.arrays
        return int(a[f"{name}.channels"][row]), int(a[f"{name}.height"][row]), int(a[f"{name}.width"][row])

    def image_dtype(self, name: str, row: int) -> np.dtype[Any]:
        """Return uint8 or uint16."""
        return np.dtype(np.uint16 if self.index.arrays[f"{name}.bits"][row] == 16 else np.uint8)

    def source(self, row: int) -> str | None:
        """Return the relative path of the file that a sample was made from, None if the dataset has no sources."""
        return self.index.text("source", row) if self.manifest.with_source else None

    def where(self, name: str, row: int) -> str:
        """Return dataset, field, sample and source, for messages."""
        source = self.source(row)
        return f"{self.path}: field {name!r} of sample {row}" + (f" (from {source})" if source else "")

    def damaged(self, name: str, row: int, status: int, said: OSError | None = None) -> CorruptError:
        """Return the error for a kernel's status; `said` is the system's error, if known."""
        reason = (status == OUT_OF_BOUNDS and self._why_unread(name, row, said)) or DAMAGES[status]
        return self.corrupt(
            name,
            row,
            f"{reason}. `lmdbloader verify {self.path}` lists every damaged sample; "
            "restore the dataset from a copy, or convert again; "
            f"`lmdbloader repair {self.path} OUT` leaves them out of a new one.",
        )

    def _why_unread(self, name: str, row: int, said: OSError | None) -> str:
        """Return why a payload was not read; empty if the system gives no reason."""
        a = self.index.arrays
        at, nbytes = int(a[f"{name}.offset"][row]), int(a[f"{name}.stored_nbytes"][row])
        try:
            size = os.fstat(self.descriptor).st_size
            if size < self.data_file.nbytes:
                return f"{DATA_FILE} was cut to {size} bytes after it was opened"
            if said is None:
                self.data_file.read(at, nbytes)
        except OSError as error:
            said = error
        if said is None or said.errno not in DISK_FAILED:
            return ""
        return f"the disk cannot read bytes {at} to {at + nbytes} of {DATA_FILE} ({said.strerror})"

    def corrupt(self, name: str, row: int, reason: str) -> CorruptError:
        """Return the error for one payload; it names dataset, field, sample and source."""
        return CorruptError(
            f"{self.where(name, row)}: {reason}", sample=row, field=name, source=self.source(row), path=str(self.path)
        )
