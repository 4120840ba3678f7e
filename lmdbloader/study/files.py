"""The same images as files in a folder: found, or extracted, and read as people read them, with Pillow."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import Dataset

from lmdbloader.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.extraction import extract
from lmdbloader.extraction.folder import TABLE_FILE
from lmdbloader.images import IMAGE_SUFFIXES
from lmdbloader.study.results import BaselineFacts

AUTO = "auto"
# What is extracted at most: PNG files of this many decoded bytes are written in some seconds.
_AUTO_SAMPLES, _AUTO_NBYTES = 4000, 150 * 2**20


class ImageFiles(Dataset[Any]):
    """Samples as files: `files[i]` opens and decodes the images of sample i and cuts the same window out of all.

    It gives tuples of tensors (C, H, W), as they are stored; numbers beyond the end begin again.
    """

    def __init__(
        self, samples: Sequence[tuple[str, ...]], *, length: int | None = None, crop: int | None = None
    ) -> None:
        """Keep the names; nothing is read.

        Args:
            samples: Paths of each sample's images.
            length: How many samples it says that it has; as many as there are by default.
            crop: Side of a random window in pixels of the largest image; None: the whole images.
        """
        self.samples, self._length, self._crop = samples, length or len(samples), crop

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        images = [_read(path) for path in self.samples[index % len(self.samples)]]
        if self._crop is not None:
            images = _cut(images, self._crop)
        return tuple(torch.from_numpy(np.moveaxis(image, 2, 0).copy()) for image in images)

    def cropped(self, crop: int | None, length: int) -> ImageFiles:
        """Return the same files with another window and another number of samples."""
        return ImageFiles(self.samples, length=length, crop=crop)

    def facts(self, path: str) -> BaselineFacts:
        """Return what there is, called by the path that was given."""
        paths = [name for sample in self.samples for name in sample]
        formats = sorted({Path(name).suffix.lower().lstrip(".") for name in paths})
        nbytes = sum(os.path.getsize(name) for name in paths)
        return BaselineFacts(path, len(self.samples), len(paths), nbytes, tuple(formats))


def find_files(folder: str | os.PathLike[str], fields: Sequence[str]) -> ImageFiles:
    """Return the images of a folder as samples.

    A folder that `lmdbloader extract` made says itself which files belong together. Of any other, all images below it
    are samples; for more than one field each must have a folder of its name, and files are paired in the order of their
    names.

    Args:
        folder: Where the files are.
        fields: Image fields of the dataset that is compared.

    Raises:
        OptionError: There is no such folder, it has no images, or they do not pair up.
    """
    root = Path(folder)
    if not root.is_dir():
        raise OptionError(
            f"baseline {str(folder)!r}: there is no such folder. Name one with the dataset's images as files, or 'auto'"
        )
    table = root / TABLE_FILE
    if table.is_file():
        return ImageFiles(_listed(root, table, fields))
    if len(fields) == 1:
        columns = [_images_below(root)]
    else:
        missing = [name for name in fields if not (root / name).is_dir()]
        if missing:
            raise OptionError(
                f"baseline {str(folder)!r}: found no folder {missing[0]!r} in it; expected one for each image field "
                f"({', '.join(fields)}), or what `lmdbloader extract` wrote. 'auto' extracts the samples"
            )
        columns = [_images_below(root / name) for name in fields]
    lengths = [len(column) for column in columns]
    if not all(lengths):
        raise OptionError(f"baseline {str(folder)!r}: found no images; looked for {' '.join(sorted(IMAGE_SUFFIXES))}")
    if len(set(lengths)) > 1:
        found = ", ".join(f"{n} in {name}" for name, n in zip(fields, lengths, strict=True))
        raise OptionError(f"baseline {str(folder)!r}: found {found}; expected as many of each, paired by their names")
    return ImageFiles(list(zip(*columns, strict=True)))


def extract_files(
    dataset: LMDBDataset, fields: Sequence[str], folder: Path
) -> tuple[ImageFiles, npt.NDArray[np.int64]]:
    """Write the images of a dataset's samples as PNG files, or of a random part where that would take long.

    Args:
        dataset: What to extract.
        fields: Image fields.
        folder: To make.

    Returns:
        The files, and the samples (n,) that they are of.
    """
    rows = dataset.rows_of(np.arange(len(dataset), dtype=np.int64))
    each = sum(dataset.reader.index.arrays[f"{name}.raw_nbytes"][rows].mean() for name in fields)
    count = min(len(rows), _AUTO_SAMPLES, max(int(_AUTO_NBYTES / max(each, 1)), 16))
    chosen = np.sort(np.random.default_rng(0).permutation(len(rows))[:count])
    extract(dataset.path, folder, fields=list(fields), samples=rows[chosen].tolist(), image_format="png")
    return find_files(folder, fields), chosen


def _listed(root: Path, table: Path, fields: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the files of the samples that an extraction lists."""
    samples = []
    with open(table, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            entry = json.loads(line)
            try:
                samples.append(tuple(str(root / entry[name]) for name in fields))
            except (KeyError, TypeError) as error:
                raise OptionError(
                    f"{table}, line {number}: no file of field {error}; extract {', '.join(fields)}"
                ) from error
    return samples


def _images_below(folder: Path) -> list[str]:
    paths = (os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)
    return sorted(path for path in paths if os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES)


def _read(path: str) -> npt.NDArray[Any]:
    """Return the pixels of a file, (H, W, 1 or 3) uint8 or uint16."""
    with Image.open(path) as image:
        if image.mode.startswith("I"):
            return np.asarray(image).astype(np.uint16)[:, :, None]
        pixels = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _cut(images: list[npt.NDArray[Any]], crop: int) -> list[npt.NDArray[Any]]:
    """Return the same random window of images whose sizes are in a whole ratio."""
    height, width = max(image.shape[:2] for image in images)
    scales = [height // image.shape[0] for image in images]
    if crop > min(height, width) or any(crop % scale for scale in scales):
        raise OptionError(f"the baseline's images are {width} x {height} pixels; a window of {crop} does not suit them")
    # A place that is whole in the smallest image is whole in all.
    step = max(scales)
    top = random.randrange((height - crop) // step + 1) * step
    left = random.randrange((width - crop) // step + 1) * step
    return [
        image[top // s : (top + crop) // s, left // s : (left + crop) // s]
        for image, s in zip(images, scales, strict=True)
    ]
