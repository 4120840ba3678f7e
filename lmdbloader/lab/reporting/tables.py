"""The tables of a study: every figure that its charts show, and those that they leave out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lmdbloader.lab.reporting import selection
from lmdbloader.lab.reporting.words import number, percent, seconds
from lmdbloader.lab.study.results import SOURCE_NAMES, Latency, Study, SweepRow

_PHASES = ("data", "copy", "forward", "backward", "update")
_STAGES = ("read", "verify", "decode", "transform", "function", "buffer")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: Above it.
        is_text: Whether it holds words rather than numbers.
    """

    name: str
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it is shown.

    Attributes:
        caption: What it holds.
        columns: Its columns.
        rows: A cell for each column.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


_SETTING = (Column("source", is_text=True), Column("images", is_text=True), Column("batch"))
_WORKERS = Column("source", is_text=True)


def throughput(study: Study) -> Table:
    """Return what loading alone came to."""
    return _table(
        "Loading alone: the median of the turns, the slowest and the fastest turn",
        [*_SETTING, _memory(study), *_numbers("samples/s", "slowest", "fastest", "epoch", "CPU for a sample")],
        (
            [
                *_setting(row), _kind_of_memory(row), number(row.samples_per_s),
                *(number(turn) for turn in _extremes(row.turns)), seconds(row.epoch_seconds),
                seconds(row.cpu_seconds_per_sample),
            ]
            for row in study.sweep
        ),
    )  # fmt: skip


def split(study: Study) -> Table:
    """Return what training came to."""
    rows = [(row, row.training) for row in study.sweep if row.training is not None]
    return _table(
        "Training: the mean step and its parts, and what an epoch takes",
        [*_SETTING, _memory(study), *_numbers("step", *_PHASES, "waiting", "99 % wait", "epoch", "samples/s")],
        (
            [
                *_setting(row), _kind_of_memory(row), seconds(told.phases.total),
                *(seconds(getattr(told.phases, phase)) for phase in _PHASES), percent(told.stall),
                seconds(told.wait.p99_seconds), seconds(told.epoch_seconds), number(told.samples_per_s),
            ]
            for row, told in rows
        ),
    )  # fmt: skip


def latency(study: Study) -> Table:
    """Return how long batches let wait."""
    return _table(
        "The wait for a batch, loading alone",
        [*_SETTING, _memory(study), *_numbers("median", "99 % within", "longest", "mean", "batches")],
        ([*_setting(row), _kind_of_memory(row), *_waits(row.latency)] for row in study.sweep),
    )


def stages(study: Study) -> Table:
    """Return what the Loader's threads spent their time on."""
    return _table(
        "Thread time for each sample, loading alone",
        [*_SETTING, _memory(study), *_numbers(*_STAGES)],
        (
            [*_setting(row), _kind_of_memory(row), *(seconds(row.stages.get(stage, 0.0)) for stage in _STAGES)]
            for row in study.sweep
            if row.stages
        ),
    )


def threads(study: Study) -> Table:
    """Return the speeds by threads."""
    first = next((row for row in study.threads if row.num_threads == 1), None)
    return _table(
        "The Loader by threads",
        _numbers("threads", "batch", "samples/s", "of one thread"),
        (
            [
                str(row.num_threads), f"{row.batch_size:,}", number(row.samples_per_s),
                f"{row.samples_per_s / first.samples_per_s:.2f}" if first and first.samples_per_s else "",
            ]
            for row in study.threads
        ),
    )  # fmt: skip


def isolation(study: Study) -> Table:
    """Return the speeds of several processes."""
    return _table(
        "Processes at the same time: samples a second of all, of the slowest and of the fastest process",
        [_WORKERS, *_numbers("processes", "workers of each", "batch", "samples/s", "slowest", "fastest")],
        (
            [
                SOURCE_NAMES[row.source], str(row.num_processes), str(row.workers_each), f"{row.batch_size:,}",
                number(row.samples_per_s), number(row.slowest), number(row.fastest),
            ]
            for row in study.isolation
        ),
    )  # fmt: skip


def oversubscription(study: Study) -> Table:
    """Return the speeds with more workers than cores."""
    return _table(
        "Threads of the Loader, workers of the DataLoader",
        [_WORKERS, *_numbers("workers", "for each core", "batch", "samples/s", "of one for each core")],
        (
            [
                SOURCE_NAMES[row.source], str(row.num_workers), f"{row.per_core:g}", f"{row.batch_size:,}",
                number(row.samples_per_s), percent(row.of_one_per_core),
            ]
            for row in study.oversubscription
        ),
    )  # fmt: skip


def memory(study: Study) -> Table:
    """Return the speeds of training from pinned and from paged memory."""
    return _table(
        "Training from pinned and from paged memory",
        [*_SETTING, _memory(study), *_numbers("samples/s", "copy", "waiting")],
        (
            [
                *_setting(row), _kind_of_memory(row), number(row.training.samples_per_s),
                seconds(row.training.phases.copy), percent(row.training.stall),
            ]
            for row in selection.both_memories(study).rows
            if row.training is not None
        ),
    )  # fmt: skip


def gpu(study: Study) -> Table:
    """Return what the GPU did while training."""
    rows = [(row, row.training.gpu) for row in study.sweep if row.training is not None]
    return _table(
        "The GPU while training, as NVML has it: means, and the most memory in use",
        [*_SETTING, _memory(study), *_numbers("utilisation", "power", "most memory")],
        (
            [
                *_setting(row), _kind_of_memory(row), f"{told.utilisation_percent:.0f} %",
                "unknown" if told.power_watts is None else f"{told.power_watts:.0f} W",
                f"{told.memory_mib:,.0f} MiB",
            ]
            for row, told in rows
            if told is not None
        ),
    )  # fmt: skip


def _table(caption: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table without the columns that say nothing: those without a name, and their cells."""
    kept = [i for i, column in enumerate(columns) if column.name]
    return Table(caption, tuple(columns[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows))


def _numbers(*names: str) -> list[Column]:
    return [Column(name) for name in names]


def _memory(study: Study) -> Column:
    """Return the column of the kinds of memory; without a name where there is but one."""
    return Column("memory" if len({row.is_pinned for row in study.sweep}) > 1 else "", is_text=True)


def _kind_of_memory(row: SweepRow) -> str:
    return "pinned" if row.is_pinned else "paged"


def _setting(row: SweepRow) -> list[str]:
    size = "whole" if row.crop is None else f"{row.crop} x {row.crop}"
    return [SOURCE_NAMES[row.source], size, f"{row.batch_size:,}"]


def _extremes(turns: Sequence[float]) -> tuple[float, float]:
    return (min(turns), max(turns)) if turns else (0.0, 0.0)


def _waits(told: Latency) -> list[str]:
    times = (told.p50_seconds, told.p99_seconds, told.max_seconds, told.mean_seconds)
    return [*(seconds(value) for value in times), f"{sum(told.counts):,}"]
