"""One pass through an epoch: groups of batches that threads read, and the iterator that hands them out in order."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base import clock_words
from lmdbloader.base.stage_times import Clock
from lmdbloader.batch.memory import never_free
from lmdbloader.errors import CorruptError, WorkerError
from lmdbloader.loader.orders import EpochOrder
from lmdbloader.loader.source import LEFT_OUT, Source
from lmdbloader.loader.threads import Threads
from lmdbloader.store import Damage

I64 = npt.NDArray[np.int64]
# A batch, `LEFT_OUT` where nothing of it is left, and what was left out of it.
Item = tuple[Any, tuple[Damage, ...]]


class Run:
    """One pass through an epoch: what the threads and the iterator share."""

    def __init__(
        self,
        source: Source,
        epoch: int,
        order: EpochOrder,
        starts: I64,
        stops: I64,
        batches_at_once: int,
        *,
        skips: bool,
        may_lack: bool,
    ) -> None:
        """Prepare; threads do the work.

        Args:
            source: Reads.
            epoch: Which one.
            order: Of the epoch, with what is repeated at its end.
            starts, stops: (n,) which positions of the order each batch has.
            batches_at_once: How many are read in one go.
            skips: Whether damaged samples are left out.
            may_lack: Whether a batch of nothing but damaged ones may be, too: not where other ranks count it.
        """
        self._skips, self._may_lack = skips, may_lack
        self._source, self._epoch, self._order = source, epoch, order
        self._starts, self._stops, self._at_once = starts, stops, batches_at_once
        self._ahead = source.ahead(order, starts, stops)
        self.num_groups = -(-len(starts) // batches_at_once)
        self.results: SimpleQueue[tuple[int, list[Item], BaseException | None]] = SimpleQueue()
        self.cancelled = False

    def cancel(self) -> None:
        """Let the threads skip what they have not begun."""
        self.cancelled = True
        if not sys.is_finalizing():  # when nothing can be imported any more, and the process ends anyway
            self._ahead.close()

    @property
    def is_pinned(self) -> bool:
        """Whether batches lie in pinned memory, which a forked child must not touch."""
        return self._source.is_pinned

    def begin_anew(self) -> None:
        """In a forked child, let go of what the parent's threads may have been at: locks and results."""
        self._ahead = self._source.ahead(self._order, self._starts, self._stops)
        self.results = SimpleQueue()

    def arrived(self) -> Iterator[tuple[int, list[Item], BaseException | None]]:
        """Yield the results that are there."""
        with suppress(Empty):
            while True:
                yield self.results.get_nowait()

    def read_group(self, group: int) -> None:
        """Read some batches that follow each other and put them into `results`, with the error that ended it."""
        if self.cancelled:
            return
        clock = self._source.stopwatch.take()
        first = group * self._at_once
        end = min(first + self._at_once, len(self._starts))
        try:
            self._ahead.need(first, end)
        except WorkerError as refused:  # a thread: without it a cold disk is read page by page
            clock.end()
            self.results.put((group, [], refused))
            return
        except BaseException:  # of reading, which shows again with the sample's name
            pass
        try:
            clock.tick(clock_words.READ)
            samples = self._samples(first, end)
            batches = self._source.read(samples, self._epoch, clock)
        except BaseException:
            items, error = self._read_singly(first, end, clock)
        else:
            items, error = self._finish(batches, samples, clock)
            del batches
        clock.end()
        self.results.put((group, items, error))

    def read_again(self, group: int, num_given: int, end: int) -> tuple[list[Item], BaseException | None]:
        """Return a group's batches from `num_given` to end - 1 anew, with the error that ended them."""
        first = group * self._at_once
        clock = self._source.stopwatch.take()
        found = self._read_singly(first + num_given, first + end, clock)
        clock.end()
        return found

    def _finish(self, batches: list[Any], samples: I64, clock: Clock) -> tuple[list[Item], BaseException | None]:
        """Return batches up to the one that a function of the user's failed on: it is not called for that again."""
        items: list[Item] = []
        for number, batch in enumerate(batches):
            try:
                first_sample = int(samples[number * self._source.batch_size])
                items.append((self._source.finish(batch, self._epoch, first_sample), ()))
            except BaseException as error:
                return items, error
        clock.count(len(samples), len(batches))
        return items, None

    def _samples(self, first: int, end: int) -> I64:
        starts, stops = self._starts[first:end], self._stops[first:end]
        if len(starts) == 1 or (starts[1:] == stops[:-1]).all():
            return self._order.samples[starts[0] : stops[-1]]
        return np.concatenate([self._order.samples[a:b] for a, b in zip(starts, stops, strict=True)])

    def _read_singly(self, first: int, end: int, clock: Clock) -> tuple[list[Item], BaseException | None]:
        """Return the batches first ... end - 1 up to the one that cannot be read."""
        items: list[Item] = []
        for number in range(first, end):
            samples = self._samples(number, number + 1)
            try:
                items.append(self._read_one(samples, clock))
            except BaseException as error:
                return items, error
        return items, None

    def _read_one(self, samples: I64, clock: Clock) -> Item:
        if not self._skips:
            (batch,) = self._source.read(samples, self._epoch, clock)
            batch = self._source.finish(batch, self._epoch, int(samples[0]))
            clock.count(len(samples), 1)
            return batch, ()
        batch, damaged = self._source.read_sound(samples, self._epoch, clock)
        if batch is LEFT_OUT and not self._may_lack:
            raise CorruptError(
                f"{damaged[0].reason} All {len(samples)} samples of a batch are damaged, and it cannot be left out: "
                "the other ranks would be a batch ahead. Use larger ones, or repair the dataset."
            )
        return batch, damaged


def deliver(run: Run, threads: Threads, ahead: int) -> Iterator[Item]:
    """Yield the batches of a run in order, each with what was left out of it, keeping so many groups under way."""
    arrived: dict[int, Any] = {}
    submitted, is_pinned = 0, run.is_pinned
    process, num_closed = os.getpid(), threads.num_closed
    try:
        for group in range(run.num_groups):
            if (process, num_closed) != (os.getpid(), threads.num_closed):
                if process != os.getpid():  # a forked child: the threads that were at some groups stayed behind
                    if is_pinned:  # and so does what they have read
                        never_free((arrived, run.results))
                        arrived = {}
                    run.begin_anew()
                process, num_closed = os.getpid(), threads.num_closed
                arrived.update((result[0], result) for result in run.arrived())
                for missing in sorted({*range(group, submitted)} - arrived.keys()):
                    threads.submit(_Job(run, missing))
            while submitted < min(group + ahead, run.num_groups):
                threads.submit(_Job(run, submitted))
                submitted += 1
            while group not in arrived:
                result = run.results.get()
                arrived[result[0]] = result
                del result  # a batch that nobody else holds is free for reuse
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


class _Job:
    """One group of a run, to be read."""

    __slots__ = ("_group", "_run")

    def __init__(self, run: Run, group: int) -> None:
        self._run, self._group = run, group

    def __call__(self) -> None:
        self._run.read_group(self._group)
