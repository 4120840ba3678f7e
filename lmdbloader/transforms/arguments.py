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


def _scalar(what: str, is_right: Callable[[float], bool]) -> Kind:
    """Return the kind of one number, which is stored as a float."""

    def check(of: object, name: str, value: Any) -> float:
        number = _number(value)
        if not is_right(number):
            raise OptionError(f"{of}: expected {what.format(name=name)}")
        return float(number)

    return Kind(check)


def _several(
    what: str, is_right: Callable[..., bool], counts: tuple[int, ...] = (1, 2), *, may_be_none: bool = False
) -> Kind:
    """Return the kind of finite numbers, of which there are as many as one of `counts` says; one comes alone."""

    def check(of: object, name: str, value: Any) -> float | tuple[float, ...] | None:
        if value is None and may_be_none:
            return None
        values = _numbers(value)
        if len(values) not in counts or not all(map(math.isfinite, values)) or not is_right(*values):
            raise OptionError(f"{of}: expected {what.format(name=name)}")
        return values[0] if len(values) == 1 else values

    return Kind(check, is_shown=not may_be_none)


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


def _is_smoothness(*values: float) -> bool:
    return 0 < min(values) <= max(values) <= _MOST_SMOOTHNESS or set(values) == {0}


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
            f"{type(of).__name__}: {name}={value}; expected one number, or one for each channel, not NaN, a std not 0"
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
Fill = Annotated[
    float | tuple[float, float, float],
    _several("one finite number, or one for each of three channels, to fill with", lambda *_: True, (1, 3)),
]
Probability = Annotated[float, _scalar("a probability {name} from 0 to 1", lambda p: 0 <= p <= 1)]
Share = Annotated[
    tuple[float, float],
    _several(
        "{name}=(least, most), shares of the area above 0 and up to 1", lambda low, high: 0 < low <= high <= 1, (2,)
    ),
]
Ratio = Annotated[
    tuple[float, float],
    _several("{name}=(least, most), ratios of the sides above 0", lambda low, high: 0 < low <= high, (2,)),
]
Factor = Annotated[
    float | tuple[float, float] | None,
    _change("a number of at least 0, or (least, most) factors of at least 0", 0, math.inf),
]
Hue = Annotated[
    float | tuple[float, float] | None,
    _change("a share of the whole circle from 0 to 0.5, or (least, most) from -0.5 to 0.5", -0.5, 0.5),
]
KernelSize = Annotated[
    int | tuple[int, int],
    _several(
        f"an odd {{name}} of at most {_MOST_SIDE}, as an int or (across, down)",
        lambda *sides: all(isinstance(n, int) and 1 <= n <= _MOST_SIDE and n % 2 for n in sides),
    ),
]
Sigma = Annotated[
    float | tuple[float, float],
    _several("a {name} above 0, in pixels, as a number or (min, max)", lambda *ends: 0 < ends[0] <= ends[-1]),
]
_LEVEL = "a {name} from %d to 1, where 1 is white, such as 25 / 255"
Mean = Annotated[float, _scalar(_LEVEL % -1, lambda level: -1 <= level <= 1)]
Deviation = Annotated[float, _scalar(_LEVEL % 0, lambda level: 0 <= level <= 1)]
Clip = Annotated[bool, _always("without it, values would wrap around, and white become black")]
Threshold = Annotated[
    float,
    _scalar("a {name} of 0, or at least 1, in the units of the stored pixels", lambda level: level == 0 or level >= 1),
]
Bits = Annotated[int, Kind(_bits)]
Sharpness = Annotated[
    float,
    _scalar("a {name} of at least 0, where 0 smooths, 1 changes nothing and 2 sharpens", lambda factor: factor >= 0),
]
Interpolation = Annotated[Literal["bilinear", "bicubic"], _interpolation("bilinear", "bicubic")]
WarpInterpolation = Annotated[Literal["nearest", "bilinear"], _interpolation("nearest", "bilinear")]
Degrees = Annotated[float | tuple[float, ...], _angles("a number of at least 0, or (min, max)", (2,))]
Shear = Annotated[
    float | tuple[float, ...] | None,
    _angles("a number of at least 0, (min, max), or (min, max, min, max) along x and y", (2, 4), is_shown=False),
]
Shifts = Annotated[
    tuple[float, float] | None,
    _several(
        "{name}=(across, down), shares of the sides from 0 to 1, or None",
        lambda x, y: 0 <= min(x, y) <= max(x, y) <= 1,
        (2,),
        may_be_none=True,
    ),
]
Scale = Annotated[
    tuple[float, float] | None,
    _several("{name}=(min, max) factors above 0, or None", lambda low, high: 0 < low <= high, (2,), may_be_none=True),
]
Center = Annotated[
    tuple[float, float] | None,
    _several(
        "{name}=(x, y) in pixels, or None", lambda x, y: max(abs(x), abs(y)) <= _MOST_PIXELS, (2,), may_be_none=True
    ),
]
Strength = Annotated[
    float | tuple[float, float], _several("a finite {name}, as a number or (across, down)", lambda *_: True)
]
Smoothness = Annotated[
    float | tuple[float, float],
    _several(
        f"a {{name}} above 0 and up to {_MOST_SMOOTHNESS} pixels, as a number or (across, down); or 0 for no smoothing",
        _is_smoothness,
    ),
]
Concentration = Annotated[float, _scalar("an {name} above 0", lambda number: 0 < number < 1e6)]
Flag = Annotated[bool, Kind(_flag)]
# An argument that is seldom given: a transform's repr has it only if it is.
RareFlag = Annotated[bool, Kind(_flag, is_shown=False)]
Dtype = Annotated[torch.dtype, Kind(_dtype)]
Statistic = Annotated[Sequence[float] | float, Kind(_statistic)]
Names = Annotated[tuple[str, ...] | None, Kind(_names, is_shown=False)]
Antialias = Annotated[bool, _always("images are resized with antialiasing")]
