"""A file behind a URL that is read here and there: what is passed over is not requested."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from lmdbloader.conversion.sources.pace import Pace

# The first request, and the least of every other.
_FIRST_NBYTES = 4096
_LEAST_NBYTES = 1024
# Reading this much more takes less time than another request.
_NEAR_NBYTES = 16 * 1024
_MOST_NBYTES = 2 * 2**20
# The places whose neighbourhoods say how much is read at the next one.
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

    Each place that is read is one request: for as many bytes as were read in one go at the last places, at most 16 KiB.
    Where at most 16 KiB are passed over, the file is read on instead, by requests that double to 2 MiB, and so it is
    where this was measured to be faster. A server that
    sends no parts of files is asked for the file once, and what is passed over is thrown away.

    Attributes:
        nbytes: Its size.
        num_jumps: Requests for bytes that do not follow those before them.
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
        self._open, self._switch, self._pace = open_file, switch, pace
        self._at = self._start = self._used = self._landed = 0
        self._part = b""
        self._growing = _FIRST_NBYTES
        self._usual = deque[int](maxlen=_NUM_REMEMBERED)
        self._streamed: int | None = None
        self._check_switch()
        try:
            self._file = open_file(cache_type="none")
        except TypeError:  # a service that holds nothing back, and does not know the option
            self._file = open_file()

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *reason: object) -> None:
        self._file.close()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a byte, and return its number; this requests nothing."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.nbytes}[whence]
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes; fewer only at the end.

        Raises:
            OSError: Other bytes arrived than were requested. Each service has its own errors in addition.
        """
        left = max(0, self.nbytes - self._at)
        end = self._at + (left if size < 0 else min(size, left))
        if end > self._at and not self._start <= self._at <= end <= self._start + len(self._part):
            self._fill(self._at, end)
        content = self._part[self._at - self._start : end - self._start] if end > self._at else b""
        self._at, self._used = end, max(self._used, end)
        return content

    def hold(self, start: int, part: bytes) -> None:
        """Take a part of the file that was requested already, to be read from its first byte."""
        self._landed = start
        self._take(start, part)

    def _take(self, start: int, part: bytes) -> None:
        self._start = self._used = start
        self._part = part
        if self.kept is not None:
            self.kept.append((start, part))

    def request(self, start: int, nbytes: int) -> bytes:
        """Return bytes from the file, by one request.

        Raises:
            OSError: Other bytes arrived than were requested. Each service has its own errors in addition.
        """
        self._check_switch()
        if self._streamed is None:
            try:
                self._file.seek(start)
                content = self._all_of(nbytes)
            except ValueError:  # fsspec's, about a server that sends no parts of files
                self._restart()
                content = self._read_on(start, nbytes)
        else:
            content = self._read_on(start, nbytes)
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
        last = self._start + len(self._part)
        if self._pace.reads_on:
            self._landed = at
            self._extend(at, end, _MOST_NBYTES)
            self._pace.read(self._start + len(self._part) - last)
            return
        found = None if self.ahead is None else self.ahead.find(at, end)
        if found is None and not last:
            self._extend(at, end, _FIRST_NBYTES)
            return
        if found is None and self._start <= at <= self._used + _NEAR_NBYTES:
            self._growing = min(2 * self._growing, _MOST_NBYTES)
            self._extend(at, end, self._growing)
            return
        passed, used, self._landed = at - self._landed, self._used - self._landed, at
        if found is not None:
            self._take(*found)
            return
        self._pace.jumped(passed)
        self.num_jumps += 1
        self._usual.append(min(max(used, _LEAST_NBYTES), _NEAR_NBYTES))
        self._growing = max(self._usual)
        self._extend(at, end, self._growing)

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

    def _restart(self) -> None:
        """Open the file as a stream."""
        self._file.close()
        self._file, self._streamed = self._open(block_size=0), 0

    def _read_on(self, start: int, nbytes: int) -> bytes:
        """Return bytes of a stream; those before them are read and thrown away."""
        if self._streamed is None or start < self._streamed:
            self._restart()
            self._streamed = 0
        while self._streamed < start and (passed := self._file.read(min(start - self._streamed, _MOST_NBYTES))):
            self._streamed += len(passed)
        content = self._all_of(nbytes)
        self._streamed += len(content)
        return content
