"""Times training on class folders of JPEGs: RandomResizedCrop, a flip, normalized float32 batches.

The folder read by torch's DataLoader and Pillow; the same files in one dataset; the Loader over unchanged files, JPEGs
of quality 90, and pixels of at most 256; compared with only decoding whole files. Turns are interleaved in one run; the
figures are medians and ratios.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import PeakMemory, disk_nbytes, print_sections, table, time_loader
from fresh import in_fresh_process
from photos import MEAN, STD, FilesInLmdb, Folder, encode_small, of_dataloader, of_full_decoding, write_photos

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.base.cores import count_cores
from lmdbloader.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop, ToDtype

# How each dataset is converted.
DATASETS: dict[str, dict[str, Any]] = {
    "original": {"jpeg_code": "file"},
    "recoded": {},
    "jpg": {"write_mode": "jpg", "jpeg_quality": 90},
    "raw256": {"write_mode": "raw", "max_resolution": 256},
}
SECTIONS = ("speed", "start", "processes", "threads", "disk", "writing")
FOLDER, FILES, DECODING = "folder, Pillow", "LMDB of the files, Pillow", "decoding whole files only"
Results = dict[tuple[Any, ...], float]


def transforms(size: int) -> list[Any]:
    """Return the transforms of images."""
    floats = ToDtype(torch.float32, scale=True)
    return [RandomResizedCrop(size), RandomHorizontalFlip(), floats, Normalize(MEAN, STD)]


def prepare(folder: Path, options: argparse.Namespace) -> Path:
    """Make the class folders and the datasets where they are not there; return the class folders."""
    photos = folder / "photos"
    if not photos.exists():
        write_photos(photos, options.images)
    for name, how in DATASETS.items():
        if not (folder / name).exists():
            lmdbloader.convert(photos, folder / name, layout="classes", **how)
    return photos


def of_loader(path: Path, size: int, batch_size: int, threads: int | str = "auto") -> Callable[[float], float]:
    """Return a function that measures the Loader."""
    loader = Loader(LMDBDataset(path), batch_size, order="random", transforms=transforms(size), num_threads=threads)  # type: ignore[arg-type]
    next(iter(loader))
    return lambda seconds: float(time_loader(loader, seconds).samples_per_s)


def take_turns(candidates: dict[tuple[Any, ...], Callable[[float], float]], options: argparse.Namespace) -> Results:
    """Return the median of each candidate's turns; turns are interleaved, so other load affects all alike."""
    turns: dict[tuple[Any, ...], list[float]] = {key: [] for key in candidates}
    for _ in range(options.repeats):
        for key, measure in candidates.items():
            turns[key].append(measure(options.seconds))
    return {key: statistics.median(values) for key, values in turns.items()}


def time_speed(folder: Path, options: argparse.Namespace) -> Results:
    """Time everything: (what, size, batch size, workers or threads) -> images a second."""
    photos, results = folder / "photos", {}
    torch.set_num_threads(1)
    for batch_size in options.batch_sizes:
        candidates: dict[tuple[Any, ...], Callable[[float], float]] = {}
        for size in options.sizes:
            for workers in options.workers:
                for name, dataset in (
                    (FOLDER, Folder(photos, size)),
                    (FILES, FilesInLmdb(folder / "original", size)),
                ):
                    candidates[name, size, batch_size, workers] = of_dataloader(dataset, batch_size, workers)
            candidates[DECODING, size, batch_size, count_cores()] = of_full_decoding(photos, count_cores())
            for name in DATASETS:
                candidates[name, size, batch_size, count_cores()] = of_loader(folder / name, size, batch_size)
        results.update(take_turns(candidates, options))
        del candidates
        print(f"speed: batches of {batch_size} done", file=sys.stderr, flush=True)
    return results


