"""What a study came to, in sentences: three for all of it, and one for each chart."""

from __future__ import annotations

from collections.abc import Callable

from lmdbloader.lab.reporting import selection
from lmdbloader.lab.reporting.words import number, percent, seconds, times, window
from lmdbloader.lab.study.results import SOURCE_NAMES, Source, Study, SweepRow

# A model that waits for less is fed.
_FED = 0.05
_OURS: Source = "lmdbloader"


def verdict(study: Study) -> str:
    """Return the one thing that a study says, as a headline."""
    sweep, trained = selection.loading(study), selection.training(study)
    stalls = [row.training.stall for row in trained.rows if row.source == _OURS and row.training]
    if stalls and max(stalls) <= _FED:
        return f"The model is fed: it waits for data at most {percent(max(stalls))} of the time"
    if stalls:
        return f"The model waits for data up to {percent(max(stalls))} of the time"
    curve = sweep.curve(_OURS, _crop(sweep))
    return (
        f"{number(curve[0].samples_per_s)} samples a second in batches of {curve[0].batch_size:,}"
        if curve
        else "A study"
    )


def question(study: Study) -> str:
    """Return what a study asks: of a GPU only where one was trained on."""
    trained = selection.training(study).rows
    if not trained:
        return "how fast are batches loaded?"
    return "is the model fed?" if study.settings.device.startswith("cpu") else "is the GPU fed?"


def findings(study: Study) -> tuple[str, ...]:
    """Return the three sentences that matter, fewer where less was measured."""
    return tuple(sentence for sentence in (_speed(study), _small_batches(study), _waiting(study)) if sentence)


def _crop(sweep: selection.Sweep) -> int | None:
    return sweep.crops[-1] if sweep.crops else None


def _compared(study: Study, sweep: selection.Sweep, say: Callable[[SweepRow, SweepRow], str]) -> list[str]:
    """Return what there is to say of each of the others, for the batches that sentences are about.

    Args:
        study: What was measured.
        sweep: The rows that count.
        say: Takes the row of ours and one of theirs.
    """
    size, crop = selection.focus(study)
    ours = sweep.row(_OURS, size, crop)
    theirs = [row for source in sweep.sources if source != _OURS and (row := sweep.row(source, size, crop))]
    return [say(ours, row) for row in theirs] if ours else []


def _speed(study: Study) -> str:
    """Return how fast the Loader is at the smallest batch size, beside the others."""
    if not study.sweep:
        return ""
    size, crop = selection.focus(study)
    sweep = selection.loading(study)
    ours = sweep.row(_OURS, size, crop)
    if ours is None:
        return ""
    text = f"In batches of {size:,} ({window(crop)}) the Loader gives {number(ours.samples_per_s)} samples a second"
    others = _compared(
        study, sweep, lambda a, b: f"{_factor(a.samples_per_s, b.samples_per_s)} {_FROM[b.source]}"
    )  # fmt: skip
    return f"{text}: {' and '.join(others)}." if others else f"{text}."


_FROM: dict[Source, str] = {
    "lmdbloader": "the Loader",
    "dataloader": "torch's DataLoader from the same dataset",
    "folder": "torch's DataLoader from image files",
}


def _factor(ours: float, theirs: float) -> str:
    ratio = ours / theirs if theirs else 1.0
    return "as many as" if 0.95 <= ratio < 1.05 else f"{times(ratio)} as many as"


def _small_batches(study: Study) -> str:
    """Return what an epoch takes with the smallest and with the largest batches."""
    trained = selection.training(study)
    sweep = trained if trained.rows else selection.loading(study)
    curves = {source: sweep.curve(source, _crop(sweep)) for source in sweep.sources}
    curve = curves.get(_OURS, ())
    if len(curve) < 2:
        return ""
    name = f"An epoch of {study.settings.model or 'training'}" if trained.rows else "Reading all samples"
    others = [
        f"{_SHORT[source]} {_epochs(theirs)}"
        for source, theirs in curves.items()
        if source != _OURS and len(theirs) > 1
    ]
    first, last = _epoch_seconds(curve)
    told = (
        f"{name} takes {first} in batches of {curve[0].batch_size:,} and {last} in batches of {curve[-1].batch_size:,}"
    )
    return f"{told}; {', '.join(others)}." if others else f"{told}."


_SHORT: dict[Source, str] = {
    "lmdbloader": "with the Loader",
    "dataloader": "with torch's DataLoader",
    "folder": "from image files",
}


def _epochs(curve: tuple[SweepRow, ...]) -> str:
    return " and ".join(_epoch_seconds(curve))


def _epoch_seconds(curve: tuple[SweepRow, ...]) -> tuple[str, str]:
    first, last = (seconds((row.training or row).epoch_seconds) for row in (curve[0], curve[-1]))
    return first, last


def _waiting(study: Study) -> str:
    """Return how much the model waits; where none was trained, how long batches let wait."""
    if not study.sweep:
        return ""
    size, crop = selection.focus(study)
    trained = selection.training(study)
    row = trained.row(_OURS, size, crop)
    if row is not None and row.training is not None:
        others = _compared(
            study, trained, lambda _, b: f"{_SHORT[b.source]} {percent(b.training.stall) if b.training else ''}"
        )
        told = (
            f"In batches of {size:,} {study.settings.model or 'the model'} on {study.settings.device} waits for data "
        )
        told += f"{percent(row.training.stall)} of the time"
        return f"{told}; {', '.join(others)}." if others else f"{told}."
    row = selection.loading(study).row(_OURS, size, crop)
    if row is None:
        return ""
    return f"99 % of the Loader's batches of {size:,} are there within {seconds(row.latency.p99_seconds)}."


