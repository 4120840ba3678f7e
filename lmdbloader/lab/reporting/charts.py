"""The charts of a study, as matplotlib figures: lines of speeds, and stacked bars of times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from lmdbloader.base.stage_times import STAGES
from lmdbloader.lab.formatting import number
from lmdbloader.lab.study.arms import LOADER_NAMES, LoaderKind
from lmdbloader.lab.study.results import Study
from lmdbloader.lab.study.rows import StudyRow
from lmdbloader.lab.study.training import PHASES

COLOURS = {"lmdbloader": "#1763b6", "dataloader": "#c2571a", "folder": "#6b7280"}
_WIDTH, _HEIGHT = 9.0, 3.2
# An axis is in powers of ten if its values differ by more.
_WIDE = 20


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a chart.

    Attributes:
        label: In the legend.
        colour: Of the line.
        points: For each place on the horizontal axis, the turns: their median is the point, their range a bar.
    """

    label: str
    colour: str
    points: Mapping[float, Sequence[float]]


def draw(study: Study) -> dict[str, Figure]:
    """Return the charts of a study, by the names of its sections."""
    found: dict[str, Figure] = {}
    for name, (place, panel, label) in _LINES.items():
        if rows := study.section(name):
            titles = dict.fromkeys(map(panel, rows))
            panels = {title: _curves([row for row in rows if panel(row) == title], place) for title in titles}
            found[name] = draw_lines(panels, "samples/s", label)
    if rows := study.section("training"):
        found["steps"] = _draw_parts(rows, PHASES, 1e3, "ms a step")
    if rows := tuple(row for row in study.section("loading") if "read_seconds" in row.figures):
        found["stages"] = _draw_parts(rows, STAGES, 1e6, "µs a sample")
    return found


def draw_lines(panels: Mapping[str, Sequence[Curve]], values: str, places: str) -> Figure:
    """Return a panel of lines for each title, with the turns' ranges as vertical bars.

    Args:
        panels: The lines of each title.
        values: Name of the vertical axis; it is in powers of ten if the values differ much.
        places: Name of the horizontal axis, whose places are evenly spaced.
    """
    figure, grid = _panels(panels)
    every = [
        turn for curves in panels.values() for curve in curves for turns in curve.points.values() for turn in turns
    ]
    for axes, curves in zip(grid, panels.values(), strict=True):
        xs = sorted({x for curve in curves for x in curve.points})
        for curve in curves:
            middles = [statistics.median(turns) for turns in curve.points.values()]
            below = [middle - min(turns) for middle, turns in zip(middles, curve.points.values(), strict=True)]
            above = [max(turns) - middle for middle, turns in zip(middles, curve.points.values(), strict=True)]
            axes.errorbar(
                [xs.index(x) for x in curve.points], middles, (below, above), label=curve.label, color=curve.colour,
                marker="o", markersize=4, capsize=2,
            )  # fmt: skip
        axes.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
        axes.set_xlabel(places)
        if 0 < _WIDE * min(every) < max(every):
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0, 1.05 * max(every))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axes.set_ylabel(values)
    _add_legend(figure, grid)
    return figure


def draw_bars(panels: Mapping[str, Mapping[str, Mapping[str, float]]], values: str) -> Figure:
    """Return a panel of stacked bars for each title.

    Args:
        panels: The parts of each bar of each title.
        values: Name of the vertical axis.
    """
    figure, grid = _panels(panels)
    for axes, bars in zip(grid, panels.values(), strict=True):
        bottoms = [0.0] * len(bars)
        for part in dict.fromkeys(part for parts in bars.values() for part in parts):
            heights = [parts.get(part, 0.0) for parts in bars.values()]
            axes.bar(range(len(bars)), heights, 0.7, bottoms, label=part)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
        axes.set_xticks(range(len(bars)), list(bars))
        axes.set_ylabel(values)
    _add_legend(figure, grid)
    return figure


def _panels(panels: Mapping[str, object]) -> tuple[Figure, list[Axes]]:
    columns = 3 if len(panels) % 3 == 0 else min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure((_WIDTH, _HEIGHT * rows), layout="constrained")
    grid: list[Axes] = figure.subplots(rows, columns, squeeze=False, sharey="row").ravel().tolist()
    for unneeded in grid[len(panels) :]:
        unneeded.remove()
    for axes, title in zip(grid, panels, strict=False):
        axes.set_title(title, loc="left", fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, axis="y", alpha=0.3)
    return figure, grid[: len(panels)]


def _add_legend(figure: Figure, grid: Sequence[Axes]) -> None:
    """Write each label of the panels once, above them."""
    found = {}
    for axes in grid:
        found.update(dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True)))
    if len(found) > 1:
        figure.legend(found.values(), found.keys(), loc="outside upper left", ncols=min(len(found), 6), frameon=False)


def _curves(rows: Sequence[StudyRow], place: Callable[[StudyRow], float]) -> list[Curve]:
    """Return a line for each source."""
    points: dict[LoaderKind, dict[float, Sequence[float]]] = {}
    for row in rows:
        points.setdefault(row.source, {})[place(row)] = row.turns
    return [Curve(LOADER_NAMES[source], COLOURS[source], found) for source, found in points.items()]


def _draw_parts(rows: Sequence[StudyRow], parts: Sequence[str], scale: float, values: str) -> Figure:
    """Return stacked bars of figures in seconds: a panel for each source and window, a bar for each batch size."""
    panels: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        title = f"{LOADER_NAMES[row.source]}, {_window(row)}"
        found = {part: scale * row.figures[f"{part}_seconds"] for part in parts}
        panels.setdefault(title, {})[f"{row.batch_size:,}"] = found
    return draw_bars(panels, values)


def _window(row: StudyRow) -> str:
    return "whole images" if row.crop is None else f"{row.crop} x {row.crop} crops"


# The place of a row on the horizontal axis, its panel, and the name of the axis.
_LINES: dict[str, tuple[Callable[[StudyRow], float], Callable[[StudyRow], str], str]] = {
    "loading": (lambda row: row.batch_size, _window, "samples in a batch"),
    "training": (lambda row: row.batch_size, _window, "samples in a batch"),
    "threads": (lambda row: row.num_workers, lambda row: f"batches of {row.batch_size}", "threads"),
    "oversubscription": (
        lambda row: row.num_workers, lambda row: f"batches of {row.batch_size}", "threads or worker processes",
    ),
    "isolation": (
        lambda row: row.batch_size, lambda row: f"{row.num_processes} at once", "samples in a batch",
    ),
}  # fmt: skip
