"""The charts of a study: one function each, which draws it for a page, a file or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from lmdbloader.errors import OptionError
from lmdbloader.lab.reporting import selection
from lmdbloader.lab.reporting.canvas import (
    Canvas,
    Chart,
    amounts,
    bar_style,
    categories,
    changes,
    durations,
    heading,
    lines,
)
from lmdbloader.lab.reporting.panels import BAR_WIDTH, epoch, epochs, gains, hills, seen, short, sources_by_batch, stack
from lmdbloader.lab.reporting.style import FRAME, PHASES, SOURCES, STAGES, settings
from lmdbloader.lab.reporting.words import window
from lmdbloader.lab.study.results import Study, SweepRow

T = TypeVar("T")
_PANEL_HEIGHT = 230
_UTILISATION = "utilisation, %"


def throughput(study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
    """Draw samples a second by batch size, loading alone: a panel for each crop size, a line for each source.

    Args:
        study: What was measured.
        narrow: Whether for a screen of 400 pixels.
        titled: Whether the chart has its title above it, as it needs where it stands alone.

    Raises:
        OptionError: The study has no such figures.
    """
    sweep = _having(selection.loading(study), "throughput")
    with settings():
        canvas = Canvas(
            "Throughput by batch size", "Samples per second, loading alone, by batch size",
            [SOURCES[source] for source in sweep.sources], narrow=narrow, titled=titled,
            panels=len(sweep.crops), in_a_row=1 if narrow else 2, panel_height=_PANEL_HEIGHT + 24,
        )  # fmt: skip
        for axes, crop in zip(canvas.panels, sweep.crops, strict=True):
            sources_by_batch(canvas, axes, sweep, crop, lambda row: row.samples_per_s)
            heading(axes, window(crop))
        return canvas.finish()


def split(study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
    """Draw the seconds of an epoch of training by what they went into: stacked bars by batch size.

    Above each bar stands the share of the time in which the model waited for data. Arguments and errors are those of
    `throughput`.
    """
    sweep = _having(selection.training(study), "split")
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
    sweep = _having(selection.loading(study), "latency")
    crop = selection.focus(study)[1]
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
    """Draw what the Loader's threads spend their time on: a bar for each crop size at the smallest and largest batch.

    Arguments and errors are those of `throughput`.
    """
    told = [row for row in study.sweep if row.stages]
    sweep = _having(selection.Sweep(tuple(told)), "stages")
    sizes = list(dict.fromkeys((sweep.batch_sizes[0], sweep.batch_sizes[-1])))
    chosen = [row for crop in sweep.crops for size in sizes if (row := sweep.row("lmdbloader", size, crop))]
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
    """Draw samples a second by the number of the Loader's threads, beside what one thread gives times their number.

    Arguments and errors are those of `throughput`.
    """
    rows = sorted(_some(study.threads, "threads"), key=lambda row: row.num_threads)
    first, look = rows[0], SOURCES["lmdbloader"]
    with settings():
        canvas = Canvas(
            "Scaling by threads", f"Samples per second by number of threads, batches of {first.batch_size:,}", [],
            panels=1, in_a_row=1, panel_height=_PANEL_HEIGHT, narrow=narrow, titled=titled,
        )  # fmt: skip
        (axes,) = canvas.panels
        numbers = [row.num_threads for row in rows]
        perfect = [first.samples_per_s * number / first.num_threads for number in numbers]
        amounts(axes, max(*perfect, *(row.samples_per_s for row in rows), 0.0))
        categories(axes, [str(number) for number in numbers], canvas.panel_width)
        measured = [(float(i), row.samples_per_s) for i, row in enumerate(rows)]
        if len(rows) > 1:
            axes.plot(range(len(rows)), perfect, color=FRAME["muted"].light, linestyle=(0, (2, 2)), linewidth=1.2)
            canvas.end(axes, len(rows) - 1, perfect[-1], "in proportion", FRAME["muted"])
        lines(canvas, axes, {look: measured})
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
            "Several processes at once", "Samples per second of all processes together, by batch size",
            [SOURCES[source] for source in sources], narrow=narrow, titled=titled,
            panels=len(counts), in_a_row=1 if narrow else 3, panel_height=_PANEL_HEIGHT - 10, share_y=True,
        )  # fmt: skip
        highest = max(row.samples_per_s for row in rows)
        for axes, count in zip(canvas.panels, counts, strict=True):
            amounts(axes, highest)
            categories(axes, [str(size) for size in sizes], canvas.panel_width)
            curves = {
                SOURCES[source]: sorted(
                    (float(sizes.index(row.batch_size)), row.samples_per_s)
                    for row in rows
                    if row.source == source and row.num_processes == count
                )
                for source in sources
            }
            heading(axes, f"{count} process" + ("es" if count > 1 else ""))
            lines(canvas, axes, curves)
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
        curves = {
            SOURCES[source]: sorted(
                (float(loads.index(row.per_core)), 100 * row.of_one_per_core) for row in rows if row.source == source
            )
            for source in sources
        }
        lines(canvas, axes, curves, "{:,.0f} %".format)
        return canvas.finish()


def memory(study: Study, *, narrow: bool = False, titled: bool = True) -> Chart:
    """Draw how much faster training is from pinned memory than from paged memory, by batch size.

    Arguments and errors are those of `throughput`.
    """
    sweep = _having(selection.both_memories(study), "memory")
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
    sweep = _having(selection.on_gpu(study), "gpu")
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
            heading(axes, name)
        return canvas.finish()


def _having(sweep: selection.Sweep, chart: str) -> selection.Sweep:
    _some(sweep.rows, chart)
    return sweep


def _some(rows: Sequence[T], chart: str) -> Sequence[T]:
    if not rows:
        raise OptionError(f"chart {chart!r}: the study has no figures for it; it was not measured, or cannot be here")
    return rows
