"""The bottleneck of training steps, the change that would help most, and the step time that it would give."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from lmdbloader.base.stage_times import StageTimes
from lmdbloader.lab.machine import filesystem_of
from lmdbloader.lab.profiling.loader_facts import BatchMaker, LoaderFacts, StoredImages
from lmdbloader.lab.profiling.threads import ThreadTimes
from lmdbloader.lab.stored import DELTA, LARGER, in_fewer_bytes, recode_line, share_of

Bottleneck = Literal["storage", "verify", "decode", "transform", "function", "cpu", "copy", "model"]
# Stage of the loader -> the name of the bottleneck. Memory is allocated for the transforms.
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
# The bottleneck is "cpu" only if the loading threads wait for a core for at least this share of their time.
_DELAYED = 0.30
# Without waiting for cores the loader would keep up, or miss it by no more than this.
_KEEPS_UP = 1.2
# Of its time without a core a loader that computes nothing waits for storage.
_BLOCKED = 0.5


@dataclass(frozen=True, slots=True)
class TypicalStep:
    """A typical step: means over all that were measured.

    Attributes:
        step: Seconds of a step.
        data: Of these, waiting for data.
        copy: Of these, copying to the device.
        stages: Seconds of the Loader's threads for a step, None if there are none; counts are of all these steps.
        loading: Of the threads or processes that load, for a step; None if unknown.
        loop: Of the thread of the training loop, likewise.
        waiting: Seconds of a core that it took in `data`.
        num_steps: How many steps these are the means of.
    """

    step: float
    data: float
    copy: float
    stages: StageTimes | None
    loading: ThreadTimes | None
    loop: ThreadTimes | None
    waiting: float
    num_steps: int

    @property
    def busy(self) -> float:
        """Seconds of a step that are not spent waiting for data."""
        return self.step - self.data

    @property
    def stall(self) -> float:
        """Share of the time that is spent waiting for data."""
        return self.data / self.step if self.step else 0.0


@dataclass(frozen=True, slots=True)
class LoadingCost:
    """Where a batch's time goes, in seconds of the threads that load, and how that makes the length of a step.

    While the loop waits, the loader sets the pace: the thread time of a batch is then in proportion to the step.
    Without threads of its own, the time of a batch is added to the step.

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
        """Return how long a step would be if a batch cost the loading threads `seconds`."""
        if not self.total:
            return self.step
        loading = (self.step if self.is_apart else self.step - self.busy) * max(seconds, 0.0) / self.total
        return max(self.busy, loading) if self.is_apart else self.busy + loading

    def without(self, name: Bottleneck) -> float:
        """Return how long a step would be if one part were gone; "cpu" is all waiting for cores."""
        if name != "cpu":
            return self.step_with(self.total - self.parts.get(name, 0.0))
        # The loop does not wait for cores either.
        step = self.step if self.is_apart else self.step - self.busy_delayed
        return replace(self, busy=self.busy - self.busy_delayed, step=step).step_with(self.total - self.delayed)

    @property
    def keeps_up_undelayed(self) -> bool:
        """Whether batches would come in time, or nearly, if nobody waited for a core."""
        return self.without("cpu") <= _KEEPS_UP * (self.busy - self.busy_delayed)


def loading_cost(figures: TypicalStep, kind: BatchMaker, num_threads: int) -> LoadingCost:
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
        # Work between two batches is in the threads' times, but in none of the stages.
        delayed = 0.0 if loading is None else loading.delayed * min(1.0, total / (loading.total or 1.0))
    else:
        # While the loop waits, the loading threads are idle only because of storage.
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
    return LoadingCost(figures.step, figures.busy, parts, delayed, min(in_loop, 0.95 * figures.busy), kind != "main")


def name_bottleneck(figures: TypicalStep, feed: LoadingCost, *, is_copied: bool) -> Bottleneck:
    """Return the bottleneck of the steps.

    Args:
        figures: Of a typical step.
        feed: Where a batch's time goes.
        is_copied: Whether the loop copies batches to the device that trains. Where they come on it, or the CPU trains,
            the phase "copy" is the loop's own work on them, and belongs to its step.
    """
    if is_copied and figures.copy > max(_LONG_COPY * figures.step, figures.data):
        return "copy"
    if figures.stall < _LITTLE_WAITING or figures.data < _LITTLE_SECONDS or not feed.total:
        return "model"
    name = max(feed.parts, key=feed.parts.__getitem__)
    # A stage that is too slow by itself is the bottleneck, however busy the cores are.
    return "cpu" if feed.delayed >= _DELAYED * feed.total and feed.keeps_up_undelayed else name


# Speed of an ordinary NVMe disk with many readers; used to predict a move to another disk.
_LOCAL_NBYTES_PER_S = 1e9
# How many times as fast recoded JPEGs decode.
_RECODED = 1.6
# For training at 224 pixels images of 256 are stored, as is the custom.
_SPARE_SIDE = 8 / 7


