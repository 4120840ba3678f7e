"""torchvision's transforms on samples and batches: fields of an image's size change together with the image."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from lmdbloader.errors import OptionError
from lmdbloader.transforms.foreign import is_torchvision, is_v2, parts_of
from lmdbloader.transforms.functions import BatchFunction, WithIndices

# The classes of torchvision.tv_tensors for kinds of fields. Without them v2 changes the first tensor only.
_CLASSES = {"image": "Image", "mask": "Mask"}
_PLACES = {"boxes": "BoundingBoxes", "points": "KeyPoints"}
# Users' functions, and objects whose parts can be seen.
_FUNCTIONS = (FunctionType, MethodType)
_KNOWN = (BatchFunction, nn.Module)
# Transforms of v1 that call others.
_CONTAINERS = ("Compose", "RandomApply", "RandomChoice", "RandomOrder")


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
        OptionError: It is a transform of torchvision v1, which takes an image and not a sample; or ToTensor, which does
            not change tensors; or SanitizeBoundingBoxes, which has to find labels; or Lambda of v2, which would change
            labels.
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
    """Refuse a transform of torchvision that takes no samples of these kinds, or would leave their tensors as is."""
    name = type(part).__name__
    if name == "ToTensor":
        raise OptionError(
            "torchvision's ToTensor scales only PIL images to numbers from 0 to 1; the images here are tensors from 0 "
            "to 255. Write v2.ToDtype(torch.float32, scale=True), of torchvision.transforms.v2."
        )
    if name == "SanitizeBoundingBoxes" and getattr(part, "labels_getter", None) == "default":
        fields = [field for kind in ("boxes", "labels") for field, found in kinds.items() if found == kind]
        raise OptionError(
            "SanitizeBoundingBoxes of torchvision finds labels in dicts by itself, but not in named tuples. Write "
            f"lmdbloader.transforms.SanitizeBoxes({', '.join(map(repr, fields))}), in a Loader or as the dataset's "
            "transform; or name the labels: "
            f"v2.SanitizeBoundingBoxes(labels_getter=lambda sample: sample.{fields[-1] if fields else 'labels'})."
        )
    if name == "Lambda" and is_v2(part) and object in getattr(part, "types", ()) and len(kinds) > 1:
        raise OptionError(
            f"v2.Lambda(function) is called with each of {', '.join(kinds)}, not with the image alone. Write "
            "v2.Lambda(function, torch.Tensor)."
        )
    if is_v2(part) or name in _CONTAINERS:
        return
    image = next((field for field, kind in kinds.items() if kind == "image"), "image")
    takes = "takes one image; expected a function of samples or batches, named tuples of " + ", ".join(kinds)
    if type(part).__module__ == "torchvision.transforms._presets":  # of pretrained weights; v2 has none
        raise OptionError(
            f"{name} of torchvision.transforms {takes}. Write preset = weights.transforms(), and "
            f"transform=lambda sample: sample._replace({image}=preset(sample.{image}))."
        )
    v2 = f"v2.{name}(...) of torchvision.transforms.v2"
    if name == "ToPILImage":
        v2 = "the transforms of torchvision.transforms.v2 without ToPILImage, as images are tensors"
    raise OptionError(
        f"{name} of torchvision.transforms {takes}. Write {v2}, or lambda sample: "
        f"sample._replace({image}={name}(...)(sample.{image}))."
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
        if "torchvision.transforms.v2" not in sys.modules:  # a user's function, without torchvision
            return self.function(sample, *others)
        if hasattr(sample, "_fields"):
            values = sample._asdict()
            turned = self._wrap(values)
            result = _plain(self.function(type(sample)(**values), *others))
        elif isinstance(sample, dict):
            values = dict(sample)
            turned = self._wrap(values)
            result = _plain(self.function(values, *others))
        else:
            return self.function(sample, *others)
        for name in turned:
            result = _turned_back(result, name)
        return result

    def _wrap(self, values: dict[str, Any]) -> list[str]:
        """Give tensors torchvision's classes; return the names of arrays (H, W, C), which become (C, H, W)."""
        tensors = importlib.import_module("torchvision.tv_tensors")
        found = [(name, value, self.kinds.get(name)) for name, value in values.items()]
        _wrap_places(tensors, values, found, self.images)
        found = [each for each in found if isinstance(each[1], torch.Tensor)]
        sizes = {tuple(value.shape[-2:]) for _, value, kind in found if kind in _CLASSES}
        # The dimension of a batch, which arrays have too.
        leading = max(
            (value.ndim - (3 if kind == "image" else 2) for _, value, kind in found if kind in _CLASSES), default=0
        )
        turned = []
        for name, value, kind in found:
            if kind == "array":
                shape = tuple(value.shape[leading:])
                if shape[-2:] not in sizes:
                    if self.is_own or len(shape) != 3 or shape[:2] not in sizes:
                        continue
                    turned.append(name)
                    value = value.movedim(-1, -3)
            elif kind not in _CLASSES:
                continue
            values[name] = value.as_subclass(getattr(tensors, _CLASSES.get(str(kind), "Mask")))
        return turned


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


def _turned_back(result: Any, name: str) -> Any:
    """Return a result in which the array of this name, if there is one, is (H, W, C) again."""
    if name in getattr(result, "_fields", ()):
        return result._replace(**{name: getattr(result, name).movedim(-3, -1)})
    return {**result, name: result[name].movedim(-3, -1)} if isinstance(result, dict) and name in result else result


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
