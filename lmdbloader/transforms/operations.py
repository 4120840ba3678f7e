"""The transforms that compiled code applies to images: each with its arguments and its numbers for the kernels.

A new one gets its class here, its number in `lmdbloader.kernels.transform.opcodes`, and its branch in
`lmdbloader.kernels.transform`: in `program` if it moves pixels, in `color` if it changes colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real

import numpy as np
import torch

from lmdbloader.errors import OptionError
from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms.base import Fill, Geometry, Interpolation, Interval, Size, Transform

__all__ = [
    "DTYPES",
    "CenterCrop",
    "ColorJitter",
    "Cutout",
    "Normalize",
    "RandomCrop",
    "RandomDihedral",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomSolarize",
    "RandomTranslate",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
]

_NEVER = -1.0  # a threshold that inverts no pixels

DTYPES = (torch.uint8, torch.uint16, torch.float16, torch.bfloat16, torch.float32)
"""The types that pixels can have in a batch."""

_NUMPYS = {np.dtype(str(dtype).removeprefix("torch.")): dtype for dtype in DTYPES if dtype != torch.bfloat16}


@dataclass(frozen=True, slots=True, repr=False)
class RandomCrop(Geometry):
    """Crop a window at a random place, from the image with `padding` pixels of `fill` around it.

    Attributes:
        size: Of the window, as an int or (height, width).
        padding: Pixels around the image, on each side.
        fill: Their value: a number, or one for each channel, in the units of the stored pixels.

    >>> RandomCrop(96).size_numbers
    (96, 96)
    """

    size: Size
    _: KW_ONLY
    padding: int = 0
    fill: Fill = 0

    code = opcodes.RANDOM_CROP
    sets_size = True


@dataclass(frozen=True, slots=True, repr=False)
class CenterCrop(Geometry):
    """Crop the window in the middle.

    Attributes:
        size: Of the window, as an int or (height, width).
    """

    size: Size

    code = opcodes.CENTER_CROP
    sets_size = True


@dataclass(frozen=True, slots=True, repr=False)
class RandomResizedCrop(Geometry):
    """Crop a window with a random share of the area and a random ratio of its sides, and resize it with antialiasing.

    The window is drawn as in torchvision's RandomResizedCrop.

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
    sets_size = resizes = True

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """CROP_SCALE_LOW ... CROP_RATIO_HIGH."""
        return (*self.scale, *self.ratio)


@dataclass(frozen=True, slots=True, repr=False)
class Resize(Geometry):
    """Resize with antialiasing.

    Attributes:
        size: (height, width), or an int for the shorter side, with the ratio of the sides kept.
        interpolation: "bilinear" or "bicubic", as in Pillow.
    """

    size: Size
    interpolation: Interpolation = "bilinear"

    code = opcodes.RESIZE
    sets_size = resizes = True

    @property
    def size_numbers(self) -> tuple[int, int]:
        """Height and width of the result; or its shorter side, and 0."""
        return self.size if isinstance(self.size, tuple) else (self.size, 0)


@dataclass(frozen=True, slots=True, repr=False)
class RandomHorizontalFlip(Geometry):
    """Mirror left and right with probability p."""

    p: float = 0.5

    code = opcodes.HORIZONTAL_FLIP

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """FLIP_P."""
        return (self.p,)


@dataclass(frozen=True, slots=True, repr=False)
class RandomVerticalFlip(Geometry):
    """Mirror top and bottom with probability p."""

    p: float = 0.5

    code = opcodes.VERTICAL_FLIP

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """FLIP_P."""
        return (self.p,)


@dataclass(frozen=True, slots=True, repr=False)
class RandomDihedral(Geometry):
    """Apply one of the eight flips and quarter turns of a square image, all equally likely."""

    code = opcodes.DIHEDRAL


@dataclass(frozen=True, slots=True, repr=False)
class RandomTranslate(Geometry):
    """Move the image by up to `padding` pixels in each direction, and fill the rest with `fill`."""

    padding: int
    fill: Fill = 0

    code = opcodes.RANDOM_CROP


