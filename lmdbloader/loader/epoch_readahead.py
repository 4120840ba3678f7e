"""Readahead of an epoch: brings the stored bytes of coming batches into memory before threads read them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lmdbloader.base import system
from lmdbloader.batch.batcher import Batcher
from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.loader.orders import EpochOrder, RankBatches, RankPositions, Windows

if TYPE_CHECKING:
    from lmdbloader.store import Ticket

I64 = npt.NDArray[np.int64]
# Samples that are read one by one are requested this far ahead, so that the disk can choose among several; large ones
# only so far that they are still in memory when they are read.
_SAMPLES_AHEAD = 512
_NBYTES_AHEAD = 256 * 2**20
# Of the samples that come next, so many are looked at to see whether they are in memory.
_LOOKED_AT = 4
# Windows of more samples than that are looked at in a few places before the numbers of all are made.
_MANY_SAMPLES, _PROBED_WINDOWS = 2**15, 4


class EpochReadahead:
    """Brings in the stored bytes of one rank's coming batches; safe from several threads.

    If the bytes are in memory already, it costs a look at a few of their pages. It changes the speed only.
    """

    def __init__(
        self,
        batcher: Batcher,
        epoch: int,
        order: EpochOrder,
        positions: RankPositions | RankBatches,
        batches_behind: int,
        mean_nbytes: float,
    ) -> None:
        """Start at the beginning; the arguments are those of `EpochRun`.

        Args:
            batches_behind: So many before the one that is needed may still be in work.
        """
        from lmdbloader.store import Readahead

        pipeline = batcher.pipeline
        cut = {name for name in pipeline.fields if _is_cut_from_large(pipeline, name)}
        payloads = [name for name, f in batcher.fields.items() if f.is_payload and name not in cut]
        self._only_images = {*payloads} <= {*pipeline.fields}
        self._readahead = Readahead(pipeline.reader, payloads)
        self._batcher, self._epoch, self._order, self._positions = batcher, epoch, order, positions
        self._samples_ahead = min(_SAMPLES_AHEAD, int(_NBYTES_AHEAD / mean_nbytes)) // batcher.frames
        self._lock = threading.Lock()
        self._num_requested = 0
        self._is_cold = False
        self._windows = order.windows(positions) if isinstance(positions, RankPositions) else None
        if self._windows and not self._readahead.streams and not _fits(self._windows, mean_nbytes):
            self._windows = None
        # Windows are waited for in their order; those before this one are in memory.
        self._num_loaded = 0
        self._tickets: list[Ticket | None] = []
        # Of a dataset at a URL that is cached in part: windows in the order in which they end, how many are over, and
        # what ends the holds of the others.
        self._by_end = np.argsort(self._windows.ends) if self._windows and self._readahead.streams else None
        self._num_over, self._batches_behind = 0, batches_behind
        self._releases: dict[int, Callable[[], None]] = {}

    def need(self, first: int, end: int) -> None:
        """Announce that the batches first ... end - 1 are read next; return when their windows are in memory."""
        windows = self._windows
        if windows is None:
            self._request_samples(first, end)
            return
        # The first samples of the order, repeated after its end, were in memory before.
        last = min(self._positions.last_of(end - 1), self._order.length - 1)
        needed = int(np.searchsorted(windows.begins, last, "right"))
        with self._lock:
            self._give_back(first)
            self._load(needed)
            # Several at once: a look whether they are in memory costs as much for one window.
            if len(self._tickets) < needed + -(-windows.ahead // 2):
                self._load(needed + windows.ahead)
            waiting = [ticket for ticket in self._tickets[self._num_loaded : needed] if ticket is not None]
        for ticket in waiting:
            ticket.wait()
        with self._lock:
            self._num_loaded = max(self._num_loaded, needed)

    def close(self) -> None:
        """Stop reading ahead."""
        if self._is_cold:  # with random access advised, pages that nobody requests are read one by one, slowly
            self._readahead.advise(random=False)
        self._readahead.close()
        with self._lock:
            while self._releases:
                self._releases.popitem()[1]()

    def _request_samples(self, first: int, end: int) -> None:
        ahead, all_batches = -(-self._samples_ahead // self._positions.batch_size), len(self._positions)
        until = min(end + ahead, all_batches)
        with self._lock:
            # A look whether they are in memory costs as much for one group of batches as for several.
            if self._num_requested >= min(end - (-3 * ahead // 4), all_batches):
                return
            begin, self._num_requested = self._num_requested, until
        few = not self._readahead.looks_at_all
        if self._is_cold or not self._readahead.is_resident(self._rows(begin, until, few=few)):
            if not self._is_cold:
                # From now on everything is requested; the system's own readahead would read too much.
                self._readahead.advise(random=True)
                self._is_cold = True
            self._readahead.will_need(self._rows(begin, until))

    def _load(self, end: int) -> None:
        """Bring in the windows before `end` that were not requested yet; they share a ticket."""
        assert self._windows is not None
        first, end = len(self._tickets), min(end, len(self._windows.begins))
        ticket = None
        if self._by_end is not None:
            for number in range(first, end):
                rows = self._rows_of(self._windows.samples(number, number + 1))
                self._releases[number] = self._readahead.hold(rows)
        if first < end and not self._seem_resident(first, end):
            rows = self._rows_of(self._windows.samples(first, end))
            if len(rows) and not self._readahead.is_resident(rows):
                ticket = self._readahead.load(rows)
        self._tickets += [ticket] * (end - first)

    def _seem_resident(self, first: int, end: int) -> bool:
        """Return whether windows of very many samples seem to be in memory, judged by a sample in each of a few.

        The numbers of all of them, which `load` needs, would take a second for a window of 10 million tiny samples.
        """
        assert self._windows is not None
        if (end - first) * self._order.length < _MANY_SAMPLES * len(self._windows.begins):
            return False
        few = range(first, end, -(-(end - first) // _PROBED_WINDOWS))
        return self._readahead.is_resident(
            self._rows_of(np.concatenate([self._windows.samples(k, k + 1)[:1] for k in few]))
        )

    def _give_back(self, batch: int) -> None:
        """Say which windows are over when a batch begins; batches shortly before it may be in work."""
        if self._windows is None or self._by_end is None or batch < self._batches_behind:
            return
        position = self._positions.last_of(batch - self._batches_behind)
        while self._num_over < len(self._by_end):
            number = int(self._by_end[self._num_over])
            if self._windows.ends[number] > position or number >= len(self._tickets):
                break
            if number in self._releases:  # not yet closed
                self._releases.pop(number)()
            self._num_over += 1

    def _rows_of(self, draws: I64) -> I64:
        """Return the rows of draws (n,), each once: windows share frames."""
        rows = self._batcher.rows_of(draws, self._epoch)
        rows, pipeline = rows if self._batcher.frames == 1 else np.unique(rows), self._batcher.pipeline.reading
        return pipeline.kept.not_kept(pipeline, rows) if pipeline.kept and self._only_images else rows

    def _rows(self, first: int, end: int, *, few: bool = False) -> I64:
        """Return the rows of batches first ... end - 1, or a few that are evenly spread."""
        positions = self._positions.of_batches(first, end)
        if few:
            positions = np.ascontiguousarray(positions[:: -(-len(positions) // _LOOKED_AT)])
        return self._rows_of(self._order.samples(positions))


def _fits(windows: Windows, mean_nbytes: float) -> bool:
    """Return whether all windows that are in use at a time, and those that come next, fit into the free memory.

    Otherwise they would have left it again before they are used.
    """
    free, middle = system.free_memory(), len(windows.begins) // 2
    if free is None or not middle:
        return True
    num_over = np.searchsorted(np.sort(windows.ends), windows.begins, "right")
    most = int((np.arange(1, len(num_over) + 1) - num_over).max()) + windows.ahead
    return most * mean_nbytes * len(windows.samples(middle, middle + 1)) <= free


def _is_cut_from_large(pipeline: Pipeline, name: str) -> bool:
    """Return whether only small windows of a field's large images are read: which ones is not known ahead."""
    reader = pipeline.reader
    if not reader.index.facts[name].has_tiles:
        return False
    nbytes = sum(math.prod(output.shape) for output in pipeline.reading.outputs if output.name == name)
    return 2 * nbytes < reader.mean_nbytes(name, "raw_nbytes", range(len(reader)))
