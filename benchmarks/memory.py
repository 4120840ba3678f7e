"""Measures memory of reading and converting by the size of the input, the time of opening, and wasted pages.

Memory is anonymous memory (RssAnon), at its peak, of a fresh process and of the processes that it starts; pages of the
mapped dataset belong to the page cache and are not counted. Every figure is taken at N samples and at ten times N.
N photographs become several parts, as ten times N do: the records of a single part come to this process in shared
memory, which is not counted, and those of several are in the anonymous memory of the workers that write them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    PeakMemory,
    cut_pairs,
    environment,
    environment_text,
    mib,
    photographs,
    table,
    write_mosaics,
)

import lmdbloader
from lmdbloader.base.cores import count_cores

PATCH_SIZES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
OPENED_SAMPLES = 100_000
_RATIO_NBYTES = 32 * 2**20


def write_pairs(path: Path, count: int) -> None:
    """Write `count` pairs; beyond 1000 they repeat, which affects neither reading nor its memory."""
    import torch  # here, so that a process that converts does not carry it

    pairs = cut_pairs(min(count, 1000))
    lmdbloader.write(
        (
            {"lr": torch.from_numpy(pairs.lr[i % len(pairs)]), "hr": torch.from_numpy(pairs.hr[i % len(pairs)])}
            for i in range(count)
        ),
        path,
        codec="lz4",
    )


def link_photographs(source: Path, folder: Path, count: int) -> None:
    """Fill a folder with `count` photographs: those of another one again and again."""
    files = sorted(source.iterdir())
    folder.mkdir()
    for number in range(count):
        os.link(files[number % len(files)], folder / f"{number:06d}.png")


def read_epoch(path: str, workers: int) -> dict[str, int]:
    """Read one epoch in random order and return the peak memory in bytes."""
    with PeakMemory() as memory:
        loader = lmdbloader.dataloader(lmdbloader.LMDBDataset(path), 64, shuffle=True, num_workers=workers)
        for batch in loader:
            batch.hr.numpy().max()  # torch would sum uint8 through int64, and its copies would be measured
    return {"before": memory.before, "own": memory.own, "children": memory.children}


def convert_folder(source: str, out: str, workers: int) -> dict[str, int]:
    """Convert photographs to pairs and return the peak memory in bytes."""
    with PeakMemory() as memory:
        lmdbloader.convert(source, out, patch_size=96, scale=2, workers=workers)
    return {"before": memory.before, "own": memory.own, "children": memory.children}


def in_fresh_process(job: str, *arguments: object) -> dict[str, Any]:
    """Run one of this script's jobs in a new interpreter and return its result."""
    command = [sys.executable, __file__, "--job", job, *map(str, arguments)]
    child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(child.stdout)
    return found


def measure_growth(folder: Path, options: argparse.Namespace) -> dict[str, list[dict[str, int]]]:
    """Return the memory of every job at N and at ten times N."""
    found: dict[str, list[dict[str, int]]] = {}
    run = run_job if options.quick else in_fresh_process
    for factor in (1, 10):
        count = options.pairs * factor
        write_pairs(folder / "pairs", count)
        for workers in options.reading_workers:
            result = run("read", folder / "pairs", workers)
            found.setdefault(f"read, {workers} workers", []).append({"count": count, **result})
        subprocess.run(["rm", "-r", folder / "pairs"], check=True)
    width, height = (400, 300) if options.quick else (2040, 1356)
    write_mosaics(folder / "some", min(options.photographs, 8), width=width, height=height)
    for factor in (1, 10):
        count = options.photographs * factor
        link_photographs(folder / "some", folder / f"many{factor}", count)
        result = run("convert", folder / f"many{factor}", folder / f"out{factor}", options.workers)
        found.setdefault(f"convert, {options.workers} processes", []).append({"count": count, **result})
        subprocess.run(["rm", "-r", folder / f"out{factor}"], check=True)
    return found


def growth_rows(found: dict[str, list[dict[str, int]]]) -> list[list[str]]:
    """Return one row a job, with the growth of this process and of those that it started together."""
    rows = []
    for job, (small, large) in found.items():
        row = [job, f"{small['count']:,} / {large['count']:,}"]
        for who in ("own", "children"):
            row += [mib(small[who]), mib(large[who]), f"{(large[who] - small[who]) / 2**20:+.1f} MiB"]
        rows.append(row)
    return rows


GROWTH_HEADER = (
    "job", "N / 10 N", "process, N", "10 N", "growth", "its processes, N", "10 N", "growth",
)  # fmt: skip


