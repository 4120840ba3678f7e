"""Transforms of pixel values: their type, and normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
import torch

from lmdbloader.errors import OptionError
from lmdbloader.transforms.base import Transform

DTYPES = (torch.uint8, torch.uint16, torch.float16, torch.bfloat16, torch.float32)
"""The types that pixels can have in a batch."""

_NUMPYS = {np.dtype(str(dtype).removeprefix("torch.")): dtype for dtype in DTYPES if dtype != torch.bfloat16}


@dataclass(frozen=True, slots=True, repr=False)
class ToDtype(Transform):
    """Convert pixels to another type.

    Attributes:
        dtype: torch.uint8, uint16, float16, bfloat16 or float32, or NumPy's type of that name.
        scale: Whether the range goes with it: floats go from 0 to 1; between uint8 and uint16 bits are shifted by 8,
            as in torchvision, so that 255 becomes 65280.
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
        mean: One for each of three channels or one for all, in the units of the converted pixels: 0 to 1 where ToDtype
            has scale=True.
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
