"""The same images as files in a folder: found or extracted, and read with Pillow, as is usual."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from lmdbloader.base.text import counted
from lmdbloader.base.units import show_nbytes
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.conversion.extraction import extract
from lmdbloader.errors import OptionError
from lmdbloader.images.decode import IMAGE_SUFFIXES
from lmdbloader.lab.stored import column

# Limits of the extraction: PNG files of this many decoded bytes are written in some seconds.
_AUTO_SAMPLES, _AUTO_NBYTES = 4000, 150 * 2**20


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Samples as files: `files[i]` opens and decodes the images of sample i and cuts the same window out of all.

    It gives tuples of tensors (C, H, W), as they are stored.

    Attributes:
        samples: Paths of each sample's images.
        channels: 1 or 3, of each of a sample's images, which are converted.
        crop: Side of a random window in pixels of the largest image; None: the whole images.
    """

    samples: Sequence[tuple[str, ...]]
    channels: Sequence[int]
    crop: int | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        images = [_read(path, count) for path, count in zip(self.samples[index], self.channels, strict=True)]
        if self.crop is not None:
            images = _cut(images, self.crop)
        return tuple(torch.from_numpy(np.moveaxis(image, 2, 0).copy()) for image in images)

    def describe(self) -> str:
        """Return how many files there are, of which formats, and their bytes."""
        paths = [name for sample in self.samples for name in sample]
        formats = sorted({Path(name).suffix.lower().lstrip(".") for name in paths})
        nbytes = sum(os.path.getsize(name) for name in paths)
        return f"{counted(len(paths), 'file')} ({', '.join(formats)}), {show_nbytes(nbytes)}"


def find_files(folder: str | os.PathLike[str], dataset: LMDBDataset) -> ImageFiles:
    """Return the images of a folder as samples.

    All images below it are samples; for more than one field each must have a folder of its name, as in what `lmdbloader
    extract` writes, and files are paired in the order of their names.

    Args:
        folder: Where the files are.
        dataset: That is compared: of image fields. Files get its numbers of channels.

    Raises:
        OptionError: The folder does not exist or has no images, or the images do not pair up.
    """
    root, fields = Path(folder), list(dataset.fields)
    if not root.is_dir():
        raise OptionError(
            f"baseline {str(folder)!r}: there is no such folder. Name one with the dataset's images as files, or 'auto'"
        )
    channels = [int(column(dataset, name, "channels").max()) for name in fields]
    columns = [_images_below(root / name if len(fields) > 1 else root) for name in fields]
    found = ", ".join(f"{len(paths)} for {name}" for name, paths in zip(fields, columns, strict=True))
    if not columns[0] or len(set(map(len, columns))) > 1:
        raise OptionError(
            f"baseline {str(folder)!r}: found {found}; expected images ({' '.join(sorted(IMAGE_SUFFIXES))}), for "
            "several fields as many in a folder of each field's name"
        )
    return ImageFiles(list(zip(*columns, strict=True)), channels)


def extract_files(dataset: LMDBDataset, folder: Path) -> tuple[ImageFiles, npt.NDArray[np.int64]]:
    """Write the images of a dataset's samples as PNG files, or of a random part if that would take long.

    Returns:
        The files, and the samples (n,) that they show.
    """
    rows = dataset.rows_of(np.arange(len(dataset), dtype=np.int64))
    each = sum(column(dataset, name, "raw_nbytes").mean() for name in dataset.fields)
    count = min(len(rows), _AUTO_SAMPLES, max(int(_AUTO_NBYTES / max(each, 1)), 16))
    chosen = np.sort(np.random.default_rng(0).permutation(len(rows))[:count])
    extract(dataset.path, folder, fields=list(dataset.fields), samples=rows[chosen].tolist(), image_format="png")
    return find_files(folder, dataset), chosen


def _images_below(folder: Path) -> list[str]:
    paths = (os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)
    return sorted(path for path in paths if os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES)


def _read(path: str, channels: int) -> npt.NDArray[Any]:
    """Return the pixels of a file, (H, W, 1 or 3) uint8 or uint16."""
    with Image.open(path) as image:
        if image.mode.startswith("I"):
            return np.repeat(np.asarray(image).astype(np.uint16)[:, :, None], channels, axis=2)
        pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _cut(images: list[npt.NDArray[Any]], crop: int) -> list[npt.NDArray[Any]]:
    """Return the same random window of images whose sizes are in a whole ratio.

    Raises:
        OptionError: The window does not suit them.
    """
    height, width = max(image.shape[:2] for image in images)
    scales = [height // image.shape[0] for image in images]
    fit = all(
        crop % s == 0 and (image.shape[0] * s, image.shape[1] * s) == (height, width)
        for s, image in zip(scales, images, strict=True)
    )
    if crop > min(height, width) or not fit:
        raise OptionError(f"the baseline's images are {width} x {height} pixels; a window of {crop} does not suit them")
    # A place that is whole in the smallest image is whole in all.
    step = max(scales)
    top = random.randrange((height - crop) // step + 1) * step
    left = random.randrange((width - crop) // step + 1) * step
    return [
        image[top // s : (top + crop) // s, left // s : (left + crop) // s]
        for image, s in zip(images, scales, strict=True)
    ]
