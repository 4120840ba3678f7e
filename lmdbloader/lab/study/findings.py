"""The findings of a study: its headline, and the sections of its report with their sentences and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmdbloader.base.text import counted
from lmdbloader.lab.formatting import Table, number, percent, seconds, times, window
from lmdbloader.lab.study import tables
from lmdbloader.lab.study.rows import (
    AUTO,
    LOADER_NAMES,
    LoaderKind,
    StudyFigures,
    Sweep,
    SweepRow,
    both_memories,
    focus,
    loading,
    on_gpu,
    training,
)

# Differences below this are noise: timings of a busy machine vary as much.
_ALIKE = 0.05
# A model that waits for at most this share of the time is fed.
_FED = 0.05
_OURS: LoaderKind = "lmdbloader"
_OTHERS: dict[LoaderKind, str] = {
    "dataloader": "torch's DataLoader over the same dataset",
    "folder": "torch's DataLoader over image files",
}
_STAGES = {
    "read": "reading stored bytes",
    "verify": "checksums",
    "decode": "decoding",
    "transform": "cropping, converting and placing pixels",
    "function": "Python functions",
    "buffer": "waiting for the memory of batches",
}


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a report.

    Attributes:
        name: In addresses and file names, and of the chart.
        title: Its heading.
        explanation: How to read the chart.
        sentences: The findings.
        table: The figures.
    """

    name: str
    title: str
    explanation: str
    sentences: tuple[str, ...]
    table: Table


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Seconds of a batch by its size: a fixed part and a part for each sample, by least squares of relative errors.

    Attributes:
        fixed_seconds: Of a batch of any size; may be below 0 if small batches are cheap.
        sample_seconds: Of each sample in it.
        exponent: Of the power of the size that the seconds grow with: 1 is in proportion, below 1 large batches are
            cheaper.
    """

    fixed_seconds: float
    sample_seconds: float
    exponent: float


def fit_batch_cost(batch_sizes: Sequence[int], seconds: Sequence[float]) -> BatchCost | None:
    """Return how a batch's seconds depend on its size; None for fewer than two sizes.

    >>> found = fit_batch_cost([8, 16, 128], [0.018, 0.026, 0.138])
    >>> round(found.fixed_seconds, 6), round(found.sample_seconds, 6)
    (0.01, 0.001)
    """
    if len(set(batch_sizes)) < 2:
        return None
    sizes, times = np.asarray(batch_sizes, float), np.asarray(seconds, float)
    slope, fixed = np.polyfit(sizes, times, 1, w=1 / times)
    exponent, _ = np.polyfit(np.log(sizes), np.log(times), 1)
    return BatchCost(float(fixed), float(slope), float(exponent))


def batch_cost(study: StudyFigures, source: LoaderKind, crop: int | None) -> BatchCost | None:
    """Return how the seconds of loading a batch depend on its size."""
    rows = loading(study).curve(source, crop)
    return fit_batch_cost([row.batch_size for row in rows], [row.batch_size / row.samples_per_s for row in rows])


def small_to_large(sweep: Sweep, source: LoaderKind, crop: int | None) -> float | None:
    """Return an epoch's time with the smallest batches over that with the largest; None for fewer than two sizes."""
    speeds = [_speed(row) for row in sweep.curve(source, crop)]
    return speeds[-1] / speeds[0] if len(speeds) > 1 else None


def headline(study: StudyFigures) -> str:
    """Return the main finding of a study."""
    stalls = [row.training.stall for row in study.sweep if row.source == _OURS and row.training]
    if stalls and max(stalls) <= _FED:
        return f"The model is fed: it waits for data at most {percent(max(stalls))} of the time"
    if stalls:
        return f"The model waits for data up to {percent(max(stalls))} of the time"
    sweep = loading(study)
    curve = sweep.curve(_OURS, sweep.crops[-1]) if sweep.rows else ()
    if not curve:
        return "A study"
    return f"{number(curve[0].samples_per_s)} samples a second in batches of {curve[0].batch_size:,}"


def question(study: StudyFigures) -> str:
    """Return the question that a study answers."""
    if not training(study).rows:
        return "how fast are batches loaded?"
    return "is the model fed?" if study.settings.device.startswith("cpu") else "is the GPU fed?"


