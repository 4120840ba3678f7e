"""The parts of a chart: its head and panels, lines labelled with their last value, bars, and axes."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from lmdbloader.lab.formatting import number, seconds, three_digits
from lmdbloader.lab.reporting.style import FRAME, UNITS_PER_INCH, Look, settings

# In CSS pixels: charts as wide as a page's column, and as a telephone.
WIDE, NARROW = 720, 360
_TITLE_HEIGHT, _LINE_HEIGHT, _HEAD_GAP = 28, 20, 8
LABEL_SIZE = 10.5
# Between the values at the ends of lines, so that they do not touch.
_LABEL_GAP = 13.0
_MAX_TICKS = 4
# An axis is in powers of ten if its values differ by more; below so many powers there is a tick between them.
_WIDE_RATIO, _FEW_DECADES = 20, 2.5
# Width of a place's name.
_LETTER_WIDTH, _NAME_GAP = 7, 4
# Width of a panel's vertical axis and of the values at the ends of lines.
_AXIS_WIDTH = 50
# Around a chart that stands alone; one in a page has the page's own.
_PADDING = 18
# Of a head's lines: how many letters surely fit.
_WIDE_LETTERS, _NARROW_LETTERS = 105, 54
# So many names of a legend stand in one row of a wide chart.
_WIDE_LEGEND = 5


class Chart(Figure):
    """A matplotlib Figure that keeps our looks wherever it is drawn, and shows itself in notebooks."""

    def png(self) -> bytes:
        """Return it as a PNG file's bytes, two dots a CSS pixel; the same chart gives the same bytes."""
        out = io.BytesIO()
        with settings():
            self.savefig(out, format="png", metadata={"Software": None})
        return out.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()