@dataclass(frozen=True, slots=True, repr=False)
class ColorJitter(Geometry):
    """Change brightness, contrast and saturation by random factors, in random order, as torchvision does.

    Attributes:
        brightness: A number x for factors from max(0, 1 - x) to 1 + x, or (least, most).
        contrast: The same.
        saturation: The same.
        p: Probability of a change.
    """

    brightness: Interval = 0.0
    contrast: Interval = 0.0
    saturation: Interval = 0.0
    _: KW_ONLY  # torchvision's fourth argument is the hue
    p: float = 1.0

    code = opcodes.JITTER

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """The range of each factor, JITTER_P and JITTER_THRESHOLD."""
        found: list[float] = []
        for value in (self.brightness, self.contrast, self.saturation):
            low, high = value if isinstance(value, tuple) else (max(0.0, 1.0 - value), 1.0 + value)
            found += [low, high]
        return (*found, self.p, _NEVER)


@dataclass(frozen=True, slots=True, repr=False)
class RandomGrayscale(Geometry):
    """Make an image grey with probability p, in three channels, as torchvision's RandomGrayscale does."""

    p: float = 0.1

    code = opcodes.JITTER

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Those of a saturation of 0."""
        return (1.0, 1.0, 1.0, 1.0, 0.0, 0.0, self.p, _NEVER)


@dataclass(frozen=True, slots=True, repr=False)
class RandomSolarize(Geometry):
    """Invert the values of at least `threshold` with probability p, as torchvision's RandomSolarize does.

    Attributes:
        threshold: In the units of the stored pixels: 128 is the middle of 8 bits; 0 inverts all values.
        p: Probability.
    """

    threshold: float
    p: float = 0.5

    code = opcodes.JITTER

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Those of factors of 1, and a threshold."""
        return (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, self.p, self.threshold)


@dataclass(frozen=True, slots=True, repr=False)
class RandomErasing(Geometry):
    """Fill a random rectangle with probability p, drawn as in torchvision's RandomErasing.

    Attributes:
        p: Probability.
        scale: Least and most share of the area.
        ratio: Least and most height over width.
        value: The fill, in the units that pixels have at this place in the list, after any ToDtype and Normalize
            before it.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: Fill = 0

    code = opcodes.ERASE
    erases = True

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """ERASE_P ... ERASE_RATIO_HIGH."""
        return (self.p, *self.scale, *self.ratio)


@dataclass(frozen=True, slots=True, repr=False)
class Cutout(Geometry):
    """Fill a rectangle of one size, anywhere inside the image: DeVries and Taylor, "Cutout" (2017), as in FFCV.

    Attributes:
        size: Of the rectangle; an int for a square.
        value: The fill, in the units that pixels have at this place in the list.
        p: Probability.
    """

    size: Size
    value: Fill = 0
    p: float = 1.0

    code = opcodes.ERASE
    erases = True

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """ERASE_P."""
        return (self.p,)


@dataclass(frozen=True, slots=True, repr=False)
class ToDtype(Transform):
    """Convert pixels to another type.

    Attributes:
        dtype: torch.uint8, uint16, float16, bfloat16 or float32, or NumPy's type of that name.
        scale: Whether values are scaled to the type's range: floats from 0 to 1; between uint8 and uint16 shifted by 8
            bits, as in torchvision: 255 becomes 65280.
    """

    dtype: torch.dtype
    scale: bool

    def __post_init__(self) -> None:
        Transform.__post_init__(self)
        if isinstance(self.dtype, np.dtype) or (isinstance(self.dtype, type) and issubclass(self.dtype, np.generic)):
            object.__setattr__(self, "dtype", _NUMPYS.get(np.dtype(self.dtype), self.dtype))
        if self.dtype not in DTYPES or not isinstance(self.scale, bool):
            raise OptionError(f"{self}: expected one of {', '.join(map(str, DTYPES))}, and scale=True or False")


@dataclass(frozen=True, slots=True, repr=False)
class Normalize(Transform):
    """Subtract a mean and divide by a standard deviation; after ToDtype.

    Attributes:
        mean: One for each of three channels, or one for all, in the units of the converted pixels: 0 to 1 after a
            ToDtype with scale=True.
        std: The same; not 0.
    """

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
