"""Image sizes that change from epoch to epoch: a schedule, and transforms adapted to another resolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmdbloader.errors import OptionError
from lmdbloader.transforms import Geometry
from lmdbloader.transforms.base import Container, leaves


@dataclass(frozen=True, slots=True)
class ProgressiveResize:
    """Train on small images that grow from epoch to epoch, by the schedule of Composer's ProgressiveResizing.

    For the first `delay_fraction` of the training images have `initial_scale` of their full width and height. Then they
    grow linearly, to the full size for the last `finetune_fraction`.

    Attributes:
        num_epochs: Of the whole training.
        initial_scale: Of the sides at first, more than 0 and at most 1.
        finetune_fraction: Share of the training, at its end, with full-sized images.
        delay_fraction: Share of the training before images begin to grow.
        size_increment: Widths are multiples of it, except for the full one. With pairs, take a multiple of the scales.

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
            raise OptionError(
                f"{self}: expected delay_fraction and finetune_fraction of at least 0, together at most 1"
            )

    def scale_at(self, epoch: int) -> float:
        """Return the scale of the sides in an epoch, counted from 0 on."""
        elapsed = epoch / self.num_epochs
        growing = 1 - self.finetune_fraction - self.delay_fraction
        if elapsed < self.delay_fraction:
            return self.initial_scale
        grown = min((elapsed - self.delay_fraction) / growing, 1.0) if growing > 0 else 1.0
        return self.initial_scale + (1 - self.initial_scale) * grown

    def size_at(self, epoch: int, full: tuple[int, int]) -> tuple[int, int]:
        """Return (height, width) in an epoch, of images whose size in the end is `full`."""
        height, width = full
        new_width = max(round(width * self.scale_at(epoch) / self.size_increment), 1) * self.size_increment
        if new_width >= width or epoch >= self.num_epochs * (1 - self.finetune_fraction):
            return full
        return max(round(height * new_width / width), 1), new_width


def with_resolution(transforms: Sequence[Any], size: tuple[int, int]) -> list[Any]:
    """Return transforms whose results have another size.

    The last transform that sets the size gets this one; the sizes before it change in proportion: Resize(256) and
    CenterCrop(224) become Resize(128) and CenterCrop(112). So do paddings, translations, centers, and the size of
    Cutout.

    Args:
        transforms: Of a Loader; functions are returned unchanged.
        size: (height, width).

    Raises:
        OptionError: None of them sets the size, or several fields get different ones.
    """
    sized = _sized(transforms)
    if not sized:
        raise OptionError(
            "resolution: none of the transforms sets the size of images. Add RandomResizedCrop, Resize or CenterCrop."
        )
    if len({t.fields for t in sized}) > 1:
        raise OptionError(
            "resolution: transforms for different fields= set the sizes of images. Give each its size, in a separate "
            "Loader."
        )
    full = full_size(transforms)
    factors = size[0] / full[0], size[1] / full[1]
    last = max(number for number, t in enumerate(transforms) if _sized([t]))

    def changed(t: Any, *, is_last: bool, is_inside: bool = False) -> Any:
        if isinstance(t, tuple):
            return tuple(changed(each, is_last=False, is_inside=True) for each in t)
        if isinstance(t, Container):
            return replace(t, transforms=changed(t.transforms, is_last=False))
        changes: dict[str, Any] = {}
        if isinstance(t, Geometry) and hasattr(t, "padding"):
            sides = t.padding if isinstance(t.padding, tuple) else (t.padding,)
            changes["padding"] = tuple(round(side * max(factors)) for side in sides)
        center: Any = getattr(t, "center", None)
        if isinstance(t, Geometry) and center:
            changes["center"] = (center[0] * factors[1], center[1] * factors[0])
        if isinstance(t, Geometry) and hasattr(t, "size"):
            is_full = is_last or (is_inside and t.size_numbers == full)  # all alternatives have one size
            changes["size"] = size if is_full else _scaled(t.size, factors)
        return replace(t, **changes) if changes else t

    return [changed(t, is_last=number == last) for number, t in enumerate(transforms)]


def full_size(transforms: Sequence[Any]) -> tuple[int, int]:
    """Return the (height, width) that the last transform with a size sets.

    Raises:
        OptionError: There is none, or it sets one side only.
    """
    sized = _sized(transforms)
    size = sized[-1].size_numbers if sized else (0, 0)
    if 0 in size:
        raise OptionError(
            "resolution: expected transforms of which the last sets both sides: RandomResizedCrop, CenterCrop, "
            f"RandomCrop or Resize((height, width)); the last with a size is {sized[-1] if sized else None}"
        )
    return size


def _sized(transforms: Sequence[Any]) -> list[Geometry]:
    return [t for t in leaves(transforms) if isinstance(t, Geometry) and t.sets_size]


def _scaled(size: Any, factors: tuple[float, float]) -> Any:
    if isinstance(size, tuple):
        return tuple(max(round(side * factor), 1) for side, factor in zip(size, factors, strict=True))
    # One number for both sides, or for the shorter one: neither may be too small for the transforms after it.
    return max(round(size * max(factors)), 1)
