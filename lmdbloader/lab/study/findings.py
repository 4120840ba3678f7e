"""What follows from a study's figures: ratios, fits, and the sentences that say so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lmdbloader.base.text import counted
from lmdbloader.lab.study.results import SOURCE_NAMES, Source, Study, SweepRow

# Less than this is not told from none: timings of a busy machine wander by as much.
_ALIKE = 0.05


@dataclass(frozen=True, slots=True)
class Fit:
    """Seconds of a batch by its size, as a fixed part and one for each sample: least squares of the relative errors.

    Attributes:
        fixed_seconds: Of a batch of any size; may come out below 0 where small batches are cheap.
        sample_seconds: Of each sample in it.
        exponent: Of the power of the size that the seconds grow with: 1 is in proportion, less is cheaper by the lot.
    """

    fixed_seconds: float
    sample_seconds: float
    exponent: float


def fit(batch_sizes: Sequence[int], seconds: Sequence[float]) -> Fit | None:
    """Return how a batch's seconds depend on its size; None for fewer than two sizes.

    >>> found = fit([8, 16, 128], [0.018, 0.026, 0.138])
    >>> round(found.fixed_seconds, 6), round(found.sample_seconds, 6)
    (0.01, 0.001)
    """
    if len(set(batch_sizes)) < 2:
        return None
    sizes, times = np.asarray(batch_sizes, float), np.asarray(seconds, float)
    slope, fixed = np.polyfit(sizes, times, 1, w=1 / times)
    exponent, _ = np.polyfit(np.log(sizes), np.log(times), 1)
    return Fit(float(fixed), float(slope), float(exponent))


def rows_of(study: Study, source: Source, crop: int | None, *, is_pinned: bool | None = None) -> list[SweepRow]:
    """Return a source's rows of one crop by batch size; pinned ones where there are both, unless it is said."""
    found = [row for row in study.sweep if row.source == source and row.crop == crop]
    wanted = any(row.is_pinned for row in found) if is_pinned is None else is_pinned
    return sorted((row for row in found if row.is_pinned == wanted), key=lambda row: row.batch_size)


def fit_of(study: Study, source: Source, crop: int | None) -> Fit | None:
    """Return how the seconds of loading a batch depend on its size."""
    rows = rows_of(study, source, crop)
    return fit([row.batch_size for row in rows], [row.batch_size / row.samples_per_s for row in rows])


def small_to_large(study: Study, source: Source, crop: int | None, *, training: bool = False) -> float | None:
    """Return an epoch's time with the smallest batches over that with the largest; None where it was not measured."""
    speeds = [speed for row in rows_of(study, source, crop) if (speed := _speed(row, training)) is not None]
    return speeds[-1] / speeds[0] if len(speeds) > 1 else None


def conclusions(study: Study) -> list[str]:
    """Return what the study found, in sentences; then its notes."""
    found = [sentence for tell in _TELLERS for sentence in tell(study)]
    return [*found, *study.notes]


def _speed(row: SweepRow, training: bool) -> float | None:
    if not training:
        return row.samples_per_s
    return None if row.training is None else row.training.samples_per_s


def _crop(study: Study) -> int | None:
    """Return the crop that sentences are about: the largest."""
    return study.settings.crops[-1]


def _sources(study: Study) -> list[Source]:
    return list(dict.fromkeys(row.source for row in study.sweep))


