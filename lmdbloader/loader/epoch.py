"""One pass through an epoch: readahead from storage, groups of batches for threads, and their delivery in order."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
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
from lmdbloader.batch.turns import needs_turn, running
from lmdbloader.errors import CorruptError, OptionError, WorkerError
from lmdbloader.loader.batch_reader import LEFT_OUT, BatchReader, Plan
from lmdbloader.loader.orders import EpochOrder, RankPositions
from lmdbloader.loader.surroundings import Surroundings
from lmdbloader.loader.threads import Job, Threads
from lmdbloader.store import Damage, Readahead, Reader, Ticket
from lmdbloader.transforms.batch_functions import described

I64 = npt.NDArray[np.int64]
# A batch, or `LEFT_OUT`, and the damaged samples that were left out of it.
Item = tuple[Any, tuple[Damage, ...]]
# Samples that are read one by one are requested this far ahead, so that the disk can choose among several; large ones
# only so far that they are still in memory when they are read.
_SAMPLES_AHEAD = 512
_NBYTES_AHEAD = 256 * 2**20
# Windows of more samples than that are looked at in a few places before the numbers of all are made.
_MANY_SAMPLES, _PROBED_WINDOWS = 2**15, 4
# A call that computes the order costs as much as some 50 samples, so it is made for a stretch of about this many.
_SAMPLES_TOGETHER, _STRETCHES_KEPT = 1024, 3


class EpochReadahead:
    """Brings in the stored bytes of one rank's coming batches; safe from several threads.

    If the bytes are in memory already, it costs a look at a few of their pages. It changes the speed only.
    """

    def __init__(self, reader: BatchReader, order: EpochOrder, positions: RankPositions) -> None:
        """Start at the beginning; the arguments are those of `EpochRun`."""
        dataset = reader.dataset
        cut = {output.name for output in reader.pipeline.outputs if _is_cut_from_large(dataset.reader, output)}
        payloads = [name for name, f in dataset.fields.items() if f.is_payload and name not in cut]
        self._readahead = Readahead(dataset.reader, payloads)
        self._rows_of, self._order, self._positions = reader.rows_of, order, positions
        self._samples_ahead = min(_SAMPLES_AHEAD, int(_NBYTES_AHEAD / reader.layout.mean_nbytes))
        self._lock = threading.Lock()
        self._num_requested = 0
        self._is_cold = False
        self._windows = order.windows(positions)
        # Windows are waited for in their order; those before this one are in memory.
        self._num_loaded = 0
        self._tickets: list[Ticket | None] = []
        # Of a dataset at a URL that is cached in part: windows in the order in which they end, how many are over, and
        # what ends the holds of the others.
        self._by_end = np.argsort(self._windows.ends) if self._windows and self._readahead.streams else None
        self._num_over, self._batches_behind = 0, (reader.plan.ahead + 1) * reader.plan.batches_at_once
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
        rows = self._rows(begin, until)
        if self._is_cold or not self._readahead.is_resident(rows):
            if not self._is_cold:
                # From now on everything is requested; the system's own readahead would read too much.
                self._readahead.advise(random=True)
                self._is_cold = True
            self._readahead.will_need(rows)

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

    def _rows(self, first: int, end: int) -> I64:
        return self._rows_of(self._order.samples(self._positions.of_batches(first, end)))


def _is_cut_from_large(reader: Reader, output: Output) -> bool:
    """Return whether only small windows of a field's large images are read: which ones is not known ahead."""
    if not reader.index.facts[output.name].has_tiles:
        return False
    return 2 * math.prod(output.shape) < reader.mean_nbytes(output.name, "raw_nbytes", range(len(reader)))


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

    def begun(self, reader: BatchReader, num_samples: int) -> Begun:
        """Return the batch, which the first thread begins."""
        with self._lock:
            if self._batch is None:
                self._batch = reader.begin(num_samples)
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
        positions: RankPositions,
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
            order: Of the epoch.
            positions: In it, of the batches to read.
            plan: How batches are read ahead.
            skips: Whether damaged samples are left out.
            may_lack: Whether a batch of only damaged samples may be left out too: not if other ranks count it.
            stopwatch: Times the threads.
        """
        self._skips, self._may_lack = skips, may_lack
        self._reader, self._epoch, self._order = reader, epoch, order
        self._positions, self._at_once, self._num_parts = positions, plan.batches_at_once, plan.num_parts
        self._stopwatch = stopwatch
        self._readahead = EpochReadahead(reader, order, positions)
        self.num_groups = -(-len(positions) // plan.batches_at_once)
        # Groups whose samples are computed at once, and the latest such stretches: threads are in neighbouring ones.
        self._groups_together = max(_SAMPLES_TOGETHER // (plan.batches_at_once * positions.batch_size), 1)
        self._computed: dict[int, I64] = {}
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
        self._readahead = EpochReadahead(self._reader, self._order, self._positions)
        self.results, self.shared = SimpleQueue(), {}

    def arrived(self) -> Iterator[tuple[int, list[Item], BaseException | None]]:
        """Yield the results that are ready."""
        with suppress(Empty):
            while True:
                yield self.results.get_nowait()

    def _samples(self, first: int, end: int) -> I64:
        """Return the samples of batches first ... end - 1, which are of one group."""
        together = self._groups_together * self._at_once
        number, batch_size = first // together, self._positions.batch_size
        begin = number * together
        latest = self._computed
        computed = latest.get(number)
        if computed is None:
            until = min(begin + together, len(self._positions))
            computed = self._order.samples(self._positions.of_batches(begin, until))
            # Replaced, not changed: other threads may be looking at it.
            kept = sorted(latest, reverse=True)[: _STRETCHES_KEPT - 1]
            self._computed = {**{other: latest[other] for other in kept}, number: computed}
        return computed[(first - begin) * batch_size : (end - begin) * batch_size]

    def jobs(self, group: int) -> list[Job]:
        """Return the jobs of threads that read a group; the one that ends last puts it into `results`.

        Functions of the user are called as in this thread: that of the loop.
        """
        around = Surroundings() if self._reader.python_functions else None
        if self._num_parts == 1:
            return [partial(self._read_group, group, around)]
        shared = self.shared[group] = _SharedBatch(self._num_parts)
        return [partial(self._read_part, group, part, shared, around) for part in range(self._num_parts)]

    def check_turn(self) -> None:
        """Raise OptionError if this thread is calling a function in its turn, and the threads need turns to go on."""
        if (outer := running()) is None:
            return
        inner = next(filter(needs_turn, self._reader.python_functions), None)
        if inner is not None:
            raise OptionError(
                f"{described(outer)} reads from a Loader whose threads call {described(inner)}. Functions are called "
                "one at a time, so it would wait for ever. If one of the two keeps nothing from one call to the next, "
                "mark it with lmdbloader.transforms.thread_safe."
            )

    def _read_part(self, group: int, part: int, shared: _SharedBatch, around: Surroundings | None) -> None:
        """Read a part of a group of one batch."""
        if self.cancelled:
            return
        clock = self._stopwatch.take()
        samples = self._samples(group, group + 1)
        first, end = (len(samples) * number // self._num_parts for number in (part, part + 1))
        try:
            self._readahead.need(group, group + 1)
        except WorkerError as refused:
            shared.refused = refused
        except BaseException:  # an error of reading, as in `_read_group`
            pass
        try:
            clock.tick(clock_words.READ)
            begun = shared.begun(self._reader, len(samples))
            self._reader.read_part(begun, samples[first:end], first, self._epoch, clock)
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
                batch = None
                if not shared.has_failed:
                    begun = shared.begun(self._reader, len(samples))
                    batch = self._reader.complete(begun, samples, self._epoch, clock)
            except BaseException:
                batch = None
            shared.drop()
            if batch is None:
                items, error = self._read_singly(group, group + 1, clock, around)
            else:
                items, error = self._finish([batch], group, samples, clock, around)
            del batch
        clock.end()
        self.results.put((group, items, error))

    def _read_group(self, group: int, around: Surroundings | None) -> None:
        """Read the batches of a group and put them into `results`, with the error that ended it."""
        if self.cancelled:
            return
        clock = self._stopwatch.take()
        first = group * self._at_once
        end = min(first + self._at_once, len(self._positions))
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
            samples = self._samples(first, end)
            batches = self._reader.read(samples, self._epoch, clock)
        except BaseException:
            items, error = self._read_singly(first, end, clock, around)
        else:
            items, error = self._finish(batches, first, samples, clock, around)
            del batches
        clock.end()
        self.results.put((group, items, error))

    def read_again(self, group: int, num_given: int, end: int) -> tuple[list[Item], BaseException | None]:
        """Return a group's batches num_given ... end - 1, read a second time, with the error that ended them."""
        first = group * self._at_once
        clock = self._stopwatch.take()
        found = self._read_singly(first + num_given, first + end, clock, None)
        clock.end()
        return found

    def _finish(
        self, batches: list[Any], first: int, samples: I64, clock: Clock, around: Surroundings | None
    ) -> tuple[list[Item], BaseException | None]:
        """Return batches up to the one for which a function of the user failed: it is not called for that again."""
        items: list[Item] = []
        for number, batch in enumerate(batches):
            try:
                own = samples[number * self._reader.batch_size :][: self._reader.batch_size]
                position = self._positions.first_of(first + number)
                items.append((self._reader.finish(batch, self._epoch, position, own, around), ()))
            except BaseException as error:
                return items, error
        clock.count(len(samples), len(batches))
        return items, None

    def _read_singly(
        self, first: int, end: int, clock: Clock, around: Surroundings | None
    ) -> tuple[list[Item], BaseException | None]:
        """Return the batches first ... end - 1 up to the one that cannot be read."""
        items: list[Item] = []
        for number in range(first, end):
            try:
                items.append(self._read_one(number, clock, around))
            except BaseException as error:
                return items, error
        return items, None

    def _read_one(self, number: int, clock: Clock, around: Surroundings | None) -> Item:
        samples, position = self._samples(number, number + 1), self._positions.first_of(number)
        if not self._skips:
            (batch,) = self._reader.read(samples, self._epoch, clock)
            batch = self._reader.finish(batch, self._epoch, position, samples, around)
            clock.count(len(samples), 1)
            return batch, ()
        batch, damaged = self._reader.read_sound(samples, self._epoch, position, clock, around)
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
            run.check_turn()
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
