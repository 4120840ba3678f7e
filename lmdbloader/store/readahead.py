"""Brings the bytes of coming samples into memory before they are read, from one thread in the background."""

from __future__ import annotations

import mmap
import os
import queue
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.limits import start_threads
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import CODEC_TILES
from lmdbloader.store import filecache
from lmdbloader.store.opening import POPULATE_READ, DataFile, tells_residency
from lmdbloader.store.reader import Reader

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

# Ranges closer than this are read as one: what lies between costs less than a request of its own.
GAP_NBYTES = 16 * 1024
# Of a tiled image beyond this size a crop reads a small part; which one is not known here.
LARGE_NBYTES = 1024 * 1024
_PROBED_ROWS = 4
# Storage that does not answer must not hold up who closes.
_JOIN_SECONDS = 1.0


@cache
def _kernels() -> Any:
    """Return the kernels; numba is imported when something is first asked for."""
    from lmdbloader.kernels.runtime import paging

    return paging


@cache
def _presence() -> Any:
    from lmdbloader.kernels.runtime import presence

    return presence


def coalesce(starts: I64, stops: I64, *, gap_nbytes: int = GAP_NBYTES, page_nbytes: int = 1) -> tuple[I64, I64]:
    """Return the fewest ranges that cover others: sorted, in whole pages, further apart than the gap.

    Args:
        starts, stops: (n,) int64, none of them empty, in any order; they may overlap.
        gap_nbytes: Ranges no further apart than this become one.
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
    """Says when bytes that were asked for are in memory."""

    __slots__ = ("_event", "_failure", "_pid")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._failure: BaseException | None = None
        self._pid = os.getpid()

    @property
    def done(self) -> bool:
        """Whether nothing more will happen; so it is in a forked child, to which the thread did not come along."""
        return self._event.is_set() or self._pid != os.getpid()

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it is done, after at most `timeout` seconds.

        Done also means that the file could not be read, which reading the samples will show, or that the readahead was
        closed.

        Raises:
            Exception: What went wrong in the thread, other than reading.
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
    """Ranges (starts, stops) of a file to bring in, which this keeps open; `awaited` says whether somebody waits."""

    file: DataFile
    starts: I64
    stops: I64
    awaited: bool
    ticket: Ticket


class _Worker:
    """The thread, and what it shares with its callers: never the Readahead, so that this can die."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._pid = os.getpid()
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._stopping = np.zeros(1, np.uint8)
        self._current: _Request | None = None
        self._thread = threading.Thread(target=self._run, name="lmdbloader-readahead", daemon=True)

    def start(self) -> None:
        try:
            start_threads([self._thread], "reading ahead", "Use fewer threads elsewhere.")
        except BaseException as error:
            self._end(error)
            raise

    def put(self, request: _Request) -> None:
        self._requests.put(request)
        if self._stopping[0]:  # nobody may be there any more to find it
            request.ticket._finish(self.failure)

    def stop(self) -> None:
        """End the thread and every ticket."""
        if self._pid != os.getpid():
            return
        self._end(None)
        # The garbage collector may call this from the thread itself.
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _end(self, failure: BaseException | None) -> None:
        self.failure = self.failure or failure
        self._stopping[0] = 1
        current = self._current
        if current is not None:
            current.ticket._finish(self.failure)
        with suppress(queue.Empty):
            while True:
                waiting = self._requests.get_nowait()
                if waiting is not None:
                    waiting.ticket._finish(self.failure)
        self._requests.put(None)

    def _run(self) -> None:
        try:
            buffer = np.empty(max(filecache.PIECE_NBYTES, _kernels().PIECE_NBYTES), np.uint8)
            while not self._stopping[0]:
                self._current = self._requests.get()
                if self._current is None:
                    break
                with suppress(OSError):  # who reads the samples gets an error that says which
                    _serve(self._current, buffer, self._stopping)
                self._current.ticket._finish()
        except BaseException as error:
            self._end(error)
        finally:
            self._end(None)


def _serve(request: _Request, buffer: U8, stopping: U8) -> None:
    starts, stops = coalesce(request.starts, request.stops, page_nbytes=mmap.PAGESIZE)
    descriptor, base = request.file.descriptor, request.file.data.ctypes.data
    if request.file.io == "pread":
        if request.awaited:
            filecache.load(descriptor, starts, stops, buffer, stopping)
        else:
            filecache.will_need(descriptor, starts, stops, stopping)
        return
    paging = _kernels()
    if request.awaited:
        paging.load(base, starts, stops, POPULATE_READ, descriptor, buffer, stopping)
    else:
        paging.advise(base, starts, stops, mmap.MADV_WILLNEED, paging.PIECE_NBYTES, stopping)


