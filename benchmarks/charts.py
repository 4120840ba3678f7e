"""Draws the charts of docs/benchmarks/index.md from the stored results; no number is typed by hand.

    python benchmarks/charts.py

The results are the files in benchmarks/results that the other scripts wrote.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from drawing import DATALOADER, FOLDER, INK, LOADER, Look, begin, draw_lines, drawing
from figures import crops_of_patches, read, steady_on_ray, worst_in_workers, writing
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "benchmarks" / "pictures"

_OURS, _PEER = Look("Loader", LOADER, "s", "none"), Look("other ways", FOLDER, "s", "none")
_SOURCES = (
    Look("Loader", LOADER),
    Look("DataLoader (LMDB)", DATALOADER, "s", "--"),
    Look("DataLoader (files)", FOLDER, "^", ":"),
)
_BAR_HEIGHT = 0.28


# --- Results ---


def loading() -> dict[str, dict[str, float]]:
    """Return samples per second, by kind of samples and by way of loading; each way with its best setting."""
    images, pairs = read("images")["speed"], read("loader")["pairs"]
    names = {
        "folder, Pillow": "DataLoader, files, Pillow", "LMDB of the files, Pillow": "DataLoader, LMDB, Pillow",
        "decoding whole files only": "decoding alone (simplejpeg)", "original": "Loader, JPEG files",
        "recoded": "Loader, recoded JPEGs", "raw256": "Loader, pixels",
    }  # fmt: skip
    ways = {"LMDB by hand": "DataLoader, LMDB by hand", "Loader lz4": "Loader, lz4", "Loader raw": "Loader, pixels"}
    photographs: dict[str, float] = {}
    for name, pixels, batch_size, _, speed in images:
        if (pixels, batch_size) == (224, 64) and name in names:
            photographs[names[name]] = max(photographs.get(names[name], 0.0), speed)
    # Checksums are verified in all but the rows that say otherwise.
    best: dict[str, float] = {}
    for name, _, _, detail, speed in pairs:
        if detail != "not verified" and name in ways:
            best[ways[name]] = max(best.get(ways[name], 0.0), speed)
    return {
        "photographs of 500 x 375 pixels, random crops to 224": photographs,
        "pairs of patches, 96 and 48 pixels, turned at random": best,
    }


def by_batch() -> dict[str, dict[Look, list[tuple[float, float]]]]:
    """Return samples per second by batch size of each source: a dict for each size of crops."""
    looks = dict(zip(("lmdbloader", "dataloader", "folder"), _SOURCES, strict=True))
    found: dict[str, dict[Look, list[tuple[float, float]]]] = {}
    for row in read("bench")["rows"]:
        curves = found.setdefault(f"crops of {row['crop']} pixels", {})
        speed = statistics.median(row["turns"])
        curves.setdefault(looks[row["source"]], []).append((row["batch_size"], speed))
    return found


def behind() -> dict[str, float]:
    """Return where this package is not ahead: its speed as a share of another way's."""
    return {
        "writing arrays / LMDB's put in a loop": writing(),
        "converting on Ray / on the local engine": steady_on_ray(),
        "DataLoader with a worker, at worst / LMDB by hand": worst_in_workers(),
        "crops of 2K photographs / patches cut before": crops_of_patches(),
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
    drawn = axes.barh(range(len(found)), list(found.values()), 0.68, color=[look(name).color for name in found])
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


def draw() -> dict[str, str]:
    """Return the drawings by their names."""
    found, sizes, shares = loading(), by_batch(), behind()
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
