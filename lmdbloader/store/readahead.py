"""Brings the bytes of coming samples into memory before they are read, from one thread in the background."""

from __future__ import annotations

import mmap
import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lmdbloader.base import system
from lmdbloader.base.limits import start_threads
from lmdbloader.format.layout import TILED
from lmdbloader.kernels import entries
from lmdbloader.store.opening import DataFile
from lmdbloader.store.reader import Reader

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

# The most bytes of one request: for one call Linux reads at most the larger of the file system's readahead (usually
# 128 KiB) and the device's largest request, and does not report the rest.
PIECE_NBYTES = 128 * 1024
# Ranges closer than this are read as one: the gap costs less than another request.
GAP_NBYTES = 16 * 1024
# A crop reads a small part of a tiled image larger than this; which part is not known here.
LARGE_NBYTES = 1024 * 1024
_PROBED_ROWS = 4
# Storage that does not answer must not block `close`.
_JOIN_SECONDS = 1.0


def coalesce(starts: I64, stops: I64, *, gap_nbytes: int = GAP_NBYTES, page_nbytes: int = 1) -> tuple[I64, I64]:
    """Merge ranges into the fewest that cover them: sorted, of whole pages, further apart than the gap.

    Args:
        starts, stops: (n,) int64, in any order; ranges may overlap, and none is empty.
        gap_nbytes: Ranges up to this far apart become one.
        page_nbytes: A power of two.

    Returns:
        Starts and stops, each (m,) int64, m <= n.

    >>> coalesce(np.array([900, 0, 120]), np.array([950, 100, 200]), gap_nbytes=50)
    (array([  0, 900]), array([200, 950]))
    """
    if len(starts) == 0:
        return starts, stops
    order = np.argsort(starts)
    starts = starts[order] & -page_nbytes
    stops = np.maximum.accumulate(-(-stops[order] & -page_nbytes))
    apart = np.flatnonzero(starts[1:] - stops[:-1] > gap_nbytes)
    return starts[np.concatenate(([0], apart + 1))], stops[np.concatenate((apart, [len(stops) - 1]))]


class Ticket:
    """Reports when requested bytes are in memory."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._failure: BaseException | None = None
        self._pid = os.getpid()

    @property
    def done(self) -> bool:
        """Whether the request has ended; always so in a forked child, which does not have the thread."""
        return self._event.is_set() or self._pid != os.getpid()

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it is done, after at most `timeout` seconds.

        It is also done when the file cannot be read, which reading the samples will report, or when the readahead is
        closed.

        Raises:
            Exception: The thread failed, other than by reading.
        """
        if not self.done:
            self._event.wait(timeout)
        if self._failure is not None:
            raise self._failure
        return self.done

    def _finish(self, failure: BaseException | None = None) -> None:
        if not self._event.is_set():
            self._failure = failure
            self._event.set()


@dataclass(frozen=True, slots=True)
class _Request:
    """Ranges (starts, stops) of a file, which this keeps open; `awaited` if a caller waits for the ticket."""

    file: DataFile
    starts: I64
    stops: I64
    awaited: bool
    ticket: Ticket


