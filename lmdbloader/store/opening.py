"""Opens the files of a dataset: its manifest, and its data file as a memory map or by its descriptor."""

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
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from lmdbloader.base.files import NotRegularError, open_regular
from lmdbloader.base.limits import no_address_space
from lmdbloader.base.text import plain
from lmdbloader.errors import CorruptError, FormatError, OptionError
from lmdbloader.format.layout import DATA_FILE, FORMAT_NAME, INDEX_FILE, MANIFEST_FILE, PARTIAL_SUFFIX
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, Manifest, parse_manifest
from lmdbloader.kernels.runtime.guard_words import NUM_HEAD
from lmdbloader.store.diskerrors import unreadable_is_corrupt

IO = Literal["mmap", "pread"]
_READ_WITHOUT_MAP = 'Read it without a map, with io="pread".'
# MADV_POPULATE_READ of Linux 5.14, which Python does not name: it maps pages, or fails where one does not read.
POPULATE_READ = 22 if sys.platform == "linux" else -1
# A local file system tells a file's length in a tenth of it or less. A server may have to be asked.
_AT_ONCE_SECONDS = 4e-6
_PIECE_NBYTES = 2**20


def check_io(io: str) -> IO:
    """Return how to read a data file.

    Raises:
        OptionError: It is neither "mmap" nor "pread".
    """
    if io not in get_args(IO):
        raise OptionError(f"io={io!r}: expected 'mmap' or 'pread'")
    return io  # type: ignore[return-value]


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Return a dataset's manifest.

    Raises:
        FormatError: The folder is no finished dataset of this format version.
        CorruptError: The disk does not read it.
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
            # A reader of so many bytes makes room for all of them first.
            nbytes = min(os.fstat(file.fileno()).st_size, MAX_MANIFEST_NBYTES)
            return parse_manifest(file.read(nbytes + 1), str(folder))
    except (FileNotFoundError, IsADirectoryError):
        if (folder / INDEX_FILE).exists():
            raise FormatError(
                f"{folder}: has lost its {MANIFEST_FILE}. `lmdbloader repair {folder}` makes it anew."
            ) from None
        what = "an LMDB, but not of ours" if (folder / DATA_FILE).exists() else "no dataset"
        raise FormatError(
            f"{folder}: has no {MANIFEST_FILE}, so it is {what} (a {FORMAT_NAME} dataset has {MANIFEST_FILE}, "
            f"{INDEX_FILE} and {DATA_FILE}). Make one with `lmdbloader convert`."
        ) from None


class DataFile:
    """The data file that was opened, whatever lies under its name by now; closed when nothing refers to this any more.

    Attributes:
        io: "mmap" or "pread".
        nbytes: Of the file, as it was opened.
        descriptor: Of the file.
        data: (nbytes,) uint8, a read-only view of the map; (0,) with "pread".
    """

    def __init__(self, path: Path, io: IO, *, descriptor: int | None = None) -> None:
        """Open a file.

        Args:
            path: Of the file.
            io: How it is read.
            descriptor: Of the file, where it is open already; it is duplicated.

        Raises:
            OptionError: The process may not map so much.
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
        """Return the words by which kernels know which pages of the map they may touch."""
        bits = mmap.PAGESIZE.bit_length() - 1
        num_marks = -(-self.nbytes // (64 << bits))
        guard = np.zeros(NUM_HEAD + num_marks, np.int64)
        guard[: NUM_HEAD] = (
            self.descriptor, self.nbytes, _tells_length_at_once(self.descriptor), POPULATE_READ,
            tells_residency(self.descriptor), bits, num_marks, 0,
        )  # fmt: skip
        return guard

    def for_kernels(self) -> tuple[int, int, int, int]:
        """Return what kernels read from.

        Returns:
            The map's address, the file's bytes, a descriptor to use instead or -1, and the address of the map's guard
            or 0.
        """
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
        CorruptError: It has another length than the manifest says, or the disk does not read it.
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
    """Return a map of a file all of which was read once; a page that does not read would end the process.

    Raises:
        OSError: The disk does not read it.
    """
    mapped = _map(path, descriptor, nbytes, _READ_WITHOUT_MAP)
    if POPULATE_READ >= 0:
        with suppress(OSError):  # a system without that, or a page that does not read
            mapped.madvise(POPULATE_READ)
            return mapped
    read_through(descriptor)
    return mapped


def read_through(descriptor: int) -> None:
    """Read a file from its beginning to its end, so that what does not read is known before anybody maps it.

    Raises:
        OSError: The disk does not read it.
    """
    buffer, at = bytearray(_PIECE_NBYTES), 0
    while nbytes := os.preadv(descriptor, [buffer], at):
        at += nbytes


def tells_residency(descriptor: int) -> bool:
    """Return whether the system tells this process what of a map is in memory; to others Linux says that all is."""
    try:
        return os.geteuid() == os.fstat(descriptor).st_uid or os.access(f"/proc/self/fd/{descriptor}", os.W_OK)
    except OSError:
        return False


def _tells_length_at_once(descriptor: int) -> bool:
    """Return whether the system knows a file's length without asking anybody."""
    times = [time.perf_counter()]
    for _ in range(8):
        os.lseek(descriptor, 0, os.SEEK_END)
        times.append(time.perf_counter())
    return min(b - a for a, b in itertools.pairwise(times)) < _AT_ONCE_SECONDS


def wrong_size(path: Path, found: int, expected: int) -> CorruptError:
    """Return the error for a file that has another length than the manifest says."""
    return CorruptError(
        f"{path}: {found} bytes, expected {expected}: it is cut short or was changed. Copy it again; "
        f"`lmdbloader verify {path.parent}` says what else helps.",
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
        OptionError: The process may not map so much.
    """
    try:
        return mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise OptionError(no_address_space(path, nbytes, advice)) from error


def _close(descriptor: int) -> None:
    with suppress(OSError):  # of a server that is gone; nothing was written
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return open_regular(path)
    except NotRegularError as error:
        raise FormatError(f"{path}: {error.strerror}; expected a file of a dataset made by lmdbloader.") from error