def throughput(study: Study) -> str:
    """Return what the chart of throughput shows."""
    sweep = selection.loading(study)
    losses = []
    for source in sweep.sources:
        curve = sweep.curve(source, _crop(sweep))
        if len(curve) > 1 and curve[-1].samples_per_s:
            losses.append(
                f"{percent(curve[0].samples_per_s / curve[-1].samples_per_s)} with the {SOURCE_NAMES[source]}"
            )
    if not losses:
        return "Samples a second of each source."
    return (
        f"In batches of {sweep.batch_sizes[0]:,} ({window(_crop(sweep))}) the speed is {', '.join(losses)} of that in "
        f"batches of {sweep.batch_sizes[-1]:,}."
    )


def split(study: Study) -> str:
    """Return what the chart of an epoch's time shows."""
    size, crop = selection.focus(study)
    trained = selection.training(study)
    parts = [
        f"{seconds(row.training.epoch_seconds)} with the {SOURCE_NAMES[s]}, {percent(row.training.stall)} of it waiting"
        for s in trained.sources
        if (row := trained.row(s, size, crop)) and row.training
    ]
    model = study.settings.model or "the model"
    return f"An epoch of {model} in batches of {size:,}, {window(crop)}: {'; '.join(parts)}."


def latency(study: Study) -> str:
    """Return what the chart of waits shows."""
    size, crop = selection.focus(study)
    sweep = selection.loading(study)
    parts = [
        f"{seconds(row.latency.p99_seconds)} with the {SOURCE_NAMES[source]}"
        for source in sweep.sources
        if (row := sweep.row(source, size, crop))
    ]
    return (
        f"99 % of the batches of {size:,} are there within {', '.join(parts)}. A step that takes longer seldom waits."
    )


def stages(study: Study) -> str:
    """Return what the chart of the Loader's stages shows."""
    rows = [row for row in study.sweep if row.stages]
    told = rows[-1].stages or {}
    most = max(told, key=lambda name: told[name])
    total = sum(told.values()) or 1.0
    return f"The largest part of a thread's time, {percent(told[most] / total)}, goes to {_STAGES.get(most, most)}."


_STAGES = {
    "read": "bringing stored bytes in",
    "verify": "checksums",
    "decode": "decoding",
    "transform": "cropping, converting and placing pixels",
    "function": "Python functions",
    "buffer": "waiting for the memory of batches",
}


def threads(study: Study) -> str:
    """Return what the chart of threads shows."""
    rows = sorted(study.threads, key=lambda row: row.num_threads)
    first, last = rows[0], rows[-1]
    if len(rows) < 2 or not first.samples_per_s:
        return f"One setting was measured: {last.num_threads} threads, {number(last.samples_per_s)} samples a second."
    gain = times(last.samples_per_s / first.samples_per_s)
    return f"{last.num_threads} threads give {gain} what {first.num_threads} gives, on {study.cores} cores."


def isolation(study: Study) -> str:
    """Return what the chart of several processes shows."""
    most = max(row.num_processes for row in study.isolation)
    size = min(row.batch_size for row in study.isolation)
    parts = [
        f"{number(row.samples_per_s)} with the {SOURCE_NAMES[row.source]}"
        for row in study.isolation
        if row.num_processes == most and row.batch_size == size
    ]
    return (
        f"{most} processes, each with a loader of its own and no model, read in batches of {size:,} together, in "
        f"samples a second: {', '.join(parts)}."
    )


def oversubscription(study: Study) -> str:
    """Return what the chart of too many workers shows."""
    most = max(row.per_core for row in study.oversubscription)
    parts = [
        f"{percent(row.of_one_per_core)} with the {SOURCE_NAMES[row.source]}"
        for row in study.oversubscription
        if row.per_core == most
    ]
    return f"With {most:g} for each core, the speed is, of that with one for each: {', '.join(parts)}."


def memory(study: Study) -> str:
    """Return what the chart of pinned and paged memory shows."""
    rows = selection.both_memories(study).rows
    speeds = {(row.source, row.crop, row.batch_size, row.is_pinned): row.training for row in rows}
    gains = [
        pinned.samples_per_s / paged.samples_per_s - 1
        for (source, crop, size, is_pinned), pinned in speeds.items()
        if is_pinned and pinned and (paged := speeds[source, crop, size, False]) and paged.samples_per_s
    ]
    if not gains:
        return ""
    return f"Pinned memory changes the speed of training by {100 * min(gains):+.0f} % to {100 * max(gains):+.0f} %."


def gpu(study: Study) -> str:
    """Return what the chart of the GPU shows."""
    size, _ = selection.focus(study)
    sweep = selection.on_gpu(study)
    parts = [
        f"{row.training.gpu.utilisation_percent:.0f} % with the {SOURCE_NAMES[source]}"
        for source in sweep.sources
        if (row := sweep.row(source, size, sweep.crops[-1])) and row.training and row.training.gpu
    ]
    return f"Utilisation in batches of {size:,}, {window(sweep.crops[-1])}: {', '.join(parts)}."
