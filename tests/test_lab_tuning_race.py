"""The search among settings: that it finds one near the best whatever the noise, soon, and within its time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.base.stopwatch import BatchTimes
from lmdbloader.lab.tuning.race import Race, ReadSetting, counts


class Machine:
    """A made-up machine with a clock of its own: how fast each setting really is, and how much chance there is in it.

    Attributes:
        now: Seconds that have passed.
        measured: The settings that had their turns, in order.
    """

    def __init__(
        self, rates: dict[ReadSetting, float], *, noise: float = 0.0, seed: int = 0, took: float = 0.3
    ) -> None:
        self.rates, self.noise, self.took = rates, noise, took
        self.now = 0.0
        self.measured: list[ReadSetting] = []
        self._rng = random.Random(seed)
        self._others = 1.0

    def clock(self) -> float:
        return self.now

    def measure(self, setting: ReadSetting, number: int) -> BatchTimes:
        """Give a turn; other programs come and go, and now and then a turn is interrupted."""
        rng, noise = self._rng, self.noise
        self._others = min(2.0, max(0.5, self._others * math.exp(rng.gauss(0, noise / 2))))
        rate = self.rates[setting] * self._others * math.exp(rng.gauss(0, noise))
        if rng.random() < noise:
            rate *= rng.uniform(0.4, 0.9)
        self.now += self.took
        self.measured.append(setting)
        return BatchTimes(1000, 1000 / rate)

    def run(self, *, seconds: float = 40.0, worth: Callable[[ReadSetting, float], float] | None = None) -> Race:
        race = Race(list(self.rates)) if worth is None else Race(list(self.rates), worth)
        race.run(self.measure, seconds=seconds, clock=self.clock)
        return race


def threads(*rates: float) -> dict[ReadSetting, float]:
    return {ReadSetting("threads", n): rate for n, rate in enumerate(rates, 1)}


def made_up_rates(rng: random.Random) -> dict[ReadSetting, float]:
    """Return rates that rise up to some number of threads or workers, and stay or fall after it."""
    cores = rng.choice([1, 2, 4, 8])
    rates = {}
    for kind in ("threads", "workers"):
        peak, power, fall, alone = rng.uniform(0.5, 1.2 * cores), rng.uniform(0.3, 1.2), rng.random() / 2, rng.random()
        for count in [*([0] if kind == "workers" else []), *counts(cores)]:
            n = count or alone
            rates[ReadSetting(kind, count)] = 1e4 * min(n, peak) ** power * max(n / peak, 1) ** -fall
    return rates


@pytest.mark.parametrize(("noise", "share"), [(0.02, 1.0), (0.05, 0.99), (0.1, 0.97)])
def test_the_pick_is_at_least_90_percent_of_the_best_in_200_simulations(noise: float, share: float) -> None:
    good = seconds = 0.0
    for seed in range(200):
        machine = Machine(made_up_rates(random.Random(seed)), noise=noise, seed=seed)
        race = machine.run()
        assert machine.now <= 40
        seconds += machine.now / 200
        for kind in ("threads", "workers"):
            pick = race.pick(kind)
            assert pick is not None
            best = max(rate for setting, rate in machine.rates.items() if setting.kind == kind)
            good += machine.rates[pick] >= 0.9 * best
    assert good >= share * 400
    assert seconds < (12 if noise < 0.05 else 35)


def test_it_stops_early_when_the_answer_is_clear() -> None:
    machine = Machine(threads(100, 200, 400), noise=0.02)
    race = machine.run()
    assert race.pick("threads") == ReadSetting("threads", 3)
    assert len(machine.measured) < 20
    assert race.decided == {"threads"}


def test_settings_surely_far_from_the_best_get_no_more_turns() -> None:
    machine = Machine(threads(100, 980, 1000), noise=0.05)
    race = machine.run()
    turns = {setting.count: len(race.turns[setting]) for setting in machine.rates}
    assert turns[1] <= 5 < turns[2]
    assert race.samples_per_s(ReadSetting("threads", 1)) == pytest.approx(100, rel=0.25)


def test_of_those_near_the_best_the_cheapest_is_picked() -> None:
    assert Machine(threads(970, 990, 1000)).run().pick("threads") == ReadSetting("threads", 1)
    assert Machine(threads(940, 990, 1000)).run().pick("threads") == ReadSetting("threads", 2)
    paged, pinned = ReadSetting("workers", 2), ReadSetting("workers", 2, pinned=True)
    assert Machine({paged: 99, pinned: 100}).run().pick("workers") == paged
    assert Machine({paged: 90, pinned: 100}).run().pick("workers") == pinned


def test_doubts_are_reported() -> None:
    race = Machine(threads(100, 990, 1000), noise=0.2).run(seconds=8)
    assert next(race.doubts()).startswith(
        "Too close, or too noisy, to tell apart in the time: Loader, 2 threads; Loader, 3 threads."
    )
    assert not [*Machine(threads(100, 200)).run().doubts()]


def test_kinds_are_judged_apart() -> None:
    rates = {**threads(1000, 500), ReadSetting("workers", 0): 10, ReadSetting("workers", 1): 30}
    race = Machine(rates, noise=0.02).run()
    assert (race.pick("threads"), race.pick("workers")) == (ReadSetting("threads", 1), ReadSetting("workers", 1))


@given(
    rates=st.lists(st.floats(1, 1e6), min_size=1, max_size=6),
    seconds=st.floats(0, 30),
    took=st.floats(0.05, 5),
    noise=st.floats(0, 0.5),
)
def test_the_time_is_kept_but_for_the_first_turn(rates: list[float], seconds: float, took: float, noise: float) -> None:
    machine = Machine(threads(*rates), noise=noise, took=took)
    race = machine.run(seconds=seconds)
    assert machine.now <= max(seconds, took) + 1e-9
    pick = race.pick("threads")
    assert pick in machine.measured


def test_with_time_for_a_few_only_the_largest_are_measured() -> None:
    machine = Machine({**threads(1, 2, 3), ReadSetting("workers", 0): 1, ReadSetting("workers", 3): 2}, took=1.0)
    race = machine.run(seconds=2.5)
    assert machine.measured == [ReadSetting("threads", 3), ReadSetting("workers", 3)]
    assert race.pick("workers") == ReadSetting("workers", 3)
    assert list(race.doubts()) == [
        "There was no time to measure Loader, 1 thread; Loader, 2 threads; DataLoader, 0 workers. Give more seconds."
    ]
    assert Machine({**threads(1), ReadSetting("workers", 0): 1}, took=1.0).run(seconds=1.5).pick("workers") is None


def test_a_slowdown_of_the_machine_affects_all_settings() -> None:
    """Rates that halve from round to round, as when something else begins to run, do not hide which is better."""
    machine = Machine(threads(80, 100))
    race = Race(list(machine.rates))

    def measure(setting: ReadSetting, number: int) -> BatchTimes:
        turn = machine.measure(setting, number)
        return BatchTimes(turn.num_samples, turn.seconds * 2**number)

    race.run(measure, seconds=40, clock=machine.clock)
    assert race.decided == {"threads"}
    assert race.pick("threads") == ReadSetting("threads", 2)
    assert race.samples_per_s(ReadSetting("threads", 1)) / race.samples_per_s(
        ReadSetting("threads", 2)
    ) == pytest.approx(0.8)


def test_settings_are_compared_by_their_worth() -> None:
    race = Machine(threads(100, 200, 400)).run(worth=lambda setting, rate: min(rate, 150))
    assert race.pick("threads") == ReadSetting("threads", 2)


def test_progress_adds_up_to_the_time() -> None:
    machine, seen = Machine(threads(100, 200)), []
    Race(list(machine.rates)).run(machine.measure, seconds=10, clock=machine.clock, progress=seen.append)
    assert sum(seen) == pytest.approx(machine.now)


@given(most=st.integers(1, 5000))
def test_numbers_to_try_begin_with_one_and_end_with_the_most(most: int) -> None:
    tried = counts(most)
    assert tried[0] == 1 and tried[-1] == most
    assert tried == sorted(set(tried)) and len(tried) <= 24