def summary(study: StudyFigures) -> tuple[str, ...]:
    """Return the three most important sentences, fewer if less was measured, after what limits them."""
    if not study.sweep:
        return ()
    return (*_other_images(study), *_speed_at_focus(study), *_epochs_by_batch(study), *_waiting(study))


def sections(study: StudyFigures) -> tuple[Section, ...]:
    """Return the sections that a study has figures for."""
    return tuple(
        Section(name, title, explanation, tuple(say(study)), table)
        for name, title, explanation, tabulate, say in _SECTIONS
        if (table := tabulate(study)).rows
    )


def conclusions(study: StudyFigures) -> list[str]:
    """Return what limits the comparison, the sentences of all sections, then the study's notes."""
    found = (sentence for section in sections(study) for sentence in section.sentences)
    return [*_other_images(study), *found, *study.notes]


def _speed(row: SweepRow) -> float:
    return row.samples_per_s if row.training is None else row.training.samples_per_s


def _loading_only(study: StudyFigures) -> Sweep:
    """Return the sweep without its training."""
    return Sweep(tuple(replace(row, training=None) for row in study.sweep))


def _listed(parts: Mapping[LoaderKind, str] | Iterable[tuple[LoaderKind, str]], unit: str = "") -> str:
    """Return a value for each loader, as in "2 times as long with the Loader and 3 times with the DataLoader (files)".

    Args:
        parts: The values.
        unit: Said once, after the first value.
    """
    found = [f"{text} with the {LOADER_NAMES[source]}" for source, text in dict(parts).items()]
    if unit:
        found[0] = found[0].replace(" with", f" {unit} with", 1)
    return " and ".join(filter(None, [", ".join(found[:-1]), found[-1]]))


def _rows_at(sweep: Sweep, size: int, crop: int | None) -> dict[LoaderKind, SweepRow]:
    """Return each loader's row of a batch size and crop."""
    return {source: row for source in sweep.sources if (row := sweep.row(source, size, crop)) is not None}


def _span(ratios: Sequence[float]) -> str:
    low, high = times(min(ratios)), times(max(ratios))
    return low if low == high else f"{low.removesuffix(' times')} to {high}"


def _speed_at_focus(study: StudyFigures) -> Iterator[str]:
    """Say how fast the Loader is with the smallest batches, and how many times as fast as the others."""
    size, crop = focus(study)
    rows = _rows_at(loading(study), size, crop)
    ours = rows.pop(_OURS, None)
    if ours is None:
        return
    text = f"In batches of {size:,} ({window(crop)}) the Loader gives {number(ours.samples_per_s)} samples a second"
    others = [
        f"{_factor(ours.samples_per_s, rows[source].samples_per_s)} {name}"
        for source, name in _compared(study).items()
        if source in rows
    ]
    yield f"{text}: {' and '.join(others)}." if others else f"{text}."


def _other_images(study: StudyFigures) -> Iterator[str]:
    """Say why files that make other samples are not compared."""
    if study.baseline is not None and _compared(study) != _OTHERS:
        yield (
            f"The files make {study.baseline.num_samples:,} samples, the dataset {study.dataset.num_samples:,}: they "
            "are other images, so their speeds are not compared. --baseline auto reads the same images."
        )


def _compared(study: StudyFigures) -> dict[LoaderKind, str]:
    """Return what the Loader's speed is compared with: files only if they make as many samples."""
    files = study.baseline
    if files is None or files.path == AUTO or files.num_samples == study.dataset.num_samples:
        return _OTHERS
    return {source: name for source, name in _OTHERS.items() if source != "folder"}


def _factor(ours: float, theirs: float) -> str:
    ratio = ours / theirs if theirs else 1.0
    return "as many as" if 1 - _ALIKE <= ratio < 1 + _ALIKE else f"{times(ratio)} as many as"


def _epochs_by_batch(study: StudyFigures) -> Iterator[str]:
    """Say how long an epoch takes with the smallest and with the largest batches."""
    trained = training(study)
    sweep = trained if trained.rows else loading(study)
    name = f"An epoch of {study.settings.model or 'training'}" if trained.rows else "Reading all samples"
    curves = {source: curve for source in sweep.sources if len(curve := sweep.curve(source, sweep.crops[-1])) > 1}
    spans = {
        source: " and ".join(seconds((row.training or row).epoch_seconds) for row in (curve[0], curve[-1]))
        for source, curve in curves.items()
    }
    if _OURS in curves:
        first, last = curves[_OURS][0], curves[_OURS][-1]
        yield (f"{name} takes, in batches of {first.batch_size:,} and of {last.batch_size:,}, {_listed(spans)}.")


