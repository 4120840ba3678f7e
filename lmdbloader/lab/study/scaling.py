"""More threads, up to the cores and beyond them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lmdbloader.lab.study.feeds import Setting, open_feed
from lmdbloader.lab.study.results import OversubscriptionRow, Source, ThreadsRow
from lmdbloader.lab.study.sweep import Plan
from lmdbloader.lab.study.turns import Turn, median_speed, take_turn

_BATCH_SIZE = 32
PER_CORE = (1, 2, 3, 4)


def scale_threads(plan: Plan, cores: int) -> Iterator[ThreadsRow]:
    """Yield what the Loader gives with one thread, two, four and so on, and one for each core."""
    counts = sorted({*(2**k for k in range(cores.bit_length())), cores})
    plan.progress(f"threads: {', '.join(map(str, counts))}")
    size = middle_size(plan)
    for count, speed in zip(counts, _speeds(plan, [("lmdbloader", n) for n in counts]), strict=True):
        yield ThreadsRow(count, size, speed)


def oversubscribe(plan: Plan, cores: int) -> Iterator[OversubscriptionRow]:
    """Yield what every source gives with one to four threads or worker processes for each core."""
    size = middle_size(plan)
    for source in plan.material.sources:
        plan.progress(f"oversubscription: {source}, {', '.join(str(n * cores) for n in PER_CORE)} on {cores} cores")
        speeds = _speeds(plan, [(source, n * cores) for n in PER_CORE])
        for n, speed in zip(PER_CORE, speeds, strict=True):
            yield OversubscriptionRow(source, n * cores, float(n), size, speed, speed / speeds[0])


def middle_size(plan: Plan) -> int:
    """Return the batch size of the sections that do not go through all: the one that is nearest to 32."""
    return min(plan.batch_sizes, key=lambda size: abs(size - _BATCH_SIZE))


def _speeds(plan: Plan, ways: Sequence[tuple[Source, int]]) -> list[float]:
    settings = [Setting(source, middle_size(plan), plan.crops[-1], count) for source, count in ways]
    turns: list[list[Turn]] = [[] for _ in settings]
    for _ in range(plan.repeats):
        for found, setting in zip(turns, settings, strict=True):
            with open_feed(plan.material, setting) as feed:
                found.append(take_turn(feed, plan.seconds))
    return [median_speed(found) for found in turns]
