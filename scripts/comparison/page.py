"""Shows a comparison as a page: its charts, which need matplotlib, next to the findings."""

from __future__ import annotations

from functools import partial

from comparison import findings
from comparison.findings import MODEL_NAMES
from comparison.report import notes
from comparison.results import Results
from comparison.settings import ARMS, SWEEPS
from lmdbloader.lab.formatting import number, seconds
from lmdbloader.lab.reporting import Page, PageSection
from lmdbloader.lab.reporting.canvas import Canvas, Chart, amounts, bar_style, categories, heading, line_style, lines
from lmdbloader.lab.reporting.charts import stack
from lmdbloader.lab.reporting.style import PHASES, SOURCES, settings
from lmdbloader.lab.study.rows import LOADER_NAMES

_HEIGHT = 240
_BAR_WIDTH = 0.7


def page_of(results: Results) -> Page:
    """Return a comparison as a page."""
    models = " and ".join(MODEL_NAMES[model] for model in results.plan.base)
    return Page(
        title=f"{models}: image files or LMDB?",
        subject=f"{models}, trained from image files and from LMDB",
        headline=findings.headline(results),
        findings=findings.summary(results),
        sections=tuple(
            PageSection(section, partial(_draw, results, section.name)) for section in findings.sections(results)
        ),
        facts=tuple(results.facts),
        notes=notes(results),
        created=results.created,
        release=results.release,
    )


def _draw(results: Results, name: str, narrow: bool) -> Chart:
    kind, model = name.rsplit("-", 1)
    if kind == "runs":
        return _draw_runs(results, model, narrow)
    return _draw_steps(results, model, narrow) if kind == "steps" else _draw_sweep(results, model, kind, narrow)


def _draw_runs(results: Results, model: str, narrow: bool) -> Chart:
    is_classifier = results.setting(model).is_classifier
    factor, unit = (100, "% of images named right") if is_classifier else (1, "dB of PSNR")
    with settings():
        canvas = Canvas(
            "", f"{unit.capitalize() if is_classifier else unit}, after each epoch, over seconds of training",
            [SOURCES[arm] for arm in ARMS], panels=1, in_a_row=1, panel_height=_HEIGHT, narrow=narrow, titled=False,
        )  # fmt: skip
        (axes,) = canvas.panels
        for order, arm in enumerate(reversed(ARMS)):
            for run in results.runs_of(model, arm):
                taken, points = 0.0, []
                for epoch in run:
                    taken += epoch.seconds
                    points.append((taken, factor * epoch.score))
                style = {**line_style(SOURCES[arm]), "linewidth": 1.2, "markersize": 3.5}
                axes.plot(*zip(*points, strict=True), **style, zorder=10 - order)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: seconds(value) if value else "0")
        axes.yaxis.set_major_formatter(lambda value, _: number(value))
        return canvas.finish()


def _draw_sweep(results: Results, model: str, name: str, narrow: bool) -> Chart:
    sweep = SWEEPS[name]
    values = findings.values_of(results, model, sweep)
    places = {place: i for i, place in enumerate(dict.fromkeys(value.place for value in values))}
    names = {value.place: value.name for value in values}
    arms = [arm for arm in ARMS if any(value.arm == arm for value in values)]
    with settings():
        canvas = Canvas(
            "", f"Samples per second of training, by {sweep.thing}", [SOURCES[arm] for arm in arms],
            panels=1, in_a_row=1, panel_height=_HEIGHT, narrow=narrow, titled=False,
        )  # fmt: skip
        (axes,) = canvas.panels
        amounts(axes, max(value.samples_per_s for value in values))
        categories(axes, [names[place] for place in places], canvas.panel_width)
        lines(
            canvas, axes,
            {
                SOURCES[arm]: [(float(places[v.place]), v.samples_per_s) for v in values if v.arm == arm]
                for arm in arms
            },
        )  # fmt: skip
        return canvas.finish()


def _draw_steps(results: Results, model: str, narrow: bool) -> Chart:
    """Draw a bar for each batch size, split by phase: a panel for each source."""
    values = findings.values_of(results, model, SWEEPS["batch-size"])
    arms = [arm for arm in ARMS if any(value.arm == arm for value in values)]
    with settings():
        canvas = Canvas(
            "", "Milliseconds of a step of training, by samples of a batch", list(PHASES.values()), panels=len(arms),
            in_a_row=1 if narrow else 3, panel_height=_HEIGHT, share_y=True, narrow=narrow, titled=False,
        )  # fmt: skip
        for axes, arm in zip(canvas.panels, arms, strict=True):
            own = [value for value in values if value.arm == arm]
            amounts(axes, max(1000 * value.step for value in values))
            categories(axes, [value.name for value in own], canvas.panel_width, margin=0.6)
            bottoms = [0.0] * len(own)
            for phase, look in PHASES.items():
                heights = [1000 * value.phases[phase] for value in own]
                stack(axes.bar(range(len(own)), heights, _BAR_WIDTH, bottoms, **bar_style(look)))
                bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
            heading(axes, LOADER_NAMES[arm])
        return canvas.finish()
