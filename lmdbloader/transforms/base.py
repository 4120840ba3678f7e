"""The base classes of transforms: frozen descriptions, with the checks of their arguments."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

from lmdbloader.errors import OptionError
from lmdbloader.kernels.transform import opcodes

Size = int | tuple[int, int]
Interval = float | tuple[float, float]
Fill = float | tuple[float, float, float]
Interpolation = Literal["bilinear", "bicubic"]
_MOST_PIXELS = 2**24


@dataclass(frozen=True, slots=True, repr=False)
class Transform:
    """The base of all transforms.

    Sizes and positions refer to a sample's largest image; its smaller ones (`lr` next to `hr`) are transformed in step,
    at their own scale.

    Attributes:
        fields: Names of the image fields that it applies to; None for all of them.
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
        # The inherited `fields` are last, as people write them.
        names.sort(key="fields".__eq__)
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


@dataclass(frozen=True, slots=True, repr=False)
class Geometry(Transform):
    """A transform that moves or changes pixels; it gives the kernels an operation.

    A subclass sets the class attributes, and overrides `size_numbers` and `real_numbers` for further numbers.

    Attributes:
        code: Its operation, see `lmdbloader.kernels.transform.opcodes`.
        sets_size: Whether its result has its `size`.
        resizes: Whether it resizes images.
        erases: Whether it fills a rectangle of the finished image with its `value`.
        checks: Checks of arguments that no other transform has, by name: called with the transform and the value,
            they return the value to store or raise OptionError.
    """

    code: ClassVar[int]
    checks: ClassVar[Mapping[str, Callable[[object, object], object]]] = {}
    sets_size: ClassVar[bool] = False
    resizes: ClassVar[bool] = False
    erases: ClassVar[bool] = False

    def __post_init__(self) -> None:
        Transform.__post_init__(self)
        checks = {**_CHECKS, **self.checks}
        for f in dataclasses.fields(self):
            if f.name in checks:
                object.__setattr__(self, f.name, checks[f.name](self, getattr(self, f.name)))
            elif f.name != "fields":
                raise OptionError(f"{type(self).__name__}.{f.name}: has no check; add one to the class's `checks`")

    @property
    def size_numbers(self) -> tuple[int, int]:
        """Height and width of the result; (0, 0) if the size stays; a width of 0: `height` is the shorter side."""
        size: Size = getattr(self, "size", 0)
        return size if isinstance(size, tuple) else (size, size)

    @property
    def whole_numbers(self) -> dict[int, int]:
        """Its whole numbers by column (OP_HEIGHT ... OP_CUBIC)."""
        height, width = self.size_numbers
        return {
            opcodes.OP_HEIGHT: height,
            opcodes.OP_WIDTH: width,
            opcodes.OP_PADDING: getattr(self, "padding", 0),
            opcodes.OP_CUBIC: getattr(self, "interpolation", "") == "bicubic",
        }

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Its real numbers, at most NUM_REAL: probabilities and ranges of its random choices."""
        return ()

    @property
    def ends_stage(self) -> bool:
        """Whether its result is written out as pixels before the next operation."""
        return self.resizes or self.code >= opcodes.JITTER


def _number(value: object) -> Any:
    """Return a number as an int or float; NaN for anything but a finite number."""
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
        raise OptionError(f"{of}: expected scale=(least, most), shares of the area above 0 and up to 1")
    return values[0], values[1]


def _check_ratio(of: object, ratio: object) -> tuple[float, float]:
    values = _numbers(ratio)
    if len(values) != 2 or not 0 < values[0] <= values[1]:
        raise OptionError(f"{of}: expected ratio=(least, most), ratios of the sides above 0")
    return values[0], values[1]


def _check_factor(of: object, value: object) -> Interval:
    values = _numbers(value)
    as_expected = len(values) == (2 if isinstance(value, Sequence) else 1)
    if not as_expected or not 0 <= values[0] <= values[-1]:
        raise OptionError(f"{of}: expected numbers of at least 0, or (least, most) factors of at least 0")
    return (values[0], values[1]) if len(values) == 2 else values[0]


def _check_threshold(of: object, threshold: object) -> float:
    number = _number(threshold)
    if not number >= 0:
        raise OptionError(f"{of}: expected a threshold of at least 0, in the units of the stored pixels")
    return float(number)


def _check_interpolation(of: object, interpolation: object) -> Any:
    if interpolation not in ("bilinear", "bicubic"):
        raise OptionError(f"{of}: expected interpolation='bilinear' or 'bicubic'")
    return interpolation


# An argument of one name has the same meaning in all transforms.
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
    "threshold": _check_threshold,
}
