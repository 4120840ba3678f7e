"""The same images as files in a folder: found or extracted, and read with Pillow, as is usual."""

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

from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.conversion.extraction import TABLE_FILE, extract
from lmdbloader.errors import OptionError
from lmdbloader.images.decode import IMAGE_SUFFIXES
from lmdbloader.lab.stored import column
from lmdbloader.lab.study.rows import BaselineFolder

# Limits of the extraction: PNG files of this many decoded bytes are written in some seconds.
_AUTO_SAMPLES, _AUTO_NBYTES = 4000, 150 * 2**20


class ImageFiles(Dataset[Any]):
    """Samples as files: `files[i]` opens and decodes the images of sample i and cuts the same window out of all.

    It gives tuples of tensors (C, H, W), as they are stored; numbers beyond the end begin again.
    """

    def __init__(
        self,
        samples: Sequence[tuple[str, ...]],
        *,
        length: int | None = None,
        crop: int | None = None,
        channels: Sequence[int] | None = None,
    ) -> None:
        """Keep the names; nothing is read.

        Args:
            samples: Paths of each sample's images.
            length: How many samples it says that it has; as many as there are by default.
            crop: Side of a random window in pixels of the largest image; None: the whole images.
            channels: 1 or 3, of each of a sample's images, which are converted; None: as the files have them.
        """
        self.samples, self._length, self._crop, self._channels = samples, length or len(samples), crop, channels

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        paths = self.samples[index % len(self.samples)]
        channels: Sequence[int | None] = self._channels or [None] * len(paths)
        images = [_read(path, count) for path, count in zip(paths, channels, strict=True)]
        if self._crop is not None:
            images = _cut(images, self._crop)
        return tuple(torch.from_numpy(np.moveaxis(image, 2, 0).copy()) for image in images)

    def cropped(self, crop: int | None, length: int) -> ImageFiles:
        """Return the same files with another window and another number of samples."""
        return ImageFiles(self.samples, length=length, crop=crop, channels=self._channels)

    def like(self, dataset: LMDBDataset) -> ImageFiles:
        """Return the same files with as many channels as a dataset's fields have, the most if that differs."""
        channels = [int(column(dataset, name, "channels").max()) for name in dataset.fields]
        return ImageFiles(self.samples, length=self._length, crop=self._crop, channels=channels)

    def check(self, crops: Sequence[int | None]) -> None:
        """Refuse files that cannot be batched, by their headers.

        Args:
            crops: Windows that will be cut; None: whole images.

        Raises:
            OptionError: One is not an image, has another size or depth than the others, or is too small for a window.
        """
        first = [_header(path) for path in self.samples[0]]
        for paths in self.samples:
            found = [_header(path) for path in paths]
            for path, (size, is_deep), (expected, deep) in zip(paths, found, first, strict=True):
                if is_deep != deep:
                    bits = (16, 8) if is_deep else (8, 16)
                    raise OptionError(
                        f"{path}: has {bits[0]} bits for each value, others of the baseline have {bits[1]}; they do "
                        "not fit in one batch. Convert it."
                    )
                if None in crops and size != expected:
                    other = self.samples[0][paths.index(path)]
                    raise OptionError(
                        f"{path}: is {_by(size)} pixels, {other} is {_by(expected)}; whole images that "
                        "differ in size do not fit in one batch. Give a crop that fits all (--crops)."
                    )
            for crop in crops:
                if crop is not None and not _suits([(height, width) for (width, height), _ in found], crop):
                    sizes = ", ".join(_by(size) for size, _ in found)
                    raise OptionError(
                        f"{paths[-1]}: a window of {crop} does not suit the baseline's images ({sizes} pixels). Give a "
                        "smaller one, a multiple of their scale (--crops), or leave such files out."
                    )

    def facts(self, path: str) -> BaselineFolder:
        """Return the facts about these files, with the path that was given."""
        paths = [name for sample in self.samples for name in sample]
        formats = sorted({Path(name).suffix.lower().lstrip(".") for name in paths})
        nbytes = sum(os.path.getsize(name) for name in paths)
        return BaselineFolder(path, len(self.samples), len(paths), nbytes, tuple(formats))


def find_files(folder: str | os.PathLike[str], fields: Sequence[str]) -> ImageFiles:
    """Return the images of a folder as samples.

    A folder that `lmdbloader extract` made says itself which files belong together. Of any other, all images below it
    are samples; for more than one field each must have a folder of its name, and files are paired in the order of their
    names.

    Args:
        folder: Where the files are.
        fields: Image fields of the dataset that is compared.

    Raises:
        OptionError: The folder does not exist or has no images, or the images do not pair up.
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
    """Write the images of a dataset's samples as PNG files, or of a random part if that would take long.

    Returns:
        The files, and the samples (n,) that they show.
    """
    rows = dataset.rows_of(np.arange(len(dataset), dtype=np.int64))
    each = sum(column(dataset, name, "raw_nbytes").mean() for name in fields)
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


def _header(path: str) -> tuple[tuple[int, int], bool]:
    """Return the width and height of a file's image, and whether it has 16 bits."""
    try:
        with Image.open(path) as image:
            return image.size, image.mode.startswith("I")
    except (OSError, Image.DecompressionBombError) as error:
        raise OptionError(f"{path}: Pillow cannot open it ({error}); leave it out of the baseline") from error


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _read(path: str, channels: int | None = None) -> npt.NDArray[Any]:
    """Return the pixels of a file, (H, W, 1 or 3) uint8 or uint16."""
    with Image.open(path) as image:
        if image.mode.startswith("I"):
            return np.repeat(np.asarray(image).astype(np.uint16)[:, :, None], channels or 1, axis=2)
        mode = {1: "L", 3: "RGB", None: image.mode if image.mode == "L" else "RGB"}[channels]
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _suits(sizes: Sequence[tuple[int, ...]], crop: int) -> bool:
    """Return whether a window can be cut out of images of these heights and widths, the same out of all."""
    largest = max(sizes)
    scales = [largest[0] // size[0] for size in sizes]
    return crop <= min(largest) and all(
        crop % scale == 0 and tuple(side * scale for side in size) == tuple(largest)
        for scale, size in zip(scales, sizes, strict=True)
    )


def _cut(images: list[npt.NDArray[Any]], crop: int) -> list[npt.NDArray[Any]]:
    """Return the same random window of images whose sizes are in a whole ratio."""
    height, width = max(image.shape[:2] for image in images)
    scales = [height // image.shape[0] for image in images]
    if not _suits([image.shape[:2] for image in images], crop):
        raise OptionError(f"the baseline's images are {width} x {height} pixels; a window of {crop} does not suit them")
    # A place that is whole in the smallest image is whole in all.
    step = max(scales)
    top = random.randrange((height - crop) // step + 1) * step
    left = random.randrange((width - crop) // step + 1) * step
    return [
        image[top // s : (top + crop) // s, left // s : (left + crop) // s]
        for image, s in zip(images, scales, strict=True)
    ]
