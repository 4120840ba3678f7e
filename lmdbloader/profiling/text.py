"""A profile as people read it: a sentence, tables, the advice."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from lmdbloader.stages import STAGES

if TYPE_CHECKING:
    from lmdbloader.profiling.results import Profile

__all__ = ["as_html", "as_text", "sentence"]

_HOLDS_UP = {
    "storage": "reading from storage",
    "verify": "verifying checksums",
    "decode": "decoding",
    "transform": "the compiled transforms",
    "function": "Python code",
    "cpu": "too little time on the cores",
    "copy": "copying to the device",
}
# A phase or stage that takes less than this share is left out of tables.
_NOT_WORTH_A_LINE = 0.0005
_BAR = 24
# (name, share, cells)
Row = tuple[str, float, tuple[str, ...]]


def sentence(profile: Profile) -> str:
    """Return what a profile comes to in one sentence or two."""
    if profile.is_healthy:
        return f"Loading keeps up: the loop waits for data {profile.stall:.1%} of the time."
    what = _HOLDS_UP[profile.bottleneck]
    if profile.bottleneck == "copy":
        return f"The loop waits for data {profile.stall:.0%} of the time; {what} takes longer."
    return f"The loop waits for data {profile.stall:.0%} of the time, and what holds it up is {what}."


def _phases(profile: Profile) -> list[Row]:
    """Return (name, share, cells) of the phases and of the whole step."""
    found: list[Row] = []
    for name, phase in [*profile.phases.items(), ("step", profile.step)]:
        if name == "step" or phase.share >= _NOT_WORTH_A_LINE:
            cells: tuple[str, ...] = (f"{1000 * phase.mean:.2f}", f"{1000 * phase.p50:.2f}", f"{1000 * phase.p99:.2f}")
            found.append((name, phase.share, (*cells, f"{phase.share:.1%}")))
    return found


def _stages(profile: Profile) -> list[Row]:
    """Return (name, share, cells) of the loader's stages."""
    stages = profile.stages
    if stages is None or not stages.total:
        return []
    found: list[Row] = []
    for name in STAGES:
        seconds = getattr(stages, name)
        share = seconds / stages.total
        if share >= _NOT_WORTH_A_LINE:
            found.append((name, share, (f"{1000 * seconds / profile.num_steps:.2f}", f"{share:.1%}")))
    return found


def _notes(profile: Profile) -> list[str]:
    """Return what is known beside the tables."""
    notes = [
        f"{profile.num_steps:,} steps in {profile.seconds:.2f} s, {profile.samples_per_s:,.0f} samples/s; loaded by "
        f"{profile.loader}, {profile.num_threads} at a time"
    ]
    if profile.loading is not None:
        waits = f"loading took {1000 * profile.loading.running / profile.num_steps:.2f} ms of cores a step, waited "
        waits += f"{1000 * profile.loading.delayed / profile.num_steps:.2f} ms for one"
        if profile.disk_wait is not None:
            waits += f", and {1000 * profile.disk_wait / profile.num_steps:.2f} ms for storage"
        notes.append(waits)
    if profile.gpu is not None:
        use = profile.gpu
        figures = ((use.utilization_percent, "% busy"), (use.power_watts, "W"), (use.memory_mib, "MiB in use"))
        told = [f"{value:,.0f} {what}" for value, what in figures if value is not None]
        notes.append(f"{use.name}: {', '.join(told)}")
    return notes


def as_text(profile: Profile) -> str:
    """Return a profile as plain text."""
    lines = [sentence(profile), str(profile.advice), ""]
    lines.append(f"{'phase':10}{'mean ms':>10}{'p50':>10}{'p99':>10}{'share':>9}")
    for name, share, cells in _phases(profile):
        bar = "" if name == "step" else "  " + "#" * round(share * _BAR)
        lines.append(f"{name:10}" + "".join(f"{cell:>10}" for cell in cells[:-1]) + f"{cells[-1]:>9}{bar}")
    if stages := _stages(profile):
        lines += ["", f"{'loader':10}{'ms a step':>10}{'share':>9}   (of all its threads)"]
        for name, share, (seconds, percent) in stages:
            lines.append(f"{name:10}{seconds:>10}{percent:>9}  {'#' * round(share * _BAR)}".rstrip())
    return "\n".join([*lines, "", *_notes(profile)])


def as_html(profile: Profile) -> str:
    """Return a profile as HTML for notebooks, which bring their own style."""

    def table(header: tuple[str, ...], rows: list[Row]) -> str:
        lines = ["<tr>" + "".join(f"<th>{cell}</th>" for cell in header) + "<th></th></tr>"]
        for name, share, cells in rows:
            width = 0 if name == "step" else round(160 * share)
            bar = f'<div style="background:#2a7fb8;height:0.8em;width:{width}px"></div>'
            lines.append(
                f"<tr><th>{escape(name)}</th>" + "".join(f"<td>{cell}</td>" for cell in cells) + f"<td>{bar}</td></tr>"
            )
        return f"<table>{''.join(lines)}</table>"

    parts = [f"<p><b>{escape(sentence(profile))}</b> {escape(str(profile.advice))}</p>"]
    parts.append(table(("phase", "mean ms", "p50", "p99", "share"), _phases(profile)))
    if stages := _stages(profile):
        parts.append(table(("loader", "ms a step", "share"), stages))
    parts.append(f"<p>{'<br>'.join(escape(note) for note in _notes(profile))}</p>")
    return "".join(parts)