def _waiting(study: StudyFigures) -> Iterator[str]:
    """Say how much the model waits; without a model, how long batches take to come."""
    size, crop = focus(study)
    stalls = {
        source: percent(row.training.stall)
        for source, row in _rows_at(training(study), size, crop).items()
        if row.training is not None
    }
    if _OURS in stalls:
        about = f"{study.settings.model or 'the model'} on {study.settings.device}"
        yield f"In batches of {size:,} {about} waits for data {_listed(stalls, 'of the time')}."
    elif (row := loading(study).row(_OURS, size, crop)) is not None:
        yield f"99 % of the Loader's batches of {size:,} are there within {seconds(row.latency.p99_seconds)}."


def _throughput(study: StudyFigures) -> Iterator[str]:
    sweep = loading(study)
    found = {
        other: [
            ours.samples_per_s / theirs.samples_per_s
            for crop in sweep.crops
            for ours, theirs in zip(sweep.curve(_OURS, crop), sweep.curve(other, crop), strict=False)
        ]
        for other in _compared(study)
    }
    parts = [f"{_span(ratios)} the samples of {_OTHERS[other]}" for other, ratios in found.items() if ratios]
    if parts:
        yield f"Loading alone, the Loader gives {' and '.join(parts)}, by batch size and crop."
    yield from _small_batches(study, _loading_only(study), "loading")
    yield from _growth(study)
    yield from _processor(study)


def _small_batches(study: StudyFigures, sweep: Sweep, kind: str) -> Iterator[str]:
    """Say how much longer an epoch takes with small batches."""
    crop = study.settings.crops[-1]
    ratios = {source: small_to_large(sweep, source, crop) for source in sweep.sources}
    parts = {source: f"{ratio:.2f} times" for source, ratio in ratios.items() if ratio is not None}
    if parts:
        sizes = sweep.batch_sizes
        yield (
            f"Compared with batches of {sizes[-1]:,}, an epoch of {kind} in batches of {sizes[0]:,} ({window(crop)}) "
            f"takes {_listed(parts, 'as long')}."
        )


def _growth(study: StudyFigures) -> Iterator[str]:
    """Say how the time of a batch grows with its size."""
    crop = study.settings.crops[-1]
    for source in loading(study).sources:
        found = batch_cost(study, source, crop)
        if found is None:
            continue
        text = f"its size to the power of {found.exponent:.2f} with the {LOADER_NAMES[source]} ({window(crop)})"
        if found.fixed_seconds > 0 and found.sample_seconds > 0:
            text += f"; a line fits {seconds(found.fixed_seconds)} and {seconds(found.sample_seconds)} for each sample"
        yield f"The time to load a batch grows as {text}."


def _processor(study: StudyFigures) -> Iterator[str]:
    """Say how much processor time a sample costs."""
    sweep = loading(study)
    costs = {
        source: float(
            np.median([row.cpu_seconds_per_sample for crop in sweep.crops for row in sweep.curve(source, crop)])
        )
        for source in sweep.sources
    }
    text = "A sample takes (median of the settings) "
    text += _listed(((source, seconds(cost)) for source, cost in costs.items()), "of processor time")
    if costs.get("folder") and costs.get(_OURS):
        text += f"; files cost {times(costs['folder'] / costs[_OURS])} as much as the Loader"
    yield f"{text}."


def _split(study: StudyFigures) -> Iterator[str]:
    size, crop = focus(study)
    sweep, model = training(study), study.settings.model or "the model"
    parts = {
        source: f"{seconds(row.training.epoch_seconds)} ({percent(row.training.stall)} of it waiting)"
        for source, row in _rows_at(sweep, size, crop).items()
        if row.training is not None
    }
    if parts:
        yield f"An epoch of {model} in batches of {size:,}, {window(crop)}, takes {_listed(parts)}."
    yield from _small_batches(study, sweep, "training")
    worst = {}
    for source in sweep.sources:
        stalls = [
            (row.training.stall, row) for c in sweep.crops for row in sweep.curve(source, c) if row.training is not None
        ]
        stall, row = max(stalls, key=lambda pair: pair[0])
        worst[source] = f"{percent(stall)} ({window(row.crop)}, batches of {row.batch_size:,})"
    where = f"Training {model} on {study.settings.device}"
    yield f"{where}, a step waits for data at worst, as a share of its time, {_listed(worst)}."


