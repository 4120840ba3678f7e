"""The tables of a study: every figure that was measured, once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lmdbloader.base.stage_times import STAGES
from lmdbloader.lab.formatting import Column, Table, number, percent, seconds
from lmdbloader.lab.study.ranges import Measured, duration, measured, ratio, show_seconds
from lmdbloader.lab.study.rows import LOADER_NAMES, IsolationRow, Latency, StudyFigures, SweepRow, both_memories

PHASES = ("data", "copy", "forward", "backward", "update")
_SOURCE = Column("source", lambda source: LOADER_NAMES[source], is_text=True)
_BATCH = Column("batch", "{:,}".format)
_SETTING = (
    _SOURCE,
    Column("images", lambda crop: "whole" if crop is None else f"{crop} x {crop}", is_text=True),
    _BATCH,
    Column("memory", lambda is_pinned: "pinned" if is_pinned else "paged", is_text=True),
)


def throughput(study: StudyFigures) -> Table:
    """Return the speeds of loading alone."""
    return _sweep(
        "Loading alone: the median of the turns, the slowest and the fastest turn",
        study,
        [
            *_columns(str, "samples/s"),
            *_columns(number, "slowest", "fastest"),
            *_columns(show_seconds, "epoch"),
            *_columns(seconds, "CPU for a sample"),
        ],
        (
            (
                row,
                speed := measured(row.samples_per_s, row.turns),
                *_extremes(row.turns),
                duration(study.dataset.num_samples, speed),
                row.cpu_seconds_per_sample,
            )
            for row in study.sweep
        ),
    )


def split(study: StudyFigures) -> Table:
    """Return the speeds of training, and the parts of a step."""
    return _sweep(
        "Training: the mean step and its parts, and the time of an epoch",
        study,
        [
            *_columns(seconds, "step", *PHASES), *_columns(percent, "waiting"),
            *_columns(seconds, "99 % wait"), *_columns(show_seconds, "epoch"), *_columns(str, "samples/s"),
        ],
        (
            (
                row, t.phases.total, *(getattr(t.phases, phase) for phase in PHASES), t.stall, t.wait.p99_seconds,
                duration(study.dataset.num_samples, speed := measured(t.samples_per_s, t.turns)), speed,
            )
            for row in study.sweep
            if (t := row.training) is not None
        ),
    )  # fmt: skip


def latency(study: StudyFigures) -> Table:
    """Return the waits for a batch."""
    return _sweep(
        "The wait for a batch, loading alone",
        study,
        [*_columns(seconds, "median", "99 % within", "longest", "mean"), *_columns("{:,}".format, "batches")],
        ((row, *_waits(row.latency)) for row in study.sweep),
    )


def stages(study: StudyFigures) -> Table:
    """Return the time of the Loader's threads by stage."""
    return _sweep(
        "Thread time for each sample, loading alone",
        study,
        _columns(seconds, *STAGES),
        ((row, *(row.stages.get(stage, 0.0) for stage in STAGES)) for row in study.sweep if row.stages),
    )


def threads(study: StudyFigures) -> Table:
    """Return the speeds by threads."""
    first = next((row for row in study.threads if row.num_threads == 1), None)
    one = None if first is None or not first.samples_per_s else measured(first.samples_per_s, first.turns)
    return Table(
        "The Loader by threads",
        (
            Column("threads"), _BATCH, Column("samples/s"),
            Column("of one thread", lambda found: "" if found is None else f"{found.rounded:g}"),
        ),
        tuple(
            (
                row.num_threads, row.batch_size, speed := measured(row.samples_per_s, row.turns),
                ratio(speed, one) if one is not None else None,
            )
            for row in study.threads
        ),
    )  # fmt: skip


def isolation(study: StudyFigures) -> Table:
    """Return the speeds of several processes."""
    return Table(
        "Processes at the same time: samples a second of all, of the slowest and of the fastest process",
        (
            _SOURCE, Column("processes"), Column("workers each"), _BATCH,
            *_columns(str, "samples/s", "slowest", "fastest"),
        ),
        tuple(
            (
                r.source, r.num_processes, r.workers_each, r.batch_size,
                *(_alike(value, r) for value in (r.samples_per_s, r.slowest, r.fastest)),
            )
            for r in study.isolation
        ),
    )  # fmt: skip


