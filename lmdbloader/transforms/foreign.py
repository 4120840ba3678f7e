"""Transforms of torchvision in our lists: what they draw for a whole batch, and which pixels they take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any

from torch import nn

from lmdbloader.errors import OptionError

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
