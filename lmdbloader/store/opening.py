"""Opens the files of a dataset: its manifest, and its data files as one, as a map or by their descriptors."""

from __future__ import annotations

import bisect
import errno
import itertools
import mmap
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from lmdbloader.base import system
from lmdbloader.base.arguments import local_path
from lmdbloader.base.disk_errors import unreadable_is_corrupt
from lmdbloader.base.files import NotRegularError, open_regular
from lmdbloader.base.text import command
from lmdbloader.errors import CorruptError, FormatError, NotFoundError, OptionError
from lmdbloader.format.layout import INDEX_FILE, MANIFEST_FILE, PARTIAL_SUFFIX, REMOTE_FILE
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, Manifest, parse_manifest, part_begins
from lmdbloader.kernels.runtime.guard_words import BY_DIRECTORY, LENGTH, NUM_ENTRY, NUM_HEAD, NUM_MARKS, UNIT_BITS

if TYPE_CHECKING:
    from lmdbloader.store.remote.blocks import Blocks

I64 = npt.NDArray[np.int64]
IO = Literal["mmap", "pread"]
_RESUME = "Run the same command or call again: it resumes."
# A local file system returns a file's length in a tenth of this or less; a network one may have to ask a server.
_AT_ONCE_SECONDS = 4e-6


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
        NotFoundError: There is nothing at `path`.
        OptionError: It is not a path, or a URL.
    """
    folder = local_path("path", path)
    if not folder.is_dir():
        raise _not_a_folder(folder)
    if folder.name.endswith(PARTIAL_SUFFIX):
        raise FormatError(f"{folder}: is an unfinished dataset. {_RESUME}")
    try:
        with (
            unreadable_is_corrupt(folder / MANIFEST_FILE, dataset=folder),
            open(_open(folder / MANIFEST_FILE), "rb") as file,
        ):
            # `read` allocates as many bytes as it is asked for.
            nbytes = min(os.fstat(file.fileno()).st_size, MAX_MANIFEST_NBYTES)
            return parse_manifest(file.read(nbytes + 1), str(folder))
    except (FileNotFoundError, IsADirectoryError):
        if (folder / REMOTE_FILE).exists():
            raise FormatError(f"{folder}: is the cache of a dataset at a URL. Open the URL.") from None
        if (folder / INDEX_FILE).exists():
            raise FormatError(
                f"{folder}: {MANIFEST_FILE} is missing. {command('repair', folder)} makes a new one."
            ) from None
        if inner := sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST_FILE}")):
            raise FormatError(f"{folder}: is a folder of datasets. Open one of them: {', '.join(inner)}") from None
        raise FormatError(
            f"{folder}: has no {MANIFEST_FILE}, so it is not a dataset. Make one with `lmdbloader convert`; a Loader "
            "also reads a folder of images: lmdbloader.Loader(folder, ...)."
        ) from None


def _not_a_folder(path: Path) -> FormatError | NotFoundError:
    """Return the error for a path without a folder."""
    partial = path.with_name(path.name + PARTIAL_SUFFIX) if path.name else path
    if partial.is_dir():
        return FormatError(f"{path}: is not finished ({partial} is there). {_RESUME}")
    if path.exists():
        return FormatError(f"{path}: is a file; expected the folder of a dataset made by lmdbloader")
    return NotFoundError(f"{path.absolute()}: there is no such folder; expected a dataset made by lmdbloader")


class OpenFile:
    """A file, even if another one has its name since; closed with the last reference to this object.

    A process that may open few files keeps some open only while it uses them.

    Attributes:
        path: The file's; of one at a URL, of what is kept of it on the disk.
        descriptor: The file's; -1 if it does not stay open.
        nbytes: Its length when it was opened.
        tells_residency: Whether the system says truthfully which pages of its map are in memory.
        remote: What fetches the bytes of a file at a URL; None for one on a disk.
    """

    remote: Blocks | None = None

    def __init__(self, path: Path, *, descriptor: int | None = None) -> None:
        """Open a file, or take the descriptor of one that is open, which stays open.

        Raises:
            FormatError: It is not a regular file.
        """
        self.path, self.descriptor = path, _open(path) if descriptor is None else descriptor
        closing = weakref.finalize(self, _close, self.descriptor)
        found = os.fstat(self.descriptor)
        self.nbytes, self._inode = found.st_size, (found.st_dev, found.st_ino)
        self.tells_residency = system.tells_residency(self.descriptor)
        if descriptor is None and not system.may_stay_open(self.descriptor):
            self.descriptor = -1
            closing()

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open the file, unless it is, and return its descriptor.

        Raises:
            OSError: It cannot be opened, or another file has its name since (ESTALE).
        """
        if self.descriptor >= 0:
            yield self.descriptor
            return
        descriptor = _open(self.path)
        try:
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) != self._inode:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), os.fspath(self.path))
            yield descriptor
        finally:
            _close(descriptor)

    def read(self, at: int, nbytes: int) -> bytes:
        """Return a copy of some bytes, fewer at the end of the file.

        Raises:
            OSError: The disk cannot read them.
        """
        # Not through the map: a page that cannot be read would end the process.
        parts = []
        with self.opened() as descriptor:
            while nbytes and (part := system.read_at(descriptor, nbytes, at)):
                parts.append(part)
                at, nbytes = at + len(part), nbytes - len(part)
        return b"".join(parts)

    def read_into(self, buffer: Any, at: int) -> int:
        """Read into a writable buffer; return the number of bytes, 0 at the end of the file.

        Raises:
            OSError: The disk cannot read them.
        """
        with self.opened() as descriptor:
            return system.read_into(descriptor, buffer, at)

    def place(self, at: int) -> tuple[str, int]:
        """Return the name of the dataset's file that holds a byte, and its place there."""
        return self.path.name, at


