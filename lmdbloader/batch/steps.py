"""Steps of compiled code on a whole batch: the user's compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.batch.degraded import DegradeStep
from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.batch.places import image_of_size
from lmdbloader.errors import OptionError
from lmdbloader.transforms.compiled_function import CompiledFunction
from lmdbloader.transforms.degradation import Degradation

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OwnStep:
    """A compiled function for the fields of a dataset.

    Attributes:
        function: The function.
        names: Of the fields that it changes.
        kinds: The kind of each field after it, by name.
        number: Of the function among the compiled functions of the Loader.
    """

    function: CompiledFunction
    names: tuple[str, ...]
    kinds: Mapping[str, str]
    number: int

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


def bound(
    functions: Sequence[Callable[[Any], Any]], pipeline: Pipeline, kinds: Mapping[str, str], frames: int | None = None
) -> dict[int, OwnStep | DegradeStep]:
    """Return the compiled functions among the functions of a Loader, compiled, by their place.

    Args:
        functions: Functions of whole batches, and compiled functions.
        pipeline: Reads the images.
        kinds: The kind of each field of the dataset, by name.
        frames: The number of frames in a window, if the samples are windows of clips.

    Raises:
        KernelError: Numba is not installed.
        OptionError: A function does not suit the fields, or Numba cannot compile it.
    """
    outputs = {o.name: o for o in pipeline.outputs}
    found: dict[int, OwnStep | DegradeStep] = {}
    is_first, number = True, 0
    for place, function in enumerate(functions):
        if isinstance(function, Degradation):
            if not is_first or number:
                raise OptionError(f"{function}: a function comes before it. Put it directly after the transforms.")
            step = found[place] = DegradeStep(function, pipeline, kinds, frames)
            outputs, kinds = {o.name: o for o in step.outputs}, step.kinds
        elif isinstance(function, CompiledFunction):
            names = _fields_of(function, kinds, pipeline)
            for o in (outputs[name] for name in names if name in outputs and is_first):
                function.prepare(o.values.dtype, channels_last=o.channels_last and not o.is_mask)
            found[place] = OwnStep(function, names, kinds, number)
            number += 1
        is_first = is_first and place in found
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
