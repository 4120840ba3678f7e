"""This package's Loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from job import MEAN, SIZE, STD

NAME = "lmdbloader"
PACKAGES = ()
JOBS = ("pairs", "crops", "crops-jpeg")
# The Loader's threads; it has no worker processes.
WORKERS = (1, 2)
SETTINGS = 'pixels as they are (codec="raw"), JPEGs recoded without loss (write_mode="original"); Loader(shuffle=True)'


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write a dataset."""
    import lmdbloader
    from lmdbloader.fields import Image

    names = list(samples)
    rows = (dict(zip(names, row, strict=True)) for row in zip(*samples.values(), strict=True))
    how: dict[str, Any] = {"codec": "raw"}
    if not job.shapes:
        how = {"fields": {"image": Image()}, "write_mode": "original"}
    lmdbloader.write(rows, folder / "samples.lmdb", **how)


def open(job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> Any:
    """Open the dataset."""
    from lmdbloader import Loader
    from lmdbloader.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop, ToDtype

    floats = ToDtype(torch.float32, scale=True)
    transforms = [RandomHorizontalFlip(), floats]
    if not job.is_pairs:
        transforms = [RandomResizedCrop(SIZE), *transforms, Normalize(MEAN, STD)]
    return Loader(
        str(folder / "samples.lmdb"), batch_size, shuffle=True, seed=seed, transforms=transforms, num_threads=workers,
        as_="dict",
    )  # fmt: skip
