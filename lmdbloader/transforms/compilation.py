"""Compiles a list of transforms to the numbers that kernels read, and checks each against the image fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.errors import OptionError
from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms import Geometry, Normalize, ToDtype, Transform
from lmdbloader.transforms.functions import BatchFunction, described, is_compiled

_LARGEST = {torch.uint8: 255.0, torch.uint16: 65535.0}
_CARRIERS = {torch.uint8: np.uint8, torch.uint16: np.uint16, torch.float32: np.float32}
# The operations that make no random choice.
_FIXED = (opcodes.CENTER_CROP, opcodes.RESIZE)
# How a kernel computes floats of a type.
_AFFINE_KINDS = {torch.float32: opcodes.FLOAT, torch.bfloat16: opcodes.BFLOAT, torch.float16: opcodes.HALF}


@dataclass(frozen=True, slots=True)
class ImageField:
    """A field of images or masks for a program: its name, channels (1 or 3), stored dtype, and whether it has masks."""

    name: str
    channels: int
    dtype: torch.dtype
    is_mask: bool = False


@dataclass(frozen=True, slots=True)
class Values:
    """How the values of one field are made from stored ones.

    Attributes:
        dtype: Of the result.
        kind: How a kernel makes them, see `opcodes.COPY`.
        affine: (3, 2) float32, factor and term of each channel if the result is a float.
        table: (3, number of stored values) of the result's words if they are looked up, else None.
        erased: (erasings, 3) uint32, the bits that fill each erased rectangle.
        limits: What the least and the largest stored value become.
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


@dataclass(frozen=True, slots=True)
class Program:
    """Transforms as kernels read them.

    Attributes:
        whole, real: (operations, ...) int64 and float64, see `opcodes`.
        num_stages: Number of geometries of a field, one after the other.
        values: For each field.
        resizes: Whether some operation resizes images.
        is_random: Whether some operation makes random choices.
    """

    whole: npt.NDArray[np.int64]
    real: npt.NDArray[np.float64]
    num_stages: int
    values: tuple[Values, ...]
    resizes: bool = False
    is_random: bool = False


def compile_program(transforms: Sequence[Transform], fields: Sequence[ImageField]) -> Program:
    """Return the program of transforms for these fields.

    Raises:
        OptionError: A transform does not suit a field, or its place in the list.
    """
    if len(fields) > opcodes.MAX_FIELDS:
        raise OptionError(
            f"{len(fields)} image fields: expected at most {opcodes.MAX_FIELDS}. Read fewer with fields=."
        )
    chains = [_Chain(field) for field in fields]
    whole: list[list[int]] = []
    real: list[list[float]] = []
    stage, padded = 0, 0
    num_erasings = sum(_erases(t) for t in transforms)
    erasing = 0
    for transform in transforms:
        concerned = _concerned(transform, fields)
        for f in concerned:
            chains[f].meet(transform, erasing)
        if not isinstance(transform, Geometry) or not concerned:
            continue
        mask = sum(1 << f for f in concerned)
        if transform.pads and padded & mask:  # a geometry has one fill: the padding before becomes pixels
            stage, padded = stage + 1, padded & ~mask
        filled = [fields[f] for f in concerned if not fields[f].is_mask]  # masks have a fill of their own
        fill = _fill_numbers(transform, filled) if transform.pads else (0, 0, 0)
        operation = [transform.code, mask, stage, *[0] * (opcodes.OP_FILL - opcodes.OP_HEIGHT), *fill]
        for column, number in transform.whole_numbers.items():
            operation[column] = number
        operation[opcodes.OP_RECTANGLE] = erasing
        whole.append(operation)
        real.append([*transform.real_numbers, *[0.0] * (opcodes.NUM_REAL - len(transform.real_numbers))])
        padded |= mask if transform.pads else 0
        erasing += transform.erases
        stage += transform.ends_stage
        if transform.resizes:  # a change of colours may leave a sample out, whose padding then is still there
            padded &= ~mask
    return Program(
        np.array(whole, np.int64).reshape(-1, opcodes.NUM_WHOLE),
        np.array(real, np.float64).reshape(-1, opcodes.NUM_REAL),
        stage + 1,
        tuple(chain.values(num_erasings) for chain in chains),
        any(isinstance(t, Geometry) and t.resizes for t in transforms),
        any(operation[opcodes.OP_CODE] not in _FIXED for operation in whole),
    )


def is_random(transform: object) -> bool:
    """Return whether a transform is known to make random choices; of a function of the user this is not known.

    Functions of whole batches, such as MixUp, count as random: they are for training.
    """
    if isinstance(transform, Geometry):
        return transform.code not in _FIXED
    if isinstance(transform, BatchFunction):
        return transform.is_random
    from lmdbloader.transforms.foreign import random_parts

    return bool(random_parts(transform))


def _erases(transform: Transform) -> bool:
    return isinstance(transform, Geometry) and transform.erases


