"""The findings of a study: its headline, and the sections of its report with their sentences and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmdbloader.base.text import counted
from lmdbloader.lab.formatting import Table, percent, seconds, window
from lmdbloader.lab.study import tables
from lmdbloader.lab.study.ranges import (
    Measured,
    duration,
    is_clear,
    measured,
    ratio,
    show_seconds,
    show_span,
    show_times,
)
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
    stage_rows,
    training,
)

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


def small_to_large(sweep: Sweep, source: LoaderKind, crop: int | None) -> Measured | None:
    """Return an epoch's time with the smallest batches over that with the largest; None for fewer than two sizes."""
    speeds = [speed_of(row) for row in sweep.curve(source, crop)]
    return ratio(speeds[-1], speeds[0]) if len(speeds) > 1 else None


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


def speed_of(row: SweepRow) -> Measured:
    """Return the samples a second of a row: of training if a model was trained."""
    found = row if row.training is None else row.training
    return measured(found.samples_per_s, found.turns)


def _unclear(names: Sequence[str], what: str = "") -> str:
    """Return a sentence about loaders whose turns overlap; it is empty without any."""
    if not names:
        return ""
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f" With {listed} {what or 'the speed'} does not differ as far as the turns tell."


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


def _speed_at_focus(study: StudyFigures) -> Iterator[str]:
    """Say how fast the Loader is with the smallest batches, and how many times as fast as the others."""
    size, crop = focus(study)
    rows = _rows_at(loading(study), size, crop)
    ours = rows.pop(_OURS, None)
    if ours is None:
        return
    speed = measured(ours.samples_per_s, ours.turns)
    text = f"In batches of {size:,} ({window(crop)}) the Loader gives {speed} samples a second"
    ratios = {
        name: ratio(speed, measured(rows[source].samples_per_s, rows[source].turns))
        for source, name in compared(study).items()
        if source in rows
    }
    others = [f"{show_times(found)} as many as {name}" for name, found in ratios.items() if is_clear(found)]
    yield (f"{text}: {' and '.join(others)}." if others else f"{text}.") + _unclear(
        [name for name, found in ratios.items() if not is_clear(found)]
    )


def _other_images(study: StudyFigures) -> Iterator[str]:
    """Say why files that make other samples are not compared."""
    if study.baseline is not None and compared(study) != _OTHERS:
        yield (
            f"The files make {study.baseline.num_samples:,} samples, the dataset {study.dataset.num_samples:,}: they "
            "are other images, so their speeds are not compared. --baseline auto reads the same images."
        )


def compared(study: StudyFigures) -> dict[LoaderKind, str]:
    """Return what the Loader's speed is compared with: files only if they make as many samples."""
    files = study.baseline
    if files is None or files.path == AUTO or files.num_samples == study.dataset.num_samples:
        return _OTHERS
    return {source: name for source, name in _OTHERS.items() if source != "folder"}


def _epochs_by_batch(study: StudyFigures) -> Iterator[str]:
    """Say how long an epoch takes with the smallest and with the largest batches."""
    trained = training(study)
    sweep = trained if trained.rows else loading(study)
    name = f"An epoch of {study.settings.model or 'training'}" if trained.rows else "Reading all samples"
    curves = {source: curve for source in sweep.sources if len(curve := sweep.curve(source, sweep.crops[-1])) > 1}
    spans = {
        source: " and ".join(show_seconds(_epoch_of(study, row)) for row in (curve[0], curve[-1]))
        for source, curve in curves.items()
    }
    if _OURS in curves:
        first, last = curves[_OURS][0], curves[_OURS][-1]
        yield (f"{name} takes, in batches of {first.batch_size:,} and of {last.batch_size:,}, {_listed(spans)}.")


def _epoch_of(study: StudyFigures, row: SweepRow) -> Measured:
    return duration(study.dataset.num_samples, speed_of(row))


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
    for other, name in compared(study).items():
        ratios = [
            ratio(measured(ours.samples_per_s, ours.turns), measured(theirs.samples_per_s, theirs.turns))
            for crop in sweep.crops
            for ours in sweep.curve(_OURS, crop)
            if (theirs := sweep.row(other, ours.batch_size, crop)) is not None
        ]
        clear = [found for found in ratios if is_clear(found)]
        if clear:
            text = f"Loading alone, the Loader gives {show_span(clear)} the samples of {name}, by batch size and crop"
            unclear = len(ratios) - len(clear)
            yield f"{text}; in {unclear} of {len(ratios)} settings they do not differ." if unclear else f"{text}."
        elif ratios:
            yield f"Loading alone, the Loader and {name} do not differ as far as the turns tell."
    yield from _small_batches(study, _loading_only(study), "loading")
    yield from _growth(study)
    yield from _processor(study)


