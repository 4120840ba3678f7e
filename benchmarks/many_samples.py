"""Measures what the number of samples costs: opening, the first batch, memory, a new epoch, and random reading.

Two datasets of images of 2 x 2 pixels, one of them a hundred times larger. Everything about one process is taken in
fresh ones; the CPU time of a sample is compared in one process, in turns of both datasets, because caches and other
programs change it from minute to minute.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import mib, print_sections, table
from fresh import in_fresh_process, in_this_process

from lmdbloader import LMDBDataset, Loader
from lmdbloader.format.codecs import Payloads
from lmdbloader.format.layout import make_field
from lmdbloader.format.manifest import Description
from lmdbloader.kernels import entries
from lmdbloader.store import Chunk, Work, encode_blocks, estimate_map_nbytes, join

SIDE, CHANNELS = 2, 3
NBYTES = SIDE * SIDE * CHANNELS
ORDERS = ("random", "quasi_random", "sequential")
BATCH_SIZE = 256
_AT_ONCE = 100_000
# The bar: seconds, bytes, and the ratio of the CPU times of a sample.
OPEN_SECONDS, FIRST_BATCH_SECONDS, PRIVATE_NBYTES, RANDOM_RATIO = 0.1, 1.0, 200e6, 1.5

_PRIVATE = """
import sys, time
from common import rss_anon
import torch
from lmdbloader import LMDBDataset, Loader
imported = rss_anon()
"""
# Printed: seconds to open, to the first batch from then on, bytes after imports, after opening, after some batches.
_BEGIN = (
    _PRIVATE
    + """
began = time.perf_counter()
ds = LMDBDataset(sys.argv[1])
opened, memory = time.perf_counter(), rss_anon()
batches = iter(Loader(ds, 256, order={order!r}, seed=1, num_threads={threads}))
next(batches)
first = time.perf_counter()
for _ in range(2000):
    if next(batches, None) is None:
        break
print(opened - began, first - opened, imported, memory, rss_anon())
"""
)
# Printed: for the end of an epoch and the first batch of the next, the median step and the step between the epochs.
_PAUSE = (
    _PRIVATE
    + """
import statistics
loader = Loader(LMDBDataset(sys.argv[1]), 256, order={order!r}, seed=1, num_threads={threads})
steps = 200
for _ in loader:
    break
state = loader.state_dict()
loader.load_state_dict({{**state, "position": max(len(loader.dataset) - 256 * steps, 0)}})
took = []
for _ in range(2):
    at = time.perf_counter()
    for number, _ in enumerate(loader):
        took.append(time.perf_counter() - at)
        at = time.perf_counter()
        if len(took) > 2 * steps:
            break
print(statistics.median(took), took[steps], max(took[1:steps] + took[steps + 1:]), rss_anon())
"""
)


def write_many(path: Path, count: int) -> None:
    """Write images of 2 x 2 pixels with a label each, the sample's number modulo 1,000."""
    fields = (make_field("image", "image", "raw"), make_field("label", "int"))
    description, work = Description(fields, False, {}, {}), Work(path)
    work.begin({})
    with work.part(0, description, map_nbytes=estimate_map_nbytes(count * NBYTES, count)) as writer:
        for first in range(0, count, _AT_ONCE):
            chunk = _chunk(np.arange(first, min(first + _AT_ONCE, count)))
            writer.add(chunk, encode_blocks(chunk, fields, with_source=False))
        facts = work.complete(0, writer, {})
    join(work, [facts], description)


def _chunk(numbers: npt.NDArray[np.int64]) -> Chunk:
    count = len(numbers)
    pixels = (numbers[:, None] * 31 + np.arange(NBYTES)).astype(np.uint8).reshape(-1)
    lengths, sums = np.full(count, NBYTES), np.empty(count, np.uint64)
    entries.hash_many(pixels, np.arange(count) * NBYTES, lengths, sums)
    payloads = Payloads(pixels, lengths, lengths, sums, np.zeros(count, np.uint8))
    geometry = {"height": SIDE, "width": SIDE, "channels": CHANNELS, "bits": 8}
    columns = {f"image.{part}": np.full(count, value) for part, value in geometry.items()}
    return Chunk(count, {"image": payloads}, {"label": numbers % 1000, **columns})