class _Worker:
    """The thread and its queue; it does not refer to the Readahead, which can therefore be collected."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._pid = os.getpid()
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._stopping = np.zeros(1, np.uint8)
        self._lock = threading.RLock()  # the garbage collector may call `stop` anywhere
        self._tickets: set[Ticket] = set()
        self._thread = threading.Thread(target=self._run, name="lmdbloader-readahead", daemon=True)

    def start(self) -> None:
        try:
            start_threads([self._thread], "reading ahead", "Use fewer threads elsewhere.")
        except BaseException as error:
            self._end(error)
            raise

    def put(self, request: _Request) -> None:
        with self._lock:
            if self._stopping[0]:
                request.ticket._finish(self.failure)
                return
            self._tickets.add(request.ticket)
        self._requests.put(request)

    def stop(self) -> None:
        """End the thread and every ticket."""
        if self._pid != os.getpid():
            return
        self._end()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _end(self, failure: BaseException | None = None) -> None:
        with self._lock:
            self.failure = self.failure or failure
            self._stopping[0] = 1
            while self._tickets:
                self._tickets.pop()._finish(self.failure)
        self._requests.put(None)

    def _run(self) -> None:
        try:
            buffer = np.empty(PIECE_NBYTES, np.uint8)
            while (request := self._requests.get()) is not None and not self._stopping[0]:
                with suppress(OSError):  # reading the samples raises an error that names them
                    _serve(request, buffer, self._stopping)
                with self._lock:
                    self._tickets.discard(request.ticket)
                request.ticket._finish()
        except BaseException as error:
            self._end(error)


def _serve(request: _Request, buffer: U8, stopping: U8) -> None:
    coalesced = coalesce(request.starts, request.stops, page_nbytes=mmap.PAGESIZE)
    starts, stops, descriptors, begins = request.file.places(*coalesced)
    # All pieces are requested before the first one is waited for.
    if request.file.io == "mmap":
        base, populate = request.file.data.ctypes.data, system.POPULATE_READ
        entries.advise(base, starts, stops, system.WILL_NEED, PIECE_NBYTES, stopping)
        # To map the pages copies nothing, and saves the reader the page faults.
        if not request.awaited or entries.advise(base, starts, stops, populate, PIECE_NBYTES, stopping):
            return
    ranges = zip(*(column.tolist() for column in (starts - begins, stops - begins, descriptors)), strict=True)
    pieces = [
        (descriptor, at, min(PIECE_NBYTES, stop - at))
        for start, stop, descriptor in ranges
        for at in range(start, stop, PIECE_NBYTES)
    ]
    for piece in pieces if request.file.io == "pread" else ():
        if not stopping[0]:
            system.will_read(*piece)
    for descriptor, at, nbytes in pieces if request.awaited else ():
        if stopping[0] or not system.read_into(descriptor, buffer[:nbytes].data, at):
            return


class Readahead:
    """Brings the payloads of coming samples into memory before they are needed.

    Its one thread starts with the first request, and ends with `close`, with this object, or with the interpreter. A
    forked child starts its own. Every request is a hint: without it, samples are the same but come later.
    """

    def __init__(self, reader: Reader, fields: Sequence[str]) -> None:
        """Read ahead for a reader.

        Args:
            reader: Of the dataset.
            fields: The payload fields that will be read.
        """
        a, self._index = reader.index.columns, reader.index
        self._columns = [tuple(a[f"{name}.{part}"] for part in ("offset", "stored_nbytes", "codec")) for name in fields]
        self._offsets = [column[0] for column in self._columns]
        self._file = reader.data_file
        self._probe = np.zeros(1, np.uint8)
        self._workers: dict[int, _Worker] = {}
        self._closed = False

    def is_resident(self, rows: I64) -> bool:
        """Return whether samples seem to be in memory, judged by one page of up to four of them, in different fields.

        False if the system does not report it: requesting bytes that are in memory takes only 20 to 45 ms a GB.

        Args:
            rows: (n,) int64 sample numbers, each in range(len(reader)).
        """
        if not self._offsets or not len(rows):
            return True
        few = rows[:: -(-len(rows) // _PROBED_ROWS)]
        self._index.check(few)
        # Python's numbers: of four, an array costs more.
        offsets = [int(self._offsets[i % len(self._offsets)][row]) for i, row in enumerate(few.tolist())]
        starts = [min(max(offset, 0), self._file.nbytes - 1) for offset in offsets]
        remote = self._file.remote
        if remote is not None and not remote.is_complete:
            is_here = bool(remote.are_here(*self._ranges(rows, whole=True)).all())
            if remote.streams or not is_here:
                return is_here
        if self._file.io == "pread":
            return all(map(self._file.is_cached, starts))
        if not self._file.tells_residency:
            return False
        base: int = self._file.data.ctypes.data
        pages = [(base + start) & -mmap.PAGESIZE for start in starts]
        return all(system.resident_pages(page, 1, self._probe) and self._probe[0] & 1 for page in pages)

    def will_need(self, rows: I64) -> None:
        """As `load`, without a ticket, and without tiled images over 1 MiB: a crop needs a small part of them."""
        self._submit(rows, awaited=False)

    def load(self, rows: I64) -> Ticket:
        """Read the payloads of samples in the background, in the file's order.

        Args:
            rows: (n,) int64 sample numbers, each in range(len(reader)), in any order.

        Returns:
            A ticket that is done when all are in memory.

        Raises:
            Exception: The error that ended the thread.
        """
        return self._submit(rows, awaited=True)

    @property
    def looks_at_all(self) -> bool:
        """Whether `is_resident` looks at all samples: the file is at a URL, and not all of it is here."""
        return self._file.remote is not None and not self._file.remote.is_complete

    @property
    def streams(self) -> bool:
        """Whether the file is at a URL, and a part of it is in memory while somebody holds it."""
        return self._file.remote is not None and self._file.remote.streams

    def hold(self, rows: I64) -> Callable[[], None]:
        """Keep samples (n,) of a file at a URL in memory from when they come; return the function that ends this."""
        assert self._file.remote is not None
        return self._file.remote.hold(*self._ranges(rows, whole=True))

    def advise(self, *, random: bool) -> None:
        """Advise the system about the order of reads, for every user of the same reader.

        Args:
            random: Whether to read only requested bytes. This suits callers whose `will_need` or `load` comes in time;
                other bytes are then read page by page, which is slow.
        """
        if self._file.io == "pread":
            for file in self._file.files:
                system.advise_order(file.descriptor, random=random)
            return
        data = self._file.data
        if not data.size:
            return
        advice = system.RANDOM if random else system.NORMAL
        whole = np.array([data.size], np.int64)
        entries.advise(data.ctypes.data, whole - whole, whole, advice, data.size, np.zeros(1, np.uint8))

    def close(self) -> None:
        """End the thread; all tickets are done, and later requests do nothing."""
        self._closed = True
        if self._file.remote is not None:
            self._file.remote.forget(id(self))
        worker = self._workers.get(os.getpid())
        if worker is not None:
            worker.stop()

    def _submit(self, rows: I64, *, awaited: bool) -> Ticket:
        ticket = Ticket()
        starts, stops = self._ranges(rows, whole=awaited)
        if self._closed or not len(starts):
            ticket._finish()
            return ticket
        remote = self._file.remote
        if remote is not None and not remote.is_complete:
            here = remote.are_here(starts, stops)
            remote.request(starts, stops, id(self))
            if remote.streams:
                ticket._finish()
                return ticket
            # A batch waits for its own bytes only: other requests go on, so that the link has something to do.
            starts, stops, awaited = starts[here], stops[here], awaited and bool(here.all())
        worker = self._worker()
        if worker.failure is not None:
            raise worker.failure
        guard = self._file.for_kernels()[3]
        if guard:  # these pages may have left memory, and may be unreadable now
            entries.forget(guard, starts, stops)
        worker.put(_Request(self._file, starts, stops, awaited, ticket))
        return ticket

    def _ranges(self, rows: I64, *, whole: bool) -> tuple[I64, I64]:
        """Return starts and stops of payloads, (n,) int64 each, without empty and, unless `whole`, large tiled ones."""
        self._index.check(rows)
        starts, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for offset, stored_nbytes, codec in self._columns:
            at, nbytes = offset[rows], stored_nbytes[rows].astype(np.int64)
            kept = (nbytes > 0) & (at >= 0) & (at <= self._file.nbytes - nbytes)
            if not whole:
                kept &= (nbytes <= LARGE_NBYTES) | ~np.isin(codec[rows], TILED)
            starts.append(at[kept])
            lengths.append(nbytes[kept])
        begin: I64 = np.concatenate(starts)
        return begin, begin + np.concatenate(lengths)

    def _worker(self) -> _Worker:
        """Return this process's thread, started."""
        pid = os.getpid()
        found = self._workers.get(pid)
        if found is None:
            fresh = _Worker()
            # If several threads come here at once, one of them wins; a lock could stay locked in a forked child.
            found = self._workers.setdefault(pid, fresh)
            if found is fresh:
                weakref.finalize(self, fresh.stop)
                fresh.start()
                if self._closed:
                    fresh.stop()
        return found
