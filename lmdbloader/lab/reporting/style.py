"""How charts and pages look: each meaning's colours, marker and hatch, and matplotlib's settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from cycler import cycler

from lmdbloader.lab.study.rows import LOADER_NAMES

# One unit of a chart is one CSS pixel if it is shown at its own size: text of 12 stays text of 12 pixels.
UNITS_PER_INCH = 72
_TEXT, _SMALL_TEXT = 12.0, 11.0
# Any will do; the ids in an SVG file then depend on its contents alone.
_SALT = "lmdbloader"


@dataclass(frozen=True, slots=True)
class Look:
    """How one meaning (a source, a phase, a line of the frame) is drawn wherever it appears.

    Attributes:
        label: Its name in legends.
        light: Its colour on a light page, "#rrggbb", and in files. No two meanings share one.
        dark: Its colour on a dark page.
        marker: Of its points, to be recognised without colour; none for bars.
        dash: Of its lines: lengths on and off, in line widths.
        hatch: Of its bars.
    """

    label: str
    light: str
    dark: str
    marker: str = ""
    dash: tuple[float, ...] = ()
    hatch: str = ""


# Blue, orange and grey stay apart for the colour-blind, their markers and dashes for everyone.
SOURCES = {
    "lmdbloader": Look(LOADER_NAMES["lmdbloader"], "#1763b6", "#6cb0ff", marker="o"),
    "dataloader": Look(LOADER_NAMES["dataloader"], "#b8540c", "#f2a35e", marker="s", dash=(5, 1.6)),
    "folder": Look(LOADER_NAMES["folder"], "#6b7078", "#a9b0ba", marker="^", dash=(1.5, 1.5)),
}
# Readers look for the wait for data: red and hatched. The model's own work is in blues.
PHASES = {
    "data": Look("waiting for data", "#d1495b", "#f07f8d", hatch="////"),
    "copy": Look("copy to device", "#b5801f", "#e6bd68", hatch="\\\\\\\\"),
    "forward": Look("forward", "#6394c9", "#4f81ba"),
    "backward": Look("backward", "#3b6ca3", "#86b1e0"),
    "update": Look("update", "#20384f", "#c3daf2"),
}
STAGES = {
    "read": Look("read", "#2f4b7c", "#8fb4f0"),
    "verify": Look("verify", "#6f93be", "#557fb8", hatch="xxxx"),
    "decode": Look("decode", "#a8620f", "#c98832"),
    "transform": Look("transform", "#5b8f7b", "#7fbfa8", hatch="\\\\\\\\"),
    "function": Look("Python functions", "#c94f62", "#ee7a89", hatch="////"),
    "buffer": Look("wait for memory", "#8b9097", "#767c85"),
}
FRAME = {
    "paper": Look("", "#ffffff", "#15181c"),
    "ink": Look("", "#1d2126", "#e8eaed"),
    "muted": Look("", "#5a616a", "#a4acb6"),
    "rule": Look("", "#e2e5e9", "#31373e"),
    "axis": Look("", "#8b929b", "#767e88"),
}


def colours() -> dict[str, Look]:
    """Return every meaning with a colour: the name of its CSS variable (without `--`) and its look."""
    groups = {"source": SOURCES, "phase": PHASES, "stage": STAGES, "frame": FRAME}
    return {f"{group}-{name}": look for group, looks in groups.items() for name, look in looks.items()}


def variables(*, dark: bool) -> str:
    """Return the CSS declarations of all colours.

    >>> "--source-lmdbloader: #1763b6;" in variables(dark=False)
    True
    """
    return " ".join(f"--{name}: {look.dark if dark else look.light};" for name, look in colours().items())


@contextmanager
def settings() -> Iterator[None]:
    """Draw and save within this: with our own settings only, whatever the user's matplotlibrc says."""

    def colour(name: str) -> str:
        return FRAME[name].light

    ours: dict[Any, Any] = {
        "axes.axisbelow": True, "axes.edgecolor": colour("axis"), "axes.facecolor": "none", "axes.grid": True,
        "axes.grid.axis": "y", "axes.labelcolor": colour("muted"), "axes.labelsize": _SMALL_TEXT,
        "axes.linewidth": 1.0, "axes.prop_cycle": cycler(color=[look.light for look in SOURCES.values()]),
        "axes.spines.left": False, "axes.spines.right": False, "axes.spines.top": False,
        "axes.titlecolor": colour("muted"), "axes.titlelocation": "left", "axes.titlepad": 9.0,
        "axes.titlesize": _SMALL_TEXT, "axes.titleweight": "normal", "axes.unicode_minus": True,
        "figure.dpi": 2 * UNITS_PER_INCH, "figure.facecolor": colour("paper"), "figure.titlesize": 14.0,
        "figure.titleweight": "bold", "font.family": ["sans-serif"], "font.sans-serif": ["DejaVu Sans"],
        "font.size": _TEXT, "grid.color": colour("rule"), "grid.linewidth": 1.0, "hatch.linewidth": 0.9,
        "legend.borderaxespad": 0.0, "legend.borderpad": 0.0, "legend.columnspacing": 1.6, "legend.fontsize": _TEXT,
        "legend.frameon": False, "legend.handlelength": 2.4, "legend.handletextpad": 0.6,
        "legend.labelcolor": colour("ink"), "lines.linewidth": 2.0, "lines.markersize": 6.5,
        "lines.scale_dashes": True, "path.simplify": False, "savefig.dpi": 2 * UNITS_PER_INCH,
        "savefig.facecolor": "auto", "svg.fonttype": "none", "svg.hashsalt": _SALT, "text.color": colour("ink"),
        "text.parse_math": False, "xtick.color": colour("axis"), "xtick.labelcolor": colour("muted"),
        "xtick.labelsize": _SMALL_TEXT, "xtick.major.size": 0.0, "xtick.minor.size": 0.0, "xtick.major.pad": 7.0,
        "ytick.color": colour("axis"), "ytick.labelcolor": colour("muted"), "ytick.labelsize": _SMALL_TEXT,
        "ytick.major.size": 0.0, "ytick.minor.size": 0.0,
    }  # fmt: skip
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(ours)
        yield
