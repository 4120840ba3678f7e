"""Times functions of the user that take turns in a Loader, and the same ones marked with `thread_safe`.

Epochs of the two alternate, and each is compared with the one next to it, so that the machine's other work meets both.
The figures are medians of the samples of a second, and of the ratios.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import table
from own_functions import write_images
from PIL import Image

import lmdbloader
from lmdbloader.transforms import RandomHorizontalFlip, thread_safe

SIDE = 224


def python(sample: Any) -> Any:
    """Work in Python alone, which holds the GIL."""
    sum(k * k for k in range(4000))
    return sample


def pillow(sample: Any) -> Any:
    """Turn an image with Pillow, in short calls."""
    image = Image.fromarray(sample.image.permute(1, 2, 0).numpy()).rotate(random.uniform(-10, 10), Image.BILINEAR)
    return sample._replace(image=torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1))


def numpy(sample: Any) -> Any:
    """Change the values of an image with NumPy, which releases the GIL in each operation."""
    values = sample.image.numpy().astype(np.float32) * random.uniform(0.8, 1.2)
    return sample._replace(image=torch.from_numpy(np.clip(values, 0, 255)))


def torch_on_batches(batch: Any) -> Any:
    """Blur a batch with torch, which releases the GIL."""
    return batch._replace(image=torch.nn.functional.avg_pool2d(batch.image.float(), 5, 1, 2))


# Name, function, and whether it is called with samples.
FUNCTIONS: list[tuple[str, Callable[[Any], Any], bool]] = [
    ("Python on the sample", python, True),
    ("Pillow on the sample", pillow, True),
    ("NumPy on the sample", numpy, True),
    ("torch on the batch", torch_on_batches, False),
]


def speeds(path: Path, function: Callable[[Any], Any], of_samples: bool, options: argparse.Namespace) -> list[Any]:
    """Return the samples of a second, (turns, 2): one thread at a time, and at once."""

    def marked(values: Any) -> Any:
        return function(values)

    loaders = []
    for each in (function, thread_safe(marked)):
        dataset = lmdbloader.LMDBDataset(path, transform=each if of_samples else None)
        transforms = [RandomHorizontalFlip(), *([] if of_samples else [each])]
        loaders.append(lmdbloader.Loader(dataset, options.batch_size, shuffle=True, transforms=transforms))
    found = []
    for turn in range(options.turns + 1):
        pair = [0.0, 0.0]
        for k in (0, 1) if turn % 2 else (1, 0):
            began = time.perf_counter()
            count = sum(len(batch[0]) for batch in loaders[k])
            pair[k] = count / (time.perf_counter() - began)
        found.append(pair)
    return found[1:]  # the first one fills caches and memory


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the title, results and text of each section."""
    path = folder / "images.lmdb"
    write_images(path, options.size, options.images)
    results, rows = {}, []
    for name, function, of_samples in FUNCTIONS:
        pairs = speeds(path, function, of_samples, options)
        alone, at_once = (statistics.median(column) for column in zip(*pairs, strict=True))
        results[name] = {"alone": alone, "at once": at_once, "ratio": statistics.median(a / b for a, b in pairs)}
        rows.append([name, f"{alone:.0f}", f"{at_once:.0f}", f"{results[name]['ratio']:.2f}"])
    header = ["function", "one at a time, samples/s", "marked, samples/s", "ratio"]
    yield "Functions that take turns", results, table(header, rows, markdown=options.markdown)


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=SIDE, help="side of the images")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--turns", type=int, default=21, help="epochs of each")
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    options = parse_options()
    with tempfile.TemporaryDirectory() as folder:
        for title, _, text in run(Path(folder), options):
            print(f"{title}\n\n{text}")


if __name__ == "__main__":
    main()
