"""What a local disk has of the data files of a dataset at a URL: a sparse file, and states that processes share.

Processes neither lock nor own anything. All of them write the same bytes to the same places, so whoever is later
changes nothing. A block that somebody else fetches, as its state says, is waited for a moment, and then fetched twice.
"""

from __future__ import annotations

import bisect
import mmap
import os
import time
import weakref
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base import system
from lmdbloader.base.disk_errors import explain_full_disk
from lmdbloader.errors import CorruptError, NotFoundError
from lmdbloader.format.manifest import Manifest, part_begins
from lmdbloader.store.opening import OpenFile
from lmdbloader.store.remote.blocks import ABSENT, DURABLE, FETCHING, PRESENT, Blocks
from lmdbloader.store.remote.service import Service, wrong_length

# What is kept is fetched so much at a time.
BLOCK_NBYTES = 2**20
DATA_NAME, STATES_NAME = "data", "states"
# The states begin with the number of the machine's start.
_HEAD_NBYTES, _BOOT_NBYTES = 4096, 64
# So often, blocks are flushed to the device.
_SETTLE_SECONDS = 5.0
# Another process may fetch the same block now, or it was killed.
_OTHERS_SECONDS, _LOOK_SECONDS = 5.0, 0.01


class Origin:
    """Fetches ranges of the data files, which begin at multiples of 2 MiB of one file; several threads may use it.

    Nobody asks the service about data files at opening, as there may be thousands.

    Attributes:
        names: Of the data files.
        begins, ends: Where each is.
        nbytes: Of all together.
    """

    def __init__(self, service: Service, manifest: Manifest) -> None:
        """Ask for nothing yet."""
        lengths = [part.data_nbytes for part in manifest.parts]
        self.service, self.names = service, manifest.data_files
        *self.begins, self.nbytes = part_begins(lengths)
        self.ends = [begin + nbytes for begin, nbytes in zip(self.begins, lengths, strict=True)]
        self._checked: set[int] = set()

    def find(self, at: int) -> int:
        """Return the number of the data file that holds a byte, or is before it."""
        return max(bisect.bisect_right(self.begins, at) - 1, 0)

    def get(self, start: int, stop: int) -> bytes:
        """Return the bytes start ... stop - 1, fewer at the end of a data file.

        Raises:
            CorruptError: The data file is missing, or has another length.
            DiskError: The service does not answer.
        """
        number = self.find(start)
        name, url, begin, end = self.names[number], self.service.url, self.begins[number], self.ends[number]
        try:
            if number not in self._checked and (found := self.service.size(name)) != end - begin:
                raise wrong_length(url, name, found, end - begin)
            self._checked.add(number)
            return self.service.get(name, start - begin, min(stop, end) - begin)
        except NotFoundError as error:
            raise CorruptError(f"{url}/{name}: is missing. Upload the dataset again.", path=url) from error


