"""The kinds of arguments that transforms declare: the values that each kind accepts, and how it stores them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal

import numpy as np
import torch

from lmdbloader.errors import OptionError

DTYPES = (torch.uint8, torch.uint16, torch.float16, torch.bfloat16, torch.float32)
"""The types that pixels can have in a batch."""

_NUMPYS = {np.dtype(str(dtype).removeprefix("torch.")): dtype for dtype in DTYPES if dtype != torch.bfloat16}
# Pillow's numbers of the interpolations, which torchvision takes too.
_PILLOWS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_MOST_PIXELS, _MOST_CHANNELS = 2**24, 64
_MOST_SIDE = 255
_MOST_SMOOTHNESS = 128


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of argument; `Annotated[type, Kind(...)]` declares an argument of it.

    Attributes:
        check: Called with the transform, the argument's name and the value that was passed; returns the value to store,
            or raises OptionError.
        is_shown: Whether a transform's text has the argument even if its value is the default.
    """

    check: Callable[[object, str, Any], Any]
    is_shown: bool = True


def _always(why: str) -> Kind:
    """Return the kind of an argument of torchvision's that can only be True."""

    def check(of: object, name: str, value: Any) -> bool:
        if value is not True:
            raise OptionError(f"{type(of).__name__}({name}={value!r}): expected True; {why}")
        return True

    return Kind(check, is_shown=False)


