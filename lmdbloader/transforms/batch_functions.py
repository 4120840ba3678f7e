"""Functions of whole batches that mix samples or soften labels, the last of a Loader's transforms."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch

from lmdbloader.base.arguments import number, whole
from lmdbloader.errors import OptionError
from lmdbloader.transforms.functions import BatchFunction, thread_safe

# The sum of two is finite, too.
_LARGEST_ALPHA = 2.0**1000
# How far rows of probabilities may be from 1: those of bfloat16 are rounded to 2 to 3 digits.
_ROUNDING = 0.05


@thread_safe
@dataclass(frozen=True, slots=True)
class LabelSmoothing(BatchFunction):
    """Turn labels into probabilities: 1 - smoothing for the class, and smoothing spread evenly over all of them.

    Szegedy et al., "Rethinking the Inception architecture" (2016).

    Attributes:
        smoothing: At least 0, less than 1.
        num_classes: Of the labels.
        label: Name of the field with whole numbers (B,) or probabilities (B, num_classes).

    >>> soften = LabelSmoothing(0.25, num_classes=5)
    """

    smoothing: float
    num_classes: int
    label: str = "label"

    def __post_init__(self) -> None:
        """Check the arguments."""
        smoothing = number("smoothing", self.smoothing)
        if not 0 <= smoothing < 1:
            raise OptionError(f"{self}: expected a smoothing of at least 0 and less than 1")
        object.__setattr__(self, "smoothing", smoothing)
        object.__setattr__(self, "num_classes", whole("num_classes", self.num_classes, 1))
        _check_names(self, self.label)

    def apply(self, batch: Any, random: np.random.Generator) -> Any:
        """Return a batch with labels (B, num_classes) float32."""
        soft = _probabilities(self, batch, self.label, self.num_classes)
        if getattr(batch, self.label).is_floating_point():
            self._check_sums(soft)
        return batch._replace(**{self.label: soft * (1 - self.smoothing) + self.smoothing / self.num_classes})

    def _check_sums(self, soft: torch.Tensor) -> None:
        sums = soft.sum(1, dtype=torch.float32)
        if not bool(((sums - 1).abs() <= _ROUNDING).all()):
            value = f"batch.{self.label} * {1 - self.smoothing:g} + {self.smoothing / 2:g}"
            raise OptionError(
                f"{self}: {self.label!r} has rows that add up to {sums.min().item():g} to {sums.max().item():g}; "
                "expected probabilities of classes, which add up to 1. Several labels of a sample are smoothed by a "
                f"function: lambda batch: batch._replace({self.label}={value})."
            )


@dataclass(frozen=True, slots=True)
class _Mixing(BatchFunction):
    """The arguments of MixUp and CutMix."""

    alpha: float = 1.0
    num_classes: int | None = None
    _: KW_ONLY
    image: str = "image"
    label: str = "label"

    def __post_init__(self) -> None:
        """Check the arguments."""
        alpha = number("alpha", self.alpha)
        if not 0 < alpha <= _LARGEST_ALPHA:
            raise OptionError(f"{self}: expected an alpha of more than 0, and finite")
        object.__setattr__(self, "alpha", alpha)
        num_classes = None if self.num_classes is None else whole("num_classes", self.num_classes, 1)
        object.__setattr__(self, "num_classes", num_classes)
        _check_names(self, self.image, self.label)


@thread_safe
@dataclass(frozen=True, slots=True)
class MixUp(_Mixing):
    """Blend every image and label with those of the sample before it: Zhang et al., "mixup" (2018).

    The share is drawn from Beta(alpha, alpha) once a batch, as in torchvision's MixUp. Floats are blended as they are;
    uint8 and uint16, which torchvision refuses, are blended in float32 and rounded to the nearest level.

    Only one field of images and one of labels are blended. Text and bytes, such as names, stay those of the first
    sample. A batch with any other field is refused.

    Attributes:
        alpha: More than 0; with a small alpha one of the two images usually has nearly the whole share.
        num_classes: Of the labels; not needed if they are probabilities already.
        image: Name of the field with images (B, C, H, W).
        label: Name of the field with whole numbers (B,) or probabilities (B, num_classes).
    """

    def apply(self, batch: Any, random: np.random.Generator) -> Any:
        """Return a batch with blended images of the same type, and labels (B, num_classes) float32."""
        share = random.beta(self.alpha, self.alpha)
        images = _images(self, batch, self.image)
        labels = _probabilities(self, batch, self.label, self.num_classes)
        return batch._replace(**{self.image: _blend(images, share), self.label: _blend(labels, share)})


@thread_safe
@dataclass(frozen=True, slots=True)
class CutMix(_Mixing):
    """Paste a rectangle of the sample before into every image, and blend the labels by its share of the area.

    Yun et al., "CutMix" (2019); one rectangle for the whole batch, drawn as in torchvision's CutMix. Other fields are
    as for MixUp.

    Attributes:
        alpha: Of the Beta distribution that the share of the area is drawn from; more than 0.
        num_classes: Of the labels; not needed if they are probabilities already.
        image: Name of the field with images (B, C, H, W) of any type.
        label: Name of the field with whole numbers (B,) or probabilities (B, num_classes).
    """

    def apply(self, batch: Any, random: np.random.Generator) -> Any:
        """Return a batch with pasted images and labels (B, num_classes) float32."""
        images = _images(self, batch, self.image)
        height, width = images.shape[-2:]
        kept = random.beta(self.alpha, self.alpha)
        row, column = int(random.integers(height)), int(random.integers(width))
        half_height, half_width = (int(0.5 * np.sqrt(1 - kept) * side) for side in (height, width))
        top, bottom = max(row - half_height, 0), min(row + half_height, height)
        left, right = max(column - half_width, 0), min(column + half_width, width)
        pasted = images.clone(memory_format=torch.preserve_format)
        pasted[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
        labels = _probabilities(self, batch, self.label, self.num_classes)
        share = 1 - (bottom - top) * (right - left) / (height * width)
        return batch._replace(**{self.image: pasted, self.label: _blend(labels, share)})


def _check_names(of: BatchFunction, *names: object) -> None:
    for name in names:
        if not isinstance(name, str):
            raise OptionError(f"{of}: found {name!r}; expected the name of a field, such as 'label'")


def _blend(values: torch.Tensor, share: float) -> torch.Tensor:
    if values.is_floating_point():
        return values * share + values.roll(1, 0) * (1 - share)
    exact = values.to(torch.float32)
    mixed = (exact * share).add_(exact.roll(1, 0), alpha=1 - share)
    return mixed.round_().to(values.dtype)


def _images(of: _Mixing, batch: Any, name: str) -> torch.Tensor:
    """Return the images that are mixed.

    Raises:
        OptionError: They are no images; or the batch has other fields, which would still be those of one sample.
    """
    images = _values(of, batch, name)
    if images.ndim != 4:
        raise OptionError(f"{of}: {name!r} is {images.dtype} {tuple(images.shape)}; expected images (B, C, H, W)")
    _values(of, batch, of.label)
    for other in batch._fields:
        found = getattr(batch, other)
        are_names = isinstance(found, list) and all(isinstance(value, str | bytes) for value in found)
        if other not in (of.image, of.label) and not are_names:
            what = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            line = f"LMDBDataset(path, fields={[of.image, of.label]})"
            line = "Loader(..., return_params=False)" if other == "params" and isinstance(found, dict) else line
            raise OptionError(
                f"{of}: field {other!r} ({what}) would not be mixed with the images. Leave it out: {line}."
            )
    return images


def _values(of: BatchFunction, batch: Any, name: str) -> torch.Tensor:
    """Return the tensor of a field.

    Raises:
        OptionError: The batch has no such field, or no tensor in it.
    """
    found = getattr(batch, name, None)
    if name in batch._fields and isinstance(found, torch.Tensor):
        return found
    what = f"is a {type(found).__name__}" if name in batch._fields else "is not a field of the batch"
    raise OptionError(f"{of}: {name!r} {what}; expected one of its tensors, of {', '.join(batch._fields)}")


def _probabilities(of: BatchFunction, batch: Any, name: str, num_classes: int | None) -> torch.Tensor:
    labels = _values(of, batch, name)
    if labels.is_floating_point() and labels.ndim == 2 and num_classes in (None, labels.shape[1]):
        return labels
    if labels.is_floating_point() or labels.ndim != 1:
        raise OptionError(
            f"{of}: {name!r} is {labels.dtype} {tuple(labels.shape)}; expected whole numbers (B,) or probabilities "
            f"(B, {num_classes or 'classes'})"
        )
    if num_classes is None:
        raise OptionError(
            f"{of}: {name!r} holds class numbers; expected num_classes. Write "
            f"{type(of).__name__}(..., num_classes=len(dataset.classes))."
        )
    labels = labels.to(torch.int64)
    low, high = torch.stack(labels.aminmax()).tolist() if len(labels) else (0, 0)  # one wait for a device
    if not 0 <= low <= high < num_classes:
        raise OptionError(f"{of}: labels from {low} to {high}; expected 0 to {num_classes - 1}")
    return torch.nn.functional.one_hot(labels, num_classes).to(torch.float32)
