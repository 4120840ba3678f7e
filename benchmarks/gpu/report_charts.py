"""The charts of docs/benchmarks/gpu.md, as drawings that take the colours of a light or a dark page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from matplotlib.ticker import FuncFormatter
from report_loading import COPY, FFCV, FOLDER, HAND, OURS, ROW_OF
from report_results import Results, Row, matching
from report_training import RESTORING, name_of

from lmdbloader.lab.reporting.canvas import Canvas, Chart, amounts, categories, heading, line_style, lines
from lmdbloader.lab.reporting.style import FRAME, SOURCES, Look, colours, settings
from lmdbloader.lab.reporting.svg import inline

# The one colour that the charts' style lacks.
_FFCV, _FFCV_VARIABLE = Look("FFCV", "#7a3fb0", "#c39bf0", marker="D", dash=(4, 1.4)), "source-ffcv"
LOOKS = {
    OURS: SOURCES["lmdbloader"],
    FFCV: _FFCV,
    FOLDER: replace(SOURCES["folder"], label="DataLoader over files"),
    HAND[0]: replace(SOURCES["dataloader"], label="hand-written LMDB"),
    COPY: Look("copying memory", FRAME["muted"].light, FRAME["muted"].dark, marker="|", dash=(1, 1.5)),
}
# By the name of a feed.
_LOADER, _FOLDER = (
    replace(SOURCES["lmdbloader"], label="Loader"),
    replace(SOURCES["folder"], label="DataLoader over files"),
)
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
_DRAWING = """<style>
.drawing { font: 14px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; LIGHT }
@media (prefers-color-scheme: dark) { svg.drawing:root { DARK } }
[data-md-color-scheme="slate"] .drawing { DARK }
</style>"""


def drawing(chart: Chart, name: str, *, title: str, description: str) -> str:
    """Return a chart as a drawing of the documentation: its colours are variables, light by themselves or dark."""
    text = inline(chart, name, title=title, description=description).replace(_FFCV.light, f"var(--{_FFCV_VARIABLE})")
    known = {**colours(), _FFCV_VARIABLE: _FFCV}
    used = {name: look for name, look in known.items() if f"var(--{name})" in text}
    light = " ".join(f"--{name}: {look.light};" for name, look in used.items())
    dark = " ".join(f"--{name}: {look.dark};" for name, look in used.items())
    style = _DRAWING.replace("LIGHT", light).replace("DARK", dark)
    begin, rest = text.split(">", 1)
    begin = begin.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" class="drawing" ', 1)
    return f"{begin}>\n{style}\n{rest}\n"


def cores_chart(results: Results) -> Chart | None:
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
    with settings():
        canvas = Canvas(
            "Loading alone", "Samples per second as float32 batches, by threads or workers", looks,
            panels=len(panels), in_a_row=1, panel_height=230, narrow=False, titled=True,
        )  # fmt: skip
        for axes, (told, curves) in zip(canvas.panels, panels, strict=True):
            counts = sorted({int(x) for points in curves.values() for x, _ in points})
            amounts(axes, max(y for points in curves.values() for _, y in points))
            categories(axes, [str(count) for count in counts], canvas.panel_width)
            places = {look: [(counts.index(int(x)), y) for x, y in points] for look, points in curves.items()}
            lines(canvas, axes, places)  # type: ignore[arg-type]
            heading(axes, told)
        return canvas.finish()


def _curve(rows: list[Row], what: str, dataset: str | None = None) -> list[tuple[float, float]]:
    found = [row for row in matching(rows, what=what) if dataset is None or row.get("dataset") == dataset]
    return sorted((row["threads"], row["samples_per_s"]) for row in found if row.get("samples_per_s"))


def fed_chart(results: Results) -> Chart | None:
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
    with settings():
        canvas = Canvas(
            "Training throughput", "Samples per second of training, in % of the rate with batches on the device",
            looks, panels=1, in_a_row=1, panel_height=36 * len(found) + 40, narrow=False, titled=True,
        )  # fmt: skip
        (axes,) = canvas.panels
        names = list(found)
        top = max(100.0, *(value for points in found.values() for _, value in points))
        for place, name in enumerate(reversed(names)):
            axes.axhline(place, color=FRAME["rule"].light, linewidth=1.0, zorder=1)
            for look, value in found[name]:
                # Points of one value would hide each other.
                shift = 0.26 - 0.52 * looks.index(look) / max(len(looks) - 1, 1)
                axes.plot([value], [place + shift], **line_style(look), clip_on=False)
        axes.axvline(100, color=FRAME["axis"].light, linewidth=1.0, zorder=1)
        axes.set_yticks(range(len(names)), list(reversed(names)))
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_xlim(0, top * 1.03)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.spines["bottom"].set_visible(False)
        return canvas.finish()


def draw_cores(results: Results) -> str | None:
    """Return the drawing, None without figures."""
    chart = cores_chart(results)
    told = "Lines: the Loader, FFCV, torch's DataLoader and copying memory, by the number of threads or workers."
    return chart and drawing(chart, "gpu-cores", title="Samples per second by threads", description=told)


def draw_fed(results: Results) -> str | None:
    """Return the drawing, None without figures."""
    chart = fed_chart(results)
    told = "A row for each network and size, with a point for each feed: 100 % is training that never waits for data."
    return chart and drawing(chart, "gpu-fed", title="Training as a share of the ceiling", description=told)


CHARTS: dict[str, Callable[[Results], str | None]] = {"gpu-cores": draw_cores, "gpu-fed": draw_fed}
