"""torchvision's transforms in our lists: what they take and draw, and fields that change together with their image."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from lmdbloader.errors import OptionError
from lmdbloader.transforms.functions import BatchFunction, WithIndices

# Transforms of torchvision that do not draw in `make_params`.
_CHOOSING = ("AugMix", "AutoAugment", "RandAugment", "RandomChoice", "RandomOrder", "TrivialAugmentWide")
# Those that take floats for pixels from 0 to 1: they clamp, round or invert them.
_OF_PIXELS = frozenset({
    "AugMix", "AutoAugment", "ColorJitter", "GaussianNoise", "JPEG", "RandAugment", "RandomAdjustSharpness",
    "RandomAutocontrast", "RandomEqualize", "RandomInvert", "RandomPhotometricDistort", "RandomPosterize",
    "RandomSolarize", "ToPILImage", "TrivialAugmentWide",
})  # fmt: skip
_CHANGING_VALUES = frozenset({"ConvertImageDtype", "Lambda", "LinearTransformation", "Normalize", "ToDtype"})
# Those made for batches.
_FOR_BATCHES = {"MixUp", "CutMix"}
# The classes of torchvision.tv_tensors for kinds of fields. Without them v2 changes the first tensor only.
_CLASSES = {"image": "Image", "mask": "Mask"}
_PLACES = {"boxes": "BoundingBoxes", "points": "KeyPoints"}
# Users' functions, and objects whose parts can be seen.
_FUNCTIONS = (FunctionType, MethodType)
_KNOWN = (BatchFunction, nn.Module)


def is_torchvision(transform: object) -> bool:
    """Return whether an object is a transform of torchvision, v1 or v2, or of a class derived from one."""
    cls: Any = type(transform)
    return _is_derived(cls, "torchvision.transforms")


def is_v2(transform: object) -> bool:
    """Return whether an object is a transform of torchvision v2, or of a class derived from one."""
    cls: Any = type(transform)
    return _is_derived(cls, "torchvision.transforms.v2")


@cache  # it is asked for every sample
def _is_derived(cls: Any, module: str) -> bool:
    return any(base.__module__.startswith(module) for base in cls.__mro__)


def parts_of(transform: Any) -> Iterator[Any]:
    """Yield a transform and those inside it: of Compose, RandomApply, nn.Sequential and the like."""
    yield transform
    inner = getattr(transform, "transforms", None) if is_torchvision(transform) else None
    if isinstance(inner, (list, tuple, nn.ModuleList)):
        children = list(inner)
    else:
        children = list(transform.children()) if isinstance(transform, nn.Module) else []
    for child in children:
        yield from parts_of(child)


def check_pixels(functions: Iterable[Any], limits: Mapping[str, tuple[float, float]]) -> None:
    """Check that torchvision's transforms get pixels that they take.

    Args:
        functions: In their order; those after one that may change the pixels' range are not checked.
        limits: The least and the largest float of each field of images.

    Raises:
        OptionError: One would take floats for pixels from 0 to 1, and they are others.
    """
    outside = next((name for name, (low, high) in limits.items() if low < -0.01 or high > 1.01), None)
    for part in chain.from_iterable(map(parts_of, functions)) if outside else ():
        name = type(part).__name__
        if name in _CHANGING_VALUES or not (is_torchvision(part) or type(part) is nn.Sequential):
            return
        if name in _OF_PIXELS and getattr(part, "clip", True):
            low, high = limits[str(outside)]
            raise OptionError(
                f"torchvision's {name} gets the pixels of {outside!r} from {low:.3g} to {high:.3g}; expected bytes, or "
                "floats from 0 to 1. Leave ToDtype and Normalize out of the compiled list, and write "
                f"LMDBDataset(path, transform=v2.Compose([v2.{name}(...), v2.ToDtype(torch.float32, scale=True), "
                "v2.Normalize(mean, std)]))."
            )


def is_stateless(transform: Any) -> bool:
    """Return whether a transform and all its parts are torchvision's own, which change nothing when they are called."""
    is_known = is_torchvision(transform) or type(transform) is nn.Sequential
    return is_known and all(map(_is_own, parts_of(transform)))