def measure_beginning(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the opening of a dataset, the first batches and the memory, for each order."""
    timed = in_this_process if options.quick else in_fresh_process
    found: dict[str, Any] = {}
    for order in ORDERS:
        opening, first, *memory = timed(_BEGIN.format(order=order, threads=options.threads), str(path))
        names = ("imported", "opened", "private_nbytes")
        found[order] = {"open_seconds": opening, "first_batch_seconds": first, **dict(zip(names, memory, strict=True))}
    return found


def measure_pauses(path: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return for each order the median step, the step between two epochs, and the longest of the others, in seconds."""
    timed = in_this_process if options.quick else in_fresh_process
    names = ("step_seconds", "between_seconds", "longest_seconds", "private_nbytes")
    return {
        order: dict(zip(names, timed(_PAUSE.format(order=order, threads=options.threads), str(path)), strict=True))
        for order in ORDERS
    }


def measure_reading(paths: Sequence[Path], options: argparse.Namespace) -> dict[str, Any]:
    """Return the CPU time of a sample of each dataset in random order, in turns, with one thread."""
    loaders = [Loader(LMDBDataset(path), BATCH_SIZE, order="random", seed=1, num_threads=1) for path in paths]
    turns: list[list[float]] = []
    for turn in range(-options.warm_ups, options.turns):
        pair = []
        for loader in loaders:
            loader.set_epoch(turn + options.warm_ups)
            cpu, count = time.process_time(), 0
            for batch in loader:
                count += len(batch.image)
                if count >= options.samples_a_turn:
                    break
            pair.append((time.process_time() - cpu) / count)
        if turn >= 0:  # in the first ones the pages are mapped, each when it is touched for the first time
            turns.append(pair)
    ratios = [large / small for small, large in turns]
    return {
        "turns": turns, "small": min(t[0] for t in turns), "large": min(t[1] for t in turns),
        "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
    }  # fmt: skip


def hold(path: Path) -> bool:
    """Keep all files of a dataset in memory until this process ends; return whether the system lets it.

    Systems drop pages now and then, even with free memory; a process then finds that it must check all pages again,
    and the figures would be those of the disk.
    """
    libc, held = ctypes.CDLL(None, use_errno=True), True
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 4]
    for file in path.iterdir():
        descriptor, nbytes = os.open(file, os.O_RDONLY), file.stat().st_size
        address = libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        os.close(descriptor)
        held &= libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(nbytes)) == 0
    return held


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the figures and the text of each section."""
    counts = options.samples // 100, options.samples
    paths = [folder / f"{count}.lmdb" for count in counts]
    written = {}
    for path, count in zip(paths, counts, strict=True):
        if not path.exists():
            began = time.perf_counter()
            write_many(path, count)
            sizes = {file.name: file.stat().st_size for file in path.iterdir()}
            written[path.name] = {"seconds": time.perf_counter() - began, "nbytes": sizes}
        written[path.name] = {**written.get(path.name, {}), "held": hold(path)}
    yield "Writing", written, _written_text(written)
    begins = measure_beginning(paths[1], options)
    yield "Opening, the first batch, and private memory", begins, _beginning_text(begins, options)
    pauses = measure_pauses(paths[1], options)
    rows = [[order, *(f"{1000 * f[k]:.2f}" for k in list(f)[:3])] for order, f in pauses.items()]
    header = ["order", "median step, ms", "first step of an epoch", "longest of 399 others"]
    yield "Between two epochs", pauses, table(header, rows, markdown=options.markdown)
    reading = measure_reading(paths, options)
    yield "Random reading", reading, _reading_text(reading, counts, options)
    if not options.keep:
        for path in paths:
            for file in path.iterdir():
                file.unlink()
            path.rmdir()


def _written_text(written: dict[str, Any]) -> str:
    lines = []
    for name, f in written.items():
        size = f"{mib(sum(f['nbytes'].values()))} in {f['seconds']:.1f} s" if "seconds" in f else "was there"
        lines.append(f"{name}: {size}{'' if f['held'] else '; the system does not keep it in memory (ulimit -l)'}")
    return "\n".join(lines)


def _beginning_text(begins: dict[str, Any], options: argparse.Namespace) -> str:
    header = ["order", "open, s", "first batch, s", "private memory after imports", "opening", "2,000 batches"]
    rows = [
        [name, f"{f['open_seconds']:.4f}", f"{f['first_batch_seconds']:.3f}"]
        + [mib(f[key]) for key in ("imported", "opened", "private_nbytes")]
        for name, f in begins.items()
    ]
    verdicts = [
        (f"open in {OPEN_SECONDS} s", statistics.median(f["open_seconds"] for f in begins.values()) < OPEN_SECONDS),
        (
            f"the first random batch in {FIRST_BATCH_SECONDS:.0f} s",
            begins["random"]["first_batch_seconds"] < FIRST_BATCH_SECONDS,
        ),
        ("under 200 MB of private memory", all(f["private_nbytes"] < PRIVATE_NBYTES for f in begins.values())),
    ]
    text = table(header, rows, markdown=options.markdown)
    return text + "\n\n" + "\n".join(f"{what}: {'reached' if is_so else 'MISSED'}" for what, is_so in verdicts)


def _reading_text(reading: dict[str, Any], counts: Sequence[int], options: argparse.Namespace) -> str:
    rows = [
        [f"{count:,}", f"{1e6 * reading[name]:.3f}"] for count, name in zip(counts, ("small", "large"), strict=True)
    ]
    is_reached = reading["ratio"] <= RANDOM_RATIO
    return table(["samples", "CPU us a sample, least of the turns"], rows, markdown=options.markdown) + (
        f"\n\n{reading['ratio']:.2f} x the CPU a sample, the median of {len(reading['turns'])} turns "
        f"({reading['least']:.2f} to {reading['most']:.2f}). The bar, {RANDOM_RATIO}, is "
        f"{'reached' if is_reached else 'MISSED'}."
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10**8, help="of the larger dataset (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=9, help="of random reading (default: %(default)s)")
    parser.add_argument("--warm-ups", type=int, default=3, help="turns before them (default: %(default)s)")
    parser.add_argument("--samples-a-turn", type=int, default=1_000_000, help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of the Loaders (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="for the datasets, 7 GB (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="leave the datasets in the folder, for the next run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--quick", action="store_true", help="tiny datasets, to try it")
    options = parser.parse_args()
    if options.quick:
        options.samples, options.turns, options.samples_a_turn, options.warm_ups = 40_000, 2, 400, 1
    print_sections(lambda folder: run(folder, options), "What the number of samples costs", options)


if __name__ == "__main__":
    main()
