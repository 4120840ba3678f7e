"""Batches are timed as they come, and the phases of steps add up, on the host and on a device."""

from __future__ import annotations

import math
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.base.stopwatch import PHASES, BatchTimes, StepTimer, time_batches
from lmdbloader.errors import OptionError


class Clock:
    """A clock that only `wait` moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


# --- Batches ---


class Waits:
    """Batches that take given seconds to come, and the clock that these seconds move."""

    def __init__(self, seconds: list[float]) -> None:
        self.now, self.given, self._seconds = 0.0, 0, seconds

    def __call__(self) -> float:
        return self.now

    def __iter__(self) -> Waits:
        return self

    def __next__(self) -> int:
        self.now += self._seconds[self.given % len(self._seconds)]
        self.given += 1
        return self.given

    def work(self) -> None:
        self.now += 1.0


@given(
    st.lists(st.floats(0.001, 10), min_size=1, max_size=9), st.floats(0, 50), st.integers(1, 20),
    st.one_of(st.just(math.inf), st.floats(1, 8)), st.integers(1, 5),
)  # fmt: skip
def test_batches_are_taken_for_the_time_and_in_whole_rounds(
    waits: list[float], seconds: float, least: int, patience: float, per_round: int
) -> None:
    batches = Waits(waits)
    found = time_batches(
        batches, seconds, lambda batch: batch, least=least, patience=patience, per_round=per_round, clock=batches
    )
    number = len(found.waits)
    assert number == batches.given > 0 and number % per_round == 0
    assert found.num_samples == sum(range(1, number + 1))
    assert found.waits == pytest.approx([waits[k % len(waits)] for k in range(number)], rel=1e-6)
    assert found.seconds == pytest.approx(sum(found.waits)) and found.seconds >= seconds
    assert number >= least or found.seconds >= patience * seconds
    before = found.seconds - sum(found.waits[-per_round:])
    is_over = number > per_round and before >= seconds * (1 + 1e-9) + 1e-9
    assert not (is_over and (number - per_round >= least or before >= patience * seconds * (1 + 1e-9) + 1e-9))


def test_the_speed_is_of_the_whole_stretch() -> None:
    found = time_batches((batches := Waits([0.25])), 0.75, lambda _: 2, clock=batches)
    assert found == BatchTimes(6, 0.75, (0.25, 0.25, 0.25))
    assert found.samples_per_s == 8.0


def test_the_device_is_waited_for_at_the_end_of_a_round() -> None:
    batches = Waits([0.5])
    found = time_batches(batches, 2.0, lambda _: 1, per_round=2, synchronize=batches.work, clock=batches)
    assert found.waits == (0.5, 1.5, 0.5, 1.5) or found.waits == (0.5, 1.5)
    assert found.seconds == pytest.approx(2.0)


# --- The timer ---


def test_each_phase_of_each_step_is_kept(clock: Clock) -> None:
    timer = StepTimer()
    timer.start()
    for step in (1, 2):
        for number, phase in enumerate(PHASES[:5]):
            clock.wait(step + number)
            timer.lap(phase)
    assert timer.num_steps == 2
    assert timer.rows().tolist() == [[1, 2, 3, 4, 5, 0], [2, 3, 4, 5, 6, 0]]
    assert timer.seconds == {"data": 3, "copy": 5, "forward": 7, "backward": 9, "update": 11, "compute": 0}
    assert timer.summary() == "17500.0 ms/step (data 9%, copy 14%, forward 20%, backward 26%, update 31%)"


def test_time_that_is_left_out_does_not_count(clock: Clock) -> None:
    timer = StepTimer()
    clock.wait(5)
    timer.start()
    for _ in range(2):
        clock.wait(1)
        timer.lap("data")
        clock.wait(2)
        timer.lap("forward")
        clock.wait(50)
        timer.start()
    assert timer.rows()[:, :3].tolist() == [[1, 0, 2], [1, 0, 2]]


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(OptionError, match=r"lap\('forwards'\): expected one of data, copy, forward"):
        StepTimer().lap("forwards")


def test_on_cuda_the_devices_own_events_are_the_clock(fake_cuda: list[float]) -> None:
    """What the host did between two events plays no part: only their own times do."""
    fake_cuda[:] = [0, 0, 10, 110, 115, 215, 216]
    timer = StepTimer("cuda:0")
    timer.start()
    for phase in ("data", "forward", "data", "forward", "update"):
        timer.lap(phase)
    assert timer.rows()[:, [0, 2, 4]] == pytest.approx(torch.tensor([[0.010, 0.1, 0], [0.005, 0.1, 0.001]]).numpy())


def test_on_cuda_nothing_waits_for_the_device_before_a_result_is_asked_for(
    fake_cuda: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[object] = []
    synchronize = torch.cuda.synchronize
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: (waits.append(device), synchronize(device)))
    timer = StepTimer("cuda")
    for _ in range(2000):
        timer.lap("data")
        timer.lap("compute")
    assert timer.num_steps == 2000  # laps are counted at once
    assert not waits
    assert len(timer.rows()) == 2000
    assert waits