def _beyond(cores: int) -> Callable[[int], str]:
    """Return a function that writes a number of workers and marks it if there are fewer cores."""
    return lambda count: f"{count} (of {cores} cores)" if count > cores else str(count)


def oversubscription(study: StudyFigures) -> Table:
    """Return the speeds with more workers than cores."""
    return Table(
        "Threads of the Loader, workers of the DataLoader",
        (
            _SOURCE, Column("workers", _beyond(study.cores)), Column("for each core", "{:g}".format), _BATCH,
            Column("samples/s"), Column("of one for each core", percent),
        ),
        tuple(
            (
                row.source, row.num_workers, row.per_core, row.batch_size, measured(row.samples_per_s, row.turns),
                row.of_one_per_core,
            )
            for row in study.oversubscription
        ),
    )  # fmt: skip


def cold(study: StudyFigures) -> Table:
    """Return the speeds from a cold and from a warm page cache."""
    return Table(
        "From a cold page cache, and the same again: samples/s, with the start of threads and workers",
        (
            _SOURCE, Column("order", is_text=True), _BATCH, Column("samples", "{:,}".format),
            *_columns(str, "cold", "warm"), Column("cold / warm", percent),
        ),
        tuple(
            (
                r.source, r.order, r.batch_size, r.num_samples, measured(r.cold_samples_per_s, r.cold_turns),
                measured(r.warm_samples_per_s, r.warm_turns),
                r.cold_samples_per_s / r.warm_samples_per_s,
            )
            for r in study.cold
        ),
    )  # fmt: skip


def memory(study: StudyFigures) -> Table:
    """Return the speeds of training from pinned and from paged memory."""
    return _sweep(
        "Training from pinned and from paged memory",
        study,
        [*_columns(str, "samples/s"), *_columns(seconds, "copy"), *_columns(percent, "waiting")],
        (
            (row, measured(t.samples_per_s, t.turns), t.phases.copy, t.stall)
            for row in both_memories(study).rows
            if (t := row.training) is not None
        ),
    )


def gpu(study: StudyFigures) -> Table:
    """Return the use of the GPU while training."""
    return _sweep(
        "The GPU while training, as NVML reports it: means, and the most memory in use",
        study,
        [
            Column("utilisation", "{:.0f} %".format),
            Column("power", lambda watts: "unknown" if watts is None else f"{watts:.0f} W"),
            Column("most memory", "{:,.0f} MiB".format),
        ],
        (
            (row, row.training.gpu.utilisation_percent, row.training.gpu.power_watts, row.training.gpu.memory_mib)
            for row in study.sweep
            if row.training is not None and row.training.gpu is not None
        ),
    )


def _sweep(caption: str, study: StudyFigures, columns: Sequence[Column], rows: Iterable[tuple[Any, ...]]) -> Table:
    """Return a table of rows of the sweep, each given as the SweepRow and its figures.

    The column of the memory is left out if there is only one kind.
    """
    places = 4 if len({row.is_pinned for row in study.sweep}) > 1 else 3

    def setting(row: SweepRow) -> tuple[Any, ...]:
        return (row.source, row.crop, row.batch_size, row.is_pinned)[:places]

    return Table(caption, (*_SETTING[:places], *columns), tuple((*setting(row), *figures) for row, *figures in rows))


def _columns(show: Any, *names: str) -> list[Column]:
    return [Column(name, show) for name in names]


def _extremes(turns: Sequence[float]) -> tuple[float, float]:
    return (min(turns), max(turns)) if turns else (0.0, 0.0)


def _alike(value: float, row: IsolationRow) -> Measured:
    """Return a figure of one process with the relative range of all processes together."""
    together = measured(row.samples_per_s, row.turns)
    share = value / row.samples_per_s if row.samples_per_s else 1.0
    return Measured(value, together.low * share, together.high * share)


def _waits(found: Latency) -> tuple[float, ...]:
    return found.p50_seconds, found.p99_seconds, found.max_seconds, found.mean_seconds, sum(found.counts)
