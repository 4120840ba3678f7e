"""What holds the steps up, and how long a step would take without it: a model of threads that feed a loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from lmdbloader.lab.profiling.facts import Kind
from lmdbloader.lab.profiling.figures import Typical

__all__ = ["BOTTLENECKS", "Bottleneck", "Feed", "name_bottleneck"]

Bottleneck = Literal["storage", "verify", "decode", "transform", "function", "cpu", "copy", "model"]
BOTTLENECKS: tuple[Bottleneck, ...] = (
    "storage", "verify", "decode", "transform", "function", "cpu", "copy", "model"
)  # fmt: skip
# Stage of the loader -> what it is called when it holds the steps up. Memory is made for what is transformed into it.
_NAMES: dict[str, Bottleneck] = {
    "read": "storage",
    "verify": "verify",
    "decode": "decode",
    "transform": "transform",
    "buffer": "transform",
    "function": "function",
}
# Below this share of waiting, or these seconds, nothing worth a change is to be gained.
_LITTLE_WAITING = 0.05
_LITTLE_SECONDS = 5e-5
# A copy that takes more of a step than this, and more than waiting does.
_LONG_COPY = 0.10
# Of their time the loading threads wait at least so much for a core, before "cpu" is what it is called.
_DELAYED = 0.30
# Without waiting for cores the loader would keep up, or miss it by no more than this.
_KEEPS_UP = 1.2
# Of its time without a core a loader that computes nothing waits for storage.
_BLOCKED = 0.5


@dataclass(frozen=True, slots=True)
class Feed:
    """Where a batch's time goes, in seconds of the threads that load, and how that makes the length of a step.

    While the loop waits, the loader sets the pace: what a batch costs its threads is then in proportion to the step.
    Without threads of its own, what a batch costs is added to the step.

    Attributes:
        step: Seconds of a step as it is.
        busy: Of these, without waiting for data.
        parts: Bottleneck -> seconds of the loading threads for a batch, with their waiting for cores.
        delayed: Of these, waiting for a core.
        busy_delayed: Of `busy`, waiting for a core.
        is_apart: Whether threads or processes of their own load.
    """

    step: float
    busy: float
    parts: dict[Bottleneck, float]
    delayed: float
    busy_delayed: float
    is_apart: bool

    @property
    def total(self) -> float:
        """Seconds of the loading threads for a batch."""
        return sum(self.parts.values())

    def step_with(self, seconds: float) -> float:
        """Return how long a step would be if a batch cost the loading threads so many seconds."""
        if not self.total:
            return self.step
        loading = (self.step if self.is_apart else self.step - self.busy) * max(seconds, 0.0) / self.total
        return max(self.busy, loading) if self.is_apart else self.busy + loading

    def without(self, name: Bottleneck) -> float:
        """Return how long a step would be if one part were gone; "cpu" is all waiting for cores."""
        if name != "cpu":
            return self.step_with(self.total - self.parts.get(name, 0.0))
        return replace(self, busy=self.busy - self.busy_delayed, step=self._undelayed_step).step_with(
            self.total - self.delayed
        )

    @property
    def _undelayed_step(self) -> float:
        """Seconds of a step whose loop does not wait for cores, while loading does."""
        return self.step if self.is_apart else self.step - self.busy_delayed

    @property
    def keeps_up_undelayed(self) -> bool:
        """Whether batches would come in time, or nearly, if nobody waited for a core."""
        return self.without("cpu") <= _KEEPS_UP * (self.busy - self.busy_delayed)


def feed_of(figures: Typical, kind: Kind, num_threads: int) -> Feed:
    """Return where a batch's time goes.

    Args:
        figures: Of a typical step.
        kind: Where batches are made.
        num_threads: Threads or processes that make them.
    """
    loading = figures.loading
    parts: dict[Bottleneck, float] = {}
    if figures.stages is not None:
        for stage, name in _NAMES.items():
            parts[name] = parts.get(name, 0.0) + getattr(figures.stages, stage)
        total = sum(parts.values())
        # What threads did between two batches is in their times, and in no stage.
        delayed = 0.0 if loading is None else loading.delayed * min(1.0, total / (loading.total or 1.0))
    else:
        # While the loop waits, those who load have no other reason to be idle than what they load from.
        available = figures.data if kind == "main" else num_threads * figures.step
        running = figures.waiting if kind == "main" else 0.0 if loading is None else loading.running
        if kind == "main" and loading is not None:
            loading = loading.part(running)
        delayed = 0.0 if loading is None else loading.delayed
        delayed = min(delayed, max(available - running, 0.0))
        blocked = max(available - running - delayed, 0.0)
        if (kind == "main" or loading is not None) and blocked > _BLOCKED * (blocked + running):
            parts = {"storage": blocked + delayed, "function": running}
        else:
            parts = {"function": running + delayed + blocked}
    # The loop waits for a core after a batch has come as it does within its step.
    in_loop = 0.0 if figures.loop is None else figures.loop.delayed * (1 - figures.stall)
    return Feed(figures.step, figures.busy, parts, delayed, min(in_loop, 0.95 * figures.busy), kind != "main")


def name_bottleneck(figures: Typical, feed: Feed, *, is_copied: bool) -> Bottleneck:
    """Return what holds the steps up.

    Args:
        figures: Of a typical step.
        feed: Where a batch's time goes.
        is_copied: Whether the loop copies batches to the device that trains. Where they come on it, or the CPU trains,
            what the loop calls "copy" is its own work on them, and belongs to its step.
    """
    if is_copied and figures.copy > max(_LONG_COPY * figures.step, figures.data):
        return "copy"
    if figures.stall < _LITTLE_WAITING or figures.data < _LITTLE_SECONDS or not feed.total:
        return "model"
    name = max(feed.parts, key=feed.parts.__getitem__)
    # A pipeline that is too slow by itself is called what it is, however crowded the cores are.
    return "cpu" if feed.delayed >= _DELAYED * feed.total and feed.keeps_up_undelayed else name