class Cache(Blocks):
    """The data files of a dataset at a URL on this machine, filled when they are read.

    Attributes:
        path: The sparse file.
        origin: Where the bytes come from.
        kept: (n,) bool, of each block; others are not written to the disk.
    """

    def __init__(self, folder: Path, origin: Origin, share: float) -> None:
        """Open the cache in a folder, or make an empty one.

        Args:
            folder: Of this dataset alone.
            origin: Where the bytes come from.
            share: How much of it is kept, 0 to 1. What is kept for less is kept for more, too.

        Raises:
            DiskFullError: There is no room for the states.
        """
        self.path, self.origin, self._settled = folder / DATA_NAME, origin, time.monotonic()
        count = -(-origin.nbytes // BLOCK_NBYTES)
        self.kept = np.zeros(count, np.bool_)
        self.kept[np.random.default_rng(0).permutation(count)[: round(share * count)]] = True
        with explain_full_disk(folder):
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            # Not at exit: a thread may still write then, and the system gives the number to the next file.
            weakref.finalize(self, os.close, self._descriptor).atexit = False
            is_new = os.fstat(self._descriptor).st_size != origin.nbytes
            self._map = _map_states(folder / STATES_NAME, _HEAD_NBYTES + count)
            states: npt.NDArray[np.int8] = np.frombuffer(self._map, np.int8, count, _HEAD_NBYTES)
            if is_new:  # if only this file was deleted, the states are those of another one
                states[:] = ABSENT
                os.ftruncate(self._descriptor, origin.nbytes)
        boot = system.boot_id().encode()[:_BOOT_NBYTES].ljust(_BOOT_NBYTES, b"\0")
        if self._map[:_BOOT_NBYTES] != boot or not any(boot):  # the power may have failed
            states[states != DURABLE] = ABSENT
            self._map[:_BOOT_NBYTES] = boot
        has_bytes = np.zeros(count, np.bool_)
        for begin, end in zip(origin.begins, origin.ends, strict=True):
            has_bytes[begin // BLOCK_NBYTES : -(-end // BLOCK_NBYTES)] = True
        states[~has_bytes] = DURABLE  # between two data files
        super().__init__(states, BLOCK_NBYTES)

    def restart(self) -> None:
        """See `Blocks.restart`."""
        self.origin.service.restart()
        super().restart()

    def load(self, first: int, end: int) -> None:
        """See `Blocks.load`."""
        states, until = self.states, time.monotonic() + _OTHERS_SECONDS
        while (states[first:end] == FETCHING).any() and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        absent = first + np.flatnonzero(states[first:end] <= ABSENT)
        if not len(absent):
            return
        states[absent] = FETCHING
        try:
            at = int(absent[0]) * BLOCK_NBYTES
            data = self.origin.get(at, (int(absent[-1]) + 1) * BLOCK_NBYTES)
            with explain_full_disk(self.path):
                _write_at(self._descriptor, data, at)
        except BaseException:
            states[absent] = ABSENT
            raise
        states[absent] = PRESENT

    def settle(self) -> None:
        """Flush what was written, by any process; it can be read after a power cut then."""
        now = time.monotonic()
        if now < self._settled + _SETTLE_SECONDS:
            return
        self._settled = now
        fresh = np.flatnonzero(self.states == PRESENT)
        if len(fresh):
            try:
                system.flush(self._descriptor)
                self.states[fresh] = DURABLE
            except OSError:  # what was not written is lost when it leaves the memory
                self.states[fresh] = ABSENT
                self._num_complete = 0

    def is_from_disk(self, block: int) -> bool:
        """Return whether a block is read from the disk, rather than from the service."""
        return bool(self.kept[block] or self.states[block] > ABSENT)

    @property
    def num_missing(self) -> int:
        """The number of kept blocks that are not here yet."""
        return int(np.count_nonzero(self.kept & (self.states <= ABSENT)))


class CachedFile(OpenFile):
    """The data files of a dataset at a URL as one sparse file; bytes that are not in it are fetched when they are read.

    Attributes:
        remote: The cache, which fetches them.
    """

    remote: Cache

    def __init__(self, cache: Cache) -> None:
        self.remote = cache
        super().__init__(cache.path, descriptor=system.open_to_read(cache.path))

    def place(self, at: int) -> tuple[str, int]:
        """As `OpenFile.place`."""
        number = self.remote.origin.find(at)
        return self.remote.origin.names[number], at - self.remote.origin.begins[number]

    def read(self, at: int, nbytes: int) -> bytes:
        """Return a copy of some bytes, fewer at the end of a data file: from the disk, or what is not kept as it comes.

        Raises:
            LmdbloaderError: They cannot be fetched, or there is no room for them.
            OSError: The disk cannot read them.
        """
        origin, pieces = self.remote.origin, []
        stop = min(at + nbytes, origin.ends[origin.find(at)])
        for is_from_disk, run in groupby(range(at // BLOCK_NBYTES, -(-stop // BLOCK_NBYTES)), self.remote.is_from_disk):
            blocks = list(run)
            start, end = max(at, blocks[0] * BLOCK_NBYTES), min(stop, (blocks[-1] + 1) * BLOCK_NBYTES)
            if is_from_disk:
                self.remote.bring(np.array([start]), np.array([end]))
            pieces.append(super().read(start, end - start) if is_from_disk else origin.get(start, end))
        return b"".join(pieces)

    def read_into(self, buffer: Any, at: int) -> int:
        """Read into a writable buffer; return the number of bytes, 0 at the end of the file; errors as `read`."""
        room = memoryview(buffer).cast("B")
        data = self.read(at, room.nbytes)
        room[: len(data)] = data
        return len(data)


def _write_at(descriptor: int, data: bytes, at: int) -> None:
    """Write all of some bytes to a place in a file."""
    rest = memoryview(data)
    while rest:
        count = system.write_at(descriptor, rest, at)
        rest, at = rest[count:], at + count


def _map_states(path: Path, nbytes: int) -> mmap.mmap:
    """Return a map of the states, in memory that all processes of the machine share."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(descriptor).st_size < nbytes:
            system.reserve(descriptor, 0, nbytes)  # a page without space would end the process
            if os.fstat(descriptor).st_size < nbytes:  # macOS takes the space, and leaves the length
                os.ftruncate(descriptor, nbytes)
        return mmap.mmap(descriptor, nbytes)
    finally:
        os.close(descriptor)
