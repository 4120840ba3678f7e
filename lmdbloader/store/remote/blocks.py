"""The blocks of a file that are fetched by threads: those that somebody waits for first, then those requested ahead."""

from __future__ import annotations

import copy
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lmdbloader.base import system
from lmdbloader.base.limits import start_threads
from lmdbloader.errors import LmdbloaderError, WorkerError
from lmdbloader.format.layout import PART_ALIGNMENT

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
# The states of a block. Those above ABSENT can be read; DURABLE ones also after a power cut.
FETCHING, ABSENT, PRESENT, DURABLE = -1, 0, 1, 2
# Requests of this process at a time.
MOST_REQUESTS = 32
# Of very many blocks that are waited for, so many are in the queue at a time.
_MOST_WAITED_FOR = 512
# The owner of what somebody waits for.
_URGENT = -1


class Blocks:
    """Blocks of a file, and the threads that fetch them while there are any to fetch; for one process and its forks.

    A subclass says how blocks are fetched and where they are kept. One request is for neighbors between two multiples
    of 2 MiB, so it never spans two data files.

    Attributes:
        states: (n,) int8, of each block.
        block_nbytes: Of each but the last.
        streams: Whether blocks that nobody holds are freed.
    """

    streams = False

    def __init__(self, states: npt.NDArray[np.int8], block_nbytes: int) -> None:
        """Start no thread yet."""
        self.states, self.block_nbytes = states, block_nbytes
        self._most = PART_ALIGNMENT // block_nbytes
        self._num_complete = 0
        self.restart()
        _all.add(self)

    def restart(self) -> None:
        """Begin without threads and requests, as a forked child does."""
        self._changed = threading.Condition(threading.RLock())  # the garbage collector may end a hold anywhere
        self._queue: OrderedDict[int, int] = OrderedDict()  # the owner of each block that waits for a thread
        self._active: set[int] = set()
        self._num_threads = 0
        self._failed: dict[int, LmdbloaderError] = {}  # why a block could not be fetched

    def load(self, first: int, end: int) -> None:
        """Fetch absent blocks first ... end - 1, and set their states; called by several threads, for other blocks."""
        raise NotImplementedError

    def settle(self) -> None:
        """Do what can wait until there is nothing to fetch; called by a thread that ends."""

    @property
    def is_complete(self) -> bool:
        """Whether every block is here, and stays."""
        states, at = self.states, self._num_complete
        while at < len(states) and (states[at : at + 4096] > ABSENT).all():
            at += 4096
        self._num_complete = at
        return at >= len(states)

    def _spans(self, starts: I64, stops: I64) -> tuple[I64, I64]:
        """Return the numbers of all blocks that ranges (n,) touch, one after the other, and where each range begins."""
        first = starts // self.block_nbytes
        counts = (stops - 1) // self.block_nbytes - first + 1
        begins = np.cumsum(counts) - counts
        return np.repeat(first - begins, counts) + np.arange(int(counts.sum())), begins

    def of(self, starts: I64, stops: I64) -> I64:
        """Return the blocks that ranges (n,) touch, each once, in the order of the ranges."""
        found, at = np.unique(self._spans(starts, stops)[0], return_index=True)
        in_order: I64 = found[np.argsort(at)]
        return in_order

    def are_here(self, starts: I64, stops: I64) -> Bools:
        """Return for ranges (n,) whether all of their bytes are here."""
        if not len(starts):
            return np.ones(0, np.bool_)
        blocks, begins = self._spans(starts, stops)
        found: Bools = np.logical_and.reduceat(self.states[blocks] > ABSENT, begins)
        return found

    def hold(self, starts: I64, stops: I64) -> Callable[[], None]:
        """Keep ranges of the file, those that are here and those that come; return the function that ends this."""
        return _nothing

    def request(self, starts: I64, stops: I64, owner: int = 0) -> None:
        """Fetch ranges (n,) in the background, in this order; `forget` with the same owner ends this."""
        blocks = self.of(starts, stops)
        with self._changed:
            for block in blocks[self.states[blocks] <= ABSENT].tolist():
                if block not in self._active:
                    self._queue.setdefault(block, owner)
            self._wake()

    def forget(self, owner: int = 0) -> None:
        """Fetch nothing of what was requested by an owner and has not begun."""
        with self._changed:
            for block in [block for block, whose in self._queue.items() if whose == owner]:
                del self._queue[block]

    def bring(self, starts: I64, stops: I64) -> None:
        """Return when ranges (n,) are here; they are fetched before others.

        Raises:
            LmdbloaderError: They cannot be fetched, or there is no room for them.
        """
        self.bring_blocks(self.of(starts, stops))

    def bring_blocks(self, blocks: I64) -> None:
        """Return when blocks are here, as `bring`."""
        with self._changed:
            for block in blocks.tolist():
                self._failed.pop(block, None)
        while len(blocks := blocks[self.states[blocks] <= ABSENT]):
            with self._changed:
                some = blocks[:_MOST_WAITED_FOR]
                for block in reversed(some.tolist()):
                    if block in self._failed:
                        # Several threads may raise it: one that is raised twice would keep both traces.
                        raise copy.copy(self._failed[block]) from self._failed[block].__cause__
                    if block not in self._active and self._queue.get(block) != _URGENT:
                        self._queue[block] = _URGENT
                        self._queue.move_to_end(block, last=False)
                self._wake()
                if (self.states[some] <= ABSENT).all():
                    self._changed.wait()

    def renew(self, starts: I64, stops: I64) -> None:
        """Fetch ranges (n,) again, because they are damaged.

        Raises:
            LmdbloaderError: They cannot be fetched.
        """
        blocks = self.of(starts, stops)
        with self._changed:
            self._num_complete = 0
            self.states[blocks] = ABSENT
        self.bring_blocks(blocks)

    def _wake(self) -> None:
        """Have threads look at the queue; the caller has the lock."""
        for _ in range(min(len(self._queue), MOST_REQUESTS - self._num_threads)):
            thread = threading.Thread(target=self._run, name="lmdbloader-remote", daemon=True)
            try:
                start_threads([thread], "fetching", "Use fewer threads elsewhere.")
            except WorkerError:
                if not self._num_threads:
                    raise
                break
            self._num_threads += 1
        self._changed.notify_all()

    def _run(self) -> None:
        while (run := self._next()) is not None:
            failure: LmdbloaderError | None = None
            try:
                self.load(*run)
            except LmdbloaderError as error:
                failure = error
            except BaseException as error:  # of the system: the folder is gone, for example
                failure = WorkerError(f"what was fetched cannot be kept: {type(error).__name__}: {error}")
            with self._changed:
                self._active.difference_update(range(*run))
                if failure is not None:
                    self._failed.update(dict.fromkeys(range(*run), failure))
                    self._queue.clear()
                self._changed.notify_all()
        self.settle()

    def _next(self) -> tuple[int, int] | None:
        """Return neighbors to fetch (first, end); None to end the thread."""
        with self._changed:
            while self._queue:
                first, _ = self._queue.popitem(last=False)
                if self.states[first] > ABSENT:
                    continue
                end, limit = first + 1, (first // self._most + 1) * self._most
                while end < limit and end in self._queue and self.states[end] <= ABSENT:
                    del self._queue[end]
                    end += 1
                self._active.update(range(first, end))
                return first, end
            self._num_threads -= 1
            self._changed.notify_all()  # some may be here because another process has fetched them
            return None


def _nothing() -> None:
    """End a hold of what stays anyway."""


_all: weakref.WeakSet[Blocks] = weakref.WeakSet()


def _restart_in_child() -> None:
    for blocks in _all:
        blocks.restart()


system.after_fork(_restart_in_child)