@dataclass(frozen=True, slots=True)
class Advice:
    """A change that would make steps shorter.

    Attributes:
        text: The change, in words.
        step_seconds: How long a step would take then, from the measured figures.
        gain_seconds: How much shorter that is than now.
        is_bound: Whether it is the best case: the replacement of the slow part was not measured.
    """

    text: str
    step_seconds: float
    gain_seconds: float
    is_bound: bool = False

    def __str__(self) -> str:
        """Return the text, with the prediction."""
        if not self.gain_seconds:
            return self.text
        then, now = (f"{1000 * value:.3g}" for value in (self.step_seconds, self.step_seconds + self.gain_seconds))
        if then == now:
            return f"{self.text} Predicted: hardly shorter steps."
        return f"{self.text} Predicted: {'at best ' if self.is_bound else ''}{then} ms a step instead of {now} ms."


# The advice, the seconds of a step with it, and whether that is the best case.
Change = tuple[str, float, bool]


def advise(
    name: Bottleneck, figures: TypicalStep, feed: LoadingCost, facts: LoaderFacts, *, side: int | None, device: str
) -> Advice:
    """Return the change that would help most.

    Args:
        name: The bottleneck.
        figures: Of a typical step.
        feed: Where a batch's time goes.
        facts: Of the loader.
        side: Longer side of the images that come out, None if there are none.
        device: That trains.
    """
    changes = list(_changes(name, figures, feed, facts, side, device))
    text, step, is_bound = min(changes, key=lambda change: change[1])
    gain = max(figures.step - step, 0.0) if name != "model" else 0.0
    return Advice(text, figures.step - gain, gain, is_bound)


def _changes(
    name: Bottleneck, figures: TypicalStep, feed: LoadingCost, facts: LoaderFacts, side: int | None, device: str
) -> Iterator[Change]:
    if facts.kind == "loader" and name in ("storage", "verify", "decode", "transform"):
        yield from _device_side(name, feed, facts, device)
    if name == "model":
        waits = "not at all" if figures.stall < 0.0005 else f"{figures.stall:.1%} of the time"
        yield f"Faster loading would gain nothing: the loop waits for data {waits}.", figures.step, False
    elif name == "copy":
        # Of other devices a Loader knows nothing.
        is_ours = facts.kind == "loader" and device.startswith("cuda")
        how = f"Loader(..., device={device!r}) copies" if is_ours else "pin_memory=True and non_blocking=True copy"
        yield f"{how} the next batch while the step before runs.", figures.step - figures.copy, True
    elif name == "cpu":
        text = (
            f"Give the loading threads cores: {feed.delayed / feed.total:.0%} of their time they were ready to run and "
            f"had none. This process may use {facts.num_cores}. Stop other programs on them, ask the scheduler for "
            "more (Slurm: --cpus-per-task), raise the container's CPU quota, or give torch fewer threads "
            "(torch.set_num_threads)."
        )
        yield text, feed.without("cpu"), False
    elif name == "storage":
        yield from _storage(figures, feed, facts)
    elif name == "verify":
        yield (
            "Loader(..., verify=False) skips the checksums; `lmdbloader verify` checks the file at any time.",
            feed.without("verify"),
            False,
        )
    elif name == "function":
        yield _function(feed, facts)
    else:
        yield from _compiled(name, feed, facts, side)
    is_work = name in ("verify", "decode", "transform", "function") and facts.kind == "loader"
    if is_work and facts.num_threads < facts.num_cores:
        text = f"Loader(..., num_threads={facts.num_cores}) uses all cores; now it is {facts.num_threads}."
        yield text, feed.step_with(feed.total * facts.num_threads / facts.num_cores), False


def _device_side(name: Bottleneck, feed: LoadingCost, facts: LoaderFacts, device: str) -> Iterator[Change]:
    """Yield what a Loader can leave to a CUDA device, or do only once."""
    images = facts.images
    if device.startswith("cuda") and images is not None and images.fits_device and facts.keep is None:
        text = (
            f"Loader(..., device={device!r}, keep='device') copies the images to the device in the first epoch, and "
            "transforms them there from then on: they are of one size, and fit in half of its free memory."
        )
        yield text, feed.step_with(0.0), True
    if device.startswith("cuda") and name == "transform" and facts.moves_there:
        text = f"Loader(..., device={device!r}, on='device') leaves the transforms to the device, and sends it uint8."
        yield text, feed.without("transform"), True
    is_jpeg = images is not None and images.codecs.get("jpeg", 0.0) > 0.5
    if name == "decode" and images is not None and is_jpeg and images.fits_decoded and facts.keep is None:
        text = (
            "Loader(..., keep='memory') keeps decoded images, which fit in half of the free memory: nothing is read or "
            "decoded from the second epoch on."
        )
        done_once: tuple[Bottleneck, ...] = ("storage", "verify", "decode")
        others = feed.total - sum(feed.parts.get(part, 0.0) for part in done_once)
        yield text, feed.step_with(others), True


