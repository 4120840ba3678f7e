"""Times reading pairs for training: PNG files, HDF5, the hand-written LMDB and LMDBDataset, on the same patches.

Every store is read through torch's DataLoader in random order, and float32 tensors (B, 3, 48, 48) and (B, 3, 96, 96)
come out. People convert uint8 to float32 at different places, and set torch's threads differently: all of that is
measured for every store alike, and its fastest setting counts. The stores take turns; medians of the turns are shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Pairs, PeakMemory, cut_pairs, disk_nbytes, environment, environment_text, mib, table
from stores import HAND_WRITTEN, OURS_LZ4, STORES, Conversion, Store, floats, open_dataset, open_loader

BATCH_SIZES, WORKERS = (8, 16, 32, 64, 128), (0, 1, 2)
MEMORY_BATCH_SIZE = 128


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting to time: a store, how it is read, and torch's number of threads in the consumer."""

    store: str
    batch_size: int
    workers: int
    conversion: Conversion
    threads: int


@dataclass(frozen=True, slots=True)
class Figure:
    """The result of one setting.

    Attributes:
        setting: Of it.
        turns: Pairs per second of every turn.
        pairs_per_s: Their median.
        p50_ms, p99_ms: Latency of a batch over all turns, from asking for it to having it as float32.
        cpu_us: Microseconds of this process's CPU time for a pair, all threads, the median turn. Without workers it
            compares stores on a machine that others use too.
    """

    setting: Setting
    turns: tuple[float, ...]
    pairs_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: pairs per second, CPU seconds of this process for a pair, and the seconds of every batch."""

    pairs_per_s: float
    cpu_seconds: float
    latencies: list[float]


def take_turn(batches: Iterator[Any], setting: Setting, seconds: float) -> Turn:
    """Read batches for the given seconds."""
    torch.set_num_threads(setting.threads)
    latencies: list[float] = []
    cpu = time.process_time()
    began = before = time.perf_counter()
    while before - began < seconds:
        batch = next(batches)
        if setting.conversion == "consumer":
            batch = floats(batch)
        now = time.perf_counter()
        latencies.append(now - before)
        before = now
    pairs = len(latencies) * setting.batch_size
    return Turn(pairs / (before - began), (time.process_time() - cpu) / pairs, latencies)


def time_stores(stores: Sequence[Store], folder: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """Yield the figures of every setting; those with one batch size and number of workers take turns."""
    for workers in options.workers:
        for batch_size in options.batch_sizes:
            settings = [
                (store, Setting(store.name, batch_size, workers, conversion, threads))
                for store in stores
                for conversion in store.conversions
                if workers or conversion != "collate"  # without workers that is the consumer
                for threads in options.threads
            ]
            yield from _time_settings(settings, folder, options)
            for store in stores:
                store.close(folder / store.name)


def _time_settings(
    settings: Sequence[tuple[Store, Setting]], folder: Path, options: argparse.Namespace
) -> Iterator[Figure]:
    loaders: dict[tuple[str, Conversion], Any] = {}
    for store, setting in settings:
        key = (setting.store, setting.conversion)
        if key not in loaders:
            loaders[key] = open_loader(
                store,
                folder / setting.store,
                setting.conversion,
                batch_size=setting.batch_size,
                workers=setting.workers,
                seed=1,
            )
            for _, _ in zip(range(2 * setting.workers + 2), loaders[key], strict=False):
                pass  # loads the kernels, opens, starts the workers
    turns: dict[Setting, list[Turn]] = {setting: [] for _, setting in settings}
    for _ in range(options.repeats):
        for _, setting in settings:
            # A new iterator first drops the batches that its workers prepared meanwhile, so no turn has a lead.
            batches = iter(loaders[setting.store, setting.conversion])
            turns[setting].append(take_turn(batches, setting, options.seconds))
    for setting, taken in turns.items():
        speeds = tuple(turn.pairs_per_s for turn in taken)
        p50, p99 = np.percentile([s for turn in taken for s in turn.latencies], [50, 99]) * 1000
        cpu_us = statistics.median(turn.cpu_seconds for turn in taken) * 1e6
        yield Figure(setting, speeds, statistics.median(speeds), float(p50), float(p99), cpu_us)


def check_stores(stores: Sequence[Store], folder: Path, pairs: Pairs) -> None:
    """Refuse to compare stores that do not yield the same pixels."""
    for store in stores:
        dataset = open_dataset(store, folder / store.name)
        for i in np.linspace(0, len(pairs) - 1, 50).astype(int).tolist():
            lr, hr = dataset[i]
            if not (np.array_equal(lr, pairs.lr[i]) and np.array_equal(hr, pairs.hr[i])):
                raise SystemExit(f"{store.name}: pair {i} is not the one that was written")
        store.close(folder / store.name)


def measure_memory(store: Store, folder: Path, workers: int, seconds: float) -> dict[str, int]:
    """Return the peak RssAnon of a fresh process that reads a store, and of its workers together."""
    command = [sys.executable, __file__, "--memory-of", store.name, "--folder", str(folder)]
    command += ["--workers", str(workers), "--seconds", str(seconds)]
    child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, int] = json.loads(child.stdout)
    return found


def read_and_watch(store: Store, folder: Path, workers: int, seconds: float) -> dict[str, int]:
    """Read a store in this process and return its memory in bytes."""
    with PeakMemory() as memory:
        loader = open_loader(
            store, folder / store.name, "consumer", batch_size=MEMORY_BATCH_SIZE, workers=workers, seed=1
        )
        take_turn(
            iter(loader),
            Setting(store.name, MEMORY_BATCH_SIZE, workers, "consumer", torch.get_num_threads()),
            max(seconds, 0.3),
        )
    return {"before": memory.before, "own": memory.own, "workers": memory.children}


def best_of(figures: Sequence[Figure]) -> dict[tuple[str, int, int], Figure]:
    """Return the fastest figure of each (store, batch size, workers)."""
    best: dict[tuple[str, int, int], Figure] = {}
    for figure in figures:
        key = (figure.setting.store, figure.setting.batch_size, figure.setting.workers)
        if key not in best or figure.pairs_per_s > best[key].pairs_per_s:
            best[key] = figure
    return best


def speed_rows(figures: Sequence[Figure]) -> list[list[str]]:
    """Return one row a store, batch size and number of workers, with ratios to the hand-written LMDB."""
    best = best_of(figures)
    rows = []
    for (store, batch_size, workers), figure in best.items():
        same = best.get((HAND_WRITTEN, batch_size, workers))
        ever = [f.pairs_per_s for (name, _, w), f in best.items() if name == HAND_WRITTEN and w == workers]
        rows.append([
            store, str(workers), str(batch_size), f"{figure.pairs_per_s:,.0f}",
            f"{figure.pairs_per_s / same.pairs_per_s:.2f}" if same else "-",
            f"{figure.pairs_per_s / max(ever):.2f}" if ever else "-",
            f"{figure.p50_ms:.2f}", f"{figure.p99_ms:.2f}", "-" if workers else f"{figure.cpu_us:.1f}",
            figure.setting.conversion, str(figure.setting.threads),
        ])  # fmt: skip
    return rows


SPEED_HEADER = (
    "store", "workers", "batch", "pairs/s", "x by hand, same batch", "x by hand, any batch", "p50 ms", "p99 ms",
    "CPU us a pair", "float32 made in", "threads",
)  # fmt: skip


def size_rows(stores: Sequence[Store], sizes: dict[str, int], memory: dict[str, Any], raw: int) -> list[list[str]]:
    """Return one row a store: bytes on disk, and the memory of reading it by each number of workers."""
    rows = []
    for store in stores:
        row = [store.name, mib(sizes[store.name]), f"{sizes[store.name] / raw:.2f}"]
        for found in memory[store.name].values():
            row += [mib(found["own"]), mib(found["own"] - found["before"]), mib(found["workers"])]
        rows.append(row)
    return rows


def verdict(figures: Sequence[Figure]) -> list[str]:
    """Return the goals of LMDBDataset: twice the hand-written LMDB, and small batches nearly as fast as large."""
    best = {key: f.pairs_per_s for key, f in best_of(figures).items() if key[2] == 0}
    ours = {batch_size: speed for (store, batch_size, _), speed in best.items() if store == OURS_LZ4}
    by_hand = {batch_size: speed for (store, batch_size, _), speed in best.items() if store == HAND_WRITTEN}
    lines = []
    if ours and by_hand:
        ratios = {b: ours[b] / by_hand[b] for b in ours if b in by_hand}
        lowest = min(ratios, key=lambda b: ratios[b])
        top = max(by_hand.values())
        least, most = min(ours.values()) / top, max(ours.values()) / top
        lines.append(
            f"Without workers {OURS_LZ4} reads {ratios[lowest]:.2f} x the pairs/s of the hand-written LMDB at the same "
            f"batch size (the least, at {lowest}), and {least:.2f} to {most:.2f} x those of its best batch size."
        )
        cpu = {key: f.cpu_us for key, f in best_of(figures).items()}
        ratios = {b: cpu[HAND_WRITTEN, b, 0] / cpu[OURS_LZ4, b, 0] for b in ratios}
        least, most = min(ratios.values()), max(ratios.values())
        lines.append(f"The hand-written LMDB takes {least:.2f} to {most:.2f} x its CPU time a pair.")
    if len(ours) > 1:
        small, large = min(ours), max(ours)
        cpu_small, cpu_large = (best_of(figures)[OURS_LZ4, b, 0].cpu_us for b in (small, large))
        lines.append(
            f"At batch size {small} it reads {ours[small] / ours[large]:.0%} of its pairs/s at {large} "
            f"({cpu_large / cpu_small:.0%} by CPU time)."
        )
    return lines


def thread_rows(figures: Sequence[Figure]) -> list[list[str]]:
    """Return one row a store: the pairs/s by each number of torch threads against one thread, without workers."""
    threads = sorted({f.setting.threads for f in figures})
    stores = dict.fromkeys(f.setting.store for f in figures)
    rows = []
    for store in stores:
        mine = [f for f in figures if f.setting.store == store and f.setting.workers == 0]
        if mine:
            speeds = [statistics.median(f.pairs_per_s for f in mine if f.setting.threads == n) for n in threads]
            rows.append([store, *[f"{speed / speeds[0]:.2f}" for speed in speeds]])
    return rows


def report(
    figures: Sequence[Figure],
    stores: Sequence[Store],
    sizes: dict[str, int],
    memory: dict[str, Any],
    raw: int,
    *,
    markdown: bool,
) -> str:
    """Return every table as text."""
    threads = sorted({f.setting.threads for f in figures})
    memory_header = [
        f"{what} ({w} workers)"
        for w in next(iter(memory.values()))
        for what in ("peak RssAnon", "of that reading", "workers' sum")
    ]
    parts = [
        table(SPEED_HEADER, speed_rows(figures), markdown=markdown),
        table(
            ["store", "on disk", "of the pixels", *memory_header],
            size_rows(stores, sizes, memory, raw),
            markdown=markdown,
        ),
    ]
    if len(threads) > 1:
        header = ["pairs/s against one thread of torch", *[f"{n} threads" for n in threads]]
        parts.append(table(header, thread_rows(figures), markdown=markdown))
    return "\n\n".join([*parts, "\n".join(verdict(figures))])


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [store.name for store in STORES]
    threads = sorted({1, torch.get_num_threads()})
    parser.add_argument("--pairs", type=int, default=4000, help="pairs of 96x96 and 48x48 pixels (default 4000)")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=list(BATCH_SIZES), metavar="N")
    parser.add_argument("--workers", type=int, nargs="+", default=list(WORKERS), metavar="N")
    parser.add_argument("--threads", type=int, nargs="+", default=threads, metavar="N", help="torch.set_num_threads")
    parser.add_argument("--candidates", nargs="+", default=names, choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--repeats", type=int, default=5, help="turns of every setting (default 5)")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn (default 0.5)")
    parser.add_argument("--folder", type=Path, help="keep the stores here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it still run?")
    parser.add_argument("--memory-of", choices=names, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.quick:
        if options.candidates == names:
            options.candidates = [HAND_WRITTEN, OURS_LZ4]
        options.pairs, options.repeats, options.seconds = 64, 1, 0.02
        options.batch_sizes, options.workers, options.threads = [8, 16], [0, 1], [1]
    return options


def main() -> None:
    """Write the stores, check and time them, and print the tables."""
    options = parse_options()
    by_name = {store.name: store for store in STORES}
    if options.memory_of:
        found = read_and_watch(by_name[options.memory_of], options.folder, options.workers[0], options.seconds)
        print(json.dumps(found))
        return
    stores = [by_name[name] for name in dict.fromkeys(options.candidates)]
    with tempfile.TemporaryDirectory(prefix="lmdbloader-read-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = environment(folder)
        pairs = cut_pairs(options.pairs)
        for store in stores:
            if not (folder / store.name).exists():
                store.write(pairs, folder / store.name)
        check_stores(stores, folder, pairs)
        sizes = {store.name: disk_nbytes(folder / store.name) for store in stores}
        figures = []
        for figure in time_stores(stores, folder, options):
            figures.append(figure)
            s = figure.setting
            print(
                f"{s.store:16} workers {s.workers} batch {s.batch_size:4} {s.conversion:9} threads {s.threads} "
                f"{figure.pairs_per_s:10,.0f} pairs/s",
                file=sys.stderr,
                flush=True,
            )
        measure = read_and_watch if options.quick else measure_memory
        memory_workers = [0] if options.quick else sorted({options.workers[0], options.workers[-1]})
        memory = {
            store.name: {w: measure(store, folder, w, options.seconds) for w in memory_workers} for store in stores
        }
    print(environment_text(found, sys.argv[1:], markdown=options.markdown))
    print(f"\n{len(pairs)} pairs, {options.repeats} turns of {options.seconds} s, medians\n")
    print(report(figures, stores, sizes, memory, pairs.lr.nbytes + pairs.hr.nbytes, markdown=options.markdown))
    if options.json:
        result = {
            "environment": found,
            "figures": [asdict(figure) for figure in figures],
            "disk_nbytes": sizes,
            "memory_nbytes": memory,
        }
        options.json.write_text(json.dumps(result, indent=1), "utf-8")


if __name__ == "__main__":
    main()
