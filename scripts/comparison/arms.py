"""The three ways to the same batches: image files and the dataset through torch's DataLoader, and Loader."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler
from training.class_folders import with_pillow

import lmdbloader
from comparison.material import Pairs, Photos
from comparison.settings import SCALE, Arm, Setting
from lmdbloader.transforms import (
    CenterCrop,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
    Transform,
)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Of the resized image, the shorter side of which the middle is scored.
_SHORTER = 8 / 7
Batch = Sequence[Tensor]
Material = Pairs | Photos


class PairFiles(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of PNG files: the same random window and flips of both, as the arms with a dataset draw them."""

    def __init__(self, files: Sequence[tuple[Path, Path]], size: int) -> None:
        self._files, self._small = files, size // SCALE

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        lr, hr = (_read(path) for path in self._files[index])
        height, width = (side - self._small + 1 for side in lr.shape[:2])
        top, left = int(torch.randint(height, ())), int(torch.randint(width, ()))
        flips = [axis for axis in (0, 1) if torch.rand(()) < 0.5]
        found = []
        for pixels, factor in ((lr, 1), (hr, SCALE)):
            y, x, side = top * factor, left * factor, self._small * factor
            found.append(_planes(np.flip(pixels[y : y + side, x : x + side], flips)))
        return found[0], found[1]


class PhotoFiles(Dataset[tuple[Tensor, int]]):
    """Labeled image files: a random window resized, a flip, normalized floats, with Pillow."""

    def __init__(self, files: Sequence[Path], labels: Sequence[int], size: int) -> None:
        self._files, self._labels, self._transforms = files, labels, _of_photos(size)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self._files[index]) as opened:
            image = opened.convert("RGB")
        return with_pillow(image, self._transforms).permute(2, 0, 1).contiguous(), self._labels[index]


def training_transforms(material: Material, size: int) -> list[Transform]:
    """Return the transforms of the arms with a dataset."""
    if isinstance(material, Pairs):
        return [RandomCrop(size), RandomHorizontalFlip(), RandomVerticalFlip()]
    return _of_photos(size)


def _of_photos(size: int) -> list[Transform]:
    return [RandomResizedCrop(size), RandomHorizontalFlip(), ToDtype(torch.float32, scale=True), Normalize(MEAN, STD)]


def scored_photos(material: Photos, size: int) -> tuple[Tensor, Tensor]:
    """Return the images that are held out, (N, 3, size, size) float32, the middle of each, and their labels (N,)."""
    middle = [Resize(round(size * _SHORTER)), CenterCrop(size)]
    loader = lmdbloader.Loader(
        material.validation, 64, transforms=[*middle, ToDtype(torch.float32, scale=True), Normalize(MEAN, STD)]
    )
    batches = list(loader)
    return torch.cat([batch[0] for batch in batches]), torch.cat([batch[1] for batch in batches])


@contextmanager
def opened(
    material: Material, arm: Arm, setting: Setting, *, device: torch.device, seed: int, samples: int | None = None
) -> Iterator[Callable[[], Iterator[Batch]]]:
    """Give a function that yields the batches of the next epoch; threads and processes end with the context.

    Args:
        material: The data.
        arm: Where batches come from.
        setting: Their size and the rest.
        device: Of the model.
        seed: Of the order and of the random transforms.
        samples: Of an epoch: the data is repeated until there are so many; None for the data once.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*num_threads=", UserWarning)
        warnings.filterwarnings("ignore", ".*worker processes", UserWarning)
        if arm == "lmdbloader":
            loader = _loader(material, setting, device, seed, samples)
            try:
                yield lambda: iter(loader)
            finally:
                loader.close()
            return
        torch.manual_seed(seed)  # which the random transforms of both follow
        batches = _dataloader(material, arm, setting, seed, samples)
        try:
            yield lambda: iter(batches)
        finally:
            iterator = getattr(batches, "_iterator", None)  # where DataLoader keeps its persistent workers
            if iterator is not None:
                iterator._shutdown_workers()
                batches._iterator = None
            gc.collect()


def _loader(
    material: Material, setting: Setting, device: torch.device, seed: int, samples: int | None
) -> lmdbloader.Loader:
    dataset = lmdbloader.LMDBDataset(material.dataset)
    if samples is not None:
        dataset = dataset.select(np.resize(np.arange(len(dataset)), samples))
    is_last = setting.is_classifier and setting.is_channels_last != setting.is_mixed_format
    return lmdbloader.Loader(
        dataset, setting.batch_size, shuffle=True, seed=seed, drop_last=True,
        transforms=training_transforms(material, setting.loaded_size), num_threads=max(1, setting.workers),
        device=device if setting.is_ahead else None, pin_memory=setting.is_pinned,
        memory_format=torch.channels_last if is_last else torch.contiguous_format,
    )  # fmt: skip


def _dataloader(material: Material, arm: Arm, setting: Setting, seed: int, samples: int | None) -> DataLoader[Any]:
    size = setting.loaded_size
    dataset: Any
    if arm == "dataloader":
        dataset = lmdbloader.LMDBDataset(material.dataset).transformed(training_transforms(material, size))
    elif isinstance(material, Pairs):
        dataset = PairFiles(material.files, size)
    else:
        dataset = PhotoFiles(material.files, material.labels, size)
    order = RandomSampler(dataset, num_samples=samples, generator=torch.Generator().manual_seed(seed))
    return DataLoader(
        dataset, setting.batch_size, sampler=order, drop_last=True, num_workers=setting.workers,
        pin_memory=setting.is_pinned, persistent_workers=setting.workers > 0,
    )  # fmt: skip


def _read(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image)


def _planes(pixels: Any) -> Tensor:
    """Return (C, H, W) of (H, W, C) uint8."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