def _storage(figures: TypicalStep, feed: LoadingCost, facts: LoaderFacts) -> Iterator[Change]:
    if facts.path is None:
        text = "Convert the files with `lmdbloader convert` and read them with lmdbloader.Loader, which reads ahead."
        yield text, feed.without("storage"), True
        return
    nbytes = 0.0 if figures.stages is None else figures.stages.nbytes / figures.num_steps
    seconds = min(feed.parts["storage"], nbytes / _LOCAL_NBYTES_PER_S)
    found = filesystem_of(facts.path)
    where = f", which is on {found}" if found.type else ""
    command = f"lmdbloader stage {shlex.quote(str(facts.path))} DIR"
    fewer = "" if facts.images is None else in_fewer_bytes(facts.path, facts.images.codecs)
    text = f"{fewer} Or copy" if fewer else "Copy"
    text += f" the dataset{where}{',' if where else ''} to a fast disk of this machine: `{command}`"
    if facts.order == "random":
        text += ", or let the disk read long stretches with Loader(..., order='quasi_random')"
    yield f"{text}.", feed.step_with(feed.total - feed.parts["storage"] + seconds), False


def _function(feed: LoadingCost, facts: LoaderFacts) -> Change:
    if facts.kind != "loader":
        text = (
            f"Read with lmdbloader.Loader and compiled lmdbloader.transforms: {facts.name} works sample by sample in "
            "Python."
        )
    else:
        text = (
            "Replace the Python functions, the dataset's own transform or those among the loader's transforms, by "
            "compiled ones of lmdbloader.transforms, or do their work on the device."
        )
    return text, feed.without("function"), True


def _compiled(name: Bottleneck, feed: LoadingCost, facts: LoaderFacts, side: int | None) -> Iterator[Change]:
    images, path = facts.images, facts.path
    if images is None or path is None:
        yield "Store without compression: lmdbloader.write(..., codec='raw').", feed.without("decode"), True
        return
    # Storing pixels: nothing to decode, and more bytes to read and to check.
    growth = images.raw_nbytes / max(images.stored_nbytes, 1.0)
    moved = feed.parts.get("storage", 0.0) + feed.parts.get("verify", 0.0)
    decode = feed.parts.get("decode", 0.0)
    recoded = _recoded(images, path) if name == "decode" else ""
    if recoded:
        yield recoded, feed.step_with(feed.total - decode * (1 - 1 / _RECODED)), False
    if images.is_resized and side is not None and side * _SPARE_SIDE < 0.8 * images.side:
        least = round(side * _SPARE_SIDE)
        ratio = (least / images.side) ** 2
        text = (
            f"{f'{recoded} Or store' if recoded else 'Store'} smaller images: `lmdbloader convert` with --write-mode "
            f"raw --max-resolution {least}. They are {images.side} pixels wide or high, and batches are {side}."
        )
        yield text, feed.step_with(feed.total - decode + moved * (growth * ratio - 1)), False
    elif name == "transform":
        text = (
            "Run on twice as many cores, or have the loader do less: leave ToDtype and Normalize to the device (uint8 "
            "batches are a quarter of the bytes), or train on small images first with lmdbloader.ProgressiveResize."
        )
        yield text, feed.step_with(feed.total / 2), False
    elif name == "decode" and images.fits_raw:
        step = feed.step_with(feed.total - decode + moved * (growth - 1))
        yield f"{recoded} {_as_pixels(images, path)}".lstrip(), step, images.is_resized
    elif name == "decode" and not recoded:
        text = f"Run on twice as many cores: as pixels, {_as_large(growth)}, the images do not fit in memory."
        yield text, feed.step_with(feed.total / 2), False


def _as_large(growth: float) -> str:
    return "about as large as it is" if 0.95 <= growth < 1.05 else f"{growth:.1f} times as large"


def _is_pixels(images: StoredImages) -> bool:
    return share_of(images.codecs, (*LARGER, *DELTA)) > 0.5


def _as_pixels(images: StoredImages, path: str) -> str:
    """Return the sentence about images without a codec."""
    how = recode_line(path, "--codec raw") if _is_pixels(images) else "`lmdbloader convert` with --write-mode raw"
    growth = images.raw_nbytes / max(images.stored_nbytes, 1.0)
    return f"Store pixels: {how} leaves nothing to decode, and makes the file {_as_large(growth)}."


def _recoded(images: StoredImages, path: str) -> str:
    """Return the sentence about JPEGs that would decode faster; empty if it does not apply."""
    if not (images.are_slow_jpegs and images.is_resized):
        return ""
    line = recode_line(path, "--jpeg-code fast")
    return f"{line} loses nothing, and random resized crops are read 1.4 to 1.6 times as fast."


def other_codec(stages: StageTimes, facts: LoaderFacts) -> str:
    """Return the line that stores a Loader's images so that they are read faster; empty if none is known to help."""
    slowest = max(_NAMES, key=lambda stage: float(getattr(stages, stage)))
    images, path = facts.images, facts.path
    if images is None or path is None:
        return ""
    # What fits in memory is read from there after the first epoch, where delta is slower.
    if slowest == "read" and not images.fits_raw:
        return in_fewer_bytes(path, images.codecs)
    if slowest == "decode" and images.fits_raw and _is_pixels(images):
        return _as_pixels(images, path)
    return _recoded(images, path) if slowest == "decode" else ""
