"""The jobs that every peer does with the same samples: what is stored, what is random, and what a batch is.

A peer is a file `NAME_peer.py` in this folder with

    NAME        its title, for tables
    PACKAGES    the packages that it needs, as pip names them; their versions go into the results
    JOBS        names of the jobs that it does
    NOT         optional: {name of another job: one line why not}
    SETTINGS    one line: the settings that it was run with
    WORKERS     optional: the numbers of workers or threads to try, (0, 1, 2) otherwise
    write(job, samples, folder)
    open(job, folder, batch_size, workers, seed)

`samples` is a dict of columns: index (int64), then lr and hr, or label (int64) and image; pixels are uint8
(N, H, W, 3), and JPEGs are a list of bytes. `open` returns an object to iterate over, each time a whole epoch in
another order. A batch is a dict of torch tensors: index, and lr and hr or image and label. The object may have
set_epoch and close.
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

Samples = dict[str, Any]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE, STORED = 224, 256
NUM_CLASSES = 10
JPEG_QUALITY = 90


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    Attributes:
        name: "pairs", "crops" or "crops-jpeg".
        title: For tables.
        shapes: Of the stored pixels (H, W, C), by the name of the field; no shapes where JPEGs are stored.
        out: Shapes of the fields in a batch (C, H, W), float32.
        random: What is random about a sample, in words.
        batch_sizes: To measure.
        samples: How many to write for a full run.
    """

    name: str
    title: str
    shapes: dict[str, tuple[int, int, int]]
    out: dict[str, tuple[int, int, int]]
    random: str
    batch_sizes: tuple[int, ...]
    samples: int

    @property
    def is_pairs(self) -> bool:
        """Whether a sample has lr and hr; otherwise it has image and label."""
        return "lr" in self.out


_CROPPED = {"image": (3, SIZE, SIZE)}
_CROPS = f"a random part of the image, resized to {SIZE} x {SIZE}; half of them mirrored"
JOBS = {
    job.name: job
    for job in (
        Job(
            "pairs",
            "Pairs of patches, 96 and 48",
            {"lr": (48, 48, 3), "hr": (96, 96, 3)},
            {"lr": (3, 48, 48), "hr": (3, 96, 96)},
            "both patches of half of the pairs mirrored",
            (8, 16, 32, 64, 128),
            4000,
        ),
        Job(
            "crops",
            f"Pixels of {STORED} x {STORED}, crops to {SIZE}",
            {"image": (STORED, STORED, 3)},
            _CROPPED,
            _CROPS,
            (64, 256),
            1024,
        ),
        Job("crops-jpeg", f"JPEGs of 500 x 375, crops to {SIZE}", {}, _CROPPED, _CROPS, (64, 256), 1024),
    )
}


def make_samples(job: Job, count: int) -> Samples:
    """Return samples of real photographs; see the module for the columns."""
    if job.is_pairs:
        from common import cut_pairs

        pairs = cut_pairs(count)
        halves = {name: np.ascontiguousarray(getattr(pairs, name).transpose(0, 2, 3, 1)) for name in ("lr", "hr")}
        return {"index": np.arange(count, dtype=np.int64), **halves}
    from photos import cut_photos

    images = cut_photos(count)
    columns: Samples = {"index": np.arange(count, dtype=np.int64), "label": _labels(count)}
    if not job.shapes:
        return {**columns, "image": [_jpeg(image) for image in images]}
    from PIL import Image

    resized = [image.resize((STORED, STORED), Image.Resampling.BICUBIC) for image in images]
    return {**columns, "image": np.stack([np.asarray(image) for image in resized])}


def make_marked_samples(job: Job, count: int) -> Samples:
    """Return samples to check a peer with, where a crop shows its number, its place and whether it is mirrored.

    An image is darker to the left in red, darker at the top in green, and of one blue: that of its number.
    Pairs are those of make_samples.
    """
    if job.is_pairs:
        return make_samples(job, count)
    from PIL import Image

    width, height = (500, 375) if not job.shapes else (STORED, STORED)
    pixels = np.empty((count, height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(20, 235, width)
    pixels[..., 1] = np.linspace(20, 235, height)[:, None]
    pixels[..., 2] = blue_of(np.arange(count), count)[:, None, None]
    image: Any = pixels if job.shapes else [_jpeg(Image.fromarray(each)) for each in pixels]
    return {"index": np.arange(count, dtype=np.int64), "label": _labels(count), "image": image}


def blue_of(numbers: np.ndarray, count: int) -> np.ndarray:
    """Return the blue of make_marked_samples, 0 to 255, for samples of these numbers."""
    return np.round(20 + 215 * np.asarray(numbers) / max(count - 1, 1))


def _labels(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64) * 7 % NUM_CLASSES


def _jpeg(image: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()
