"""Transforms that change what pixels show: their colours, and rectangles that are filled."""

from __future__ import annotations

from dataclasses import dataclass

from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms.base import Fill, Geometry, Interval, Size

_NEVER = -1.0  # the threshold of what inverts no pixels


@dataclass(frozen=True, slots=True, repr=False)
class ColorJitter(Geometry):
    """Change brightness, contrast and saturation by random factors, in random order, as torchvision does.

    Attributes:
        brightness: A number x for factors from max(0, 1 - x) to 1 + x, or (least, most).
        contrast: The same.
        saturation: The same.
        p: Probability that a sample is changed.
    """

    brightness: Interval = 0.0
    contrast: Interval = 0.0
    saturation: Interval = 0.0
    p: float = 1.0

    code = opcodes.JITTER

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Least and most factor of each, and the probability."""
        found: list[float] = []
        for value in (self.brightness, self.contrast, self.saturation):
            low, high = value if isinstance(value, tuple) else (max(0.0, 1.0 - value), 1.0 + value)
            found += [low, high]
        return (*found, self.p, _NEVER)


@dataclass(frozen=True, slots=True, repr=False)
class RandomGrayscale(Geometry):
    """Make an image grey with probability p; it keeps its three channels, as torchvision's RandomGrayscale does."""

    p: float = 0.1

    code = opcodes.JITTER

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Those of a change to no saturation at all."""
        return (1.0, 1.0, 1.0, 1.0, 0.0, 0.0, self.p, _NEVER)


@dataclass(frozen=True, slots=True, repr=False)
class RandomSolarize(Geometry):
    """Invert the pixels of `threshold` or more with probability p, as torchvision's RandomSolarize does.

    Attributes:
        threshold: In the units of the stored pixels, 128 for those of 8 bits; 0 inverts all of them.
        p: Probability.
    """

    threshold: float
    p: float = 0.5

    code = opcodes.JITTER

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Those of a change of nothing but the threshold."""
        return (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, self.p, self.threshold)


@dataclass(frozen=True, slots=True, repr=False)
class RandomErasing(Geometry):
    """Fill a random rectangle with probability p, drawn as torchvision's RandomErasing draws it.

    Attributes:
        p: Probability.
        scale: Least and most share of the area.
        ratio: Least and most height over width.
        value: What to fill with, in the units that pixels have at this place in the list: after ToDtype or Normalize
            in theirs.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: Fill = 0

    code = opcodes.ERASE

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """The probability, scale and ratio."""
        return (self.p, *self.scale, *self.ratio)


@dataclass(frozen=True, slots=True, repr=False)
class Cutout(Geometry):
    """Fill a rectangle of one size, anywhere inside the image: DeVries and Taylor, "Cutout" (2017), as FFCV has it.

    Attributes:
        size: Of the rectangle; an int is that of a square.
        value: What to fill with, in the units that pixels have at this place in the list.
        p: Probability.
    """

    size: Size
    value: Fill = 0
    p: float = 1.0

    code = opcodes.ERASE

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """The probability."""
        return (self.p,)