def open_often(path: str) -> dict[str, float]:
    """Return the milliseconds of the first opening in a process, of the later ones, and of reading one sample."""
    took = []
    dataset_type = lmdbloader.LMDBDataset  # imports torch
    for _ in range(21):
        began = time.perf_counter()
        ds = dataset_type(path)
        took.append((time.perf_counter() - began) * 1000)
    began = time.perf_counter()
    ds[len(ds) // 2]
    return {"first": took[0], "median": statistics.median(took[1:]), "sample": (time.perf_counter() - began) * 1000}


def measure_opening(folder: Path, count: int) -> dict[str, float]:
    """Return the seconds of opening a dataset of `count` samples in a fresh process."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 3), dtype=np.uint8)
    lmdbloader.write(({"image": pixels[i % 64], "label": i % 1000} for i in range(count)), folder / "many")
    return in_fresh_process("open", folder / "many")


def cut_squares(side: int, nbytes: int) -> Iterator[dict[str, Any]]:
    """Yield square patches of real photographs, `nbytes` together."""
    sources = [p for p in photographs() if min(p.shape[:2]) >= side]
    rng = np.random.default_rng(side)
    for number in range(max(2, nbytes // (3 * side * side))):
        image = sources[number % len(sources)]
        top, left = rng.integers(image.shape[0] - side + 1), rng.integers(image.shape[1] - side + 1)
        yield {"image": np.ascontiguousarray(image[top : top + side, left : left + side])}


def measure_waste(folder: Path, sides: Sequence[int], nbytes: int) -> list[dict[str, Any]]:
    """Return the sizes of datasets of one patch size each."""
    found = []
    for codec in ("raw", "lz4"):
        for side in sides:
            path = folder / f"{codec}{side}"
            written = lmdbloader.write(cut_squares(side, nbytes), path, codec=codec)
            found.append({"codec": codec, "side": side, "num_samples": written.num_samples, **written.sizes})
            subprocess.run(["rm", "-r", path], check=True)
    return found


def waste_rows(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return one row a patch size: data.mdb against its payloads, and the index."""
    rows = []
    for raw in (f for f in found if f["codec"] == "raw"):
        lz4 = next(f for f in found if f["codec"] == "lz4" and f["side"] == raw["side"])
        row = [f"{raw['side']}x{raw['side']}", f"{raw['num_samples']:,}"]
        row += [f"{f['data_nbytes'] / f['payload_nbytes']:.3f}" for f in (raw, lz4)]
        row += [f"{lz4['payload_nbytes'] / lz4['raw_nbytes']:.2f}", f"{raw['index_nbytes'] / raw['num_samples']:.0f}"]
        rows.append(row)
    return rows


WASTE_HEADER = ("patch", "samples", "data.mdb / payload, raw", "lz4", "lz4 of the pixels", "index bytes a sample")


def report(
    growth: dict[str, list[dict[str, int]]],
    opening: dict[str, float],
    opened: int,
    waste: Sequence[dict[str, Any]],
    *,
    markdown: bool,
) -> str:
    """Return every table as text."""
    worst = max(f["data_nbytes"] / f["payload_nbytes"] for f in waste)
    return "\n\n".join(
        [
            table(GROWTH_HEADER, growth_rows(growth), markdown=markdown),
            f"Opening a dataset of {opened:,} samples takes {opening['median']:.1f} ms, {opening['first']:.1f} ms the "
            f"first time in a process; the first sample, which loads the compiled code, {opening['sample']:.1f} ms.",
            table(WASTE_HEADER, waste_rows(waste), markdown=markdown),
            f"data.mdb takes at most {worst:.3f} x its payloads.",
        ]
    )


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2000, help="N of reading (default 2000)")
    parser.add_argument("--photographs", type=int, default=80, help="N of converting, 2040 x 1356 each (default 80)")
    parser.add_argument(
        "--workers", type=int, default=count_cores(), help="processes of converting (default: the cores)"
    )
    parser.add_argument("--reading-workers", type=int, nargs="+", default=[0, 2], metavar="N")
    parser.add_argument("--folder", type=Path, help="write here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it still run?")
    parser.add_argument("--job", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def run_job(job: str, *arguments: Any) -> dict[str, Any]:
    """Run the job of `in_fresh_process`, in this process."""
    if job == "read":
        return read_epoch(str(arguments[0]), int(arguments[1]))
    if job == "convert":
        return convert_folder(str(arguments[0]), str(arguments[1]), int(arguments[2]))
    return open_often(str(arguments[0]))


def main() -> None:
    """Measure everything and print the tables."""
    options = parse_options()
    if options.job:
        print(json.dumps(run_job(*options.job)))
        return
    sides, nbytes, opened = PATCH_SIZES, _RATIO_NBYTES, OPENED_SAMPLES
    if options.quick:
        options.pairs, options.photographs, options.workers, options.reading_workers = 32, 2, 1, [0]
        sides, nbytes, opened = (16, 96, 192), 2**20, 1000
    with tempfile.TemporaryDirectory(prefix="lmdbloader-memory-", dir=options.folder) as temporary:
        folder = Path(temporary)
        found = environment(folder)
        growth = measure_growth(folder, options)
        opening = measure_opening(folder, opened)
        waste = measure_waste(folder, sides, nbytes)
    print(environment_text(found, sys.argv[1:], markdown=options.markdown) + "\n")
    print(report(growth, opening, opened, waste, markdown=options.markdown))
    if options.json:
        result = {"environment": found, "growth": growth, "opening": opening, "waste": waste}
        options.json.write_text(json.dumps(result, indent=1), "utf-8")


if __name__ == "__main__":
    main()
