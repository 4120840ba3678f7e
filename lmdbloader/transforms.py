"""What can be done to images on their way into a batch: frozen descriptions, carried out by compiled code."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import torch

from lmdbloader.batch_functions import BatchFunction as BatchFunction
from lmdbloader.batch_functions import CutMix as CutMix
from lmdbloader.batch_functions import LabelSmoothing as LabelSmoothing
from lmdbloader.batch_functions import MixUp as MixUp
from lmdbloader.errors import OptionError
from lmdbloader.kernels import opcodes

Size = int | tuple[int, int]
Interval = float | tuple[float, float]
Fill = float | tuple[float, float, float]
Interpolation = Literal["bilinear", "bicubic"]
_MOST_PIXELS = 2**24
DTYPES = (torch.uint8, torch.uint16, torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True, repr=False)
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
        if self.fields is None:
            return
        if isinstance(self.fields, str):
            raise OptionError(f"{self}: expected names, such as fields=({self.fields!r},)")
        object.__setattr__(self, "fields", tuple(self.fields))
        if not self.fields:
            raise OptionError(f"{self}: expected at least one name, or None for all image fields")

    def __repr__(self) -> str:
        names = [f.name for f in dataclasses.fields(self) if f.name != "fields" or self.fields is not None]
        # The inherited `fields` come last, as people write them.
        names.sort(key="fields".__eq__)
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


@dataclass(frozen=True, slots=True, repr=False)
class Geometry(Transform):
    """A transform that moves pixels, and what a kernel must know of it."""

    code: ClassVar[int]

    def __post_init__(self) -> None:
        Transform.__post_init__(self)
        for name, check in _CHECKS.items():
            if hasattr(self, name):
                object.__setattr__(self, name, check(self, getattr(self, name)))

    @property
    def size_numbers(self) -> tuple[int, int]:
        """Height and width of the result, (0, 0) where the size stays; a width of 0: `height` is the shorter side."""
        size: Size = getattr(self, "size", 0)
        return size if isinstance(size, tuple) else (size, size)

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """The numbers that its random choices need."""
        return ()


def _number(value: object) -> Any:
    """Return a number as Python's own int or float; NaN for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    if isinstance(value, Integral):
        return int(value) if abs(int(value)) < 2**63 else math.nan
    return float(value) if math.isfinite(value) else math.nan


def _numbers(values: object) -> tuple[Any, ...]:
    return tuple(map(_number, values if isinstance(values, Sequence) else (values,)))


def _check_size(of: object, size: object) -> Size:
    sides = _numbers(size)
    as_expected = len(sides) == (2 if isinstance(size, Sequence) else 1)
    if not as_expected or not all(isinstance(side, int) and 0 < side <= _MOST_PIXELS for side in sides):
        raise OptionError(f"{of}: expected a size of at least one pixel, as an int or (height, width)")
    return (sides[0], sides[1]) if len(sides) == 2 else sides[0]


def _check_padding(of: object, padding: object) -> int:
    number = _number(padding)
    if not isinstance(number, int) or not 0 <= number <= _MOST_PIXELS:
        raise OptionError(f"{of}: expected a padding of at least 0 pixels, as an int")
    return number


def _check_fill(of: object, fill: object) -> Fill:
    values = _numbers(fill)
    if len(values) not in (1, 3) or not all(map(math.isfinite, values)):
        raise OptionError(f"{of}: expected one finite number, or one for each of three channels, to fill with")
    return values[0] if len(values) == 1 else (values[0], values[1], values[2])


def _check_probability(of: object, p: object) -> float:
    number = _number(p)
    if not 0 <= number <= 1:
        raise OptionError(f"{of}: expected a probability p from 0 to 1")
    return float(number)


def _check_share(of: object, scale: object) -> tuple[float, float]:
    values = _numbers(scale)
    if len(values) != 2 or not 0 < values[0] <= values[1] <= 1:
        raise OptionError(f"{of}: expected as scale the least and the most share of the area, above 0 and up to 1")
    return values[0], values[1]


def _check_ratio(of: object, ratio: object) -> tuple[float, float]:
    values = _numbers(ratio)
    if len(values) != 2 or not 0 < values[0] <= values[1]:
        raise OptionError(f"{of}: expected as ratio the least and the most ratio of the sides, above 0")
    return values[0], values[1]