def _concerned(transform: Transform, fields: Sequence[ImageField]) -> list[int]:
    names = [field.name for field in fields]
    if is_compiled(transform):
        raise OptionError(
            f"transforms: {transform} is called by a Loader only, after all other compiled transforms. Put it at the "
            "end of Loader(dataset, ..., transforms=[...])."
        )
    if not isinstance(transform, Geometry | ToDtype | Normalize) or type(transform) is Geometry:
        if callable(transform) and not isinstance(transform, type | Transform):
            raise OptionError(
                f"transforms: {described(transform)} is not compiled; expected transforms of lmdbloader.transforms. "
                "Functions go to a Loader, at the end of its transforms, where they get whole batches, or to "
                f"LMDBDataset(path, transform=...), which calls them for every sample."
            )
        raise OptionError(f"transforms: {transform!r} is neither a transform of lmdbloader.transforms nor callable")
    for name in transform.fields or ():
        if name not in names:
            raise OptionError(f"{transform}: no image field {name!r}; there are {', '.join(names) or 'none'}")
    concerned = [i for i, name in enumerate(names) if transform.fields is None or name in transform.fields]
    if isinstance(transform, Geometry) and transform.moves:
        return concerned
    masks = [names[i] for i in concerned if fields[i].is_mask]
    found = [i for i in concerned if not fields[i].is_mask]
    if masks and (transform.fields is not None or (isinstance(transform, Geometry) and not found)):
        rest = tuple(names[i] for i in found)
        advice = f"Write fields={rest}." if rest else f"Leave {type(transform).__name__} out."
        raise OptionError(
            f"{transform}: {', '.join(masks)} holds masks, which only crops, flips and resizes can change. {advice}"
        )
    return found


def _fill_numbers(transform: Any, fields: Sequence[ImageField]) -> tuple[int, ...]:
    for field in fields:
        _check_fill(transform, transform.fill, field.name, field.channels, field.dtype)
    fill = transform.fill if isinstance(transform.fill, tuple) else (transform.fill,) * 3
    return tuple(int(v) for v in fill)


def _check_fill(of: Transform, fill: Any, name: str, channels: int, dtype: torch.dtype) -> None:
    values = fill if isinstance(fill, tuple) else (fill,)
    if len(values) > channels:
        raise OptionError(f"{of}: {name!r} has one channel, the fill is for three")
    if dtype in _LARGEST and any(v != int(v) or not 0 <= v <= _LARGEST[dtype] for v in values):
        raise OptionError(f"{of}: the fill must be pixels of {name!r}, whole numbers of {dtype}")


