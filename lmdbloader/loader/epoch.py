"""One pass through an epoch: groups of batches for threads, and their delivery to the loop."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base import clock_words
from lmdbloader.base.stage_times import Clock, Stopwatch
from lmdbloader.batch.batcher import Batcher, Begun, Run
from lmdbloader.batch.turns import needs_turn, running
from lmdbloader.errors import CorruptError, OptionError, WorkerError
from lmdbloader.loader.orders import EpochOrder, RankBatches, RankPositions
from lmdbloader.loader.state import Place
from lmdbloader.loader.threads import Job, Threads
from lmdbloader.transforms.functions import described

if TYPE_CHECKING:
    import torch

    from lmdbloader.loader.device import EpochCopies
    from lmdbloader.store import Damage

I64 = npt.NDArray[np.int64]
# In place of a batch whose samples are all damaged.
LEFT_OUT = object()
# A batch, or `LEFT_OUT`, and the damaged samples that were left out of it.
Item = tuple[Any, "tuple[Damage, ...]"]
# A call that computes the order costs as much as some 50 samples, so it is made for a stretch of about this many.
_SAMPLES_TOGETHER, _STRETCHES_KEPT = 1024, 3

# Small batches are read several at a time: a call, and waking a thread, costs as much as reading some samples. Many
# threads also wait for the GIL, so each takes more at a time: so many for every four threads, up to four times as many.
_SAMPLES_AT_ONCE, _SHARING, _MOST_TIMES = 64, 4, 4
# Samples are so large then that more of them in a call save nothing.
_NBYTES_AT_ONCE = 16 * 2**20
# Of all groups that are read ahead. There are at least two: one to be read, and one for the loop in the meantime.
_GROUPS_NBYTES = 2**30
# Seconds between looks, while a loop waits, whether another thread has closed the Loader.
_PATIENCE = 0.5
# What a processor's last cache keeps of batches. Of more bytes, each goes to memory before the loop reads it.
_CACHED_NBYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Plan:
    """How batches are read ahead.

    Attributes:
        batches_at_once: Batches of a group, which a thread reads at once.
        num_parts: Parts of a group of one large batch, each of which a thread reads.
        ahead: Groups that are being read or ready.
        outgrows_caches: Whether these groups have more bytes than stay in the processor's caches.
    """

    batches_at_once: int
    num_parts: int
    ahead: int
    outgrows_caches: bool = True


def plan_groups(batch_size: int, sample_nbytes: int, num_threads: int, prefetch: int) -> Plan:
    """Return how batches are read ahead: `num_threads + prefetch` groups, or fewer if they are large.

    >>> plan_groups(16, 34_560, num_threads=2, prefetch=2)
    Plan(batches_at_once=4, num_parts=1, ahead=4, outgrows_caches=True)
    >>> plan_groups(1, 8_298_720, num_threads=16, prefetch=2)
    Plan(batches_at_once=2, num_parts=1, ahead=18, outgrows_caches=True)
    >>> plan_groups(64, 8_298_720, num_threads=16, prefetch=2)
    Plan(batches_at_once=1, num_parts=16, ahead=2, outgrows_caches=True)
    """
    batch_nbytes = max(batch_size * sample_nbytes, 1)
    group_nbytes = min(_NBYTES_AT_ONCE, _GROUPS_NBYTES // (num_threads + 2))
    num_samples = _SAMPLES_AT_ONCE * min(-(-num_threads // _SHARING), _MOST_TIMES)
    at_once = max(1, min(-(-num_samples // batch_size), group_nbytes // batch_nbytes))
    most = max(2, _GROUPS_NBYTES // (at_once * batch_nbytes))
    if num_threads + prefetch <= most:
        ahead = num_threads + prefetch
        return Plan(at_once, 1, ahead, ahead * at_once * batch_nbytes > _CACHED_NBYTES)
    # There are fewer batches than threads, and one of them may be waiting for the loop: the threads share the others.
    return Plan(at_once, min(batch_size, -(-num_threads // (most - 1))), most)


class _Group:
    """A group of batches that one thread reads, or of one large batch whose parts several threads read.

    Attributes:
        number: Of the group.
        first, end: Its batches.
        batcher: Reads them.
        size: Samples of each, but the last may have fewer.
        run: Calls functions of the user.
        begun: The batches, once a thread has begun them.
        refused: The error if a thread could not be started.
        has_failed: Whether some part could not be read.
    """

    def __init__(
        self, number: int, span: tuple[int, int], num_parts: int, batcher: Batcher, size: int, run: Run
    ) -> None:
        self.number, (self.first, self.end), self.run = number, span, run
        self.batcher, self.size = batcher, size
        self.begun: Begun | None = None
        self.refused: WorkerError | None = None
        self.has_failed = False
        self._left, self.lock = num_parts, threading.Lock()

    def is_last(self) -> bool:
        """Return whether the part that was read is the last."""
        with self.lock:
            self._left -= 1
            return self._left == 0


class EpochRun:
    """One pass through an epoch: the state that the threads and the iterator share."""

    def __init__(
        self,
        batcher: Batcher,
        epoch: int,
        order: EpochOrder,
        positions: RankPositions | RankBatches,
        plan: Plan,
        *,
        batcher_of: Callable[[int], Batcher] | None = None,
        mean_nbytes: float,
        skips: bool,
        may_lack: bool,
        stopwatch: Stopwatch,
        copies: EpochCopies | None = None,
    ) -> None:
        """Prepare; threads do the work.

        Args:
            batcher: Reads the batches, or one kind of them.
            epoch: Its number.
            order: Of the epoch.
            positions: In it, of the batches to read.
            plan: How batches are read ahead.
            batcher_of: Returns what reads the batches of a kind; None is `batcher` for all.
            mean_nbytes: Stored bytes of a sample.
            skips: Whether damaged samples are left out.
            may_lack: Whether a batch of only damaged samples may be left out too: not if other ranks count it.
            stopwatch: Times the threads.
            copies: Of the batches to a device; None if they stay.
        """
        self._skips, self._may_lack = skips, may_lack
        self._batcher_of = batcher_of or (lambda kind: batcher)
        self._batcher, self._epoch, self._order = batcher, epoch, order
        self._positions, self._at_once, self._num_parts = positions, plan.batches_at_once, plan.num_parts
        self._stopwatch = stopwatch
        from lmdbloader.loader.epoch_readahead import EpochReadahead

        behind = (plan.ahead + 1) * plan.batches_at_once
        self._readahead = EpochReadahead(batcher, epoch, order, positions, behind, mean_nbytes)
        self.num_groups = -(-len(positions) // plan.batches_at_once)
        # Groups whose samples are computed at once, and the latest such stretches: threads are in neighboring ones.
        self._groups_together = max(_SAMPLES_TOGETHER // (plan.batches_at_once * positions.batch_size), 1)
        self._computed: dict[int, I64] = {}
        # The number of a group, its items, and the error that ended it.
        self.results: SimpleQueue[tuple[int, list[Any], BaseException | None]]
        self.copies, self.results = copies, SimpleQueue() if copies is None else copies.ready
        self.cancelled = False

    def cancel(self) -> None:
        """Let the threads skip the groups that they have not started."""
        self.cancelled = True
        if self.copies is not None:
            self.copies.cancelled = True
        if not sys.is_finalizing():  # nothing can be imported then, and the process ends anyway
            self._readahead.close()

    def _samples(self, first: int, end: int) -> I64:
        """Return the samples of batches first ... end - 1, which are of one group."""
        together = self._groups_together * self._at_once
        number, place_of = first // together, self._positions.place_of
        begin = number * together
        latest = self._computed
        computed = latest.get(number)
        if computed is None:
            until = min(begin + together, len(self._positions))
            computed = self._order.samples(self._positions.of_batches(begin, until))
            # Replaced, not changed: other threads may be looking at it.
            kept = sorted(latest, reverse=True)[: _STRETCHES_KEPT - 1]
            self._computed = {**{other: latest[other] for other in kept}, number: computed}
        return computed[place_of(first) - place_of(begin) : place_of(end) - place_of(begin)]

    def jobs(self, group: int) -> list[Job]:
        """Return the jobs of threads that read a group; the one that ends last puts it into `results`.

        Functions of the user are called as in this thread: that of the loop.
        """
        run = None
        if self._batcher.python_functions:
            from lmdbloader.loader.surroundings import Surroundings

            run = Surroundings().run
        positions, first = self._positions, group * self._at_once
        span, batcher = (first, min(first + self._at_once, len(positions))), self._batcher_of(positions.kind_of(first))
        parts = _Group(group, span, self._num_parts, batcher, positions.size_of(first), run)
        return [partial(self._read_part, parts, part) for part in range(self._num_parts)]

    def check_turn(self) -> None:
        """Raise OptionError if this thread is calling a function in its turn, and the threads need turns to go on."""
        functions = self._batcher.python_functions
        outer = running() if functions else None
        if outer is None:
            return
        inner = next(filter(needs_turn, functions), None)
        if inner is not None:
            raise OptionError(
                f"{described(outer)} reads from a Loader whose threads call {described(inner)}. Functions are called "
                "one at a time, so it would wait for ever. If one of the two keeps nothing from one call to the next, "
                "mark it with lmdbloader.transforms.thread_safe."
            )

    def _read_part(self, group: _Group, part: int) -> None:
        """Read a part of a group; after the last one put its batches into `results`, with the error that ended it."""
        if self.cancelled:
            return
        clock = self._stopwatch.take()
        try:
            self._readahead.need(group.first, group.end)
        except WorkerError as refused:  # no thread: without readahead a cold disk would be read page by page
            group.refused = refused
        except BaseException:  # an error of reading, which comes again below, with the sample's name
            pass
        if group.refused is None:
            self._read_images(group, part, clock)
        if not group.is_last():
            clock.end()
            return
        items, error = self._ended(group, clock)
        clock.end()
        (self.results if self.copies is None else self.copies).put((group.number, items, error))

    def _read_images(self, group: _Group, part: int, clock: Clock) -> None:
        """Read the images of a part; the first thread begins the batches."""
        try:
            clock.tick(clock_words.READ)
            with group.lock:
                if group.begun is None:
                    samples = self._samples(group.first, group.end)
                    group.begun = group.batcher.begin(samples, self._epoch, group.size, clock)
                begun = group.begun
            first, end = (len(begun.rows) * number // self._num_parts for number in (part, part + 1))
            group.batcher.read_images(begun, first, end, clock)
        except BaseException:  # it comes again when the batches are read one by one
            group.has_failed = True

    def _ended(self, group: _Group, clock: Clock) -> tuple[list[Item], BaseException | None]:
        """Return the batches of a group whose parts were read, and the error that ended it."""
        if group.refused is not None:
            return [], group.refused
        begun, group.begun = group.begun, None  # their memory is free once the loop has no part of it
        if begun is not None and not group.has_failed:
            try:
                batches = group.batcher.complete(begun, clock)
            except BaseException:
                pass
            else:
                return self._finish(group, batches, begun, clock)
        del begun
        return self._read_singly(group, clock)

    def _finish(
        self, group: _Group, batches: list[Any], begun: Begun, clock: Clock
    ) -> tuple[list[Item], BaseException | None]:
        """Return batches up to the one for which a function of the user failed: it is not called for that again."""
        samples = begun.draws[:: group.batcher.frames]
        if not group.batcher.finishes and self.copies is None:
            clock.count(len(samples), len(batches))
            return [(batch, ()) for batch in batches], None
        items: list[Item] = []
        for number, batch in enumerate(batches):
            try:
                own = samples[number * group.size :][: group.size]
                block = begun.blocks[number] if begun.blocks else None
                items.append((self._finished(group.batcher, batch, own, group.first + number, group.run, block), ()))
            except BaseException as error:
                return items, error
        clock.count(len(samples), len(batches))
        return items, None

    def _finished(
        self,
        batcher: Batcher,
        batch: Any,
        samples: I64,
        number: int,
        run: Run,
        block: tuple[torch.Tensor, int] | None = None,
    ) -> Any:
        """Return a batch that was read as the loop gets it, or packed for its copy to a device."""
        position = self._positions.first_of(number)
        finish = partial(batcher.finish, draws=samples, epoch=self._epoch, position=position, run=run)
        if self.copies is None:
            return finish(batch) if batcher.finishes else batch
        if batcher.pipeline.carry_out is not None:
            return self.copies.packed(batch, block, finish)
        return self.copies.packed(finish(batch) if batcher.finishes else batch, block)

    def _read_singly(self, group: _Group, clock: Clock) -> tuple[list[Item], BaseException | None]:
        """Return the batches of a group up to the one that cannot be read."""
        items: list[Item] = []
        for number in range(group.first, group.end):
            try:
                items.append(self._read_one(group.batcher, number, clock, group.run))
            except BaseException as error:
                return items, error
        return items, None

    def _read_one(self, batcher: Batcher, number: int, clock: Clock, run: Run) -> Item:
        """Return one batch, without its damaged samples if these are left out."""
        sound = samples = self._samples(number, number + 1)
        damaged: list[Damage] = []
        while len(sound):
            try:
                (batch,) = batcher.read(sound, self._epoch, len(samples), clock)
            except CorruptError:
                if not self._skips:
                    raise
                found = [self._damage(batcher, sound[i : i + 1], clock) for i in range(len(sound))]
                if not any(found):  # each sample can be read by itself: this is not damage to one of them
                    raise
                damaged += filter(None, found)
                sound = sound[[damage is None for damage in found]]
                continue
            # The random numbers of batch functions stay those of the whole batch.
            batch = self._finished(batcher, batch, sound, number, run)
            clock.count(len(sound), 1)
            return batch, tuple(damaged)
        if not self._may_lack:
            raise CorruptError(
                f"{damaged[0].reason} All {len(samples)} samples of a batch are damaged, and it cannot be left out: "
                "the other ranks would be a batch ahead. Use larger batches, or repair the dataset."
            )
        return LEFT_OUT, tuple(damaged)

    def _damage(self, batcher: Batcher, sample: I64, clock: Clock) -> Damage | None:
        """Return the damage to one sample, given as (1,); None if it can be read."""
        try:
            batcher.read(sample, self._epoch, 1, clock)
        except CorruptError as error:
            if error.sample is None or error.field is None:
                raise
            from lmdbloader.store import Damage

            return Damage(error.sample, error.field, error.source, str(error))
        return None


def deliver(run: EpochRun, threads: Threads, ahead: int) -> Iterator[Item]:
    """Yield the batches of a run in order, each with the damage left out of it; threads work on `ahead` groups."""
    arrived: dict[int, Any] = {}
    submitted, num_closed, copies = 0, threads.num_closed, run.copies

    def check_open() -> None:
        if threads.num_closed != num_closed:  # the jobs that they had not begun are gone
            raise WorkerError("the Loader was closed while this iterator read from it: make a new one")

    try:
        for group in range(run.num_groups):
            run.check_turn()
            check_open()
            while submitted < min(group + ahead, run.num_groups):
                for job in run.jobs(submitted):
                    threads.submit(job)
                submitted += 1
            if copies is not None:
                copies.need(group)
            while group not in arrived:
                try:
                    result = run.results.get(timeout=_PATIENCE)
                except Empty:
                    check_open()
                    continue
                arrived[result[0]] = result
                del result  # the memory of a batch that nothing refers to is free
            _, found, error = arrived.pop(group)
            found.reverse()
            while found:
                yield found.pop() if copies is None else copies.given(found.pop())
            if error is not None:
                raise error
    finally:
        run.cancel()


class Batches(Iterator[Any]):
    """The iterator of a loop, which counts each batch when the loop gets it.

    It does not refer to batches, whose memory is free when the loop no longer holds them. Several threads may share it:
    each batch goes to one of them.
    """

    __slots__ = ("_begin", "_failure", "_items", "_lock", "_note", "_process", "place")

    def __init__(self, begin: Callable[[], tuple[Place, Iterator[Any]]], note: Callable[[Damage], None]) -> None:
        """Prepare.

        Args:
            begin: Called for the first batch; returns the place to update, and items (batch or `LEFT_OUT`, damage).
            note: Called with each damage.
        """
        self._begin: Callable[[], tuple[Place, Iterator[Any]]] | None = begin
        self._note = note
        self.place = Place(0, 0)
        self._items: Iterator[Any] = iter(())
        self._lock, self._process = threading.RLock(), os.getpid()
        # As text: the traceback of the error would keep batches alive.
        self._failure: str | None = None

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            WorkerError: An error has ended the iterator, perhaps in another thread; or it is of another process.
        """
        if self._process != os.getpid():
            raise WorkerError(
                "this iterator of a Loader was made before the process was forked, and its threads are the parent's. "
                "Make a new one with iter(loader), after load_state_dict(state_dict()) to keep the place."
            )
        with self._lock:
            if self._failure is not None:
                raise WorkerError(f"this iterator of a Loader has ended with an error: {self._failure}")
            if self.place.is_ended:
                raise StopIteration
            try:
                if self._begin is not None:
                    begin, self._begin = self._begin, None
                    self.place, self._items = begin()
                while True:
                    batch, damaged = next(self._items)
                    self.place.num_steps += 1
                    for one in damaged:
                        self._note(one)
                    if batch is not LEFT_OUT:
                        return batch
            except StopIteration:
                self.place.is_ended = self.place.is_complete = True
                raise
            except BaseException as error:
                self._failure = f"{type(error).__name__}: {error}"
                self.place.is_ended = True
                raise

    def close(self) -> None:
        """End; the threads skip the groups that they have not started. Waits for a thread that is getting a batch."""
        self.place.is_ended = True
        close = getattr(self._items, "close", None)
        if close is not None and self._process == os.getpid():
            with self._lock:
                close()

    def __del__(self) -> None:
        if (place := getattr(self, "place", None)) is not None:  # Ctrl-C may come before `__init__` has set it
            place.is_ended = True
