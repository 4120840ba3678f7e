"""One pass through an epoch: readahead from storage, groups of batches for threads, and their delivery in order."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base import clock_words
from lmdbloader.base.stage_times import Clock, Stopwatch
from lmdbloader.batch.assembly import Begun
from lmdbloader.batch.memory import never_free
from lmdbloader.batch.pipeline import Output
from lmdbloader.errors import CorruptError, WorkerError
from lmdbloader.format.codecs import are_tiles
from lmdbloader.loader.batch_reader import LEFT_OUT, BatchReader, Plan
from lmdbloader.loader.orders import EpochOrder
from lmdbloader.loader.threads import Job, Threads
from lmdbloader.store import Damage, Readahead, Reader, Ticket

I64 = npt.NDArray[np.int64]
# A batch, or `LEFT_OUT`, and the damaged samples that were left out of it.
Item = tuple[Any, tuple[Damage, ...]]
# Samples that are read one by one are requested this far ahead, so that the disk can choose among several; large ones
# only so far that they are still in memory when they are read.
_SAMPLES_AHEAD = 512
_NBYTES_AHEAD = 256 * 2**20
# Windows that are brought in while one is in use.
_WINDOWS_AHEAD = 1


class EpochReadahead:
    """Brings in the stored bytes of one rank's coming batches; safe from several threads.

    If the bytes are in memory already, it costs a look at a few of their pages. It changes the speed only.
    """

    def __init__(self, reader: BatchReader, order: EpochOrder, starts: I64, stops: I64) -> None:
        """Start at the beginning; the arguments are those of `EpochRun`."""
        dataset = reader.dataset
        cut = {output.name for output in reader.pipeline.outputs if _is_cut_from_large(dataset.reader, output)}
        payloads = [name for name, f in dataset.fields.items() if f.is_payload and name not in cut]
        self._readahead = Readahead(dataset.reader, payloads)
        self._rows_of, self._order = dataset.rows_of, order
        self._starts, self._stops = starts, stops
        _, nbytes = reader.extents()
        self._samples_ahead = min(_SAMPLES_AHEAD, int(_NBYTES_AHEAD * len(nbytes) // max(int(nbytes.sum()), 1)))
        self._lock = threading.Lock()
        self._num_requested = 0
        self._is_cold = False
        # A loader that continues in the middle of an epoch does not need the windows before.
        begun = 0 if order.windows is None or not len(starts) else self._window(int(starts[0]))
        self._tickets: list[Ticket | None] = [None] * begun

    def need(self, first: int, end: int) -> None:
        """Announce that the batches first ... end - 1 are read next; return when their window is in memory."""
        if self._order.windows is None:
            self._request_samples(first, end)
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
        if self._is_cold:  # with random access advised, pages that nobody requests are read one by one, slowly
            self._readahead.advise(random=False)
        self._readahead.close()

    def _request_samples(self, first: int, end: int) -> None:
        size = max(int(self._stops[first] - self._starts[first]), 1)
        ahead, all_batches = -(-self._samples_ahead // size), len(self._starts)
        until = min(end + ahead, all_batches)
        with self._lock:
            # A look whether they are in memory costs as much for one group of batches as for several.
            if self._num_requested >= min(end - (-3 * ahead // 4), all_batches):
                return
            begin, self._num_requested = self._num_requested, until
        rows = self._rows(begin, until)
        if self._is_cold or not self._readahead.is_resident(rows):
            if not self._is_cold:
                # From now on everything is requested; the system's own readahead would read too much.
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
        return self._rows_of(_samples(self._order, self._starts[first:end], self._stops[first:end]))


def _is_cut_from_large(reader: Reader, output: Output) -> bool:
    """Return whether only small windows of a field's large images are read: which ones is not known ahead."""
    codec, raw = reader.index.arrays[f"{output.name}.codec"], reader.index.arrays[f"{output.name}.raw_nbytes"]
    return bool(are_tiles(codec).any() and 2 * math.prod(output.shape) < raw.mean())


def _samples(order: EpochOrder, starts: I64, stops: I64) -> I64:
    """Return the samples of batches that follow each other, given by their positions in the order."""
    if len(starts) == 1 or (starts[1:] == stops[:-1]).all():
        return order.samples[starts[0] : stops[-1]]
    return np.concatenate([order.samples[a:b] for a, b in zip(starts, stops, strict=True)])


