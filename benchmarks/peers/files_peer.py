"""Torch's DataLoader over a folder of image files, with Pillow and torchvision: what most people start with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch_loader import SETTINGS as LOADER
from torch_loader import Stored, open_loader, pixel_fields, write_labels

NAME = "DataLoader, image files"
PACKAGES = ("pillow", "torchvision")
JOBS = ("pairs", "crops", "crops-jpeg")
SETTINGS = f"PNG files of pixels (JPEG files as they are), read by Pillow; torchvision's transforms on bytes; {LOADER}"


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write a file for each image."""
    for name, column in pixel_fields(samples).items():
        (folder / name).mkdir(parents=True)
        for number, value in enumerate(column):
            if isinstance(value, bytes):
                (folder / name / f"{number:06d}.jpg").write_bytes(value)
            else:
                Image.fromarray(value).save(folder / name / f"{number:06d}.png")
    write_labels(samples, folder)


class _Files(Stored):
    def __getitem__(self, index: int) -> dict[str, Any]:
        suffix = ".png" if self.job.shapes else ".jpg"
        fields = {}
        for name in self.job.out:
            with Image.open(f"{self.folder}/{name}/{index:06d}{suffix}") as image:
                fields[name] = np.asarray(image.convert("RGB"))
        return self.sample(index, fields)


def open(job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> Any:
    """Open the files."""
    return open_loader(_Files(job, folder), batch_size, workers, seed)