def report_speed(results: Results, markdown: bool) -> str:
    """Return the table of images a second, and the ratios that matter."""
    best = {}
    for (name, size, batch_size, workers), speed in results.items():
        key = (name, size, batch_size)
        if key not in best or speed > best[key][0]:
            best[key] = (speed, workers)
    rows = []
    for (name, size, batch_size), (speed, workers) in best.items():
        folder, decoding = (best[of, size, batch_size][0] for of in (FOLDER, DECODING))
        largest = best[name, max(k[1] for k in best), batch_size][0]
        rows.append([
            name, str(size), str(batch_size), str(workers), f"{speed:,.0f}", f"{speed / folder:.2f}",
            f"{speed / decoding:.2f}", f"{speed / largest:.2f}",
        ])  # fmt: skip
    header = ["", "pixels", "batch", "workers or threads", "images/s", "of the folder", "of decoding", "of the largest"]
    return table(header, rows, markdown=markdown)


def start_up(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return the figures of fresh processes: seconds to the first batch, anonymous memory at a batch size of 256."""
    code = (
        "import sys, time, torch, lmdbloader\nfrom pathlib import Path\nfrom images import watch\n"
        "watch(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))"
    )
    found = {}
    for name in DATASETS:
        for batch_size in (64, 256):
            in_fresh_process(code, str(folder / name), str(batch_size), "0")
            first, before, peak, p99 = in_fresh_process(code, str(folder / name), str(batch_size), str(options.seconds))
            found[f"{name}, batches of {batch_size}: seconds to the first batch"] = first
            found[f"{name}, batches of {batch_size}: p99 of waiting for a batch, seconds"] = p99
            found[f"{name}, batches of {batch_size}: MiB before reading"] = before / 2**20
            found[f"{name}, batches of {batch_size}: MiB at most"] = peak / 2**20
    return found


def watch(path: Path, batch_size: int, seconds: float) -> None:
    """Read in this process; print the time to the first batch, memory before and at most, and the p99 of waiting."""
    with PeakMemory() as memory:
        began = time.perf_counter()
        loader = Loader(LMDBDataset(path), batch_size, order="random", transforms=transforms(224))
        next(iter(loader))
        first = time.perf_counter() - began
        p99 = float(np.percentile(time_loader(loader, max(seconds, 0.05)).waits, 99))
    print(first, memory.before, memory.own, p99)


def time_processes(folder: Path, options: argparse.Namespace) -> Results:
    """Time several processes with a Loader each and nothing else: (dataset, processes) -> images a second together."""
    found: Results = {}
    for name in DATASETS:
        for count in sorted({1, options.procs}):
            speeds = []
            for _ in range(options.repeats):
                context = multiprocessing.get_context("spawn")
                barrier = context.Barrier(count)
                with context.Pool(count, _join, (barrier,)) as pool:
                    jobs = [(str(folder / name), max(options.seconds, 0.5))] * count
                    speeds.append(sum(pool.starmap(_measure_alone, jobs, chunksize=1)))
            found[name, count] = statistics.median(speeds)
    return found


def _join(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _measure_alone(path: str, seconds: float) -> float:
    measure = of_loader(Path(path), 224, 64)
    _barrier.wait()
    return measure(seconds)


def time_threads(folder: Path, options: argparse.Namespace) -> Results:
    """Time asking for more threads than cores: (dataset, threads) -> images a second."""
    cores = count_cores()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return take_turns(
            {(name, n): of_loader(folder / name, 224, 64, n) for name in DATASETS for n in (cores, 4 * cores)}, options
        )


def measure_disk(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return bytes on the disk: of the files, of each dataset, and of small images against their pixels."""
    found = {"the files, MiB": disk_nbytes(folder / "photos") / 2**20}
    found |= {f"{name}, MiB": disk_nbytes(folder / name) / 2**20 for name in DATASETS}
    small, count = folder / "small", options.small
    shutil.rmtree(small, ignore_errors=True)
    base = LMDBDataset(folder / "raw256")
    tiles = [sample.image[:, :160, :160].reshape(3, 5, 32, 5, 32) for sample in base.select(range(min(len(base), 400)))]
    pixels = torch.stack(tiles).permute(0, 2, 4, 1, 3, 5).reshape(-1, 3, 32, 32)
    samples = ({"image": pixels[i % len(pixels)], "label": i % NUM_SMALL_CLASSES} for i in range(count))
    lmdbloader.write(samples, small, codec="raw")
    found["32x32 pixels as they are: bytes on the disk of the pixels' bytes"] = disk_nbytes(small) / (count * 3072)
    return found


NUM_SMALL_CLASSES = 10


def time_writing(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return images/s of converting to JPEGs of at most 384 pixels, and of the bare work in as many processes."""
    paths = [str(p) for p in sorted((folder / "photos").rglob("*.jpg"))] * options.copies
    many, workers = folder / "many", count_cores()
    if not many.exists():
        for number, path in enumerate(paths):
            target = many / Path(path).parent.name / f"{number:06d}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)
    turns: dict[str, list[float]] = {"converting": [], "bare decoding, shrinking, encoding": []}
    for _ in range(options.repeats):
        shutil.rmtree(folder / "written", ignore_errors=True)
        began = time.perf_counter()
        lmdbloader.convert(
            many, folder / "written", layout="classes", write_mode="jpg", max_resolution=384, workers=workers
        )  # fmt: skip
        turns["converting"].append(len(paths) / (time.perf_counter() - began))
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            shares = [(paths[k::workers], 384, 90) for k in range(workers)]
            pool.starmap(encode_small, [([paths[0]], 384, 90)] * workers, chunksize=1)  # imports
            began = time.perf_counter()
            pool.starmap(encode_small, shares, chunksize=1)
            turns["bare decoding, shrinking, encoding"].append(len(paths) / (time.perf_counter() - began))
    shutil.rmtree(folder / "written", ignore_errors=True)
    return {f"{name}, images/s": statistics.median(values) for name, values in turns.items()}


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="NAME", help=str(SECTIONS))
    parser.add_argument("--images", type=int, default=2000, help="JPEGs of about 500 x 375 pixels (default 2000)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 112], metavar="N", help="of the crops")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 256], metavar="N")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3], metavar="N", help="of torch's DataLoader")
    parser.add_argument("--procs", type=int, default=8, metavar="N", help="processes with a Loader each (default 8)")
    parser.add_argument("--small", type=int, default=50_000, metavar="N", help="images of 32 x 32 (default 50000)")
    parser.add_argument("--copies", type=int, default=4, metavar="N", help="how often each file is written (default 4)")
    parser.add_argument("--repeats", type=int, default=5, help="turns of everything (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn (default 1)")
    parser.add_argument("--folder", type=Path, help="keep the files here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="some seconds: does it still run?")
    options = parser.parse_args(arguments)
    if options.quick:
        options.images, options.repeats, options.seconds, options.workers = 70, 1, 0.05, [0]
        options.sizes, options.batch_sizes, options.procs, options.small, options.copies = [64, 32], [16], 1, 500, 1
    return options


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the figures and the text of every section."""
    prepare(folder, options)

    def listed(figures: dict[Any, float]) -> str:
        rows = []
        for key, value in figures.items():
            name = " x ".join(map(str, key)) if isinstance(key, tuple) else key
            rows.append([name, f"{value:,.3g}" if value < 100 else f"{value:,.0f}"])
        return table(["", ""], rows, markdown=options.markdown)

    sections: dict[str, tuple[Callable[[Path, argparse.Namespace], Any], Callable[[Any], str]]] = {
        "speed": (time_speed, lambda r: report_speed(r, options.markdown)),
        "start": (start_up, listed),
        "processes": (time_processes, listed),
        "threads": (time_threads, listed),
        "disk": (measure_disk, listed),
        "writing": (time_writing, listed),
    }
    for name in options.sections:
        figures = sections[name][0](folder, options)
        yield name, figures, sections[name][1](figures)


def main() -> None:
    """Measure, and print the tables."""
    options = parse_options()
    title = f"{options.images} images, {options.repeats} turns of {options.seconds} s, medians"
    print_sections(lambda folder: run(folder, options), title, options)


if __name__ == "__main__":
    main()
