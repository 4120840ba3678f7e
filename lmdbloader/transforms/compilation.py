"""Compiles a list of transforms to the numbers that kernels read, and checks each against the image fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import OptionError
from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms.base import Container, Geometry, SeveralViews, Transform
from lmdbloader.transforms.functions import BatchFunction, described, is_compiled
from lmdbloader.transforms.values import Chain, ImageField, Normalize, ToDtype, Values, check_fill

# The operations that make no random choice.
_FIXED = (opcodes.CENTER_CROP, opcodes.RESIZE)
# What to do about images that a program does not suit, by the status of a kernel.
UNSUITED = {
    opcodes.CROP_TOO_LARGE: (
        "a crop or a Cutout is larger than the image {field!r}. Use Resize before it, or RandomCrop(..., "
        "pad_if_needed=True)."
    ),
    opcodes.NOT_SQUARE: "RandomDihedral needs square images. Crop to a square first.",
    opcodes.NOT_ALIGNED: (
        "the images of one sample are cropped together, and one is not a whole multiple of the other. If they should "
        "be equal, mend the data. Otherwise give each a size first, Resize(size, fields=('image',)), or read one of "
        "them alone."
    ),
    opcodes.NOT_DIVISIBLE: (
        "a size or padding is not a multiple of the scale between the images of one sample. Choose one that is, of "
        "all scales: 96 for x2, x3 and x4."
    ),
}


@dataclass(frozen=True, slots=True)
class Program:
    """Transforms as kernels read them.

    Attributes:
        whole, real: (operations, ...) int64 and float64, see `opcodes`; of all views, one after the other.
        num_stages: Number of geometries of a field, one after the other.
        values: For each field; of all views, one after the other.
        sources: The transforms with operations, also those in containers, and the numbers of these operations.
        paths: The numbers of operations that may come one after the other; each operation is in one path at least.
        resizes: Whether some operation resizes images.
        is_random: Whether some operation makes random choices.
        warps: Whether some operation warps images.
        varying: For each field, as `values`, whether its sizes depend on random choices.
        views: (views, NUM_VIEW) int64, the operations of each.
    """

    whole: npt.NDArray[np.int64]
    real: npt.NDArray[np.float64]
    num_stages: int
    values: tuple[Values, ...]
    sources: tuple[tuple[Geometry, tuple[int, ...]], ...]
    paths: tuple[tuple[int, ...], ...]
    resizes: bool
    is_random: bool
    warps: bool
    varying: tuple[bool, ...]
    views: npt.NDArray[np.int64]

    def part(self, path: Sequence[int]) -> tuple[npt.NDArray[Any], ...]:
        """Return the operations of a path as a program of their own: whole, real and views."""
        numbers = np.array(path, np.int64)
        views = np.searchsorted(numbers, self.views)
        views[:, opcodes.VIEW_SHARED] = 0
        return self.whole[numbers], self.real[numbers], views


@dataclass(frozen=True, slots=True)
class _State:
    """What holds for all samples before an operation.

    Attributes:
        stage: Of the operation.
        padded: The fields whose geometry may have a fill, one bit each.
        size: Of a sample's largest image: (height, width); (height, 0, size before) if the height is that of the
            shorter side; () if stored sizes differ.
        parts: The numbers of operations that set the size of some fields only.
        varying: The fields whose sizes depend on random choices, one bit each.
    """

    stage: int
    padded: int
    size: tuple[Any, ...]
    parts: tuple[int, ...] = ()
    varying: int = 0


def undrawn(fields: Sequence[ImageField], num_stages: int) -> npt.NDArray[np.int64]:
    """Return the geometries (fields, stages, NUM_GEOMETRY) of a sample that nothing was drawn for."""
    geometry = np.zeros((len(fields), num_stages, opcodes.NUM_GEOMETRY), np.int64)
    for f, field in enumerate(fields):
        geometry[f, :, opcodes.OWN_FILL] = 3 * field.dtype.is_floating_point
        if field.is_mask:
            geometry[f, :, opcodes.MASK], geometry[f, :, opcodes.FILL] = 1, field.ignored
    return geometry


def compile_program(
    transforms: Sequence[Transform], fields: Sequence[ImageField], views: Iterable[Sequence[Transform]] | None = None
) -> Program:
    """Return the program of transforms for these fields; of several views, each goes on with transforms of its own.

    Raises:
        OptionError: A transform does not suit a field, or its place in the list; or sizes would depend on a draw.
    """
    if len(fields) > opcodes.MAX_FIELDS:
        raise OptionError(
            f"{len(fields)} image fields: expected at most {opcodes.MAX_FIELDS}. Read fewer with fields=."
        )
    compiler = _Compiler()
    size = max((field.size for field in fields), default=()) if all(field.size for field in fields) else ()
    paths, values, varying, bounds = list[list[int]]([[]]), list[Values](), list[bool](), list[tuple[int, int, int]]()
    shared = num_stages = 0
    for number, view in enumerate([()] if views is None else views):
        compiler.begin(fields)
        begin = len(compiler.whole)
        state, found = compiler.add_all(transforms, _State(0, 0, size), (number, 0))
        shared = shared if bounds else len(compiler.whole)
        state, others = compiler.add_all(view, state, (number, 1))
        paths = _followed(_followed(paths, found), others)
        values += [chain.values(compiler.num_erasings) for chain in compiler.chains]
        varying += [bool(state.varying >> f & 1) for f in range(len(fields))]
        bounds.append((begin, len(compiler.whole), shared))
        num_stages = max(num_stages, state.stage + 1)
    return Program(
        np.array(compiler.whole, np.int64).reshape(-1, opcodes.NUM_WHOLE),
        np.array(compiler.real, np.float64).reshape(-1, opcodes.NUM_REAL),
        num_stages,
        tuple(values),
        tuple((transform, tuple(numbers)) for transform, numbers in compiler.sources.values()),
        tuple(map(tuple, paths)),
        any(t.resizes for t, _ in compiler.sources.values()),
        any(operation[opcodes.OP_CODE] not in _FIXED for operation in compiler.whole),
        any(t.warps for t, _ in compiler.sources.values()),
        tuple(varying),
        np.array(bounds, np.int64),
    )


class _Compiler:
    """The operations so far, and the values of each field of a view."""

    def __init__(self) -> None:
        self.whole: list[list[int]] = []
        self.real: list[list[float]] = []
        # By the number of the view, and by where they are in the lists.
        self.sources: dict[tuple[int, ...], tuple[Geometry, list[int]]] = {}

    def begin(self, fields: Sequence[ImageField]) -> None:
        """Begin a view."""
        self._fields, self.chains, self.num_erasings = fields, [Chain(field) for field in fields], 0

    def add_all(
        self, transforms: Iterable[Any], state: _State, place: tuple[int, ...]
    ) -> tuple[_State, list[list[int]]]:
        """Add transforms one after the other; return the state after them, and their paths."""
        paths: list[list[int]] = [[]]
        for number, t in enumerate(transforms):
            if isinstance(t, Container):
                state, found = self._branch(t, state, (*place, number))
            elif isinstance(t, tuple) and len(place) > 2:  # in a container
                state, found = self.add_all(t, state, (*place, number))
            else:
                state, numbers = self._add(t, state, (*place, number))
                found = [numbers]
            paths = _followed(paths, found)
        return state, paths

    def _branch(self, container: Container, state: _State, place: tuple[int, ...]) -> tuple[_State, list[list[int]]]:
        """Add a container."""
        first, paths = len(self.whole), list[list[int]]([[]])
        for step in container.steps:
            ends, found = [state] if container.skips else [], list[list[int]]()
            for k, branch in enumerate(step):
                number = len(self.whole)
                columns = [0, number - first, branch.place, branch.size, branch.item]  # from BRANCH_SKIPS on
                operation = [opcodes.BRANCH, 0, state.stage, *columns]
                self.whole.append(operation + [0] * (opcodes.NUM_WHOLE - len(operation)))
                self.real.append([branch.low, branch.high, *[0.0] * (opcodes.NUM_REAL - 2)])
                end, others = self.add_all(branch.transforms, state, (*place, k))
                self.whole[number][opcodes.BRANCH_SKIPS] = len(self.whole) - number - 1
                ends.append(end)
                found += others
            _check_size(container, ends)
            state, paths = replace(ends[0], stage=max(end.stage for end in ends)), _followed(paths, found)
            for end in ends:
                state = replace(state, padded=state.padded | end.padded, varying=state.varying | end.varying)
        return state, paths

    def _add(self, transform: Any, state: _State, place: tuple[int, ...]) -> tuple[_State, list[int]]:
        """Add a transform; return the state after it, and the number of its operation, if it has one."""
        fields = self._fields
        concerned = _concerned(transform, fields)
        for f in concerned:
            self.chains[f].meet(transform, self.num_erasings)
        if not isinstance(transform, Geometry) or not concerned:
            return state, []
        stage, padded = state.stage, state.padded
        mask = sum(1 << f for f in concerned)
        if transform.pads and padded & mask:  # a geometry has one fill: the padding before becomes pixels
            stage, padded = stage + 1, padded & ~mask
        filled = [fields[f] for f in concerned if not fields[f].is_mask]  # masks have a fill of their own
        fill = _fill_numbers(transform, filled) if transform.pads else [0] * 6
        operation = [transform.code, mask, stage, *[0] * (opcodes.OP_FILL - opcodes.OP_HEIGHT), *fill]
        for column, number in transform.whole_numbers.items():
            operation[column] = number
        operation[opcodes.OP_RECTANGLE] = self.num_erasings
        first = len(self.whole)
        for slot in range(transform.num_operations):
            operation[opcodes.OP_STAGE], operation[opcodes.OP_SLOT] = stage, slot
            self.whole.append(list(operation))
            self.real.append([*transform.real_numbers, *[0.0] * (opcodes.NUM_REAL - len(transform.real_numbers))])
            stage += transform.ends_stage
        numbers = list(range(first, len(self.whole)))
        self.sources.setdefault(place, (transform, []))[1].extend(numbers)
        padded |= mask if transform.pads else 0
        self.num_erasings += transform.erases
        # Others may leave a sample out, whose padding then is still there.
        if transform.resizes or transform.code == opcodes.AFFINE:
            padded &= ~mask
        size, parts = _size_after(transform, state.size, first), state.parts
        if size is not state.size and len(concerned) < len(fields):
            parts = (*parts, first)
        return _State(stage, padded, size, parts, _varying(transform, mask, state.varying)), numbers


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


def _followed(paths: list[list[int]], others: list[list[int]]) -> list[list[int]]:
    """Return paths, each followed by one of the others, so that all of both are in one at least."""
    count = max(len(paths), len(others))
    return [paths[min(k, len(paths) - 1)] + others[min(k, len(others) - 1)] for k in range(count)]


def _size_after(transform: Geometry, before: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    """Return the size after a transform, whose first operation has this number."""
    if transform.varies_size:
        return (number,)
    height, width = transform.size_numbers
    if transform.erases or not height:
        return before
    if width or len(before) != 2:
        return (height, width) if width else (height, 0, before)
    tall, wide = before
    return (height, height * wide // tall) if tall <= wide else (height * tall // wide, height)


def _check_size(container: Container, ends: list[_State]) -> None:
    """Raise OptionError if the size of images depends on the draw of a container."""
    first = ends[0]
    other = next((end for end in ends if (end.size, end.parts) != (first.size, first.parts)), None)
    if other is not None:
        raise OptionError(
            f"{container}: the size of images would depend on the draw: {_as_text(first)}, or {_as_text(other)}. Put "
            f"the crop or Resize before or after {type(container).__name__}, or end all alternatives with one size: "
            "RandomChoice([RandomResizedCrop(224), [Resize(256), CenterCrop(224)]])."
        )


def _as_text(state: _State) -> str:
    if len(state.size) < 2:
        return "random" if state.size else "as stored"
    text = "{}x{}" if state.size[1] else "a shorter side of {}"
    return text.format(*state.size) + " of some fields" * bool(state.parts)


def is_random(transform: object) -> bool:
    """Return whether a transform is known to make random choices; of a function of the user this is not known.

    Functions of whole batches, such as MixUp, count as random: they are for training.
    """
    if isinstance(transform, Container):
        return True
    if isinstance(transform, Geometry):
        return transform.code not in _FIXED
    if isinstance(transform, BatchFunction):
        return transform.is_random
    from lmdbloader.transforms.of_torchvision import random_parts

    return bool(random_parts(transform))


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
        if isinstance(transform, list | tuple | SeveralViews):
            raise OptionError("transforms: only a Loader makes views: Loader(dataset, ..., transforms=Views(...)).")
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
            f"{transform}: {', '.join(masks)} holds masks, which only transforms that move pixels can change. {advice}"
        )
    return found


def _fill_numbers(transform: Any, fields: Sequence[ImageField]) -> list[int]:
    """Return the fill of three channels as whole numbers, and as the bits of floats."""
    for field in fields:
        check_fill(transform, transform.fill or 0, field.name, field.channels, field.dtype)
    fill = transform.fill if isinstance(transform.fill, tuple) else (transform.fill or 0,) * 3
    return [*map(int, fill), *np.array(fill, np.float32).view(np.uint32).tolist()]
