"""Steps of compiled code on a whole batch: the user's compiled functions, and the conversions that follow them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.batch.memory import BatchMemory
from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.batch.places import image_of_size
from lmdbloader.errors import OptionError
from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms.compilation import compile_program
from lmdbloader.transforms.compiled_function import CompiledFunction
from lmdbloader.transforms.of_torchvision import check_pixels
from lmdbloader.transforms.values import ImageField, Normalize, ToDtype, Values

I64 = npt.NDArray[np.int64]
_STORED = (torch.uint8, torch.uint16)
# Sizes of batches of one Loader, whose memory is kept: of a field and shape.
_MOST_MEMORIES = 8


@dataclass(frozen=True, slots=True)
class Conversions:
    """ToDtype and Normalize that come after a compiled function, as one step.

    Attributes:
        transforms: In their order.
    """

    transforms: tuple[ToDtype | Normalize, ...]

    def __call__(self, batch: Any) -> Any:
        """Raise OptionError: only a Loader knows the fields."""
        raise OptionError(f"{self}: only a Loader applies it. Add it to Loader(..., transforms=[...]).")


@dataclass(frozen=True, slots=True)
class OwnStep:
    """A compiled function for the fields of a dataset.

    Attributes:
        function: The function.
        names: Of the fields that it changes.
        number: Of the function among the compiled functions of the Loader.
    """

    function: CompiledFunction
    names: tuple[str, ...]
    number: int

    @property
    def __wrapped__(self) -> CompiledFunction:
        """The function, which errors name."""
        return self.function

    def run(self, batch: Any, draws: I64, *, seed: int, epoch: int, is_fresh: bool) -> Any:
        """Return a batch with changed images.

        Args:
            batch: A named tuple of fields.
            draws: (B,) numbers of its samples.
            seed: The Loader's.
            epoch: Its number.
            is_fresh: Whether nothing else has the memory of the batch, so that it may change in place.
        """
        chosen, values = self.function.drawn(draws, seed=seed, epoch=epoch, number=self.number)
        changed = {}
        for name in self.names:
            images = _tensor(self.function, batch, name, len(draws))
            is_last = images.ndim == 4 and images.is_contiguous(memory_format=torch.channels_last)
            if not is_fresh or not (is_last or images.is_contiguous()):
                images = images.clone(memory_format=torch.channels_last if is_last else torch.contiguous_format)
            self.function.change(images, chosen, values)
            changed[name] = images
        return batch._replace(**changed)


class ConversionStep:
    """ToDtype and Normalize for the fields of a dataset, in a pass of their own."""

    def __init__(
        self, conversions: Conversions, kinds: Mapping[str, str], memory: type[BatchMemory], keep: int
    ) -> None:
        """Prepare; `memory` is where converted images are written, and `keep` the most arrays of one size."""
        self.conversions = conversions
        self._images = [name for name, kind in kinds.items() if kind == "image"]
        self._memory, self._keep = memory, keep
        self._memories: dict[Any, BatchMemory] = {}
        self._values: dict[Any, tuple[Values, ...]] = {}

    def run(self, batch: Any, draws: I64, *, seed: int, epoch: int, is_fresh: bool) -> Any:
        """Return a batch with converted images; the other arguments are those of `OwnStep.run`.

        Raises:
            OptionError: A transform does not suit a field.
        """
        names = [name for name in self._images if isinstance(getattr(batch, name, None), torch.Tensor)]
        found = [getattr(batch, name) for name in names]
        for name, images in zip(names, found, strict=True):
            if images.dtype not in _STORED or images.ndim != 4:
                raise OptionError(
                    f"{', '.join(map(str, self.conversions.transforms))}: the pixels of {name!r} are {images.dtype} "
                    f"{tuple(images.shape)} after a compiled function; expected (B, C, H, W) of torch.uint8 or "
                    "torch.uint16. Put ToDtype and Normalize both after it, or both before it."
                )
        values = self.prepare(names, tuple((images.dtype, images.shape[1]) for images in found))
        changed = {
            name: self._convert(images, each)
            for name, images, each in zip(names, found, values, strict=True)
            if each.kind != opcodes.COPY
        }
        return batch._replace(**changed)

    def prepare(self, names: Sequence[str], key: tuple[tuple[torch.dtype, int], ...]) -> tuple[Values, ...]:
        """Return how the values of fields are made; `key` has the type of the pixels and the channels of each.

        Raises:
            OptionError: A transform does not suit a field.
        """
        if key not in self._values:
            fields = [ImageField(name, channels, dtype) for name, (dtype, channels) in zip(names, key, strict=True)]
            self._values[key] = compile_program(self.conversions.transforms, fields).values
        return self._values[key]

    def _convert(self, images: torch.Tensor, values: Values) -> torch.Tensor:
        """Return images (B, C, H, W) as their values are made from the stored ones."""
        is_last = not images.is_contiguous()
        pixels = (images.permute(0, 2, 3, 1) if is_last else images).contiguous()
        out = self._take(tuple(pixels.shape), values.carrier)
        axis = 3 if is_last else 1
        if values.table is None:
            _scale(pixels.numpy(), values, out, axis)
        else:
            _look_up(pixels.numpy(), values.table, out.numpy(), axis)
        out = out if out.dtype == values.dtype else out.view(values.dtype)
        return out.permute(0, 3, 1, 2) if is_last else out

    def _take(self, shape: tuple[int, ...], carrier: np.dtype[Any]) -> torch.Tensor:
        key = shape[1:], carrier
        memory = self._memories.get(key)
        if memory is None:
            if len(self._memories) >= _MOST_MEMORIES:
                self._memories.clear()
            memory = self._memories[key] = self._memory(shape[1:], carrier, keep=self._keep)
        return memory.take(shape[0])[0]


def _look_up(pixels: Any, table: Any, out: Any, axis: int) -> None:
    """Write the words of pixels; `axis` is that of the channels."""
    words = out.view(table.dtype)
    for channel in range(pixels.shape[axis]):
        place = (slice(None),) * axis + (channel,)
        words[place] = table[channel][pixels[place]]


def _scale(pixels: Any, values: Values, out: torch.Tensor, axis: int) -> None:
    """Write pixels * factor + term, each rounded to float32, and then to the type; `axis` is as for `_look_up`."""
    factor, term = values.affine[:, 0], values.affine[:, 1]
    if axis == 3:  # whole rows: NumPy would start again for every three values
        count, height, width, channels = pixels.shape
        pixels, out = pixels.reshape(count, height, -1), out.view(count, height, -1)
        factor, term = (np.tile(numbers[:channels], width) for numbers in (factor, term))
    else:
        factor, term = (numbers[: pixels.shape[1]].reshape(-1, 1, 1) for numbers in (factor, term))
    # Image by image: the second operation finds the result of the first in the processor's cache.
    room = None if values.dtype == torch.float32 else np.empty(pixels.shape[1:], np.float32)
    for k in range(len(pixels)):
        floats = out[k].numpy() if room is None else room
        np.multiply(pixels[k], factor, out=floats, dtype=np.float32)
        np.add(floats, term, out=floats)
        if room is not None:
            out[k].view(values.dtype).copy_(torch.from_numpy(room))


Step = OwnStep | ConversionStep


def bound(
    functions: Sequence[Callable[[Any], Any]],
    pipeline: Pipeline,
    kinds: Mapping[str, str],
    *,
    memory: type[BatchMemory],
    keep: int,
) -> dict[int, Step]:
    """Return the compiled functions and conversions among the functions of a Loader, compiled, by their place.

    Args:
        functions: Functions of whole batches, compiled functions and conversions.
        pipeline: Reads the images.
        kinds: The kind of each field of the dataset, by name.
        memory: Where converted images are written.
        keep: The most arrays of one size that this memory keeps.

    Raises:
        KernelError: Numba is not installed.
        OptionError: A function does not suit the fields, or Numba cannot compile it.
    """
    outputs = {o.name: o for o in pipeline.outputs}
    known = {name: (o.values.dtype, o.shape[0]) for name, o in outputs.items() if not o.is_mask}
    found: dict[int, Step] = {}
    number, is_first = 0, True
    for place, function in enumerate(functions):
        if isinstance(function, CompiledFunction):
            names = _fields_of(function, kinds, pipeline)
            for o in (outputs[name] for name in names if name in outputs and is_first):
                function.prepare(o.values.dtype, channels_last=o.channels_last and not o.is_mask)
            found[place] = OwnStep(function, names, number)
            number += 1
        elif isinstance(function, Conversions):
            step = found[place] = ConversionStep(function, kinds, memory, keep)
            if is_first and known and all(dtype in _STORED for dtype, _ in known.values()):
                values = step.prepare(list(known), tuple(known.values()))  # an error now, not in the first batch
                limits = {name: v.limits for name, v in zip(known, values, strict=True) if v.dtype.is_floating_point}
                check_pixels(functions[place + 1 :], limits)
        is_first = is_first and isinstance(function, CompiledFunction)
    return found


def _fields_of(function: CompiledFunction, kinds: Mapping[str, str], pipeline: Pipeline) -> tuple[str, ...]:
    """Return the names of the fields that a compiled function changes.

    Raises:
        OptionError: It names another field; or it names none, and only it can say whether masks, boxes or arrays of
            the size of the images move.
    """
    images = tuple(name for name, kind in kinds.items() if kind == "image")
    changeable = [name for name, kind in kinds.items() if kind in ("image", "mask")]
    if function.fields is None:
        others = [name for name, kind in kinds.items() if kind in ("mask", "boxes", "points")]
        if others:
            raise OptionError(
                f"{function}: the dataset has {', '.join(map(repr, others))}, which must move with the images. If the "
                f"function changes values only, write fields={images}, else fields={tuple(changeable)}; it cannot move "
                "boxes or points."
            )
        if not images:
            raise OptionError(f"{function}: the dataset has no images; there are {', '.join(kinds) or 'no fields'}")
        for name in (name for name, kind in kinds.items() if kind == "array"):
            if image := image_of_size(pipeline, name):
                raise OptionError(
                    f"{function}: field {name!r} holds arrays of the size of {image!r}, which a function that moves "
                    f"pixels would leave behind. If it changes values only, write fields={pipeline.fields}."
                )
        return images
    for name in function.fields:
        if name not in changeable:
            raise OptionError(
                f"{function}: no field {name!r} of images or masks; there are {', '.join(changeable) or 'none'}"
            )
    return function.fields


def _tensor(of: object, batch: Any, name: str, count: int) -> torch.Tensor:
    """Return the images of a batch.

    Raises:
        OptionError: They are not one tensor.
    """
    found = getattr(batch, name, None)
    if not hasattr(batch, "_replace") or found is None:
        raise OptionError(
            f"{of}: comes after a function that returned a {type(batch).__name__} without {name!r}; expected a named "
            "tuple of the fields. Put it before that function."
        )
    if not isinstance(found, torch.Tensor) or len(found) != count:
        shown = f"a tensor {tuple(found.shape)}" if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
        raise OptionError(
            f"{of}: {name!r} is {shown}; expected a tensor of {count} images. Images of different sizes need a crop or "
            "a Resize before it."
        )
    return found
