"""Times one transform, solarize with a drawn threshold, written in five ways, in a Loader with one reading thread.

Photographs are cut to squares, stored raw. All ways take turns in one process, so the machine's other work meets each.
The figures are medians of the processor time of an image beyond that of the same Loader without the transform.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import photographs, print_sections, table

import lmdbloader
from lmdbloader.transforms import CompiledFunction, Normalize, RandomSolarize, ToDtype

BATCH = 64
FLOATS = [ToDtype(torch.float32, scale=True), Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]


def solarize(image: Any, out: Any, threshold: float) -> None:
    """Invert the values of an image (C, H, W) from a threshold on."""
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                value = image[c, y, x]
                out[c, y, x] = 255 - value if value >= threshold else value


def with_torch(batch: Any) -> Any:
    """Do the same with torch's operations on a batch."""
    thresholds = torch.rand(len(batch.image), 1, 1, 1) * 128 + 128
    return batch._replace(image=torch.where(batch.image >= thresholds, 255 - batch.image, batch.image))


def one_with_torch(sample: Any) -> Any:
    """Do the same with torch's operations on a sample."""
    threshold = 128 + 128 * float(torch.rand(()))
    return sample._replace(image=torch.where(sample.image >= threshold, 255 - sample.image, sample.image))


def as_ffcv_does() -> Callable[[Any], Any]:
    """Return a function of batches as FFCV calls an Operation's: Numba's, with a batch of its own for the result."""
    import numba

    @numba.njit(nogil=True)
    def operation(images: Any, out: Any, thresholds: Any) -> Any:
        for k in range(images.shape[0]):
            for c in range(images.shape[1]):
                for y in range(images.shape[2]):
                    for x in range(images.shape[3]):
                        value = images[k, c, y, x]
                        out[k, c, y, x] = 255 - value if value >= thresholds[k] else value
        return out

    def function(batch: Any) -> Any:
        images = batch.image.numpy()
        thresholds = np.random.default_rng().uniform(128, 256, len(images))
        return batch._replace(image=torch.from_numpy(operation(images, np.empty_like(images), thresholds)))

    return function


def write_images(path: Path, size: int, count: int) -> None:
    """Write squares of photographs."""
    rng, sources = np.random.default_rng(0), photographs()

    def cut() -> Iterator[dict[str, Any]]:
        for number in range(count):
            source = sources[number % len(sources)]
            top, left = (int(rng.integers(side - size + 1)) for side in source.shape[:2])
            yield {"image": np.ascontiguousarray(source[top : top + size, left : left + size])}

    lmdbloader.write(cut(), path, codec="raw")


def ways(path: Path, batch_size: int) -> dict[str, Callable[[], float]]:
    """Return what reads an epoch in each way, and returns the seconds of processor time for an image."""
    dataset = lmdbloader.LMDBDataset(path)
    own = CompiledFunction(solarize, draw={"threshold": (128.0, 256.0)})
    lists: dict[str, tuple[Any, list[Any]]] = {
        "none": (dataset, []),
        "built in": (dataset, [RandomSolarize(192, p=1)]),
        "CompiledFunction": (dataset, [own]),
        "Numba on the batch, as in FFCV": (dataset, [as_ffcv_does()]),
        "torch on the batch": (dataset, [with_torch]),
        "torch on the sample": (lmdbloader.LMDBDataset(path, transform=one_with_torch), []),
        "none, float32": (dataset, FLOATS),
        "built in, float32": (dataset, [RandomSolarize(192, p=1), *FLOATS]),
    }

    def epoch(loader: Any) -> float:
        began = time.process_time()
        count = sum(len(batch[0]) for batch in loader)
        return (time.process_time() - began) / count

    found = {}
    for name, (of, transforms) in lists.items():
        loader = lmdbloader.Loader(of, batch_size, shuffle=True, transforms=transforms, num_threads=1)
        found[name] = lambda loader=loader: epoch(loader)
    return found


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the title, results and text of each section."""
    results: dict[str, dict[str, float]] = {}
    rows = []
    for size in options.sizes:
        path = folder / f"{size}.lmdb"
        write_images(path, size, options.images)
        epochs = ways(path, options.batch_size)
        times: dict[str, list[float]] = {name: [] for name in epochs}
        for turn in range(options.turns + 1):
            for name, read in epochs.items():
                seconds = read()
                if turn:  # the first one fills caches and memory
                    times[name].append(seconds * 1e6)
        medians = {name: statistics.median(found) for name, found in times.items()}
        results[str(size)] = medians
        for name, found in medians.items():
            base = medians["none, float32" if "float32" in name else "none"]
            rows.append([f"{size} x {size}", name, f"{found:.1f}", f"{found - base:+.1f}"])
    header = ["images", "way", "µs for an image", "beyond none"]
    yield "Processor time of one transform", results, table(header, rows, markdown=options.markdown)


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[96, 224], help="sides of the images")
    parser.add_argument("--images", type=int, default=640, help="images of each size")
    parser.add_argument("--batch-size", type=int, default=BATCH)
    parser.add_argument("--turns", type=int, default=15, help="epochs of each way")
    parser.add_argument("--folder", type=Path, help="write the images here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    options = parse_options()
    print_sections(lambda folder: run(folder, options), f"Medians of {options.turns} turns", options)


if __name__ == "__main__":
    main()
