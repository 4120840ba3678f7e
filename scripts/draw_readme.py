"""Draws what README shows: the chart of stored benchmark results, the badges, and with --picture the picture.

    python scripts/draw_readme.py               # chart and badges, from files of this repository: a second
    python scripts/draw_readme.py --picture     # trains SRCNN on photographs of scikit-image first: a minute or two

Everything goes into docs/pictures. A test draws chart and badges again and compares them with the stored files.
"""

from __future__ import annotations

import argparse
import configparser
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
CROPS = ROOT / "benchmarks" / "results" / "crops.json"
GPU_RESULTS = ROOT / "benchmarks" / "results" / "gpu"
CHART, PICTURE = "speed.svg", "superresolution.png"

# Colors, light and dark. A card of its own makes the chart readable on a page
# of any color, also where the page and the system disagree about dark mode.
_LIGHT = "--paper: #ffffff; --rule: #e2e5e9; --ink: #1d2126; --muted: #5a616a; --ours: #1763b6; --peer: #9aa1ab;"
_DARK = "--paper: #15181c; --rule: #31373e; --ink: #e8eaed; --muted: #a4acb6; --ours: #6cb0ff; --peer: #6b7078;"
# In a file of its own it follows the system; the documentation puts it into pages, which have a switch.
_STYLE = f"""
    .speed {{ font: 13px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; {_LIGHT} }}
    @media (prefers-color-scheme: dark) {{ svg.speed:root {{ {_DARK} }} }}
    [data-md-color-scheme="slate"] .speed {{ {_DARK} }}
    .speed text {{ fill: var(--ink); }}
    .speed .card {{ fill: var(--paper); stroke: var(--rule); }}
    .speed .title {{ font-size: 16px; font-weight: 600; }}
    .speed .panel {{ font-weight: 600; }}
    .speed .small {{ font-size: 11px; fill: var(--muted); }}
    .speed .ours {{ fill: var(--ours); }}
    .speed .peer {{ fill: var(--peer); }}
    .speed .best {{ font-weight: 700; }}
    .speed .range {{ stroke: var(--ink); stroke-width: 1.5; fill: none; }}"""
_WIDTH, _PADDING, _ROW, _BAR = 840, 20, 21, 15
_BADGE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{label}: {value}">
<title>{label}: {value}</title>
<rect width="{width}" height="20" rx="3" fill="#3f454d"/>
<path d="M{left} 0h{inner}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H{left}z" fill="#1763b6"/>
<g fill="#ffffff" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" text-anchor="middle">
<text x="{label_x}" y="14" textLength="{label_width}">{label}</text>
<text x="{value_x}" y="14" textLength="{value_width}">{value}</text>
</g>
</svg>
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One loader's speed.

    Attributes:
        name: Of the loader.
        turns: Samples a second in each turn of the measurement.
        median: Of the turns, as stored.
        is_ours: Whether it is this package's.
    """

    name: str
    turns: tuple[float, ...]
    median: float
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """The speeds of several loaders with the same samples; `title` names the samples."""

    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """What the chart shows.

    Attributes:
        title: What was measured.
        panels: Next to each other, each with a scale of its own.
        lines: Date, machine, command and what the bars are, below the panels.
        key: Unique among the charts of a page.
        names: Pixels for the longest name of a bar.
    """

    title: str
    panels: tuple[Panel, ...]
    lines: tuple[str, ...]
    key: str = "speed"
    names: int = 88


# --- Results to chart; those of benchmarks/peers can get a function like this one ---

# The first panel: the ways of benchmarks/crops.py, with the names of their bars.
_CROPS = {
    "whole images, Loader": "lmdbloader",
    "PNG sub-images, DataLoader": "sub-images",
    "whole PNG files, DataLoader": "PNG files",
}
# Title of a panel; figure, loader, dataset and name of each bar.
_GPU_PANELS: tuple[tuple[str, tuple[tuple[str, str, str, str], ...]], ...] = (
    ("JPEG files to 224, 16 cores", (
        ("images", "Loader", "original", "lmdbloader"),
        ("images", "FFCV", "original", "FFCV"),
        ("dataloaders", "DataLoader, folder, Pillow", "photos", "DataLoader"),
    )),
    ("Patches of 96 and 48, 16 cores", (
        ("pairs", "Loader", "pairs_raw", "lmdbloader"),
        ("pairs", "FFCV", "pairs", "FFCV"),
        ("dataloaders", "DataLoader, PNG files, Pillow", "pairs_png", "DataLoader"),
    )),
)  # fmt: skip


def crops_panel(stored: Path) -> Panel:
    """Return the panel of crops.py's results: each way with its best number of workers or threads."""
    bars = []
    for way, name in _CROPS.items():
        rows = [row for row in json.loads(stored.read_text("utf-8"))["Random crops"] if row["way"] == way]
        best = max(rows, key=lambda row: row["pairs_per_s"])
        bars.append(Bar(name, tuple(best["turns"]), best["pairs_per_s"], name == "lmdbloader"))
    return Panel("Crops of 2K photographs, 2 cores", tuple(bars))