class DataFile:
    """One or more open files in a row, each at a multiple of 2 MiB, used like one file.

    Attributes:
        files: The files; each read is of bytes of one of them.
        begins: The offset at which each begins.
        io: "mmap" or "pread"; "mmap" if this process may not keep all files open.
        nbytes: Of all together.
        data: (nbytes,) uint8, a read-only view of the map; (0,) with "pread". The bytes between two files must not be
            accessed.
        remote: What fetches the bytes of files at URLs; None if all are on a disk.
    """

    remote: Blocks | None = None

    def __init__(self, files: Sequence[OpenFile], io: IO, path: Path, *, begins: Sequence[int] | None = None) -> None:
        """Join files.

        Args:
            files: At least one file. Of several, none may be empty.
            io: "mmap" or "pread".
            path: The file or the dataset, for messages.
            begins: Where each file begins, and where the last one ends; by default as their lengths say.

        Raises:
            OptionError: The process may not map that many bytes or files, or the system cannot map several files into
                one range of addresses.
        """
        self.files, self.io, self._path = tuple(files), io, path
        if any(file.descriptor < 0 for file in files):
            self.io = "mmap"
        *self.begins, self.nbytes = begins or part_begins([file.nbytes for file in files])
        self._starts = np.array(self.begins, np.int64)
        self._stops = self._starts + np.array([file.nbytes for file in files], np.int64)
        self._descriptors = np.array([file.descriptor for file in files], np.int64)
        self.remote = files[0].remote if len(files) == 1 else None
        self._map: Any = b"" if self.io == "pread" else self._mapped()
        self.data: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._guards = [guard_of(file) for file in files] if self._map or len(files) > 1 else []
        self._words = np.zeros(1, np.int64)
        if self._guards:
            self._words = self._guards[0] if len(files) == 1 else self._directory()

    def _mapped(self) -> Any:
        """Return the map of all files."""
        try:
            only = self.files[0]
            if len(self.files) == 1 and only.descriptor >= 0:
                return mmap.mmap(only.descriptor, only.nbytes, access=mmap.ACCESS_READ) if only.nbytes else b""
            return system.map_in_a_row(self._places(), self.nbytes)
        except OSError as error:
            advice = 'Read it without a map, with io="pread".'
            if error.errno == errno.ENOTSUP:
                raise OptionError(
                    f"{self._path}: has {len(self.files)} parts, and this system cannot map several files into one "
                    f"range of addresses. {advice}"
                ) from error
            if error.errno != errno.ENOMEM:
                raise
            from lmdbloader.base.limits import no_address_space

            raise OptionError(no_address_space(self._path, self.nbytes, advice)) from error

    def _places(self) -> Iterator[tuple[int, int, int]]:
        for file, at in zip(self.files, self.begins, strict=True):
            if file.nbytes:  # a missing one has none
                with file.opened() as descriptor:
                    yield descriptor, file.nbytes, at

    def _directory(self) -> I64:
        """Return the table in which kernels look up the file of a payload."""
        rows = [(0, -1, 0, -1, 0)] + [
            (begin, file.nbytes, guard.ctypes.data, max(file.descriptor, 0), 0)  # a map needs none
            for begin, file, guard in zip(self.begins, self.files, self._guards, strict=True)
        ]
        units = np.arange(0, self.nbytes, 1 << UNIT_BITS)
        head = np.zeros(NUM_HEAD, np.int64)
        head[NUM_MARKS], head[LENGTH] = -len(self.files), self.nbytes
        numbers = np.searchsorted(self.begins, units, side="right")
        words = np.concatenate([head, np.array(rows, np.int64).ravel(), NUM_ENTRY * numbers])
        return words

    @cached_property
    def tells_residency(self) -> bool:
        """Whether the system says truthfully which pages of the map are in memory."""
        return all(file.tells_residency for file in self.files)

    def with_io(self, io: IO) -> DataFile:
        """Return the same open files with another `io`; this object if they do not all stay open.

        Raises:
            CorruptError: One was cut short since it was opened.
        """
        if self._descriptors.min() < 0:  # only their map is left of them, whatever has their names by now
            return self
        if lost := self.lost():
            file, nbytes = lost
            raise wrong_size(file.path, nbytes, file.nbytes, self._path)
        return DataFile(self.files, io, self._path)

    def for_kernels(self) -> tuple[int, int, int, int]:
        """Return the first four numbers of the `file` of kernels: see `lmdbloader.kernels.decode.fetch`."""
        by = -1 if self.io == "mmap" else self.files[0].descriptor if len(self.files) == 1 else BY_DIRECTORY
        return self.data.ctypes.data, self.nbytes, by, self._words.ctypes.data if self._guards else 0

    def _find(self, at: int) -> tuple[OpenFile, int]:
        """Return the file that holds a byte, and the byte's offset in that file."""
        number = max(bisect.bisect_right(self.begins, at) - 1, 0)
        return self.files[number], at - self.begins[number]

    def read(self, at: int, nbytes: int) -> bytes:
        """Return a copy of some bytes of one file, fewer at its end.

        Raises:
            OSError: The disk cannot read them.
        """
        file, here = self._find(at)
        return file.read(here, nbytes)

    def read_into(self, buffer: Any, at: int) -> int:
        """Read bytes of one file into a writable buffer; return how many, 0 at its end.

        Raises:
            OSError: The disk cannot read them.
        """
        file, here = self._find(at)
        return file.read_into(buffer, here)

    def places(self, starts: I64, stops: I64) -> tuple[I64, I64, I64, I64]:
        """Return ranges of one file each, their descriptors, and where their files begin, each (m,).

        Args:
            starts, stops: (n,) int64, in order. A range that spans several files becomes one in each of them.
        """
        first = np.maximum(np.searchsorted(self._starts, starts, side="right") - 1, 0)
        last = np.maximum(np.searchsorted(self._starts, stops, side="left") - 1, 0)
        counts = np.maximum(last - first + 1, 1)
        owner = np.repeat(np.arange(len(starts)), counts)
        number = first[owner] + np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        low, high = np.maximum(starts[owner], self._starts[number]), np.minimum(stops[owner], self._stops[number])
        kept = low < high
        low, high, number = low[kept], high[kept], number[kept]
        return low, high, self._descriptors[number], self._starts[number]

    def is_cached(self, at: int) -> bool | None:
        """Return whether the page with a byte is in memory; None if the system does not report it."""
        file, here = self._find(at)
        with file.opened() as descriptor:
            return system.is_cached(descriptor, here)

    def place(self, at: int) -> tuple[str, int]:
        """Return the name of the dataset's file that holds a byte, and its place there."""
        file, here = self._find(at)
        return file.place(here)

    def lost(self) -> tuple[OpenFile, int] | None:
        """Return a file that is shorter than when it was opened, and its length; None if there is none.

        Raises:
            OSError: The system cannot tell.
        """
        for file in self.files:
            with file.opened() as descriptor:
                if (nbytes := os.fstat(descriptor).st_size) < file.nbytes:
                    return file, nbytes
        return None


