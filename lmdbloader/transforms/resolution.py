"""The size of images from epoch to epoch: lists of transforms for another resolution, and schedules that choose it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmdbloader.errors import OptionError
from lmdbloader.transforms import CenterCrop, Cutout, RandomCrop, RandomResizedCrop, RandomTranslate, Resize

_SIZED = (RandomResizedCrop, Resize, CenterCrop, RandomCrop)


@dataclass(frozen=True, slots=True)
class ProgressiveResize:
    """Train on small images first and let them grow: the schedule of Composer's ProgressiveResizing, epoch by epoch.

    Up to `delay_fraction` of the training images have `initial_scale` of their full width and height; then they grow
    evenly, to be full-sized for the last `finetune_fraction`.

    Attributes:
        num_epochs: Of the whole training.
        initial_scale: Of the sides at first, more than 0 and at most 1.
        finetune_fraction: Of the training at the end that sees full-sized images.
        delay_fraction: Of the training before images begin to grow.
        size_increment: Widths are multiples of it, but for the full one.

    >>> schedule = ProgressiveResize(90, initial_scale=0.5, size_increment=4)
    >>> [schedule.size_at(epoch, (224, 224)) for epoch in (0, 60, 89)]
    [(112, 112), (176, 176), (224, 224)]
    """

    num_epochs: int
    initial_scale: float = 0.5
    finetune_fraction: float = 0.2
    delay_fraction: float = 0.5
    size_increment: int = 4

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            OptionError: One is out of its range.
        """
        if self.num_epochs < 1 or self.size_increment < 1:
            raise OptionError(f"{self}: expected num_epochs and size_increment of at least 1")
        if not 0 < self.initial_scale <= 1:
            raise OptionError(f"{self}: expected an initial_scale of more than 0 and at most 1")
        fractions = self.delay_fraction, self.finetune_fraction
        if min(fractions) < 0 or sum(fractions) > 1:
            raise OptionError(f"{self}: expected delay_fraction and finetune_fraction from 0 on, together at most 1")

    def scale_at(self, epoch: int) -> float:
        """Return the scale of the sides in an epoch, counted from 0 on."""
        elapsed = epoch / self.num_epochs
        growing = 1 - self.finetune_fraction - self.delay_fraction
        if elapsed < self.delay_fraction:
            return self.initial_scale
        grown = min((elapsed - self.delay_fraction) / growing, 1.0) if growing > 0 else 1.0
        return self.initial_scale + (1 - self.initial_scale) * grown

    def size_at(self, epoch: int, full: tuple[int, int]) -> tuple[int, int]:
        """Return (height, width) in an epoch of images that are of a full (height, width) in the end."""
        height, width = full
        new_width = max(round(width * self.scale_at(epoch) / self.size_increment), 1) * self.size_increment
        if new_width >= width or epoch >= self.num_epochs * (1 - self.finetune_fraction):
            return full
        return max(round(height * new_width / width), 1), new_width


def with_resolution(transforms: Sequence[Any], size: tuple[int, int]) -> list[Any]:
    """Return transforms whose results have another size.

    The last of RandomResizedCrop, Resize, CenterCrop and RandomCrop gets the size; those before it change in
    proportion, so that Resize(256) and CenterCrop(224) become Resize(128) and CenterCrop(112). So do paddings,
    translations and the size of Cutout.

    Args:
        transforms: What a Loader was given; functions stay as they are.
        size: (height, width).

    Raises:
        OptionError: None of them sets the size, or several fields get different ones.
    """
    sized = [t for t in transforms if isinstance(t, _SIZED)]
    if not sized:
        raise OptionError(
            "resolution: none of the transforms sets the size of images. Add RandomResizedCrop, Resize or CenterCrop."
        )
    if len({t.fields for t in sized}) > 1:
        raise OptionError(
            "resolution: transforms for different fields= set the sizes of images. Give them the sizes themselves, in "
            "a Loader of its own."
        )
    full = full_size(transforms)
    factors = size[0] / full[0], size[1] / full[1]
    found: list[Any] = []
    last = max(number for number, t in enumerate(transforms) if isinstance(t, _SIZED))
    for number, t in enumerate(transforms):
        if isinstance(t, RandomCrop | RandomTranslate):
            t = replace(t, padding=round(t.padding * max(factors)))
        if number == last:
            t = replace(t, size=size)
        elif isinstance(t, (*_SIZED, Cutout)):
            t = replace(t, size=_scaled(t.size, factors))
        found.append(t)
    return found


def full_size(transforms: Sequence[Any]) -> tuple[int, int]:
    """Return the (height, width) that the last transform with a size gives, which must fix both sides.

    Raises:
        OptionError: There is none, or it gives one side only.
    """
    sized = [t for t in transforms if isinstance(t, _SIZED)]
    size = sized[-1].size if sized else None
    if size is None or (isinstance(sized[-1], Resize) and not isinstance(size, tuple)):
        raise OptionError(
            "resolution: expected transforms that fix both sides of images at last: RandomResizedCrop, CenterCrop, "
            f"RandomCrop or Resize((height, width)); the last with a size is {sized[-1] if sized else None}"
        )
    return size if isinstance(size, tuple) else (size, size)


def _scaled(size: Any, factors: tuple[float, float]) -> Any:
    if isinstance(size, tuple):
        return tuple(max(round(side * factor), 1) for side, factor in zip(size, factors, strict=True))
    # One number for both sides, or for the shorter one: neither side may become too small for what follows.
    return max(round(size * max(factors)), 1)
