"""Opens the files of a dataset: its manifest, its index, and data.mdb as a map or by its descriptor."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import re
import shlex
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from lmdbloader.base import system
from lmdbloader.base.arguments import local_path
from lmdbloader.base.disk_errors import unreadable_is_corrupt
from lmdbloader.base.files import NotRegularError, open_regular, read_regular
from lmdbloader.base.limits import no_address_space
from lmdbloader.base.text import command
from lmdbloader.errors import CorruptError, FormatError, NotFoundError, OptionError
from lmdbloader.format.layout import (
    DATA_FILE,
    FORMAT_NAME,
    INDEX_FILE,
    MANIFEST_FILE,
    PARTIAL_SUFFIX,
    PLAN_FILE,
    REMOTE_FILE,
    SHARES_FOLDER,
    part_name,
)
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, Manifest, load_json, parse_manifest
from lmdbloader.format.others import describe_file, describe_folder, suggest_path
from lmdbloader.kernels.runtime.guard_words import NUM_HEAD

if TYPE_CHECKING:
    from lmdbloader.store.remote.blocks import Blocks

I64 = npt.NDArray[np.int64]
IO = Literal["mmap", "pread"]
_READ_WITHOUT_MAP = 'Read it without a map, with io="pread".'
# A local file system returns a file's length in a tenth of this or less; a network one may have to ask a server.
_AT_ONCE_SECONDS = 4e-6
_PIECE_NBYTES = 2**20
# To bring an index of this size into the map takes about a millisecond.
_READ_NBYTES = 16 * 2**20
# The parts of a set that tasks on a Ray cluster write, before these are numbered.
_OF_RAY = re.compile(r"part-[0-9]{13}")


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
        out = folder.name.removesuffix(PARTIAL_SUFFIX)
        noun, advice = _unfinished(folder.with_name(out), folder)
        raise FormatError(f"{folder}: is an unfinished {noun}. {advice}")
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
            raise FormatError(
                f"{folder}: is the cache of a dataset at a URL, which {REMOTE_FILE} there names. Open the URL."
            ) from None
        if (folder / INDEX_FILE).exists():
            raise FormatError(
                f"{folder}: {MANIFEST_FILE} is missing. {command('repair', folder)} makes a new one."
            ) from None
        if (folder / part_name(0)).is_dir():
            raise FormatError(
                f"{folder}: {MANIFEST_FILE} is missing: the folder holds parts of a set. {command('repair', folder)} "
                "makes a new one from them."
            ) from None
        if what := describe_folder(folder):
            raise FormatError(f"{folder}: has no {MANIFEST_FILE}, so it is not a dataset; it {what}.") from None
        raise FormatError(
            f"{folder}: has no {MANIFEST_FILE}, so it is not a dataset (an {FORMAT_NAME} dataset has {MANIFEST_FILE}, "
            f"{INDEX_FILE} and {DATA_FILE}). Make one with `lmdbloader convert`."
        ) from None


def _not_a_folder(path: Path) -> FormatError | NotFoundError:
    """Return the error for a path without a folder."""
    partial = path.with_name(path.name + PARTIAL_SUFFIX) if path.name else path
    if partial.is_dir():
        noun, advice = _unfinished(path, partial)
        return FormatError(f"{path}: its {noun} is not finished ({partial} is there). {advice}")
    if path.exists():
        what = describe_file(path)
        return FormatError(f"{path}: is a file, not a dataset folder" + (f"; it {what}." if what else "."))
    return NotFoundError(f"{path}: there is no such folder; expected a dataset made by lmdbloader.{suggest_path(path)}")


def _unfinished(out: Path, partial: Path) -> tuple[str, str]:
    """Return what is unfinished, as a noun, and what finishes it."""
    name = shlex.quote(str(out))
    layout = _layout_of(partial)
    if layout == "append":
        line = f"lmdbloader append {shlex.quote(str(out.parent))} A B ..."
        return "appended part", f"Run the command again: the same `{line}` resumes it."
    lines = {"merge": f"merge A B ... -o {name}", "subset": f"subset DB EXPRESSION -o {name}"}
    if layout in lines:
        call = f"{layout}(..., {str(out)!r})"
        return layout, f"Run it again: the same `lmdbloader {lines[layout]}`, or the call {call}, resumes it."
    if layout == "python":
        return "dataset of `write`", f"Call it again: the same write(samples, {str(out)!r}) resumes it."
    if layout == "ray":
        return "dataset of lmdbloader.ray", f"Call it again: write_lmdb(data, {str(out)!r}) begins from the first row."
    return "conversion", _resume(name, partial)


def _layout_of(partial: Path) -> str:
    """Return what the plan in OUT.partial says that is made; "ray" if parts are written without one, or ""."""
    try:
        return str(load_json(read_regular(partial / PLAN_FILE, MAX_MANIFEST_NBYTES))["made_by"]["layout"])
    except FileNotFoundError:
        return "ray" if any(map(_OF_RAY.fullmatch, os.listdir(partial))) else ""
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""


def _resume(name: str, partial: Path) -> str:
    if (partial / SHARES_FOLDER).is_dir():
        return (
            f"It is made in parts: `lmdbloader join {name}` names those that are not complete, or else finishes it. "
            f"`lmdbloader convert SRC {name} --part I/N`, with the options of the plan, makes one of them."
        )
    return f"Run the same command or call again; of a conversion, `lmdbloader convert SRC {name}` resumes it."


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
            self._map = _map(path, self.descriptor, self.nbytes, _READ_WITHOUT_MAP)
        self.data: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._guard = guard_of(self.descriptor, self.nbytes) if self._map else None

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The files that it consists of: this one."""
        return (self,)

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


