"""Where the time of training steps goes, phase by phase, on the clock of whatever does the work."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.errors import OptionError

__all__ = ["PHASES", "StepTimer"]

F64 = npt.NDArray[np.float64]
# "compute" is what a step did without telling which of the others it was.
PHASES = ("data", "copy", "forward", "backward", "update", "compute")
_NUMBERS = {phase: number for number, phase in enumerate(PHASES)}
_DATA, _COMPUTE = _NUMBERS["data"], _NUMBERS["compute"]
_UNCOUNTED = -1
# Marks that may wait before they are read; on CUDA the device is long past the older half of them then.
_MOST_WAITING = 1024


class StepTimer:
    """Adds up where the time of training steps goes, and keeps each step's times.

    The phases: data (waiting for the loader), copy (to the device, and what is done there before the model), forward
    (with the loss), backward, update, and compute (all that was not told apart).

    On CUDA the host runs ahead of the device, so the clock on the wall says little: every lap records an event in the
    device's stream, and the times between events are the phases. Nothing waits for the device until a result is asked
    for. There data is how long the device had nothing to do but wait for a batch.

    >>> timer = StepTimer()
    >>> timer.start()
    >>> timer.lap("data"); timer.lap("forward"); timer.lap("update")
    >>> timer.num_steps, list(timer.seconds)
    (1, ['data', 'copy', 'forward', 'backward', 'update', 'compute'])
    """

    PHASES = PHASES

    def __init__(self, device: torch.device | str | None = None) -> None:
        """Prepare; `start` begins.

        Args:
            device: That trains; None is the CPU.
        """
        self.device = torch.device("cpu" if device is None else device)
        self._on_cuda = self.device.type == "cuda"
        self._now: Callable[[], Any] = self._event if self._on_cuda else time.perf_counter
        self.clear()

    def clear(self) -> None:
        """Forget all steps; what is measured next begins now."""
        # (number of the phase that ends here, moment), in order, of which the first is read already.
        self._marks: deque[tuple[int, Any]] = deque()
        # One after the other, and the one that is under way.
        self._rows = array("d")
        self._row: list[float] | None = None
        self._is_closing = False
        # Counted as laps are told, which need not be read for it.
        self._num_steps = 0
        self._is_counted = False
        self.start()

    def start(self) -> None:
        """Begin timing: call before the first step, and again after time that should not count."""
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

        The last step counts as soon as it did more than wait for data.
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
        # What was not told is worth a word only where it is not next to nothing.
        shares = ", ".join(f"{phase} {share:.0%}" for phase, share in spent if phase != "compute" or share >= 0.005)
        return f"{1000 * total / len(rows):.1f} ms/step ({shares})"

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _read(self, most: int) -> None:
        """Add what lies between the first marks to the steps; the last of them stays, as the beginning of the next.

        It ends at a mark that the device has not come to: where laps are told on several streams, one that it has come
        to may be behind that.
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