class _SharedBatch:
    """A batch whose parts several threads read.

    Attributes:
        refused: The error if a thread could not be started.
        has_failed: Whether some part could not be read.
    """

    def __init__(self, num_parts: int) -> None:
        self.refused: WorkerError | None = None
        self.has_failed = False
        self._left, self._lock = num_parts, threading.Lock()
        self._batch: Begun | None = None

    def begun(self, reader: BatchReader) -> Begun:
        """Return the batch, which the first thread begins."""
        with self._lock:
            if self._batch is None:
                self._batch = reader.begin()
            return self._batch

    def is_last(self) -> bool:
        """Return whether the part that was read is the last."""
        with self._lock:
            self._left -= 1
            return self._left == 0

    def drop(self) -> None:
        """Give up the batch; its memory is free once the loop has no part of it."""
        self._batch = None


class EpochRun:
    """One pass through an epoch: the state that the threads and the iterator share."""

    def __init__(
        self,
        reader: BatchReader,
        epoch: int,
        order: EpochOrder,
        starts: I64,
        stops: I64,
        plan: Plan,
        *,
        skips: bool,
        may_lack: bool,
        stopwatch: Stopwatch,
    ) -> None:
        """Prepare; threads do the work.

        Args:
            reader: Of the batches.
            epoch: Its number.
            order: Of the epoch, with the samples that are repeated at its end.
            starts, stops: (n,) positions in the order at which each batch begins and ends.
            plan: How batches are read ahead.
            skips: Whether damaged samples are left out.
            may_lack: Whether a batch of only damaged samples may be left out too: not if other ranks count it.
            stopwatch: Times the threads.
        """
        self._skips, self._may_lack = skips, may_lack
        self._reader, self._epoch, self._order = reader, epoch, order
        self._starts, self._stops, self._at_once, self._num_parts = starts, stops, plan.batches_at_once, plan.num_parts
        self._stopwatch = stopwatch
        self._readahead = EpochReadahead(reader, order, starts, stops)
        self.num_groups = -(-len(starts) // plan.batches_at_once)
        self.results: SimpleQueue[tuple[int, list[Item], BaseException | None]] = SimpleQueue()
        # The batches that threads have begun together, by group.
        self.shared: dict[int, _SharedBatch] = {}
        self.cancelled = False

    def cancel(self) -> None:
        """Let the threads skip the groups that they have not started."""
        self.cancelled = True
        if not sys.is_finalizing():  # nothing can be imported then, and the process ends anyway
            self._readahead.close()

    @property
    def is_pinned(self) -> bool:
        """Whether batches are in pinned memory, which a forked child must not touch."""
        return self._reader.is_pinned

    def restart_in_child(self) -> None:
        """In a forked child, replace locks and results that threads of the parent may have been using."""
        self._readahead = EpochReadahead(self._reader, self._order, self._starts, self._stops)
        self.results, self.shared = SimpleQueue(), {}

    def arrived(self) -> Iterator[tuple[int, list[Item], BaseException | None]]:
        """Yield the results that are ready."""
        with suppress(Empty):
            while True:
                yield self.results.get_nowait()

    def jobs(self, group: int) -> list[Job]:
        """Return the jobs of threads that read a group; the one that ends last puts it into `results`."""
        if self._num_parts == 1:
            return [partial(self._read_group, group)]
        shared = self.shared[group] = _SharedBatch(self._num_parts)
        return [partial(self._read_part, group, part, shared) for part in range(self._num_parts)]

    def _read_part(self, group: int, part: int, shared: _SharedBatch) -> None:
        """Read a part of a group of one batch."""
        if self.cancelled:
            return
        clock = self._stopwatch.take()
        samples = self._order.samples[self._starts[group] : self._stops[group]]
        first, end = (len(samples) * number // self._num_parts for number in (part, part + 1))
        try:
            self._readahead.need(group, group + 1)
        except WorkerError as refused:
            shared.refused = refused
        except BaseException:  # an error of reading, as in `_read_group`
            pass
        try:
            clock.tick(clock_words.READ)
            self._reader.read_part(shared.begun(self._reader), samples[first:end], first, self._epoch, clock)
        except BaseException:
            shared.has_failed = True
        if not shared.is_last():
            clock.end()
            return
        self.shared.pop(group, None)
        items: list[Item] = []
        error: BaseException | None = shared.refused
        if error is None:
            try:
                begun = None if shared.has_failed else shared.begun(self._reader)
                batch = None if begun is None else self._reader.complete(begun, samples, self._epoch, clock)
            except BaseException:
                batch = None
            shared.drop()
            if batch is None:
                items, error = self._read_singly(group, group + 1, clock)
            else:
                items, error = self._finish([batch], samples, clock)
            del batch
        clock.end()
        self.results.put((group, items, error))

    def _read_group(self, group: int) -> None:
        """Read the batches of a group and put them into `results`, with the error that ended it."""
        if self.cancelled:
            return
        clock = self._stopwatch.take()
        first = group * self._at_once
        end = min(first + self._at_once, len(self._starts))
        try:
            self._readahead.need(first, end)
        except WorkerError as refused:  # no thread: without readahead a cold disk would be read page by page
            clock.end()
            self.results.put((group, [], refused))
            return
        except BaseException:  # an error of reading, which comes again below, with the sample's name
            pass
        try:
            clock.tick(clock_words.READ)
            samples = _samples(self._order, self._starts[first:end], self._stops[first:end])
            batches = self._reader.read(samples, self._epoch, clock)
        except BaseException:
            items, error = self._read_singly(first, end, clock)
        else:
            items, error = self._finish(batches, samples, clock)
            del batches
        clock.end()
        self.results.put((group, items, error))

    def read_again(self, group: int, num_given: int, end: int) -> tuple[list[Item], BaseException | None]:
        """Return a group's batches num_given ... end - 1, read a second time, with the error that ended them."""
        first = group * self._at_once
        clock = self._stopwatch.take()
        found = self._read_singly(first + num_given, first + end, clock)
        clock.end()
        return found

    def _finish(self, batches: list[Any], samples: I64, clock: Clock) -> tuple[list[Item], BaseException | None]:
        """Return batches up to the one for which a function of the user failed: it is not called for that again."""
        items: list[Item] = []
        for number, batch in enumerate(batches):
            try:
                own = samples[number * self._reader.batch_size :][: self._reader.batch_size]
                items.append((self._reader.finish(batch, self._epoch, int(own[0]), own), ()))
            except BaseException as error:
                return items, error
        clock.count(len(samples), len(batches))
        return items, None

    def _read_singly(self, first: int, end: int, clock: Clock) -> tuple[list[Item], BaseException | None]:
        """Return the batches first ... end - 1 up to the one that cannot be read."""
        items: list[Item] = []
        for number in range(first, end):
            try:
                samples = self._order.samples[self._starts[number] : self._stops[number]]
                items.append(self._read_one(samples, clock))
            except BaseException as error:
                return items, error
        return items, None

    def _read_one(self, samples: I64, clock: Clock) -> Item:
        if not self._skips:
            (batch,) = self._reader.read(samples, self._epoch, clock)
            batch = self._reader.finish(batch, self._epoch, int(samples[0]), samples)
            clock.count(len(samples), 1)
            return batch, ()
        batch, damaged = self._reader.read_sound(samples, self._epoch, clock)
        if batch is LEFT_OUT and not self._may_lack:
            raise CorruptError(
                f"{damaged[0].reason} All {len(samples)} samples of a batch are damaged, and it cannot be left out: "
                "the other ranks would be a batch ahead. Use larger batches, or repair the dataset."
            )
        return batch, damaged


def deliver(run: EpochRun, threads: Threads, ahead: int) -> Iterator[Item]:
    """Yield the batches of a run in order, each with the damage left out of it; threads work on `ahead` groups."""
    arrived: dict[int, Any] = {}
    submitted, is_pinned = 0, run.is_pinned
    process, num_closed = os.getpid(), threads.num_closed
    try:
        for group in range(run.num_groups):
            if (process, num_closed) != (os.getpid(), threads.num_closed):
                if process != os.getpid():  # a forked child, which has none of the threads that had begun groups
                    if is_pinned:  # nor the memory that they have read
                        never_free((arrived, run.results, run.shared))
                        arrived = {}
                    run.restart_in_child()
                process, num_closed = os.getpid(), threads.num_closed
                arrived.update((result[0], result) for result in run.arrived())
                for missing in sorted({*range(group, submitted)} - arrived.keys()):
                    for job in run.jobs(missing):
                        threads.submit(job)
            while submitted < min(group + ahead, run.num_groups):
                for job in run.jobs(submitted):
                    threads.submit(job)
                submitted += 1
            while group not in arrived:
                result = run.results.get()
                arrived[result[0]] = result
                del result  # the memory of a batch that nothing refers to is free
            _, found, error = arrived.pop(group)
            reader, count = process, len(found)
            found.reverse()
            while found:
                yield found.pop()
                if is_pinned and found and reader != os.getpid():  # forked in the middle of a group
                    reader, given = os.getpid(), count - len(found)
                    never_free(found)
                    found, failed = run.read_again(group, given, count)
                    found.reverse()
                    count, error = given + len(found), failed or error
            if error is not None:
                raise error
    finally:
        run.cancel()
