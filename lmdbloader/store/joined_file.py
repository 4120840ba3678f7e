"""Several data files as one file: mapped into one range of addresses, with offsets that count through all of them."""

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
from lmdbloader.format.manifest import Manifest, part_begins
from lmdbloader.kernels.runtime.guard_words import BY_DIRECTORY, LENGTH, NUM_ENTRY, NUM_HEAD, NUM_MARKS, UNIT_BITS
from lmdbloader.store.opening import I64, IO, DataFile, guard_of, wrong_size

# More parts than this may not fit into the usual limits of open files, 1,024 on Linux and 256 on macOS.
_FEW_FILES = 32


class JoinedFile(DataFile):
    """Open data files in a row, each at a multiple of 2 MiB, used like one file.

    Attributes:
        io, nbytes, data: As in DataFile, for all files together. The bytes between two files must not be accessed.
        descriptor: The first file's.
        begins: The offset at which each file begins.
        names: The names of the files, for messages.
    """

    def __init__(
        self,
        path: Path,
        files: Sequence[DataFile],
        names: Sequence[str],
        io: IO,
        *,
        begins: Sequence[int] | None = None,
    ) -> None:
        """Join files.

        Args:
            path: The dataset, for messages.
            files: At least one file, opened with "pread"; this object keeps them open. No file may be empty.
            names: The names of the files, for messages.
            io: "mmap" or "pread".
            begins: Where each file begins, and where the last one ends; by default as their lengths say.

        Raises:
            OptionError: The process may not map that many bytes or files, or the system cannot map several files into
                one range of addresses.
        """
        self.io, self._files, self.names = io, tuple(files), tuple(names)
        *self.begins, self.nbytes = begins or part_begins([file.nbytes for file in files])
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
        """Return the table in which kernels look up the file of a payload."""
        rows = [(0, -1, 0, -1, 0)] + [
            (begin, file.nbytes, guard.ctypes.data, file.descriptor, 0)
            for begin, file, guard in zip(self.begins, self._files, self._guards, strict=True)
        ]
        units = np.arange(0, self.nbytes, 1 << UNIT_BITS)
        head = np.zeros(NUM_HEAD, np.int64)
        head[NUM_MARKS], head[LENGTH] = -len(self._files), self.nbytes
        numbers = np.searchsorted(self.begins, units, side="right")
        words = np.concatenate([head, np.array(rows, np.int64).ravel(), NUM_ENTRY * numbers])
        return words

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The files that it consists of."""
        return self._files

    def with_io(self, path: Path, io: IO) -> JoinedFile:
        """Return the same open files with another `io`; `path` is for messages."""
        return JoinedFile(path, self._files, self.names, io)

    def for_kernels(self) -> tuple[int, int, int, int]:
        """See `DataFile.for_kernels`."""
        by = BY_DIRECTORY if self.io == "pread" else -1
        return self.data.ctypes.data, self.nbytes, by, self._directory.ctypes.data

    def _find(self, at: int) -> tuple[DataFile, int]:
        """Return the file that holds a byte, and the byte's offset in that file."""
        number = max(bisect.bisect_right(self.begins, at) - 1, 0)
        return self._files[number], at - self.begins[number]

    def read(self, at: int, nbytes: int) -> bytes:
        """See `DataFile.read`; the bytes are in one file, and there are fewer at its end.

        Raises:
            OSError: The disk cannot read them.
        """
        file, here = self._find(at)
        return file.read(here, nbytes)

    def read_into(self, buffer: Any, at: int) -> int:
        """See `DataFile.read_into`; the bytes are in one file."""
        file, here = self._find(at)
        return file.read_into(buffer, here)

    def places(self, starts: I64, stops: I64) -> tuple[I64, I64, I64, I64]:
        """See `DataFile.places`."""
        first = np.maximum(np.searchsorted(self._begins, starts, side="right") - 1, 0)
        last = np.maximum(np.searchsorted(self._begins, stops, side="left") - 1, 0)
        counts = np.maximum(last - first + 1, 1)
        # A range that spans several files becomes one range in each of them.
        owner = np.repeat(np.arange(len(starts)), counts)
        number = first[owner] + np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        low = np.maximum(starts[owner], self._begins[number])
        high = np.minimum(stops[owner], self._ends[number])
        kept = low < high
        low, high, number = low[kept], high[kept], number[kept]
        return low, high, self._descriptors[number], self._begins[number]

    def is_cached(self, at: int) -> bool | None:
        """See `DataFile.is_cached`."""
        file, here = self._find(at)
        return file.is_cached(here)

    def place(self, at: int) -> tuple[str, int]:
        """See `DataFile.place`."""
        number = max(bisect.bisect_right(self.begins, at) - 1, 0)
        return self.names[number], at - self.begins[number]

    def lost(self) -> tuple[str, int] | None:
        """See `DataFile.lost`."""
        for name, file in zip(self.names, self._files, strict=True):
            if found := file.lost():
                return name, found[1]
        return None


def open_data(path: Path, manifest: Manifest, io: IO) -> DataFile:
    """Open the data files of a dataset, several as one.

    Raises:
        FileNotFoundError: A file is missing.
        CorruptError: A file is shorter or longer than the manifest states.
        OptionError: The process may not open or map that many files.
    """
    names, files = manifest.data_files, []
    if len(names) > _FEW_FILES:
        system.raise_file_limit()
    try:
        for name, part in zip(names, manifest.parts, strict=True):
            file = DataFile(path / name, io if len(names) == 1 else "pread")
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
    return files[0] if len(files) == 1 else JoinedFile(path, files, names, io)


def _map(path: Path, files: Sequence[tuple[int, int, int]]) -> Any:
    """Map files into one range of addresses; see `system.map_in_a_row`."""
    nbytes = files[-1][1] + files[-1][2]
    try:
        return system.map_in_a_row(files, nbytes)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            raise OptionError(
                f"{path}: has {len(files)} parts, and this system cannot map several files into one range of "
                'addresses. Read it without a map, with io="pread".'
            ) from error
        if error.errno != errno.ENOMEM:
            raise
        advice = 'Read it without a map, with io="pread".'
        raise OptionError(no_address_space(path, nbytes, advice)) from error
