"""Reads a dataset of many parts with the Loader, and the same samples in one part, in turn: CPU time a sample.

Both are read from the disk first, as an epoch of training does. Files that were just written or copied can be faster:
Linux may keep them in larger pages, more of them in one large file than in many small ones. `--small-pages` forbids
large pages in this process, so that both are mapped alike in any case.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from common import photographs, print_sections, table

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.store import Work, encode_blocks, estimate_map_nbytes, join
from lmdbloader.store.copying import copied_samples

SIDE = 96
ORDERS = ("random", "quasi_random", "sequential")
_NO_LARGE_PAGES = 41  # PR_SET_THP_DISABLE of prctl


def write(folder: Path, num_parts: int, num_samples: int) -> None:
    """Write patches of photographs into a dataset of many parts and one of a single part; what is there is kept."""
    if (folder / "many").exists():
        return
    photos, rng = photographs(), np.random.default_rng(0)

    def patch(number: int) -> dict[str, Any]:
        photo = photos[number % len(photos)]
        top, left = (int(rng.integers(side - SIDE + 1)) for side in photo.shape[:2])
        return {"image": np.ascontiguousarray(photo[top : top + SIDE, left : left + SIDE]), "label": number}

    lmdbloader.write(map(patch, range(num_parts * num_samples)), folder / "written", codec="raw")
    copy(folder / "written", folder / "one", 1)
    copy(folder / "written", folder / "many", num_parts)
    shutil.rmtree(folder / "written")


def copy(source: Path, out: Path, num_parts: int) -> None:
    """Write the samples of a dataset into another one of so many parts."""
    reader, work, facts = LMDBDataset(source).reader, Work(out), []
    description = reader.manifest.description
    work.begin({})
    bounds = np.linspace(0, reader.manifest.num_samples, num_parts + 1).astype(int).tolist()
    for number, (first, stop) in enumerate(pairwise(bounds)):
        map_nbytes = estimate_map_nbytes((stop - first) * SIDE * SIDE * 3, stop - first)
        with work.part(number, description, map_nbytes=map_nbytes) as writer:
            for chunk in copied_samples(reader, range(first, stop)):
                writer.add(chunk, encode_blocks(chunk, description.fields, with_source=False))
            facts.append(work.complete(number, writer, {}))
    join(work, facts, description)


def read(dataset: LMDBDataset) -> None:
    """Have a Loader read a dataset from the disk, so that its pages are in memory as training leaves them there."""
    for path in Path(dataset.path).glob("data*.mdb"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for _ in Loader(dataset, 256, num_threads=2):
        pass


def turn(dataset: LMDBDataset, order: str, options: argparse.Namespace, seed: int) -> float:
    """Return the CPU microseconds of a sample."""
    loader = Loader(dataset, options.batch_size, order=order, seed=seed, num_threads=2)
    batches = iter(loader)
    next(batches)
    start, until, count = time.process_time(), time.perf_counter() + options.seconds, 0
    for batch in batches:
        count += len(batch.label)
        if time.perf_counter() > until:
            break
    return (time.process_time() - start) / max(count, 1) * 1e6


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the figures and the text of each section."""
    if options.small_pages:
        ctypes.CDLL(None).prctl(_NO_LARGE_PAGES, 1, 0, 0, 0)
    write(folder, options.parts, options.samples)
    begun = time.perf_counter()
    many = LMDBDataset(folder / "many")
    opening = time.perf_counter() - begun
    one = LMDBDataset(folder / "one")
    for dataset in (one, many):
        read(dataset)
    figures, rows = {}, []
    for order in options.orders:
        found: dict[str, list[float]] = {"one": [], "many": []}
        for number in range(options.repeats):
            both = [("one", one), ("many", many)]
            for name, dataset in both if number % 2 else both[::-1]:
                found[name].append(turn(dataset, order, options, number))
        ratios = sorted(b / a for a, b in zip(found["one"], found["many"], strict=True))
        figures[order,] = {**found, "ratio": statistics.median(ratios)}
        medians = [f"{statistics.median(found[name]):.1f}" for name in ("one", "many")]
        quartiles = f"{ratios[len(ratios) // 4]:.2f} to {ratios[-1 - len(ratios) // 4]:.2f}"
        rows.append([order, *medians, f"{statistics.median(ratios):.3f}", quartiles])
    header = ["order", "one part, us", "many, us", "ratio", "half of the turns"]
    yield "CPU time a sample", figures, table(header, rows, markdown=options.markdown)
    yield "opening many", opening, f"{opening:.3f} s"


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=400)
    parser.add_argument("--samples", type=int, default=400, help="of each part, 96x96 pixels (default 400: 11 MB)")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=ORDERS)
    parser.add_argument("--repeats", type=int, default=15, help="turns of each (default 15)")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn (default 0.5)")
    parser.add_argument("--small-pages", action="store_true", help="forbid large pages in this process")
    parser.add_argument("--folder", type=Path, help="keep the datasets here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="some seconds: does it still run?")
    options = parser.parse_args(arguments)
    if options.quick:
        options.parts, options.samples, options.batch_size, options.repeats, options.seconds = 3, 20, 4, 2, 0.02
    return options


def main() -> None:
    """Measure, and print the tables."""
    options = parse_options()
    title = f"{options.parts} parts of {options.samples} samples, batches of {options.batch_size}, two threads"
    print_sections(lambda folder: run(folder, options), title, options)


if __name__ == "__main__":
    main()
