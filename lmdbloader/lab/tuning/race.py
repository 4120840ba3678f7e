"""The race of several settings: short turns of all of them, until the best is clear beyond chance."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lmdbloader.base.stopwatch import BatchTimes

ReadKind = Literal["threads", "workers"]
# A setting that costs less is taken if it reaches this much of the best one.
NEAR = 0.96
# A kind is decided when the cheapest setting that is left surely reaches this much of every other.
_ENOUGH = 0.92
_FEWEST_ROUNDS = 3
# Two-sided 95 % of Student's t by degrees of freedom, from any table of it; between them the smaller one is used.
_T95 = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179,
    15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980,
}  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class ReadSetting:
    """One way of reading; those that cost less come first.

    Attributes:
        kind: "threads" of a Loader, or "workers" of torch's DataLoader.
        count: How many; 0 workers means that the training loop reads itself.
        pinned: Whether the DataLoader's batches go through pinned memory.
    """

    kind: ReadKind
    count: int
    pinned: bool = False

    def __str__(self) -> str:
        noun = self.kind[:-1] if self.count == 1 else self.kind
        who = "Loader" if self.kind == "threads" else "DataLoader"
        return f"{who}, {self.count} {noun}{', pinned' if self.pinned else ''}"


@dataclass(slots=True)
class Race:
    """The turns of all settings, and the conclusions from them.

    Attributes:
        settings: All that take part.
        worth: Turns a setting's samples a second into the value to compare; by default they are the value.
        turns: Of each setting, by number of the round.
        left: Those that may still be chosen.
        decided: The kinds that need no more turns.
    """

    settings: Sequence[ReadSetting]
    worth: Callable[[ReadSetting, float], float] = lambda setting, rate: rate
    turns: dict[ReadSetting, dict[int, BatchTimes]] = field(default_factory=dict)
    left: list[ReadSetting] = field(default_factory=list)
    decided: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.left = sorted(self.settings)
        self.turns = {setting: {} for setting in self.left}

    def run(
        self,
        measure: Callable[[ReadSetting, int], BatchTimes],
        *,
        seconds: float,
        clock: Callable[[], float],
        seed: int = 0,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        """Let settings take turns until all is clear, or the time is used up.

        In every round each setting that is left has one turn, in another order, so that whatever else the machine does
        falls on all of them alike. No turn is begun that would not end in time, judged by the setting's last one; but
        the first.

        Args:
            measure: Gives one turn of a setting in a round of some number.
            seconds: To use at most.
            clock: Returns seconds.
            seed: Of the order.
            progress: Called with the seconds that passed since the last call.
        """
        rng = random.Random(seed)
        began = before = clock()
        took: dict[ReadSetting, float] = {}
        number = 0
        while running := [setting for setting in self.left if setting.kind not in self.decided]:
            # At first the dearest, which most likely are the fastest: if there is time for a few only, then for them.
            first = sorted(running, key=lambda s: (-s.count, s.kind, s.pinned))
            for setting in rng.sample(running, len(running)) if number else first:
                if took and before - began + took.get(setting, min(took.values())) > seconds:
                    return
                self.turns[setting][number] = measure(setting, number)
                now = clock()
                took[setting] = now - before
                if progress is not None:
                    progress(now - before)
                before = now
            number += 1
            if number >= _FEWEST_ROUNDS:
                self.judge()

    def judge(self) -> None:
        """Drop settings that surely are not near the best, and note which kinds are decided."""
        for kind in {setting.kind for setting in self.left} - self.decided:
            self._judge(kind)

    def _judge(self, kind: str) -> None:
        left = self._of(kind)
        best = self.best(kind)
        dropped = {s for s in left if s != best and self._bounds(s, best)[1] < math.log(NEAR)}
        self.left = [setting for setting in self.left if setting not in dropped]
        cheapest, *others = self._of(kind)
        if all(self._bounds(other, cheapest)[1] <= -math.log(_ENOUGH) for other in others):
            self.decided.add(kind)

    def best(self, kind: str) -> ReadSetting:
        """Return the setting of a kind that is fastest so far."""
        found = self._of(kind)
        best = found[0]
        for setting in found[1:]:
            if self._bounds(setting, best)[2] > 0:
                best = setting
        return best

    def pick(self, kind: str) -> ReadSetting | None:
        """Return the cheapest setting of a kind that is near the best, None if none has had a turn."""
        if not self._of(kind):
            return None
        best = self.best(kind)
        return next(s for s in self._of(kind) if s == best or self._bounds(s, best)[2] >= math.log(NEAR))

    def seen_as(self, worth: Callable[[ReadSetting, float], float]) -> Race:
        """Return a race of the same turns with another `worth`."""
        other = Race(self.settings, worth)
        other.turns = self.turns
        for kind in {setting.kind for setting, turns in self.turns.items() if turns}:
            other._judge(kind)
        return other

    def is_clear(self, kind: str) -> bool:
        """Return whether every setting of a kind had its turns, and the best is clearly not chance."""
        return kind in self.decided and all(self.turns[setting] for setting in self.turns if setting.kind == kind)

    def doubts(self) -> Iterator[str]:
        """Yield sentences about settings for which time was too short."""
        missing = [str(setting) for setting in sorted(self.turns) if not self.turns[setting]]
        if missing:
            yield f"There was no time to measure {'; '.join(missing)}. Give more seconds."
        for kind in sorted({setting.kind for setting in self.turns} - self.decided):
            near = [str(setting) for setting in self._of(kind)]
            if len(near) > 1 and not missing:
                yield (
                    f"Too close, or too noisy, to tell apart in the time: {'; '.join(near)}. The cheapest is taken if "
                    "it is near the best. It is not remembered. Give more seconds."
                )

    def samples_per_s(self, setting: ReadSetting) -> float:
        """Return a setting's samples a second, as if it had had as many turns as that of its kind which had the most.

        Some are dropped after a few rounds, in which the machine may have been slower, or faster, than after them.
        """
        of_kind = [other for other in self.turns if other.kind == setting.kind]
        longest = max(of_kind, key=lambda other: len(self.turns[other]))
        median = statistics.median(turn.samples_per_s for turn in self.turns[longest].values())
        common = self.turns[setting].keys() & self.turns[longest].keys()
        ratios = [math.log(self.turns[setting][n].samples_per_s / self.turns[longest][n].samples_per_s) for n in common]
        return median * math.exp(statistics.fmean(ratios))

    def _of(self, kind: str) -> list[ReadSetting]:
        return [setting for setting in self.left if setting.kind == kind and self.turns[setting]]

    def _bounds(self, setting: ReadSetting, other: ReadSetting) -> tuple[float, float, float]:
        """Return a 95 % interval of the logarithm of two settings' ratio, and its middle.

        Of rounds in which both had their turns, as all have in the first: a slowdown of the machine during a whole
        round cancels out.
        """
        common = self.turns[setting].keys() & self.turns[other].keys()
        ratios = [math.log(self._worth(setting, n) / self._worth(other, n)) for n in common]
        count = len(ratios)
        mean = sum(ratios) / count
        if count == 1:
            return -math.inf, math.inf, mean
        deviation = math.sqrt(sum((ratio - mean) ** 2 for ratio in ratios) / (count - 1))
        half = _t95(count - 1) * deviation / math.sqrt(count)
        return mean - half, mean + half, mean

    def _worth(self, setting: ReadSetting, number: int) -> float:
        return self.worth(setting, self.turns[setting][number].samples_per_s)


def _t95(freedom: int) -> float:
    return _T95[max(known for known in _T95 if known <= freedom)]


def counts(most: int) -> list[int]:
    """Return the numbers of threads or workers to try: all small ones, and ever fewer of the large.

    >>> counts(6), counts(40)
    ([1, 2, 3, 4, 6], [1, 2, 3, 4, 6, 8, 12, 16, 32, 40])
    """
    return sorted({n for n in (1, 2, 3, 4, 6, 8, 12, *(2**power for power in range(4, 20))) if n < most} | {most})
