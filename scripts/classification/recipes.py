"""Presets for training on CIFAR-like and ImageNet-like datasets: transforms and hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from lmdbloader.transforms import (
    CenterCrop,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    Transform,
)

__all__ = ["RECIPES", "Recipe"]

Schedule = Literal["cosine", "triangle"]
_CIFAR_PADDING = 4
_CUTOUT_AREA = 1 / 16  # 8 x 8 of 32 x 32


@dataclass(frozen=True, slots=True)
class Recipe:
    """The usual training of a kind of dataset; every number is a default that a run may change.

    Attributes:
        small_images: Whether images are small and all of one size (CIFAR-10): random crops of the padded image, flips
            and Cutout; the model's stem keeps the resolution. Otherwise (ImageNet) random resized crops and flips; for
            evaluation the shorter side is resized to 8/7 of the size, then the center is cropped.
        size: Height and width that the model is trained on, in pixels.
        epochs: Passes over the data.
        batch_size: Images of one process in a step.
        rate: Peak learning rate for 256 images a step; it grows with the images of a step (Goyal et al. 2017).
        warmup: Epochs until the peak.
        schedule: From the peak on: "cosine" (half a cosine) or "triangle" (a straight line), both to 0.
        weight_decay: Of weights; biases and normalizations have none.
        label_smoothing: Share of the target that is spread over all classes.
        mean, std: Of the channels, of images in 0..1.
    """

    small_images: bool
    size: int
    epochs: int
    batch_size: int
    rate: float
    warmup: float
    schedule: Schedule
    weight_decay: float
    label_smoothing: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def training_transforms(self, size: int, dtype: torch.dtype) -> list[Transform]:
        """Return the transforms of training: random windows, flips, the type, normalization, for small images Cutout.

        Args:
            size: Height and width of the images in a batch.
            dtype: Of the images in a batch: torch.float32, bfloat16 or float16.
        """
        if not self.small_images:
            return [RandomResizedCrop(size), RandomHorizontalFlip(), *self._units(dtype)]
        red, green, blue = (round(255 * value) for value in self.mean)
        crop = RandomCrop(size, padding=_CIFAR_PADDING, fill=(red, green, blue))  # about 0 once normalized
        cutout = RandomErasing(1.0, (_CUTOUT_AREA, _CUTOUT_AREA), (1.0, 1.0))
        return [crop, RandomHorizontalFlip(), *self._units(dtype), cutout]

    def evaluation_transforms(self, size: int, dtype: torch.dtype, *, whole: bool = False) -> list[Transform]:
        """Return the transforms of evaluation: nothing random, the middle of the image.

        Args:
            size: Height and width of the images in a batch.
            dtype: Of the images in a batch.
            whole: Give the whole middle of the resized image, 8/7 of the size high and wide, to be cut into several
                windows. Small images are not resized, and have none.
        """
        if self.small_images:
            return [CenterCrop(size), *self._units(dtype)]
        resized = round(size * 8 / 7)
        return [Resize(resized), CenterCrop(resized if whole else size), *self._units(dtype)]

    def _units(self, dtype: torch.dtype) -> list[Transform]:
        return [ToDtype(dtype, scale=True), Normalize(self.mean, self.std)]


RECIPES: dict[str, Recipe] = {
    "cifar": Recipe(
        small_images=True,
        size=32,
        epochs=24,
        batch_size=512,
        rate=0.25,
        warmup=5,
        schedule="triangle",
        weight_decay=5e-4,
        label_smoothing=0.1,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    "imagenet": Recipe(
        small_images=False,
        size=224,
        epochs=90,
        batch_size=256,
        rate=0.1,
        warmup=5,
        schedule="cosine",
        weight_decay=1e-4,
        label_smoothing=0.1,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    ),
}
"""The presets of `scripts/train_classifier.py` by name."""
