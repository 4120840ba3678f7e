"""Measures the time that a batch takes under the GIL, in the thread that reads it and in the loop: pairs of patches.

One thread does everything as a Loader with 4 or 16 threads plans it. Each call of compiled code, which does not hold
the GIL, is timed: the rest of a job is Python's. From that follows what the threads demand: how many of them, with the
loop, want the GIL at a time if none has to wait, and the most pairs a second that it leaves.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from common import cut_pairs, print_sections, table
from stores import write_ours_raw

from lmdbloader import Loader
from lmdbloader.kernels.calls.entry import Prepared
from lmdbloader.loader.threads import Job, Threads

BATCH_SIZES = (8, 32, 128)
THREADS = (4, 16)


def measure(path: Path, batch_size: int, num_threads: int, repeats: int) -> dict[str, float]:
    """Return microseconds a batch of compiled code, of Python in the thread, and in the loop: of the fastest epoch."""
    with patch("lmdbloader.loader.loader.count_cores", return_value=num_threads):
        loader = Loader(path, batch_size, shuffle=True, num_threads=num_threads)
    spent = {"kernel": 0.0, "job": 0.0}
    run = Prepared.__call__

    def timed_run(call: Prepared) -> Any:
        begin = time.perf_counter()
        result = run(call)
        spent["kernel"] += time.perf_counter() - begin
        return result

    def timed_submit(threads: Threads, job: Job) -> None:
        begin = time.perf_counter()
        job()
        spent["job"] += time.perf_counter() - begin

    found: dict[str, list[float]] = {"kernel": [], "thread": [], "loop": []}
    with patch.object(Threads, "submit", timed_submit), patch.object(Prepared, "__call__", timed_run):
        for _ in range(repeats + 1):
            spent.update(kernel=0.0, job=0.0)
            begin = time.perf_counter()
            for _ in loader:
                pass
            whole = time.perf_counter() - begin
            epoch = (spent["kernel"], spent["job"] - spent["kernel"], whole - spent["job"])
            for times, seconds in zip(found.values(), epoch, strict=True):
                times.append(1e6 * seconds / len(loader))
    return {name: min(times[1:]) for name, times in found.items()}


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the figures and the text of the only section."""
    path = folder / "pairs.lmdb"
    path.mkdir(exist_ok=True)
    write_ours_raw(cut_pairs(options.count), path)
    figures, rows = {}, []
    for num_threads, batch_size in itertools.product(THREADS, BATCH_SIZES):
        f = measure(path, batch_size, num_threads, options.repeats)
        held = f["thread"] + f["loop"]
        f["demand"] = num_threads * held / (f["kernel"] + held)
        f["most"] = batch_size * 1e6 / held
        figures[f"{num_threads} threads, {batch_size}"] = f
        rows.append(
            [str(num_threads), str(batch_size), f"{f['kernel']:.1f}", f"{f['thread']:.1f}", f"{f['loop']:.1f}",
             f"{f['demand']:.2f}", f"{f['most']:,.0f}"]
        )  # fmt: skip
    header = [
        "threads", "batch", "compiled code, us", "GIL in the thread, us", "GIL in the loop, us",
        "demand", "most pairs/s under the GIL",
    ]  # fmt: skip
    yield "gil", figures, table(header, rows, markdown=options.markdown)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="epochs for each figure (default 9)")
    parser.add_argument("--count", type=int, default=12_800, help="pairs of 96 and 48 px (default 12,800)")
    parser.add_argument("--folder", type=Path, help="keep the dataset here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it still run?")
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.count = 1, 512
    print_sections(lambda folder: run(folder, options), f"the least of {options.repeats} epochs each", options)


if __name__ == "__main__":
    main()
