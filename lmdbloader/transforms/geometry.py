"""Transforms that move pixels: crops, resizes, flips, turns and translations."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms.base import Fill, Geometry, Interpolation, Size


@dataclass(frozen=True, slots=True, repr=False)
class RandomCrop(Geometry):
    """Cut a window at a random place, from the image with `padding` pixels of `fill` around it.

    Attributes:
        size: Of the window, as an int or (height, width).
        padding: Pixels around the image, on each side.
        fill: What they are filled with: a number, or one for each channel, in the units of the stored pixels.

    >>> RandomCrop(96).size_numbers
    (96, 96)
    """

    size: Size
    _: KW_ONLY
    padding: int = 0
    fill: Fill = 0

    code = opcodes.RANDOM_CROP


@dataclass(frozen=True, slots=True, repr=False)
class CenterCrop(Geometry):
    """Cut the window in the middle.

    Attributes:
        size: Of the window, as an int or (height, width).
    """

    size: Size

    code = opcodes.CENTER_CROP


@dataclass(frozen=True, slots=True, repr=False)
class RandomResizedCrop(Geometry):
    """Cut a window of a random share of the area and a random ratio of its sides, and resize it.

    The window is drawn as torchvision's RandomResizedCrop draws it; the resize is antialiased.

    Attributes:
        size: Of the result, as an int or (height, width).
        scale: Least and most share of the area.
        ratio: Least and most width over height.
        interpolation: "bilinear" or "bicubic".
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"

    code = opcodes.RANDOM_RESIZED_CROP

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Scale and ratio."""
        return (*self.scale, *self.ratio)


@dataclass(frozen=True, slots=True, repr=False)
class Resize(Geometry):
    """Resize with antialiasing.

    Attributes:
        size: (height, width), or an int: then the shorter side gets it, and the ratio of the sides stays.
        interpolation: "bilinear" or "bicubic", as Pillow defines them.
    """

    size: Size
    interpolation: Interpolation = "bilinear"

    code = opcodes.RESIZE

    @property
    def size_numbers(self) -> tuple[int, int]:
        """Height and width of the result, or its shorter side and 0."""
        return self.size if isinstance(self.size, tuple) else (self.size, 0)


@dataclass(frozen=True, slots=True, repr=False)
class RandomHorizontalFlip(Geometry):
    """Mirror left and right with probability p."""

    p: float = 0.5

    code = opcodes.HORIZONTAL_FLIP

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """The probability."""
        return (self.p,)


@dataclass(frozen=True, slots=True, repr=False)
class RandomVerticalFlip(Geometry):
    """Mirror top and bottom with probability p."""

    p: float = 0.5

    code = opcodes.VERTICAL_FLIP

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """The probability."""
        return (self.p,)


@dataclass(frozen=True, slots=True, repr=False)
class RandomDihedral(Geometry):
    """One of the eight flips and quarter turns of a square image, each as likely as the others."""

    code = opcodes.DIHEDRAL


@dataclass(frozen=True, slots=True, repr=False)
class RandomTranslate(Geometry):
    """Move the image by up to `padding` pixels in each direction; what comes in from outside is `fill`."""

    padding: int
    fill: Fill = 0

    code = opcodes.RANDOM_CROP
