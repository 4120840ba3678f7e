"""The charts of a study: one function each, which draws it for a page, a file or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.ticker import NullLocator

from lmdbloader.base.text import counted
from lmdbloader.errors import OptionError
from lmdbloader.lab.formatting import percent, seconds, window
from lmdbloader.lab.reporting.canvas import (
    LABEL_SIZE,
    Canvas,
    Chart,
    amounts,
    bar_style,
    categories,
    changes,
    durations,
    heading,
    is_wide,
    line_style,
    lines,
    scaled,
    whiskers,
)
from lmdbloader.lab.reporting.style import FRAME, PHASES, SOURCES, STAGES, Look, settings
from lmdbloader.lab.study.compare import StudyComparison
from lmdbloader.lab.study.ranges import measured, show_times
from lmdbloader.lab.study.results import Study
from lmdbloader.lab.study.rows import (
    IsolationRow,
    Latency,
    LoaderKind,
    Phases,
    Sweep,
    SweepRow,
    ThreadsRow,
    both_memories,
    focus,
    loading,
    on_gpu,
    stage_rows,
    training,
)

T = TypeVar("T")
_PANEL_HEIGHT = 230
_UTILISATION = "utilisation, %"


def throughput(study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
    """Draw samples a second by batch size, loading alone: a panel for each crop size, a line for each source.

    Args:
        study: The study.
        narrow: Whether for a screen of 400 pixels.
        titled: Whether the chart has its title above it, as it needs if it stands alone.

    Raises:
        OptionError: The study has no such figures.
    """
    sweep = _having(loading(study), "throughput")
    with settings():
        canvas = Canvas(
            "Throughput by batch size",
            "Samples per second, loading alone, by batch size" + _axis(_spans(sweep, lambda row: row.samples_per_s)),
            [SOURCES[source] for source in sweep.sources], narrow=narrow, titled=titled,
            panels=len(sweep.crops), in_a_row=1 if narrow else 2, panel_height=_PANEL_HEIGHT + 24,
        )  # fmt: skip
        for axes, crop in zip(canvas.panels, sweep.crops, strict=True):
            last = {source: sweep.curve(source, crop)[-1:] for source in sweep.sources}
            ends = {SOURCES[source]: _end(row) for source, rows in last.items() for row in rows}
            sources_by_batch(canvas, axes, sweep, crop, lambda row: row.samples_per_s, ends)
            whiskers(
                axes,
                {
                    SOURCES[source]: [
                        (float(sweep.batch_sizes.index(row.batch_size)), *turns_of(row.turns))
                        for row in sweep.curve(source, crop)
                    ]
                    for source in sweep.sources
                },
            )
            heading(axes, window(crop))
        return canvas.finish()


def split(study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
    """Draw the seconds of an epoch of training by phase: stacked bars by batch size.

    Above each bar stands the share of the time in which the model waited for data. Arguments and errors are those of
    `throughput`.
    """
    sweep = _having(training(study), "split")
    crops, sources = sweep.crops, sweep.sources
    # On a narrow screen a source is a row, unless there are too many crops to stand side by side.
    pairs = [(c, s) for s in sources for c in crops] if narrow else [(c, s) for c in crops for s in sources]
    in_a_row = (len(crops) if len(crops) <= 2 else 1) if narrow else len(sources)
    with settings():
        canvas = Canvas(
            "Where the time of an epoch goes",
            "Seconds for an epoch of training, by batch size; above each bar: % of the time spent waiting for data",
            list(PHASES.values()), narrow=narrow, titled=titled,
            panels=len(pairs), in_a_row=in_a_row, panel_height=208 if narrow else 220,
        )  # fmt: skip
        for axes, (crop, source) in zip(canvas.panels, pairs, strict=True):
            epochs(axes, sweep.curve(source, crop), sweep.batch_sizes, canvas.panel_width)
            amounts(axes, 1.06 * max(epoch(row)[1] for row in sweep.rows if row.crop == crop))
            names = [SOURCES[source].label, *([short(crop)] if len(crops) > 1 else [])]
            heading(axes, ("\n" if narrow and in_a_row > 1 else ", ").join(names))
        return canvas.finish()


def latency(study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
    """Draw how long the loop waited for a batch, loading alone: distributions at the smallest and the largest size.

    Arguments and errors are those of `throughput`.
    """
    sweep = _having(loading(study), "latency")
    crop = focus(study)[1]
    sizes = list(dict.fromkeys((sweep.batch_sizes[0], sweep.batch_sizes[-1])))
    with settings():
        canvas = Canvas(
            "Waiting for a batch",
            f"Distribution of the wait, loading alone, {window(crop)}; point: median, line: 99 % are faster",
            [], narrow=narrow, titled=titled,
            panels=len(sizes), in_a_row=1 if narrow else 2, panel_height=62 * len(sweep.sources) + 62,
        )  # fmt: skip
        rows = [row for source in sweep.sources for row in sweep.curve(source, crop) if row.batch_size in sizes]
        shortest = min((seen(row.latency)[0] for row in rows), default=1e-3)
        longest = max((seen(row.latency)[-1] for row in rows), default=1.0)
        for axes, size in zip(canvas.panels, sizes, strict=True):
            found = {s: sweep.row(s, size, crop) for s in sweep.sources}
            hills(axes, {SOURCES[s]: row.latency for s, row in found.items() if row}, len(sweep.sources))
            durations(axes, shortest / 1.15, longest * 1.15)
            heading(axes, f"batches of {size:,}")
        return canvas.finish()


def stages(study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
    """Draw the time of the Loader's threads by stage: a bar for each crop size at the smallest and largest batch.

    Arguments and errors are those of `throughput`.
    """
    chosen = list(_some(stage_rows(study), "stages"))
    with settings():
        canvas = Canvas(
            "Where the Loader's time goes", "Microseconds of thread time for each sample", list(STAGES.values()),
            panels=1, in_a_row=1, panel_height=34 * len(chosen) + 36, narrow=narrow, titled=titled,
        )  # fmt: skip
        (axes,) = canvas.panels
        chosen.reverse()  # bars are counted from below
        lefts = [0.0] * len(chosen)
        for name, look in STAGES.items():
            widths = [1e6 * (row.stages or {}).get(name, 0.0) for row in chosen]
            stack(axes.barh(range(len(chosen)), widths, BAR_WIDTH, lefts, **bar_style(look)))
            lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
        axes.set_yticks(range(len(chosen)), [f"{short(row.crop)}, batches of {row.batch_size:,}" for row in chosen])
        axes.set_xlim(0, max(lefts) * 1.05 or 1.0)
        axes.set_ylim(-0.6, len(chosen) - 0.4)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.spines["bottom"].set_visible(False)
        return canvas.finish()


def threads(study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
    """Draw samples a second by the number of the Loader's threads, and the speed of one thread times their number.

    Arguments and errors are those of `throughput`.
    """
    rows = sorted(_some(study.threads, "threads"), key=lambda row: row.num_threads)
    first, look = rows[0], SOURCES["lmdbloader"]
    numbers = [row.num_threads for row in rows]
    perfect = [first.samples_per_s * number / first.num_threads for number in numbers]
    reached = [*perfect, *(row.samples_per_s for row in rows)]
    with settings():
        canvas = Canvas(
            "Scaling by threads",
            f"Samples per second by number of threads, batches of {first.batch_size:,}" + _axis([reached]), [],
            panels=1, in_a_row=1, panel_height=_PANEL_HEIGHT, narrow=narrow, titled=titled,
        )  # fmt: skip
        (axes,) = canvas.panels
        scaled(axes, reached)
        whiskers(axes, {look: [(float(i), *turns_of(row.turns)) for i, row in enumerate(rows)]})
        categories(axes, [str(number) for number in numbers], canvas.panel_width)
        points = [(float(i), row.samples_per_s) for i, row in enumerate(rows)]
        if len(rows) > 1:
            axes.plot(range(len(rows)), perfect, color=FRAME["muted"].light, linestyle=(0, (2, 2)), linewidth=1.2)
            canvas.end(axes, len(rows) - 1, perfect[-1], "in proportion", FRAME["muted"])
        lines(canvas, axes, {look: points}, ends={look: _end(rows[-1])})
        return canvas.finish()


def isolation(study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
    """Draw samples a second of several processes together by batch size, a panel for each number of processes.

    Arguments and errors are those of `throughput`.
    """
    rows = _some(study.isolation, "isolation")
    counts = sorted({row.num_processes for row in rows})
    sizes = sorted({row.batch_size for row in rows})
    sources = [source for source in SOURCES if any(row.source == source for row in rows)]
    with settings():
        canvas = Canvas(
            "Several processes at once",
            "Samples per second of all processes together, by batch size"
            + _axis([[row.samples_per_s for row in rows]]),
            [SOURCES[source] for source in sources], narrow=narrow, titled=titled,
            panels=len(counts), in_a_row=1 if narrow else 3, panel_height=_PANEL_HEIGHT - 10, share_y=True,
        )  # fmt: skip
        for axes, count in zip(canvas.panels, counts, strict=True):
            scaled(axes, [row.samples_per_s for row in rows])
            categories(axes, [str(size) for size in sizes], canvas.panel_width)
            whiskers(
                axes,
                {
                    SOURCES[source]: [
                        (float(sizes.index(row.batch_size)), *turns_of(row.turns))
                        for row in rows
                        if row.source == source and row.num_processes == count
                    ]
                    for source in sources
                },
            )
            curves = {
                SOURCES[source]: sorted(
                    (float(sizes.index(row.batch_size)), row.samples_per_s)
                    for row in rows
                    if row.source == source and row.num_processes == count
                )
                for source in sources
            }
            over = ", more than cores" if count > study.cores else ""
            heading(axes, f"{count} process" + ("es" if count > 1 else "") + over)
            here = sorted((row for row in rows if row.num_processes == count), key=lambda row: row.batch_size)
            lines(canvas, axes, curves, ends={SOURCES[row.source]: _end(row) for row in here})
        return canvas.finish()


def oversubscription(study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
    """Draw the speed with more threads or workers than cores, as a share of the speed with one for each core.

    Arguments and errors are those of `throughput`.
    """
    rows = _some(study.oversubscription, "oversubscription")
    loads = sorted({row.per_core for row in rows})
    sources = [source for source in SOURCES if any(row.source == source for row in rows)]
    with settings():
        canvas = Canvas(
            "More workers than cores",
            "Speed by threads or workers for each core, in % of that with one for each; "
            f"batches of {rows[0].batch_size:,}",
            [SOURCES[source] for source in sources], narrow=narrow, titled=titled,
            panels=1, in_a_row=1, panel_height=_PANEL_HEIGHT,
        )  # fmt: skip
        (axes,) = canvas.panels
        amounts(axes, max(100.0, *(100 * row.of_one_per_core for row in rows)), unit=" %")
        categories(axes, [f"{load:g}" for load in loads], canvas.panel_width)
        beyond = [i for i, load in enumerate(loads) if load > 1]
        if beyond:
            axes.axvspan(beyond[0] - 0.5, len(loads) - 1 + 0.35, color=FRAME["rule"].light, alpha=0.5, linewidth=0)
            axes.annotate(
                f"more than the {counted(study.cores, 'core')}", (beyond[0] - 0.5, 0), (6, 8),
                textcoords="offset points", color=FRAME["muted"].light, fontsize=LABEL_SIZE,
            )  # fmt: skip
        curves = {
            SOURCES[source]: sorted(
                (float(loads.index(row.per_core)), 100 * row.of_one_per_core) for row in rows if row.source == source
            )
            for source in sources
        }
        lines(canvas, axes, curves, "{:,.0f} %".format)
        return canvas.finish()


def cold(study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
    """Draw samples a second from a cold and from a warm page cache, in random order, a line for each source.

    Arguments and errors are those of `throughput`.
    """
    rows = [row for row in _some(study.cold, "cold") if row.order == "random"]
    speeds = [speed for row in rows for speed in (row.cold_samples_per_s, row.warm_samples_per_s)]
    with settings():
        canvas = Canvas(
            "From a cold page cache",
            f"Samples per second from storage and from memory, batches of {rows[0].batch_size:,}, "
            f"{window(rows[0].crop)}{_axis([speeds])}",
            [SOURCES[row.source] for row in rows], narrow=narrow, titled=titled,
            panels=1, in_a_row=1, panel_height=_PANEL_HEIGHT,
        )  # fmt: skip
        (axes,) = canvas.panels
        scaled(axes, speeds)
        whiskers(
            axes,
            {SOURCES[row.source]: [(0.0, *turns_of(row.cold_turns)), (1.0, *turns_of(row.warm_turns))] for row in rows},
        )
        categories(axes, ["cold", "warm"], canvas.panel_width)
        lines(
            canvas, axes,
            {SOURCES[row.source]: [(0.0, row.cold_samples_per_s), (1.0, row.warm_samples_per_s)] for row in rows},
            ends={SOURCES[row.source]: str(measured(row.warm_samples_per_s, row.warm_turns)) for row in rows},
        )  # fmt: skip
        return canvas.finish()


def memory(study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
    """Draw how much faster training is from pinned memory than from paged memory, by batch size.

    Arguments and errors are those of `throughput`.
    """
    sweep = _having(both_memories(study), "memory")
    with settings():
        canvas = Canvas(
            "Pinned or paged memory",
            "How much faster training is from pinned memory than from paged memory, in %, by batch size",
            [SOURCES[source] for source in sweep.sources], narrow=narrow, titled=titled,
            panels=len(sweep.crops), in_a_row=1 if narrow else 2, panel_height=_PANEL_HEIGHT,
        )  # fmt: skip
        for axes, crop in zip(canvas.panels, sweep.crops, strict=True):
            curves = {SOURCES[source]: gains(sweep, source, crop) for source in sweep.sources}
            changes(axes, [y for points in curves.values() for _, y in points])
            categories(axes, [str(size) for size in sweep.batch_sizes], canvas.panel_width)
            lines(canvas, axes, curves, "{:+,.1f} %".format)
            heading(axes, window(crop))
        return canvas.finish()


def gpu(study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
    """Draw the GPU's utilisation, power and memory while training, by batch size.

    Arguments and errors are those of `throughput`.
    """
    sweep = _having(on_gpu(study), "gpu")
    crop = sweep.crops[-1]
    columns: dict[str, Callable[[SweepRow], float | None]] = {
        _UTILISATION: lambda row: row.training.gpu.utilisation_percent,  # type: ignore[union-attr]
        "power, W": lambda row: row.training.gpu.power_watts,  # type: ignore[union-attr]
        "most memory, MiB": lambda row: row.training.gpu.memory_mib,  # type: ignore[union-attr]
    }
    with settings():
        canvas = Canvas(
            "The GPU while training", f"Means over the training, by batch size, {window(crop)}; memory: the most",
            [SOURCES[source] for source in sweep.sources], narrow=narrow, titled=titled,
            panels=len(columns), in_a_row=1 if narrow else 3, panel_height=_PANEL_HEIGHT - 15,
        )  # fmt: skip
        for axes, (name, value) in zip(canvas.panels, columns.items(), strict=True):
            sources_by_batch(canvas, axes, sweep, crop, value)
            if name == _UTILISATION:
                amounts(axes, 100.0)
            heading(axes, f"{name} (logarithmic)" if axes.get_yscale() == "log" else name)
        return canvas.finish()


def ratios(found: StudyComparison, section: str, *, narrow: bool = False, titled: bool = True) -> Chart:
    """Draw how many times as fast the second of two studies is: a panel for each group, a line for each source.

    Arguments and errors are those of `throughput`; `section` is the name of one of the comparison's.
    """
    rows = _some([row for row in found.rows if row.section == section], section)
    groups = list(dict.fromkeys(row.group for row in rows))
    sources = [source for source in SOURCES if any(row.source == source for row in rows)]
    is_log = is_wide([row.times.value for row in rows])
    with settings():
        canvas = Canvas(
            "Two studies compared",
            "How many times as fast the second study is; vertical lines: what the turns allow"
            + ("; logarithmic axis" if is_log else ""),
            [SOURCES[source] for source in sources], narrow=narrow, titled=titled,
            panels=len(groups), in_a_row=1 if narrow else 2, panel_height=_PANEL_HEIGHT,
        )  # fmt: skip
        values = [value for row in rows for value in (row.times.low, row.times.high, 1.0)]
        for axes, group in zip(canvas.panels, groups, strict=True):
            here = [row for row in rows if row.group == group]
            places = sorted({row.place for row in here}, key=int)
            scaled(axes, values, is_log=is_log)
            categories(axes, places, canvas.panel_width)
            axes.axhline(1.0, color=FRAME["axis"].light, linewidth=1.0, zorder=1)
            at = {place: float(i) for i, place in enumerate(places)}
            curves = {SOURCES[s]: [(at[r.place], r.times) for r in here if r.source == s] for s in sources}
            whiskers(axes, {look: [(x, t.low, t.high) for x, t in points] for look, points in curves.items()})
            ends = {look: show_times(points[-1][1]).removesuffix(" times") for look, points in curves.items() if points}
            lines(canvas, axes, {look: [(x, t.value) for x, t in points] for look, points in curves.items()}, ends=ends)
            heading(axes, group)
        return canvas.finish()


def _having(sweep: Sweep, chart: str) -> Sweep:
    _some(sweep.rows, chart)
    return sweep


def _some(rows: Sequence[T], chart: str) -> Sequence[T]:
    if not rows:
        raise OptionError(f"chart {chart!r}: the study has no figures for it; it was not measured, or cannot be here")
    return rows


def _spans(sweep: Sweep, value: Callable[[SweepRow], float | None]) -> list[list[float]]:
    """Return the values of each panel, one for each crop."""
    return [
        [y for source in sweep.sources for row in sweep.curve(source, crop) if (y := value(row)) is not None]
        for crop in sweep.crops
    ]


def _axis(panels: Sequence[Sequence[float]]) -> str:
    """Return words for the subtitle if an axis is in powers of ten."""
    return "; logarithmic axis" if any(map(is_wide, panels)) else ""


def _end(row: SweepRow | ThreadsRow | IsolationRow) -> str:
    """Return the speed of a row with the digits that its turns agree on."""
    return str(measured(row.samples_per_s, row.turns))


def turns_of(turns: Sequence[float]) -> tuple[float, float]:
    """Return the slowest and the fastest turn; zeros if that is not known."""
    return (min(turns), max(turns)) if len(turns) > 1 else (0.0, 0.0)


BAR_WIDTH = 0.72
# Of a distribution: how high the hill is, and where the words above it stand, of the room that it has.
_HILL, _WORDS = 0.58, 0.76


def short(crop: int | None) -> str:
    """Return a window of images in few letters."""
    return "whole" if crop is None else f"{crop} px"


def sources_by_batch(
    canvas: Canvas,
    axes: Axes,
    sweep: Sweep,
    crop: int | None,
    value: Callable[[SweepRow], float | None],
    ends: Mapping[Look, str] | None = None,
) -> None:
    """Draw a figure by batch size, a line for each source; `ends` are words at the end of lines."""
    places = {size: float(i) for i, size in enumerate(sweep.batch_sizes)}
    curves = {
        SOURCES[source]: [
            (places[row.batch_size], y) for row in sweep.curve(source, crop) if (y := value(row)) is not None
        ]
        for source in sweep.sources
    }
    # All panels have the same kind of axis.
    is_log = any(map(is_wide, _spans(sweep, value)))
    scaled(axes, [y for points in curves.values() for _, y in points], is_log=is_log)
    categories(axes, [str(size) for size in sweep.batch_sizes], canvas.panel_width)
    lines(canvas, axes, curves, ends=ends)


def gains(sweep: Sweep, source: LoaderKind, crop: int | None) -> list[tuple[float, float]]:
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
    bars = [(sizes.index(row.batch_size), *epoch(row)) for row in curve]
    places = [at for at, _, _ in bars]
    bottoms = [0.0] * len(bars)
    for name, look in PHASES.items():
        parts = [height * getattr(phases, name) / (phases.total or 1.0) for _, phases, height in bars]
        stack(axes.bar(places, parts, BAR_WIDTH, bottoms, **bar_style(look)))
        bottoms = [bottom + part for bottom, part in zip(bottoms, parts, strict=True)]
    for at, phases, height in (bar for bar in bars if bar[0] in named):
        words = axes.annotate(
            percent(phases.data / (phases.total or 1.0)).removesuffix(" %"), (at, height), (0, 4),
            textcoords="offset points", ha="center", color=FRAME["ink"].light, fontsize=LABEL_SIZE,
        )  # fmt: skip
        words.set_in_layout(False)


def stack(bars: BarContainer) -> None:
    """Keep bars out of the layout, which takes long: they are inside their panel. Drop empty ones."""
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
    for i, (look, latency) in enumerate(latencies.items()):
        base = count - 1 - i
        highest = max(latency.counts, default=0) or 1
        axes.stairs(
            [base + _HILL * bin_count / highest for bin_count in latency.counts], latency.edges, baseline=base,
            fill=True, facecolor=look.light, alpha=0.35, edgecolor="none",
        )  # fmt: skip
        axes.stairs(
            [base + _HILL * bin_count / highest for bin_count in latency.counts], latency.edges, baseline=None,
            color=look.light, linewidth=1.3,
        )  # fmt: skip
        axes.plot([latency.p50_seconds], [base], **{**line_style(look), "linestyle": "none"}, clip_on=False, zorder=5)
        axes.plot(
            [latency.p99_seconds] * 2, [base, base + _HILL], color=look.light, linewidth=1.6, clip_on=False, zorder=5
        )
        line = axes.get_yaxis_transform()
        axes.text(0, base + _WORDS, look.label, transform=line, color=look.light, fontsize=LABEL_SIZE, weight="bold")
        axes.text(
            1, base + _WORDS, f"50 % in {seconds(latency.p50_seconds)}, 99 % in {seconds(latency.p99_seconds)}",
            transform=line, ha="right", color=FRAME["muted"].light, fontsize=LABEL_SIZE,
        )  # fmt: skip
        axes.axhline(base, color=FRAME["axis"].light, linewidth=1.0)
    axes.set_ylim(-0.12, count + 0.05)
    axes.yaxis.set_major_locator(NullLocator())
    axes.spines["bottom"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")


class Draw(Protocol):
    """A function that draws a chart."""

    def __call__(self, study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
        """Draw a chart."""


CHARTS: dict[str, Draw] = {
    "throughput": throughput, "split": split, "latency": latency, "stages": stages, "threads": threads,
    "isolation": isolation, "oversubscription": oversubscription, "cold": cold, "memory": memory,
    "gpu": gpu,
}  # fmt: skip
"""The charts, by the name of their section."""
