"""The panels that charts are made of: curves by batch size, stacked epochs, distributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.ticker import NullLocator

from lmdbloader.lab.reporting import selection
from lmdbloader.lab.reporting.canvas import LABEL_SIZE, Canvas, amounts, bar_style, categories, line_style, lines
from lmdbloader.lab.reporting.style import FRAME, PHASES, SOURCES, Look
from lmdbloader.lab.reporting.words import percent, seconds
from lmdbloader.lab.study.results import Latency, Phases, Source, SweepRow

BAR_WIDTH = 0.72
# Of a distribution: how high the hill is, and where the words above it stand, of the room that it has.
_HILL, _WORDS = 0.58, 0.76


def short(crop: int | None) -> str:
    """Return what of the images was read, where there is little room."""
    return "whole" if crop is None else f"{crop} px"


def sources_by_batch(
    canvas: Canvas,
    axes: Axes,
    sweep: selection.Sweep,
    crop: int | None,
    value: Callable[[SweepRow], float | None],
) -> None:
    """Draw a figure by batch size, a line for each source."""
    places = {size: float(i) for i, size in enumerate(sweep.batch_sizes)}
    curves = {
        SOURCES[source]: [
            (places[row.batch_size], y) for row in sweep.curve(source, crop) if (y := value(row)) is not None
        ]
        for source in sweep.sources
    }
    amounts(axes, max((y for points in curves.values() for _, y in points), default=0.0))
    categories(axes, [str(size) for size in sweep.batch_sizes], canvas.panel_width)
    lines(canvas, axes, curves)


def gains(sweep: selection.Sweep, source: Source, crop: int | None) -> list[tuple[float, float]]:
    """Return (place of the batch size, how many % faster training is from pinned memory)."""
    speeds = [
        {row.batch_size: row.training.samples_per_s for row in sweep.curve(source, crop, pinned=which) if row.training}
        for which in (True, False)
    ]
    return [
        (float(i), 100 * (speeds[0][size] / speeds[1][size] - 1))
        for i, size in enumerate(sweep.batch_sizes)
        if speeds[0].get(size) and speeds[1].get(size)
    ]


def epoch(row: SweepRow) -> tuple[Phases, float]:
    """Return the phases of a step, and the seconds of an epoch: of the typical turn, which the steps' mean is not."""
    assert row.training is not None
    return row.training.phases, row.training.epoch_seconds


def epochs(axes: Axes, curve: Sequence[SweepRow], sizes: Sequence[int], width: float) -> None:
    """Draw a bar for each batch size: an epoch, split. The panel is `width` pixels wide."""
    named = categories(axes, [str(size) for size in sizes], width, margin=0.6)
    told = [(sizes.index(row.batch_size), *epoch(row)) for row in curve]
    places = [at for at, _, _ in told]
    bottoms = [0.0] * len(told)
    for name, look in PHASES.items():
        parts = [height * getattr(phases, name) / (phases.total or 1.0) for _, phases, height in told]
        stack(axes.bar(places, parts, BAR_WIDTH, bottoms, **bar_style(look)))
        bottoms = [bottom + part for bottom, part in zip(bottoms, parts, strict=True)]
    for at, phases, height in (bar for bar in told if bar[0] in named):
        words = axes.annotate(
            percent(phases.data / (phases.total or 1.0)).removesuffix(" %"), (at, height), (0, 4),
            textcoords="offset points", ha="center", color=FRAME["ink"].light, fontsize=LABEL_SIZE,
        )  # fmt: skip
        words.set_in_layout(False)


def stack(bars: BarContainer) -> None:
    """Keep bars from what the layout looks at, which takes long: they are inside of their panel. Drop empty ones."""
    for bar in bars:
        bar.set_in_layout(False)
        if not (bar.get_width() and bar.get_height()):
            bar.remove()


def seen(latency: Latency) -> tuple[float, ...]:
    """Return the limits of the bins from the first to the last that has a batch in it, and the 99th percentile."""
    filled = [i for i, count in enumerate(latency.counts) if count]
    limits = latency.edges[filled[0] : filled[-1] + 2] if filled else ()
    return tuple(sorted(edge for edge in (*limits, latency.p50_seconds, latency.p99_seconds) if edge > 0)) or (1e-3,)


def hills(axes: Axes, latencies: Mapping[Look, Latency], count: int) -> None:
    """Draw distributions one above the other, each below its name and its percentiles."""
    for i, (look, told) in enumerate(latencies.items()):
        base = count - 1 - i
        highest = max(told.counts, default=0) or 1
        axes.stairs(
            [base + _HILL * bin_count / highest for bin_count in told.counts], told.edges, baseline=base, fill=True,
            facecolor=look.light, alpha=0.35, edgecolor="none",
        )  # fmt: skip
        axes.stairs(
            [base + _HILL * bin_count / highest for bin_count in told.counts], told.edges, baseline=None,
            color=look.light, linewidth=1.3,
        )  # fmt: skip
        axes.plot([told.p50_seconds], [base], **{**line_style(look), "linestyle": "none"}, clip_on=False, zorder=5)
        axes.plot(
            [told.p99_seconds] * 2, [base, base + _HILL], color=look.light, linewidth=1.6, clip_on=False, zorder=5
        )
        line = axes.get_yaxis_transform()
        axes.text(0, base + _WORDS, look.label, transform=line, color=look.light, fontsize=LABEL_SIZE, weight="bold")
        axes.text(
            1, base + _WORDS, f"50 % in {seconds(told.p50_seconds)}, 99 % in {seconds(told.p99_seconds)}",
            transform=line, ha="right", color=FRAME["muted"].light, fontsize=LABEL_SIZE,
        )  # fmt: skip
        axes.axhline(base, color=FRAME["axis"].light, linewidth=1.0)
    axes.set_ylim(-0.12, count + 0.05)
    axes.yaxis.set_major_locator(NullLocator())
    axes.spines["bottom"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
