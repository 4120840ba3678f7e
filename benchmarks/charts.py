"""Draws the charts of docs/benchmarks.md from the stored results; no number is typed by hand.

    python benchmarks/charts.py

The results are the tables in docs/benchmarks/tables.md, as the other scripts printed them, and benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from drawing import DATALOADER, FOLDER, INK, LOADER, Look, begin, draw_lines, drawing
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "docs" / "benchmarks" / "tables.md"
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "benchmarks" / "pictures"
Rows = list[dict[str, str]]

_OURS, _PEER = Look("Loader", LOADER, "s", "none"), Look("other ways", FOLDER, "s", "none")
_SOURCES = (
    Look("Loader", LOADER),
    Look("DataLoader (LMDB)", DATALOADER, "s", "--"),
    Look("DataLoader (files)", FOLDER, "^", ":"),
)
_BAR_HEIGHT = 0.28
_BY_HAND = "x by hand, same batch"


# --- Results ---


def rows_of(text: str, section: str, column: str) -> Rows:
    """Return the rows of the first table below a heading that has a column, each by the names of its columns.

    Raises:
        ValueError: There is no such table.
    """
    _, _, rest = text.partition(f"\n## {section}\n")
    below = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    for found in re.findall(r"(?:^\|.*\n)+", below, re.MULTILINE):
        head, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines())
        if column in head:
            return [dict(zip(head, cells, strict=True)) for cells in body]
    raise ValueError(f"{TABLES}: no table with the column {column!r} below the heading {section!r}")


def value_of(cell: str) -> float:
    """Return the number in a cell.

    >>> value_of("70,784"), value_of("69%")
    (70784.0, 69.0)
    """
    return float(cell.replace(",", "").removesuffix("%"))


def loading(text: str) -> dict[str, dict[str, float]]:
    """Return samples per second, by kind of samples and by way of loading; each way with its best setting."""
    pairs = rows_of(text, "The Loader", "x by hand, best setting")
    images = rows_of(text, "Class folders of JPEGs", "of decoding")
    names = {
        "folder, Pillow": "DataLoader, files, Pillow", "LMDB of the files, Pillow": "DataLoader, LMDB, Pillow",
        "decoding whole files only": "decoding alone (simplejpeg)", "original": "Loader, JPEG files",
        "recoded": "Loader, recoded JPEGs", "raw256": "Loader, pixels",
    }  # fmt: skip
    # Checksums are verified in all but the rows that say otherwise.
    best: dict[str, float] = {}
    for row in pairs:
        if row["float32 made in, or checksums"] != "not verified":
            best[row[""]] = max(best.get(row[""], 0.0), value_of(row["pairs/s"]))
    ways = {"LMDB by hand": "DataLoader, LMDB by hand", "Loader lz4": "Loader, lz4", "Loader raw": "Loader, pixels"}
    return {
        "photographs of 500 x 375 pixels, random crops to 224": {
            names[row[""]]: value_of(row["images/s"])
            for row in images
            if row["pixels"] == "224" and row["batch"] == "64" and row[""] in names
        },
        "pairs of patches, 96 and 48 pixels, turned at random": {ways[name]: value for name, value in best.items()},
    }


def by_batch(text: str) -> dict[str, dict[Look, list[tuple[float, float]]]]:
    """Return samples per second by batch size of each source: a dict for each size of crops."""
    found: dict[str, dict[Look, list[tuple[float, float]]]] = {}
    for row in rows_of(text, "Batch sizes 8 to 128: lmdbloader bench", "Loader, samples/s"):
        ours, size = value_of(row["Loader, samples/s"]), float(row["batch"])
        curves = found.setdefault(f"crops of {row['crop']} pixels", {})
        curves.setdefault(_SOURCES[0], []).append((size, ours))
        for look in _SOURCES[1:]:
            curves.setdefault(look, []).append((size, ours / value_of(row[f"x {look.label}"])))
    return found


def behind(text: str, results: Path) -> dict[str, float]:
    """Return where this package is not ahead: its speed as a share of another way's."""
    stored = json.loads((results / "write.json").read_text("utf-8"))
    writing = {row["name"]: row["seconds"] for row in stored["figures"]}
    turns = zip(writing["LMDB put, by hand"], writing["arrays, 1 worker"], strict=True)
    engines = json.loads((results / "engines.json").read_text("utf-8"))["images a second"]
    steady = {
        name: statistics.median(turn["steady_images_per_s"] for turn in engines[name]) for name in ("ray", "local")
    }
    (decoding,) = (
        row for row in rows_of(text, "Converting", "converting against it") if row["job"] == "decode only: Pillow"
    )
    # The second table of reading has worker processes.
    title = "With worker processes"
    in_workers = rows_of(text.replace(f"\n{title} ", f"\n## {title}\n"), title, _BY_HAND)
    worst = min(value_of(row[_BY_HAND]) for row in in_workers if row["store"].startswith("LMDBDataset"))
    (crop,) = (
        row for row in rows_of(text, "The Loader", "stored patches/s") if (row[""], row["threads"]) == ("float32", "2")
    )
    return {
        "writing arrays / LMDB's put in a loop": statistics.median(theirs / ours for theirs, ours in turns),
        "converting on Ray / on the local engine": steady["ray"] / steady["local"],
        "converting PNG files / decoding them by Pillow": value_of(decoding["converting against it"]) / 100,
        "DataLoader with a worker, at worst / LMDB by hand": worst,
        "crops of 2K photographs / patches cut before": value_of(crop["ratio"]),
    }


