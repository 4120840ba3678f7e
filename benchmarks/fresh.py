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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from common import Pairs, PeakMemory, cut_pairs, mib, time_loader
from stores import OURS_LZ4, write_ours_raw

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.loader.orders import EpochOrder, Layout, RankPositions
from lmdbloader.loader.quasi_random import epoch_order
from lmdbloader.store.readahead import coalesce

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mixing:
    """How well an order mixes samples that are stored side by side.

    Attributes:
        correlation: Of a sample's position in the epoch with its rank in storage: 1 for the order of storage, about 0
            for a random one.
        neighbor_distance: Median distance in the epoch of two samples stored side by side, as a share of what a
            uniform permutation has (0.29 of the epoch).
    """

    correlation: float
    neighbor_distance: float


def mixing(samples: I64, offset: I64) -> Mixing:
    """Return how well an order (n,) mixes samples with the offsets (n,) in the file, for n of at least 3."""
    count = len(samples)
    position = np.empty(count)
    position[samples] = np.arange(count)
    in_storage = position[np.argsort(offset, kind="stable")]
    correlation = float(np.corrcoef(in_storage, np.arange(count))[0, 1])
    # Of two uniform positions in [0, 1): the median of their distance is 1 - 1 / sqrt(2).
    distance = float(np.median(np.abs(np.diff(in_storage))) / count / (1 - 0.5**0.5))
    return Mixing(correlation, distance)


def storage_reads(
    order: EpochOrder, offset: I64, nbytes: I64, *, gap_nbytes: int = 128 * 1024, rank: int = 0, world_size: int = 1
) -> tuple[int, float]:
    """Return how many reads of storage a rank's epoch needs and their mean length in bytes; near neighbors are one.

    Args:
        order: Of the epoch; within each of its windows samples may be read in the order of storage.
        offset, nbytes: (n,) where each sample lies, and how long it is.
        gap_nbytes: Reads with no more than this between them become one.
        rank, world_size: The rank, and the number of ranks.
    """
    mine = RankPositions(rank, world_size, len(range(rank, len(offset), world_size)), 1)
    windows = order.windows(mine)
    if windows is None:
        samples = order.samples(mine.of_batches(0, len(mine)))
        return len(samples), float(nbytes[samples].mean()) if len(samples) else 0.0
    num_reads, read_nbytes = 0, 0
    for number in range(len(windows.begins)):
        samples = windows.samples(number, number + 1)
        starts, stops = coalesce(offset[samples], offset[samples] + nbytes[samples], gap_nbytes=gap_nbytes)
        num_reads, read_nbytes = num_reads + len(starts), read_nbytes + int((stops - starts).sum())
    return num_reads, read_nbytes / max(num_reads, 1)


def of_fresh_process() -> dict[str, str]:
    """Return the environment of a process that finds this package and these benchmarks."""
    path = os.pathsep.join([str(Path(lmdbloader.__file__).parent.parent), str(Path(__file__).parent)])
    path = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH")]))
    # Python may keep its bytecode, as an installation does; otherwise each process would compile modules again.
    others = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**others, "PYTHONPATH": path}


def in_fresh_process(code: str, *arguments: str) -> list[float]:
    """Return the numbers that a piece of code prints."""
    child = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=True, stdout=subprocess.PIPE, text=True, env=of_fresh_process(),
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
        time_loader(Loader(LMDBDataset(path), 128, order="random", transforms=transforms), max(seconds, 0.5))
    print(memory.before, memory.own)


def start_up(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return the seconds from an import to the first batch in fresh processes, with the kernels already built."""
    code = (
        "import sys, time, lmdbloader\nif sys.argv[2] == 'torch': import torch\nbegan = time.perf_counter()\n"
        "import torch\nfrom lmdbloader.transforms import RandomCrop, RandomDihedral, ToDtype\n"
        "transforms = [RandomCrop(64), RandomDihedral(), ToDtype(torch.float32, scale=True)]\n"
        "ds = lmdbloader.LMDBDataset(sys.argv[1])\n"
        "next(iter(lmdbloader.Loader(ds, 16, order='random', transforms=transforms)))\n"
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
    data = sorted(path.glob("data*.mdb"))
    nbytes = sum(file.stat().st_size for file in data)
    code = (
        "import sys, time\nfrom lmdbloader import LMDBDataset, Loader\nds = LMDBDataset(sys.argv[1])\n"
        "next(iter(Loader(ds[:64], 64, order='random')))\nbegan = time.perf_counter()\n"
        "for batch in Loader(ds, 64, order=sys.argv[2]): pass\nprint(time.perf_counter() - began)"
    )
    kinds = ("sequential", "quasi_random", "random")
    plain, cold, warm = [], {kind: [] for kind in kinds}, {kind: [] for kind in kinds}  # type: ignore[var-annotated]
    is_cold = True
    for _ in range(options.repeats):
        is_cold &= min([drop_from_cache(file) for file in data])
        began = time.perf_counter()
        buffer = bytearray(2**20)
        for name in data:
            with open(name, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        plain.append(nbytes / (time.perf_counter() - began))
        for kind in kinds:
            is_cold &= min([drop_from_cache(file) for file in data])
            cold[kind].append(nbytes / run(code, str(path), kind)[0])
            warm[kind].append(nbytes / run(code, str(path), kind)[0])
    print(f"orders: the file was {'' if is_cold else 'NOT '}dropped from the page cache", file=sys.stderr)
    ds = LMDBDataset(path)
    offset, lengths = ds.reader.extents(("lr", "hr"), np.arange(len(ds)))
    rows_of_table = []
    for kind in kinds:
        layout = Layout(len(ds), lambda first, end: (offset[first:end], lengths[first:end]))
        order = epoch_order(kind, layout, seed=0, epoch=0)  # type: ignore[arg-type]
        mixed = mixing(order.samples(np.arange(len(ds))), offset)
        reads, mean = storage_reads(order, offset, lengths)
        fast = statistics.median(cold[kind])
        rows_of_table.append([
            kind, f"{statistics.median(warm[kind]) / 1e9:.2f}", f"{fast / 1e9:.2f}",
            f"{fast / statistics.median(plain):.2f}" if is_cold else "-", f"{mixed.correlation:.3f}",
            f"{mixed.neighbor_distance:.3f}", f"{reads:,}", mib(mean),
        ])  # fmt: skip
    return rows_of_table


ORDERS_HEADER = (
    "order", "warm GB/s", "cold GB/s", "cold, of reading the file", "correlation", "distance of neighbors", "reads",
    "mean read",
)  # fmt: skip
