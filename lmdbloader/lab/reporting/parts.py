"""The parts of a report: each a chart, what it shows in words, and its table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lmdbloader.lab.reporting import charts, selection, sentences, tables
from lmdbloader.lab.reporting.canvas import Chart
from lmdbloader.lab.reporting.tables import Table
from lmdbloader.lab.study.results import Study


class Draw(Protocol):
    """A function of `charts`."""

    def __call__(self, study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
        """Draw a chart."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of every report whose study has figures for it.

    Attributes:
        name: In addresses and file names.
        title: Above it.
        explanation: How to read the chart, and what was done.
        has_figures: Whether a study has any.
        draw: Draws the chart.
        say: Returns what the chart shows.
        table: Returns its table.
    """

    name: str
    title: str
    explanation: str
    has_figures: Callable[[Study], bool]
    draw: Draw
    say: Callable[[Study], str]
    table: Callable[[Study], Table]


PARTS = (
    Part(
        "throughput", "Throughput by batch size",
        "Each loader alone, no model. A flat line means that small batches cost nothing extra.",
        lambda study: bool(study.sweep), charts.throughput, sentences.throughput, tables.throughput,
    ),
    Part(
        "split", "Where the time of an epoch goes",
        "A model was trained on the batches. Hatched red is time in which it had no data.",
        lambda study: bool(selection.training(study).rows), charts.split, sentences.split, tables.split,
    ),
    Part(
        "latency", "Waiting for a batch",
        "The axis has a mark for each power of ten. Further left is better, and so is a narrower hill.",
        lambda study: bool(study.sweep), charts.latency, sentences.latency, tables.latency,
    ),
    Part(
        "stages", "Where the Loader's time goes",
        "Time of all its threads, added up. The longest piece is what a change should be made to.",
        lambda study: any(row.stages for row in study.sweep), charts.stages, sentences.stages, tables.stages,
    ),
    Part(
        "threads", "Scaling by threads",
        "The dotted line is what one thread gives, times their number.",
        lambda study: bool(study.threads), charts.threads, sentences.threads, tables.threads,
    ),
    Part(
        "isolation", "Several processes at once",
        "As when several experiments share a machine, or each GPU has a process. The slowest and the fastest process "
        "are in the table.",
        lambda study: bool(study.isolation), charts.isolation, sentences.isolation, tables.isolation,
    ),
    Part(
        "oversubscription", "More workers than cores",
        "Threads for the Loader, worker processes for torch's DataLoader.",
        lambda study: bool(study.oversubscription), charts.oversubscription, sentences.oversubscription,
        tables.oversubscription,
    ),
    Part(
        "memory", "Pinned or paged memory",
        "Pinned memory copies faster to the GPU, but costs time to make. Above zero, pinned is faster.",
        lambda study: bool(selection.both_memories(study).rows), charts.memory, sentences.memory, tables.memory,
    ),
    Part(
        "gpu", "The GPU while training",
        "As NVML reports it. Utilisation is the share of time in which a kernel ran, not how much of the GPU it used.",
        lambda study: bool(selection.on_gpu(study).rows), charts.gpu, sentences.gpu, tables.gpu,
    ),
)  # fmt: skip


def parts_of(study: Study) -> tuple[Part, ...]:
    """Return the parts that a study has figures for."""
    return tuple(part for part in PARTS if part.has_figures(study))
