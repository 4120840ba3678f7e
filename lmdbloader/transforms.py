"""What can be done to images on their way into a batch: frozen descriptions, carried out by compiled code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import torch

from lmdbloader.errors import OptionError
from lmdbloader.kernels import opcodes

Size = int | tuple[int, int]
Interval = float | tuple[float, float]
Fill = float | tuple[float, float, float]
Interpolation = Literal["bilinear", "bicubic"]
DTYPES = (torch.uint8, torch.uint16, torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class Transform:
    """What all transforms have in common.

    Sizes and positions are those of a sample's largest image; smaller ones (`lr` beside `hr`) are treated in step, at
    their own scale.

    Attributes:
        fields: Names of the image fields that it concerns; None means all of them.
    """

    _: KW_ONLY
    fields: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.fields, str):
            raise OptionError(f"{self}: fields={self.fields!r}; expected names, such as ({self.fields!r},)")
        if self.fields is not None:
            object.__setattr__(self, "fields", tuple(self.fields))


@dataclass(frozen=True, slots=True)
class Geometry(Transform):
    """A transform that moves pixels, and what a kernel must know of it."""

    code: ClassVar[int]

    @property
    def size_numbers(self) -> tuple[int, int]:
        """Height and width of the result, (0, 0) where the size stays; a width of 0: `height` is the shorter side."""
        return 0, 0

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """The numbers that its random choices need."""
        return ()


def _check_size(of: object, size: Size) -> tuple[int, int]:
    height, width = size if isinstance(size, tuple) else (size, size)
    if not (isinstance(height, int) and isinstance(width, int)) or height < 1 or width < 1:
        raise OptionError(f"{of}: expected a size of at least one pixel, as an int or (height, width)")
    return height, width


def _check_probability(of: object, p: float) -> None:
    if not 0 <= p <= 1:
        raise OptionError(f"{of}: p={p}; expected a probability from 0 to 1")


def _check_interval(of: object, name: str, interval: tuple[float, float], lowest: float, highest: float) -> None:
    if len(interval) != 2 or not lowest < interval[0] <= interval[1] <= highest:
        raise OptionError(f"{of}: {name}={interval}; expected two numbers, the first not above the second")


def _check_fill(of: object, fill: Fill) -> tuple[float, float, float]:
    values = fill if isinstance(fill, tuple) else (fill,) * 3
    if len(values) not in (1, 3) or not all(math.isfinite(v) for v in values):
        raise OptionError(f"{of}: expected one number, or one for each of three channels, to fill with")
    return values if len(values) == 3 else values * 3


def _check_interpolation(of: object, interpolation: str) -> None:
    if interpolation not in ("bilinear", "bicubic"):
        raise OptionError(f"{of}: interpolation={interpolation!r}; expected 'bilinear' or 'bicubic'")


@dataclass(frozen=True, slots=True)
class RandomCrop(Geometry):
    """Cut a window at a random place, from the image with `padding` pixels of `fill` around it.

    >>> RandomCrop(96).size_numbers
    (96, 96)
    """

    size: Size
    _: KW_ONLY
    padding: int = 0
    fill: Fill = 0

    code = opcodes.RANDOM_CROP

    def __post_init__(self) -> None:
        Geometry.__post_init__(self)
        _check_size(self, self.size)
        _check_fill(self, self.fill)
        if self.padding < 0:
            raise OptionError(f"{self}: expected a padding of at least 0 pixels")

    @property
    def size_numbers(self) -> tuple[int, int]:
        """Height and width of the result."""
        return _check_size(self, self.size)


@dataclass(frozen=True, slots=True)
class CenterCrop(Geometry):
    """Cut the window in the middle."""

    size: Size

    code = opcodes.CENTER_CROP

    def __post_init__(self) -> None:
        Geometry.__post_init__(self)
        _check_size(self, self.size)

    @property
    def size_numbers(self) -> tuple[int, int]:
        """Height and width of the result."""
        return _check_size(self, self.size)


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(Geometry):
    """Cut a window of a random share of the area and a random ratio of its sides, and resize it.

    The window is drawn as torchvision's RandomResizedCrop draws it; the resize is antialiased.

    Attributes:
        size: Of the result.
        scale: Least and most share of the area.
        ratio: Least and most width over height.
        interpolation: "bilinear" or "bicubic".
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"

    code = opcodes.RANDOM_RESIZED_CROP

    def __post_init__(self) -> None:
        Geometry.__post_init__(self)
        _check_size(self, self.size)
        _check_interval(self, "scale", self.scale, 0, 1)
        _check_interval(self, "ratio", self.ratio, 0, math.inf)
        _check_interpolation(self, self.interpolation)

    @property
    def size_numbers(self) -> tuple[int, int]:
        """Height and width of the result."""
        return _check_size(self, self.size)

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Scale and ratio."""
        return (*self.scale, *self.ratio)


@dataclass(frozen=True, slots=True)
class Resize(Geometry):
    """Resize with antialiasing: to (height, width), or so that the shorter side is an int and the ratio stays."""

    size: Size
    interpolation: Interpolation = "bilinear"

    code = opcodes.RESIZE

    def __post_init__(self) -> None:
        Geometry.__post_init__(self)
        _check_size(self, self.size)
        _check_interpolation(self, self.interpolation)

    @property
    def size_numbers(self) -> tuple[int, int]:
        """Height and width of the result, or its shorter side and 0."""
        return self.size if isinstance(self.size, tuple) else (self.size, 0)


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip(Geometry):
    """Mirror left and right with probability p."""

    p: float = 0.5

    code = opcodes.HORIZONTAL_FLIP

    def __post_init__(self) -> None:
        Geometry.__post_init__(self)
        _check_probability(self, self.p)

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """The probability."""
        return (self.p,)


@dataclass(frozen=True, slots=True)
class RandomVerticalFlip(Geometry):
    """Mirror top and bottom with probability p."""

    p: float = 0.5

    code = opcodes.VERTICAL_FLIP

    def __post_init__(self) -> None:
        Geometry.__post_init__(self)
        _check_probability(self, self.p)

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """The probability."""
        return (self.p,)


@dataclass(frozen=True, slots=True)
class RandomDihedral(Geometry):
    """One of the eight flips and quarter turns of a square image, each as likely as the others."""

    code = opcodes.DIHEDRAL


@dataclass(frozen=True, slots=True)
class RandomTranslate(Geometry):
    """Move the image by up to `padding` pixels in each direction; what comes in from outside is `fill`."""

    padding: int
    fill: Fill = 0

    code = opcodes.RANDOM_CROP

    def __post_init__(self) -> None:
        Geometry.__post_init__(self)
        _check_fill(self, self.fill)
        if self.padding < 0:
            raise OptionError(f"{self}: expected a padding of at least 0 pixels")


@dataclass(frozen=True, slots=True)
class ColorJitter(Geometry):
    """Change brightness, contrast and saturation by random factors, in random order, as torchvision does.

    Attributes:
        brightness, contrast, saturation: A number x for factors from max(0, 1 - x) to 1 + x, or (least, most).
    """

    brightness: Interval = 0.0
    contrast: Interval = 0.0
    saturation: Interval = 0.0

    code = opcodes.JITTER

    def __post_init__(self) -> None:
        Geometry.__post_init__(self)
        values = self.real_numbers
        if not all(0 <= low <= high < math.inf for low, high in zip(values[::2], values[1::2], strict=True)):
            raise OptionError(f"{self}: expected numbers of at least 0, or (least, most) factors of at least 0")

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Least and most factor of each."""
        found: list[float] = []
        for value in (self.brightness, self.contrast, self.saturation):
            low, high = value if isinstance(value, tuple) else (max(0.0, 1.0 - value), 1.0 + value)
            found += [low, high]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class RandomErasing(Geometry):
    """Fill a random rectangle with probability p, drawn as torchvision's RandomErasing draws it.

    Cutout of a square is a `scale` of one value and a `ratio` of (1, 1), with p=1.

    Attributes:
        p: Probability.
        scale: Least and most share of the area.
        ratio: Least and most width over height.
        value: What to fill with, in the units that pixels have at this place in the list: after ToDtype or Normalize
            in theirs.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: Fill = 0

    code = opcodes.ERASE

    def __post_init__(self) -> None:
        Geometry.__post_init__(self)
        _check_probability(self, self.p)
        _check_interval(self, "scale", self.scale, 0, 1)
        _check_interval(self, "ratio", self.ratio, 0, math.inf)
        _check_fill(self, self.value)

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """The probability, scale and ratio."""
        return (self.p, *self.scale, *self.ratio)


@dataclass(frozen=True, slots=True)
class ToDtype(Transform):
    """Convert pixels to another type.

    Attributes:
        dtype: torch.uint8, uint16, float16, bfloat16 or float32.
        scale: Whether the range goes with it: floats from 0 to 1, integers from 0 to their largest.
    """

    dtype: torch.dtype
    scale: bool

    def __post_init__(self) -> None:
        Transform.__post_init__(self)
        if self.dtype not in DTYPES:
            raise OptionError(f"{self}: expected one of {', '.join(map(str, DTYPES))}")


@dataclass(frozen=True, slots=True)
class Normalize(Transform):
    """Subtract a mean and divide by a standard deviation, one for each channel or one for all; after ToDtype."""

    mean: Sequence[float] | float
    std: Sequence[float] | float

    def __post_init__(self) -> None:
        Transform.__post_init__(self)
        for name in ("mean", "std"):
            value = getattr(self, name)
            values = (float(value),) if isinstance(value, int | float) else tuple(map(float, value))
            if len(values) not in (1, 3) or not all(map(math.isfinite, values)) or (name == "std" and 0 in values):
                raise OptionError(f"Normalize: {name}={value}; expected one number or three, a std other than 0")
            object.__setattr__(self, name, values)