def open_data(path: Path, manifest: Manifest, io: IO) -> DataFile:
    """Open the data files of a dataset.

    Raises:
        FileNotFoundError: A file is missing.
        CorruptError: A file is shorter or longer than the manifest states.
        OptionError: The process may not open or map that many files.
    """
    names, files = manifest.data_files, list[OpenFile]()
    try:
        for name, part in zip(names, manifest.parts, strict=True):
            file = OpenFile(path / name)
            if file.nbytes != part.data_nbytes:
                raise wrong_size(path / name, file.nbytes, part.data_nbytes, path)
            files.append(file)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        raise OptionError(
            f"{path}: has {len(names)} parts, and this process may not open that many files ({len(files)} are open). "
            "Raise the limit with `ulimit -n`, or convert again with larger parts."
        ) from error
    return DataFile(files, io, path)


def guard_of(file: OpenFile) -> I64:
    """Return the words that hold which pages of the map of a file kernels may touch."""
    bits = mmap.PAGESIZE.bit_length() - 1
    num_marks = -(-file.nbytes // (64 << bits))
    guard = np.zeros(NUM_HEAD + num_marks, np.int64)
    guard[:NUM_HEAD] = (
        file.descriptor, file.nbytes, file.descriptor >= 0 and _watches_length(file.descriptor), system.POPULATE_READ,
        file.tells_residency, bits, num_marks, 0,
    )  # fmt: skip
    return guard


def _watches_length(descriptor: int) -> bool:
    """Return whether kernels check the file's length: it can change, and asking for it takes no request to a server."""
    times = [time.perf_counter()]
    for _ in range(8):
        os.lseek(descriptor, 0, os.SEEK_END)
        times.append(time.perf_counter())
    return min(b - a for a, b in itertools.pairwise(times)) < _AT_ONCE_SECONDS


def wrong_size(path: Path, found: int, expected: int, dataset: Path) -> CorruptError:
    """Return the error for a file whose length is not the one in the manifest."""
    reason = f"{found} bytes, expected {expected}: it is cut short or was changed. Copy it again"
    return CorruptError(f"{path}: {reason}, or see {command('verify', dataset)}.", path=str(dataset))


def _open(path: Path) -> int:
    """Return the descriptor of a file of a dataset.

    Raises:
        FormatError: It is not a regular file.
    """
    try:
        return open_regular(path)
    except NotRegularError as error:
        raise FormatError(f"{path}: {error.strerror}; expected a file of a dataset made by lmdbloader.") from error


def _close(descriptor: int) -> None:
    with suppress(OSError):  # the server is gone; nothing was written
        os.close(descriptor)