def open_index(path: Path, io: IO, expected_nbytes: int) -> mmap.mmap | bytes:
    """Return the content of an index: mapped, or with "pread" read into memory.

    Raises:
        CorruptError: Its length is not the one in the manifest, or the disk cannot read it.
    """
    with opened_index(path) as descriptor:
        return read_index(path, descriptor, io, expected_nbytes)


@contextmanager
def opened_index(path: Path) -> Iterator[int]:
    """Yield a descriptor of an index; what the disk cannot read in the block is a CorruptError."""
    with unreadable_is_corrupt(path, dataset=path.parent):
        descriptor = _open(path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def read_index(
    path: Path, descriptor: int, io: IO, expected_nbytes: int, *, was_read: bool = False
) -> mmap.mmap | bytes:
    """Return the content of an open index: mapped, or with "pread" read into memory.

    Args:
        path: The index's, for messages.
        descriptor: The file's.
        io: "mmap" or "pread".
        expected_nbytes: Its length.
        was_read: Whether all of it was read lately. A large map is then left to be read where it is used.

    Raises:
        CorruptError: It has another length.
        OSError: The disk cannot read it.
    """
    nbytes = os.fstat(descriptor).st_size
    if nbytes != expected_nbytes:
        raise wrong_size(path, nbytes, expected_nbytes)
    if io == "mmap" and nbytes:
        mapped = _map(path, descriptor, nbytes, _READ_WITHOUT_MAP)
        # A page that cannot be read would end the process.
        if not (was_read and nbytes > _READ_NBYTES) and not system.populate(mapped):
            read_through(descriptor)
        return mapped
    with open(descriptor, "rb", closefd=False) as file:
        content = file.read(nbytes)
    if len(content) != nbytes:
        raise wrong_size(path, len(content), nbytes)
    return content


def read_through(descriptor: int) -> None:
    """Read a file from beginning to end, to find unreadable parts before it is mapped.

    Raises:
        OSError: The disk cannot read it.
    """
    buffer, at = bytearray(_PIECE_NBYTES), 0
    while nbytes := system.read_into(descriptor, buffer, at):
        at += nbytes


def _watches_length(descriptor: int) -> bool:
    """Return whether kernels check the file's length: it can change, and asking for it takes no request to a server."""
    if not system.MAPPED_FILES_SHRINK:
        return False
    times = [time.perf_counter()]
    for _ in range(8):
        os.lseek(descriptor, 0, os.SEEK_END)
        times.append(time.perf_counter())
    return min(b - a for a, b in itertools.pairwise(times)) < _AT_ONCE_SECONDS


def wrong_size(path: Path, found: int, expected: int, dataset: Path | None = None) -> CorruptError:
    """Return the error for a file whose length is not the one in the manifest; by default its folder is the dataset."""
    dataset = path.parent if dataset is None else dataset
    return CorruptError(
        f"{path}: {found} bytes, expected {expected}: it is cut short or was changed. Copy it again; "
        f"{command('verify', dataset)} suggests other remedies.",
        path=str(dataset),
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
