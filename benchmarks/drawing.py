"""Charts of the documentation: matplotlib's, as drawings whose text and frame take the color of their page."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

# Of text and frames; in a drawing it becomes the page's color. Other colors are seen on light and on dark pages.
INK = "#1d2126"
LOADER, DATALOADER, FOLDER, FFCV, OTHER = "#2f7fd6", "#c9662a", "#808891", "#9a62d6", "#7f9a3c"
_SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": INK, "axes.facecolor": "none", "axes.labelcolor": INK, "axes.spines.right": False,
    "axes.spines.top": False, "axes.titlelocation": "left", "figure.facecolor": "none", "font.size": 10.0,
    "legend.frameon": False, "savefig.facecolor": "none", "svg.fonttype": "none", "svg.hashsalt": "lmdbloader",
    "text.color": INK, "xtick.color": INK, "ytick.color": INK,
}  # fmt: skip
# In a file of its own a drawing follows the system; the documentation puts it into pages, which have a switch.
_STYLE = """<style>
.drawing { font: 14px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; color: #1d2126 }
@media (prefers-color-scheme: dark) { svg.drawing:root { color: #e8eaed } }
[data-md-color-scheme="slate"] .drawing { color: #e8eaed }
</style>"""


@dataclass(frozen=True, slots=True)
class Look:
    """How something looks in every chart.

    Attributes:
        label: In the legend.
        color: Of its line.
        marker, style: Of its line, in matplotlib's words.
    """

    label: str
    color: str
    marker: str = "o"
    style: str = "-"

    @property
    def line(self) -> dict[str, Any]:
        """Options of matplotlib for a line."""
        return {"color": self.color, "marker": self.marker, "linestyle": self.style, "markersize": 5}


def begin(
    subtitle: str, titles: Sequence[str], looks: Sequence[Look], *, columns: int = 1, height: float = 2.6
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each title.

    Args:
        subtitle: The quantity and its unit, above all panels.
        titles: Of the panels.
        looks: Of the legend; a single one needs none.
        columns: Panels in a row.
        height: Of a panel, in inches.
    """
    with matplotlib.rc_context(_SETTINGS):
        rows = -(-len(titles) // columns)
        figure = Figure((7.5, height * rows + 0.6), layout="constrained")
        figure.suptitle(subtitle, x=0.01, ha="left", fontsize=10)
        panels: list[Axes] = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title, fontsize=10.5)
            axes.grid(visible=True, axis="y", color=INK, alpha=0.15)
        if len(looks) > 1:
            handles = [Line2D([], [], **look.line, label=look.label) for look in looks]
            figure.legend(handles=handles, loc="outside lower left", ncols=min(len(handles), 4))
    return figure, panels


def draw_lines(axes: Axes, curves: Mapping[Look, Sequence[tuple[float, float]]], *, is_log: bool = False) -> None:
    """Draw lines over evenly spaced places, with the last value of each at its end."""
    places = sorted({x for points in curves.values() for x, _ in points})
    for look, points in curves.items():
        at = [places.index(x) for x, _ in points]
        axes.plot(at, [y for _, y in points], **look.line)
        axes.annotate(
            f"{points[-1][1]:,.0f}", (at[-1], points[-1][1]), (7, 0), textcoords="offset points", va="center",
            color=INK, fontsize=9,
        )  # fmt: skip
    axes.set_xticks(range(len(places)), [f"{place:g}" for place in places])
    if is_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def drawing(figure: Figure, *, title: str, description: str) -> str:
    """Return a figure as an SVG file.

    Args:
        figure: The figure.
        title: Its title.
        description: Its content, for screen readers.
    """
    out = io.StringIO()
    with matplotlib.rc_context(_SETTINGS):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    body = out.getvalue()
    size = re.search(r'viewBox="[^"]*"', body)
    assert size is not None
    body = re.sub(r"<metadata>.*?</metadata>", "", body[body.index(">", size.end()) + 1 :], flags=re.DOTALL)
    # In a page with other drawings an id may stand once; those that are referred to are digests of what they name.
    body = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", body)
    # The page's own rules for `*` are for the page, and its font is the drawing's.
    body = re.sub(r"<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"font: (?:[a-z0-9]+ )*([\d.]+px) [^;\"]*", r"font-size: \1", body)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" class="drawing" {size[0]}'
    )
    return (
        f'{head} role="img">\n{_STYLE}\n<title>{escape(title)}</title><desc>{escape(description)}</desc>'
        f"{body.replace(INK, 'currentColor')}"
    )