def readme_chart(crops: Path, folder: Path) -> Chart:
    """Return the chart of crops.py and of the newest run of benchmarks/gpu.

    Args:
        crops: What crops.py has stored.
        folder: Has a folder for each run, named by its date.

    Raises:
        SystemExit: No run has the figures.
    """
    for run in sorted(folder.iterdir(), reverse=True):
        stored = run / "cores.json"
        document = json.loads(stored.read_text("utf-8")) if stored.is_file() else {}
        if document.get("figures") and not document["small"]:
            break
    else:
        raise SystemExit(f"{folder}: no run has a cores.json with figures: benchmarks/gpu/run.py makes one")
    figures = document["figures"]
    panels = [Panel(title, tuple(_best(figures, *bar) for bar in bars)) for title, bars in _GPU_PANELS]
    date, machine = run.name[:10], _machine(run)
    processor = json.loads(crops.read_text("utf-8"))["environment"]["processor"]
    return Chart(
        "Samples per second, augmented, as float32 batches",
        (crops_panel(crops), *panels),
        (
            f"2 cores ({processor}): pairs of crops, HR 192 x 192 and LR 96 x 96, batches of 16. Sub-images, PNG "
            "files: torch's DataLoader, Pillow.",
            f"{figures['cores']['cores']} cores ({machine}, without the GPU, {date}): batches of 128. DataLoader: "
            "torch's, over the files, Pillow.",
            "FFCV: no checksums; its own operations for images, one of ours for pairs. Each with its best number of "
            "threads or workers.",
            "Medians; lines on the bars: slowest to fastest turn.",
        ),
    )


def _best(figures: dict[str, Any], figure: str, what: str, dataset: str, name: str) -> Bar:
    rows = [
        row
        for row in figures[figure]
        if tuple(map(row.get, ("what", "dataset", "dtype", "batch_size"))) == (what, dataset, "float32", 128)
    ]
    if not rows:
        raise SystemExit(f"the results have no speed of {what} over {dataset}")
    row = max(rows, key=lambda row: row["samples_per_s"])
    return Bar(name, tuple(row["turns"]), row["samples_per_s"], what == "Loader")


def _machine(run: Path) -> str:
    for stored in sorted(run.glob("*.json")):
        figures = json.loads(stored.read_text("utf-8")).get("figures", {})
        if environment := figures.get("environment"):
            return f"{environment['gpu']} machine"
    raise SystemExit(f"{run}: no file says which machine it was")


# --- Chart to drawing ---


