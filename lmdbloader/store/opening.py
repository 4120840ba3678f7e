"""Opens the files of a dataset: its manifest, and its data file as a memory map or by its descriptor."""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import CorruptError, FormatError, OptionError
from lmdbloader.files import NotRegularError, open_regular
from lmdbloader.format import DATA_FILE, FORMAT_NAME, INDEX_FILE, MANIFEST_FILE, PARTIAL_SUFFIX
from lmdbloader.manifest import MAX_MANIFEST_NBYTES, Manifest, parse_manifest
from lmdbloader.words import plain

IO = Literal["mmap", "pread"]


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
        with open(_open(folder / MANIFEST_FILE), "rb") as file:
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
        """
        self.io = io
        self.descriptor = _open(path) if descriptor is None else os.dup(descriptor)
        weakref.finalize(self, os.close, self.descriptor)
        self.nbytes = os.fstat(self.descriptor).st_size
        self._map: Any = b""
        if io == "mmap" and self.nbytes:
            self._map = mmap.mmap(self.descriptor, self.nbytes, access=mmap.ACCESS_READ)
        self.data: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def for_kernels(self) -> tuple[int, int, int]:
        """Return what kernels read from: the map's address, the file's bytes, a descriptor to use instead or -1."""
        return self.data.ctypes.data, self.nbytes, self.descriptor if self.io == "pread" else -1

    def read(self, at: int, nbytes: int) -> bytes:
        """Return a copy of some bytes; fewer than asked for where the file ends."""
        if self.io == "mmap":
            return self.data[at : at + nbytes].tobytes()
        parts = []
        while nbytes and (part := os.pread(self.descriptor, nbytes, at)):
            parts.append(part)
            at, nbytes = at + len(part), nbytes - len(part)
        return b"".join(parts)


def open_index(path: Path, io: IO, expected_nbytes: int) -> mmap.mmap | bytes:
    """Return the content of an index: mapped, or with "pread" read into memory.

    Raises:
        CorruptError: It has another length than the manifest says.
    """
    descriptor = _open(path)
    try:
        nbytes = os.fstat(descriptor).st_size
        if nbytes != expected_nbytes:
            raise wrong_size(path, nbytes, expected_nbytes)
        if io == "mmap":
            return mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ) if nbytes else b""
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(nbytes)
        if len(content) != nbytes:
            raise wrong_size(path, len(content), nbytes)
        return content
    finally:
        os.close(descriptor)


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
        return mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ) if nbytes else b""
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return open_regular(path)
    except NotRegularError as error:
        raise FormatError(f"{path}: {error.strerror}; expected a file of a dataset made by lmdbloader.") from error
