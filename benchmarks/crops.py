"""Times random crops of whole 2K photographs for super-resolution: PNG folders, PNG sub-images, and the Loader.

The work: an HR crop of 192 x 192 pixels of a 2040 x 1356 photograph and the LR crop of 96 x 96 at the same place, with
the same one of eight flips and rotations, as float32 batches of 16. Three ways do it in turns, each with several
numbers of workers or threads:

- whole PNG files: torch's DataLoader opens and decodes both whole images with Pillow and crops them, as a first script
  does;
- PNG sub-images: the same over overlapping pieces of 480 x 480 pixels (240 x 240 of the LR image) that were cut before
  training, as BasicSR advises;
- Loader: lmdbloader's over the dataset that `lmdbloader convert HR OUT --scale 2` makes of the whole images.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import disk_nbytes, mib, print_sections, table, time_loader, write_mosaics
from PIL import Image
from stores import EndlessOrder
from torch.utils.data import DataLoader, Dataset

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.images.downscale import downscale
from lmdbloader.transforms import RandomCrop, RandomDihedral, ToDtype

SCALE, HR_CROP, BATCH_SIZE = 2, 192, 16
WHOLE, PIECES, OURS = "whole PNG files, DataLoader", "PNG sub-images, DataLoader", "whole images, Loader"
# BasicSR's extract_subimages: the side and the step of pieces of HR images, and the level of PNG's compression.
SIDE, STEP, LEVEL = 480, 240, 3
# DIV2K has 800 images to train on; the distinct ones are repeated to as many.
EPOCH = 800


class PngPairs(Dataset[Any]):
    """Pairs of PNG files of the same names in two folders; a sample is a random crop of both."""

    def __init__(self, highs: Path, lows: Path) -> None:
        self._pairs = [(high, lows / high.name) for high in sorted(highs.glob("*.png"))]

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        high, low = (Image.open(path).convert("RGB") for path in self._pairs[number])
        side = HR_CROP // SCALE
        left, top = (int(torch.randint(length - side + 1, ())) for length in low.size)
        which = int(torch.randint(8, ()))
        crops = []
        for image, times in ((low, 1), (high, SCALE)):
            box = (left * times, top * times, (left + side) * times, (top + side) * times)
            pixels = np.asarray(image.crop(box))
            if which & 4:
                pixels = pixels.transpose(1, 0, 2)
            pixels = pixels[:: -1 if which & 2 else 1, :: -1 if which & 1 else 1]
            crops.append(torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).float() / 255)
        return crops[0], crops[1]


def starts(length: int, side: int, step: int) -> list[int]:
    """Return where pieces of an image's side begin; the last one ends with the image.

    >>> starts(1356, 480, 240)
    [0, 240, 480, 720, 876]
    """
    found = list(range(0, length - side + 1, step))
    return found if found[-1] == length - side else [*found, length - side]


def write_pieces(images: Sequence[Path], folder: Path, side: int, step: int) -> None:
    """Cut PNG images into overlapping pieces of one size, as BasicSR's extract_subimages does."""
    folder.mkdir(parents=True)
    for path in images:
        with Image.open(path) as image:
            number = 0
            for top in starts(image.height, side, step):
                for left in starts(image.width, side, step):
                    piece = image.crop((left, top, left + side, top + side))
                    piece.save(folder / f"{path.stem}_{number:03d}.png", compress_level=LEVEL)
                    number += 1


