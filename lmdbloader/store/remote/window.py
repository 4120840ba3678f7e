"""A file whose bytes are in memory while somebody needs them: for what is not kept on a disk."""

from __future__ import annotations

import errno
import mmap
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.base import system
from lmdbloader.base.limits import no_address_space
from lmdbloader.errors import OptionError
from lmdbloader.store.opening import DataFile
from lmdbloader.store.remote.blocks import ABSENT, I64, PRESENT, Blocks

# Small, because samples in random order need little of their neighbors.
BLOCK_NBYTES = 2**16
# Blocks that nobody holds stay until so many others have come: samples that are read one by one are requested ahead,
# 256 MiB at most.
_SPARE = 5 * 2**26 // BLOCK_NBYTES
# So many are freed at once.
_FREED = 64
# Other systems lack some of its names.
_names: Any = mmap


class Window(Blocks):
    """Blocks of a file in the memory of this process; a fork begins without any.

    Attributes:
        data: (nbytes,) uint8, as long as the file. Only what is held has memory.
    """

    streams = True

    def __init__(self, source: DataFile, path: Path) -> None:
        """Take no memory yet.

        Args:
            source: The file, which is read with its `read`.
            path: For messages.

        Raises:
            OptionError: The process may not have so many addresses, or this system cannot do it.
        """
        self._source = source
        try:
            self._map: Any = system.map_nothing(source.nbytes)
        except OSError as error:
            if error.errno == errno.ENOTSUP:
                raise OptionError(
                    f"{path}: a fraction of a dataset can be cached on Linux only. Write cache_fraction=1.0, or copy "
                    "the dataset with `lmdbloader stage`."
                ) from error
            advice = "Keep all of it on a disk, cache_fraction=1.0."
            raise OptionError(no_address_space(path, source.nbytes, advice)) from error
        self.data = np.frombuffer(self._map, np.uint8)
        super().__init__(np.zeros(-(-source.nbytes // BLOCK_NBYTES), np.int8), BLOCK_NBYTES)

    def restart(self) -> None:
        """See `Blocks.restart`."""
        super().restart()
        # How many hold each block; those that are here and that nobody holds, in the order of use.
        self._held: Counter[int] = Counter()
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.states[:] = ABSENT
        self._map.madvise(_names.MADV_DONTNEED)

    @property
    def is_complete(self) -> bool:
        """Never."""
        return False

    def load(self, first: int, end: int) -> None:
        """See `Blocks.load`."""
        at, stop = first * BLOCK_NBYTES, min(end * BLOCK_NBYTES, len(self.data))
        found = np.frombuffer(self._source.read(at, stop - at), np.uint8)
        self.data[at : at + len(found)] = found
        with self._changed:
            self.states[first:end] = PRESENT
            self._idle.update((block, None) for block in range(first, end) if block not in self._held)
            self._free()

    def hold(self, starts: I64, stops: I64) -> Callable[[], None]:
        """See `Blocks.hold`."""
        blocks = self.of(starts, stops).tolist()
        with self._changed:
            self._held.update(blocks)
            for block in blocks:
                self._idle.pop(block, None)
        return partial(self._release, self._held, blocks)

    def renew(self, starts: I64, stops: I64) -> None:
        """See `Blocks.renew`; what the source has on a disk is fetched again, too."""
        if self._source.remote is not None:
            self._source.remote.renew(starts, stops)
        release = self.hold(starts, stops)
        try:
            super().renew(starts, stops)
        finally:
            release()

    def _release(self, held: Counter[int], blocks: list[int]) -> None:
        """End a hold once; `held` is that of a fork's parent if a hold is from before the fork."""
        with self._changed:
            for block in blocks if held is self._held else ():
                held[block] -= 1
                if not held[block]:
                    del held[block]
                    if self.states[block] > ABSENT:
                        self._idle[block] = None
            blocks.clear()
            self._free()

    def _free(self) -> None:
        """Free the blocks that nobody has needed for the longest time; the caller has the lock."""
        if len(self._idle) < _SPARE + _FREED:
            return
        while len(self._idle) > _SPARE:
            block, _ = self._idle.popitem(last=False)
            self.states[block] = ABSENT
            at = block * BLOCK_NBYTES
            self._map.madvise(_names.MADV_DONTNEED, at, min(BLOCK_NBYTES, len(self.data) - at))


class WindowFile(DataFile):
    """Files whose bytes are in memory while somebody holds them; `io` makes no difference.

    Attributes:
        remote: The window.
    """

    remote: Window

    def __init__(self, source: DataFile, path: Path) -> None:
        super().__init__(source.files, "pread", path)
        self.io, self.remote = "mmap", Window(source, path)
        self.data, self._guards = self.remote.data, []

    def is_cached(self, at: int) -> bool | None:
        """See `DataFile.is_cached`."""
        return bool(self.remote.states[at // BLOCK_NBYTES] > ABSENT)