def draw_chart(chart: Chart) -> str:
    """Return the chart as an SVG file: text stays text, and the colors follow the system's light or dark mode."""
    across = (_WIDTH - 2 * _PADDING + 24) / len(chart.panels)
    rows = max(len(panel.bars) for panel in chart.panels)
    top = 78
    height = top + rows * _ROW + 18 * len(chart.lines) + 18
    told = "; ".join(
        f"{panel.title}: " + ", ".join(f"{bar.name} {_speed(bar.median)}" for bar in panel.bars)
        for panel in chart.panels
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'class="drawing speed" role="img" aria-labelledby="{chart.key}-title" '
        f'aria-describedby="{chart.key}-description">',
        f'<title id="{chart.key}-title">{escape(chart.title)}</title>',
        f'<desc id="{chart.key}-description">{escape(told)}</desc>',
        f"<style>{_STYLE}\n</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>',
        f'<text class="title" x="{_PADDING}" y="30">{escape(chart.title)}</text>',
    ]
    for number, panel in enumerate(chart.panels):
        parts += _draw_panel(panel, _PADDING + number * across, top, across - 24, chart.names)
    for number, line in enumerate(chart.lines):
        parts.append(
            f'<text class="small" x="{_PADDING}" y="{top + rows * _ROW + 18 * (number + 1) + 2}">{escape(line)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _speed(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _draw_panel(panel: Panel, x: float, top: int, width: float, names: int) -> list[str]:
    most = max(value for bar in panel.bars for value in bar.turns)
    fastest = max(bar.median for bar in panel.bars)
    room = width - names - 58
    parts = [f'<text class="panel" x="{x:.0f}" y="{top - 14}">{escape(panel.title)}</text>']
    # The fastest first, whoever it is.
    for row, bar in enumerate(sorted(panel.bars, key=lambda bar: -bar.median)):
        y = top + row * _ROW
        left, end = x + names, x + names + room * bar.median / most
        low, high = (left + room * value / most for value in (min(bar.turns), max(bar.turns)))
        best = " best" if bar.median == fastest else ""
        parts += [
            f'<text class="name{best}" x="{left - 7:.1f}" y="{y + 12}" text-anchor="end" font-size="12">'
            f"{escape(bar.name)}</text>",
            f'<rect class="{"ours" if bar.is_ours else "peer"}" x="{left:.1f}" y="{y}" '
            f'width="{max(end - left, 1):.1f}" height="{_BAR}"/>',
            f'<text class="value{best}" x="{max(end, high) + 6:.1f}" y="{y + 12}">{_speed(bar.median)}</text>',
        ]
        if high > low:
            parts.append(f'<path class="range" d="M{low:.1f} {y + _BAR / 2}H{high:.1f}"/>')
    return parts


# --- Badges ---


def draw_badges() -> dict[str, str]:
    """Return the badges as SVG files, by their names: what setup.cfg and the package say of themselves."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", "utf-8")
    version = re.search(r'^__version__ = "(.+)"$', (ROOT / "lmdbloader/__init__.py").read_text("utf-8"), re.MULTILINE)
    assert version is not None
    # The package's own; the names after AND are those of libraries that wheels for Windows carry.
    license_ = config["metadata"]["license_expression"].partition(" AND ")[0]
    python = config["options"]["python_requires"].removeprefix(">=") + "+"
    values = {"version": version[1], "license": license_, "python": python}
    return {f"badge-{label}.svg": _draw_badge(label, value) for label, value in values.items()}


def _draw_badge(label: str, value: str) -> str:
    label_width, value_width = (round(sum(4.0 if c in "ilt.- " else 6.7 for c in text)) for text in (label, value))
    left, width = label_width + 12, label_width + value_width + 24
    return _BADGE.format(
        label=escape(label), value=escape(value), left=left, width=width, inner=width - left - 3,
        label_x=left / 2, label_width=label_width, value_x=(left + width) / 2, value_width=value_width,
    )  # fmt: skip


# --- The picture ---

PATCH, CROP, ZOOM, GAP = 96, (66, 90), 3, 9
PHOTOGRAPH, PLACE = "chelsea", (96, 126)


def draw_picture(path: Path, *, steps: int) -> None:
    """Train SRCNN on photographs of scikit-image, through a dataset, and save bicubic, SRCNN and original in a row.

    Args:
        path: Of the picture, a PNG file with a transparent ground.
        steps: Of training, each with one crop of every photograph.
    """
    import lmdbloader
    from lmdbloader.superres import bicubic, evaluate, merge_luma, predict

    with tempfile.TemporaryDirectory(prefix="lmdbloader-picture-") as name:
        model = _train(Path(name), steps)
        dataset = lmdbloader.LMDBDataset(Path(name, "val.lmdb"))
        scores = evaluate(model, dataset, 2)
        lr, hr = dataset[0]
    before = bicubic(lr, 2)
    after = merge_luma(before, predict(model, lr))
    titles = (
        f"bicubic, {scores.bicubic.psnr:.2f} dB",
        f"SRCNN after {steps:,} steps, {scores.model.psnr:.2f} dB",
        "original",
    )
    _draw_row(dict(zip(titles, (before, after, hr), strict=True)), path)


def _train(folder: Path, steps: int) -> Any:
    """Make train.lmdb and val.lmdb in a folder; return SRCNN, trained on crops of the first."""
    import torch
    from demos.superres import copy_photographs, find_photographs
    from superresolution import build_model, cosine_rate, train_step

    import lmdbloader
    from lmdbloader.transforms import RandomCrop, RandomDihedral

    training, held_out = find_photographs(None, folder)
    for files, part in ((training, "train"), ([p for p in held_out if p.stem == PHOTOGRAPH], "val")):
        copy_photographs(files, folder / part)
        lmdbloader.convert(folder / part, folder / f"{part}.lmdb", layout="images", scale=2)
    torch.manual_seed(0)
    model = build_model("srcnn915", 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    augment = [RandomCrop(PATCH), RandomDihedral()]
    dataset = lmdbloader.LMDBDataset(folder / "train.lmdb")
    loader = lmdbloader.Loader(dataset, len(dataset), shuffle=True, seed=0, transforms=augment)
    for step in range(steps):
        ((lr, hr),) = loader
        optimizer.param_groups[0]["lr"] = cosine_rate(1e-3, step / steps)
        train_step(model, optimizer, lr, hr)
    return model


def _draw_row(images: dict[str, Any], path: Path) -> None:
    """Save crops of images, tensors (3, height, width), next to each other, each with its title."""
    from PIL import Image, ImageDraw, ImageFont

    (top, left), height, width = PLACE, CROP[0] * ZOOM, CROP[1] * ZOOM
    sheet = Image.new("RGBA", (3 * width + 2 * GAP, height), (0, 0, 0, 0))
    font = ImageFont.load_default(14)
    for column, (title, image) in enumerate(images.items()):
        crop = image[:, top : top + CROP[0], left : left + CROP[1]].permute(1, 2, 0).numpy()
        enlarged = Image.fromarray(crop).resize((width, height), Image.Resampling.NEAREST)
        draw = ImageDraw.Draw(enlarged)
        # On a strip of its own in the photograph, so that it can be read on a light and on a dark page.
        draw.rectangle((0, height - 24, width, height), fill=(21, 24, 28))
        draw.text((8, height - 20), title, fill="white", font=font)
        sheet.paste(enlarged, (column * (width + GAP), 0))
    sheet.save(path, optimize=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw into a folder; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PICTURES, metavar="DIR", help="default: docs/pictures")
    parser.add_argument("--results", type=Path, default=GPU_RESULTS, metavar="DIR", help="default: of benchmarks/gpu")
    parser.add_argument("--crops", type=Path, default=CROPS, metavar="FILE", help="default: of benchmarks/crops.py")
    parser.add_argument("--picture", action="store_true", help="the picture as well, which takes a minute or two")
    parser.add_argument("--steps", type=int, default=400, help="of training, for the picture (default: 400)")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    drawings = {CHART: draw_chart(readme_chart(options.crops, options.results)), **draw_badges()}
    for name, text in drawings.items():
        (options.out / name).write_text(text, "utf-8")
    if options.picture:
        draw_picture(options.out / PICTURE, steps=options.steps)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main())