class Canvas:
    """A chart in the making: its panels, and above them its head, for which room is kept."""

    def __init__(
        self,
        title: str,
        subtitle: str,
        looks: Sequence[Look],
        *,
        panels: int,
        in_a_row: int,
        panel_height: float,
        share_y: bool = False,
        narrow: bool,
        titled: bool,
    ) -> None:
        """Begin.

        Args:
            title: Of the chart, shown if it stands alone.
            subtitle: The quantity and its unit.
            looks: Of the legend; a single one needs none.
            panels: How many there are.
            in_a_row: The most in one row.
            panel_height: Of one, with its title and axis labels, in pixels.
            share_y: Whether all have the same vertical axis.
            narrow: Whether for a narrow screen.
            titled: Whether the title is shown.

        Attributes:
            chart: The chart.
            panels: Its panels, row by row.
            panel_width: About how wide one is, in pixels.
        """
        in_a_row = min(in_a_row, panels)
        rows = -(-panels // in_a_row)
        height = panel_height * rows
        legend_rows = -(-len(looks) // (2 if narrow else _WIDE_LEGEND)) if len(looks) > 1 else 0
        columns = 2 if narrow else -(-len(looks) // max(legend_rows, 1))
        subtitles = textwrap.wrap(subtitle, _NARROW_LETTERS if narrow else _WIDE_LETTERS)
        pad = _PADDING if titled else 0
        head = pad + _TITLE_HEIGHT * titled + _LINE_HEIGHT * (len(subtitles) + legend_rows) + _HEAD_GAP
        self._pad, self._width, self._height = pad, (NARROW if narrow else WIDE) + 2 * pad, height + head + pad
        self._ends: list[tuple[Axes, float, Annotation]] = []
        size = self._width / UNITS_PER_INCH, self._height / UNITS_PER_INCH
        self._engine = engine = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.06, wspace=0.07, hspace=0.09)
        # A hair of room on the right: the end of an axis is half as wide as its line.
        engine.set(
            rect=(self._x(0), pad / self._height, (self._width - 2 * pad - 1) / self._width, height / self._height)
        )
        self.chart = Chart(figsize=size, layout=engine)
        self._write_head(title if titled else "", subtitles, looks if legend_rows else (), columns)
        grid = self.chart.subplots(rows, in_a_row, squeeze=False, sharey=share_y).ravel().tolist()
        self.panels: list[Axes] = grid[:panels]
        for unneeded in grid[panels:]:
            unneeded.remove()
        self.panel_width = (self._width - 2 * pad) / in_a_row

    def _write_head(self, title: str, subtitle: Sequence[str], looks: Sequence[Look], columns: int) -> None:
        """Write the title if there is one, the lines of the subtitle, and the legend if there are looks."""
        at = self._pad
        if title:
            self._write(at, title, size=15.0, weight="bold", color=FRAME["ink"].light)
            at += _TITLE_HEIGHT
        for line in subtitle:
            self._write(at, line, size=11.5, weight="normal", color=FRAME["muted"].light)
            at += _LINE_HEIGHT
        if looks:
            legend = self.chart.legend(
                handles=[_handle(look) for look in looks], loc="upper left", ncols=columns, labelspacing=0.45,
                bbox_to_anchor=(self._x(0), self._y(at)),
            )  # fmt: skip
            legend.set_in_layout(False)

    def _x(self, at: float) -> float:
        """Return pixels from the left, inside of the padding, as a share of the chart's width."""
        return (self._pad + at) / self._width

    def _y(self, at: float) -> float:
        """Return pixels from the top as a share of the chart's height, from the bottom."""
        return 1 - at / self._height

    def _write(self, at: float, text: str, *, size: float, weight: str, color: str) -> None:
        place = self._x(0), self._y(at)
        written = self.chart.text(*place, text, size=size, weight=weight, color=color, va="top", ha="left")
        written.set_in_layout(False)

    def end(self, axes: Axes, x: float, y: float, text: str, look: Look) -> None:
        """Write something at the end of a line, at (x, y), or so near that it touches nothing else there."""
        label = axes.annotate(
            text, (x, y), (9, 0), textcoords="offset points", color=look.light, fontsize=LABEL_SIZE, va="center",
            annotation_clip=False,
        )  # fmt: skip
        self._ends.append((axes, y, label))

    def finish(self) -> Chart:
        """Return the chart, laid out."""
        # Ticks are made when the layout first looks at them, with the settings of then; only when everything has its
        # place is it known which texts would touch.
        self._engine.execute(self.chart)
        for axes in self.chart.axes:
            ends = sorted((end for end in self._ends if end[0] is axes), key=lambda end: end[1])
            places = [axes.transData.transform((0, y))[1] * UNITS_PER_INCH / self.chart.dpi for _, y, _ in ends]
            for (_, _, label), place, apart in zip(ends, places, spread(places, _LABEL_GAP), strict=True):
                label.set_position((9, apart - place))
        self.chart.set_layout_engine("none")  # it is done: to save it needs no other
        return self.chart


def line_style(look: Look) -> dict[str, Any]:
    """Return matplotlib's options for a line of this meaning."""
    return {"color": look.light, "marker": look.marker, "linestyle": (0, look.dash) if look.dash else "-"}


def bar_style(look: Look) -> dict[str, Any]:
    """Return matplotlib's options for a bar of this meaning."""
    return {"facecolor": look.light, "hatch": look.hatch, "edgecolor": FRAME["paper"].light, "linewidth": 0.8}


def _handle(look: Look) -> Line2D | Patch:
    """Return the handle of a meaning in a legend: a line if it has a marker, else a bar."""
    if look.marker:
        return Line2D([], [], **line_style(look), label=look.label)
    return Patch(**bar_style(look), label=look.label)


def heading(axes: Axes, text: str) -> None:
    """Write the title of a panel."""
    axes.set_title(text, color=FRAME["ink"].light, fontsize=12)


def categories(axes: Axes, names: Sequence[str], width: float, *, margin: float = 0.35) -> range:
    """Make the horizontal axis one of named places, evenly spaced: 0, 1, 2 ...

    Args:
        axes: The panel.
        names: Of the places.
        width: Of the panel in pixels: if it is too narrow for all names, only every second, third ... is written.
        margin: Left and right of them.

    Returns:
        The places whose names are written.
    """
    name_width = _NAME_GAP + _LETTER_WIDTH * max(map(len, names))
    step = max(1, math.ceil(len(names) * name_width / (width - _AXIS_WIDTH)))
    shown = range(0, len(names), step)
    axes.set_xticks(list(shown), [names[i] for i in shown])
    axes.set_xlim(-margin, len(names) - 1 + margin)
    return shown


def amounts(axes: Axes, top: float, *, unit: str = "") -> None:
    """Make the vertical axis one of amounts, from nothing to a little over the largest."""
    axes.set_yscale("linear")
    axes.set_ylim(0, top * 1.08 or 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(_MAX_TICKS, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value) + unit))


def scaled(axes: Axes, values: Sequence[float], *, is_log: bool | None = None) -> None:
    """Make the vertical axis one of amounts, in powers of ten where they are far apart.

    Args:
        axes: The panel.
        values: That it shows.
        is_log: Whether in powers of ten; None: if `is_wide`. Amounts of nothing are never.
    """
    if not (is_wide(values) if is_log is None else is_log and bool(values) and min(values) > 0):
        amounts(axes, max(values, default=0.0))
        return
    axes.set_yscale("log")
    axes.set_ylim(min(values) / 1.3, max(values) * 1.3)
    decades = math.log10(max(values) / min(values))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if decades < _FEW_DECADES else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(NullLocator())


def is_wide(values: Sequence[float]) -> bool:
    """Return whether a linear axis would press the smallest value onto its end.

    >>> is_wide([10.0, 200.0]), is_wide([10.0, 201.0]), is_wide([0.0, 1.0]), is_wide([])
    (False, True, False, False)
    """
    return bool(values) and min(values) > 0 and max(values) > _WIDE_RATIO * min(values)


def whiskers(axes: Axes, curves: Mapping[Look, Sequence[tuple[float, float, float]]]) -> None:
    """Draw ranges: a thin vertical line for each (x, low, high), in the colour of its meaning."""
    for look, ranges in curves.items():
        shown = [(x, low, high) for x, low, high in ranges if high > low > 0]
        if shown:
            axes.vlines(*zip(*shown, strict=True), color=look.light, linewidth=1.1, zorder=4)


def changes(axes: Axes, values: Sequence[float]) -> None:
    """Make the vertical axis one of changes in %, with nothing in its middle."""
    most = max(10.0, *(abs(value) for value in values)) * 1.1
    axes.set_ylim(-most, most)
    axes.yaxis.set_major_locator(MaxNLocator(_MAX_TICKS, steps=[1, 2, 2.5, 5, 10], symmetric=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+,g} %" if value else "0 %"))
    axes.axhline(0, color=FRAME["axis"].light, linewidth=1.0, zorder=1)
    axes.spines["bottom"].set_visible(False)


def durations(axes: Axes, shortest: float, longest: float) -> None:
    """Make the horizontal axis one of seconds, in powers of ten."""
    axes.set_xscale("log")
    axes.set_xlim(shortest, longest)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def lines(
    canvas: Canvas,
    axes: Axes,
    curves: Mapping[Look, Sequence[tuple[float, float]]],
    show: Callable[[float], str] = number,
    ends: Mapping[Look, str] | None = None,
) -> None:
    """Draw a line for each meaning and write its last value at its end.

    Args:
        canvas: Whose panel it is.
        axes: The panel, its axes' limits set.
        curves: Points (x, y) of each line.
        show: Writes a value.
        ends: Words at the end of lines in place of the last value.
    """
    for order, (look, points) in enumerate(curves.items()):
        if points:
            axes.plot(*zip(*points, strict=True), **line_style(look), zorder=10 - order, clip_on=False)
            text = (ends or {}).get(look) or show(three_digits(points[-1][1]))
            canvas.end(axes, *points[-1], text, look)


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Return ascending places moved as little as it takes to be a gap apart.

    >>> spread([0.0, 1.0, 50.0], 13.0)
    [-6.0, 7.0, 50.0]
    """
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        # A group is centred on its places; if it touches the one below, they become one.
        while len(groups) > 1 and _bottom(groups[-1], gap) < _top(groups[-2], gap) + gap:
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_bottom(group, gap) + gap * i for group in groups for i in range(len(group))]


def _bottom(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) - gap * (len(group) - 1) / 2


def _top(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) + gap * (len(group) - 1) / 2
