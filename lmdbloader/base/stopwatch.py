"""Times batches and training steps: how fast batches come, and where the time of a step goes."""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.errors import OptionError

__all__ = ["PHASES", "BatchTimes", "StepTimer", "time_batches"]

F64 = npt.NDArray[np.float64]
# "compute" is the time of a step that was not assigned to another phase.
PHASES = ("data", "copy", "forward", "backward", "update", "compute")
_NUMBERS = {phase: number for number, phase in enumerate(PHASES)}
_DATA = _NUMBERS["data"]
_UNCOUNTED = -1
# Marks that may wait before they are read; on CUDA the device has long passed the older half by then.
_MOST_WAITING = 1024


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The batches that were taken in a stretch of time.

    Attributes:
        num_samples: Samples in them.
        seconds: Length of the stretch.
        waits: Seconds from asking for each batch to having it.
        cpu_seconds: Processor time of this process and its workers; 0 if it was not measured.
    """

    num_samples: int
    seconds: float
    waits: tuple[float, ...] = ()
    cpu_seconds: float = 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples per second."""
        return self.num_samples / self.seconds


def time_batches(
    batches: Iterator[Any],
    seconds: float,
    num_samples: Callable[[Any], int],
    *,
    least: int = 1,
    patience: float = math.inf,
    per_round: int = 1,
    synchronize: Callable[[], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> BatchTimes:
    """Take batches for some seconds, as fast as they come, and time every wait.

    Args:
        batches: An endless iterator. Batches that are ready before the call should be taken first.
        seconds: How long; whole rounds are taken, at least one.
        num_samples: Returns the number of samples in a batch.
        least: Batches to take at least, unless that takes `patience` times as long.
        patience: Multiple of `seconds` after which fewer than `least` batches are enough.
        per_round: Batches that arrive together, such as those of all workers: part of a round would count too much.
        synchronize: Waits for the device at the end of each round.
        clock: Returns seconds; time.perf_counter by default.

    >>> time_batches(iter(range(100)), 0.0, lambda batch: 8, least=3).num_samples
    24
    """
    clock = clock or time.perf_counter
    waits: list[float] = []
    total = 0
    began = before = clock()
    while not _is_enough(len(waits), before - began, seconds, least, patience):
        for left in range(per_round - 1, -1, -1):
            batch = next(batches)
            if synchronize is not None and not left:
                synchronize()
            now = clock()
            waits.append(now - before)
            before = now
            total += num_samples(batch)
            del batch  # its memory can be used again
    return BatchTimes(total, before - began, tuple(waits))


def _is_enough(num_batches: int, elapsed: float, seconds: float, least: int, patience: float) -> bool:
    return num_batches > 0 and elapsed >= seconds and (num_batches >= least or elapsed >= patience * seconds)


class StepTimer:
    """Splits the time of training steps into phases.

    The phases: data (waiting for the loader), copy (to the device, and preprocessing there), forward (with the loss),
    backward, update, and compute (everything that was not assigned to another phase).

    On CUDA the host runs ahead of the device, so every lap records an event in the device's stream, and the times
    between events are the phases. Nothing waits for the device until a result is requested. There "data" is the time
    in which the device was idle because no batch was ready.

    >>> timer = StepTimer()
    >>> timer.start()
    >>> timer.lap("data"); timer.lap("forward"); timer.lap("update")
    >>> timer.num_steps, list(timer.seconds)
    (1, ['data', 'copy', 'forward', 'backward', 'update', 'compute'])
    """

    PHASES = PHASES

    def __init__(self, device: torch.device | str | None = None) -> None:
        """Make a timer that starts now.

        Args:
            device: The device that trains; None means the CPU.
        """
        self.device = torch.device("cpu" if device is None else device)
        self._on_cuda = self.device.type == "cuda"
        self._now: Callable[[], Any] = self._event if self._on_cuda else time.perf_counter
        self.clear()

    def clear(self) -> None:
        """Forget all steps and start again."""
        # (number of the phase that ends here, moment), in order; the first is already read.
        self._marks: deque[tuple[int, Any]] = deque()
        # Finished steps, and the current one.
        self._rows = array("d")
        self._row: list[float] | None = None
        self._is_closing = False
        # Counted at each lap, so that it is known before the marks are read.
        self._num_steps = 0
        self._is_counted = False
        self.start()

    def start(self) -> None:
        """Start timing. Call it again after time that should not count."""
        self._marks.append((_UNCOUNTED, self._now()))

    def lap(self, phase: str) -> None:
        """Count the time since the last call as `phase`; "data" begins a step.

        Raises:
            OptionError: There is no such phase.
        """
        number = _NUMBERS.get(phase)
        if number is None:
            raise OptionError(f"lap({phase!r}): expected one of {', '.join(PHASES)}")
        self._marks.append((number, self._now()))
        if number == _DATA:
            self._is_counted = False
        elif not self._is_counted:
            self._num_steps += 1
            self._is_counted = True
        if len(self._marks) > _MOST_WAITING:
            self._read(_MOST_WAITING // 2)

    @property
    def num_steps(self) -> int:
        """Steps that did more than wait for data."""
        return self._num_steps

    @property
    def seconds(self) -> dict[str, float]:
        """Phase -> seconds of all steps; waits for the device."""
        totals = self.rows().sum(axis=0)
        return dict(zip(PHASES, totals.tolist(), strict=True))

    def rows(self) -> F64:
        """Return the seconds of each step (steps, phases), columns as in `PHASES`; waits for the device.

        The last step counts once it has done more than wait for data.
        """
        if self._on_cuda:
            torch.cuda.synchronize(self.device)
        self._read(len(self._marks))
        last = self._row if self._row is not None and self._is_closing else []
        return np.array([*self._rows, *last], np.float64).reshape(-1, len(PHASES))

    def summary(self) -> str:
        """Return one line: the mean step in milliseconds and each phase's share of it."""
        rows = self.rows()
        total = float(rows.sum())
        if not len(rows) or not total:
            return "no steps"
        spent = [(phase, seconds / total) for phase, seconds in zip(PHASES, rows.sum(axis=0), strict=True)]
        # Unassigned time is shown only if there is some.
        shares = ", ".join(f"{phase} {share:.0%}" for phase, share in spent if phase != "compute" or share >= 0.005)
        return f"{1000 * total / len(rows):.1f} ms/step ({shares})"

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _read(self, most: int) -> None:
        """Add the times between the first marks to the steps; the last mark stays, as the beginning of the next.

        Stop at a mark that the device has not reached: with laps on several streams, a later mark may be reached
        first.
        """
        marks = self._marks
        if self._on_cuda and not marks[0][1].query():
            return
        for _ in range(most - 1):
            phase, now = marks[1]
            if self._on_cuda and not now.query():
                return
            before = marks.popleft()[1]
            if phase == _UNCOUNTED:
                continue
            self._add(phase, before.elapsed_time(now) / 1000 if self._on_cuda else now - before)

    def _add(self, phase: int, seconds: float) -> None:
        if phase == _DATA and self._is_closing and self._row is not None:
            self._rows.extend(self._row)
            self._row, self._is_closing = None, False
        if self._row is None:
            self._row = [0.0] * len(PHASES)
        self._row[phase] += seconds
        self._is_closing = self._is_closing or phase != _DATA
