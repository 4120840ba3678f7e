"""Draws charts with matplotlib, of studies and others."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmdbloader.base.files import replacing
from lmdbloader.base.stage_times import STAGES
from lmdbloader.errors import OptionError
from lmdbloader.lab.arms import LOADER_NAMES, LoaderKind
from lmdbloader.lab.formatting import number
from lmdbloader.lab.study.results import Study, StudyRow

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter
except ModuleNotFoundError as error:
    raise OptionError(
        "charts are drawn with matplotlib, which is not installed. Install the extra: "
        'pip install "lmdbloader[report]", in a clone pip install ".[report]"'
    ) from error

COLORS: dict[LoaderKind, str] = {"lmdbloader": "#1763b6", "dataloader": "#c2571a", "folder": "#6b7280"}
_WIDTH, _HEIGHT = 9.0, 3.2
# An axis is in powers of ten if its values differ by more.
_WIDE = 20


def write_charts(study: Study, path: str | os.PathLike[str]) -> None:
    """Write a study's charts as a PDF file, one on each page; an existing file is replaced at the end.

    Args:
        study: The study.
        path: Of the file.

    Raises:
        OSError: It cannot be written.
        DiskFullError: The disk is full.
    """
    with replacing(Path(path)) as hidden, PdfPages(hidden, metadata={"Title": study.facts["dataset"]}) as pages:
        for figure in draw(study).values():
            pages.savefig(figure)


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a chart.

    Attributes:
        label: In the legend.
        color: Of the line.
        points: For each place on the horizontal axis, in any order, the turns: their median is the point, their range a
            bar.
    """

    label: str
    color: str
    points: Mapping[float, Sequence[float]]


def draw(study: Study) -> dict[str, Figure]:
    """Return the charts of a study, by the names of its sections."""
    found: dict[str, Figure] = {}
    rows = study.section("loading")
    by_workers = len({row.batch_size for row in rows}) == 1
    panels: dict[str, dict[LoaderKind, dict[float, Sequence[float]]]] = {}
    # Of several numbers of workers the fastest counts, unless they are the places.
    for row in sorted(rows, key=lambda row: row.samples_per_s):
        title = f"{_window(row)}, {row.num_processes} at once"
        place = row.num_workers if by_workers else row.batch_size
        panels.setdefault(title, {}).setdefault(row.source, {})[place] = row.turns
    places = {place for panel in panels.values() for points in panel.values() for place in points}
    if panels and len(places) == 1:  # a line of one point shows nothing
        found["loading"] = draw_bars(
            {
                title: {
                    LOADER_NAMES[source].replace(" (", "\n("): {"": statistics.median(*panel[source].values())}
                    for source in COLORS
                    if source in panel
                }
                for title, panel in sorted(panels.items())
            },
            "samples/s",
        )
    elif panels:
        curves = {
            title: [Curve(LOADER_NAMES[source], COLORS[source], panel[source]) for source in COLORS if source in panel]
            for title, panel in sorted(panels.items())
        }
        label = "threads or worker processes" if by_workers else "samples in a batch"
        found["loading"] = draw_lines(curves, "samples/s", label)
    if rows := tuple(row for row in rows if "read_seconds" in row.figures):
        found["stages"] = _draw_stages(rows)
    if study.section("cold"):
        titles = {"cold": "from a cold page cache", "warm": "the same again, from memory"}
        found["cold"] = draw_bars({titles[name]: _bars(study.section(name)) for name in titles}, "samples/s")
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
            points = sorted(curve.points.items())
            middles = [statistics.median(turns) for _, turns in points]
            below = [middle - min(turns) for middle, (_, turns) in zip(middles, points, strict=True)]
            above = [max(turns) - middle for middle, (_, turns) in zip(middles, points, strict=True)]
            axes.errorbar(
                [xs.index(x) for x, _ in points], middles, (below, above), label=curve.label, color=curve.color,
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
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure((_WIDTH, _HEIGHT * rows), layout="constrained")
    grid: list[Axes] = figure.subplots(rows, columns, squeeze=False, sharey="row").ravel().tolist()
    for unneeded in grid[len(panels) :]:
        unneeded.remove()
    for axes, title in zip(grid, panels, strict=False):
        axes.set_title(title, loc="left", fontsize="medium")
        axes.grid(visible=True, axis="y", alpha=0.3)
    return figure, grid[: len(panels)]


def _add_legend(figure: Figure, grid: Sequence[Axes]) -> None:
    """Write each label of the panels once, above them."""
    found = {}
    for axes in grid:
        found.update(dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True)))
    if len(found) > 1:
        figure.legend(found.values(), found.keys(), loc="outside upper left", ncols=min(len(found), 6), frameon=False)


def _draw_stages(rows: Sequence[StudyRow]) -> Figure:
    """Return a panel for each source and window, with a bar for each batch size."""
    panels: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        found = {stage: 1e6 * row.figures[f"{stage}_seconds"] for stage in STAGES}
        panels.setdefault(f"{LOADER_NAMES[row.source]}, {_window(row)}", {})[f"{row.batch_size:,}"] = found
    return draw_bars(panels, "µs a sample")


def _bars(rows: Sequence[StudyRow]) -> dict[str, dict[str, float]]:
    """Return a bar for each row, without parts."""
    return {f"{LOADER_NAMES[row.source]}\n{row.order}".replace(" (", "\n("): {"": row.samples_per_s} for row in rows}


def _window(row: StudyRow) -> str:
    return "whole images" if row.crop is None else f"{row.crop} x {row.crop} crops"