def write_data(folder: Path, options: argparse.Namespace) -> None:
    """Write the photographs, their LR images, pieces of some of both, and the dataset; what is there is kept."""
    highs, lows = folder / "HR", folder / "LR"
    if not (folder / "train.lmdb").exists():
        write_mosaics(highs, options.photographs, width=options.width, height=options.height)
        lows.mkdir()
        for path in sorted(highs.glob("*.png")):
            Image.fromarray(downscale(np.asarray(Image.open(path)), SCALE)).save(lows / path.name)
        for name, images, times in (("HR_sub", highs, SCALE), ("LR_sub", lows, 1)):
            cut = sorted(images.glob("*.png"))[: options.cut]
            write_pieces(cut, folder / name, SIDE * times // SCALE, STEP * times // SCALE)
        lmdbloader.convert(highs, folder / "train.lmdb", scale=SCALE)


def of_files(folder: Path, suffix: str, workers: int) -> Callable[[float], float]:
    """Return a function that measures torch's DataLoader over PNG files."""
    dataset = PngPairs(folder / f"HR{suffix}", folder / f"LR{suffix}")

    def measure(seconds: float) -> float:
        order = EndlessOrder(len(dataset), int(torch.randint(1000, ())))
        batches = iter(DataLoader(dataset, BATCH_SIZE, sampler=order, num_workers=workers))
        # Batches that the workers have ready at first would be counted too.
        for _ in range(1 + 2 * workers):
            next(batches)
        count, began = 0, time.perf_counter()
        # Workers deliver at about the same time: as many batches of each.
        while (now := time.perf_counter()) - began < seconds or count == 0 or count % max(workers, 1):
            next(batches)
            count += 1
        return count * BATCH_SIZE / (now - began)

    return measure


def of_loader(folder: Path, threads: int) -> Callable[[float], float]:
    """Return a function that measures the Loader over whole images."""
    images = LMDBDataset(folder / "train.lmdb")
    images = images.select(np.resize(np.arange(len(images)), EPOCH))
    augment = [RandomCrop(HR_CROP), RandomDihedral(), ToDtype(torch.float32, scale=True)]
    loader = Loader(images, BATCH_SIZE, shuffle=True, transforms=augment, num_threads=threads)
    lr, hr = next(iter(loader))
    assert tuple(lr.shape[1:]) == (3, HR_CROP // SCALE, HR_CROP // SCALE)
    assert tuple(hr.shape[1:]) == (3, HR_CROP, HR_CROP)
    return lambda seconds: float(time_loader(loader, seconds).samples_per_s)


def time_ways(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return each way with each number of workers or threads: the pairs a second of its turns, and their median."""
    measures: dict[tuple[str, int], tuple[Callable[[float], float], float]] = {}
    for workers in options.workers:
        measures[WHOLE, workers] = of_files(folder, "", workers), 4 * options.seconds
        measures[PIECES, workers] = of_files(folder, "_sub", workers), options.seconds
    for threads in options.threads:
        measures[OURS, threads] = of_loader(folder, threads), options.seconds
    turns: dict[tuple[str, int], list[float]] = {key: [] for key in measures}
    for turn in range(options.repeats):
        for key, (measure, seconds) in measures.items():
            turns[key].append(measure(seconds))
        print(f"turn {turn + 1} of {options.repeats} done", file=sys.stderr, flush=True)
    return [
        {"way": way, "workers": count, "pairs_per_s": statistics.median(found), "turns": found}
        for (way, count), found in turns.items()
    ]


def best_of(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each way's row with its best number of workers or threads."""
    return {way: max((r for r in rows if r["way"] == way), key=_speed) for way in (WHOLE, PIECES, OURS)}


def _speed(row: dict[str, Any]) -> float:
    return float(row["pairs_per_s"])


def report_ways(rows: Sequence[dict[str, Any]], markdown: bool) -> str:
    """Return the table of the speeds, with what the Loader's best is of each way's best."""
    best = best_of(rows)
    cells = [
        [
            row["way"],
            str(row["workers"]),
            f"{row['pairs_per_s']:,.1f}",
            f"{min(row['turns']):,.1f} to {max(row['turns']):,.1f}",
            f"{best[OURS]['pairs_per_s'] / row['pairs_per_s']:,.1f}" if row is best[row["way"]] else "",
        ]
        for row in rows
    ]
    return table(["", "workers or threads", "pairs/s", "turns", "Loader's best / this"], cells, markdown=markdown)


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the figures and the text of every section."""
    torch.set_num_threads(1)
    write_data(folder, options)
    sizes = {
        "photographs": options.photographs,
        "HR and LR PNG files": disk_nbytes(folder / "HR") + disk_nbytes(folder / "LR"),
        "photographs cut": options.cut,
        "PNG sub-images": disk_nbytes(folder / "HR_sub") + disk_nbytes(folder / "LR_sub"),
        "dataset": disk_nbytes(folder / "train.lmdb"),
        "codecs": {field.name: field.codec for field in LMDBDataset(folder / "train.lmdb").reader.manifest.fields},
    }
    rows = time_ways(folder, options)
    yield "Random crops", rows, report_ways(rows, options.markdown)
    each = [
        ["HR and LR PNG files", mib(sizes["HR and LR PNG files"] / sizes["photographs"])],
        ["PNG sub-images", mib(sizes["PNG sub-images"] / sizes["photographs cut"])],
        ["dataset", mib(sizes["dataset"] / sizes["photographs"])],
    ]
    yield "Disk space for a photograph", sizes, table(["", "each"], each, markdown=options.markdown)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs", type=int, default=48, help="distinct ones (default 48)")
    parser.add_argument("--cut", type=int, default=12, help="photographs that are cut into sub-images (default 12)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="of torch's DataLoader")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="of the Loader")
    parser.add_argument("--repeats", type=int, default=3, help="turns of everything (default 3)")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="length of a turn, at least; four times as long for whole PNG files"
    )
    parser.add_argument("--folder", type=Path, help="keep the images here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="some seconds: does it still run?")
    options = parser.parse_args(arguments)
    options.width, options.height = 2040, 1356
    if options.quick:
        options.photographs, options.cut, options.repeats, options.seconds = 1, 1, 1, 0.02
        options.width, options.height, options.workers = 500, 500, [0]
    return options


def main() -> None:
    """Measure and print."""
    options = parse_options()
    title = f"{options.photographs} photographs, batches of {BATCH_SIZE}, {options.repeats} turns, medians"
    print_sections(lambda folder: run(folder, options), title, options)


if __name__ == "__main__":
    main()
