"""Times `Loader(keep="memory")`: JPEGs decoded in every epoch or once, and the same images stored as raw pixels.

All ways take turns in one process, with one thread. A figure is the CPU time of a sample: of the first epoch of a new
Loader, and the median of those after it. One more epoch comes before each table, as kernels and memory are new then.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import print_sections, table
from photos import MEAN, STD, write_photos

import lmdbloader
from lmdbloader import Loader, transforms

BATCH = 32
FLOATS = [transforms.ToDtype(torch.float32, scale=True), transforms.Normalize(MEAN, STD)]
LISTS = {
    "RandomResizedCrop(224), flip, float32": [
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *FLOATS
    ],
    "RandomResizedCrop(128)": [transforms.RandomResizedCrop(128)],
    "RandomCrop(96), RandomDihedral": [transforms.RandomCrop(96), transforms.RandomDihedral()],
}  # fmt: skip
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "JPEG": ("jpeg.lmdb", {}),
    "JPEG, kept": ("jpeg.lmdb", {"keep": "memory"}),
    "raw pixels": ("raw.lmdb", {}),
    "raw pixels, not verified": ("raw.lmdb", {"verify": False}),
}


def epoch_seconds(loader: Loader) -> float:
    """Return the CPU seconds of a sample of the next epoch."""
    began = time.process_time()
    count = sum(len(batch.label) for batch in loader)
    return (time.process_time() - began) / count


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the title, figures and text of each list of transforms."""
    photos, jpegs, raw = folder / "photos", folder / "jpeg.lmdb", folder / "raw.lmdb"
    if not raw.exists():
        write_photos(photos, options.images)
        lmdbloader.convert(photos, jpegs, layout="classes")
        pixels = ({"image": s.image, "label": s.label} for s in lmdbloader.LMDBDataset(jpegs))
        lmdbloader.write(pixels, raw, codec="raw")
    for title, steps in LISTS.items():
        how: dict[str, Any] = {"shuffle": True, "seed": 0, "transforms": steps, "num_threads": 1}
        epoch_seconds(Loader(jpegs, BATCH, **how))
        loaders = {way: Loader(folder / name, BATCH, **how, **more) for way, (name, more) in WAYS.items()}
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(options.turns + 1):
            for way, loader in loaders.items():
                found[way].append(epoch_seconds(loader))
        later = {way: statistics.median(times[1:]) for way, times in found.items()}
        rows = [
            [way, f"{1e6 * found[way][0]:.0f}", f"{1e6 * later[way]:.0f}", f"{later['JPEG'] / later[way]:.2f}",
             f"{later['raw pixels'] / later[way]:.2f}"]
            for way in WAYS
        ]  # fmt: skip
        header = ["", "first epoch, us", "later ones, us", "times as fast as JPEG", "as raw pixels"]
        yield title, found, table(header, rows, markdown=options.markdown)


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where datasets are written; default: a temporary folder")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, help="file for every figure")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it still run?")
    options = parser.parse_args()
    if options.quick:
        options.images, options.turns = 16, 1
    torch.set_num_threads(1)
    print_sections(partial(run, options=options), "Decoded JPEGs kept in memory, of 500 x 375 pixels", options)


if __name__ == "__main__":
    main()
