"""Compiles a list of transforms to the numbers that kernels read, and checks each against the image fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import OptionError
from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms.base import Geometry, Transform
from lmdbloader.transforms.functions import BatchFunction, described, is_compiled
from lmdbloader.transforms.values import Chain, ImageField, Normalize, ToDtype, Values, check_fill

# The operations that make no random choice.
_FIXED = (opcodes.CENTER_CROP, opcodes.RESIZE)


@dataclass(frozen=True, slots=True)
class Program:
    """Transforms as kernels read them.

    Attributes:
        whole, real: (operations, ...) int64 and float64, see `opcodes`.
        num_stages: Number of geometries of a field, one after the other.
        values: For each field.
        resizes: Whether some operation resizes images.
        is_random: Whether some operation makes random choices.
        warps: Whether some operation warps images.
        varying: For each field, whether its sizes depend on random choices.
    """

    whole: npt.NDArray[np.int64]
    real: npt.NDArray[np.float64]
    num_stages: int
    values: tuple[Values, ...]
    resizes: bool = False
    is_random: bool = False
    warps: bool = False
    varying: tuple[bool, ...] = ()


def compile_program(transforms: Sequence[Transform], fields: Sequence[ImageField]) -> Program:
    """Return the program of transforms for these fields.

    Raises:
        OptionError: A transform does not suit a field, or its place in the list.
    """
    if len(fields) > opcodes.MAX_FIELDS:
        raise OptionError(
            f"{len(fields)} image fields: expected at most {opcodes.MAX_FIELDS}. Read fewer with fields=."
        )
    chains = [Chain(field) for field in fields]
    whole: list[list[int]] = []
    real: list[list[float]] = []
    stage, padded, varying = 0, 0, 0
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
        fill = _fill_numbers(transform, filled) if transform.pads else [0] * 6
        operation = [transform.code, mask, stage, *[0] * (opcodes.OP_FILL - opcodes.OP_HEIGHT), *fill]
        for column, number in transform.whole_numbers.items():
            operation[column] = number
        operation[opcodes.OP_RECTANGLE] = erasing
        for slot in range(transform.num_operations):
            operation[opcodes.OP_STAGE], operation[opcodes.OP_SLOT] = stage, slot
            whole.append(list(operation))
            real.append([*transform.real_numbers, *[0.0] * (opcodes.NUM_REAL - len(transform.real_numbers))])
            stage += transform.ends_stage
        varying = _varying(transform, mask, varying)
        padded |= mask if transform.pads else 0
        erasing += transform.erases
        # Others may leave a sample out, whose padding then is still there.
        if transform.resizes or transform.code == opcodes.AFFINE:
            padded &= ~mask
    return Program(
        np.array(whole, np.int64).reshape(-1, opcodes.NUM_WHOLE),
        np.array(real, np.float64).reshape(-1, opcodes.NUM_REAL),
        stage + 1,
        tuple(chain.values(num_erasings) for chain in chains),
        any(isinstance(t, Geometry) and t.resizes for t in transforms),
        any(operation[opcodes.OP_CODE] not in _FIXED for operation in whole),
        any(isinstance(t, Geometry) and t.warps for t in transforms),
        tuple(bool(varying >> f & 1) for f in range(len(fields))),
    )


def _varying(transform: Geometry, mask: int, varying: int) -> int:
    """Return the fields whose sizes depend on random choices after a transform of some of them; sets of bits."""
    if transform.varies_size and varying & mask:
        raise OptionError(
            f"{transform}: the transform before it gives images random sizes already. Set the size between them, with "
            "a crop or Resize((height, width))."
        )
    if transform.varies_size:
        return varying | mask
    return varying & ~mask if transform.sets_size and transform.size_numbers[1] else varying


def is_random(transform: object) -> bool:
    """Return whether a transform is known to make random choices; of a function of the user this is not known.

    Functions of whole batches, such as MixUp, count as random: they are for training.
    """
    if isinstance(transform, Geometry):
        return transform.code not in _FIXED
    if isinstance(transform, BatchFunction):
        return transform.is_random
    from lmdbloader.transforms.of_torchvision import random_parts

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
    if isinstance(transform, Geometry) and transform.mixes and any(fields[i].is_mask for i in concerned):
        rest = tuple(field.name for field in fields if not field.is_mask)
        raise OptionError(
            f"{transform}: mixes images that it has moved, and no mask can follow. Read images alone, "
            f"LMDBDataset(path, fields={rest}), or use RandAugment, which masks follow."
        )
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


def _fill_numbers(transform: Any, fields: Sequence[ImageField]) -> list[int]:
    """Return the fill of three channels as whole numbers, and as the bits of floats."""
    for field in fields:
        check_fill(transform, transform.fill or 0, field.name, field.channels, field.dtype)
    fill = transform.fill if isinstance(transform.fill, tuple) else (transform.fill or 0,) * 3
    return [*map(int, fill), *np.array(fill, np.float32).view(np.uint32).tolist()]