def _latency(study: StudyFigures) -> Iterator[str]:
    size, crop = focus(study)
    rows = _rows_at(loading(study), size, crop)
    if rows:
        parts = _listed((source, seconds(row.latency.p99_seconds)) for source, row in rows.items())
        yield f"99 % of the batches of {size:,} are there within {parts}. A step that takes longer seldom waits."


def _stages(study: StudyFigures) -> Iterator[str]:
    found = next(row.stages for row in reversed(study.sweep) if row.stages)
    most = max(found, key=lambda name: found[name])
    share = percent(found[most] / (sum(found.values()) or 1.0))
    yield f"The largest part of a thread's time, {share}, goes to {_STAGES.get(most, most)}."


def _threads(study: StudyFigures) -> Iterator[str]:
    rows = sorted(study.threads, key=lambda row: row.num_threads)
    first, last = rows[0], rows[-1]
    if len(rows) < 2 or not first.samples_per_s:
        count = counted(last.num_threads, "thread")
        yield f"One setting was measured: {count}, {number(last.samples_per_s)} samples a second."
        return
    yield (
        f"{last.num_threads} threads load {last.samples_per_s / first.samples_per_s:.2f} times as much as "
        f"{counted(first.num_threads, 'thread')}, on {counted(study.cores, 'core')} (batches of {first.batch_size:,})."
    )


def _oversubscription(study: StudyFigures) -> Iterator[str]:
    drops: dict[LoaderKind, float] = {}
    for row in study.oversubscription:
        drops[row.source] = min(drops.get(row.source, math.inf), row.of_one_per_core)
    most = max(row.per_core for row in study.oversubscription)
    shares = _listed(((source, percent(share)) for source, share in drops.items()), "of the speed")
    yield (
        f"Compared with one thread or worker for each core, up to {most:g} give at worst {shares}. The Loader never "
        "starts more threads than cores."
    )
    # The Loader's rows are all the same setting: differences among them are noise.
    if min((share for source, share in drops.items() if source != _OURS), default=1.0) < 1 - _ALIKE:
        yield "Warning: give torch's DataLoader no more workers than cores."


def _isolation(study: StudyFigures) -> Iterator[str]:
    counts = sorted({row.num_processes for row in study.isolation})
    speeds = {(row.source, row.num_processes, row.batch_size): row.samples_per_s for row in study.isolation}
    sizes = sorted({row.batch_size for row in study.isolation})
    sources = list(dict.fromkeys(row.source for row in study.isolation))
    together = {s: number(speeds[s, counts[-1], sizes[0]]) for s in sources if (s, counts[-1], sizes[0]) in speeds}
    if together:
        yield (
            f"{counted(counts[-1], 'process', 'processes')}, each with a loader of its own and no model, "
            f"{'read' if counts[-1] > 1 else 'reads'} in batches of {sizes[0]:,}, in samples a second: "
            f"{_listed(together)}."
        )
    ratios = {
        s: [
            speeds[s, counts[-1], size] / speeds[s, counts[0], size]
            for size in sizes
            if (s, counts[0], size) in speeds and (s, counts[-1], size) in speeds
        ]
        for s in sources
    }
    parts = {source: _span(found) for source, found in ratios.items() if found}
    if len(counts) > 1 and parts:
        fewest = "one process" if counts[0] == 1 else f"{counts[0]} processes"
        reach = _listed(parts, "the speed")
        yield f"Compared with {fewest} on all cores, {counts[-1]} processes together reach {reach}."


