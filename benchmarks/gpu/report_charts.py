"""The charts of docs/benchmarks/gpu.md, as drawings that take the colors of a light or a dark page."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure
from report_loading import COPY, FFCV, FOLDER, HAND, OURS, ROW_OF
from report_results import Results, Row, matching
from report_training import RESTORING, name_of

if (_BENCHMARKS := str(Path(__file__).resolve().parent.parent)) not in sys.path:
    sys.path.append(_BENCHMARKS)

import drawing
from drawing import Look, begin, draw_lines

_LOADER, _FOLDER = Look("Loader", drawing.LOADER), Look("DataLoader over files", drawing.FOLDER, "^", ":")
_FFCV = Look("FFCV", drawing.FFCV, "D", "--")
LOOKS = {
    OURS: _LOADER,
    FFCV: _FFCV,
    FOLDER: _FOLDER,
    HAND[0]: Look("hand-written LMDB", drawing.DATALOADER, "s", "--"),
    COPY: Look("copying memory", drawing.OTHER, "|", ":"),
}
# By the name of a feed.
FEEDS = {
    "loader raw256": _LOADER,
    "loader pairs_raw": _LOADER,
    "loader raw256, uint8": replace(_LOADER, label="Loader, uint8", marker="P"),
    "loader jpg": replace(_LOADER, label="Loader, JPEG files", marker="v"),
    "FFCV raw256": _FFCV,
    "FFCV": _FFCV,
    "FFCV jpg": replace(_FFCV, label="FFCV, JPEG files", marker="X"),
    "folder": _FOLDER,
}
PANELS = (
    ("pairs", ("pairs_raw", "pairs"), "pairs of 96 and 48 px, stored as pixels"),
    ("images", ("raw256", "raw256"), "photographs of 256 px, stored as pixels, to 224"),
    ("images", ("original", "original"), "JPEG files of 500 x 375, to 224"),
)


def cores_chart(results: Results) -> Figure | None:
    """Return samples a second by threads, or workers, as float32: a panel for each kind of samples."""
    loaders = results.rows("cores", "dataloaders")
    panels = []
    for name, datasets, told in PANELS:
        rows = [row for row in results.filled("cores", name, ROW_OF) if row.get("dtype") == "float32"]
        curves = {
            LOOKS[what]: _curve(rows, what, dataset) for what, dataset in zip((OURS, FFCV), datasets, strict=True)
        }
        peers = (FOLDER,) if name == "images" else HAND[:1]
        curves |= {LOOKS[what]: _curve(loaders, what) for what in peers}
        if datasets[0] != "original" and name == "pairs":
            curves[LOOKS[COPY]] = _curve(rows, COPY)
        if curves[LOOKS[OURS]]:
            panels.append((told, {look: points for look, points in curves.items() if points}))
    if not panels:
        return None
    looks = list(dict.fromkeys(look for _, curves in panels for look in curves))
    figure, grid = begin("Samples per second as float32 batches, by threads or workers", [t for t, _ in panels], looks)
    for axes, (_, curves) in zip(grid, panels, strict=True):
        draw_lines(axes, curves)
    return figure


def _curve(rows: list[Row], what: str, dataset: str | None = None) -> list[tuple[float, float]]:
    found = [row for row in matching(rows, what=what) if dataset is None or row.get("dataset") == dataset]
    return sorted((row["threads"], row["samples_per_s"]) for row in found if row.get("samples_per_s"))


def fed_chart(results: Results) -> Figure | None:
    """Return training speed from each feed, in % of the ceiling: a line of points for each network and size."""
    rows = [row for row in results.rows("fed", "training") if row.get("share_of_ceiling") is not None]
    rows = [row for row in rows if row["model"] not in RESTORING or row["pixels"] == 96]
    found: dict[str, list[tuple[Look, float]]] = {}
    for row in sorted(
        rows, key=lambda row: (row["model"] in RESTORING, row["model"], -row["pixels"], row["batch_size"])
    ):
        if look := FEEDS.get(row["feed"]):
            size = f"batches of {row['batch_size']}" if row["model"] in RESTORING else f"{row['pixels']} px"
            found.setdefault(f"{name_of(row['model'])}, {size}", []).append((look, 100 * row["share_of_ceiling"]))
    if not found:
        return None
    shown = {look for points in found.values() for look, _ in points}
    looks = [look for look in dict.fromkeys(FEEDS.values()) if look in shown]
    figure, (axes,) = begin(
        "Samples per second of training, in % of the rate with batches on the device", ["Training throughput"], looks,
        height=0.37 * len(found) + 0.4,
    )  # fmt: skip
    names = list(found)
    for place, name in enumerate(reversed(names)):
        for look, value in found[name]:
            # Points of one value would hide each other.
            shift = 0.26 - 0.52 * looks.index(look) / max(len(looks) - 1, 1)
            axes.plot([value], [place + shift], **look.line)
    axes.axvline(100, color=drawing.FOLDER, linewidth=1.0, zorder=1)
    axes.set_yticks(range(len(names)), list(reversed(names)))
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    return figure


def draw_cores(results: Results) -> str | None:
    """Return the drawing, None without figures."""
    chart = cores_chart(results)
    told = "Lines: the Loader, FFCV, torch's DataLoader and copying memory, by the number of threads or workers."
    return chart and drawing.drawing(chart, title="Samples per second by threads", description=told)


def draw_fed(results: Results) -> str | None:
    """Return the drawing, None without figures."""
    chart = fed_chart(results)
    told = "A row for each network and size, with a point for each feed: 100 % is training that never waits for data."
    return chart and drawing.drawing(chart, title="Training as a share of the ceiling", description=told)


CHARTS: dict[str, Callable[[Results], str | None]] = {"gpu-cores": draw_cores, "gpu-fed": draw_fed}