# --- Charts ---


def bars(
    axes: Axes, values: Mapping[str, float], look: Callable[[str], Look], show: Callable[[float], str], places: int
) -> None:
    """Draw a horizontal bar for each value, the first on top, with its name and its value.

    Args:
        axes: The panel.
        values: By name.
        look: Of a name.
        show: Writes a value.
        places: For how many bars there is room.
    """
    found = dict(reversed(values.items()))
    drawn = axes.barh(range(len(found)), list(found.values()), 0.68, color=[look(name).colour for name in found])
    axes.bar_label(drawn, list(map(show, found.values())), padding=5, color=INK)
    axes.set_yticks(range(len(found)), list(found))
    axes.set_ylim(len(values) - places - 0.6, len(values) - 0.4)
    axes.set_xlim(0, max(values.values()) * 1.12)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def loading_chart(found: Mapping[str, Mapping[str, float]]) -> Figure:
    """Return the speed of loading: a panel for each kind of samples, a bar for each way."""
    most = max(map(len, found.values()))
    figure, panels = begin(
        "Loading alone, on two CPU cores: samples per second, each way with its best setting", list(found),
        (_OURS, _PEER), height=_BAR_HEIGHT * most + 0.4,
    )  # fmt: skip
    for axes, values in zip(panels, found.values(), strict=True):
        fastest = dict(sorted(values.items(), key=lambda item: -item[1]))
        bars(axes, fastest, lambda name: _OURS if name.startswith("Loader") else _PEER, "{:,.0f}".format, most)
    return figure


def batch_chart(found: Mapping[str, Mapping[Look, Sequence[tuple[float, float]]]]) -> Figure:
    """Return the speed by batch size: a panel for each size of crops, a line for each source."""
    figure, panels = begin("Samples per second by batch size (logarithmic)", list(found), _SOURCES, columns=2)
    for axes, curves in zip(panels, found.values(), strict=True):
        draw_lines(axes, curves, is_log=True)
    return figure


def behind_chart(found: Mapping[str, float]) -> Figure:
    """Return the shares of other ways' speed: a bar for each, and a line where both are as fast."""
    figure, (axes,) = begin(
        "Speed of what is named first, as a share of the second's; 1.0 is as fast", ["Where it is not faster"],
        (_OURS,), height=_BAR_HEIGHT * len(found) + 0.4,
    )  # fmt: skip
    bars(axes, found, lambda _: _OURS, "{:.2f}".format, len(found))
    axes.set_xlim(0, 1.08)
    axes.axvline(1.0, color=FOLDER, linewidth=1.0)
    return figure


def draw(tables: Path = TABLES, results: Path = RESULTS) -> dict[str, str]:
    """Return the drawings by their names."""
    text = tables.read_text("utf-8")
    found, sizes, shares = loading(text), by_batch(text), behind(text, results)
    told = "; ".join(
        f"{kind}: " + ", ".join(f"{name} {value:,.0f}" for name, value in ways.items()) for kind, ways in found.items()
    )
    return {
        "two-cores.svg": drawing(
            loading_chart(found), title="Samples per second on two CPU cores", description=told
        ),
        "batch-sizes.svg": drawing(
            batch_chart(sizes), title="Samples per second by batch size",
            description="Lines: the Loader, torch's DataLoader over the dataset, and over PNG files.",
        ),
        "not-faster.svg": drawing(
            behind_chart(shares), title="Where lmdbloader is not faster",
            description="; ".join(f"{name}: {value:.2f}" for name, value in shares.items()),
        ),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw into a folder; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PICTURES, metavar="DIR", help="default: docs/benchmarks/pictures")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, text in draw().items():
        (options.out / name).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