def _cold(study: StudyFigures) -> Iterator[str]:
    """Say how fast the first epoch is, from storage, and how many times as fast as from files."""
    rows = {(row.source, row.order): row for row in study.cold}
    ours = rows.get((_OURS, "random"))
    quasi = rows.get((_OURS, "quasi_random"))
    files = rows.get(("folder", "random"))
    parts = [
        f"the {LOADER_NAMES[row.source]} {number(row.cold_samples_per_s)} "
        f"({percent(row.cold_samples_per_s / row.warm_samples_per_s)} of its speed from memory)"
        for row in study.cold
        if row.order == "random"
    ]
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    yield f"Samples read a second with nothing in the page cache: {listed}."
    if files is not None and ours is not None and "folder" in _compared(study):
        yield (
            f"From cold storage the Loader is {times(ours.cold_samples_per_s / files.cold_samples_per_s)} as fast as "
            f"the files, each of which is a look-up and a read of its own; from memory "
            f"{times(ours.warm_samples_per_s / files.warm_samples_per_s)}."
        )
    if quasi is not None and ours is not None:
        ratio = quasi.cold_samples_per_s / ours.cold_samples_per_s
        yield f'With order="quasi_random", which reads blocks of 2 MiB, the cold Loader is {times(ratio)} as fast.'


def _memory(study: StudyFigures) -> Iterator[str]:
    """Say whether pinned memory helps training, at worst and at best."""
    sweep = both_memories(study)
    for source in sweep.sources:
        gains = []
        for crop in sweep.crops:
            paged = {row.batch_size: _speed(row) for row in sweep.curve(source, crop, pinned=False)}
            for row in sweep.curve(source, crop, pinned=True):
                if paged.get(row.batch_size):
                    where = f"batches of {row.batch_size:,}, {window(crop)}"
                    gains.append((_speed(row) / paged[row.batch_size], where))
        if gains:
            (low, at_low), (high, at_high) = min(gains), max(gains)
            yield (
                f"With the {LOADER_NAMES[source]}, pinned memory changes the speed of training by "
                f"{100 * (low - 1):+.0f} % ({at_low}) to {100 * (high - 1):+.0f} % ({at_high})."
            )


def _gpu(study: StudyFigures) -> Iterator[str]:
    sweep = on_gpu(study)
    size, crop = focus(study)[0], sweep.crops[-1]
    parts = {
        source: f"{row.training.gpu.utilisation_percent:.0f} %"
        for source, row in _rows_at(sweep, size, crop).items()
        if row.training is not None and row.training.gpu is not None
    }
    if parts:
        yield f"The utilisation of the GPU in batches of {size:,}, {window(crop)}, is {_listed(parts)}."


# Name, title, how to read the chart, table, sentences.
_SECTIONS: tuple[
    tuple[str, str, str, Callable[[StudyFigures], Table], Callable[[StudyFigures], Iterator[str]]], ...
] = (
    (
        "throughput", "Throughput by batch size",
        "Each loader alone, no model. A flat line means that small batches cost nothing extra.",
        tables.throughput, _throughput,
    ),
    (
        "split", "Where the time of an epoch goes",
        "A model was trained on the batches. Hatched red is time in which it had no data.",
        tables.split, _split,
    ),
    (
        "latency", "Waiting for a batch",
        "The axis has a mark for each power of ten. Further left is better, and so is a narrower hill.",
        tables.latency, _latency,
    ),
    (
        "stages", "Where the Loader's time goes",
        "Time of all its threads, added up. The longest piece is the first to improve.",
        tables.stages, _stages,
    ),
    (
        "threads", "Scaling by threads",
        "The dotted line is the speed of one thread, times their number.",
        tables.threads, _threads,
    ),
    (
        "isolation", "Several processes at once",
        "As when several experiments share a machine, or each GPU has a process. The slowest and the fastest process "
        "are in the table.",
        tables.isolation, _isolation,
    ),
    (
        "oversubscription", "More workers than cores",
        "Threads for the Loader, worker processes for torch's DataLoader.",
        tables.oversubscription, _oversubscription,
    ),
    (
        "cold", "From a cold page cache",
        "The first epoch from storage: the page cache was dropped for these files alone. Random order.",
        tables.cold, _cold,
    ),
    (
        "memory", "Pinned or paged memory",
        "Pinned memory copies faster to the GPU, but costs time to make. Above zero, pinned is faster.",
        tables.memory, _memory,
    ),
    (
        "gpu", "The GPU while training",
        "As NVML reports it. Utilisation is the share of time in which a kernel ran, not how much of the GPU it used.",
        tables.gpu, _gpu,
    ),
)  # fmt: skip