def _small_batches(study: StudyFigures, sweep: Sweep, kind: str) -> Iterator[str]:
    """Say how much longer an epoch takes with small batches."""
    crop = study.settings.crops[-1]
    ratios = {source: small_to_large(sweep, source, crop) for source in sweep.sources}
    clear = {source: found for source, found in ratios.items() if found is not None and is_clear(found)}
    alike = [
        f"the {LOADER_NAMES[source]}" for source, found in ratios.items() if found is not None and source not in clear
    ]
    sizes, text = sweep.batch_sizes, ""
    if clear:
        parts = {source: show_times(found) for source, found in clear.items()}
        text = (
            f"Compared with batches of {sizes[-1]:,}, an epoch of {kind} in batches of {sizes[0]:,} ({window(crop)}) "
            f"takes {_listed(parts, 'as long')}."
        )
    about = "it" if clear else f"an epoch of {kind} in batches of {sizes[0]:,} and of {sizes[-1]:,} ({window(crop)})"
    if clear or alike:
        yield (text + _unclear(alike, about)).strip()


def _growth(study: StudyFigures) -> Iterator[str]:
    """Say how the time of a batch grows with its size."""
    crop = study.settings.crops[-1]
    for source in loading(study).sources:
        found = batch_cost(study, source, crop)
        if found is None or found.exponent <= 0:  # large batches take no longer: there is no growth to state
            continue
        grown = small_to_large(_loading_only(study), source, crop)
        if grown is None or not is_clear(grown):
            yield f"The time to load a batch grows in proportion to its size with the {LOADER_NAMES[source]}."
            continue
        text = f"its size to the power of {found.exponent:.2f} with the {LOADER_NAMES[source]} ({window(crop)})"
        if found.fixed_seconds > 0 and found.sample_seconds > 0:
            fixed, each = (measured(value, ()) for value in (found.fixed_seconds, found.sample_seconds))
            text += f"; a line fits {show_seconds(fixed)} and {show_seconds(each)} for each sample"
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
    shown = {source: measured(cost, ()) for source, cost in costs.items()}
    text += _listed(((source, show_seconds(cost)) for source, cost in shown.items()), "of processor time")
    if costs.get("folder") and costs.get(_OURS) and is_clear(found := ratio(shown["folder"], shown[_OURS])):
        text += f"; files cost {show_times(found)} as much as the Loader"
    yield f"{text}."


