"""Bytes of a dataset in addition to its payloads, for each sample, by the number of samples: a table and a chart."""

from __future__ import annotations

import argparse
import io
import math
import shutil
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from common import disk_nbytes, photographs, print_sections, table

import lmdbloader
from lmdbloader import fields

KINDS = ("32 x 32 pixels, label", "96 x 96 pixels, label", "JPEG file of a photograph, label")
# Of 3, 27 and about 12 KB: as many as take some hundred megabytes at most.
MOST = (100_000, 10_000, 30_000)
QUICK_MOST = (100, 100, 100)
_LIGHT = "--ink: #1c1c1c; --frame: #d8d8d8; --c0: #1c5d99; --c1: #d1495b; --c2: #3a7d44;"
_DARK = "--ink: #e8e8e8; --frame: #444444; --c0: #6fa8dc; --c1: #f07f8c; --c2: #7cc48a;"
# The documentation puts the drawing into a page, which has other drawings, and a switch for dark colors.
_STYLE = f"""
    .overhead {{ font: 13px system-ui, sans-serif; {_LIGHT} }}
    @media (prefers-color-scheme: dark) {{ svg.overhead:root {{ {_DARK} }} }}
    [data-md-color-scheme="slate"] .overhead {{ {_DARK} }}
    .overhead text {{ fill: var(--ink); }}
    .overhead .frame {{ stroke: var(--frame); fill: none; }}
    .overhead .line {{ fill: none; stroke-width: 2; }}
    .overhead .k0 {{ stroke: var(--c0); }} .overhead .k1 {{ stroke: var(--c1); }} .overhead .k2 {{ stroke: var(--c2); }}
    .overhead .d0 {{ fill: var(--c0); }} .overhead .d1 {{ fill: var(--c1); }} .overhead .d2 {{ fill: var(--c2); }}"""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 380, 70, 230, 36, 46


def samples(kind: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield samples of one kind, cut from real photographs."""
    rng = np.random.default_rng(0)
    images = photographs()
    for number in range(count):
        side = (32, 96, 224)[kind]
        image = images[number % len(images)]
        top, left = (int(rng.integers(edge - side)) for edge in image.shape[:2])
        pixels = np.ascontiguousarray(image[top : top + side, left : left + side])
        yield {"image": pixels if kind < 2 else _as_jpeg(pixels), "label": number % 1000}


def _as_jpeg(pixels: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def measure(kind: int, count: int, folder: Path) -> dict[str, float]:
    """Write a dataset, and return its bytes for each sample: payloads, and what is added to them."""
    out = folder / f"{kind}-{count}.lmdb"
    options: dict[str, Any] = {"write_mode": "original"} if kind == 2 else {"codec": "raw"}
    declared = {"image": fields.Image()} if kind == 2 else None
    lmdbloader.write(samples(kind, count), out, fields=declared, **options)
    sizes = lmdbloader.info(out).sizes
    files = {path.name: path.stat().st_size for path in out.iterdir()}
    found = {
        "payload": sizes["payload_nbytes"] / count,
        "data.mdb": (sizes["data_nbytes"] - sizes["payload_nbytes"]) / count,
        "index.arrow": files["index.arrow"] / count,
        "manifest.json": files["manifest.json"] / count,
        "overhead": (sum(files.values()) - sizes["payload_nbytes"]) / count,
        "on disk": disk_nbytes(out) / count,
    }
    shutil.rmtree(out)
    return found


def counts(most: int) -> list[int]:
    """Return 1, 10, 100 ... and the largest number of samples.

    >>> counts(30_000)
    [1, 10, 100, 1000, 10000, 30000]
    """
    return sorted({*(10**k for k in range(int(math.log10(most)) + 1)), most})


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield a section for each kind of sample."""
    curves: list[list[tuple[int, float]]] = []
    for kind, (name, most) in enumerate(zip(KINDS, QUICK_MOST if options.quick else MOST, strict=True)):
        found = {count: measure(kind, count, folder) for count in counts(most)}
        curves.append([(count, row["overhead"]) for count, row in found.items()])
        rows = [
            [
                f"{count:,}",
                *(f"{row[part]:,.1f}" for part in ("payload", "data.mdb", "index.arrow", "manifest.json", "overhead")),
                f"{row['overhead'] / row['payload']:.1%}",
                f"{row['on disk']:,.0f}",
            ]
            for count, row in found.items()
        ]
        header = [
            "samples", "payload", "+ data.mdb", "+ index.arrow", "+ manifest.json", "overhead", "of the payload",
            "on the disk",
        ]  # fmt: skip
        yield name, {str(count): row for count, row in found.items()}, table(header, rows, markdown=options.markdown)
    if options.svg is not None:
        options.svg.write_text(draw(KINDS, curves), "utf-8")


def draw(names: Sequence[str], curves: Sequence[Sequence[tuple[int, float]]]) -> str:
    """Return an SVG of the overhead over the number of samples, both logarithmic."""
    points = [point for curve in curves for point in curve]
    right = math.ceil(math.log10(max(count for count, _ in points)))
    low = math.floor(math.log10(min(value for _, value in points)))
    high = math.ceil(math.log10(max(value for _, value in points)))

    def x(count: float) -> float:
        return _LEFT + math.log10(count) / max(right, 1) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + (high - math.log10(value)) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<text x="{_LEFT}" y="20">Bytes for each sample, in addition to its payload</text>']
    for power in range(right + 1):
        at = x(10**power)
        parts.append(f'<line class="frame" x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{10**power:,}</text>')
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<line class="frame" x1="{_LEFT}" y1="{at:.1f}" x2="{_WIDTH - _RIGHT}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">samples</text>')
    ends = sorted((y(curve[-1][1]), number) for number, curve in enumerate(curves))
    label = -math.inf
    for end, number in ends:
        curve = curves[number]
        places = " ".join(f"{x(count):.1f},{y(value):.1f}" for count, value in curve)
        parts.append(f'<polyline class="line k{number}" points="{places}"/>')
        parts += [f'<circle class="d{number}" cx="{x(c):.1f}" cy="{y(v):.1f}" r="3.5"/>' for c, v in curve]
        label = max(label + 18, end + 4)  # labels do not cover each other
        text = f"{names[number].partition(',')[0]}: {curve[-1][1]:,.0f}"
        parts.append(f'<text class="d{number}" x="{_WIDTH - _RIGHT + 10}" y="{label:.1f}">{escape(text)}</text>')
    body = "\n".join(parts)
    title = "Overhead in bytes a sample, by the number of samples"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" class="drawing overhead" '
        f'role="img" aria-label="{title}">\n'
        f"<title>{title}</title>\n<style>{_STYLE}\n</style>\n{body}\n</svg>\n"
    )


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few samples, for a test")
    parser.add_argument("--folder", type=Path, help="write here (default: a temporary folder)")
    parser.add_argument("--markdown", action="store_true", help="print tables for the documentation")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--svg", type=Path, help="draw the chart into this file")
    options = parser.parse_args()
    print_sections(lambda folder: run(folder, options), "Bytes for each sample", options)


if __name__ == "__main__":
    main()
