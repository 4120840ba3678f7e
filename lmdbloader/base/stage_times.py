"""The time of reading batches by stage, added up over the threads that read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base import clock_words, system

# The fields of StageTimes that are seconds, in the order of the words of a clock.
STAGES = ("read", "verify", "decode", "transform", "function", "buffer")


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The time of threads that read batches, since timing was switched on.

    Seconds are those of a clock, added up over the threads: two threads that decode for a second make two. They do not
    include the wait for the loop to take a batch; but if there are more threads than cores, or Python code
    of several at a time, waiting for a core or for the GIL is in the stage that had to wait.

    Attributes:
        read: Bringing stored bytes in: a read of the file, or the first touch of the map's pages. With verify=False a
            JPEG or raw payload of more than 128 KiB in the map is not touched before it is used, so that waiting for
            storage is in `decode` or `transform` then; io="pread" has it here.
        verify: Checksums.
        decode: From stored bytes to pixels: lz4, delta, tiles, JPEG, PNG and other files.
        transform: From pixels to the batch, in compiled code: crop, flip, resize, color, conversion.
        function: Python: the dataset's own transform, functions of batches, and what puts batches together.
        buffer: Waiting for, or making, the memory of batches, and working memory.
        num_samples: Samples in the batches that were read.
        num_batches: Batches that were read, also those that nobody has taken yet.
        nbytes: Stored bytes that were read.

    >>> StageTimes(read=0.5, decode=1.5, num_batches=3).total
    2.0
    """

    read: float = 0.0
    verify: float = 0.0
    decode: float = 0.0
    transform: float = 0.0
    function: float = 0.0
    buffer: float = 0.0
    num_samples: int = 0
    num_batches: int = 0
    nbytes: int = 0

    @property
    def total(self) -> float:
        """Seconds of all stages together."""
        return self.read + self.verify + self.decode + self.transform + self.function + self.buffer

    def __sub__(self, before: StageTimes) -> StageTimes:
        """Return the difference from an earlier state.

        >>> (StageTimes(read=3.0, nbytes=7) - StageTimes(read=1.0, nbytes=5)).read
        2.0
        """
        return StageTimes(*(getattr(self, f.name) - getattr(before, f.name) for f in fields(self)))


class Clock:
    """Adds up one thread's time: all of it from `begin` on belongs to one stage or another.

    Attributes:
        words: (NUM_WORDS,) int64, see `clock_words`; kernels add to the same ones.
        address: Of the words; 0 of a clock that does nothing.
    """

    __slots__ = ("_free", "address", "words")

    def __init__(self, free: list[Clock] | None) -> None:
        """Start at zero; `end` puts the clock into the list `free`. Without one it does nothing."""
        self._free = free
        self.words = np.zeros(clock_words.NUM_WORDS, np.int64)
        self.address: int = 0 if free is None else self.words.ctypes.data

    def begin(self) -> None:
        """Start: the time before now belongs to none of the stages."""
        self.words[clock_words.LAST] = system.clock_ns()

    def tick(self, stage: int) -> None:
        """Add the time since the last tick to a stage: `clock_words.READ` ... `BUFFER`."""
        if self._free is not None:
            words, now = self.words, system.clock_ns()
            words[stage] += now - words[clock_words.LAST]
            words[clock_words.LAST] = now

    def end(self) -> None:
        """Give the clock back; the time since the last tick is Python's."""
        if self._free is not None:
            self.tick(clock_words.FUNCTION)
            self._free.append(self)

    def add(self, word: int, amount: int) -> None:
        """Count something else: `clock_words.NUM_SAMPLES` ... `NBYTES`."""
        if self._free is not None:
            self.words[word] += amount

    def count(self, num_samples: int, num_batches: int) -> None:
        """Count batches that are finished."""
        self.add(clock_words.NUM_SAMPLES, num_samples)
        self.add(clock_words.NUM_BATCHES, num_batches)


# That of a thread that is not timed.
NO_CLOCK = Clock(None)


class Stopwatch:
    """The clocks of all threads that read for one loader or dataset; off at first, when there are none.

    A forked child goes on from its parent's counts; a pickled copy starts at zero, and off.
    """

    def __init__(self) -> None:
        self._is_on = False
        # All of them, and those that are free: as one tuple, so that a thread never mixes old and new lists.
        self._clocks: tuple[list[Clock], list[Clock]] = [], []

    def __reduce__(self) -> tuple[type[Stopwatch], tuple[()]]:
        return Stopwatch, ()

    def switch(self, on: bool) -> bool:
        """Start to count from zero, or stop; no change if it is so already. Return whether it was on."""
        was_on = self._is_on
        if on and not was_on:
            self._clocks = [], []
        self._is_on = on
        return was_on

    def take(self) -> Clock:
        """Return a clock for one thread's next piece of work, begun, to be ended; one that does nothing when off."""
        if not self._is_on:
            return NO_CLOCK
        every, free = self._clocks
        try:
            clock = free.pop()
        except IndexError:
            clock = Clock(free)
            every.append(clock)
        clock.begin()
        return clock

    def times(self) -> StageTimes:
        """Return the times since it was switched on."""
        words: npt.NDArray[np.int64] = np.zeros(clock_words.NUM_WORDS, np.int64)
        for clock in list(self._clocks[0]):
            words += clock.words
        seconds = words[clock_words.READ : clock_words.NUM_SAMPLES] / 1e9
        numbers: list[Any] = [*seconds.tolist(), *words[clock_words.NUM_SAMPLES :].tolist()]
        return StageTimes(*numbers)