def _number(value: object) -> Any:
    """Return a number as an int or float; NaN for anything but a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    if isinstance(value, Integral):
        return int(value) if abs(int(value)) < 2**63 else math.nan
    return float(value) if math.isfinite(value) else math.nan


def _numbers(values: object) -> tuple[Any, ...]:
    return tuple(map(_number, values if isinstance(values, Sequence) else (values,)))


def _pixels(what: str, counts: tuple[int, ...], least: int = 0) -> Kind:
    """Return the kind of whole numbers of pixels, of which there are as many as one of `counts` says."""

    def check(of: object, name: str, value: Any) -> int | tuple[int, ...]:
        numbers = (0,) if value is None and 4 in counts else _numbers(value)
        if len(numbers) not in counts or not all(isinstance(n, int) and least <= n <= _MOST_PIXELS for n in numbers):
            raise OptionError(f"{of}: expected a {name} of at least {least} pixel{'s' * (least != 1)}, as {what}")
        return numbers[0] if len(numbers) == 1 else numbers

    return Kind(check)


def _fill(of: object, name: str, fill: Any) -> float | tuple[float, float, float]:
    values = _numbers(fill)
    if len(values) not in (1, 3) or not all(map(math.isfinite, values)):
        raise OptionError(f"{of}: expected one finite number, or one for each of three channels, to fill with")
    return values[0] if len(values) == 1 else (values[0], values[1], values[2])


def _probability(of: object, name: str, p: Any) -> float:
    number = _number(p)
    if not 0 <= number <= 1:
        raise OptionError(f"{of}: expected a probability {name} from 0 to 1")
    return float(number)


def _range(what: str, most: float) -> Kind:
    """Return the kind of two numbers above 0 and up to `most`, in order."""

    def check(of: object, name: str, value: Any) -> tuple[float, float]:
        values = _numbers(value)
        if len(values) != 2 or not 0 < values[0] <= values[1] <= most:
            raise OptionError(f"{of}: expected {name}=(least, most), {what}")
        return values[0], values[1]

    return Kind(check)


def _change(what: str, least: float, most: float) -> Kind:
    """Return the kind of a number from 0 to `most`, or of two from `least` to `most`, in order; None is 0."""

    def check(of: object, name: str, value: Any) -> float | tuple[float, float]:
        if value is None:
            return 0.0
        values, are_two = _numbers(value), isinstance(value, Sequence)
        if len(values) != 1 + are_two or not (least if are_two else 0) <= values[0] <= values[-1] <= most:
            raise OptionError(f"{of}: expected {what} for {name}")
        return (values[0], values[1]) if are_two else values[0]

    return Kind(check)


def _kernel_size(of: object, name: str, value: Any) -> int | tuple[int, int]:
    numbers = _numbers(value)
    if len(numbers) not in (1, 2) or not all(isinstance(n, int) and 1 <= n <= _MOST_SIDE and n % 2 for n in numbers):
        raise OptionError(f"{of}: expected an odd {name} of at most {_MOST_SIDE}, as an int or (across, down)")
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def _sigma(of: object, name: str, value: Any) -> float | tuple[float, float]:
    values = _numbers(value)
    if len(values) not in (1, 2) or not 0 < values[0] <= values[-1]:
        raise OptionError(f"{of}: expected a {name} above 0, in pixels, as a number or (min, max)")
    return values[0] if len(values) == 1 else (values[0], values[1])


def _strength(of: object, name: str, value: Any) -> float | tuple[float, float]:
    values = _numbers(value)
    if len(values) not in (1, 2) or not all(map(math.isfinite, values)):
        raise OptionError(f"{of}: expected a finite {name}, as a number or (across, down)")
    return values[0] if len(values) == 1 else (values[0], values[1])


def _smoothness(of: object, name: str, value: Any) -> float | tuple[float, float]:
    values = _numbers(value)
    if len(values) not in (1, 2) or not (0 < min(values) <= max(values) <= _MOST_SMOOTHNESS or set(values) == {0}):
        raise OptionError(
            f"{of}: expected a {name} above 0 and up to {_MOST_SMOOTHNESS} pixels, as a number or (across, down); or 0 "
            "for no smoothing"
        )
    return values[0] if len(values) == 1 else (values[0], values[1])


def _level(least: float) -> Kind:
    """Return the kind of a number from `least` to 1, where white is 1."""

    def check(of: object, name: str, value: Any) -> float:
        number = _number(value)
        if not least <= number <= 1:
            raise OptionError(f"{of}: expected a {name} from {least} to 1, where 1 is white, such as 25 / 255")
        return float(number)

    return Kind(check)


def _from_zero(what: str) -> Kind:
    """Return the kind of a number of at least 0."""

    def check(of: object, name: str, value: Any) -> float:
        number = _number(value)
        if not number >= 0:
            raise OptionError(f"{of}: expected a {name} of at least 0, {what}")
        return float(number)

    return Kind(check)


def _bits(of: object, name: str, bits: Any) -> int:
    number = _number(bits)
    if not isinstance(number, int) or not 0 <= number <= 8:
        raise OptionError(f"{of}: expected whole {name} from 0 to 8, the upper ones of each value that are kept")
    return number


def _interpolation(first: str, second: str) -> Kind:
    """Return the kind of one of two interpolations, by name, or as torchvision and Pillow write it."""

    def check(of: object, name: str, interpolation: Any) -> Any:
        named = getattr(interpolation, "value", interpolation)  # an InterpolationMode, or a Resampling of Pillow
        if isinstance(named, Integral) and not isinstance(named, bool):
            named = _PILLOWS.get(int(named), named)
        if isinstance(named, str) and named in (first, second):
            return named
        raise OptionError(f"{of}: expected {name}={first!r} or {second!r}")

    return Kind(check)


def _angles(what: str, counts: tuple[int, ...], *, is_shown: bool = True) -> Kind:
    """Return the kind of a number of at least 0, or of pairs (min, max), in degrees; None only if it is not shown."""

    def check(of: object, name: str, value: Any) -> float | tuple[float, ...] | None:
        if value is None and not is_shown:
            return None
        values, are_many = _numbers(value), isinstance(value, Sequence)
        pairs = list(zip(values[::2], values[1::2], strict=False))
        is_right = len(values) in counts and all(low <= high for low, high in pairs) if are_many else values[0] >= 0
        if not is_right:
            raise OptionError(f"{of}: expected {name}, in degrees, as {what}")
        return values if are_many else values[0]

    return Kind(check, is_shown)


def _two(what: str, is_right: Callable[[float, float], bool]) -> Kind:
    """Return the kind of two numbers, or None."""

    def check(of: object, name: str, value: Any) -> tuple[float, float] | None:
        values = (0, 0) if value is None else _numbers(value)
        if value is not None and (len(values) != 2 or not all(map(math.isfinite, values)) or not is_right(*values)):
            raise OptionError(f"{of}: expected {name}={what}, or None")
        return None if value is None else (values[0], values[1])

    return Kind(check, is_shown=False)


def _flag(of: object, name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise OptionError(f"{of}: expected {name}=True or False")
    return bool(value)


def _dtype(of: object, name: str, dtype: Any) -> torch.dtype:
    if isinstance(dtype, np.dtype) or (isinstance(dtype, type) and issubclass(dtype, np.generic)):
        dtype = _NUMPYS.get(np.dtype(dtype), dtype)
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise OptionError(f"{of}: expected one of {', '.join(map(str, DTYPES))}; masks and labels keep their type")
    return dtype


def _statistic(of: object, name: str, value: Any) -> tuple[float, ...]:
    try:
        values = tuple(map(float, (value,) if isinstance(value, Real) else value))
    except (TypeError, ValueError):
        values = ()
    least = 1e-30 if name == "std" else 0.0  # one over it must be a float32
    if not 1 <= len(values) <= _MOST_CHANNELS or not all(math.isfinite(v) and abs(v) >= least for v in values):
        raise OptionError(
            f"{type(of).__name__}: {name}={value}; expected one number, or one for each channel, a std other than 0"
        )
    return values


def _names(of: object, name: str, fields: Any) -> tuple[str, ...] | None:
    if fields is None:
        return None
    if isinstance(fields, str):
        raise OptionError(f"{of}: expected names, such as {name}=({fields!r},)")
    found = tuple(fields)
    if not found:
        raise OptionError(f"{of}: expected at least one name, or None for all image fields")
    return found


Size = Annotated[int | tuple[int, int], _pixels("an int or (height, width)", (1, 2), 1)]
Shift = Annotated[int, _pixels("an int", (1,))]
Padding = Annotated[
    int | tuple[int, ...] | None,
    _pixels("an int, (left and right, top and bottom) or (left, top, right, bottom)", (1, 2, 4)),
]
Fill = Annotated[float | tuple[float, float, float], Kind(_fill)]
Portion = Annotated[float, Kind(_probability)]
Probability = Annotated[float, Kind(_probability)]
Share = Annotated[tuple[float, float], _range("shares of the area above 0 and up to 1", 1)]
Ratio = Annotated[tuple[float, float], _range("ratios of the sides above 0", math.inf)]
Factor = Annotated[
    float | tuple[float, float] | None,
    _change("a number of at least 0, or (least, most) factors of at least 0", 0, math.inf),
]
Hue = Annotated[
    float | tuple[float, float] | None,
    _change("a share of the whole circle from 0 to 0.5, or (least, most) from -0.5 to 0.5", -0.5, 0.5),
]
KernelSize = Annotated[int | tuple[int, int], Kind(_kernel_size)]
Sigma = Annotated[float | tuple[float, float], Kind(_sigma)]
Mean = Annotated[float, _level(-1)]
Deviation = Annotated[float, _level(0)]
Clip = Annotated[bool, _always("without it, values would wrap around, and white become black")]
Threshold = Annotated[float, _from_zero("in the units of the stored pixels")]
Bits = Annotated[int, Kind(_bits)]
Sharpness = Annotated[float, _from_zero("where 0 smooths, 1 changes nothing and 2 sharpens")]
Interpolation = Annotated[Literal["bilinear", "bicubic"], _interpolation("bilinear", "bicubic")]
WarpInterpolation = Annotated[Literal["nearest", "bilinear"], _interpolation("nearest", "bilinear")]
Degrees = Annotated[float | tuple[float, ...], _angles("a number of at least 0, or (min, max)", (2,))]
Shear = Annotated[
    float | tuple[float, ...] | None,
    _angles("a number of at least 0, (min, max), or (min, max, min, max) along x and y", (2, 4), is_shown=False),
]
Shifts = Annotated[
    tuple[float, float] | None,
    _two("(across, down), shares of the sides from 0 to 1", lambda x, y: 0 <= min(x, y) <= max(x, y) <= 1),
]
Scale = Annotated[tuple[float, float] | None, _two("(min, max) factors above 0", lambda low, high: 0 < low <= high)]
Center = Annotated[
    tuple[float, float] | None, _two("(x, y) in pixels", lambda x, y: max(abs(x), abs(y)) <= _MOST_PIXELS)
]
Strength = Annotated[float | tuple[float, float], Kind(_strength)]
Smoothness = Annotated[float | tuple[float, float], Kind(_smoothness)]
Flag = Annotated[bool, Kind(_flag)]
# An argument that is seldom given: a transform's repr has it only if it is.
RareFlag = Annotated[bool, Kind(_flag, is_shown=False)]
Dtype = Annotated[torch.dtype, Kind(_dtype)]
Statistic = Annotated[Sequence[float] | float, Kind(_statistic)]
Names = Annotated[tuple[str, ...] | None, Kind(_names, is_shown=False)]
Antialias = Annotated[bool, _always("images are resized with antialiasing")]
