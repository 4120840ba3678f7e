"""Has storage bring in what an epoch reads next, where it is not in memory yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from lmdbloader.loader.orders import EpochOrder
from lmdbloader.store import Readahead, Reader, Ticket

I64 = npt.NDArray[np.int64]
# Reads one by one are asked for this many samples ahead, so that the disk always has several to choose from.
_SAMPLES_AHEAD = 512
# While one window is read from, these are brought in.
_WINDOWS_AHEAD = 1


class Ahead:
    """Follows one rank's way through an epoch; safe from several threads.

    What is in memory already costs a look at a few of its pages. Nothing here is needed for correctness.
    """

    def __init__(
        self,
        reader: Reader,
        fields: Sequence[str],
        rows_of: Callable[[I64], I64],
        order: EpochOrder,
        starts: I64,
        stops: I64,
    ) -> None:
        """Start at the beginning.

        Args:
            reader: Of the dataset.
            fields: The payload fields that are read.
            rows_of: Turns the dataset's sample numbers into rows of the reader's index.
            order: Of the epoch.
            starts, stops: (n,) which positions of the order each of this rank's batches has.
        """
        self._readahead = Readahead(reader, fields)
        self._rows_of, self._order = rows_of, order
        self._starts, self._stops = starts, stops
        self._lock = threading.Lock()
        self._asked = 0
        self._is_cold = False
        # Nothing of the windows before the first batch is needed, where a loader goes on in the middle.
        begun = 0 if order.windows is None or not len(starts) else self._window(int(starts[0]))
        self._tickets: list[Ticket | None] = [None] * begun

    def need(self, first: int, end: int) -> None:
        """Say that the batches first ... end - 1 are read next; return when it is time to."""
        if self._order.windows is None:
            self._ask_for_samples(first, end)
            return
        window = self._window(int(self._stops[end - 1]) - 1)
        with self._lock:
            while len(self._tickets) < min(window + 1 + _WINDOWS_AHEAD, len(self._order.windows) - 1):
                self._tickets.append(self._load(len(self._tickets)))
            ticket = self._tickets[window]
        if ticket is not None:
            ticket.wait()

    def close(self) -> None:
        """Stop reading ahead."""
        if self._is_cold:  # nobody asks ahead any more, so single pages would be read slowly
            self._readahead.advise(random=False)
        self._readahead.close()

    def _ask_for_samples(self, first: int, end: int) -> None:
        size = max(int(self._stops[first] - self._starts[first]), 1)
        until = min(end + -(-_SAMPLES_AHEAD // size), len(self._starts))
        with self._lock:
            begin, self._asked = self._asked, max(self._asked, until)
        if begin >= until:
            return
        rows = self._rows(begin, until)
        if self._is_cold or not self._readahead.is_resident(rows):
            if not self._is_cold:
                # From now on everything is asked for; more than that would be read in vain.
                self._readahead.advise(random=True)
                self._is_cold = True
            self._readahead.will_need(rows)

    def _window(self, position: int) -> int:
        assert self._order.windows is not None
        return int(np.searchsorted(self._order.windows, position, "right")) - 1

    def _load(self, window: int) -> Ticket | None:
        windows = self._order.windows
        assert windows is not None
        low, high = windows[window], windows[window + 1]
        first = int(np.searchsorted(self._stops, low, "right"))
        end = int(np.searchsorted(self._starts, high, "left"))
        if first >= end:
            return None
        rows = self._rows(first, end)
        return None if self._readahead.is_resident(rows) else self._readahead.load(rows)

    def _rows(self, first: int, end: int) -> I64:
        samples = [
            self._order.samples[a:b] for a, b in zip(self._starts[first:end], self._stops[first:end], strict=True)
        ]
        return self._rows_of(np.concatenate(samples))
