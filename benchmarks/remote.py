"""Reads a dataset from an S3 server behind a slow link with the Loader: the first epoch, cached epochs, a cached part.

The link is simulated: a server in a process of its own sends all answers together at a rate, each after a delay.

The cached epochs are those of a new process, which nobody shares the files with. How fast a map is read depends on how
its file came into memory: in large pages by one read, in small ones by many writes; and pages that somebody has mapped
cannot be dropped from memory. So every dataset is closed first, both data files are dropped and read again from the
disk in the same way, and a process of its own opens both and times them in turns, in CPU time. It says if the system
kept pages of a file in spite of that. For the kept parts the table has the bytes and requests of several epochs; the
ideal is what is not kept.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import photographs, print_sections, table

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.base import system

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
SIDE, PIECE_NBYTES, URL = 96, 2**20, "s3://bucket/remote.lmdb"
# Pages that the system keeps of a file that it is asked to drop, as a share.
_KEPT = 0.05


def write(out: Path, num_samples: int) -> None:
    """Write patches of photographs; what is there is kept."""
    photos, rng = photographs(), np.random.default_rng(0)

    def patch(number: int) -> dict[str, Any]:
        photo = photos[number % len(photos)]
        top, left = (int(rng.integers(side - SIDE + 1)) for side in photo.shape[:2])
        return {"image": np.ascontiguousarray(photo[top : top + SIDE, left : left + SIDE]), "label": number}

    if not out.exists():
        lmdbloader.write(map(patch, range(num_samples)), out, codec="raw")


def serve(folder: Path, rate: float, delay: float, connection: Any) -> None:
    """Serve a dataset at s3://bucket/remote.lmdb; send the URL, and the bytes and requests so far when asked."""
    from s3_server import Handler
    from s3_server import serve as serve_buckets

    lock, counts = threading.Lock(), {"free": 0.0, "nbytes": 0, "requests": 0}

    class Link(Handler):
        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            if status == 206 and ".mdb" in self.path:
                with lock:
                    until = counts["free"] = max(counts["free"], time.monotonic()) + len(body) / rate
                    counts["nbytes"] += len(body)
                    counts["requests"] += 1
                time.sleep(max(until + delay - time.monotonic(), 0))
            super()._send(status, body, headers)

    objects = {f"remote.lmdb/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with serve_buckets({"bucket": objects}, Link) as (url, _):
        connection.send(url)
        while connection.recv():
            connection.send((counts["nbytes"], counts["requests"]))


def read_again(path: Path) -> float:
    """Read a file from the disk into the page cache; return the share of it that could not be dropped before."""
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        ends = range(0, os.fstat(file.fileno()).st_size, PIECE_NBYTES)
        left = sum(bool(system.is_cached(file.fileno(), at)) for at in ends) / len(ends)
        while file.read(2**22):
            pass
    return left


def cached_turns(folder: Path, options: argparse.Namespace, connection: Any) -> None:
    """Send the speed of a cached dataset, of that of the local one, of each turn; both are opened here first."""
    files = [*(folder / "remote.lmdb").glob("data*.mdb"), *(folder / "cache-0").glob("*/data")]
    left = list(map(read_again, files))
    local, remote = LMDBDataset(folder / "remote.lmdb"), LMDBDataset(URL, cache_dir=folder / "cache-0")
    turns: list[float] = []
    for number in range(options.turns + 1):
        both = [("local", local), ("remote", remote)]
        seconds = {}
        for name, dataset in both if number % 2 else both[::-1]:
            begun = time.process_time()
            epoch(dataset, options, number)
            seconds[name] = time.process_time() - begun
        turns.append(seconds["local"] / seconds["remote"])
    connection.send((turns[1:], max(left)))  # without the first turn, which maps the files


def epoch(dataset: LMDBDataset, options: argparse.Namespace, number: int) -> float:
    """Return the seconds of an epoch."""
    loader = Loader(dataset, options.batch_size, order=options.order, seed=number, num_threads=2)
    start, count = time.perf_counter(), 0
    for batch in loader:
        count += len(batch.label)
    assert count == len(dataset)
    return time.perf_counter() - start


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the figures and the text of each section."""
    write(folder / "remote.lmdb", options.samples)
    ours, theirs = multiprocessing.Pipe()
    arguments = (folder / "remote.lmdb", options.rate * 1e6, options.delay / 1000, theirs)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=arguments, daemon=True)
    server.start()
    variables = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "key", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update({**variables, "AWS_ENDPOINT_URL": ours.recv()})
    local, nbytes = LMDBDataset(folder / "remote.lmdb"), lmdbloader.info(folder / "remote.lmdb").sizes["data_nbytes"]
    epoch(local, options, 0)
    figures, rows = {}, []

    def sent() -> tuple[int, int]:
        ours.send(True)
        found: tuple[int, int] = ours.recv()
        return found

    for number in range(options.repeats):
        remote = LMDBDataset(URL, cache_dir=folder / f"cache-{number}")
        before = sent()
        seconds, on_disk = epoch(remote, options, number), epoch(local, options, number)
        after = sent()
        best = max(nbytes / (options.rate * 1e6), on_disk)
        moved, asked = (b - a for a, b in zip(before, after, strict=True))
        found = {"of_best": best / seconds, "requests": asked / -(-nbytes // PIECE_NBYTES), "bytes": moved / nbytes}
        figures["first", number] = {**found, "seconds": seconds, "local": on_disk}
        rows.append([f"first epoch {number + 1}", f"{seconds:.2f}", *(f"{value:.3f}" for value in found.values())])
    header = ["", "seconds", "speed, of the lower of link and disk", "requests a MiB", "bytes"]
    yield "everything is fetched", figures, table(header, rows, markdown=options.markdown)

    del local, remote
    gc.collect()
    results, own = multiprocessing.Pipe()
    reader = multiprocessing.get_context("spawn").Process(target=cached_turns, args=(folder, options, own))
    reader.start()
    turns, left = results.recv()
    reader.join()
    text = f"{statistics.median(turns):.3f} of the speed of the disk, by CPU time ({len(turns)} turns in a new process)"
    kept = f"; the system kept {left:.0%} of a file in memory, so this compares other pages" if left > _KEPT else ""
    yield "everything is cached", turns, text + kept

    rows = []
    for fraction in options.fractions:
        part = LMDBDataset(URL, cache_dir=folder / f"part-{fraction}", cache_fraction=fraction)
        for number in range(options.epochs):
            before, seconds = sent(), epoch(part, options, number)
            moved, asked = (b - a for a, b in zip(before, sent(), strict=True))
            on_disk = sum(os.stat(path).st_blocks * 512 for path in (folder / f"part-{fraction}").glob("*/data"))
            values = (moved / nbytes, 1 - fraction if number else 1.0, asked / -(-nbytes // PIECE_NBYTES))
            shown = [f"{value:.3f}" for value in (*values, on_disk / nbytes)]
            rows.append([f"{fraction:g} is kept, epoch {number + 1}", f"{seconds:.2f}", *shown])
    header = ["", "seconds", "bytes fetched, of the dataset", "ideal", "requests a MiB", "on the disk after it"]
    yield "a part is kept", rows, table(header, rows, markdown=options.markdown)
    ours.send(False)
    server.join()


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=40_000, help="of 96x96 pixels (default 40,000: 1.1 GB)")
    parser.add_argument("--rate", type=float, default=50.0, help="of the link, MB/s (default 50)")
    parser.add_argument("--delay", type=float, default=20.0, help="of each answer, ms (default 20)")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--order", choices=("random", "quasi_random", "sequential"), default="quasi_random")
    parser.add_argument("--repeats", type=int, default=3, help="first epochs (default 3)")
    parser.add_argument("--turns", type=int, default=9, help="of cached epochs (default 9)")
    parser.add_argument(
        "--fractions", type=float, nargs="+", default=[0.0, 0.2, 0.5], help="that are kept (default 0 0.2 0.5)"
    )
    parser.add_argument("--epochs", type=int, default=4, help="with each fraction (default 4)")
    parser.add_argument("--folder", type=Path, help="keep the dataset here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="some seconds: does it still run?")
    options = parser.parse_args(arguments)
    if options.quick:
        options.samples, options.batch_size, options.repeats, options.turns, options.rate = 200, 16, 1, 2, 500.0
        options.fractions, options.epochs = [0.2], 2
    return options


def main() -> None:
    """Measure, and print the tables."""
    options = parse_options()
    title = f"{options.samples} samples at {options.rate:g} MB/s and {options.delay:g} ms, {options.order}, two threads"
    print_sections(lambda folder: run(folder, options), title, options)


if __name__ == "__main__":
    main()
