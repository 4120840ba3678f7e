"""Shows a comparison as a page: its charts, which need matplotlib, next to the findings."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure

from comparison import findings
from comparison.html_page import Page, PageSection
from comparison.report import notes
from comparison.results import Results
from comparison.settings import ARMS, SWEEPS
from lmdbloader.lab.arms import LOADER_NAMES
from lmdbloader.lab.charts import COLORS, Curve, draw_bars, draw_lines


def page_of(results: Results) -> Page:
    """Return a comparison as a page."""
    shown = [
        PageSection(
            section.name, _draw(results, section.name), replace(section.table, caption=section.title),
            [*section.sentences, section.explanation, f"{section.table.caption}."],
        )
        for section in findings.sections(results)
    ]  # fmt: skip
    facts = [*results.facts, ("measured", results.created), ("lmdbloader", results.release)]
    return Page(findings.headline(results), shown, facts, findings.summary(results), notes(results))


def _draw(results: Results, name: str) -> Figure:
    kind, model = name.rsplit("-", 1)
    if kind == "runs":
        return _draw_runs(results, model)
    return _draw_steps(results, model) if kind == "steps" else _draw_sweep(results, model, kind)


def _draw_runs(results: Results, model: str) -> Figure:
    """Draw the scores of all seeds after each epoch, a line for each source."""
    is_classifier = results.setting(model).is_classifier
    curves = []
    for arm in ARMS:
        scores: dict[float, list[float]] = {}
        for run in results.runs_of(model, arm):
            for number, epoch in enumerate(run, 1):
                scores.setdefault(number, []).append(epoch.score * (100 if is_classifier else 1))
        if scores:
            curves.append(Curve(LOADER_NAMES[arm], COLORS[arm], scores))
    return draw_lines({"": curves}, "% of images named right" if is_classifier else "dB of PSNR", "epoch")


def _draw_sweep(results: Results, model: str, name: str) -> Figure:
    """Draw the speed of training by what is varied, a line for each source."""
    sweep = SWEEPS[name]
    values = findings.values_of(results, model, sweep)
    names = list(dict.fromkeys(value.name for value in values))
    curves = []
    for arm in ARMS:
        turns = {float(names.index(v.name)): (v.low, v.samples_per_s, v.high) for v in values if v.arm == arm}
        if turns:
            curves.append(Curve(LOADER_NAMES[arm], COLORS[arm], turns))
    figure = draw_lines({"": curves}, "samples/s of training", sweep.thing)
    figure.axes[0].set_xticks(range(len(names)), names)
    return figure


def _draw_steps(results: Results, model: str) -> Figure:
    """Draw a bar for each batch size, split by phase: a panel for each source."""
    values = findings.values_of(results, model, SWEEPS["batch-size"])
    panels: dict[str, dict[str, dict[str, float]]] = {}
    for value in values:
        parts = {phase: 1000 * seconds for phase, seconds in value.phases.items() if seconds}
        panels.setdefault(LOADER_NAMES[value.arm], {})[value.name] = parts
    return draw_bars(panels, "ms a step")
