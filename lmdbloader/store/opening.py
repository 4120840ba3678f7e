"""Opens the files of a dataset: its manifest, its index, and data.mdb as a map or by its descriptor."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import time
import weakref
from contextlib import suppress
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
from lmdbloader.format.layout import (
    DATA_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    PARTIAL_SUFFIX,
    REMOTE_FILE,
)
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, Manifest, parse_manifest
from lmdbloader.kernels.runtime.guard_words import NUM_HEAD

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
        raise FormatError(
            f"{folder}: has no {MANIFEST_FILE}, so it is not a dataset. Make one with `lmdbloader convert`."
        ) from None


def _not_a_folder(path: Path) -> FormatError | NotFoundError:
    """Return the error for a path without a folder."""
    partial = path.with_name(path.name + PARTIAL_SUFFIX) if path.name else path
    if partial.is_dir():
        return FormatError(f"{path}: is not finished ({partial} is there). {_RESUME}")
    if path.exists():
        return FormatError(f"{path}: is a file; expected the folder of a dataset made by lmdbloader")
    return NotFoundError(f"{path}: there is no such folder; expected a dataset made by lmdbloader")


class DataFile:
    """An open data file, even if another one has its name since; closed with the last reference to this object.

    Attributes:
        io: "mmap" or "pread".
        nbytes: The file's length when it was opened.
        descriptor: The file's.
        data: (nbytes,) uint8, a read-only view of the map; (0,) with "pread".
        remote: What fetches the bytes of a file at a URL; None for one on a disk.
    """

    remote: Blocks | None = None

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
            try:
                self._map = mmap.mmap(self.descriptor, self.nbytes, access=mmap.ACCESS_READ)
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
                advice = 'Read it without a map, with io="pread".'
                from lmdbloader.base.limits import no_address_space

                raise OptionError(no_address_space(path, self.nbytes, advice)) from error
        self.data: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._guard = guard_of(self.descriptor, self.nbytes) if self._map else None

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The files that it consists of: this one."""
        return (self,)

    @cached_property
    def tells_residency(self) -> bool:
        """Whether the system says truthfully which pages of a map are in memory."""
        return all(system.tells_residency(file.descriptor) for file in self.files)

    def with_io(self, path: Path, io: IO) -> DataFile:
        """Return the same open file with another `io`; `path` is for messages."""
        return DataFile(path, io, descriptor=self.descriptor)

    def for_kernels(self) -> tuple[int, int, int, int]:
        """Return the first four numbers of the `file` of kernels: see `lmdbloader.kernels.decode.fetch`."""
        guard = 0 if self._guard is None else self._guard.ctypes.data
        return self.data.ctypes.data, self.nbytes, self.descriptor if self.io == "pread" else -1, guard

    def read(self, at: int, nbytes: int) -> bytes:
        """Return a copy of some bytes, fewer at the end of the file.

        Raises:
            OSError: The disk cannot read them.
        """
        # Not through the map: a page that cannot be read would end the process.
        parts = []
        while nbytes and (part := system.read_at(self.descriptor, nbytes, at)):
            parts.append(part)
            at, nbytes = at + len(part), nbytes - len(part)
        return b"".join(parts)

    def read_into(self, buffer: Any, at: int) -> int:
        """Read into a writable buffer; return the number of bytes, 0 at the end of the file.

        Raises:
            OSError: The disk cannot read them.
        """
        return system.read_into(self.descriptor, buffer, at)

    def places(self, starts: I64, stops: I64) -> tuple[I64, I64, I64, I64]:
        """Return ranges, their descriptors, and where their files begin, each (m,); ranges are within one file each.

        Args:
            starts, stops: (n,) int64, in order.
        """
        begins = np.zeros(len(starts), np.int64)
        return starts, stops, begins + self.descriptor, begins

    def is_cached(self, at: int) -> bool | None:
        """Return whether the page with a byte is in memory; None if the system does not report it."""
        return system.is_cached(self.descriptor, at)

    def place(self, at: int) -> tuple[str, int]:
        """Return the name of the file that holds a byte, and its place there."""
        return DATA_FILE, at

    def lost(self) -> tuple[str, int] | None:
        """Return the name and the length of a file that is shorter than when it was opened; None if there is none.

        Raises:
            OSError: The system cannot tell.
        """
        size = os.fstat(self.descriptor).st_size
        return (DATA_FILE, size) if size < self.nbytes else None


def guard_of(descriptor: int, nbytes: int) -> npt.NDArray[np.int64]:
    """Return the words that hold which pages of the map of a file kernels may touch.

    Args:
        descriptor: The file's.
        nbytes: Its length.
    """
    bits = mmap.PAGESIZE.bit_length() - 1
    num_marks = -(-nbytes // (64 << bits))
    guard = np.zeros(NUM_HEAD + num_marks, np.int64)
    guard[:NUM_HEAD] = (
        descriptor, nbytes, _watches_length(descriptor), system.POPULATE_READ, system.tells_residency(descriptor),
        bits, num_marks, 0,
    )  # fmt: skip
    return guard


def _watches_length(descriptor: int) -> bool:
    """Return whether kernels check the file's length: it can change, and asking for it takes no request to a server."""
    times = [time.perf_counter()]
    for _ in range(8):
        os.lseek(descriptor, 0, os.SEEK_END)
        times.append(time.perf_counter())
    return min(b - a for a, b in itertools.pairwise(times)) < _AT_ONCE_SECONDS


def wrong_size(path: Path, found: int, expected: int, dataset: Path | None = None) -> CorruptError:
    """Return the error for a file whose length is not the one in the manifest; by default its folder is the dataset."""
    dataset = path.parent if dataset is None else dataset
    reason = f"{found} bytes, expected {expected}: it is cut short or was changed. Copy it again"
    return CorruptError(f"{path}: {reason}, or see {command('verify', dataset)}.", path=str(dataset))


def _close(descriptor: int) -> None:
    with suppress(OSError):  # the server is gone; nothing was written
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return open_regular(path)
    except NotRegularError as error:
        raise FormatError(f"{path}: {error.strerror}; expected a file of a dataset made by lmdbloader.") from error