def _check_factor(of: object, value: object) -> Interval:
    values = _numbers(value)
    as_expected = len(values) == (2 if isinstance(value, Sequence) else 1)
    if not as_expected or not 0 <= values[0] <= values[-1]:
        raise OptionError(f"{of}: expected numbers of at least 0, or (least, most) factors of at least 0")
    return (values[0], values[1]) if len(values) == 2 else values[0]


def _check_interpolation(of: object, interpolation: object) -> Any:
    if interpolation not in ("bilinear", "bicubic"):
        raise OptionError(f"{of}: expected interpolation='bilinear' or 'bicubic'")
    return interpolation


# What geometries are made with means the same in all of them.
_CHECKS: dict[str, Callable[[object, object], object]] = {
    "size": _check_size,
    "padding": _check_padding,
    "fill": _check_fill,
    "value": _check_fill,
    "p": _check_probability,
    "scale": _check_share,
    "ratio": _check_ratio,
    "interpolation": _check_interpolation,
    "brightness": _check_factor,
    "contrast": _check_factor,
    "saturation": _check_factor,
}


@dataclass(frozen=True, slots=True, repr=False)
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


@dataclass(frozen=True, slots=True, repr=False)
class CenterCrop(Geometry):
    """Cut the window in the middle."""

    size: Size

    code = opcodes.CENTER_CROP


@dataclass(frozen=True, slots=True, repr=False)
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

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Scale and ratio."""
        return (*self.scale, *self.ratio)


@dataclass(frozen=True, slots=True, repr=False)
class Resize(Geometry):
    """Resize with antialiasing: to (height, width), or so that the shorter side is an int and the ratio stays."""

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


@dataclass(frozen=True, slots=True, repr=False)
class ColorJitter(Geometry):
    """Change brightness, contrast and saturation by random factors, in random order, as torchvision does.

    Attributes:
        brightness, contrast, saturation: A number x for factors from max(0, 1 - x) to 1 + x, or (least, most).
    """

    brightness: Interval = 0.0
    contrast: Interval = 0.0
    saturation: Interval = 0.0

    code = opcodes.JITTER

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Least and most factor of each."""
        found: list[float] = []
        for value in (self.brightness, self.contrast, self.saturation):
            low, high = value if isinstance(value, tuple) else (max(0.0, 1.0 - value), 1.0 + value)
            found += [low, high]
        return tuple(found)


@dataclass(frozen=True, slots=True, repr=False)
class RandomErasing(Geometry):
    """Fill a random rectangle with probability p, drawn as torchvision's RandomErasing draws it.

    Cutout of a square is a `scale` of one value and a `ratio` of (1, 1), with p=1.

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
class ToDtype(Transform):
    """Convert pixels to another type.

    Attributes:
        dtype: torch.uint8, uint16, float16, bfloat16 or float32.
        scale: Whether the range goes with it: floats go from 0 to 1; between uint8 and uint16 bits are shifted by 8,
            as in torchvision, so that 255 becomes 65280.
    """

    dtype: torch.dtype
    scale: bool

    def __post_init__(self) -> None:
        Transform.__post_init__(self)
        if self.dtype not in DTYPES or not isinstance(self.scale, bool):
            raise OptionError(f"{self}: expected one of {', '.join(map(str, DTYPES))}, and scale=True or False")


@dataclass(frozen=True, slots=True, repr=False)
class Normalize(Transform):
    """Subtract a mean and divide by a standard deviation, one for each channel or one for all; after ToDtype."""

    mean: Sequence[float] | float
    std: Sequence[float] | float

    def __post_init__(self) -> None:
        Transform.__post_init__(self)
        for name in ("mean", "std"):
            value = getattr(self, name)
            try:
                values = tuple(map(float, (value,) if isinstance(value, Real) else value))
            except (TypeError, ValueError):
                values = ()
            least = 1e-30 if name == "std" else 0.0  # one over it must be a float32
            if len(values) not in (1, 3) or not all(math.isfinite(v) and abs(v) >= least for v in values):
                raise OptionError(f"Normalize: {name}={value}; expected one number or three, a std other than 0")
            object.__setattr__(self, name, values)
