"""Times converting 2K photographs to patches against processes that only decode them, and against the disk.

The photographs are PNG files of DIV2K's usual size, 2040 x 1356, composed of pieces of real ones. `lmdbloader.convert`
makes 96x96 patches with x2 LR patches of them, timed from the call to its return: starting the processes, choosing the
codec, writing durably. Starting takes about two seconds whatever the number of images (DIV2K has 800). The bare loop
runs in processes that are already started, and discards the pixels. Turns are interleaved; the figures are medians.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import environment, environment_text, mib, table, write_mosaics

import lmdbloader
from lmdbloader.base.cores import count_cores
from lmdbloader.conversion import Report
from lmdbloader.images.decode import IMAGE_SUFFIXES, decode_image

CONVERT, PILLOW, OURS, WRITE = "lmdbloader.convert", "decode only: Pillow", "decode only: lmdbloader", "write only"
_CHUNK_NBYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Figure:
    """The result of one job.

    Attributes:
        job: Its name.
        seconds: Of every turn.
        images_per_s: By the median turn.
    """

    job: str
    seconds: tuple[float, ...]
    images_per_s: float


def decode_by_pillow(path: str) -> int:
    """Return the bytes of one decoded image."""
    from PIL import Image

    with Image.open(path) as image:
        return int(np.asarray(image.convert("RGB")).nbytes)


def decode_by_us(path: str) -> int:
    """Return the bytes of one decoded image."""
    return int(decode_image(Path(path).read_bytes(), name=path).nbytes)


def _get_ready(barrier: Any, decode: Callable[[str], int], path: str) -> None:
    decode(path)  # imports, loads the kernels
    barrier.wait()


def time_decoding(decode: Callable[[str], int], paths: Sequence[str], workers: int) -> float:
    """Return the seconds that running processes take to decode every image once."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(workers + 1)
    with context.Pool(workers, _get_ready, (barrier, decode, paths[0])) as pool:
        barrier.wait()
        began = time.perf_counter()
        for _ in pool.imap_unordered(decode, paths):
            pass
        return time.perf_counter() - began


def time_converting(photographs: Path, out: Path, options: argparse.Namespace) -> tuple[float, Report]:
    """Return the seconds of one conversion, and its report."""
    shutil.rmtree(out, ignore_errors=True)
    began = time.perf_counter()
    report = lmdbloader.convert(
        photographs,
        out,
        patch_size=options.patch_size,
        scale=options.scale,
        codec=options.codec,
        workers=options.workers,
    )
    return time.perf_counter() - began, report


def time_writing(path: Path, nbytes: int) -> float:
    """Return the seconds that writing a file from start to end, and making it durable, takes."""
    chunk = np.random.default_rng(0).bytes(_CHUNK_NBYTES)
    began = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for at in range(0, nbytes, _CHUNK_NBYTES):
            file.write(chunk[: min(_CHUNK_NBYTES, nbytes - at)])
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


def take_turns(photographs: Path, folder: Path, options: argparse.Namespace) -> tuple[list[Figure], Report]:
    """Return the figures of every job, and the report of a conversion."""
    paths = [str(p) for p in sorted(photographs.rglob("*")) if p.suffix.lower() in IMAGE_SUFFIXES]
    seconds: dict[str, list[float]] = {job: [] for job in (CONVERT, PILLOW, OURS, WRITE)}
    time_decoding(decode_by_us, paths, options.workers)  # the files into the page cache
    _, report = time_converting(photographs, folder / "out", options)  # loads modules and libraries, too
    for _ in range(options.repeats):
        took, report = time_converting(photographs, folder / "out", options)
        seconds[CONVERT].append(took)
        seconds[PILLOW].append(time_decoding(decode_by_pillow, paths, options.workers))
        seconds[OURS].append(time_decoding(decode_by_us, paths, options.workers))
        seconds[WRITE].append(time_writing(folder / "written", report.sizes["data_nbytes"]))
    shutil.rmtree(folder / "out")
    figures = [Figure(job, tuple(s), len(paths) / statistics.median(s)) for job, s in seconds.items()]
    return figures, report


def report_text(figures: Sequence[Figure], report: Report, *, markdown: bool) -> str:
    """Return the table and the conclusions as text."""
    speed = {figure.job: figure.images_per_s for figure in figures}
    rows = []
    for figure in figures:
        spread = f"{min(figure.seconds):.2f} to {max(figure.seconds):.2f}"
        ratio = f"{speed[CONVERT] / figure.images_per_s:.0%}"
        rows.append([figure.job, f"{figure.images_per_s:.2f}", spread, ratio])
    written = statistics.median(next(f for f in figures if f.job == WRITE).seconds)
    sizes = report.sizes
    codecs = ", ".join(f"{name} {codec}" for name, codec in report.codecs.items())
    slower = min((PILLOW, WRITE), key=lambda job: speed[job])
    lines = [
        f"{report.num_samples} samples ({codecs}), {mib(sizes['data_nbytes'])}; the disk writes "
        f"{sizes['data_nbytes'] / written / 1e6:.0f} MB/s.",
        f"Converting reaches {speed[CONVERT] / speed[slower]:.0%} of the images/s of the slower of decoding by Pillow "
        f"and writing ({slower}).",
    ]
    header = ["job", "images/s", "seconds, least to most", "converting against it"]
    return table(header, rows, markdown=markdown) + "\n\n" + "\n".join(lines)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=240, help="photographs to make (default 240, of which 48 differ)")
    parser.add_argument("--photographs", type=Path, metavar="DIR", help="convert these instead of making some")
    parser.add_argument("--workers", type=int, default=count_cores(), help="processes (default: the cores)")
    parser.add_argument("--patch-size", type=int, default=96)
    parser.add_argument("--scale", type=int, default=2)
    parser.add_argument("--codec", default="auto", choices=["auto", "raw", "lz4"])
    parser.add_argument("--repeats", type=int, default=5, help="turns of every job (default 5)")
    parser.add_argument("--folder", type=Path, help="write here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it still run?")
    return parser.parse_args(arguments)


def main() -> None:
    """Make the photographs, let the jobs take turns, and print the table."""
    options = parse_options()
    width, height = 2040, 1356
    if options.quick:
        options.count, options.repeats, options.workers, (width, height) = 2, 1, 1, (400, 300)
    with tempfile.TemporaryDirectory(prefix="lmdbloader-convert-", dir=options.folder) as temporary:
        folder = Path(temporary)
        photographs = options.photographs or folder / "photographs"
        if not options.photographs:
            write_mosaics(photographs, options.count, width=width, height=height)
        found = environment(folder)
        figures, report = take_turns(photographs, folder, options)
    print(environment_text(found, sys.argv[1:], markdown=options.markdown))
    print(f"\n{report.num_sources} photographs, {options.workers} processes, {options.repeats} turns, medians\n")
    print(report_text(figures, report, markdown=options.markdown))
    if options.json:
        result = {"environment": found, "figures": [asdict(figure) for figure in figures], "sizes": dict(report.sizes)}
        options.json.write_text(json.dumps(result, indent=1), "utf-8")


if __name__ == "__main__":
    main()
