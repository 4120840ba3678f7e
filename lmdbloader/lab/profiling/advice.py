"""The change that would help most, and how long a step would take with it: options that this package really has."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from lmdbloader.lab.machine import filesystem_of
from lmdbloader.lab.profiling.facts import LoaderFacts
from lmdbloader.lab.profiling.figures import Typical
from lmdbloader.lab.profiling.naming import Bottleneck, Feed

__all__ = ["Advice", "advise"]

# What an ordinary NVMe disk gives to many readers; used where the dataset would lie on another disk.
_LOCAL_NBYTES_PER_S = 1e9
# For training at 224 pixels images of 256 are stored, as is the custom.
_SPARE_SIDE = 8 / 7


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change.

    Attributes:
        text: In words.
        step_seconds: How long a step would take then, from the measured figures.
        gain_seconds: How much shorter that is than now.
        is_bound: Whether it is the best that the change can bring: what replaces the slow part was not measured.
    """

    text: str
    step_seconds: float
    gain_seconds: float
    is_bound: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the text, with the prediction."""
        if not self.gain_seconds:
            return self.text
        now = self.step_seconds + self.gain_seconds
        bound = "at best " if self.is_bound else ""
        return f"{self.text} Predicted: {bound}{1000 * self.step_seconds:.3g} ms a step instead of {1000 * now:.3g} ms."


# What to do, and the step's seconds with it.
Change = tuple[str, float, bool]


def advise(
    name: Bottleneck, figures: Typical, feed: Feed, facts: LoaderFacts, *, side: int | None, device: str = "cuda"
) -> Advice:
    """Return the change that would help most.

    Args:
        name: What holds the steps up.
        figures: Of a typical step.
        feed: Where a batch's time goes.
        facts: Of the loader.
        side: Longer side of the images that come out, None where there are none.
        device: That trains.
    """
    changes = list(_changes(name, figures, feed, facts, side, device))
    text, step, is_bound = min(changes, key=lambda change: change[1])
    gain = max(figures.step - step, 0.0) if name != "model" else 0.0
    return Advice(text, figures.step - gain, gain, is_bound)


def _changes(
    name: Bottleneck, figures: Typical, feed: Feed, facts: LoaderFacts, side: int | None, device: str
) -> Iterator[Change]:
    if name == "model":
        waits = "not at all" if figures.stall < 0.0005 else f"{figures.stall:.1%} of the time"
        yield f"Nothing is to be gained from loading: the loop waits for data {waits}.", figures.step, False
    elif name == "copy":
        # Of other devices a Loader knows nothing.
        is_ours = facts.kind == "loader" and device.startswith("cuda")
        how = f"Loader(..., device={device!r}) copies" if is_ours else "pin_memory=True and non_blocking=True copy"
        yield f"{how} the next batch while the step before runs.", figures.step - figures.copy, True
    elif name == "cpu":
        yield _cores(feed, facts)
    elif name == "storage":
        yield from _storage(figures, feed, facts)
    elif name == "verify":
        yield (
            "Loader(..., verify=False) leaves the checksums out; `lmdbloader verify` checks the file when you like.",
            feed.without("verify"),
            False,
        )
    elif name == "function":
        yield _function(feed, facts)
    else:
        yield from _compiled(name, feed, facts, side)
    if name in ("verify", "decode", "transform", "function") and facts.kind == "loader":
        yield from _threads(feed, facts)


def _cores(feed: Feed, facts: LoaderFacts) -> Change:
    text = (
        f"Give the loading threads cores: {feed.delayed / feed.total:.0%} of their time they were ready to run and had "
        f"none. This process may use {facts.num_cores}. End what else runs on them, ask the scheduler for more "
        "(Slurm: --cpus-per-task), raise the container's CPU quota, or leave torch fewer threads "
        "(torch.set_num_threads)."
    )
    return text, feed.without("cpu"), False


def _threads(feed: Feed, facts: LoaderFacts) -> Iterator[Change]:
    if facts.num_threads < facts.num_cores:
        ratio = facts.num_threads / facts.num_cores
        text = f"Loader(..., num_threads={facts.num_cores}) uses all cores; now it is {facts.num_threads}."
        yield text, feed.step_with(feed.total * ratio), False


def _storage(figures: Typical, feed: Feed, facts: LoaderFacts) -> Iterator[Change]:
    if facts.path is None:
        text = "Convert the files with `lmdbloader convert` and read them with lmdbloader.Loader, which reads ahead."
        yield text, feed.without("storage"), True
        return
    nbytes = 0.0 if figures.stages is None else figures.stages.nbytes / figures.num_steps
    seconds = min(feed.parts["storage"], nbytes / _LOCAL_NBYTES_PER_S)
    found = filesystem_of(facts.path)
    where = f", which lies on {found}" if found.type else ""
    command = f"lmdbloader stage {shlex.quote(str(facts.path))} DIR"
    text = f"Bring the dataset{where}, nearer: `{command}` onto a fast disk of this machine"
    if facts.order == "random":
        text += ", or let the disk read long stretches with Loader(..., order='quasi_random')"
    if facts.images is not None and facts.images.codecs.get("raw", 0.0) > 0.5:
        text += "; --codec lz4 or --write-mode jpg at conversion makes fewer bytes of it"
    yield f"{text}.", feed.step_with(feed.total - feed.parts["storage"] + seconds), False


def _function(feed: Feed, facts: LoaderFacts) -> Change:
    if facts.kind != "loader":
        text = (
            f"Read with lmdbloader.Loader and compiled lmdbloader.transforms: {facts.name} works sample by sample in "
            "Python."
        )
    elif facts.has_own_transform:
        text = (
            "Say what the dataset's own transform does with lmdbloader.transforms, which are compiled, or as a "
            "function of whole batches: now Python is called for every sample."
        )
    else:
        text = (
            "Replace the Python functions among the transforms by compiled ones of lmdbloader.transforms, or do their "
            "work on the device."
        )
    return text, feed.without("function"), True


def _compiled(name: Bottleneck, feed: Feed, facts: LoaderFacts, side: int | None) -> Iterator[Change]:
    images = facts.images
    if images is None:
        yield "Store without compression: lmdbloader.write(..., codec='raw').", feed.without("decode"), True
        return
    # Storing pixels: nothing to decode, and more bytes to read and to check.
    growth = images.raw_nbytes / max(images.stored_nbytes, 1.0)
    moved = feed.parts.get("storage", 0.0) + feed.parts.get("verify", 0.0)
    decode = feed.parts.get("decode", 0.0)
    if name == "decode" and not images.is_resized:
        lossless = max(images.codecs, key=images.codecs.__getitem__) in ("lz4", "tiles")
        how = "--codec raw" if lossless else "--write-mode raw"
        text = (
            f"Store pixels: `lmdbloader convert` with {how} leaves nothing to decode, and makes the file "
            f"{growth:.1f} times as large."
        )
        yield text, feed.step_with(feed.total - decode + moved * (growth - 1)), False
    if images.is_resized and side is not None and side * _SPARE_SIDE < 0.8 * images.side:
        least = round(side * _SPARE_SIDE)
        ratio = (least / images.side) ** 2
        text = (
            f"Store smaller images: `lmdbloader convert` with --write-mode raw --max-resolution {least}, where they "
            f"are {images.side} pixels wide or high and {side} come out."
        )
        yield text, feed.step_with(feed.total - decode + moved * (growth * ratio - 1)), False
    elif name == "transform":
        text = (
            "Run on twice as many cores, or have the loader do less: leave ToDtype and Normalize to the device (uint8 "
            "batches are a quarter of the bytes), or train on small images first with lmdbloader.ProgressiveResize."
        )
        yield text, feed.step_with(feed.total / 2), False
    elif name == "decode" and images.is_resized:
        text = "Store pixels: `lmdbloader convert` with --write-mode raw leaves nothing to decode."
        yield text, feed.step_with(feed.total - decode + moved * (growth - 1)), True