def _factor(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def _span(ratios: Sequence[float]) -> str:
    low, high = _factor(min(ratios)), _factor(max(ratios))
    return f"{low} x" if low == high else f"{low} to {high} x"


def _how(crop: int | None) -> str:
    return "whole images" if crop is None else f"crop {crop}"


def _against_others(study: Study) -> Iterator[str]:
    """Say how many times as many samples the Loader gives."""
    for other in ("dataloader", "folder"):
        ratios = [
            mine.samples_per_s / theirs.samples_per_s
            for crop in study.settings.crops
            for mine, theirs in zip(rows_of(study, "lmdbloader", crop), rows_of(study, other, crop), strict=False)
        ]
        if ratios:
            which = _OTHERS[other]
            yield f"Loading alone, the Loader gives {_span(ratios)} the samples of {which}, by batch size and crop."


_OTHERS = {
    "dataloader": "torch's DataLoader over the same dataset",
    "folder": "torch's DataLoader over the image files",
}


def _small_batches(study: Study) -> Iterator[str]:
    """Say what small batches cost: the question that the study before us began with."""
    sizes, crop = study.settings.batch_sizes, _crop(study)
    for training, what in ((False, "loading"), (True, "training")):
        parts = []
        for source in _sources(study):
            ratio = small_to_large(study, source, crop, training=training)
            if ratio is not None:
                parts.append(f"{ratio:.2f} x as long with {_the(source)}")
        if parts:
            yield (
                f"With batches of {sizes[0]} an epoch of {what} takes {_and(parts)} as with batches of {sizes[-1]} "
                f"({_how(crop)})."
            )


def _the(source: Source) -> str:
    return f"the {SOURCE_NAMES[source]}"


def _and(parts: Sequence[str]) -> str:
    return ", and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _growth(study: Study) -> Iterator[str]:
    """Say how the time of a batch grows with its size."""
    crop = _crop(study)
    for source in _sources(study):
        found = fit_of(study, source, crop)
        if found is None:
            continue
        text = f"the size to the power of {found.exponent:.2f} with {_the(source)} ({_how(crop)})"
        if found.fixed_seconds > 0 and found.sample_seconds > 0:  # a line that a batch can take
            text += f"; a line fits {_micro(found.fixed_seconds)} and {_micro(found.sample_seconds)} for each sample"
        yield f"The time to load a batch grows as {text}."


def _micro(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def _processor(study: Study) -> Iterator[str]:
    """Say what processor time a sample costs."""
    costs = {}
    for source in _sources(study):
        rows = [row for crop in study.settings.crops for row in rows_of(study, source, crop)]
        costs[source] = float(np.median([row.cpu_seconds_per_sample for row in rows]))
    if costs:
        parts = [f"{_micro(seconds)} with {_the(source)}" for source, seconds in costs.items()]
        text = f"A sample takes {_and(parts)} of processor time, medians of the settings"
        if costs.get("folder") and costs.get("lmdbloader"):
            text += f"; files cost {_factor(costs['folder'] / costs['lmdbloader'])} x the Loader's"
        yield f"{text}."


def _stalls(study: Study) -> Iterator[str]:
    """Say how much of a training step waits for data."""
    parts = []
    for source in _sources(study):
        rows = [row for crop in study.settings.crops for row in rows_of(study, source, crop)]
        trained = [(row.training.stall, row) for row in rows if row.training is not None]
        if trained:
            stall, row = max(trained, key=lambda pair: pair[0])
            parts.append(f"{stall:.0%} with {_the(source)} ({_how(row.crop)}, batches of {row.batch_size})")
    if parts:
        where = f"Training {study.settings.model} on {study.settings.device}"
        yield f"{where}, a step at worst waits for data {_and(parts)} of its time."


def _pinned(study: Study) -> Iterator[str]:
    """Say whether pinned memory helps training, by crop and batch size."""
    for source in _sources(study):
        for crop in study.settings.crops:
            pinned = {row.batch_size: row for row in rows_of(study, source, crop, is_pinned=True)}
            paged = {row.batch_size: row for row in rows_of(study, source, crop, is_pinned=False)}
            ratios = []
            for size in sorted(pinned.keys() & paged.keys()):
                one, other = _speed(pinned[size], True), _speed(paged[size], True)
                # Without a model nothing is copied to the device, which is what pinning is for.
                if one is not None and other is not None:
                    ratios.append(f"{one / other:.2f} x at {size}")
            if ratios:
                yield (
                    f"Pinned memory gives {_and(ratios)} the training speed of paged memory with {_the(source)} "
                    f"({_how(crop)})."
                )


def _threads(study: Study) -> Iterator[str]:
    """Say how the Loader scales."""
    rows = study.threads
    if len(rows) > 1:
        ratio = rows[-1].samples_per_s / rows[0].samples_per_s
        yield (
            f"{rows[-1].num_threads} threads load {ratio:.2f} x what {counted(rows[0].num_threads, 'thread')} loads "
            f"(batches of {rows[0].batch_size})."
        )


def _oversubscription(study: Study) -> Iterator[str]:
    """Say what more workers than cores cost, and warn."""
    drops: dict[Source, float] = {}
    for row in study.oversubscription:
        drops[row.source] = min(drops.get(row.source, math.inf), row.of_one_per_core)
    if drops:
        parts = [f"{share:.0%} with {_the(source)}" for source, share in drops.items()]
        # The Loader's rows are all the same setting: how they differ is noise.
        theirs = [share for source, share in drops.items() if source != "lmdbloader"]
        warn = min(theirs, default=1.0) < 1 - _ALIKE
        yield (
            "Asked for up to four threads or workers for each core, at worst they load, of what one for each core "
            f"does: {_and(parts)}. The Loader never starts more threads than cores."
            + (" Warning: give torch's DataLoader no more workers than cores." if warn else "")
        )


def _isolation(study: Study) -> Iterator[str]:
    """Say what several processes load together, against the fewest."""
    counts = sorted({row.num_processes for row in study.isolation})
    if len(counts) < 2:
        return
    parts = []
    for source in dict.fromkeys(row.source for row in study.isolation):
        few, many = (
            {row.batch_size: row for row in study.isolation if row.source == source and row.num_processes == count}
            for count in (counts[0], counts[-1])
        )
        ratios = [many[size].samples_per_s / few[size].samples_per_s for size in sorted(few.keys() & many.keys())]
        if ratios:
            parts.append(f"{_span(ratios)} with {_the(source)}")
    fewest = "one does alone" if counts[0] == 1 else f"{counts[0]} do"
    yield f"{counts[-1]} processes together load, of what {fewest} with all cores: {_and(parts)}."


_TELLERS: tuple[Callable[[Study], Iterator[str]], ...] = (
    _against_others, _small_batches, _growth, _processor, _stalls, _pinned, _threads, _oversubscription, _isolation,
)  # fmt: skip