def _split(study: StudyFigures) -> Iterator[str]:
    size, crop = focus(study)
    sweep, model = training(study), study.settings.model or "the model"
    parts = {
        source: f"{show_seconds(_epoch_of(study, row))} ({percent(row.training.stall)} of it waiting)"
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
    """Name the longest part of each bar of the chart."""
    shares: dict[str, list[float]] = {}
    for row in stage_rows(study):
        stages = row.stages or {}
        most = max(stages, key=lambda name: stages[name])
        shares.setdefault(most, []).append(stages[most] / (sum(stages.values()) or 1.0))
    count = sum(map(len, shares.values()))
    for most, found in sorted(shares.items(), key=lambda pair: -len(pair[1])):
        low, high = percent(min(found)), percent(max(found))
        span = low if low == high else f"{low.removesuffix(' %')} to {high}"
        bars = "each bar" if len(found) == count > 1 else f"{len(found)} of {counted(count, 'bar')}"
        yield f"The longest part of {bars} is {most} ({_STAGES.get(most, most)}): {span} of a thread's time."


def _threads(study: StudyFigures) -> Iterator[str]:
    rows = sorted(study.threads, key=lambda row: row.num_threads)
    first, last = rows[0], rows[-1]
    if len(rows) < 2 or not first.samples_per_s:
        count = counted(last.num_threads, "thread")
        speed = measured(last.samples_per_s, last.turns)
        yield f"One setting was measured: {count}, {speed} samples a second."
        return
    found = ratio(measured(last.samples_per_s, last.turns), measured(first.samples_per_s, first.turns))
    one, where = counted(first.num_threads, "thread"), f"on {counted(study.cores, 'core')}"
    if is_clear(found):
        reach = f"{last.num_threads} threads load {show_times(found)} as much as {one}, {where}"
    else:
        reach = f"{last.num_threads} threads and {one} do not differ as far as the turns tell, {where}"
    yield f"{reach} (batches of {first.batch_size:,})."


def worst_oversubscription(study: StudyFigures) -> dict[LoaderKind, Measured]:
    """Return the lowest speed of each loader with more workers than cores, as a ratio to one for each."""
    ones = {row.source: row for row in study.oversubscription if row.per_core == 1}
    found: dict[LoaderKind, Measured] = {}
    for row in study.oversubscription:
        if row.per_core > 1 and (one := ones.get(row.source)) is not None:
            share = ratio(measured(row.samples_per_s, row.turns), measured(one.samples_per_s, one.turns))
            found[row.source] = min(found.get(row.source, share), share, key=lambda entry: entry.value)
    return found


def _oversubscription(study: StudyFigures) -> Iterator[str]:
    worst = worst_oversubscription(study)
    most = max(row.per_core for row in study.oversubscription)
    lower = {source: share for source, share in worst.items() if is_clear(share) and share.value < 1}
    start = f"Compared with one thread or worker for each core, up to {most:g}"
    if lower:
        shares = _listed(((source, f"{100 * share.rounded:.0f} %") for source, share in lower.items()), "of the speed")
        yield f"{start} give at worst {shares}."
    elif worst:
        yield f"{start} make no difference as far as the turns tell."
    yield "The Loader never starts more threads than cores."
    # The Loader's rows are all the same setting: differences among them are noise.
    if any(source != _OURS for source in lower):
        yield "Warning: give torch's DataLoader no more workers than cores."


def _isolation(study: StudyFigures) -> Iterator[str]:
    counts = sorted({row.num_processes for row in study.isolation})
    speeds = {
        (row.source, row.num_processes, row.batch_size): measured(row.samples_per_s, row.turns)
        for row in study.isolation
    }
    sizes = sorted({row.batch_size for row in study.isolation})
    sources = list(dict.fromkeys(row.source for row in study.isolation))
    together = {s: str(speeds[s, counts[-1], sizes[0]]) for s in sources if (s, counts[-1], sizes[0]) in speeds}
    if together:
        yield (
            f"{counted(counts[-1], 'process', 'processes')}, each with a loader of its own and no model, "
            f"{'read' if counts[-1] > 1 else 'reads'} in batches of {sizes[0]:,}, in samples a second: "
            f"{_listed(together)}."
        )
    ratios = {
        s: [
            ratio(speeds[s, counts[-1], size], speeds[s, counts[0], size])
            for size in sizes
            if (s, counts[0], size) in speeds and (s, counts[-1], size) in speeds
        ]
        for s in sources
    }
    clear = {source: [one for one in found if is_clear(one)] for source, found in ratios.items()}
    parts = {source: show_span(found) for source, found in clear.items() if found}
    fewest = "one process" if counts[0] == 1 else f"{counts[0]} processes"
    start = f"Compared with {fewest} on all cores, {counts[-1]} processes together"
    if len(counts) > 1 and any(ratios.values()):
        alike = [f"the {LOADER_NAMES[source]}" for source in ratios if ratios[source] and source not in parts]
        reach = f"reach {_listed(parts, 'the speed')}." if parts else "do not differ as far as the turns tell."
        yield f"{start} {reach}{_unclear(alike) if parts else ''}"


def _cold(study: StudyFigures) -> Iterator[str]:
    """Say how fast the first epoch is, from storage, and how many times as fast as from files."""
    rows = {(row.source, row.order): row for row in study.cold}
    ours = rows.get((_OURS, "random"))
    quasi = rows.get((_OURS, "quasi_random"))
    files = rows.get(("folder", "random"))
    cold = {key: measured(row.cold_samples_per_s, row.cold_turns) for key, row in rows.items()}
    warm = {key: measured(row.warm_samples_per_s, row.warm_turns) for key, row in rows.items()}
    parts = [
        f"the {LOADER_NAMES[source]} {speed} ({percent(ratio(speed, warm[source, order]).rounded)} of its speed "
        "from memory)"
        for (source, order), speed in cold.items()
        if order == "random"
    ]
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    yield f"Samples read a second with nothing in the page cache: {listed}."
    if files is not None and ours is not None and "folder" in compared(study):
        for place, speeds in (("cold storage", cold), ("memory", warm)):
            found = ratio(speeds[_OURS, "random"], speeds["folder", "random"])
            yield (
                f"From {place} the Loader is {show_times(found)} as fast as the files"
                if is_clear(found)
                else f"From {place} the Loader and the files do not differ as far as the turns tell"
            ) + (", each of which is a look-up and a read of its own." if place == "cold storage" else ".")
    if quasi is not None and ours is not None:
        found = ratio(cold[_OURS, "quasi_random"], cold[_OURS, "random"])
        yield 'With order="quasi_random", which reads blocks of 2 MiB, the cold Loader ' + (
            f"is {show_times(found)} as fast." if is_clear(found) else "is not measurably faster or slower."
        )


def _memory(study: StudyFigures) -> Iterator[str]:
    """Say whether pinned memory helps training, at worst and at best."""
    sweep = both_memories(study)
    for source in sweep.sources:
        gains = []
        for crop in sweep.crops:
            paged = {row.batch_size: speed_of(row) for row in sweep.curve(source, crop, pinned=False)}
            for row in sweep.curve(source, crop, pinned=True):
                if row.batch_size in paged:
                    where = f"batches of {row.batch_size:,}, {window(crop)}"
                    gains.append((ratio(speed_of(row), paged[row.batch_size]), where))
        clear = [gain for gain in gains if is_clear(gain[0])]
        name = f"With the {LOADER_NAMES[source]}, pinned memory"
        if clear:
            (low, at_low), (high, at_high) = (choose(clear, key=lambda gain: gain[0].value) for choose in (min, max))
            span = f"{100 * (low.rounded - 1):+.0f} % ({at_low})"
            span += f" to {100 * (high.rounded - 1):+.0f} % ({at_high})" if len(clear) > 1 else ""
            yield f"{name} changes the speed of training by {span}."
        elif gains:
            yield f"{name} does not change the speed of training as far as the turns tell."


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