class Readahead:
    """Brings the payloads of coming samples into memory before they are needed.

    Its one thread starts when it is first needed, and ends with `close`, with this object, and with the interpreter. A
    forked child starts its own. Whatever is asked for is a hint: samples read the same without it, only later.
    """

    def __init__(self, reader: Reader, fields: Sequence[str]) -> None:
        """Read ahead for a reader.

        Args:
            reader: Of the dataset.
            fields: The payload fields that will be read.

        Raises:
            OptionError: One is no payload field of the dataset.
        """
        payloads = [name for name, f in reader.fields.items() if f.is_payload]
        for name in fields:
            if name not in payloads:
                raise OptionError(f"{reader.path}: no field {name!r} with payloads; it has {', '.join(payloads)}")
        a = reader.index.arrays
        self._columns = [tuple(a[f"{name}.{part}"] for part in ("offset", "stored_nbytes", "codec")) for name in fields]
        self._offsets = [column[0] for column in self._columns]
        self._file = reader.data_file
        self._probe = np.zeros(1, np.uint8)
        self._tells_residency = tells_residency(self._file.descriptor)
        self._workers: dict[int, _Worker] = {}
        self._closed = False

    def is_resident(self, rows: I64) -> bool:
        """Return whether samples seem to be in memory, from a page of at most four of them, of another field each.

        False where the system does not tell: asking for what is there takes but 20 to 45 ms a GB.

        Args:
            rows: (n,) int64 sample numbers, each in range(len(reader)).
        """
        if not self._offsets or not len(rows):
            return True
        few = rows[:: -(-len(rows) // _PROBED_ROWS)].tolist()
        starts = np.array([self._offsets[i % len(self._offsets)][row] for i, row in enumerate(few)], np.int64)
        if self._file.io == "pread":
            return not filecache.is_absent(self._file.descriptor, starts)
        if not self._tells_residency:
            return False
        return not _kernels().any_absent(self._file.data.ctypes.data, starts, mmap.PAGESIZE, self._probe)

    def will_need(self, rows: I64) -> None:
        """Have the payloads of samples read in the background; nothing tells when they are there.

        Those of tiled images over 1 MiB are left out, as a crop needs a small part of them.

        Args:
            rows: (n,) int64 sample numbers, each in range(len(reader)), in any order.

        Raises:
            Exception: What ended the thread.
        """
        self._submit(rows, awaited=False)

    def load(self, rows: I64) -> Ticket:
        """Read the payloads of samples in the background, in the file's order.

        Args:
            rows: (n,) int64 sample numbers, each in range(len(reader)), in any order.

        Returns:
            What tells when all are in memory.

        Raises:
            Exception: What ended the thread.
        """
        return self._submit(rows, awaited=True)

    def advise(self, *, random: bool) -> None:
        """Tell the system how samples will be read, which holds for everyone who reads through the same reader.

        Args:
            random: Whether to read nothing but what is asked for: right where `will_need` or `load` asks in time; what
                they did not ask for is then read page by page, slowly.
        """
        if self._file.io == "pread":
            filecache.advise(self._file.descriptor, random=random)
            return
        data = self._file.data
        if not data.size:
            return
        advice = mmap.MADV_RANDOM if random else mmap.MADV_NORMAL
        whole = np.array([data.size], np.int64)
        _kernels().advise(data.ctypes.data, whole - whole, whole, advice, data.size, np.zeros(1, np.uint8))

    def close(self) -> None:
        """End the thread; tickets that are waited for are done. Asking for more does nothing."""
        self._closed = True
        worker = self._workers.get(os.getpid())
        if worker is not None:
            worker.stop()

    def _submit(self, rows: I64, *, awaited: bool) -> Ticket:
        ticket = Ticket()
        starts, stops = self._ranges(rows, whole=awaited)
        if self._closed or not len(starts):
            ticket._finish()
            return ticket
        worker = self._worker()
        if worker.failure is not None:
            raise worker.failure
        guard = self._file.for_kernels()[3]
        if guard:  # what is asked for is not in memory, or no more: it may not read
            _presence().forget(guard, starts, stops)
        worker.put(_Request(self._file, starts, stops, awaited, ticket))
        return ticket

    def _ranges(self, rows: I64, *, whole: bool) -> tuple[I64, I64]:
        """Return where payloads begin and end, (n,) int64 each, without empty and, unless `whole`, large tiled ones."""
        starts, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for offset, stored_nbytes, codec in self._columns:
            at, nbytes = offset[rows], stored_nbytes[rows].astype(np.int64)
            kept = nbytes > 0
            if not whole:
                kept &= (nbytes <= LARGE_NBYTES) | (codec[rows] != CODEC_TILES)
            starts.append(at[kept])
            lengths.append(nbytes[kept])
        begin: I64 = np.concatenate(starts)
        return begin, begin + np.concatenate(lengths)

    def _worker(self) -> _Worker:
        """Return this process's thread, started."""
        pid = os.getpid()
        found = self._workers.get(pid)
        if found is None:
            _kernels()
            fresh = _Worker()
            # Of several threads that come here at once one puts its own in; there is no lock that a fork could keep.
            found = self._workers.setdefault(pid, fresh)
            if found is fresh:
                weakref.finalize(self, fresh.stop)
                fresh.start()
                if self._closed:
                    fresh.stop()
        return found