class _Chain:
    """Follows the values of one field through a list of transforms."""

    def __init__(self, field: ImageField) -> None:
        self.field = field
        self.dtype = field.dtype
        # The result of every stored value so far, for each channel; only integers are rounded.
        stored = np.arange(_LARGEST[field.dtype] + 1)
        self.table = np.tile(stored, (3, 1))
        # The same as a factor and a term, until something is rounded to integers.
        self.factor, self.term, self.is_affine = np.ones(3), np.zeros(3), True
        self.erased: dict[int, npt.NDArray[np.float64]] = {}
        self.last: Transform | None = None

    def meet(self, transform: Transform, erasing: int) -> None:
        """Apply a transform to the values; `erasing` is the number of erasing transforms before it, of all fields."""
        if isinstance(transform, ToDtype):
            self._convert(transform)
        elif isinstance(transform, Normalize):
            self._normalize(transform)
        elif _erases(transform):
            value = transform.value  # type: ignore[attr-defined]
            _check_fill(transform, value, self.field.name, self.field.channels, self.dtype)
            self.erased[erasing] = np.broadcast_to(np.asarray(value, np.float64), 3)
        elif self.last is not None:
            raise OptionError(
                f"{type(transform).__name__} after {type(self.last).__name__}: expected transforms that move or colour "
                "pixels first, then ToDtype and Normalize, with RandomErasing and Cutout anywhere after those. Change "
                "the order."
            )
        if isinstance(transform, ToDtype | Normalize) or _erases(transform):
            self.last = transform

    def _convert(self, transform: ToDtype) -> None:
        was, now = self.dtype, transform.dtype
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
        if self.field.channels == 1 and max(mean.size, std.size) > 1:
            raise OptionError(f"Normalize: {self.field.name!r} has one channel, {transform} is for three")
        self._check_units(transform, *(np.broadcast_to(v, 3)[: self.field.channels] for v in (mean, std)))
        self._scale(1 / std, -mean / std)

    def _check_units(self, transform: Normalize, mean: Any, std: Any) -> None:
        """Refuse a mean and a deviation that belong to pixels of another range, by the limits that Normalize states."""
        if self.table.min() != 0:
            return
        high = self.table.max()
        if abs(high - 1) < 0.01 and ((mean > 2) | ((std > 10) & (mean >= 0))).any():  # white may be 65280 of 65535
            self._refuse_of_whole(transform, mean, std)
        if high >= 255:
            self._check_whole(transform, mean, std, high)

    def _refuse_of_whole(self, transform: Normalize, mean: Any, std: Any) -> None:
        largest = 255 if max(mean.max(), np.abs(std).max()) <= 255 else 65535
        # A deviation below 1 with such a mean is of units already: nothing that is not nearly empty has as little.
        of_whole = [name for name, v in (("mean", mean), ("std", std)) if (v > (2 if name == "mean" else 10)).any()]
        mixed = "std" in of_whole and "mean" not in of_whole and (mean > 0).any()
        parts = {"mean": np.array(transform.mean), "std": np.array(transform.std)}
        if "std" in of_whole or (np.abs(std) >= 1).any():
            parts["std"] = parts["std"] / largest
        if not mixed:
            parts["mean"] = parts["mean"] / largest
        line = ", ".join(map(_written, parts.values()))
        other = ""
        if largest == 255 and self.field.dtype == torch.uint16 and len(of_whole) == 2:
            numbers = ", ".join(_written(np.array(v) / 65535) for v in (transform.mean, transform.std))
            other = f" If they are of pixels from 0 to 65535, write Normalize({numbers})."
        raise OptionError(
            f"{transform}: the pixels of {self.field.name!r} are from 0 to 1 here, the {' and the '.join(of_whole)} "
            f"{'are' if len(of_whole) > 1 else 'is'} of pixels from 0 to {largest}. Write Normalize({line}).{other}"
        )

    def _check_whole(self, transform: Normalize, mean: Any, std: Any, high: float) -> None:
        rest = mean - np.floor(mean)
        # Whole numbers with a mean have at least this deviation; of those from 0 to `high` at most the other.
        least, most = np.sqrt(rest * (1 - rest)), np.sqrt(np.abs(mean * (high - mean)))
        is_of_units = (mean > 0) & (mean < 1) & (std > 0)
        is_of_units &= (std < 0.98 * least) | ((std == 1) & (mean != 0.5))
        is_half = (mean == 0.5) & (std == 0.5)
        scale = f"ToDtype({self.dtype}, scale=True)"
        if (is_of_units | is_half).all():
            scaled = ", ".join(_written(np.array(v) / high) for v in (transform.mean, transform.std))
            raise OptionError(
                f"{transform}: the pixels of {self.field.name!r} are from 0 to {high:.0f} here, mean and std are for "
                f"pixels from 0 to 1. Write {scale} before it. If all stored pixels are 0 or "
                f"1, write {scale}, Normalize({scaled})."
            )
        mixed = ((mean > 0) & (mean < 1) & (std > 1.02 * most)) | ((mean > 1) & (std > 0) & (std < 0.98 * least))
        if mixed.all():
            means, deviations = np.array(transform.mean), np.array(transform.std)
            parts = (means, deviations / high) if mean.max() < 1 else (means / high, deviations)
            raise OptionError(
                f"{transform}: the mean and the std are of pixels in different units: no pixels from 0 to {high:.0f} "
                f"have both. Write {scale} before it, and Normalize({', '.join(map(_written, parts))})."
            )

    def _scale(self, factor: Any, term: Any) -> None:
        factor, term = np.broadcast_to(factor, 3), np.broadcast_to(term, 3)
        self.table = self.table * factor[:, None] + term[:, None]
        self.factor, self.term = self.factor * factor, self.term * factor + term
        self.erased = {k: v * factor + term for k, v in self.erased.items()}

    def _map(self, function: Any) -> None:
        self.table, self.is_affine = function(self.table), False
        self.erased = {k: function(v) for k, v in self.erased.items()}

    def values(self, num_erasings: int) -> Values:
        affine = np.stack([self.factor, self.term], 1).astype(np.float32)
        erased = np.zeros((num_erasings, 3), np.uint32)
        for k, fill in self.erased.items():
            erased[k] = _words(fill, self.dtype)
        stored = np.arange(self.table.shape[1])
        limits = float(self.table.min()), float(self.table.max())
        if self.dtype == self.field.dtype and (self.table == stored).all():
            return Values(self.dtype, opcodes.COPY, affine, None, erased, limits)
        kind = _AFFINE_KINDS.get(self.dtype)
        if kind is not None and self.is_affine:
            return Values(self.dtype, kind, affine, None, erased, limits)
        table = np.ascontiguousarray(_words(self.table, self.dtype))
        kind = {1: opcodes.TABLE_8, 2: opcodes.TABLE_16, 4: opcodes.TABLE_32}[table.itemsize]
        return Values(self.dtype, kind, affine, table, erased, limits)


def _written(numbers: npt.NDArray[np.float64]) -> str:
    """Return numbers as an argument: one, or several in parentheses."""
    shown = [f"{number:.4g}" for number in numbers]
    return shown[0] if len(shown) == 1 else f"({', '.join(shown)})"


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
