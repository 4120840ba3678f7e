"""A file behind a URL that is read here and there: what is passed over is not requested."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from lmdbloader.conversion.sources.pace import Pace

# The first request takes a small tar whole: tar pads to 10 KiB. And the least of others, after a jump and without one.
_FIRST_NBYTES = 16 * 1024
_LEAST_NBYTES, _LEAST_ON_NBYTES = 1024, 4096
# Reading this much more takes less time than another request.
_NEAR_NBYTES = 16 * 1024
_MOST_NBYTES = 2 * 2**20
# The jumps that say how much is read after the next one.
_NUM_REMEMBERED = 8


class Ahead(Protocol):
    """What requests parts of a file before they are read."""

    def find(self, start: int, end: int) -> tuple[int, bytes] | None:
        """Return a part that has the bytes from `start` to `end`, and its first byte; None if it must be requested."""


@dataclass(slots=True)
class Switch:
    """Ends requests from another thread.

    Attributes:
        is_off: Whether they must end.
    """

    is_off: bool = False


class RemoteFile:
    """A binary file behind a URL, for one thread.

    To pass over more than 16 KiB is a jump. After a jump, as many bytes are requested as are usually read in one go
    after one, at most 16 KiB. Without jumps the file is read on, by requests that double to 2 MiB, and so it is where
    this was measured to be faster.

    Attributes:
        nbytes: Its size.
        num_jumps: Jumps so far.
        ahead: What has requested parts of the file already.
        kept: If it is a list, every part that is read goes there, with its first byte.
    """

    def __init__(self, open_file: Callable[..., Any], nbytes: int, switch: Switch, pace: Pace) -> None:
        """Open the file.

        Args:
            open_file: Opens it: a function with the options of fsspec's `open` after the mode.
            nbytes: Its size.
            switch: Ends its requests.
            pace: Says whether to read on.
        """
        self.nbytes, self.num_jumps = nbytes, 0
        self.ahead: Ahead | None = None
        self.kept: list[tuple[int, bytes]] | None = None
        self._switch, self._pace = switch, pace
        # The place, the first byte that is held, the end of what was read, the end of the last jump, and its length.
        self._at = self._start = self._used = self._landed = self._passed = 0
        self._part = b""
        self._usual = deque[int](maxlen=_NUM_REMEMBERED)
        self._check_switch()
        try:
            self._file = open_file(cache_type="none")
        except TypeError:  # a service that holds nothing back, and does not know the option
            self._file = open_file()

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *reason: object) -> None:
        self._file.close()

    @property
    def details(self) -> object:
        """What the service says about the file as it was opened; None if it says nothing."""
        return getattr(self._file, "details", None)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a byte, and return its number; this requests nothing."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.nbytes}[whence]
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes; fewer only at the end.

        Raises:
            OSError: Other bytes arrived than were requested. Each service has its own errors in addition.
        """
        at = self._at
        end = at + max(0, min(self.nbytes - at, self.nbytes if size < 0 else size))
        if end == at:
            return b""
        if not self._used <= at <= self._used + _NEAR_NBYTES:
            self._usual.append(min(max(self._used - self._landed, _LEAST_NBYTES), _NEAR_NBYTES))
            self._passed, self._landed = at - self._landed, at
            self.num_jumps += 1
        if not self._start <= at <= end <= self._start + len(self._part):
            self._fill(at, end)
        self._at = self._used = end
        return self._part[at - self._start : end - self._start]

    def hold(self, start: int, part: bytes) -> None:
        """Take a part of the file that was requested already, to be read from its first byte."""
        self._used = self._landed = start
        self._take(start, part)

    def _take(self, start: int, part: bytes) -> None:
        self._start, self._part = start, part
        if self.kept is not None:
            self.kept.append((start, part))

    def request(self, start: int, nbytes: int) -> bytes:
        """Return bytes from the file, by one request.

        Raises:
            OSError: Other bytes arrived than were requested. Each service has its own errors in addition.
        """
        self._check_switch()
        try:
            self._file.seek(start)
            content = self._all_of(nbytes)
        except ValueError as error:  # of fsspec, and of streams
            raise OSError(f"its server does not send parts of files: copy it to a disk first ({error})") from error
        if len(content) != nbytes:
            raise OSError(
                f"{len(content)} bytes arrived instead of {nbytes} at byte {start}: the file was changed, or its "
                "server does not send parts of files. Try again, or copy it to a disk first"
            )
        return content

    def _check_switch(self) -> None:
        if self._switch.is_off:
            raise OSError("another tar could not be listed")

    def _fill(self, at: int, end: int) -> None:
        """Hold the part of the file around some bytes."""
        if self._pace.reads_on:
            last = self._start + len(self._part)
            self._extend(at, end, _MOST_NBYTES)
            self._pace.read(self._start + len(self._part) - last)
        elif self.ahead is not None and (found := self.ahead.find(at, end)) is not None:
            self._take(*found)
        elif not at:
            self._extend(at, end, _FIRST_NBYTES)
        elif at == self._landed:
            self._pace.jumped(self._passed)
            self._extend(at, end, self._expect())
        else:
            self._extend(at, end, min(max(2 * (at - self._landed), _LEAST_ON_NBYTES), _MOST_NBYTES))

    def _expect(self) -> int:
        """Return how much to request after a jump, so that the last ones had cost least."""

        def cost(nbytes: int) -> float:
            return nbytes + _NEAR_NBYTES * sum(usual > nbytes for usual in self._usual) / len(self._usual)

        return min(self._usual, key=cost, default=_LEAST_ON_NBYTES)

    def _extend(self, at: int, end: int, nbytes: int) -> None:
        """Hold the bytes from `at` to `end`, and as many in all as `nbytes` after those that are held already."""
        kept = self._part[at - self._start :] if self._start <= at else b""
        start = at + len(kept)
        self._take(at, kept + self.request(start, min(max(end - start, nbytes), self.nbytes - start)))

    def _all_of(self, nbytes: int) -> bytes:
        """Return the next bytes of the file as it is open; fewer only if no more arrive."""
        content = self._file.read(nbytes)
        while len(content) < nbytes and (more := self._file.read(nbytes - len(content))):
            content += more
        return bytes(content)
