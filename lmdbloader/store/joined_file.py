"""Several data files as one: in one range of addresses, and with offsets that count through all of them."""

from __future__ import annotations

import bisect
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.base import system
from lmdbloader.base.limits import no_address_space
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import DATA_FILE
from lmdbloader.format.manifest import Manifest, part_begins
from lmdbloader.kernels.runtime.guard_words import BY_DIRECTORY, NUM_ENTRY, NUM_HEAD, NUM_MARKS
from lmdbloader.store.opening import I64, IO, DataFile, guard_of, wrong_size


class JoinedFile(DataFile):
    """Open data files, one behind the other, each at a multiple of 2 MiB; used as one.

    Attributes:
        io, nbytes, data: As of a DataFile, of all files together. Bytes between the files must not be touched.
        descriptor: The first file's.
        begins: Where each file begins.
        names: Of the files, for messages.
    """

    def __init__(self, path: Path, files: Sequence[DataFile], names: Sequence[str], io: IO) -> None:
        """Join files.

        Args:
            path: Of the dataset, for messages.
            files: At least one, opened with "pread"; this keeps them. None is empty.
            names: Of the files, for messages.
            io: "mmap" or "pread".

        Raises:
            OptionError: The process may not map that many bytes or files, or the system cannot map files in a row.
        """
        self.io, self._files, self.names = io, tuple(files), tuple(names)
        *self.begins, self.nbytes = part_begins([file.nbytes for file in files])
        self.descriptor = files[0].descriptor
        self._map: Any = b""
        if io == "mmap":
            self._map = _map(path, [(f.descriptor, f.nbytes, b) for f, b in zip(files, self.begins, strict=True)])
        self.data = np.frombuffer(self._map, np.uint8)
        self._guards = [guard_of(file.descriptor, file.nbytes) for file in files]
        self._directory = self._make_directory()
        self._begins = np.array(self.begins, np.int64)
        self._ends = self._begins + np.array([file.nbytes for file in files], np.int64)
        self._descriptors = np.array([file.descriptor for file in files], np.int64)

    def _make_directory(self) -> I64:
        """Return the words by which kernels find the file of a payload."""
        words = np.zeros(NUM_HEAD + NUM_ENTRY * len(self._files), np.int64)
        words[NUM_MARKS] = -len(self._files)
        words[NUM_HEAD:].reshape(-1, NUM_ENTRY)[:] = [
            (begin, file.nbytes, guard.ctypes.data, file.descriptor, 0)
            for begin, file, guard in zip(self.begins, self._files, self._guards, strict=True)
        ]
        return words

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The files that it consists of."""
        return self._files

    def with_io(self, path: Path, io: IO) -> JoinedFile:
        """Return the same open files with another `io`; `path` is for messages."""
        return JoinedFile(path, self._files, self.names, io)

    def for_kernels(self) -> tuple[int, int, int, int]:
        """As `DataFile.for_kernels`."""
        by = BY_DIRECTORY if self.io == "pread" else -1
        return self.data.ctypes.data, self.nbytes, by, self._directory.ctypes.data

    def _find(self, at: int) -> tuple[DataFile, int]:
        """Return the file of a byte, and its place there."""
        number = max(bisect.bisect_right(self.begins, at) - 1, 0)
        return self._files[number], at - self.begins[number]

    def read(self, at: int, nbytes: int) -> bytes:
        """Return a copy of some bytes of one file, fewer at its end.

        Raises:
            OSError: The disk cannot read them.
        """
        file, here = self._find(at)
        return file.read(here, nbytes)

    def read_into(self, buffer: Any, at: int) -> int:
        """As `DataFile.read_into`, of one file."""
        file, here = self._find(at)
        return file.read_into(buffer, here)

    def places(self, starts: I64, stops: I64) -> tuple[I64, I64, I64, I64]:
        """As `DataFile.places`."""
        first = np.maximum(np.searchsorted(self._begins, starts, side="right") - 1, 0)
        last = np.maximum(np.searchsorted(self._begins, stops, side="left") - 1, 0)
        counts = np.maximum(last - first + 1, 1)
        # A range over several files is one in each of them.
        owner = np.repeat(np.arange(len(starts)), counts)
        number = first[owner] + np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        low = np.maximum(starts[owner], self._begins[number])
        high = np.minimum(stops[owner], self._ends[number])
        kept = low < high
        low, high, number = low[kept], high[kept], number[kept]
        return low, high, self._descriptors[number], self._begins[number]

    def is_cached(self, at: int) -> bool | None:
        """As `DataFile.is_cached`."""
        file, here = self._find(at)
        return file.is_cached(here)

    def place(self, at: int) -> tuple[str, int]:
        """As `DataFile.place`."""
        number = max(bisect.bisect_right(self.begins, at) - 1, 0)
        return self.names[number], at - self.begins[number]

    def lost(self) -> tuple[str, int] | None:
        """As `DataFile.lost`."""
        for name, file in zip(self.names, self._files, strict=True):
            if found := file.lost():
                return name, found[1]
        return None


def open_data(path: Path, manifest: Manifest, io: IO) -> DataFile:
    """Return the open data file of a dataset, or those of a set as one.

    Raises:
        FileNotFoundError: One is missing.
        CorruptError: One is shorter or longer than the manifest states.
        OptionError: The process may not open or map so many.
    """
    if not manifest.parts:
        return _of_length(DataFile(path / DATA_FILE, io), path, DATA_FILE, manifest.sizes["data_nbytes"])
    names = [f"{part.name}/{DATA_FILE}" for part in manifest.parts]
    files = []
    try:
        for name, part in zip(names, manifest.parts, strict=True):
            files.append(_of_length(DataFile(path / name, "pread"), path, name, part.data_nbytes))
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        raise OptionError(
            f"{path}: has {len(names)} parts, and this process may not open that many files ({len(files)} are open). "
            "Raise the limit with `ulimit -n`, or write them into one with `lmdbloader merge`."
        ) from error
    return JoinedFile(path, files, names, io)


def _of_length(file: DataFile, path: Path, name: str, expected: int) -> DataFile:
    if file.nbytes != expected:
        raise wrong_size(path / name, file.nbytes, expected, path)
    return file


def _map(path: Path, files: Sequence[tuple[int, int, int]]) -> Any:
    """Return a map of files; see `system.map_in_a_row`."""
    nbytes = files[-1][1] + files[-1][2]
    try:
        return system.map_in_a_row(files, nbytes)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            raise OptionError(
                f"{path}: has {len(files)} parts, and this system cannot map several files in a row. "
                'Read it without a map, with io="pread"; or write the parts into one with `lmdbloader merge`.'
            ) from error
        if error.errno != errno.ENOMEM:
            raise
        advice = 'Read it without a map, with io="pread".'
        raise OptionError(no_address_space(path, nbytes, advice)) from error