def _is_own(part: Any) -> bool:
    """Return whether an object is a transform of torchvision that calls no function of the user."""
    cls: Any = type(part)
    if cls is nn.Sequential:
        return True
    is_own = cls.__module__.startswith("torchvision.transforms.") and cls.__name__ != "Lambda"
    return is_own and not callable(getattr(part, "labels_getter", None))


def random_parts(transform: Any) -> list[Any]:
    """Return the transforms of torchvision v2 inside one that make one random choice for a whole batch."""
    return [part for part in parts_of(transform) if is_v2(part) and _draws(part)]


def _draws(part: Any) -> bool:
    name, p = type(part).__name__, getattr(part, "p", None)
    inner = [type(other).__name__ for other in parts_of(part)][1:]
    if name in _FOR_BATCHES or (inner and _FOR_BATCHES.issuperset(inner)):  # as in RandomChoice([MixUp(), CutMix()])
        return False
    if name in _CHOOSING or (isinstance(p, int | float) and 0 < p < 1):
        return True
    if name == "RandomGrayscale":  # its parameters are not random
        return False
    return any(
        {"make_params", "_get_params"} & vars(cls).keys() for cls in type(part).__mro__ if cls.__name__ != "Transform"
    )


def in_step(
    function: Callable[..., Any], kinds: Mapping[str, str], images: Mapping[str, str | None] | None = None
) -> Callable[..., Any]:
    """Return a function of samples or batches that changes fields of an image's size together with the image.

    This is the function itself if no fields have to change together, or if it cannot call torchvision v2. Otherwise it
    is a transform of torchvision v2, or a user's function that may call one.

    Args:
        function: A dataset's own transform, or a function of whole batches.
        kinds: The kind of each field, by name.
        images: The field of the image that boxes and points are in, by name.

    Raises:
        OptionError: It is ToTensor, which does not change tensors; or Lambda of v2, which would change labels.
    """
    if isinstance(function, WithIndices):
        return WithIndices(in_step(function.function, kinds, images))
    if isinstance(function, _FUNCTIONS) or not (isinstance(function, _KNOWN) or is_torchvision(function)):
        together = [kind for kind in kinds.values() if kind in (*_CLASSES, *_PLACES, "array")]
        is_alone = len(together) < 2 or hasattr(function, "_torchdynamo_orig_callable")
        return function if is_alone else InStep(function, kinds, images or {}, is_own=True)
    if isinstance(function, BatchFunction):
        return function
    parts = list(parts_of(function))
    for part in parts:
        if not isinstance(part, nn.Sequential):
            name, of_v2 = type(part).__name__, is_v2(part)
            if not is_torchvision(part) or (name == "Lambda" and not of_v2):
                break  # what follows may get something else than a sample
            _check_part(part, kinds)
            if of_v2 and name in ("Lambda", "ToPILImage"):
                break
    return InStep(function, kinds, images or {}, is_own=False) if any(map(is_v2, parts)) else function


def _check_part(part: Any, kinds: Mapping[str, str]) -> None:
    """Refuse a transform of torchvision that would leave tensors as they are, or change labels, without an error."""
    name = type(part).__name__
    if name == "ToTensor":
        raise OptionError(
            "torchvision's ToTensor scales only PIL images to numbers from 0 to 1; the images here are tensors from 0 "
            "to 255. Write v2.ToDtype(torch.float32, scale=True), of torchvision.transforms.v2."
        )
    if name == "Lambda" and is_v2(part) and object in getattr(part, "types", ()) and len(kinds) > 1:
        raise OptionError(
            f"v2.Lambda(function) is called with each of {', '.join(kinds)}, not with the image alone. Write "
            "v2.Lambda(function, torch.Tensor)."
        )


