"""Converts photographs into parts by processes of this machine and by tasks of Ray, in turn: images a second.

The photographs are PNG files of 2040 x 1356 pixels; both engines have the same number of workers and make the same
parts of 96x96 patches. The whole time has everything: trying the codecs, starting the workers or the cluster, joining.
The steady rate is of the images in the parts that were finished after the first one of each worker.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from common import print_sections, table, write_mosaics

import lmdbloader
from lmdbloader.ray import convert as convert_by_ray
from lmdbloader.store import read_manifest

ENGINES: dict[str, Callable[..., Any]] = {"local": lmdbloader.convert, "ray": convert_by_ray}


def turn(engine: str, photographs: Path, out: Path, options: argparse.Namespace) -> dict[str, float]:
    """Convert once; return images a second of the whole and of the steady state, seconds until it, and CPU seconds."""
    used, begun = _cpu_seconds(), time.perf_counter()
    report = ENGINES[engine](
        photographs, out, parts=options.parts, workers=options.workers, patch_size=96, stride=96, progress=False
    )
    seconds = time.perf_counter() - begun
    # Each photograph has as many patches as any other.
    manifest = read_manifest(out)
    times = [(out / name).stat().st_mtime for name in manifest.data_files]
    parts = sorted(zip(times, (part.num_samples for part in manifest.parts), strict=True))
    after = parts[options.workers :]
    first = parts[options.workers - 1][0]
    patches_a_second = sum(count for _, count in after) / (parts[-1][0] - first)
    steady = patches_a_second * report.num_sources / report.num_samples
    return {
        "images_per_s": report.num_sources / seconds,
        "steady_images_per_s": steady,
        "start_seconds": seconds - report.num_sources / steady,
        "cpu_seconds": _cpu_seconds() - used,
        "seconds": seconds,
    }


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it has started and that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the figures and the text of each section."""
    photographs = folder / "photographs"
    size = (400, 300) if options.quick else (2040, 1356)
    if not photographs.exists():
        write_mosaics(photographs, options.count, width=size[0], height=size[1])
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ENGINES}
    for number in range(options.repeats):
        for name in list(ENGINES)[:: -1 if number % 2 else 1]:
            out = folder / "out.lmdb"
            found[name].append(turn(name, photographs, out, options))
            shutil.rmtree(out)
    rows = []
    for name, turns in found.items():
        medians = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        rows.append(
            [name]
            + [f"{medians[key]:.1f}" for key in ("images_per_s", "steady_images_per_s", "seconds", "start_seconds")]
            + [f"{medians['cpu_seconds']:.1f}"]
        )
    header = ["engine", "images/s", "steady images/s", "s", "of which not steady, s", "CPU s of processes that ended"]
    pairs = zip(found["local"], found["ray"], strict=True)
    ratios = [ray["steady_images_per_s"] / local["steady_images_per_s"] for local, ray in pairs]
    whole = [b["images_per_s"] / a["images_per_s"] for a, b in zip(found["local"], found["ray"], strict=True)]
    text = table(header, rows, markdown=options.markdown)
    text += f"\n\nRay: {statistics.median(ratios):.2f} of the local engine in the steady state, "
    text += f"{statistics.median(whole):.2f} in the whole time (each turn: "
    text += ", ".join(f"{a:.2f} and {b:.2f}" for a, b in zip(ratios, whole, strict=True)) + ")"
    yield "images a second", {**found, "steady_ratios": ratios, "ratios": whole}, text


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=4000, help="photographs (default 4000, of which 48 differ)")
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2, help="turns of each engine (default 2)")
    parser.add_argument("--folder", type=Path, help="keep the photographs here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="some seconds: does it still run?")
    options = parser.parse_args(arguments)
    if options.quick:
        options.count, options.parts, options.repeats = 6, 3, 1
    return options


def main() -> None:
    """Measure, and print the table."""
    options = parse_options()
    title = f"{options.count} photographs, {options.parts} parts, {options.workers} workers"
    print_sections(lambda folder: run(folder, options), title, options)


if __name__ == "__main__":
    main()
