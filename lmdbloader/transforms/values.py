"""The values of pixels: their conversions, and how those of a field follow from the stored ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.errors import OptionError
from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms.arguments import Dtype, Flag, Statistic
from lmdbloader.transforms.base import Geometry, Transform

_LARGEST = {torch.uint8: 255.0, torch.uint16: 65535.0}
_CARRIERS = {torch.uint8: np.uint8, torch.uint16: np.uint16, torch.float32: np.float32}
# How a kernel computes floats of a type.
_AFFINE_KINDS = {torch.float32: opcodes.FLOAT, torch.bfloat16: opcodes.BFLOAT, torch.float16: opcodes.HALF}


@dataclass(frozen=True, slots=True, repr=False)
class ToDtype(Transform):
    """Convert pixels to another type.

    Attributes:
        dtype: torch.uint8, uint16, float16, bfloat16 or float32, or NumPy's type of that name.
        scale: Whether values are scaled to the type's range: floats from 0 to 1; between uint8 and uint16 shifted by 8
            bits, as in torchvision: 255 becomes 65280. Without it they keep their values: floats from 0 to 255. Stored
            floats keep their values in both cases, as in torchvision, and do not become whole numbers.
    """

    dtype: Dtype
    scale: Flag = False


@dataclass(frozen=True, slots=True, repr=False)
class Normalize(Transform):
    """Subtract a mean and divide by a standard deviation; after ToDtype.

    A mean and std for pixels of another range are refused:

    - For pixels from 0 to 1, a mean above 2, or a std above 10: none have these.
    - For pixels from 0 to 255 (or 65535), in all channels a mean m between 0 and 1 with a std at least 2 % below
      sqrt(m * (1 - m)), which whole numbers cannot have; or with std=1; or a mean and a std of 0.5.

    Attributes:
        mean: One for each channel, or one for all, in the units of the converted pixels: 0 to 1 after a
            ToDtype with scale=True.
        std: The same; not 0.
    """

    mean: Statistic
    std: Statistic


@dataclass(frozen=True, slots=True)
class ImageField:
    """A field of images or masks for a program.

    Attributes:
        name, channels, dtype: Its name, and the channels and the type of its images as stored.
        is_mask: Whether it has masks.
        size: (height, width) of its images, () if they differ.
        ignored: The label around masks.
    """

    name: str
    channels: int
    dtype: torch.dtype
    is_mask: bool = False
    size: tuple[int, ...] = ()
    ignored: int = 255


@dataclass(frozen=True, slots=True)
class Values:
    """How the values of one field are made from stored ones.

    Attributes:
        dtype: Of the result.
        kind: How a kernel makes them, see `opcodes.COPY`.
        affine: (channels, 2) float32, factor and term of each channel if the result is a float.
        table: (channels, number of stored values) of the result's words if they are looked up, else None.
        erased: (erasings, channels) uint32, the bits that fill each erased rectangle.
        limits: What the least and the largest stored value become; NaN if floats are stored, which have none.
    """

    dtype: torch.dtype
    kind: int
    affine: npt.NDArray[np.float32]
    table: npt.NDArray[Any] | None
    erased: npt.NDArray[np.uint32]
    limits: tuple[float, float]

    @property
    def carrier(self) -> np.dtype[Any]:
        """The NumPy type of arrays with the result; int16 for 16-bit floats."""
        return np.dtype(_CARRIERS.get(self.dtype, np.int16))


def check_fill(of: Transform, fill: Any, name: str, channels: int, dtype: torch.dtype) -> None:
    """Refuse a fill that is no pixel of the image with a name."""
    values = fill if isinstance(fill, tuple) else (fill,)
    if len(values) not in (1, channels):
        raise OptionError(f"{of}: {name!r} has {_counted(channels)}, the fill is for three")
    if dtype in _LARGEST and any(v != int(v) or not 0 <= v <= _LARGEST[dtype] for v in values):
        raise OptionError(f"{of}: the fill must be pixels of {name!r}, whole numbers of {dtype}")


# Networks that were trained on photographs take three channels.
_FOR_GRAY = (
    ". Give one number each; a last function makes three equal channels, if the network takes them: "
    "lambda batch: batch._replace({0}=batch.{0}.expand(-1, 3, -1, -1))"
)


def _counted(channels: int) -> str:
    return "one channel" if channels == 1 else f"{channels} channels"


class Chain:
    """Follows the values of one field through a list of transforms."""

    def __init__(self, field: ImageField) -> None:
        self.field = field
        self.dtype = field.dtype
        # The result of every stored value so far, for each channel, without any of floats; only integers are rounded.
        self.table = np.tile(np.arange(_LARGEST.get(field.dtype, -1) + 1), (field.channels, 1))
        # The same as a factor and a term, until something is rounded to integers. A term of -0.0 keeps zeros' signs.
        self.factor, self.is_affine = np.ones(field.channels), True
        self.term = np.full(field.channels, -0.0 if field.dtype.is_floating_point else 0.0)
        self.erased: dict[int, npt.NDArray[np.float64]] = {}
        self.last: Transform | None = None

    def meet(self, transform: Transform, erasing: int) -> None:
        """Apply a transform to the values; `erasing` is the number of erasing transforms before it, of all fields."""
        erases = isinstance(transform, Geometry) and transform.erases
        if isinstance(transform, ToDtype):
            self._convert(transform)
        elif isinstance(transform, Normalize):
            self._normalize(transform)
        elif erases:
            value = transform.value  # type: ignore[attr-defined]
            check_fill(transform, value, self.field.name, self.field.channels, self.dtype)
            self.erased[erasing] = np.broadcast_to(np.asarray(value, np.float64), self.field.channels)
        elif self.last is not None:
            raise OptionError(
                f"{type(transform).__name__} after {type(self.last).__name__}: expected transforms that move or color "
                "pixels first, then ToDtype and Normalize, with RandomErasing and Cutout anywhere after those. Change "
                "the order."
            )
        elif getattr(transform, "code", 0) in (opcodes.POLICY, opcodes.AUGMIX):
            self._check_policy(transform)
        elif (code := getattr(transform, "code", 0)) >= opcodes.JITTER:
            self._check_colors(transform, of_colors=code not in (opcodes.BLUR, opcodes.NOISE))
        if isinstance(transform, ToDtype | Normalize) or erases:
            self.last = transform

    def _check_colors(self, transform: Transform, *, of_colors: bool) -> None:
        """Refuse a change of values that is not for floats or, of colors, only for images that are gray or RGB."""
        if self.field.dtype not in _LARGEST or (of_colors and self.field.channels not in (1, 3)):
            raise OptionError(
                f"{transform}: the images of {self.field.name!r} are {self.field.dtype} with "
                f"{_counted(self.field.channels)}; expected uint8 or uint16{' with 1 or 3 channels' * of_colors}. "
                f"Leave it out, or name the fields that it is for: {type(transform).__name__}(..., fields=('image',))."
            )

    def _check_policy(self, transform: Transform) -> None:
        """Refuse a policy for images that are not what torchvision's policies are made for; masks follow its moves."""
        if not self.field.is_mask and (self.field.dtype != torch.uint8 or self.field.channels not in (1, 3)):
            raise OptionError(
                f"{transform}: the images of {self.field.name!r} are {self.field.dtype} with "
                f"{_counted(self.field.channels)}; expected uint8 with 1 or 3 channels, as for torchvision's. Store 8 "
                "bits, or write single operations, such as RandomRotation and ColorJitter."
            )

    def _convert(self, transform: ToDtype) -> None:
        was, now = self.dtype, transform.dtype
        if now in _LARGEST and self.field.dtype not in _LARGEST:
            raise OptionError(
                f"{transform}: the pixels of {self.field.name!r} are stored as {self.field.dtype}, and a conversion to "
                "integers would round them. Store integers, or convert to torch.float32."
            )
        if transform.scale and was != now:
            if was in _LARGEST and now in _LARGEST:
                shift = 256.0
                self._map((lambda v: v * shift) if now == torch.uint16 else (lambda v: np.floor(v / shift)))
            elif was in _LARGEST:
                # As torchvision does, with the reciprocal in float32.
                self._scale(np.float64(np.float32(1 / _LARGEST[was])), 0.0)
            elif now in _LARGEST:
                most = _LARGEST[now] + 1 - 1e-3
                self._map(lambda v: np.clip(np.floor(v * most), 0, _LARGEST[now]))
        elif was != now and now in _LARGEST:
            self._map(lambda v: np.clip(np.trunc(v), 0, _LARGEST[now]))
        self.dtype = now

    def _normalize(self, transform: Normalize) -> None:
        if self.dtype in _LARGEST:
            raise OptionError(
                f"Normalize: the pixels of {self.field.name!r} are {self.dtype}; expected floats. Put "
                "ToDtype(torch.float32, scale=True) before it."
            )
        mean, std = (np.asarray(v, np.float64) for v in (transform.mean, transform.std))
        channels = self.field.channels
        if wrong := {mean.size, std.size} - {1, channels}:
            count = "three" if wrong == {3} else max(wrong)
            message = f"Normalize: {self.field.name!r} has {_counted(channels)}, {transform} is for {count}"
            raise OptionError(message + _FOR_GRAY.format(self.field.name) * (channels == 1))
        if self.table.size:
            self._check_units(transform, *(np.broadcast_to(v, channels) for v in (mean, std)))
        self._scale(1 / std, -mean / std)

    def _check_units(self, transform: Normalize, mean: Any, std: Any) -> None:
        """Refuse a mean and a deviation that belong to pixels of another range, by the limits that Normalize states."""
        high = self.table.max()
        if self.table.min() != 0:
            return
        where = f"{transform}: the pixels of {self.field.name!r} are from 0 to {high:.4g} here"
        if abs(high - 1) < 0.01 and ((mean > 2) | ((std > 10) & (mean >= 0))).any():  # white may be 65280 of 65535
            raise OptionError(
                f"{where}, and mean and std are of larger numbers. Divide them by the largest pixel, such as: [m / "
                f"{_LARGEST[self.field.dtype]:.0f} for m in mean], [s / {_LARGEST[self.field.dtype]:.0f} for s in std]."
            )
        # Whole numbers with a mean between 0 and 1 have at least this deviation.
        least = np.sqrt(np.abs(mean * (1 - mean)))
        is_of_units = (std < 0.98 * least) | ((std == 1) & (mean != 0.5)) | ((mean == 0.5) & (std == 0.5))
        if high >= 255 and ((mean > 0) & (mean < 1) & (std > 0) & is_of_units).all():
            raise OptionError(f"{where}, mean and std are of pixels from 0 to 1. Put ToDtype(..., scale=True) before.")

    def _scale(self, factor: Any, term: Any) -> None:
        factor, term = (np.broadcast_to(v, self.field.channels) for v in (factor, term))
        self.table = self.table * factor[:, None] + term[:, None]
        self.factor, self.term = self.factor * factor, self.term * factor + term
        self.erased = {k: v * factor + term for k, v in self.erased.items()}

    def _map(self, function: Any) -> None:
        self.table, self.is_affine = function(self.table), False
        self.erased = {k: function(v) for k, v in self.erased.items()}

    def values(self, num_erasings: int) -> Values:
        affine = np.stack([self.factor, self.term], 1).astype(np.float32)
        erased = np.zeros((num_erasings, self.field.channels), np.uint32)
        for k, fill in self.erased.items():
            erased[k] = _words(fill, self.dtype)
        limits = (np.nan, np.nan)
        is_same = (self.factor == 1).all() and (self.term == 0).all()
        if self.table.size:
            is_same = (self.table == np.arange(self.table.shape[1])).all()
            limits = float(self.table.min()), float(self.table.max())
        if self.dtype == self.field.dtype and is_same:
            return Values(self.dtype, opcodes.COPY, affine, None, erased, limits)
        kind = _AFFINE_KINDS.get(self.dtype)
        if kind is not None and self.is_affine:
            return Values(self.dtype, kind, affine, None, erased, limits)
        table = np.ascontiguousarray(_words(self.table, self.dtype))
        kind = {1: opcodes.TABLE_8, 2: opcodes.TABLE_16, 4: opcodes.TABLE_32}[table.itemsize]
        return Values(self.dtype, kind, affine, table, erased, limits)


def _words(values: npt.NDArray[np.float64], dtype: torch.dtype) -> npt.NDArray[Any]:
    """Return the bits of values in a type, rounded once."""
    if dtype in _LARGEST:
        bits: npt.NDArray[Any] = np.clip(values, 0, _LARGEST[dtype]).astype(_CARRIERS[dtype])
        return bits
    found = torch.from_numpy(values.astype(np.float32)).to(dtype)
    if dtype == torch.float32:
        words: npt.NDArray[Any] = found.numpy().view(np.uint32)
        return words
    half: npt.NDArray[Any] = found.view(torch.int16).numpy().view(np.uint16)
    return half