@dataclass(slots=True)
class InStep:
    """A function that gets images as `tv_tensors.Image` and masks as `Mask`; its result has plain tensors.

    Attributes:
        function: The function.
        kinds: The kind of each field, by name.
        images: The field of the image that boxes and points are in, by name.
        is_own: Whether it is a user's function, which gets arrays in their shape, and not a transform of torchvision.
    """

    function: Callable[..., Any]
    kinds: Mapping[str, str]
    images: Mapping[str, str | None]
    is_own: bool

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function, which errors name."""
        return self.function

    def __call__(self, sample: Any, *others: Any) -> Any:
        """Return the result for a sample or a batch, a named tuple or a dict of fields."""
        is_named = hasattr(sample, "_fields")
        if "torchvision.transforms.v2" not in sys.modules or not (is_named or isinstance(sample, dict)):
            return self.function(sample, *others)  # a user's function, without torchvision
        values = sample._asdict() if is_named else dict(sample)
        self._wrap(values)
        return _plain(self.function(type(sample)(**values) if is_named else values, *others))

    def _wrap(self, values: dict[str, Any]) -> None:
        """Give tensors torchvision's classes."""
        tensors = importlib.import_module("torchvision.tv_tensors")
        found = [(name, value, self.kinds.get(name)) for name, value in values.items()]
        _wrap_places(tensors, values, found, self.images)
        found = [each for each in found if isinstance(each[1], torch.Tensor)]
        sizes = {tuple(value.shape[-2:]) for _, value, kind in found if kind in _CLASSES}
        # The dimension of a batch, which arrays have too.
        leading = max(
            (value.ndim - (3 if kind == "image" else 2) for _, value, kind in found if kind in _CLASSES), default=0
        )
        for name, value, kind in found:
            if kind == "array":
                shape = tuple(value.shape[leading:])
                if not self.is_own and len(shape) == 3 and shape[:2] in sizes and shape[-2:] not in sizes:
                    raise OptionError(
                        f"field {name!r} holds arrays (H, W, C) of an image's size, which torchvision would not change "
                        "with it. Store them as (C, H, W)."
                    )
                if shape[-2:] not in sizes:
                    continue
            elif kind not in _CLASSES:
                continue
            values[name] = value.as_subclass(getattr(tensors, _CLASSES.get(str(kind), "Mask")))


def _wrap_places(
    tensors: Any, values: dict[str, Any], found: list[tuple[str, Any, str | None]], images: Mapping[str, str | None]
) -> None:
    """Give boxes and points torchvision's classes, in their image or the largest; a batch has lists of them."""
    sizes = {n: value.shape[-2:] for n, value, kind in found if kind == "image" and isinstance(value, torch.Tensor)}
    largest = max(sizes.values(), default=(0, 0))
    for name, value, kind in found:
        if kind not in _PLACES or not sizes:
            continue
        if not hasattr(tensors, _PLACES[kind]):
            raise OptionError(
                f"field {name!r} holds {kind}, and this version of torchvision has no class for them. Upgrade it."
            )
        more = {"format": "XYXY"} if kind == "boxes" else {}
        canvas = sizes.get(images.get(name) or "", largest)
        make = partial(getattr(tensors, _PLACES[kind]), canvas_size=tuple(canvas), **more)
        values[name] = [make(each) for each in value] if isinstance(value, list) else make(value)


def _plain(value: Any) -> Any:
    """Return a value whose images and masks are plain tensors."""
    if isinstance(value, torch.Tensor):
        is_wrapped = (
            type(value).__name__ in (*_CLASSES.values(), *_PLACES.values()) and "tv_tensors" in type(value).__module__
        )
        return value.as_subclass(torch.Tensor) if is_wrapped else value
    if isinstance(value, tuple):
        items = [_plain(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if type(value) is list:
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if type(value) is dict else value
