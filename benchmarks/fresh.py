"""Measures the Loader in fresh processes: memory, the first batch, and orders of a file that is not in memory."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import Pairs, PeakMemory, cut_pairs, mib
from stores import OURS_LZ4, write_ours_raw

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.loader.orders import epoch_order, mixing, storage_reads


def in_fresh_process(code: str, *arguments: str) -> list[float]:
    """Return the numbers that a piece of code prints."""
    path = os.pathsep.join([str(Path(lmdbloader.__file__).parent.parent), str(Path(__file__).parent)])
    path = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH")]))
    child = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    return [float(word) for word in child.stdout.split()]


def in_this_process(code: str, *arguments: str) -> list[float]:
    """Return the numbers that a piece of code prints; sooner, for a quick run, of which nobody reads the figures."""
    printed, before = io.StringIO(), sys.argv
    sys.argv = ["-c", *arguments]
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, {"__name__": "__main__"})
    finally:
        sys.argv = before
    return [float(word) for word in printed.getvalue().split()]


def measure_memory(folder: Path, names: Sequence[str], options: argparse.Namespace) -> dict[str, float]:
    """Return the peak anonymous memory of fresh processes that read float32 batches of 128, and before reading."""
    run = in_this_process if options.quick else in_fresh_process
    code = "import sys; from pathlib import Path; from fresh import watch; watch(Path(sys.argv[1]), float(sys.argv[2]))"
    found = {}
    for name in names:
        before, peak = run(code, str(folder / name), str(options.seconds))
        found[name] = peak
        found[f"{name}, before reading"] = before
    return found


def watch(path: Path, seconds: float) -> None:
    """Read in this process, and print its memory before reading and at the most."""
    import torch

    from lmdbloader.transforms import RandomDihedral, ToDtype

    with PeakMemory() as memory:
        transforms = [RandomDihedral(), ToDtype(torch.float32, scale=True)]
        Loader(LMDBDataset(path), 128, transforms=transforms).benchmark(max(seconds, 0.5))
    print(memory.before, memory.own)


def start_up(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return the seconds from an import to the first batch in fresh processes, kernels compiled before."""
    code = (
        "import sys, time, lmdbloader\nif sys.argv[2] == 'torch': import torch\nbegan = time.perf_counter()\n"
        "import torch\nfrom lmdbloader.transforms import RandomCrop, RandomDihedral, ToDtype\n"
        "transforms = [RandomCrop(64), RandomDihedral(), ToDtype(torch.float32, scale=True)]\n"
        "next(iter(lmdbloader.Loader(lmdbloader.LMDBDataset(sys.argv[1]), 16, transforms=transforms)))\n"
        "print(time.perf_counter() - began)"
    )
    path = str(folder / OURS_LZ4)
    in_fresh_process(code, path, "torch")
    turns: dict[str, list[float]] = {"torch": [], "": []}
    for _ in range(options.repeats):
        for imported, seconds in turns.items():
            seconds += in_fresh_process(code, path, imported)
    return {
        "seconds to the first batch, torch imported before": statistics.median(turns["torch"]),
        "seconds to the first batch, the import of torch included": statistics.median(turns[""]),
    }


def drop_from_cache(path: Path) -> bool:
    """Have the system forget a file that nobody maps; return whether it did."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with open(path, "rb", buffering=0) as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], path.stat().st_size // 2, os.RWF_NOWAIT) < 1
        except (OSError, AttributeError):
            return True


def time_orders(folder: Path, options: argparse.Namespace) -> list[list[str]]:
    """Return one row per order: warm and cold speed compared with plain reads of the file, mixing, and reads."""
    run = in_this_process if options.quick else in_fresh_process
    path = folder / "large.lmdb"
    if not path.exists():
        base = cut_pairs(min(options.pairs, 500))
        rows = np.resize(np.arange(len(base)), options.large)
        write_ours_raw(Pairs(base.lr[rows], base.hr[rows]), path)
    data, nbytes = path / "data.mdb", (path / "data.mdb").stat().st_size
    code = (
        "import sys, time\nfrom lmdbloader import LMDBDataset, Loader\nds = LMDBDataset(sys.argv[1])\n"
        "next(iter(Loader(ds[:64], 64)))\nbegan = time.perf_counter()\n"
        "for batch in Loader(ds, 64, order=sys.argv[2]): pass\nprint(time.perf_counter() - began)"
    )
    kinds = ("sequential", "quasi_random", "random")
    plain, cold, warm = [], {kind: [] for kind in kinds}, {kind: [] for kind in kinds}  # type: ignore[var-annotated]
    is_cold = True
    for _ in range(options.repeats):
        is_cold &= drop_from_cache(data)
        began = time.perf_counter()
        with open(data, "rb", buffering=0) as file:
            buffer = bytearray(2**20)
            while file.readinto(buffer):
                pass
        plain.append(nbytes / (time.perf_counter() - began))
        for kind in kinds:
            is_cold &= drop_from_cache(data)
            cold[kind].append(nbytes / run(code, str(path), kind)[0])
            warm[kind].append(nbytes / run(code, str(path), kind)[0])
    print(f"orders: the file was {'' if is_cold else 'NOT '}dropped from the page cache", file=sys.stderr)
    ds = LMDBDataset(path)
    offset, lengths = ds.reader.extents(("lr", "hr"), np.arange(len(ds)))
    rows_of_table = []
    for kind in kinds:
        order = epoch_order(kind, seed=0, epoch=0, offset=offset, nbytes=lengths)  # type: ignore[arg-type]
        mixed, (reads, mean) = mixing(order.samples, offset), storage_reads(order, offset, lengths)
        fast = statistics.median(cold[kind])
        rows_of_table.append([
            kind, f"{statistics.median(warm[kind]) / 1e9:.2f}", f"{fast / 1e9:.2f}",
            f"{fast / statistics.median(plain):.2f}" if is_cold else "-", f"{mixed.correlation:.3f}",
            f"{mixed.neighbour_distance:.3f}", f"{reads:,}", mib(mean),
        ])  # fmt: skip
    return rows_of_table


ORDERS_HEADER = (
    "order", "warm GB/s", "cold GB/s", "cold, of reading the file", "correlation", "distance of neighbours", "reads",
    "mean read",
)  # fmt: skip
