"""Requests for a tar's headers ahead of its reader, in several parts of the tar at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from lmdbloader.conversion.sources.pace import Pace
from lmdbloader.conversion.sources.remote_file import RemoteFile
from lmdbloader.conversion.sources.tar_members import BLOCK_NBYTES, is_header, next_member, whole_blocks

# Jumps of the reader that show how far apart the headers are.
_NUM_OBSERVED = 16
# A stretch is this many jumps long. To find its first header takes the bytes of about half a jump.
_LEAST_JUMPS, _MOST_JUMPS = 32, 128
# Headers farther apart than this are few, and a search for one would take too many bytes.
_MOST_JUMP_NBYTES = 2**22
# The most that a stretch may hold, and the most that is searched for its first header, in jumps.
_MOST_HELD_NBYTES = 2**20
_MOST_SEARCHED = 4
_LEAST_SEARCHED_NBYTES, _MOST_SEARCHED_NBYTES = 4096, 2**18

_Parts = list[tuple[int, bytes]]


class Lanes:
    """Reads headers in the stretches of one tar that its reader has not reached.

    A header says where the next one is, so a reader alone waits for every answer. Here other threads search for the
    first header in a later stretch, go on from there as the reader would, and keep the bytes that they read. Only bytes
    are kept: the reader checks all of them in order, so a header that was none costs time and changes nothing.
    """

    def __init__(
        self,
        reader: RemoteFile,
        open_another: Callable[[], RemoteFile],
        pool: ThreadPoolExecutor,
        width: Callable[[], int],
        pace: Pace,
    ) -> None:
        """Prepare lanes; nothing is requested before the reader has jumped a few times.

        Args:
            reader: The file that the tar's members are listed from.
            open_another: Opens the same file again.
            pool: The threads.
            width: Returns the most stretches to read ahead.
            pace: Ends them if it reads on.
        """
        self._reader, self._open_another, self._pool, self._width = reader, open_another, pool, width
        self._pace = pace
        self._first = self._step = self._jump = 0
        self._stretches: dict[int, Future[_Parts]] = {}
        self._begun = self._here = 0
        self._parts: _Parts = []
        self._starts: list[int] = []

    def find(self, start: int, end: int) -> tuple[int, bytes] | None:
        """Return a part that has the bytes from `start` to `end`, and its first byte; None if there is none."""
        if not self._step and not self._can_begin(start):
            return None
        number = (start - self._first) // self._step
        if number < 0:
            return None
        self._begin(number + 1, number + self._width())
        if number != self._here:
            self._here = number
            for passed in [n for n in self._stretches if n < number]:
                self._stretches.pop(passed).cancel()
            stretch = self._stretches.pop(number, None)
            self._parts = [] if stretch is None else stretch.result()
            self._starts = [at for at, _ in self._parts]
        at = bisect_right(self._starts, start) - 1
        if at >= 0 and end <= self._starts[at] + len(self._parts[at][1]):
            return self._parts[at]
        return None

    def _can_begin(self, at: int) -> bool:
        """Divide the rest of the tar into stretches, if it has enough headers that are far enough apart."""
        jumps, width = self._reader.num_jumps, self._width()
        if jumps < _NUM_OBSERVED or not width:
            return False
        self._jump = max(1, at // jumps)
        left = (self._reader.nbytes - at) // self._jump
        if left < 2 * _LEAST_JUMPS or self._jump > _MOST_JUMP_NBYTES:
            return False
        self._step = whole_blocks(self._jump * min(max(left // (width + 1), _LEAST_JUMPS), _MOST_JUMPS))
        self._first = at
        return True

    def _begin(self, number: int, last: int) -> None:
        """Begin the stretches from one to another, unless they were begun, as far as there are bytes."""
        for each in range(max(number, self._begun + 1), last + 1):
            start = self._first + each * self._step
            if start < self._reader.nbytes:
                self._stretches[each] = self._pool.submit(self._read, start, start + self._step)
                self._begun = each

    def _read(self, start: int, stop: int) -> _Parts:
        """Return the parts of the file that a reader of one stretch needs, as far as they could be read."""
        kept: _Parts = []
        # Each service has its own errors. Whoever reads here next meets them again.
        with suppress(Exception), self._open_another() as file:
            if file.details != self._reader.details:  # it was replaced meanwhile
                return kept
            file.kept = kept
            at = self._find_header(file, start, stop)
            while at is not None and at < stop and not self._pace.reads_on:
                found = next_member(file, at, file.nbytes)
                is_full = sum(len(part) for _, part in kept) > _MOST_HELD_NBYTES
                at = None if found is None or is_full else found[1]
        return kept

    def _find_header(self, file: RemoteFile, start: int, stop: int) -> int | None:
        """Return the first byte of a stretch where a header may be, and let the file hold what follows it."""
        nbytes = whole_blocks(min(max(self._jump // 8, _LEAST_SEARCHED_NBYTES), _MOST_SEARCHED_NBYTES))
        stop = min(stop, start + _MOST_SEARCHED * self._jump, file.nbytes)
        while start < stop:
            part = file.request(start, min(nbytes, file.nbytes - start))
            for at in range(0, len(part), BLOCK_NBYTES):
                block = part[at : at + BLOCK_NBYTES]
                if block[257:262] == b"ustar" and is_header(block):
                    file.hold(start + at, part[at:])
                    return start + at
            start += len(part)
        return None
