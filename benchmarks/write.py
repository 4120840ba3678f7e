"""Times `lmdbloader.write` with one and two workers: arrays, compared with a loop over LMDB's `put`, and JPEG files.

The arrays are 96x96 RGB pieces of photographs, in memory. The loop stores their bytes under their numbers in one
transaction, and ends with a sync; `write` stores them uncompressed too. The loop makes neither an index nor checksums,
and does not transpose the pixels. The JPEG files are read with Pillow, as by torchvision's ImageFolder, and stored as
new JPEGs, so most of the time is spent encoding. Times include starting the processes. Turns are interleaved; a ratio
is the median of the ratios within the turns. CPU seconds are those of all processes: other programs on the machine
disturb them less than wall-clock time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from common import U8, environment, environment_text, photographs, table
from PIL import Image

import lmdbloader

LOOP = "LMDB put, by hand"


class JpegFolder:
    """JPEG files in class folders, as torchvision's ImageFolder reads them."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.classes = sorted(os.listdir(root))
        self.samples = [
            (f"{root}/{name}/{file}", number)
            for number, name in enumerate(self.classes)
            for file in sorted(os.listdir(root / name))
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        path, number = self.samples[index]
        with open(path, "rb") as file:
            return Image.open(file).convert("RGB"), number


@dataclass(slots=True)
class Job:
    """One way of writing, and its figures.

    Attributes:
        name: For the table.
        run: Writes into a new folder.
        base: The job that it is compared with.
        seconds: Of every turn.
        cpu_seconds: Of every turn, of this process and its children.
        digest: Of the files that it has written.
    """

    name: str
    run: Callable[[Path], None]
    base: str
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    digest: str = ""


def cut_arrays(count: int, size: int = 96) -> list[U8]:
    """Return pieces (size, size, 3) of photographs, each in memory of its own."""
    images, rng = photographs(), np.random.default_rng(0)
    pieces = []
    for number in range(count):
        image = images[number % len(images)]
        top, left = (int(rng.integers(0, side - size + 1)) for side in image.shape[:2])
        pieces.append(image[top : top + size, left : left + size].copy())
    return pieces


def make_jpegs(root: Path, count: int, width: int = 500, height: int = 375, *, progressive: bool = False) -> None:
    """Write JPEG files of pieces of photographs, in two class folders."""
    images, rng = photographs(), np.random.default_rng(0)
    for number in range(count):
        image = images[number % len(images)]
        shifts = tuple(int(rng.integers(0, side)) for side in image.shape[:2])
        piece = np.roll(image, shifts, (0, 1))[:height, :width]
        folder = root / ("even", "odd")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{number:05}.jpg"
        Image.fromarray(np.ascontiguousarray(piece)).save(file, quality=92, progressive=progressive)


def put_by_hand(arrays: Sequence[U8], folder: Path) -> None:
    """Store the bytes of arrays under their numbers, durably."""
    environment = lmdb.open(str(folder), map_size=2 * sum(a.nbytes for a in arrays) + 2**24)
    with environment.begin(write=True) as transaction:
        for number, array in enumerate(arrays):
            transaction.put(b"%08d" % number, array.tobytes())
    environment.sync(True)
    environment.close()


def make_jobs(arrays: Sequence[U8], jpegs: JpegFolder) -> list[Job]:
    """Return the ways of writing."""
    samples = [{"image": array} for array in arrays]

    def writes(given: Any, **options: Any) -> Callable[[Path], None]:
        return lambda folder: void(lmdbloader.write(given, folder, **options))

    jobs = [
        Job(LOOP, lambda folder: put_by_hand(arrays, folder), LOOP),
        Job("arrays, 1 worker", writes(samples, codec="raw"), LOOP),
        Job("arrays, 2 threads", writes(samples, codec="raw", workers=2, threads=True), LOOP),
        Job("arrays, 2 processes", writes(samples, codec="raw", workers=2), LOOP),
    ]
    for name, options in (
        ("1 worker", {}),
        ("2 processes", {"workers": 2}),
        ("2 threads", {"workers": 2, "threads": True}),
    ):
        jobs.append(Job(f"JPEG files, {name}", writes(jpegs, write_mode="jpg", **options), "JPEG files, 1 worker"))
    return jobs


def void(result: object) -> None:
    """Drop a result."""


def take_turn(job: Job, folder: Path) -> None:
    """Run a job once, and note its figures."""
    shutil.rmtree(folder, ignore_errors=True)
    before, began = _cpu_seconds(), time.perf_counter()
    job.run(folder)
    job.seconds.append(time.perf_counter() - began)
    job.cpu_seconds.append(_cpu_seconds() - before)
    if job.name != LOOP:
        content = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
        job.digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    shutil.rmtree(folder)


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def report_text(jobs: Sequence[Job], counts: dict[str, int], *, markdown: bool) -> str:
    """Return the table and what follows from it."""
    by_name = {job.name: job for job in jobs}
    rows = []
    for job in jobs:
        base = by_name[job.base]
        ratio = statistics.median(b / s for b, s in zip(base.seconds, job.seconds, strict=True))
        count = counts["jpegs" if job.name.startswith("JPEG") else "arrays"]
        median = statistics.median(job.seconds)
        spread = f"{min(job.seconds):.2f} to {max(job.seconds):.2f}"
        cpu = f"{statistics.median(job.cpu_seconds):.2f}"
        rows.append([job.name, f"{count / median:,.0f}", spread, cpu, f"{ratio:.2f} of {job.base}"])
    header = ["job", "samples/s", "seconds, least to most", "CPU s", "rate against"]
    lines = []
    for kind in ("arrays", "JPEG files"):
        digests = {job.digest for job in jobs if job.name.startswith(kind)}
        same = "are the same" if len(digests) == 1 else "DIFFER"
        lines.append(f"{kind}: the files {same}, byte for byte, for all workers.")
    return table(header, rows, markdown=markdown) + "\n\n" + "\n".join(lines)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrays", type=int, default=20_000, help="arrays to write (default 20,000)")
    parser.add_argument("--jpegs", type=int, default=2000, help="JPEG files to write (default 2,000)")
    parser.add_argument("--repeats", type=int, default=5, help="turns of every job (default 5)")
    parser.add_argument("--folder", type=Path, help="write here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it still run?")
    return parser.parse_args(arguments)


def main() -> None:
    """Make the samples, let the jobs take turns, and print the table."""
    options = parse_options()
    if options.quick:
        options.arrays, options.jpegs, options.repeats = 300, 12, 1
    with tempfile.TemporaryDirectory(prefix="lmdbloader-write-", dir=options.folder) as temporary:
        folder = Path(temporary)
        make_jpegs(folder / "jpegs", options.jpegs)
        jobs = make_jobs(cut_arrays(options.arrays), JpegFolder(folder / "jpegs"))
        lmdbloader.write([{"image": np.zeros((8, 8, 3), np.uint8)}], folder / "first")  # loads modules and libraries
        found = environment(folder)
        for _ in range(options.repeats):
            for job in jobs:
                take_turn(job, folder / "out")
    print(environment_text(found, sys.argv[1:], markdown=options.markdown))
    print(f"\n{options.arrays:,} arrays, {options.jpegs:,} JPEG files, {options.repeats} turns, medians\n")
    counts = {"arrays": options.arrays, "jpegs": options.jpegs}
    print(report_text(jobs, counts, markdown=options.markdown))
    if options.json:
        figures = [{key: value for key, value in asdict(job).items() if key != "run"} for job in jobs]
        options.json.write_text(json.dumps({"environment": found, "figures": figures}, indent=1), "utf-8")


if __name__ == "__main__":
    main()
